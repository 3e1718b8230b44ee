"""Pure: groups from the lake (`__offsets`) as records of `__consumer_offsets` again, after all disks were lost.

- A group comes back empty, of its type and in its last generation or epoch: it knows no member, so those that there
  were rejoin. A share group also gets back which partitions have a share state: those whose state was published.
- An offset above the end of the restored partition is reset to that end: new records will get those offsets.
- Offsets of topics that no longer exist are not restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.coordinator.group.group_admin import CLASSIC, SHARE, STREAMS
from broker.coordinator.group.records import SHARE as SHARE_RECORDS
from broker.coordinator.group.records import epoch_record, state_metadata_record
from broker.coordinator.group.share_group import ShareGroup, StatePartitions
from broker.coordinator.group.streams_group import NO_TOPOLOGY
from broker.coordinator.group.streams_records import streams_epoch_record
from broker.coordinator.group.values import CoordinatorRecord
from broker.worker.rpc import (
    OffsetsCheckpoint,
    PublishedGroup,
    PublishedOffset,
    PublishedShareState,
)
from kafka_ds.protocol.messages.persisted import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafka_ds.protocol.types import NO_UUID, uuid_from_text

NO_EPOCH = -1
# The first member's heartbeat computes it.
NO_HASH = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedOffset:
    """A committed offset beyond the restored end."""

    group_id: str
    topic: str
    partition: int
    committed_offset: int
    end_offset: int


@dataclass(slots=True)
class RestoredGroups:
    """The records to append to one partition of `__consumer_offsets`, and a summary."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    offsets: int = 0
    truncated: list[TruncatedOffset] = field(default_factory=list)
    published_ms: int = -1


def restored_groups(
    published: OffsetsCheckpoint,
    coordinator_partition: int,
    *,
    end_of: Callable[[str, int], int | None],
    name_of: Callable[[bytes], str | None],
    now_ms: int,
) -> RestoredGroups:
    """The groups of one coordinator, out of what `__offsets` says.

    `end_of` gives the end of a topic's partition as far as that bounds what groups may have committed; None: it does
    not exist. A partition of a live leader has no such bound: its end is the largest offset that there can be.
    `name_of` gives the name of a topic that exists.
    """
    found = RestoredGroups()
    # An offset of these expires so long after its commit: the time in which nothing ran does not count.
    renewed = {each.group_id for each in published.groups if each.group_type != CLASSIC}
    for group in published.groups:
        if group.coordinator_partition != coordinator_partition:
            continue
        found.groups.add(group.group_id)
        found.records += _group_records(group, published.share_states, name_of, now_ms)
    for each in published.offsets:
        if each.coordinator_partition != coordinator_partition:
            continue
        end = end_of(each.topic, each.partition)
        if end is None:
            continue
        found.groups.add(each.group_id)
        found.offsets += 1
        found.published_ms = max(found.published_ms, each.event_time_ms)
        if each.committed_offset > end:
            found.truncated.append(
                TruncatedOffset(
                    group_id=each.group_id,
                    topic=each.topic,
                    partition=each.partition,
                    committed_offset=each.committed_offset,
                    end_offset=end,
                )
            )
        commit_time_ms = now_ms if each.group_id in renewed else each.commit_time_ms
        found.records.append(_offset_record(each, end, commit_time_ms))
    return found


def _group_records(
    group: PublishedGroup,
    states: Iterable[PublishedShareState],
    name_of: Callable[[bytes], str | None],
    now_ms: int,
) -> list[CoordinatorRecord]:
    group_id, epoch = group.group_id, group.generation
    if group.group_type == CLASSIC:
        return [_classic_group_record(group, now_ms)]
    if group.group_type == SHARE:
        return _share_group_records(group, states, name_of)
    if group.group_type == STREAMS:
        return [streams_epoch_record(group_id, epoch, NO_HASH, NO_TOPOLOGY, {})]
    return [epoch_record(group_id, epoch, NO_HASH)]


def _classic_group_record(group: PublishedGroup, now_ms: int) -> CoordinatorRecord:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=None,
        leader=None,
        # Its offsets expire so long after it became empty.
        current_state_timestamp=now_ms,
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _share_group_records(
    group: PublishedGroup,
    states: Iterable[PublishedShareState],
    name_of: Callable[[bytes], str | None],
) -> list[CoordinatorRecord]:
    partitions: dict[bytes, set[int]] = {}
    for state in states:
        if state.group_id == group.group_id:
            partitions.setdefault(uuid_from_text(state.topic_id), set()).add(state.partition)
    initialized = {
        topic_id: StatePartitions(name, frozenset(numbers))
        for topic_id, numbers in partitions.items()
        if (name := name_of(topic_id)) is not None
    }
    return [
        epoch_record(group.group_id, group.generation, NO_HASH, SHARE_RECORDS),
        state_metadata_record(ShareGroup(group.group_id), initialized=initialized),
    ]


def _offset_record(each: PublishedOffset, end: int, commit_time_ms: int) -> CoordinatorRecord:
    is_set_back = each.committed_offset > end
    value = OffsetCommitValue(
        offset=min(each.committed_offset, end),
        # The epoch of a lost record need not be that of the next one there.
        leader_epoch=NO_EPOCH if is_set_back else each.committed_leader_epoch,
        metadata=each.metadata,
        commit_timestamp=commit_time_ms,
        expire_timestamp=each.expire_time_ms,
        topic_id=uuid_from_text(each.topic_id) if each.topic_id else NO_UUID,
    )
    key = OffsetCommitKey(group=each.group_id, topic=each.topic, partition=each.partition)
    return CoordinatorRecord(key, value)
