"""Shell: compares a log that has lost records with the lake, until the lake answers.

A log that ends before the lake's end continues there, and no offset is used twice. If another broker may have led, a
fence is committed first: the end that is read after it is final. If log and lake differ in the epoch at the lake's end,
the whole log is dropped; until the lake answers the partition waits, for which of the two is right is unknown. A leader
that waits serves neither writes nor reads; other partitions go on. A lowered recovery point is written before the log
leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.log.directories.log_manager import LogManager
    from broker.membership.requests import ControllerRequests
    from broker.remote.remote_log_manager import RemoteLogManager

_LOGGER = logging.getLogger(__name__)

RECOVERY_RETRY_SECONDS = 1.0
PARTITIONS_ASKED_AT_ONCE = 1_000


class LakeRecovery:
    """The partitions of a broker that must still be compared with the lake."""

    def __init__(
        self,
        led: Iterable[LeaderPartition],
        logs: LogManager,
        *,
        remote_log_manager: RemoteLogManager | None,
        controller: ControllerRequests,
        elected: Callable[[LeaderPartition], None],
    ) -> None:
        """`led` are all partitions led here at the moment; `elected` begins the epoch of one that may begin."""
        self._led = led
        self._logs = logs
        self._remote_log_manager = remote_log_manager
        self._controller = controller
        self._elected = elected
        # Log directories whose lowered recovery points are not written yet, with a log's folder in each.
        self._truncated: dict[str, str] = {}
        # What was logged of waiting partitions: they are tried each second, and may be hundreds.
        self._said: dict[LeaderPartition, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def soon(self) -> None:
        """There is a partition that waits for the lake."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._recover())

    def stop(self) -> None:
        """Stop asking."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _recover(self) -> None:
        """Compare each recovering partition's end with the lake's, until none is left."""
        try:
            while waiting := [p for p in self._led if p.leader.is_recovering and not p.is_diskless]:
                try:
                    are_known = await self._end_recovery(waiting)
                except (KafkaError, OSError) as error:
                    _LOGGER.warning(
                        "Unable to compare recovered logs with the lake, will try again: %s", error
                    )
                    are_known = False
                except Exception:  # The root of a task: an error would go unnoticed.
                    _LOGGER.exception(
                        "Unable to compare recovered logs with the lake, will try again"
                    )
                    are_known = False
                if not are_known:
                    await asyncio.sleep(RECOVERY_RETRY_SECONDS)
        finally:
            self._task = None

    async def _end_recovery(self, waiting: Sequence[LeaderPartition]) -> bool:
        """Let those lead whose end in the lake is known; whether these are all."""
        self._said = {each: self._said[each] for each in waiting if each in self._said}
        known = await self._meet_lake(waiting)
        for home, folder in tuple(self._truncated.items()):
            try:
                await self._logs.checkpoint_recovery_points(folder)
            except OSError as error:
                _LOGGER.warning(
                    "Unable to lead the partitions with logs in %s yet: cannot write its recovery points: %s",
                    home, error,
                )  # fmt: skip
            else:
                del self._truncated[home]
        known = [p for p in known if _home_of(p.log) not in self._truncated]
        for partition in known:
            if partition.leader.found_what_was_lost() and not partition.is_lost:
                self._elected(partition)
        await self._controller.recovered([(p.topic_id, p.partition) for p in known])
        return len(known) == len(waiting)

    async def _meet_lake(self, waiting: Sequence[LeaderPartition]) -> list[LeaderPartition]:
        """Continue those logs after the lake's end that end below it or diverge; returns all that the lake answered."""
        remote_log_manager = self._remote_log_manager
        known = [p for p in waiting if remote_log_manager is None or not p.log.config.has_table]
        if remote_log_manager is None:
            return known
        for are_fenced in (False, True):
            asked = [p for p in waiting if p.log.config.has_table and _must_fence(p) is are_fenced]
            for start in range(0, len(asked), PARTITIONS_ASKED_AT_ONCE):
                part = asked[start : start + PARTITIONS_ASKED_AT_ONCE]
                ends = await self._highest_offsets_in_remote_storage(
                    remote_log_manager, part, are_fenced=are_fenced
                )
                for partition, end in zip(part, ends, strict=True):
                    if isinstance(end, int) and await self._go_on(
                        remote_log_manager, partition, end
                    ):
                        known.append(partition)
        return known

    async def _highest_offsets_in_remote_storage(
        self,
        remote_log_manager: RemoteLogManager,
        partitions: Sequence[LeaderPartition],
        *,
        are_fenced: bool,
    ) -> Sequence[int | KafkaError]:
        where = [p.log.topic_id_partition for p in partitions]
        try:
            if are_fenced:
                epochs = [p.leader.leader_epoch for p in partitions]
                loads = {p.topic_id: load for p in partitions if (load := p.log.config.lake_load)}
                states = await remote_log_manager.fence(
                    dict(zip(where, epochs, strict=True)), loads
                )
                ends = [
                    each if isinstance(each, KafkaError) else each.highest_offset_in_remote_storage
                    for each in states
                ]
            else:
                ends = await remote_log_manager.highest_offsets_in_remote_storage(where)
        except KafkaError as error:
            ends = [error] * len(where)
        except Exception as error:
            # A bug there must not leave partitions without a leader.
            _LOGGER.exception("Unable to ask where the lake ends for %d partitions", len(where))
            ends = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))] * len(where)
        for partition, end in zip(partitions, ends, strict=True):
            if isinstance(end, KafkaError):
                self._say(partition, f"the lake does not answer where it ends: {end}")
        return ends

    def _say(self, partition: LeaderPartition, what: str) -> None:
        """Log what a partition waits for, once, however often it is tried."""
        if self._said.get(partition) != what:
            self._said[partition] = what
            _LOGGER.warning("Unable to lead partition %s yet: %s", partition.log.name, what)

    async def _go_on(
        self, remote_log_manager: RemoteLogManager, partition: LeaderPartition, end: int
    ) -> bool:
        """Continue the log; or continue at the lake's end, if the log ends below it or diverges from the lake."""
        log, epoch = partition.log, partition.leader.leader_epoch
        if partition.is_lost or end < 0:
            return not partition.is_lost
        if end < log.log_end_offset and not _must_fence(partition):
            return True
        try:
            _, aux_state = await remote_log_manager.aux_state(log.topic_id_partition, end)
        except KafkaError as error:
            self._say(partition, f"the lake does not answer what it holds: {error}")
            return False
        if partition.is_lost or partition.leader.leader_epoch != epoch:
            return False
        if end < log.log_end_offset:
            if aux_state.epochs_known_to == -1:
                self._say(
                    partition,
                    f"the lake lacks both rows and residue before its end at offset {end}, so nobody knows the "
                    "leader epochs of its records",
                )
                return False
            if not has_diverged(log, end, aux_state):
                return True
        _say_where(log, end)
        recovery_point, start = log.recovery_point, log.log_start_offset
        try:
            log.truncate_fully_and_start_at(end + 1, aux_state)
        except OSError as error:
            self._say(partition, f"the log cannot be restarted at the end of the lake: {error}")
            return False
        finally:
            if log.recovery_point < recovery_point or log.log_start_offset < start:
                self._truncated[_home_of(log)] = log.directory
        partition.leader.restarted(end + 1)
        log.update_high_watermark(end + 1)
        return True


def _say_where(log: Log, end: int) -> None:
    """Log where a log goes on, and what is given up for it."""
    if log.config.lake_load and not log.log_end_offset:
        _LOGGER.info("%s begins at offset %d, behind what was loaded", log.name, end + 1)
        return
    _LOGGER.warning(
        "%s: local log ends at %d but the lake holds offsets up to %d%s; discarding the local log and "
        "continuing at %d",
        log.name, log.log_end_offset, end,
        "" if end >= log.log_end_offset else " with records of another epoch", end + 1,
    )  # fmt: skip


def _home_of(log: Log) -> str:
    return log.directory.rpartition("/")[0]


def _must_fence(partition: LeaderPartition) -> bool:
    """Whether an earlier leader may have copied, or be about to copy, records that this log lacks.

    A partition's only replica, if it still has its disk, holds everything that was ever copied.
    """
    return partition.leader.has_lost_records or len(partition.leader.replicas) > 1


def has_diverged(log: Log, end: int, aux_state: RemoteLogAuxState) -> bool:
    """Whether the log's record at the lake's end differs from the lake's: then they have diverged before.

    Two logs that have the same epoch at an offset have the same records up to there (KIP-101).
    """
    if not aux_state.leader_epochs:
        return False  # Nothing is left there.
    at = end if aux_state.epochs_known_to is None else aux_state.epochs_known_to
    owner = aux_state.leader_epochs[-1][0]
    known = log.leader_epochs.entries
    if known and at < known[0][1]:
        # The log dropped its records there and forgot their epoch, while a kill may have undone the move of the log
        # start. Along a log epochs never decrease.
        return known[0][0] < owner
    return log.leader_epochs.epoch_for_offset(at) != owner
