"""Shell: the leaders' tiered offsets of the followed logs, by which local retention deletes segments (KIP-405).

- Followers copy nothing. Every `remote.log.manager.task.interval.ms` each leader is asked once, by ListOffsets -5
  (KIP-1005), where the lake ends, for partitions that may have changed only: idle ones cost nothing, and no worker
  process is needed.
- Leaders report what is FINISHED. As on the leader local segments are deleted `lake.local.grace.ms` later, and never
  what is not committed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from broker.remote.copy_policy import CopyState
from broker.remote.local_deletion import delete_local_segments
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.requests import offsets_request
from broker.replica.follower.partition import FollowerPartition
from broker.transport.peer import PeerUnreachable
from broker.transport.peers import Peers
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ListOffsetsResponse
from kafka_ds.protocol.messages.offsets import LATEST_TIERED
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)

PARTITIONS_AT_ONCE = 1_000


class TieredOffsets:
    """Passes the lake's ends to the followed logs."""

    def __init__(
        self,
        context: FetcherContext,
        followed: Callable[[], Iterable[FollowerPartition]],
    ) -> None:
        self._context = context
        self._followed = followed
        self.peers = Peers(context.network, client_id=f"broker-{context.node_id}-tiered-offsets")
        self.known: dict[FollowerPartition, CopyState] = {}
        self._away: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask, if that is not so already."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tiered offsets")

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
        self.peers.close()

    async def _run(self) -> None:
        interval_ms = self._context.settings.remote_log_manager_task_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            try:
                await self.look()
            except Exception:  # The root of a task: an error would go unnoticed.
                _LOGGER.exception("unexpected error while asking leaders for tiered offsets")

    async def look(self) -> None:
        """Ask all leaders, then delete what may be deleted."""
        by_leader: dict[int, list[FollowerPartition]] = {}
        tiered = [each for each in self._followed() if each.log.config.remote_storage_enable]
        for partition in tiered:
            leader = partition.follower.leader
            if leader >= 0 and self._may_have_news(partition):
                by_leader.setdefault(leader, []).append(partition)
        await asyncio.gather(*(self._list_offsets(*each) for each in by_leader.items()))
        self.known = {each: self.known[each] for each in tiered if each in self.known}
        for partition in tiered:
            self._delete_local_segments(partition)

    def _may_have_news(self, partition: FollowerPartition) -> bool:
        known = self.known.get(partition)
        if known is None or known.copied_offset < partition.log.log_end_offset - 1:
            return True
        # Records that the lake loses later stay in this log as long as retention allows.
        return len(partition.log.segments.all) > 1

    async def _list_offsets(self, leader: int, partitions: Sequence[FollowerPartition]) -> None:
        address = self._context.address_of(leader)
        if address is None:
            return
        timeout_ms = self._context.settings.replica_socket_timeout_ms
        for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
            asked = partitions[start : start + PARTITIONS_AT_ONCE]
            epochs = [each.follower.leader_epoch for each in asked]
            request = offsets_request(asked, LATEST_TIERED, self._context.node_id)
            try:
                answer = await self.peers.send(leader, *address, request, timeout_ms=timeout_ms)
            except (PeerUnreachable, KafkaError) as error:
                if leader not in self._away:
                    _LOGGER.info("broker %d did not report its tiered offsets: %s", leader, error)
                    self._away.add(leader)
                return
            self._away.discard(leader)
            self._process_response(dict(zip(asked, epochs, strict=True)), answer)

    def _process_response(
        self, asked: dict[FollowerPartition, int], answer: ListOffsetsResponse
    ) -> None:
        by_key = {each.key: (each, epoch) for each, epoch in asked.items()}
        now_ms = self._context.clock.monotonic_ms()
        for topic in answer.topics:
            for found in topic.partitions:
                partition, epoch = by_key[TopicPartition(topic.name, found.partition_index)]
                is_current = not partition.is_lost and partition.follower.leader_epoch == epoch
                if found.error_code == ErrorCode.NONE and is_current:
                    state = self.known.setdefault(partition, CopyState())
                    if found.offset < state.copied_offset:
                        state.lost(found.offset)
                    state.finished(found.offset, now_ms)

    def _delete_local_segments(self, partition: FollowerPartition) -> None:
        state = self.known.get(partition)
        if state is None or partition.is_lost:
            return
        grace_ms = self._context.settings.lake_local_grace_ms
        clock = self._context.clock
        delete_local_segments(
            partition.log, state.aged_offset(clock.monotonic_ms(), grace_ms), clock
        )
