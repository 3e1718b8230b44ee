"""Pure: the records that groups write, and how they lie in a batch.

Rules of this file: the versions of the values are those that Kafka 4.3 writes: 3 for groups, 4 for offsets (which
carries the topic's id), and 1 for offsets whose committer said how long they are to be kept (OffsetCommit 2-4). All
records of groups of the consumer protocol are of version 0; what came later stands in tagged fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.coordinator.group.classic.group import ClassicGroup
from broker.coordinator.group.offsets import NO_TIMESTAMP
from broker.coordinator.group.values import EMPTY_ASSIGNMENT, CoordinatorRecord
from kafka_ds.protocol.messages.persisted import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
CONSUMER_GROUP_VERSION = 0
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """The group in its generation, each member with its assignment."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=assignments.get(member.member_id, EMPTY_ASSIGNMENT),
        )
        for member in group.members.values()
    ]
    timestamp = group.state_changed_ms
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=NO_TIMESTAMP if timestamp is None else timestamp,
        members=members,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """The group is gone."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """The group has no offset for this partition."""
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
    )


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value as bytes."""
    value = record.value
    if value is None:
        return encode_key(record.key), None
    if isinstance(value, GroupMetadataValue):
        version = GROUP_METADATA_VERSION
    elif not isinstance(value, OffsetCommitValue):
        version = CONSUMER_GROUP_VERSION
    else:
        expires = value.expire_timestamp != NO_TIMESTAMP
        version = OFFSET_COMMIT_VERSION_WITH_EXPIRY if expires else OFFSET_COMMIT_VERSION
    return encode_key(record.key), encode_value(value, version)
