"""Shell: moves replicas from one log directory of this broker to another (KIP-113).

A move is a task that copies whole batches until the copy has caught up; the last ones without yielding, so that nothing
is appended in between. Then the controller learns that the replica is in the new directory (KIP-858), and only when the
metadata say so the copy takes its log's place. num.replica.alter.log.dirs.threads logs are copied at once, within
replica.alter.log.dirs.io.max.bytes.per.second. Each step first checks what happened to the log meanwhile
(`broker.log.directories.comparison`); a copy whose directory fails, or whose log is deleted, ends its move.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from broker.log.directories.comparison import CopyStep, agreed_end, next_step
from broker.log.directories.log_manager import FutureLog, LogManager
from broker.log.log import Log
from broker.log.segment import lookup
from broker.log.values import LogRead
from broker.rates import ByteRate
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.segments import names

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.membership.directories import DirectoryAssignments

_LOGGER = logging.getLogger(__name__)

# Bytes read and appended before other tasks get their turn in the event loop.
CHUNK_BYTES = 1 << 20
# The rest that may be copied while the event loop waits.
LAST_BYTES_MAX = 256 << 10
THROTTLED_SECONDS = 0.1
ASK_AGAIN_SECONDS = 0.5
# Requested moves of replicas that do not exist here yet; any client may request any. The oldest is forgotten first.
REMEMBERED_MAX = 10_000
FOLDER_SUFFIX_BYTES = len(".") + 32 + len(names.FUTURE_FOLDER)
# A copy's batches are its log's, of any epoch.
ANY_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMovesContext:
    """What moves need from the broker."""

    clock: Clock
    throttle: ByteRate
    at_once: int
    backoff_ms: int
    node_id: int
    driver: MetadataDriver
    directories: DirectoryAssignments


class LogMoves:
    """The moves of this broker's replicas."""

    def __init__(self, log_manager: LogManager, context: LogMovesContext) -> None:
        self._manager = log_manager
        self._context = context
        self._turns = asyncio.Semaphore(context.at_once)
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._failed: set[TopicPartition] = set()

    # -- requests -------------------------------------------------------------------------------

    def alter(self, key: TopicPartition, path: str) -> None:
        """Let a replica be in the directory of this absolute path.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION (its name is too long for a folder of a copy), LOG_DIR_NOT_FOUND,
                KAFKA_STORAGE_ERROR (a directory is offline), INVALID_REPLICA_ASSIGNMENT (it is cordoned),
                REPLICA_NOT_AVAILABLE (it is not here; remembered).
        """
        manager, folder = self._manager, str(key)
        if len(folder) + FOLDER_SUFFIX_BYTES > names.FOLDER_NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        directory = manager.directories.at(path)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        if directory.failure is not None or manager.is_offline(key):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}, or {folder}, is offline")
        if directory.path in manager.cordoned_log_dirs:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The log dir {path} is cordoned"
            )
        future, log = manager.future_log(key), manager.get(key)
        if future is not None and future.home is not directory:
            self._give_up(future)
            future = None
        if log is None:
            manager.preferred[key] = directory.path
            if len(manager.preferred) > REMEMBERED_MAX:
                del manager.preferred[next(iter(manager.preferred))]
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{folder} does not exist yet")
        if future is not None or manager.home_of(key) is directory:
            return
        if manager.directories.some_failed:
            # Where a copy may lie already.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a log directory is offline")
        future = manager.create_future_log(log, directory)
        _LOGGER.info("moving %s from %s to %s", folder, manager.home_of(key), directory)
        self._start(future)

    def resume(self) -> None:
        """Continue the moves that a former process of this broker has begun."""
        for future in self._manager.future_logs:
            if future.of is not None:
                _LOGGER.info("resuming the move of %s to %s", future.log.name, future.home)
                self._start(future)

    def _start(self, future: FutureLog) -> None:
        key = future.log.topic_partition
        self._failed.discard(key)
        name = f"move-{future.log.name}"
        self._tasks[key] = asyncio.get_running_loop().create_task(self._run(future), name=name)
        self._tasks[key].add_done_callback(partial(self._ended, key))

    def _ended(self, key: TopicPartition, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    def _give_up(self, future: FutureLog) -> None:
        task = self._tasks.pop(future.log.topic_partition, None)
        if task is not None:
            task.cancel()
        self._drop(future)

    def _drop(self, future: FutureLog) -> None:
        key = future.log.topic_partition
        self._manager.drop_future_log(key)
        if future.is_announced:
            self._context.directories.look_at(key)

    async def stop(self) -> None:
        """Stop moving; copies stay, for the next start to continue."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- metrics ----------------------------------------------------------------------------------

    def lag(self, future: FutureLog) -> int:
        """How many offsets a copy is behind its log; -1 if the log is gone."""
        log = future.of
        return -1 if log is None else max(log.log_end_offset - future.log.log_end_offset, 0)

    @property
    def lag_max(self) -> int:
        """The largest lag of a copy."""
        return max((self.lag(future) for future in self._manager.future_logs), default=0)

    @property
    def under_way(self) -> int:
        """How many replicas are moving."""
        return len(self._tasks)

    @property
    def failed_count(self) -> int:
        """How many moves have ended with an error."""
        return len(self._failed)

    # -- one move ---------------------------------------------------------------------------------

    async def _run(self, future: FutureLog) -> None:
        name, home = future.log.name, future.home
        while self._goes_on(future):
            try:
                await self._move(future)
                _LOGGER.info("moved %s to %s", name, home)
                return
            except _CopyRestarted:
                _LOGGER.info("%s: the next records to copy were deleted, restarting the copy", name)
                future = self._restart_copy(future)
                continue
            except (KafkaError, OSError) as error:
                _LOGGER.error("cannot move %s to %s, retrying: %s", name, home, error)
            except Exception:  # The root of a task: an error would go unnoticed.
                _LOGGER.exception("unexpected error, cancelling the move of %s to %s", name, home)
            await self._pause()
        if home.failure is not None:
            self._failed.add(future.log.topic_partition)
        _LOGGER.warning("cancelled the move of %s to %s", name, home)

    async def _pause(self) -> None:
        await asyncio.sleep(max(self._context.backoff_ms, 1) / 1_000)

    def _restart_copy(self, future: FutureLog) -> FutureLog:
        """Copy a log once more, from its present start."""
        log, home = future.of, future.home
        assert log is not None
        self._drop(future)
        try:
            return self._manager.create_future_log(log, home)
        except KafkaError as error:
            _LOGGER.error("Unable to copy log %s to %s again: %s", log.name, home.path, error)
            return future  # Which is not continued.

    def _goes_on(self, future: FutureLog) -> bool:
        key = future.log.topic_partition
        known = self._manager.get(key)
        is_ours = self._manager.future_log(key) is future
        return is_ours and known is future.of and known is not None

    async def _move(self, future: FutureLog) -> None:
        log = future.of
        assert log is not None
        # Old state of a log of this name in the directory must not be taken for the copy's.
        await self._manager.checkpoint_recovery_points(future.log.directory)
        async with self._turns:
            while not await self._is_level(future, log):
                pass
        if not self._goes_on(future):
            return
        future.announce()
        self._context.directories.look_at(log.topic_partition)
        driver, node_id = self._context.driver, self._context.node_id
        while driver.image.directory_of(log.topic_partition, node_id) != future.home.directory_id:
            await driver.wait_for_change(ASK_AGAIN_SECONDS)
            if not self._goes_on(future):
                return
        async with self._turns:
            await self._name_future(future, log)
            while self._goes_on(future) and not self._replace_current(future, log):
                await self._is_level(future, log)
        await self._leave(log)

    async def _name_future(self, future: FutureLog, log: Log) -> None:
        """Make the copy, its state and its name durable."""
        while not await self._is_level(future, log):
            pass
        if not self._goes_on(future):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log or its copy was deleted")
        future.copy_start()
        await _flushed(future.log)
        await self._manager.checkpoint_recovery_points(future.log.directory)
        await self._manager.checkpoint_log_starts(future.log.directory)
        if self._goes_on(future):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._manager.name_future(future, lambda error: _resolve(done, error))
            await done

    def _replace_current(self, future: FutureLog, log: Log) -> bool:
        """Copy the last bytes and let the copy take the log's place; False if that is not possible at once."""
        copied = 0
        if log.storage_error is not None or future.log.storage_error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log or its copy is out of order")
        while (step := next_step(log, future.log)) is CopyStep.COPY and copied <= LAST_BYTES_MAX:
            try:
                found = self._find(log, future.log.log_end_offset, may_wait=False)
            except BlockingIOError:
                return False
            for part in found.slices:
                data = part.read_now()
                if data is None:
                    return False
                self._append(future.log, data)
            copied += found.size_bytes
        if step is not CopyStep.NOTHING:
            return False
        self._manager.replace_with_future(log.topic_partition)
        return True

    async def _leave(self, log: Log) -> None:
        """Delete the old folder when the new one is durable; a full disk is waited for."""
        manager = self._manager
        while True:
            if manager.get(log.topic_partition) is not log:
                return
            try:
                await _flushed(log)
            except OSError as error:
                if log.storage_error is not None:
                    raise
                _LOGGER.error("cannot delete the old folder of %s yet: %s", log.name, error)
                await self._pause()
            else:
                break
        manager.discard_replaced(log.topic_partition)
        for directory in manager.directories.online:
            manager.checkpoint_logs(directory)
        manager.checkpoint_cleaned()

    # -- copying ----------------------------------------------------------------------------------

    async def _is_level(self, future: FutureLog, log: Log) -> bool:
        """Do the next step; whether the copy has about caught up then, or is deleted."""
        if not self._goes_on(future):
            return True
        copy = future.log
        match next_step(log, copy):
            case CopyStep.NOTHING:
                return True
            case CopyStep.BEGIN_AGAIN:
                raise _CopyRestarted
            case CopyStep.TRUNCATE:
                copy.truncate_to(agreed_end(log, copy))
                await self._manager.checkpoint_recovery_points(copy.directory)
                return False
            case CopyStep.COPY:
                end_offset = log.log_end_offset
                copied = await self._copy(future, log)
                return copied <= LAST_BYTES_MAX and copy.log_end_offset >= end_offset
            case unreachable:
                assert_never(unreachable)

    async def _copy(self, future: FutureLog, log: Log) -> int:
        """Copy the next batches; returns the bytes."""
        clock, throttle = self._context.clock, self._context.throttle
        while throttle.is_exceeded(clock.monotonic_ms()):
            await asyncio.sleep(THROTTLED_SECONDS)
        copy = future.log
        offset = copy.log_end_offset
        try:
            found = await asyncio.to_thread(self._find, log, offset)
            read = [await asyncio.to_thread(part.read) for part in found.slices]
        except OSError as error:
            log.failed_to_read(error)
            raise
        if not self._goes_on(future) or offset < log.first_base_offset:
            return 0  # Retention may have been quicker: the next step finds that, and nothing is left out.
        # What the log truncates meanwhile is truncated in the copy before the next step.
        for data in read:
            self._append(copy, data)
        if not found.size_bytes:
            self._skip(log, copy)
        throttle.record(found.size_bytes, clock.monotonic_ms())
        return found.size_bytes

    def _skip(self, log: Log, copy: Log) -> None:
        """Skip a gap that compaction left at the log's end: the last segment is empty."""
        if not log.active.size_bytes and next_step(log, copy) is CopyStep.COPY:
            copy.skip_to(log.log_end_offset)

    def _find(self, log: Log, offset: int, *, may_wait: bool = True) -> LogRead:
        """The batches from an offset on. Also below the log's start: they are copied unchanged."""
        return lookup.read(
            log.segments.all,
            offset,
            max_bytes=CHUNK_BYTES,
            bound=log.log_end_offset,
            min_one_batch=True,
            may_wait=may_wait,
        )

    def _append(self, copy: Log, data: bytes | bytearray) -> None:
        now_ms = self._context.clock.now_ms()
        copy.append_as_follower(memoryview(data), leader_epoch=ANY_EPOCH, now_ms=now_ms)


class _CopyRestarted(Exception):
    """The copy's next batch is no longer in its log."""


async def _flushed(log: Log) -> None:
    """Wait until the disk has all of a log; raises OSError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.flush(then=lambda error: _resolve(done, error))
    await done


def _resolve(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
