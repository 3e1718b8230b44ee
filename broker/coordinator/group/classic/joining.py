"""Pure: JoinGroup: who may join a group, under which id, and what happens when a member joins again.

Rules of this file:
- A client without a member id gets one. From version 4 on it must come back with it before it is a member (KIP-394), so
  that a client that gives up leaves no ghost in the group; a static member (KIP-345) may join at once.
- A static member that comes without its id takes its own place, under a new id: the old one is fenced. In a stable
  group whose protocol stays the same this is no reason to rebalance: the group is written with the new id, and the
  member continues with its old assignment. If it leads, it is told so from version 9 on, and to assign nothing
  (KIP-814); in earlier versions it is told that its old id leads.
- A member that joins again with the same data changes nothing, unless it leads: that is how the leader asks for a
  rebalance.
- A refused request changes nothing. The exception is Kafka's own: when a group that is too large rebalances, the last
  members to rejoin are dropped.
"""

from __future__ import annotations

from broker.coordinator.group.classic.group import ClassicGroup, ClassicGroupMember
from broker.coordinator.group.classic.rebalance import Rebalancing, generation_of, refused_join
from broker.coordinator.group.classic.states import ClassicGroupState
from broker.coordinator.group.records import group_record
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    NO_MEMBER_ID,
    Client,
    Protocols,
    ReplacingStatic,
    ResultBuilder,
)
from broker.coordinator.result import Instant, Ticket
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import JoinGroupRequest, SyncGroupResponse

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
        step: ResultBuilder,
    ) -> None:
        """Answer now, or when the group's next generation begins."""
        member_id = request.member_id
        refusal = self._refusal(request)
        if refusal is not None:
            step.reply(ticket, refused_join(refusal, member_id))
            return
        group = self._state.find(request.group_id)
        is_new = group is None
        if group is None:
            if member_id != NO_MEMBER_ID:
                step.reply(ticket, refused_join(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
                return
            group = self._state.create(request.group_id)
        _Join(self._state, self._rebalancing, group, request, client, ticket, now, step).run()
        if is_new:
            self._state.forget_if_void(group)

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
        self, group: ClassicGroup, storing: ReplacingStatic, step: ResultBuilder
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
        step.reply(ticket, response)

    def static_not_replaced(
        self,
        group: ClassicGroup,
        storing: ReplacingStatic,
        code: ErrorCode,
        now: Instant,
        step: ResultBuilder,
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
        step.reply(ticket, refused_join(code))


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
        step: ResultBuilder,
    ) -> None:
        self._state = state
        self._rebalancing = rebalancing
        self._group = group
        self._request = request
        self._client = client
        self._ticket = ticket
        self._now = now
        self._step = step
        first: dict[str, bytes] = {}
        for protocol in request.protocols:
            first.setdefault(protocol.name, protocol.metadata)
        self._protocols: Protocols = tuple(first.items())

    def run(self) -> None:
        """Decide."""
        request, group = self._request, self._group
        member_id = request.member_id
        if not self._has_room(member_id):
            self._leave_behind(member_id)
        elif not group.supports(request.protocol_type, [name for name, _ in self._protocols]):
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id == NO_MEMBER_ID:
            self._join_for_the_first_time()
        elif member_id in group.pending and request.group_instance_id is None:
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
            self._rebalancing.drop(group, member_id, self._step)
            self._rebalancing.complete_if_formed(group, self._now, self._step)

    def _refuse(self, code: ErrorCode, member_id: str = NO_MEMBER_ID) -> None:
        self._step.reply(self._ticket, refused_join(code, member_id))

    # -- without an id ------------------------------------------------------------------------------

    def _join_for_the_first_time(self) -> None:
        request, group = self._request, self._group
        instance_id = request.group_instance_id
        prefix = self._client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._state.new_id()}"
        if instance_id is not None:
            if instance_id in group.static_ids:
                self._take_place_over(instance_id, member_id)
            else:
                self._add(member_id)
        elif self._client.api_version >= FIRST_VERSION_THAT_RETURNS:
            group.pending.add(member_id)
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
        member.is_new = True
        if group.is_forming:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        group.joining[member_id] = self._ticket
        self._rebalancing.expect(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, self._now)
        self._rebalancing.prepare_or_complete(group, self._now, self._step)

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
            self._rebalancing.prepare_or_complete(group, self._now, self._step)
        else:
            # The answer to its last request may have been lost.
            self._step.reply(self._ticket, generation_of(group, member))

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
        """The member says what it wants from now on, and waits for an answer."""
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
            self._step.reply(superseded, refused_join(code, member.member_id))
        group.joining[member.member_id] = self._ticket

    # -- the same instance again --------------------------------------------------------------------

    def _take_place_over(self, instance_id: str, member_id: str) -> None:
        group, step, now = self._group, self._step, self._now
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
            step.records.append(group_record(group, assignments))
            step.store(
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
            self._rebalancing.prepare_or_complete(group, now, step)

    def _fence(self, member_id: str) -> None:
        """Requests that wait under the old id are told that another member has its place."""
        group, code = self._group, ErrorCode.FENCED_INSTANCE_ID
        self._state.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))
        ticket = group.joining.pop(member_id, None)
        if ticket is not None:
            self._step.reply(ticket, refused_join(code, member_id))
        ticket = group.syncing.pop(member_id, None)
        if ticket is not None:
            self._step.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))
