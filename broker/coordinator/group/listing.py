"""Pure: ListGroups, DescribeGroups, DeleteGroups: what an operator sees of groups and does to them.

Rules of this file:
- Filters are compared without regard to case. A state or type that we do not know matches nothing.
- A group that is not there, or of the consumer protocol, is described as Dead, from version 6 on with
  GROUP_ID_NOT_FOUND (KIP-1043). ListGroups tells of both kinds.
- Only a group without members is deleted, and its offsets with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from broker.coordinator.group.classic.group import ClassicGroup, ClassicGroupMember
from broker.coordinator.group.classic.states import ClassicGroupState
from broker.coordinator.group.classic.subscription import CONSUMER_PROTOCOL
from broker.coordinator.group.records import group_tombstone, offset_tombstone
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.values import CoordinatorRecord, RemovingGroups, ResultBuilder
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.group_admin import (
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
)

CLASSIC = "classic"
CONSUMER = "consumer"
FIRST_VERSION_THAT_NAMES_MISSING_GROUPS = 6


class GroupAdmin:
    """Lists and descriptions of a shard's groups."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    def listed(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """The groups of these states and types; no state or no type means any."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {each.strip().lower() for each in types}
        found = []
        if not wanted_types or CONSUMER in wanted_types:
            found += [
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=CONSUMER_PROTOCOL,
                    group_state=group.state.value,
                    group_type=CONSUMER,
                )
                for group in self._state.consumers.values()
                if not wanted_states or group.state.value.lower() in wanted_states
            ]
        if wanted_types and CLASSIC not in wanted_types:
            return found
        return found + [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC,
            )
            for group in self._state.all_groups()
            if not wanted_states or group.state.value.lower() in wanted_states
        ]

    def described(self, group_id: str, api_version: int) -> DescribedGroup:
        """One group with its members."""
        group = self._state.find(group_id)
        if group is None:
            is_consumers = group_id in self._state.consumers
            said = "is not a classic group." if is_consumers else "not found."
            return _missing(group_id, api_version, f"Group {group_id} {said}")
        stable = group.state is ClassicGroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            # What members said is only known to be about one protocol once that is chosen.
            protocol_data=(group.protocol_name or "") if stable else "",
            members=[_member(group, member, stable) for member in group.members.values()],
        )

    def delete(self, group_ids: Iterable[str], step: ResultBuilder) -> list[DeletableGroupResult]:
        """Delete each group that has no members."""
        results = []
        removed = []
        for group_id in dict.fromkeys(group_ids):
            consumers = self._state.consumers.get(group_id)
            group = self._state.find(group_id)
            code = ErrorCode.NONE
            if consumers is not None and not consumers.members:
                step.records += self._offset_tombstones(group_id)
                step.records += consumers.tombstones()
            elif consumers is not None:
                code = ErrorCode.NON_EMPTY_GROUP
            elif group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not ClassicGroupState.EMPTY:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                removed.append(group_id)
                step.records += self._offset_tombstones(group_id)
                step.records.append(group_tombstone(group_id))
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        if removed:
            step.store(RemovingGroups(group_ids=tuple(removed)))
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
