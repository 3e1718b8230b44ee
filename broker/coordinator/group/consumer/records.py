"""Pure: the records of a group of the consumer protocol (KIP-848), and what they say of a member.

Rules of this file: what is written is what Kafka 4.3 writes, so that its tools, or a broker of its own, could go on
from here. Each record says all that there is about its key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.coordinator.group.consumer.member import (
    ClassicMetadata,
    ConsumerGroupMember,
    MemberState,
    Owned,
    Partitions,
    by_topic,
)
from broker.coordinator.group.values import CoordinatorRecord
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

# Written by a Kafka that kept none: the partition has been the member's since ever.
NO_ASSIGNMENT_EPOCH = 0


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group has another epoch."""
    return CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
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


def with_metadata(
    member: ConsumerGroupMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerGroupMember:
    """The member as the record of what it wants describes it."""
    classic = value.classic_member_metadata
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=tuple((p.name, bytes(p.metadata)) for p in classic.supported_protocols),
        ),
    )


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    """The target belongs to this epoch of the group."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=now_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """What the member is to have."""
    topics = [
        TargetTopicPartition(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic(target).items()
    ]
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    """What the record says that the member is to have."""
    return frozenset((t.topic_id, index) for t in value.topic_partitions for index in t.partitions)


def current_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """What the member has."""
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


def with_current(
    member: ConsumerGroupMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerGroupMember:
    """The member as the record of what it has describes it."""
    known = value.state in MemberState.__members__.values()
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=_owned(value.assigned_partitions),
        revoking=_owned(value.partitions_pending_revocation),
    )


def _owned_topics(owned: Owned) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=partitions,
            assignment_epochs=[owned[topic_id, index] for index in partitions],
        )
        for topic_id, partitions in by_topic(owned).items()
    ]


def _owned(topics: Iterable[CurrentTopicPartitions]) -> Owned:
    found = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [NO_ASSIGNMENT_EPOCH] * len(topic.partitions)
        for index, epoch in zip(topic.partitions, epochs, strict=True):
            found[topic.topic_id, index] = epoch
    return found


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
    """Nobody uses the expression any more."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The member is gone; what it had first, so that nothing is left that nobody owns."""
    return [
        CoordinatorRecord(key(group_id=group_id, member_id=member_id), None)
        for key in (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey,
        )
    ]


def group_tombstones(
    group_id: str, member_ids: Iterable[str], regexes: Iterable[str], *, has_old_metadata: bool
) -> list[CoordinatorRecord]:
    """The group is gone; the record that makes it a group goes last."""
    records = [r for member_id in member_ids for r in member_tombstones(group_id, member_id)]
    records += [regex_tombstone(group_id, regex) for regex in regexes]
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    records.append(CoordinatorRecord(key, None))
    if has_old_metadata:
        records.append(
            CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
        )
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), None))
    return records
