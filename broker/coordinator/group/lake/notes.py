"""Pure: what a broker notes in the lake of where its partitions and groups are, as it goes to the worker.

Rules of this file: notes are lists and not objects, as there may be many. Their values have the order of the columns in
`broker/worker/metadata/offset_rows.py`, which makes rows of them. Ids are texts, times milliseconds, -1 where there is
none. The groups of one partition of `__consumer_offsets` are encoded once, and again only when something was written
there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.coordinator.group.classic.subscription import CONSUMER_PROTOCOL
from kafka_ds.protocol.types import NO_UUID, uuid_text

if TYPE_CHECKING:
    from broker.coordinator.group.shard import GroupCoordinatorShard
    from broker.replica.leader.hosted import HostedPartition


class ShardCheckpoint(NamedTuple):
    """One state of one coordinator: its partition, the epoch of its lead, the last record that it knows."""

    partition: int
    leader_epoch: int
    written: int


def partition_note(partition: HostedPartition) -> list[Any]:
    """Where a partition that is led here is."""
    log = partition.log
    return [
        partition.topic,
        uuid_text(partition.topic_id),
        partition.index,
        partition.leader.leader_epoch,
        log.log_start_offset,
        log.local_log_start_offset,
        partition.last_stable_offset(),
        partition.high_watermark,
        log.log_end_offset,
        log.size_bytes,
    ]


def shard_note(place: ShardCheckpoint, shard: GroupCoordinatorShard) -> str:
    """The groups of one coordinator, and what they have committed, as JSON."""
    state = shard.state
    groups = [
        [group_id, value.protocol_type, value.generation]
        for group_id, value in state.metadata.items()
    ]
    groups += [
        [group_id, CONSUMER_PROTOCOL, group.epoch] for group_id, group in state.consumers.items()
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
    return json.dumps([place.partition, place.leader_epoch, groups, offsets])
