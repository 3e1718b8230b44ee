"""Pure: the classic protocol of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the rebalances between them.

- A rebalance is over when all known members have joined, or their time is up; members that did not join are removed
  then, except static members, whose session has to end (KIP-345). A new group waits for more members (KIP-134).
- The leader's assignment is written before any member gets it: a generation that members act upon is never forgotten.
- A member that waits for an answer needs no heartbeat. Ids that were given out count as members to wait for (KIP-394).
- A refused request changes nothing.
"""

from __future__ import annotations

from broker.coordinator.group.classic_group import (
    MAY_REBALANCE,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.records import group_record
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import (
    EMPTY_ASSIGNMENT,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    NO_MEMBER_ID,
    Client,
    GroupMetric,
    Protocols,
    ReplacingStatic,
    ResultBuilder,
    StoringAssignment,
)
from broker.coordinator.result import Instant, Ticket
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka_ds.protocol.messages.groups import (
    JoinGroupResponseMember,
    MemberIdentity,
    MemberResponse,
)


class Rebalancing:
    """The rebalances of all groups of a shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    # -- beginning ----------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """Something has changed: begin a rebalance, or check whether the current one can end."""
        if group.state in MAY_REBALANCE:
            self.prepare(group, now, result)
        else:
            self.complete_if_formed(group, now, result)

    def prepare(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """Begin a rebalance."""
        state, generation_id = group.state.value, group.generation_id
        result.say(
            f"Preparing to rebalance group {group.group_id} in state {state} with old generation {generation_id}",
            group.group_id, generation=generation_id,
        )  # fmt: skip
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self.cancel_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now, result)
        group.pending_sync_members.clear()
        self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        forms = group.state is ClassicGroupState.EMPTY
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE, now.now_ms)
        if forms:
            delay_ms = self._state.settings.group_initial_rebalance_delay_ms
            group.begin_initial_rebalance_delay(delay_ms)
            self._wait_for_joins(group, delay_ms, now)
        elif group.has_all_joined:
            self.complete(group, now, result)
        else:
            self._wait_for_joins(group, group.rebalance_timeout_ms, now)

    def _wait_for_joins(self, group: ClassicGroup, delay_ms: int, now: Instant) -> None:
        key = TimerKey(TimerKind.JOIN, group.group_id)
        self._state.timers.set(key, now.monotonic_ms + delay_ms)

    # -- ending -------------------------------------------------------------------------------------

    def complete_if_formed(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """End the rebalance if all have joined; the first one waits for more."""
        if not group.is_in_initial_rebalance_delay:
            self.complete_if_joined(group, now, result)

    def complete_if_joined(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """End the rebalance if all have joined."""
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete(group, now, result)

    def join_time_is_up(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """The time to join is up; a new group gets more time while members keep coming."""
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        longer_ms = group.extend_initial_rebalance_delay(
            self._state.settings.group_initial_rebalance_delay_ms
        )
        if longer_ms:
            self._wait_for_joins(group, longer_ms, now)
        else:
            self.complete(group, now, result)

    def complete(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """Continue with those who have joined."""
        self._state.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        for member in tuple(group.members.values()):
            if member.member_id not in group.joining and not member.is_static:
                self.drop(group, member.member_id, result)
        if group.members and not group.elect_joined_leader():
            # Only static members, and none of them joined: wait until their sessions end.
            self._wait_for_joins(group, group.rebalance_timeout_ms, now)
            return
        group.init_next_generation(now.now_ms)
        if group.state is ClassicGroupState.EMPTY:
            line = f"Group {group.group_id} with generation {group.generation_id} is now empty"
            result.say(line, group.group_id, generation=group.generation_id)
            result.records.append(group_record(group, {}))
            return
        for member in group.members.values():
            self._answer_join(group, member, result)
            self.begin_session(group, member, now)
            group.await_sync(member)
        key = TimerKey(TimerKind.SYNC, group.group_id)
        self._state.timers.set(key, now.monotonic_ms + group.rebalance_timeout_ms)

    def _answer_join(
        self, group: ClassicGroup, member: ClassicGroupMember, result: ResultBuilder
    ) -> None:
        ticket = group.joining.pop(member.member_id, None)
        if ticket is not None:
            result.reply(ticket, generation_of(group, member))

    # -- assignments --------------------------------------------------------------------------------

    def cancel_assignments(
        self, group: ClassicGroup, code: ErrorCode, now: Instant, result: ResultBuilder
    ) -> None:
        """There is no assignment in this generation: answer the members that wait for one."""
        assert group.state is ClassicGroupState.COMPLETING_REBALANCE
        group.assign({})
        for member in group.members.values():
            self._answer_sync(
                group, member, SyncGroupResponse(error_code=code, assignment=b""), now, result
            )

    def hand_out_assignments(
        self, group: ClassicGroup, now: Instant, result: ResultBuilder
    ) -> None:
        """The members' assignments are in the log: answer the members that wait for theirs."""
        group.transition_to(ClassicGroupState.STABLE, now.now_ms)
        self._state.counts[GroupMetric.COMPLETED_REBALANCES] += 1
        for member in group.members.values():
            self._answer_sync(group, member, assignment_of(group, member), now, result)

    def _answer_sync(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        response: SyncGroupResponse,
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        ticket = group.syncing.pop(member.member_id, None)
        if ticket is not None:
            result.reply(ticket, response)
            # While it waited its session did not run.
            self.begin_session(group, member, now)

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """The member has asked for its assignment."""
        group.pending_sync_members.discard(member_id)
        if not group.pending_sync_members:
            self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    def sync_time_is_up(self, group: ClassicGroup, now: Instant, result: ResultBuilder) -> None:
        """Remove the members that joined and then never asked for their assignment."""
        if not group.pending_sync_members:
            return
        for member_id in tuple(group.pending_sync_members):
            self.drop(group, member_id, result)
        self.prepare(group, now, result)

    # -- sessions -----------------------------------------------------------------------------------

    def begin_session(self, group: ClassicGroup, member: ClassicGroupMember, now: Instant) -> None:
        """The member is alive: restart its session."""
        self.expect(group, member.member_id, member.session_timeout_ms, now)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Start the session of this id."""
        key = TimerKey(TimerKind.SESSION, group.group_id, member_id)
        self._state.timers.set(key, now.monotonic_ms + timeout_ms)

    def session_is_over(
        self, group: ClassicGroup, member_id: str, now: Instant, result: ResultBuilder
    ) -> None:
        """A member's session has ended; or an id that was given out did not come back."""
        member = group.members.get(member_id)
        if member_id in group.pending_join_members:
            self.drop(group, member_id, result)
            self.complete_if_joined(group, now, result)
            self._state.forget_if_void(group)
        elif member is None:
            return
        elif member.is_new or not (member_id in group.joining or member_id in group.syncing):
            line = f"Member {member_id} in group {group.group_id} has failed, removing it from the group"
            result.say(line, group.group_id)
            self.drop(group, member_id, result)
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                self.complete_if_joined(group, now, result)
            else:
                self.prepare_or_complete(group, now, result)

    def drop(self, group: ClassicGroup, member_id: str, result: ResultBuilder) -> None:
        """Remove the member. If it still waits for an answer, it is asked to rejoin."""
        self._state.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))
        ticket = group.joining.pop(member_id, None)
        if ticket is not None:
            result.reply(ticket, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
        ticket = group.syncing.pop(member_id, None)
        if ticket is not None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            result.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))
        group.remove(member_id)


def refused_join(code: ErrorCode, member_id: str = NO_MEMBER_ID) -> JoinGroupResponse:
    """The answer to a client that may not join. Not derived: it has the id of a new member, and no protocol."""
    return JoinGroupResponse(
        error_code=code, protocol_name=None, leader="", member_id=member_id, members=[]
    )


def generation_of(group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupResponse:
    """The current generation as this member is answered: the group's leader gets all members."""
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
    """All members with their metadata for the chosen protocol."""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def assignment_of(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupResponse:
    """What the member was answered in this generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


FIRST_VERSION_THAT_RETURNS = 4
FIRST_VERSION_THAT_SKIPS_ASSIGNMENT = 9


class Joining:
    """JoinGroup for all groups of a shard."""

    def __init__(self, state: GroupMetadataManager, rebalancing: Rebalancing) -> None:
        self._state = state
        self._rebalancing = rebalancing

    def join(
        self,
        request: JoinGroupRequest,
        client: Client,
        ticket: Ticket,
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        """Answer now, or when the group's next generation begins."""
        group = self._state.find(request.group_id)
        is_new = group is None
        refusal = self.refusal_to_begin(request) if is_new else self._refusal(request)
        if refusal is not None:
            result.reply(ticket, refused_join(refusal, request.member_id))
            return
        if group is None:
            group = self._state.create(request.group_id)
        _Join(self._state, self._rebalancing, group, request, client, ticket, now, result).run()
        if is_new:
            self._state.forget_if_void(group)

    def refusal_to_begin(self, request: JoinGroupRequest) -> ErrorCode | None:
        """Why a group cannot begin with this request."""
        refusal = self._refusal(request)
        if refusal is None and request.member_id != NO_MEMBER_ID:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if refusal is None and not (request.protocol_type and request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return refusal

    def _refusal(self, request: JoinGroupRequest) -> ErrorCode | None:
        settings = self._state.settings
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        shortest, longest = (
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
        )
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return None

    # -- after the log ------------------------------------------------------------------------------

    def static_replaced(
        self, group: ClassicGroup, storing: ReplacingStatic, result: ResultBuilder
    ) -> None:
        """The new id of a static member is in the log: let the member go on."""
        ticket = group.joining.pop(storing.new_member_id)
        member = group.members[storing.new_member_id]
        response = generation_of(group, member)
        leads = group.leader_id == member.member_id
        if storing.api_version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENT:
            response.skip_assignment = leads
        else:
            response.members = []
            response.leader = storing.former_leader_id or ""
        result.reply(ticket, response)

    def static_not_replaced(
        self,
        group: ClassicGroup,
        storing: ReplacingStatic,
        code: ErrorCode,
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        """The new id could not be written: the member is what it was."""
        ticket = group.joining.pop(storing.new_member_id)
        self._state.timers.cancel(
            TimerKey(TimerKind.SESSION, group.group_id, storing.new_member_id)
        )
        member = group.rename_static(storing.group_instance_id, storing.old_member_id)
        group.update(
            member,
            storing.old_protocols,
            rebalance_timeout_ms=storing.old_rebalance_timeout_ms,
            session_timeout_ms=storing.old_session_timeout_ms,
        )
        self._rebalancing.begin_session(group, member, now)
        result.reply(ticket, refused_join(code))


class _Join:
    """One request to join a group that exists."""

    def __init__(
        self,
        state: GroupMetadataManager,
        rebalancing: Rebalancing,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        ticket: Ticket,
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        self._state = state
        self._rebalancing = rebalancing
        self._group = group
        self._request = request
        self._client = client
        self._ticket = ticket
        self._now = now
        self._result = result
        first: dict[str, bytes] = {}
        for protocol in request.protocols:
            first.setdefault(protocol.name, protocol.metadata)
        self._protocols: Protocols = tuple(first.items())

    def run(self) -> None:
        """Decide the request."""
        request, group = self._request, self._group
        member_id = request.member_id
        if not self._has_room(member_id):
            self._leave_behind(member_id)
        elif not group.supports(request.protocol_type, [name for name, _ in self._protocols]):
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id == NO_MEMBER_ID:
            self._join_for_the_first_time()
        elif member_id in group.pending_join_members and request.group_instance_id is None:
            self._add(member_id)
        else:
            self._join_again(member_id)

    def _has_room(self, member_id: str) -> bool:
        """Whether the group may have this member. Those who have joined count while it rebalances, so that a
        group that was allowed to be larger once loses the members that come last."""
        group, size_max = self._group, self._state.settings.group_max_size
        if group.state is ClassicGroupState.EMPTY:
            return True
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return member_id in group.joining or len(group.joining) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _leave_behind(self, member_id: str) -> None:
        group = self._group
        self._refuse(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if group.is_known(member_id, self._request.group_instance_id):
            self._rebalancing.drop(group, member_id, self._result)
            self._rebalancing.complete_if_formed(group, self._now, self._result)

    def _refuse(self, code: ErrorCode, member_id: str = NO_MEMBER_ID) -> None:
        self._result.reply(self._ticket, refused_join(code, member_id))

    # -- without an id ------------------------------------------------------------------------------

    def _join_for_the_first_time(self) -> None:
        request, group = self._request, self._group
        instance_id = request.group_instance_id
        prefix = self._client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._state.new_id()}"
        if instance_id is not None:
            if instance_id in group.static_ids:
                self._replace_static_member(instance_id, member_id)
            else:
                self._add(member_id)
        elif self._client.api_version >= FIRST_VERSION_THAT_RETURNS:
            group.pending_join_members.add(member_id)
            self._rebalancing.expect(group, member_id, request.session_timeout_ms, self._now)
            self._refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(member_id)

    def _add(self, member_id: str) -> None:
        request, group = self._request, self._group
        member = ClassicGroupMember(
            member_id,
            group_instance_id=request.group_instance_id,
            client_id=self._client.client_id,
            client_host=self._client.host,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=self._protocols,
        )
        group.add(member, request.protocol_type, is_new=True)
        group.joining[member_id] = self._ticket
        self._rebalancing.expect(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, self._now)
        self._rebalancing.prepare_or_complete(group, self._now, self._result)

    @property
    def _rebalance_timeout_ms(self) -> int:
        """Version 0 knows one time-out for both."""
        request = self._request
        if self._client.api_version == 0:
            return request.session_timeout_ms
        return request.rebalance_timeout_ms

    # -- with an id ---------------------------------------------------------------------------------

    def _join_again(self, member_id: str) -> None:
        group = self._group
        try:
            group.check_member(member_id, self._request.group_instance_id)
        except KafkaError as error:
            self._refuse(error.code, member_id)
            return
        member = group.members[member_id]
        if self._is_news(member):
            self._say(member)
            self._rebalancing.prepare_or_complete(group, self._now, self._result)
        else:
            # The answer to its last request may have been lost.
            self._result.reply(self._ticket, generation_of(group, member))

    def _is_news(self, member: ClassicGroupMember) -> bool:
        """Whether this asks for a rebalance, or takes part in the one that runs."""
        group = self._group
        if group.state is ClassicGroupState.STABLE and group.leader_id == member.member_id:
            return True
        return (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            or member.protocols != self._protocols
        )

    def _say(self, member: ClassicGroupMember) -> None:
        """The member changes its subscription, and waits for an answer."""
        group = self._group
        group.update(
            member,
            self._protocols,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            session_timeout_ms=self._request.session_timeout_ms,
        )
        superseded = group.joining.pop(member.member_id, None)
        if superseded is not None:
            # The client has given up its first request; if it still listens it has to ask again.
            code = ErrorCode.REBALANCE_IN_PROGRESS
            self._result.reply(superseded, refused_join(code, member.member_id))
        group.joining[member.member_id] = self._ticket

    # -- the same instance again --------------------------------------------------------------------

    def _replace_static_member(self, instance_id: str, member_id: str) -> None:
        group, result, now = self._group, self._result, self._now
        former_leader_id = group.leader_id
        old = group.members[group.static_ids[instance_id]]
        self._fence(old.member_id)
        member = group.rename_static(instance_id, member_id)
        self._say(member)
        self._rebalancing.begin_session(group, member, now)
        if (
            group.state is ClassicGroupState.STABLE
            and group.select_protocol() == group.protocol_name
        ):
            assignments = {m.member_id: m.assignment for m in group.members.values()}
            result.records.append(group_record(group, assignments))
            result.store(
                ReplacingStatic(
                    group_id=group.group_id,
                    group_instance_id=instance_id,
                    new_member_id=member_id,
                    former_leader_id=former_leader_id,
                    api_version=self._client.api_version,
                    old_member_id=old.member_id,
                    old_protocols=old.protocols,
                    old_rebalance_timeout_ms=old.rebalance_timeout_ms,
                    old_session_timeout_ms=old.session_timeout_ms,
                )
            )
        else:
            self._rebalancing.prepare_or_complete(group, now, result)

    def _fence(self, member_id: str) -> None:
        """Requests that wait under the old id are answered that another member has its place."""
        group, code = self._group, ErrorCode.FENCED_INSTANCE_ID
        self._state.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))
        ticket = group.joining.pop(member_id, None)
        if ticket is not None:
            self._result.reply(ticket, refused_join(code, member_id))
        ticket = group.syncing.pop(member_id, None)
        if ticket is not None:
            self._result.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))


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

    def sync(self, request: SyncGroupRequest, ticket: Ticket, result: ResultBuilder) -> None:
        """Answer with the assignment, now or when the leader has sent it."""
        try:
            group = self._find(request.group_id)
            self._check_sync(group, request)
        except KafkaError as error:
            result.reply(ticket, SyncGroupResponse(error_code=error.code, assignment=b""))
            return
        member = group.members[request.member_id]
        self._rebalancing.synced(group, member.member_id)
        if group.state is ClassicGroupState.STABLE:
            result.reply(ticket, assignment_of(group, member))
            return
        superseded = group.syncing.pop(member.member_id, None)
        if superseded is not None:
            code = ErrorCode.REBALANCE_IN_PROGRESS
            result.reply(superseded, SyncGroupResponse(error_code=code, assignment=b""))
        group.syncing[member.member_id] = ticket
        if group.leader_id == member.member_id:
            given = {each.member_id: each.assignment for each in request.assignments}
            assignments = {m: given.get(m, EMPTY_ASSIGNMENT) for m in group.members}
            result.records.append(group_record(group, assignments))
            result.store(
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
        self, group: ClassicGroup, storing: StoringAssignment, now: Instant, result: ResultBuilder
    ) -> None:
        """The assignment is in the log: the generation is stable."""
        assert group.generation_id == storing.generation_id
        group.assign(storing.assignments)
        self._rebalancing.hand_out_assignments(group, now, result)

    def assignment_not_stored(
        self, group: ClassicGroup, code: ErrorCode, now: Instant, result: ResultBuilder
    ) -> None:
        """The assignment could not be written: try the next generation."""
        self._rebalancing.cancel_assignments(group, code, now, result)
        self._rebalancing.prepare_or_complete(group, now, result)

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
        self, request: LeaveGroupRequest, now: Instant, result: ResultBuilder
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
                error_code=self._leave(group, each, result),
            )
            for each in request.members
        ]
        if group is not None and len(group.members) < before:
            self._rebalancing.prepare_or_complete(group, now, result)
        elif group is not None and any(not each.error_code for each in results):
            self._rebalancing.complete_if_formed(group, now, result)
            self._state.forget_if_void(group)
        return LeaveGroupResponse(members=results)

    def _leave(
        self, group: ClassicGroup | None, who: MemberIdentity, result: ResultBuilder
    ) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = who.member_id
        if member_id == NO_MEMBER_ID:
            member_id = group.static_ids.get(who.group_instance_id or "", NO_MEMBER_ID)
            if member_id == NO_MEMBER_ID:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending_join_members:
            try:
                group.check_member(member_id, who.group_instance_id)
            except KafkaError as error:
                return error.code
        self._rebalancing.drop(group, member_id, result)
        return ErrorCode.NONE
