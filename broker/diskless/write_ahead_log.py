"""Shell: this broker's write-ahead log: puts what leaders of diskless partitions have appended, and tells them.

Leaders say that they have appended; some milliseconds later (lake.diskless.linger.ms, or as soon as
lake.diskless.batch.bytes wait) the batches of all of them are read from their logs and put as one object. What
`WalWriter` decides is done here; puts are tried again until it is known who has the place. Nothing of a local log is
trusted later: it is a cache of what the store has, or soon will have. At most lake.diskless.buffer.bytes wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from broker.diskless.metrics import WalMetrics
from broker.diskless.wal_object import (
    CorruptWalObject,
    WalHeader,
    WalPart,
    checkpoint_path,
    object_path,
)
from broker.diskless.wal_reader import WalReader, read_header
from broker.diskless.wal_writer import ErasureCheck, Outcome, PutObject, WalWriter
from broker.log.values import LogRead
from broker.metadata.events import WalId
from broker.metrics.names import MetricSample
from kafka_ds.delta.store.store import Store
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

# Objects being put at the same time, so that linger.ms decides how long a record waits, and not the store.
IN_FLIGHT_MAX = 4
# Those puts, and what is read for take-overs.
WAL_THREADS_MAX = 16
# How much of a partition is put before it is another one's turn.
SHARE_BYTES = 1 << 20
RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 2.0
CLEAN_UP_SECONDS = 60.0
# An object may have a thousand parts, each of which is asked about before other tasks get their turn.
ERASED_AT_ONCE = 32
ERASING_THREADS = 4
# After so long without an answer of the store a line is written, and again each time it is twice as long.
AWAY_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """The settings of a write-ahead log, as they are now."""

    linger_ms: int
    batch_bytes: int
    buffer_bytes: int


class WalLeader(Protocol):
    """The leader of a diskless partition."""

    @property
    def key(self) -> PartitionId: ...
    @property
    def leader_epoch(self) -> int: ...
    def read_appended(self, offset: int, max_bytes: int) -> LogRead:
        """Whole batches of the log's end. Raises OSError, KafkaError."""

    def failed_to_put(self, error: Exception) -> None:
        """What was appended is never put."""

    def wal_has(self, first_offset: int, end_offset: int) -> None:
        """These records are in the store."""

    def deposed(self, leader_epoch: int) -> None:
        """A later leader of this epoch has fenced the write-ahead log."""


@dataclass(slots=True)
class _Appended:
    """What of a log waits to be put."""

    leader: WalLeader
    next_offset: int
    end_offset: int
    size_bytes: int
    is_again: bool
    """Whether it was taken over, so that an earlier log has it as well."""


class WriteAheadLog:
    """The write-ahead log of this process."""

    def __init__(
        self,
        store: Store,
        wal_id: Callable[[], WalId | None],
        settings: Callable[[], WalSettings],
        *,
        clock: Clock,
        executor: Executor,
        new_id: Callable[[], bytes],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`wal_id` is asked until it has an answer: that is when this broker is registered.

        `failed` is called if this broker cannot go on.
        """
        self.store, self.executor = store, executor
        self._find_id = wal_id
        self._id: WalId | None = None
        self._settings = settings
        self._clock = clock
        self._fail = failed
        self._writer = WalWriter(new_id)
        self.reader = WalReader(store, executor, new_id)
        self._appended: dict[PartitionId, _Appended] = {}
        self._leaders: dict[PartitionId, WalLeader] = {}
        # Of the waiting ones, those that were taken over: their producers are not here.
        self._waiting_bytes = self._flying_bytes = self._again_bytes = 0
        self._since_ms = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._checkpointing = asyncio.Lock()
        # The number of the next checkpoint, and those that may be there, oldest first.
        self._next_checkpoint = 0
        self._checkpoints: list[int] = []
        # Since when puts are under way without one that has succeeded, and how many are.
        self._trying_since_ms: int | None = None
        self._trying = 0
        # The next length of an outage that is logged; 0 while nothing has failed.
        self._said_away_ms = 0
        self.metrics = WalMetrics()

    # -- for the leaders --------------------------------------------------------------------------

    @property
    def wal_id(self) -> WalId | None:
        """Whose log this is; None before the broker is registered."""
        if self._id is None:
            self._id = self._find_id()
        return self._id

    def is_leaders(self, wals: Sequence[WalId]) -> bool:
        """Whether a registration means this log, the leader's, which comes last.

        If it means that of a later registration of this process, the process cannot go on: it has only this one.
        """
        own, leaders = self.wal_id, wals[-1]
        if own is None or own == leaders:
            return own == leaders
        if leaders.node_id == own.node_id and leaders.broker_epoch > own.broker_epoch:
            message = (
                f"this broker was registered again, in epoch {leaders.broker_epoch}, while it ran, and its "
                f"write-ahead log is that of epoch {own.broker_epoch}: start it again"
            )
            self._fail(RuntimeError(message))
        return False

    def check_room(self) -> None:
        """Refuse an append while too much waits for the store."""
        buffer_bytes = self._settings().buffer_bytes
        if self.buffered_bytes - self._again_bytes >= buffer_bytes:
            away = f", which has not answered for {self.away_ms} ms" if self.away_ms else ""
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.buffered_bytes} bytes of diskless topics wait for the store{away} "
                f"(lake.diskless.buffer.bytes={buffer_bytes})",
            )

    def appended(
        self,
        leader: WalLeader,
        first_offset: int,
        end_offset: int,
        size: int,
        *,
        is_again: bool = False,
    ) -> None:
        """A leader has appended these records, of so many bytes; `is_again`: those of earlier leaders."""
        known = waiting = self._appended.get(leader.key)
        if waiting is None:
            if not self._appended:
                self._since_ms = self._clock.monotonic_ms()
            waiting = _Appended(leader, first_offset, end_offset, 0, is_again)
            self._appended[leader.key] = waiting
            self._leaders[leader.key] = leader
        waiting.end_offset = end_offset
        self._count(waiting, size)
        if known is None or self._waiting_bytes >= self._settings().batch_bytes:
            self._wake.set()

    def forget(self, leader: WalLeader) -> None:
        """What this leader has appended is not put any more, nor acknowledged."""
        if self._leaders.get(leader.key) is not leader:
            return
        del self._leaders[leader.key]
        self._drop(leader.key)

    def _drop(self, key: PartitionId) -> None:
        if (waiting := self._appended.pop(key, None)) is not None:
            self._count(waiting, -waiting.size_bytes)

    def _count(self, waiting: _Appended, size: int) -> None:
        waiting.size_bytes += size
        self._waiting_bytes += size
        if waiting.is_again:
            self._again_bytes += size

    def knows(self, key: PartitionId) -> bool:
        """Whether this log has, or may have, records of the partition."""
        return self._writer.knows(key)

    def table_end(self, key: PartitionId) -> int:
        """The last offset of the partition that was in the table when this log needed it no more; -1 for none."""
        return self._writer.table_end(key)

    def table_has(self, key: PartitionId, last_offset: int) -> None:
        """A leader begins here behind what the table has; `checkpoint` makes that durable."""
        self._writer.table_has(key, last_offset)

    @property
    def buffered_bytes(self) -> int:
        """Appended, but not in the store yet."""
        return self._waiting_bytes + self._flying_bytes

    @property
    def away_ms(self) -> int:
        """For how long puts are under way without an answer to any of them; 0 below a second, as puts take time."""
        since_ms = self._trying_since_ms
        away_ms = 0 if since_ms is None else self._clock.monotonic_ms() - since_ms
        return away_ms if away_ms >= AWAY_MS else 0

    @property
    def object_count(self) -> int:
        """Objects that are there, fences not counted."""
        return self._writer.object_count

    def samples(self) -> Iterator[MetricSample]:
        """Its metrics."""
        return self.metrics.samples(
            buffered_bytes=self.buffered_bytes,
            away_ms=self.away_ms,
            object_count=self.object_count,
        )

    # -- working ------------------------------------------------------------------------------

    def start(self, is_safe: ErasureCheck, exists: Callable[[bytes], bool]) -> None:
        """Begin; `is_safe` tells which records are needed no more, `exists` whether there is a topic of this id."""
        self.spawn(self._take_turns())
        self.spawn(self._clean_up(is_safe, exists))

    def stop(self) -> None:
        """End; what is not acknowledged is never acknowledged."""
        for task in tuple(self._tasks):
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this until the log ends."""
        task = asyncio.get_running_loop().create_task(work, name="wal")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOGGER.error("The write-ahead log has failed", exc_info=error)

    def _in_thread(self, work: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self.executor, work, *args)

    async def _take_turns(self) -> None:
        while True:
            self._wake.clear()
            wait_ms = self._next_turn_ms()
            if wait_ms is None or wait_ms > 0:
                await self._wait(wait_ms)
                continue
            parts = await self._collect()
            if not parts:
                continue
            self._flying_bytes += sum(len(part.data) for part in parts)
            try:
                self._learn(self._writer.put(parts))
            except Exception as error:
                _LOGGER.exception("Unable to make an object of the write-ahead log")
                for leader in [
                    self._leaders[each.key] for each in parts if each.key in self._leaders
                ]:
                    self._give_up(leader, error)

    def _next_turn_ms(self) -> int | None:
        """In how many milliseconds the next object is made; None: when something happens."""
        if not self._appended or self._writer.in_flight >= IN_FLIGHT_MAX or self.wal_id is None:
            return None
        settings = self._settings()
        if self._waiting_bytes >= settings.batch_bytes:
            return 0
        return max(self._since_ms + settings.linger_ms - self._clock.monotonic_ms(), 0)

    async def _wait(self, wait_ms: int | None) -> None:
        if wait_ms is None:
            await self._wake.wait()
            return
        handle = asyncio.get_running_loop().call_later(wait_ms / 1000, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    async def _collect(self) -> list[WalPart]:
        """The next object's batches: a share of each partition that has some, until it is large enough."""
        parts: list[WalPart] = []
        left = self._settings().batch_bytes
        self._since_ms = self._clock.monotonic_ms()
        while left > 0 and self._appended:
            key, waiting = next(iter(self._appended.items()))
            part = await self._read(key, waiting, min(left, SHARE_BYTES))
            if part is not None:
                parts.append(part)
                left -= len(part.data)
        return parts

    async def _read(self, key: PartitionId, waiting: _Appended, max_bytes: int) -> WalPart | None:
        leader, first, epoch = waiting.leader, waiting.next_offset, waiting.leader.leader_epoch
        try:
            found = leader.read_appended(first, max_bytes)
            pieces = [each.read_now() for each in found.slices]
            for at, each in enumerate(found.slices):
                if pieces[at] is None:
                    pieces[at] = await self._in_thread(each.read)
            data = b"".join(piece for piece in pieces if piece is not None)
            if not data:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is at offset {first}")
        except Exception as error:  # noqa: BLE001 - one partition's trouble must not end the log of all
            if self._appended.get(key) is waiting:
                self._give_up(leader, error)
            return None
        if self._appended.get(key) is not waiting or leader.leader_epoch != epoch:
            return None  # It leads no more, or in another epoch.
        end = min(found.upper_bound_offset, waiting.end_offset)
        del self._appended[key]
        is_whole = end >= waiting.end_offset
        self._count(
            waiting, -(waiting.size_bytes if is_whole else min(waiting.size_bytes, len(data)))
        )
        if not is_whole:
            waiting.next_offset = end
            self._appended[key] = waiting  # To the end of the line.
        return WalPart(*key, epoch, first, end - 1, data)

    # -- the store ------------------------------------------------------------------------------

    def _learn(self, outcome: Outcome) -> None:
        for put in outcome.puts:
            self.spawn(self._put(put))
        self._wake.set()
        self._flying_bytes -= sum(len(p.data) for p in (*outcome.dropped, *outcome.acknowledged))
        for key in {*(key for key, _ in outcome.fenced), *(part.key for part in outcome.dropped)}:
            leader, fenced_by = self._leaders.get(key), self._writer.fenced_by(key)
            if leader is not None and leader.leader_epoch < fenced_by:
                self.metrics.fenced += 1
                self.forget(leader)
                self._tell(leader, partial(leader.deposed, fenced_by))
        for part in outcome.acknowledged:
            leader = self._leaders.get(part.key)
            if leader is not None and leader.leader_epoch == part.leader_epoch:
                end_offset = part.last_offset + 1
                self._tell(leader, partial(leader.wal_has, part.first_offset, end_offset))

    def _tell(self, leader: WalLeader, news: Callable[[], None]) -> None:
        """Tell a leader; its trouble must not be that of others."""
        try:
            news()
        except Exception as error:
            _LOGGER.exception("A leader cannot be told what its write-ahead log has")
            self._give_up(leader, error)

    def _give_up(self, leader: WalLeader, error: Exception) -> None:
        self.forget(leader)
        try:
            leader.failed_to_put(error)
        except Exception:
            _LOGGER.exception("A leader cannot be told that its records are not put")

    async def _put(self, put: PutObject) -> None:
        """Put an object until it is known who has its place."""
        assert self._id is not None
        path = object_path(self._id, put.place)
        began_ms, wait_s = self._clock.monotonic_ms(), RETRY_SECONDS
        self._trying += 1
        if self._trying_since_ms is None:
            self._trying_since_ms = began_ms
        while True:
            try:
                found = await self._in_thread(self._put_or_read, path, put.data)
                break
            except (FileNotFoundError, OSError, CorruptWalObject) as error:
                self._failed(path, error)
            except Exception as error:
                _LOGGER.exception("Unable to put %s, will try again", path)
                self._failed(path, error)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_SECONDS_MAX)
        self._succeeded(began_ms, len(put.data))
        if found is None:
            self._learn(self._writer.created(put.place))
            return
        if not self._writer.is_own(put.place, found) and not any(e.is_fence for e in found.entries):
            _LOGGER.error("%s was put by another process: two brokers have one incarnation", path)
        self._learn(self._writer.exists(put.place, found))

    def _put_or_read(self, path: str, data: bytes) -> WalHeader | None:
        """In a thread: None if the object is there now and was not before; else what was there."""
        if self.store.put_if_absent(path, data):
            return None
        return read_header(self.store, path)

    def _failed(self, path: str, error: Exception) -> None:
        self.metrics.errors += 1
        if not self._said_away_ms:
            self._said_away_ms = AWAY_MS
            _LOGGER.warning("Unable to put %s, will try again: %s", path, error)
        elif self.away_ms >= self._said_away_ms:
            _LOGGER.warning(
                "The store has taken no record of diskless topics for %d ms; %d bytes wait: %s",
                self.away_ms, self.buffered_bytes, error,
            )  # fmt: skip
            self._said_away_ms = 2 * self.away_ms

    def _succeeded(self, began_ms: int, size: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._said_away_ms and (away_ms := self.away_ms):
            _LOGGER.info("The store takes records of diskless topics again, after %d ms", away_ms)
        self._trying -= 1
        self._trying_since_ms = now_ms if self._trying else None
        self._said_away_ms = 0
        self.metrics.puts += 1
        self.metrics.bytes += size
        self.metrics.put_times.add((now_ms - began_ms) / 1000, now_ms / 1000)

    # -- cleaning up ----------------------------------------------------------------------------

    async def _clean_up(self, is_safe: ErasureCheck, exists: Callable[[bytes], bool]) -> None:
        while True:
            await asyncio.sleep(CLEAN_UP_SECONDS)
            if self.wal_id is None:
                continue
            try:
                self._writer.forget_topics(exists)
                await self.erase(is_safe)
            except OSError as error:
                _LOGGER.warning("Unable to erase objects of the write-ahead log: %s", error)
            except Exception:
                _LOGGER.exception("Unable to erase objects of the write-ahead log")

    async def erase(self, is_safe: ErasureCheck) -> int:
        """Erase the objects that nobody needs since the last call; returns how many. Raises OSError."""
        assert self._id is not None
        self._writer.forget_table_ends(is_safe)
        candidates = self._writer.places()
        places: list[int] = []
        for start in range(0, len(candidates), ERASED_AT_ONCE):
            some = candidates[start : start + ERASED_AT_ONCE]
            places += self._writer.begin_clean_up(some, is_safe)
            await asyncio.sleep(0)
        await self.checkpoint()
        for start in range(0, len(places), ERASED_AT_ONCE):
            some = places[start : start + ERASED_AT_ONCE]
            await self._delete([object_path(self._id, place) for place in some])
            self._writer.erased(some)
            self.metrics.erased += len(some)
        return len(places)

    async def checkpoint(self) -> None:
        """Put a checkpoint if one is due. Raises OSError."""
        async with self._checkpointing:
            if not self._writer.is_checkpoint_due:
                return
            assert self._id is not None
            made, number = self._writer.checkpoint(), self._next_checkpoint
            # One whose put has failed may still come: it must not replace a later one.
            self._next_checkpoint += 1
            self._checkpoints.append(number)
            path = checkpoint_path(self._id, number)
            try:
                await self._in_thread(self.store.put_if_absent, path, made.data)
            except BaseException:
                self._writer.not_checkpointed()
                raise
            self._writer.checkpointed(made)
            # Somebody may be about to read the one before.
            old, self._checkpoints = self._checkpoints[:-2], self._checkpoints[-2:]
            await self._delete([checkpoint_path(self._id, each) for each in old])

    async def _delete(self, paths: Sequence[str]) -> None:
        await asyncio.gather(
            asyncio.sleep(0),
            *(
                self._in_thread(_delete_all, self.store, paths[at::ERASING_THREADS])
                for at in range(min(ERASING_THREADS, len(paths)))
            ),
        )


def _delete_all(store: Store, paths: Iterable[str]) -> None:
    for path in paths:
        store.delete(path)
