"""Shell: publishes this broker's checkpoint to the lake: ends of partitions, groups' offsets, states of share groups.

- It does so every `lake.offsets.interval.ms` if something has moved. Later offsets are lost if all disks are.
- A stopping broker publishes twice more, for PUBLISH_SECONDS in all. If it had not published before, it leaves out
  coordinators of nothing: it may have begun on empty disks by mistake.
- A partition of `__consumer_offsets` or `__share_group_state` goes with what its leader coordinates, of one leader
  epoch, or not at all: until its coordinator is active the table keeps what it has. One pass is spread over turns of
  the event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.coordinator.group.classic_group import CONSUMER_PROTOCOL
from broker.coordinator.group.group_admin import CLASSIC, CONSUMER, SHARE, STREAMS
from broker.coordinator.group.modern_group import ModernGroup
from broker.coordinator.group.shard import GroupCoordinatorShard
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.coordinator.share.shard import ShareCoordinatorShard
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME, SHARE_GROUP_STATE_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.worker.rpc import PartitionOffsets, PublishOffsets
from kafka_ds.ipc.child import WorkerFailed, WorkerLost
from kafka_ds.ipc.request import SendToWorker
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, uuid_text

log = logging.getLogger(__name__)

# Partitions that are looked at before other tasks get their turn.
PARTITIONS_AT_ONCE = 200
# A stop waits no longer for a store that does not answer. On a busy machine a worker needs seconds to begin.
PUBLISH_SECONDS = 30.0


_COORDINATING = (GROUP_METADATA_TOPIC_NAME, SHARE_GROUP_STATE_TOPIC_NAME)


class OffsetPublisher:
    """Publishes offsets to the lake."""

    def __init__(
        self,
        send: SendToWorker,
        led: Iterable[LeaderPartition],
        groups: CoordinatorRuntime[GroupCoordinatorShard],
        shares: CoordinatorRuntime[ShareCoordinatorShard],
        interval_ms: int,
    ) -> None:
        """`send` has the worker carry out a request; `led` is read again each time."""
        self._send = send
        self._led = led
        self._groups = groups
        self._shares = shares
        self._interval_ms = interval_ms
        self._published: tuple[list[PartitionOffsets], list[ShardCheckpoint]] | None = None
        # Whether it has written, and not only because it stops.
        self._has_begun = False
        self._shards: dict[TopicPartition, tuple[ShardCheckpoint, str]] = {}
        self._publishing = asyncio.Lock()

    async def run(self) -> None:
        """Publish, and publish again."""
        while self._interval_ms >= 0:
            await asyncio.sleep(max(self._interval_ms, 1) / 1000)
            try:
                await self.publish()
            except (WorkerLost, WorkerFailed) as error:
                log.warning("Failed to publish offsets to the lake, retrying: %s", error)
            except Exception:  # The root of a task: an error would go unnoticed.
                log.exception("Failed to publish offsets to the lake")

    async def publish_last(self, seconds: float) -> bool:
        """Publish what has moved, before this broker stops; False if that fails in time, which is logged."""
        if self._interval_ms < 0:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.publish(begins=False)
            return True
        except (TimeoutError, WorkerLost, WorkerFailed) as error:
            why = str(error) or f"the lake did not answer for {seconds:.1f} s"
            log.warning(
                "Failed to publish the last committed offsets of groups to the lake: %s", why
            )
        except Exception:
            log.exception("Failed to publish the last committed offsets of groups to the lake")
        return False

    async def publish(self, *, begins: bool = True) -> None:
        """Publish what has moved since the last time, if anything has; `begins`: also that there are no groups."""
        async with self._publishing:
            await self._publish(begins)

    async def _publish(self, begins: bool) -> None:
        partitions = await self._partitions()
        await self._encode_shards()
        if not begins and not self._has_begun:
            for partition, each in self._active().items():
                if each.shard.is_empty:
                    self._shards.pop(partition, None)
        epochs = {partition: place.leader_epoch for partition, (place, _) in self._shards.items()}
        spoken = {TopicPartition(each.topic, each.partition): each for each in partitions}
        spoken = {
            partition: each
            for partition, each in spoken.items()
            if each.topic not in _COORDINATING or epochs.get(partition) == each.leader_epoch
        }
        partitions = list(spoken.values())
        shards = [shard for partition, shard in self._shards.items() if partition in spoken]
        state = (partitions, [place for place, _ in shards])
        if state == self._published or not partitions:
            return
        await self._send(PublishOffsets(partitions=partitions, shards=[text for _, text in shards]))
        self._published = state
        self._has_begun = self._has_begun or begins

    async def _partitions(self) -> list[PartitionOffsets]:
        found: list[PartitionOffsets] = []
        for number, partition in enumerate(tuple(self._led)):
            if not partition.leader.is_recovering and not partition.is_lost:
                found.append(offsets_of(partition))
            if number % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return found

    def _active(self) -> dict[TopicPartition, CoordinatorContext[Any]]:
        begun: list[CoordinatorContext[Any]] = [*self._groups.begun(), *self._shares.begun()]
        return {
            TopicPartition(each.partition.topic, each.partition.partition): each
            for each in begun
            if each.is_active
        }

    async def _encode_shards(self) -> None:
        """Encode what has changed; drop what is led elsewhere, or unknown."""
        active = self._active()
        for partition in self._shards.keys() - active.keys():
            del self._shards[partition]
        for partition, each in active.items():
            place = ShardCheckpoint(
                partition, each.partition.leader.leader_epoch, each.last_written_offset
            )
            is_of_groups = partition.topic == GROUP_METADATA_TOPIC_NAME
            known = self._shards.get(partition)
            if known is None or known[0] != place:
                rows = group_rows if is_of_groups else share_rows
                self._shards[partition] = place, rows(place, each.shard)
                await asyncio.sleep(0)


class ShardCheckpoint(NamedTuple):
    """One state of one coordinator: its partition, the epoch of its lead, the last record that it knows."""

    partition: TopicPartition
    leader_epoch: int
    written: int


def offsets_of(partition: LeaderPartition) -> PartitionOffsets:
    """The ends of a partition that is led here."""
    log = partition.log
    return PartitionOffsets(
        topic=partition.topic,
        topic_id=uuid_text(partition.topic_id),
        partition=partition.partition,
        leader_epoch=partition.leader.leader_epoch,
        log_start_offset=log.log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        last_stable_offset=partition.last_stable_offset(),
        high_watermark=partition.high_watermark,
        log_end_offset=log.log_end_offset,
        size_bytes=log.size_bytes,
    )


def group_rows(place: ShardCheckpoint, shard: GroupCoordinatorShard) -> str:
    """The groups of one coordinator, and what they have committed, as JSON."""
    state = shard.state
    groups = [
        [group_id, CLASSIC, value.protocol_type, value.generation]
        for group_id, value in state.metadata.items()
    ]
    modern: tuple[tuple[str, str, Mapping[str, ModernGroup[Any, Any]]], ...] = (
        (CONSUMER, CONSUMER_PROTOCOL, state.consumers),
        (SHARE, SHARE, state.shares),
        (STREAMS, STREAMS, state.streams),
    )
    groups += [
        [group_id, group_type, protocol_type, group.epoch]
        for group_type, protocol_type, listed in modern
        for group_id, group in listed.items()
    ]
    offsets = [
        [
            group_id,
            topic,
            None if found.topic_id == NO_UUID else uuid_text(found.topic_id),
            partition,
            found.offset,
            found.leader_epoch,
            found.metadata,
            found.commit_timestamp_ms,
            found.expire_timestamp_ms,
        ]
        for group_id, topics in state.offsets.committed.items()
        for topic, partitions in topics.items()
        for partition, found in partitions.items()
    ]
    return json.dumps([place.partition.partition, place.leader_epoch, groups, offsets, []])


def share_rows(place: ShardCheckpoint, shard: ShareCoordinatorShard) -> str:
    """The states of one share coordinator, as JSON."""
    states = [
        [
            key.group_id,
            uuid_text(key.topic_id),
            key.partition,
            state.leader_epoch,
            state.start_offset,
            state.state_epoch,
            state.delivery_complete_count,
            [
                [each.first_offset, each.last_offset, each.delivery_state, each.delivery_count]
                for each in state.batches
            ],
        ]
        for key, state in shard
    ]
    return json.dumps([place.partition.partition, place.leader_epoch, [], [], states])
