"""Pure: ConsumerGroupDescribe: what an operator sees of groups of the consumer protocol (KIP-848).

Rules of this file: what a member has, and what it is to have, are told apart; what it has yet to give back it has
still. Topics that are gone are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinator.group.consumer.changing import ConsumerGroupReconciler
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import ConsumerGroupMember, Partition, by_topic
from broker.coordinator.group.state import GroupMetadataManager
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class Describing:
    """Descriptions of a shard's consumer groups."""

    def __init__(self, state: GroupMetadataManager, changing: ConsumerGroupReconciler) -> None:
        self._state = state
        self._changing = changing

    def described(self, group_id: str) -> ConsumerGroupDescribeResponseDescribedGroup:
        """One group with its members."""
        group = self._state.consumers.get(group_id)
        if group is None:
            classic = self._state.find(group_id) is not None
            said = "is not a consumer group." if classic else "not found."
            return refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {said}")
        return ConsumerGroupDescribeResponseDescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=self._changing.assignor_of(group),
            members=[self._member(group, member) for member in group.members.values()],
        )

    def _member(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> ConsumerGroupDescribeResponseMember:
        return ConsumerGroupDescribeResponseMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.regex,
            assignment=self._assignment(member.owned),
            target_assignment=self._assignment(group.target_for(member.member_id)),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )

    def _assignment(
        self, partitions: Iterable[Partition]
    ) -> ConsumerGroupDescribeResponseAssignment:
        topics = []
        for topic_id, indexes in by_topic(partitions).items():
            name = self._state.topology.name_of(topic_id)
            if name is not None:
                topics.append(
                    ConsumerGroupDescribeResponseTopicPartitions(
                        topic_id=topic_id, topic_name=name, partitions=indexes
                    )
                )
        return ConsumerGroupDescribeResponseAssignment(topic_partitions=topics)


def refused(
    group_id: str, code: ErrorCode, message: str | None
) -> ConsumerGroupDescribeResponseDescribedGroup:
    """A group without anything to describe."""
    return ConsumerGroupDescribeResponseDescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        assignor_name="",
        members=[],
    )
