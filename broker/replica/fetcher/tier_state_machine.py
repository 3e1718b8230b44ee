"""Shell: a follower whose leader has the records it needs only in the lake starts there (KIP-405, KIP-1023).

On OFFSET_MOVED_TO_TIERED_STORAGE the follower drops its log and continues at the end of a range of the lake, with the
log start, the leader epochs and the producers of that place: as if it had followed all along. That range holds the last
offset below the leader's local log, or with `follower.fetch.last.tiered.offset.enable` is the lake's last one; then an
empty log starts there, too. While the lake is asked the partition is held back, and its fetcher serves others.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from broker.log.values import RemoteLogAuxState
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetched_partitions import FetchedPartitions
from broker.replica.fetcher.leader_end_point import LeaderEndPoint
from broker.replica.fetcher.log_truncation import LogTruncation
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FetchPosition
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.offsets import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD

if TYPE_CHECKING:
    from broker.remote.remote_log_manager import RemoteLogManager

# Longer than any answer takes.
HELD_BACK_MS = 3_600_000

TierPlace = tuple[int, RemoteLogAuxState, int]


class TierStateMachine:
    """The partitions of one fetcher that are being rebuilt."""

    def __init__(
        self,
        leader: LeaderEndPoint,
        partitions: FetchedPartitions,
        truncation: LogTruncation,
        context: FetcherContext,
    ) -> None:
        self._leader = leader
        self._partitions = partitions
        self._truncation = truncation
        self._context = context
        self._tasks: dict[FollowerPartition, asyncio.Task[None]] = {}

    def begin_first(self, partition: FollowerPartition) -> None:
        """An empty log is followed from now on; the setting may let it skip what is in the lake."""
        if (
            self._skips_the_lake(partition)
            and partition.log.config.remote_storage_enable
            and partition.follower.fetch_offset == 0
        ):
            self._begin(partition, partition.follower.fetch_position, is_first=True)

    def begin(self, partition: FollowerPartition, position: FetchPosition) -> None:
        """The leader has the offset only in the lake."""
        self._begin(partition, position, is_first=False)

    def stop(self) -> None:
        """Leave them as they are."""
        for task in self._tasks.values():
            task.cancel()

    def _begin(
        self, partition: FollowerPartition, position: FetchPosition, *, is_first: bool
    ) -> None:
        if partition in self._tasks:
            self._partitions.hold_back(partition)
            return
        partition.follower.delay(self._context.clock.monotonic_ms() + HELD_BACK_MS)
        task = asyncio.get_running_loop().create_task(
            self._rebuild(partition, position, is_first=is_first)
        )
        self._tasks[partition] = task
        task.add_done_callback(lambda _: self._tasks.pop(partition, None))

    async def _rebuild(
        self, partition: FollowerPartition, position: FetchPosition, *, is_first: bool
    ) -> None:
        fetched = self._partitions
        try:
            if is_first and not await self._has_lake(partition):
                fetched.go_on(partition)
                return
            place = await self._place(partition)
            if not fetched.is_current(partition, position):
                return
            offset, aux_state, log_start = place
            if offset <= position.fetch_offset:
                # The lake does not yet hold what the leader reports: ask again.
                self._hold_back(partition)
                return
            restart = partial(partition.restart_at, offset, aux_state, log_start_offset=log_start)
            await self._truncation.truncate(partition, restart)
            fetched.go_on(partition)
        except PeerUnreachable:
            self._hold_back(partition)
        except Exception as error:  # noqa: BLE001 - the root of a task; whoever fetches says what it was
            if fetched.is_current(partition, position):
                partition.follower.retry()
                fetched.failed(partition, error)

    def _skips_the_lake(self, partition: FollowerPartition) -> bool:
        """Whether as little as possible is local (KIP-1023); a compacted log has all that its leader has."""
        is_set = self._context.settings.follower_fetch_last_tiered_offset_enable
        return is_set and not partition.log.config.is_compacted

    def _hold_back(self, partition: FollowerPartition) -> None:
        partition.follower.retry()
        self._partitions.hold_back(partition)

    async def _has_lake(self, partition: FollowerPartition) -> bool:
        pending, _ = await self._leader.fetch_offset(partition, EARLIEST_PENDING_UPLOAD)
        return pending > 0

    async def _place(self, partition: FollowerPartition) -> TierPlace:
        """The offset to continue at, the state before it, and the leader's log start."""
        offset_of, context = self._leader.fetch_offset, self._context
        last_below = None
        if not self._skips_the_lake(partition):
            local_start, _ = await offset_of(partition, EARLIEST_LOCAL)
            last_below = max(local_start - 1, 0)
        offset, aux_state = await end_of_lake(context.remote_log_manager, partition, last_below)
        log_start, _ = await offset_of(partition, EARLIEST)
        return offset, aux_state, log_start


async def end_of_lake(
    remote_log_manager: RemoteLogManager | None, partition: FollowerPartition, offset: int | None
) -> tuple[int, RemoteLogAuxState]:
    """Where a follower continues whose leader has the next records only in the lake, and the state before that.

    That is after the range that holds `offset`, the last one below the leader's local log (KIP-405); or after the
    lake's end for None (KIP-1023).

    Raises KafkaError: the lake does not answer.
    """
    if remote_log_manager is None or not partition.log.config.remote_storage_enable:
        raise KafkaError(
            ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
            f"{partition.log.name}: this broker has no tiered storage",
        )
    where = partition.log.topic_id_partition
    if offset is None:
        offset = await remote_log_manager.known_highest_offset_in_remote_storage(where)
    next_offset, aux_state = await remote_log_manager.aux_state(where, offset)
    return next_offset, replace(aux_state, has_markers_to_come=True)
