"""Pure: how a group moves from one generation to the next, and which members are dropped.

Rules of this file:
- A rebalance begins (`prepare`) when members or their protocols change. It is over when all known members have joined,
  or when their time is up. Dynamic members that did not join are dropped then; static ones keep their place until their
  session ends (KIP-345).
- The first generation of a group waits a little for more members, and longer while they keep coming, up to the
  rebalance timeout (KIP-134).
- A generation without members is Empty and written at once; one with members is written when its leader has sent the
  assignment.
- Ids that were handed out count as members to wait for (KIP-394).
- A member that waits for an answer needs no heartbeat: its session does not end while its request is parked. New
  members are the exception: otherwise nobody would notice that they left.
"""

from __future__ import annotations

from broker.coordinator.group.classic.group import ClassicGroup, ClassicGroupMember
from broker.coordinator.group.classic.states import MAY_REBALANCE, ClassicGroupState
from broker.coordinator.group.records import group_record
from broker.coordinator.group.state import Count, GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import EMPTY_ASSIGNMENT, NO_MEMBER_ID, ResultBuilder
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import JoinGroupResponse, SyncGroupResponse
from kafka_ds.protocol.messages.groups import JoinGroupResponseMember


class Rebalancing:
    """The rebalances of all groups of a shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    # -- beginning ----------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """Something has changed: begin a rebalance, or check whether the current one can end."""
        if group.state in MAY_REBALANCE:
            self.prepare(group, now, step)
        else:
            self.complete_if_formed(group, now, step)

    def prepare(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """Begin a rebalance."""
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self.cancel_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now, step)
        group.unsynced.clear()
        self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        forms = group.state is ClassicGroupState.EMPTY
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE, now.now_ms)
        if forms:
            delay_ms = self._state.settings.group_initial_rebalance_delay_ms
            group.initial_delay_ms = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            group.new_member_added = False
            self._wait_for_joins(group, delay_ms, now)
        elif group.has_all_joined:
            self.complete(group, now, step)
        else:
            self._wait_for_joins(group, group.rebalance_timeout_ms, now)

    def _wait_for_joins(self, group: ClassicGroup, delay_ms: int, now: Instant) -> None:
        key = TimerKey(TimerKind.JOIN, group.group_id)
        self._state.timers.set(key, now.monotonic_ms + delay_ms)

    # -- ending -------------------------------------------------------------------------------------

    def complete_if_formed(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """End the rebalance if nobody is missing; the first one has its time to wait for more."""
        if not group.is_forming:
            self.complete_if_joined(group, now, step)

    def complete_if_joined(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """End the rebalance if nobody is missing."""
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete(group, now, step)

    def join_time_is_up(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """The time to join is up; a new group gets more time while members keep coming."""
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        delay_ms, remaining_ms = group.initial_delay_ms
        if group.is_forming and group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_ms = min(self._state.settings.group_initial_rebalance_delay_ms, remaining_ms)
            group.initial_delay_ms = (next_ms, max(remaining_ms - delay_ms, 0))
            self._wait_for_joins(group, next_ms, now)
        else:
            self.complete(group, now, step)

    def complete(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """Go on with those who have joined."""
        self._state.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        for member in tuple(group.members.values()):
            if member.member_id not in group.joining and not member.is_static:
                self.drop(group, member.member_id, step)
        if group.members and not group.elect_joined_leader():
            # Only static members, and none of them joined: wait until their sessions end.
            self._wait_for_joins(group, group.rebalance_timeout_ms, now)
            return
        group.begin_generation(now.now_ms)
        if group.state is ClassicGroupState.EMPTY:
            step.records.append(group_record(group, {}))
            return
        for member in group.members.values():
            self._answer_join(group, member, step)
            self.begin_session(group, member, now)
            member.is_new = False
            group.unsynced.add(member.member_id)
        key = TimerKey(TimerKind.SYNC, group.group_id)
        self._state.timers.set(key, now.monotonic_ms + group.rebalance_timeout_ms)

    def _answer_join(
        self, group: ClassicGroup, member: ClassicGroupMember, step: ResultBuilder
    ) -> None:
        ticket = group.joining.pop(member.member_id, None)
        if ticket is not None:
            step.reply(ticket, generation_of(group, member))

    # -- assignments --------------------------------------------------------------------------------

    def cancel_assignments(
        self, group: ClassicGroup, code: ErrorCode, now: Instant, step: ResultBuilder
    ) -> None:
        """Nobody gets an assignment in this generation: tell those who wait for one."""
        assert group.state is ClassicGroupState.COMPLETING_REBALANCE
        for member in group.members.values():
            member.assignment = EMPTY_ASSIGNMENT
            self._answer_sync(
                group, member, SyncGroupResponse(error_code=code, assignment=b""), now, step
            )

    def hand_out_assignments(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """The members' assignments are in the log: tell those who wait for theirs."""
        group.transition_to(ClassicGroupState.STABLE, now.now_ms)
        self._state.counts[Count.COMPLETED_REBALANCES] += 1
        for member in group.members.values():
            self._answer_sync(group, member, assignment_of(group, member), now, step)

    def _answer_sync(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        response: SyncGroupResponse,
        now: Instant,
        step: ResultBuilder,
    ) -> None:
        ticket = group.syncing.pop(member.member_id, None)
        if ticket is not None:
            step.reply(ticket, response)
            # While it waited nobody counted its session.
            self.begin_session(group, member, now)

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """The member has asked for its assignment."""
        group.unsynced.discard(member_id)
        if not group.unsynced:
            self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    def sync_time_is_up(self, group: ClassicGroup, now: Instant, step: ResultBuilder) -> None:
        """Drop the members that joined and then never asked for their assignment."""
        if not group.unsynced:
            return
        for member_id in tuple(group.unsynced):
            self.drop(group, member_id, step)
        self.prepare(group, now, step)

    # -- sessions -----------------------------------------------------------------------------------

    def begin_session(self, group: ClassicGroup, member: ClassicGroupMember, now: Instant) -> None:
        """The member is alive: restart its session."""
        self.expect(group, member.member_id, member.session_timeout_ms, now)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Expect a sign of life from this id in time."""
        key = TimerKey(TimerKind.SESSION, group.group_id, member_id)
        self._state.timers.set(key, now.monotonic_ms + timeout_ms)

    def session_is_over(
        self, group: ClassicGroup, member_id: str, now: Instant, step: ResultBuilder
    ) -> None:
        """A member was not heard of; or an id that was given out did not come back."""
        member = group.members.get(member_id)
        if member_id in group.pending:
            self.drop(group, member_id, step)
            self.complete_if_joined(group, now, step)
            self._state.forget_if_void(group)
        elif member is None:
            return
        elif member.is_new or not (member_id in group.joining or member_id in group.syncing):
            self.drop(group, member_id, step)
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                self.complete_if_joined(group, now, step)
            else:
                self.prepare_or_complete(group, now, step)

    def drop(self, group: ClassicGroup, member_id: str, step: ResultBuilder) -> None:
        """Remove the member. If it still waits for an answer, it is told to rejoin."""
        self._state.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))
        ticket = group.joining.pop(member_id, None)
        if ticket is not None:
            step.reply(ticket, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
        ticket = group.syncing.pop(member_id, None)
        if ticket is not None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            step.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))
        group.remove(member_id)


def refused_join(code: ErrorCode, member_id: str = NO_MEMBER_ID) -> JoinGroupResponse:
    """The answer to a client that may not join."""
    return JoinGroupResponse(
        error_code=code, protocol_name=None, leader="", member_id=member_id, members=[]
    )


def generation_of(group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupResponse:
    """The current generation as this member is told it: the group's leader gets all members."""
    leads = group.leader_id == member.member_id
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=members_of(group) if leads else [],
    )


def members_of(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """All members with what they said about the chosen protocol."""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def assignment_of(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupResponse:
    """What the member was told to do in this generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
