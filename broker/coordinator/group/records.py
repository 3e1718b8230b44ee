"""Pure: the records of groups as Kafka 4.4 writes them, so that its tools, or its brokers, can continue from here.

Values are of version 3 for classic groups, 4 for offsets (which carries the topic's id), 1 for offsets whose committer
set a retention time (OffsetCommit 2-4), 0 for all of the consumer protocol and of share groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.coordinator.group.classic_group import ClassicGroup
from broker.coordinator.group.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    Owned,
)
from broker.coordinator.group.modern_group import GroupDraft, ModernGroup, Partitions, by_topic
from broker.coordinator.group.offsets import NO_TIMESTAMP
from broker.coordinator.group.share_group import ShareGroup, ShareGroupMember, StateTopics
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
from kafka_ds.protocol.messages.persisted_consumer_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartition,
)
from kafka_ds.protocol.messages.persisted_share_groups import (
    ShareCurrentTopicPartitions,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTargetTopicPartition,
    TopicInfo,
    TopicPartitionsInfo,
)


class RecordFamily(NamedTuple):
    """The classes of what is written in the same way of consumer and share groups: of keys, and their values."""

    epoch: tuple[type[Any], type[Any]]
    target_epoch: tuple[type[Any], type[Any]]
    target: tuple[type[Any], type[Any]]
    # One topic in a target.
    target_topic: type[Any]
    # A member's keys; its assignment goes first, so that no partition is left without an owner.
    member_keys: tuple[type[Any], type[Any], type[Any]]


CONSUMER = RecordFamily(
    (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    TargetTopicPartition,
    (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    ),
)
SHARE = RecordFamily(
    (ShareGroupMetadataKey, ShareGroupMetadataValue),
    (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    ShareTargetTopicPartition,
    (
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupMemberMetadataKey,
    ),
)

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
MODERN_GROUP_VERSION = 0
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
    """The group is deleted."""
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
        version = MODERN_GROUP_VERSION
    else:
        expires = value.expire_timestamp != NO_TIMESTAMP
        version = OFFSET_COMMIT_VERSION_WITH_EXPIRY if expires else OFFSET_COMMIT_VERSION
    return encode_key(record.key), encode_value(value, version)


def epoch_record(
    group_id: str, epoch: int, metadata_hash: int, family: RecordFamily = CONSUMER
) -> CoordinatorRecord:
    """The group has another epoch."""
    key, value = family.epoch
    return CoordinatorRecord(
        key(group_id=group_id), value(epoch=epoch, metadata_hash=metadata_hash)
    )


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """The member's identity and subscription."""
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols
            ],
        ),
    )
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key, value)


def target_epoch_record(
    group_id: str, epoch: int, now_ms: int, family: RecordFamily = CONSUMER
) -> CoordinatorRecord:
    """The target belongs to this epoch of the group."""
    key, value = family.target_epoch
    return CoordinatorRecord(
        key(group_id=group_id), value(assignment_epoch=epoch, assignment_timestamp=now_ms)
    )


def write_if_emptied(draft: GroupDraft[Any], family: RecordFamily = CONSUMER) -> None:
    """If the last member has left, the target without members is up to date, and the next one need not wait."""
    if not draft.group.members:
        draft.write(target_epoch_record(draft.group.group_id, draft.group.epoch, 0, family))


def target_record(
    group_id: str, member_id: str, target: Partitions, family: RecordFamily = CONSUMER
) -> CoordinatorRecord:
    """The member's target assignment."""
    key, value = family.target
    topics = [
        family.target_topic(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic(target).items()
    ]
    return CoordinatorRecord(
        key(group_id=group_id, member_id=member_id), value(topic_partitions=topics)
    )


def current_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """The member's current assignment."""
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_owned_topics(member.assigned),
            partitions_pending_revocation=_owned_topics(member.revoking),
        ),
    )


def _owned_topics(owned: Owned) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=partitions,
            assignment_epochs=[owned[topic_id, partition] for partition in partitions],
        )
        for topic_id, partitions in by_topic(owned).items()
    ]


def regex_record(
    group_id: str, regex: str, topics: Iterable[str], version: int, now_ms: int
) -> CoordinatorRecord:
    """The topics that an expression matches."""
    return CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(topics), version=version, timestamp=now_ms
        ),
    )


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """The expression is no longer used."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)


def member_tombstones(
    group_id: str, member_id: str, family: RecordFamily = CONSUMER
) -> list[CoordinatorRecord]:
    """The member is gone."""
    return [
        CoordinatorRecord(key(group_id=group_id, member_id=member_id), None)
        for key in family.member_keys
    ]


def consumer_group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """The group is deleted; the record that makes it a group goes last."""
    group_id = group.group_id
    records = [r for member_id in group.members for r in member_tombstones(group_id, member_id)]
    records += [regex_tombstone(group_id, regex) for regex in group.regexes]
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    records.append(CoordinatorRecord(key, None))
    if group.has_old_metadata:
        records.append(
            CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
        )
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), None))
    return records


# -- share groups ------------------------------------------------------------------------------------


def share_member_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """The member's identity and subscription."""
    return CoordinatorRecord(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
        ),
    )


def share_current_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """The member's current assignment."""
    return CoordinatorRecord(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=MemberState.STABLE,
            assigned_partitions=[
                ShareCurrentTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic(member.assigned).items()
            ],
        ),
    )


def state_metadata_record(
    group: ShareGroup,
    *,
    initializing: StateTopics | None = None,
    initialized: StateTopics | None = None,
    deleting: Mapping[bytes, str] | None = None,
) -> CoordinatorRecord:
    """Which partitions have a share state; what is None stays as the group has it."""
    return CoordinatorRecord(
        ShareGroupStatePartitionMetadataKey(group_id=group.group_id),
        ShareGroupStatePartitionMetadataValue(
            initializing_topics=_state_topics(
                group.initializing if initializing is None else initializing
            ),
            initialized_topics=_state_topics(
                group.initialized if initialized is None else initialized
            ),
            deleting_topics=[
                TopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in sorted(
                    (group.deleting if deleting is None else deleting).items()
                )
            ],
        ),
    )


def _state_topics(topics: StateTopics) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
        for topic_id, (name, partitions) in sorted(topics.items())
    ]


def share_group_tombstones(group: ShareGroup) -> list[CoordinatorRecord]:
    """The group is deleted."""
    return tombstones(
        group,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupStatePartitionMetadataKey,
        ShareGroupMetadataKey,
    )


def tombstones(group: ModernGroup[Any, Any], *keys: type[Any]) -> list[CoordinatorRecord]:
    """A group without members is deleted: one tombstone each; the key that makes it a group is the last."""
    assert not group.members
    return [CoordinatorRecord(key(group_id=group.group_id), None) for key in keys]
