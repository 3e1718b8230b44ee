"""Pure: ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups: operators' requests.

- Filters are compared without regard to case. An unknown state or type matches nothing.
- A group that does not exist, or is not of the classic protocol, is described as Dead, from version 6 on with
  GROUP_ID_NOT_FOUND (KIP-1043). ListGroups lists all kinds.
- A consumer member still has the partitions that it has yet to revoke. Deleted topics are left out.
- Only a group without members is deleted, and its offsets with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from broker.coordinator.group.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from broker.coordinator.group.consumer_group import ConsumerGroup, ConsumerGroupMember
from broker.coordinator.group.consumer_group_reconciler import ConsumerGroupReconciler
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import by_topic
from broker.coordinator.group.records import (
    group_tombstone,
    offset_tombstone,
    share_group_tombstones,
)
from broker.coordinator.group.streams_records import tombstones_of
from broker.coordinator.group.values import CoordinatorRecord, RemovingGroups, ResultBuilder
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)
from kafka_ds.protocol.messages.group_admin import (
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.topic_partition import PartitionId

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
FIRST_VERSION_THAT_NAMES_MISSING_GROUPS = 6
_WHY_NOT_DELETED = {
    ErrorCode.GROUP_ID_NOT_FOUND: "Group {} not found.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
}


class GroupAdmin:
    """Lists and descriptions of a shard's groups."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    def listed(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """The groups of these states and types; no state or no type means any."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {each.strip().lower() for each in types}
        kinds: tuple[tuple[str, str | None, Iterable[Any]], ...] = (
            (CONSUMER, CONSUMER_PROTOCOL, self._state.consumers.values()),
            (SHARE, SHARE, self._state.shares.values()),
            (STREAMS, STREAMS, self._state.streams.values()),
            (CLASSIC, None, self._state.all_groups()),
        )
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=protocol or group.protocol_type or "",
                group_state=group.state.value,
                group_type=kind,
            )
            for kind, protocol, groups in kinds
            if not wanted_types or kind in wanted_types
            for group in groups
            if not wanted_states or group.state.value.lower() in wanted_states
        ]

    def described(self, group_id: str, api_version: int) -> DescribedGroup:
        """One group with its members."""
        group = self._state.find(group_id)
        if group is None:
            is_other = self._state.is_modern(group_id)
            said = "is not a classic group." if is_other else "not found."
            return _missing(group_id, api_version, f"Group {group_id} {said}")
        stable = group.state is ClassicGroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            # Members' metadata belong to one protocol only once that is chosen.
            protocol_data=(group.protocol_name or "") if stable else "",
            members=[_member(group, member, stable) for member in group.members.values()],
        )

    def delete(self, group_ids: Iterable[str], result: ResultBuilder) -> list[DeletableGroupResult]:
        """Delete each group that has no members."""
        results = []
        removed = []
        for group_id in dict.fromkeys(group_ids):
            modern = self._state.committing(group_id)
            share = self._state.shares.get(group_id)
            group = self._state.find(group_id)
            code = ErrorCode.NONE
            if (modern is not None and modern.members) or (share and share.members):
                code = ErrorCode.NON_EMPTY_GROUP
            elif modern is not None:
                result.records += self._offset_tombstones(group_id)
                result.records += tombstones_of(modern)
            elif share is not None:
                result.records += share_group_tombstones(share)
            elif group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not ClassicGroupState.EMPTY:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                removed.append(group_id)
                result.records += self._offset_tombstones(group_id)
                result.records.append(group_tombstone(group_id))
            message = _WHY_NOT_DELETED.get(code)
            results.append(
                DeletableGroupResult(
                    group_id=group_id,
                    error_code=code,
                    error_message=message and message.format(group_id),
                )
            )
        if removed:
            result.store(RemovingGroups(group_ids=tuple(removed)))
        return results

    def _offset_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        return [
            offset_tombstone(group_id, topic, partition)
            for topic, partition in self._state.offsets.partitions_of(group_id)
        ]


def _missing(group_id: str, api_version: int, message: str) -> DescribedGroup:
    named = api_version >= FIRST_VERSION_THAT_NAMES_MISSING_GROUPS
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if named else ErrorCode.NONE,
        error_message=message if named else None,
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value,
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _member(group: ClassicGroup, member: ClassicGroupMember, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment,
    )


CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class ConsumerGroupDescriber:
    """Descriptions of a shard's consumer groups."""

    def __init__(self, state: GroupMetadataManager, changing: ConsumerGroupReconciler) -> None:
        self._state = state
        self._changing = changing

    def described(self, group_id: str) -> ConsumerGroupDescribeResponseDescribedGroup:
        """One group with its members."""
        group = self._state.consumers.get(group_id)
        if group is None:
            error = self._state.no_such_group(group_id, "consumer")
            return refusal(
                ConsumerGroupDescribeResponseDescribedGroup, group_id, error.code, error.message
            )
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
        self, partitions: Iterable[PartitionId]
    ) -> ConsumerGroupDescribeResponseAssignment:
        topics = []
        for topic_id, numbers in by_topic(partitions).items():
            name = self._state.topology.name_of(topic_id)
            if name is not None:
                topics.append(
                    ConsumerGroupDescribeResponseTopicPartitions(
                        topic_id=topic_id, topic_name=name, partitions=numbers
                    )
                )
        return ConsumerGroupDescribeResponseAssignment(topic_partitions=topics)
