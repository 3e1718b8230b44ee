"""Pure: SyncGroup, Heartbeat, LeaveGroup: what members do once they have joined.

Rules of this file:
- The leader's SyncGroup carries everybody's assignment. It is written before anybody gets it, so that a generation that
  members act upon is never forgotten; members that ask earlier wait for it.
- A client outside the present generation changes nothing, not even a session.
- LeaveGroup names members by id or, for an operator, static ones by instance id alone (KIP-345). Each has its own
  result. An id that was given out and never used leaves without a rebalance: it has nothing to give back.
"""

from __future__ import annotations

from broker.coordinator.group.classic.group import ClassicGroup
from broker.coordinator.group.classic.rebalance import Rebalancing, assignment_of
from broker.coordinator.group.classic.states import ClassicGroupState
from broker.coordinator.group.records import group_record
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.values import (
    EMPTY_ASSIGNMENT,
    NO_MEMBER_ID,
    ResultBuilder,
    StoringAssignment,
)
from broker.coordinator.result import Instant, Ticket
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka_ds.protocol.messages.groups import MemberIdentity, MemberResponse


class Membership:
    """The members' requests for all groups of a shard."""

    def __init__(self, state: GroupMetadataManager, rebalancing: Rebalancing) -> None:
        self._state = state
        self._rebalancing = rebalancing

    def _find(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self._state.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # -- SyncGroup ----------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, ticket: Ticket, step: ResultBuilder) -> None:
        """Answer with the assignment, now or when the leader has spoken."""
        try:
            group = self._find(request.group_id)
            self._check_sync(group, request)
        except KafkaError as error:
            step.reply(ticket, SyncGroupResponse(error_code=error.code, assignment=b""))
            return
        member = group.members[request.member_id]
        self._rebalancing.synced(group, member.member_id)
        if group.state is ClassicGroupState.STABLE:
            step.reply(ticket, assignment_of(group, member))
            return
        superseded = group.syncing.pop(member.member_id, None)
        if superseded is not None:
            code = ErrorCode.REBALANCE_IN_PROGRESS
            step.reply(superseded, SyncGroupResponse(error_code=code, assignment=b""))
        group.syncing[member.member_id] = ticket
        if group.leader_id == member.member_id:
            given = {each.member_id: each.assignment for each in request.assignments}
            assignments = {m: given.get(m, EMPTY_ASSIGNMENT) for m in group.members}
            step.records.append(group_record(group, assignments))
            step.store(
                StoringAssignment(
                    group_id=group.group_id,
                    generation_id=group.generation_id,
                    assignments=assignments,
                )
            )

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest) -> None:
        group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        # Unknown to clients before version 5 (KIP-559).
        for theirs, ours in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if theirs is not None and ours is not None and theirs != ours:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def assignment_stored(
        self, group: ClassicGroup, storing: StoringAssignment, now: Instant, step: ResultBuilder
    ) -> None:
        """The assignment is in the log: the generation is stable."""
        assert group.generation_id == storing.generation_id
        for member in group.members.values():
            member.assignment = storing.assignments[member.member_id]
        self._rebalancing.hand_out_assignments(group, now, step)

    def assignment_not_stored(
        self, group: ClassicGroup, code: ErrorCode, now: Instant, step: ResultBuilder
    ) -> None:
        """The assignment could not be written: try the next generation."""
        self._rebalancing.cancel_assignments(group, code, now, step)
        self._rebalancing.prepare_or_complete(group, now, step)

    # -- Heartbeat ----------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now: Instant) -> HeartbeatResponse:
        """Answer a heartbeat: whether the group is stable or rebalancing."""
        try:
            group = self._find(request.group_id)
            group.check_member(request.member_id, request.group_instance_id)
            if request.generation_id != group.generation_id:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        except KafkaError as error:
            return HeartbeatResponse(error_code=error.code)
        self._rebalancing.begin_session(group, group.members[request.member_id], now)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    # -- LeaveGroup ---------------------------------------------------------------------------------

    def leave(
        self, request: LeaveGroupRequest, now: Instant, step: ResultBuilder
    ) -> LeaveGroupResponse:
        """Take the members out, each by itself; then rebalance without them."""
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        group = self._state.find(request.group_id)
        before = len(group.members) if group is not None else 0
        results = [
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=self._leave(group, each, step),
            )
            for each in request.members
        ]
        if group is not None and len(group.members) < before:
            self._rebalancing.prepare_or_complete(group, now, step)
        elif group is not None and any(not each.error_code for each in results):
            self._rebalancing.complete_if_formed(group, now, step)
            self._state.forget_if_void(group)
        return LeaveGroupResponse(members=results)

    def _leave(
        self, group: ClassicGroup | None, who: MemberIdentity, step: ResultBuilder
    ) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = who.member_id
        if member_id == NO_MEMBER_ID:
            member_id = group.static_ids.get(who.group_instance_id or "", NO_MEMBER_ID)
            if member_id == NO_MEMBER_ID:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending:
            try:
                group.check_member(member_id, who.group_instance_id)
            except KafkaError as error:
                return error.code
        self._rebalancing.drop(group, member_id, step)
        return ErrorCode.NONE
