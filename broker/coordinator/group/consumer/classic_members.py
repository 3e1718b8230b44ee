"""Pure: members of the classic protocol inside a group of the consumer protocol (KIP-848), during a rolling upgrade.

Rules of this file:
- There is no leader and no barrier: JoinGroup is answered at once, with the member's epoch as generation and no members
  to assign for; SyncGroup returns what the coordinator has decided. A member that does not sync in time is dropped.
- A heartbeat asks the member to join again (REBALANCE_IN_PROGRESS) when the group has moved on, when the member must
  give something back, or when all partitions that it waits for are free. A member that does not rejoin within its
  rebalance timeout is dropped.
- What a member still owns is in the subscription that it joins with (KIP-429). Subscription versions without owned
  partitions, and eager assignors, own nothing when they join. A client that is no member may bring a member id, but no
  owned partitions: Kafka accepts those, and then commits for partitions that have had another owner since.
"""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.group.classic.rebalance import refused_join
from broker.coordinator.group.classic.subscription import CONSUMER_PROTOCOL
from broker.coordinator.group.consumer.changing import ConsumerGroupReconciler, GroupDraft
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import (
    JOINING_EPOCH,
    ClassicMetadata,
    ConsumerGroupMember,
    MemberState,
)
from broker.coordinator.group.consumer.migrating import ProtocolMigration
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import NO_MEMBER_ID, Client, ResultBuilder
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
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
from kafka_ds.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_subscription,
)
from kafka_ds.protocol.messages.groups import MemberIdentity, MemberResponse

FIRST_VERSION_THAT_RETURNS = 4
MIGRATION_IS_OFF = "disabled"


class ClassicMembers:
    """Requests of the classic protocol to the consumer groups of a shard."""

    def __init__(
        self,
        state: GroupMetadataManager,
        changing: ConsumerGroupReconciler,
        migrating: ProtocolMigration,
    ) -> None:
        self._state = state
        self._changing = changing
        self._migrating = migrating

    # -- JoinGroup ----------------------------------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: Client,
        now: Instant,
        step: ResultBuilder,
    ) -> JoinGroupResponse:
        """Admit the member, and return its epoch."""
        try:
            subscription = self._check_join(group, request)
            is_new = request.member_id == NO_MEMBER_ID
            member_id = request.member_id
            if is_new:
                prefix = request.group_instance_id or client.client_id
                member_id = f"{prefix}-{self._state.new_id()}"
            returns = client.api_version >= FIRST_VERSION_THAT_RETURNS
            if is_new and returns and request.group_instance_id is None:
                return refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            draft = GroupDraft(group, step)
            old = self._member(draft, request, member_id)
            owns = any(each.partitions for each in subscription.owned_partitions)
            if owns and member_id not in draft.group.members:
                # It was dropped and does not know: what it thinks that it owns may be another's by now.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaError as error:
            return refused_join(error.code)
        known = draft.group.members.get(member_id)
        new = _as_said(old, request, subscription, client)
        anew = self._changing.update(draft, known, new)
        owned = self._migrating.partitions_of(subscription.owned_partitions)
        updated = self._changing.go_on(
            draft, member_id, now, subscribes_anew=anew, says_it_owns=owned
        )
        self._changing.expect(group.group_id, updated, now)
        instance_id = request.group_instance_id
        replaced = group.members.get(group.static_ids.get(instance_id or "", ""))
        if replaced is not None and replaced.classic is None:
            self._migrating.downgrade_if_classic(draft.group, now, step)
        timers = self._state.timers
        timers.cancel(TimerKey(TimerKind.JOIN, group.group_id, member_id))
        timers.cancel(TimerKey(TimerKind.REBALANCE, group.group_id, member_id))
        sync = TimerKey(TimerKind.SYNC, group.group_id, member_id)
        timers.set(sync, now.monotonic_ms + updated.rebalance_timeout_ms)
        return JoinGroupResponse(
            generation_id=updated.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=request.protocols[0].name,
            leader="",
            member_id=member_id,
            members=[],
        )

    def _check_join(
        self, group: ConsumerGroup, request: JoinGroupRequest
    ) -> ConsumerProtocolSubscription:
        """What the member subscribes to; raises KafkaError if it may not join."""
        settings = self._state.settings
        lowest, highest = (
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
        )
        if not lowest <= request.session_timeout_ms <= highest:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if settings.group_consumer_migration_policy == MIGRATION_IS_OFF:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        size_max = settings.group_consumer_max_size
        if len(group.members) >= size_max and request.member_id not in group.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type != CONSUMER_PROTOCOL or not group.supports_classic(names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            return decode_subscription(request.protocols[0].metadata)
        except MalformedFrame:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None

    def _member(
        self, draft: GroupDraft, request: JoinGroupRequest, member_id: str
    ) -> ConsumerGroupMember:
        group, instance_id = draft.group, request.group_instance_id
        begins = ConsumerGroupMember(member_id=member_id)
        if instance_id is None:
            return group.members.get(member_id, begins)
        if request.member_id != NO_MEMBER_ID:
            return group.static_member(instance_id, member_id)
        if instance_id not in group.static_ids:
            return begins
        old = group.members[group.static_ids[instance_id]]
        new = replace(
            old,
            member_id=member_id,
            epoch=JOINING_EPOCH,
            previous_epoch=JOINING_EPOCH,
            # The member that was there is gone, with all that it should have given back.
            state=MemberState.STABLE,
            revoking={},
        )
        self._changing.replace(draft, old, new)
        return new

    # -- SyncGroup, Heartbeat -----------------------------------------------------------------------

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, now: Instant
    ) -> SyncGroupResponse:
        """The member's assignment."""
        try:
            member = _check(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
            self._check_protocol(member, request)
            revokes = member.state is MemberState.UNREVOKED_PARTITIONS
            if group.epoch > member.epoch and not revokes:
                self._expect_join(group, member, now)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            return SyncGroupResponse(error_code=error.code, assignment=b"")
        self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id, member.member_id))
        self._changing.expect(group.group_id, member, now)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._migrating.assignment_bytes(member, member.assigned),
        )

    def _check_protocol(self, member: ConsumerGroupMember, request: SyncGroupRequest) -> None:
        assert member.classic is not None
        own = member.classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.protocol_name not in (None, own):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Instant
    ) -> HeartbeatResponse:
        """Whether the member may continue or must join again."""
        try:
            member = _check(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except KafkaError as error:
            return HeartbeatResponse(error_code=error.code)
        self._changing.expect(group.group_id, member, now)
        waits = member.state is MemberState.UNRELEASED_PARTITIONS
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (waits and not group.waits_for_others(member))
        ):
            self._expect_join(group, member, now)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def _expect_join(self, group: ConsumerGroup, member: ConsumerGroupMember, now: Instant) -> None:
        key = TimerKey(TimerKind.JOIN, group.group_id, member.member_id)
        if self._state.timers.get(key) is None:
            self._state.timers.set(key, now.monotonic_ms + member.rebalance_timeout_ms)

    # -- LeaveGroup ---------------------------------------------------------------------------------

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Instant, step: ResultBuilder
    ) -> LeaveGroupResponse:
        """Remove members of either protocol, each with its own result: an operator may name any (Kafka 4.3)."""
        results, leaving = [], []
        for each in request.members:
            code = ErrorCode.NONE
            try:
                leaving.append(_check_leaving(group, each))
            except KafkaError as error:
                code = error.code
            results.append(
                MemberResponse(
                    # As it was named: Java's admin client looks for that.
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=code,
                )
            )
        if leaving:
            self._migrating.fence(group, set(leaving), now, step)
        return LeaveGroupResponse(members=results)


def _as_said(
    member: ConsumerGroupMember,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
    client: Client,
) -> ConsumerGroupMember:
    """The member with what it joins with."""
    # Version 0 knows one time-out for both.
    timeout_ms = request.rebalance_timeout_ms if client.api_version else request.session_timeout_ms
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        server_assignor=None,
        client_id=client.client_id,
        client_host=client.host,
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms,
            protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
        ),
    )


def _check(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """The requesting member of the classic protocol; raises KafkaError."""
    member = (
        group.member(member_id)
        if instance_id is None
        else group.static_member(instance_id, member_id)
    )
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if member.epoch != generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _check_leaving(group: ConsumerGroup, who: MemberIdentity) -> str:
    """The id of the member that leaves; operators name static ones by instance id alone (KIP-345)."""
    member_id = who.member_id
    if who.group_instance_id is not None and member_id == NO_MEMBER_ID:
        member_id = group.static_ids.get(who.group_instance_id, NO_MEMBER_ID)
    if who.group_instance_id is None:
        return group.member(member_id).member_id
    return group.static_member(who.group_instance_id, member_id).member_id
