"""Pure: a group changes between the classic and the consumer protocol while it runs, with members of both (KIP-848).

- The first member of the consumer protocol upgrades a classic group; when the last one leaves a classic group remains.
  `group.consumer.migration.policy` says which may happen. The records have it all: tombstones, then the new group.
- For classic members among the others there is no leader and no barrier: JoinGroup is answered at once, SyncGroup gives
  what the coordinator has decided, a heartbeat asks to join again when the member has to revoke or may take something.
- A client that is not a member may bring a member id, but no owned partitions: another may own them by now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from broker.coordinator.group.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from broker.coordinator.group.classic_protocol import Rebalancing, refused_join
from broker.coordinator.group.consumer_group import (
    ClassicMetadata,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
)
from broker.coordinator.group.consumer_group_reconciler import (
    ConsumerDraft,
    ConsumerGroupReconciler,
)
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import (
    JOINING_EPOCH,
    NOTHING,
    GroupDraft,
    Partitions,
)
from broker.coordinator.group.records import (
    consumer_group_tombstones,
    current_record,
    epoch_record,
    group_record,
    group_tombstone,
    member_record,
    target_epoch_record,
    target_record,
)
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import (
    EMPTY_ASSIGNMENT,
    NO_MEMBER_ID,
    Client,
    Downgrading,
    ResultBuilder,
    Upgrading,
)
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
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from kafka_ds.protocol.messages.groups import MemberIdentity, MemberResponse
from kafka_ds.protocol.topic_partition import PartitionId

UPGRADES = frozenset({"bidirectional", "upgrade"})
DOWNGRADES = frozenset({"bidirectional", "downgrade"})
# What these say beside the assignment is what was assigned before, and not missed (librdkafka's sticky ones do).
FORGETFUL_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


class ProtocolMigration:
    """Groups of a shard that change their protocol."""

    def __init__(
        self,
        state: GroupMetadataManager,
        changing: ConsumerGroupReconciler,
        rebalancing: Rebalancing,
    ) -> None:
        self._state = state
        self._changing = changing
        self._rebalancing = rebalancing

    # -- to the consumer protocol -------------------------------------------------------------------

    def upgrade(self, group_id: str, draft: ConsumerDraft, result: ResultBuilder) -> None:
        """If there is a classic group of this id, make it one of the consumer protocol; raises KafkaError."""
        classic = self._state.find(group_id)
        if classic is None:
            return
        if classic.state is not ClassicGroupState.EMPTY:
            members = self._members_of(classic)
            if group_id in self._state.metadata:
                result.records.append(group_tombstone(group_id))
            self._write(draft, members, classic.generation_id)
        elif group_id in self._state.metadata:
            result.records.append(group_tombstone(group_id))
        result.store(Upgrading(group_id=group_id))

    def _members_of(self, classic: ClassicGroup) -> list[ConsumerGroupMember]:
        """The members of a classic group; raises KafkaError if it must not be upgraded."""
        settings = self._state.settings
        if settings.group_consumer_migration_policy not in UPGRADES:
            raise _stays(classic, "online upgrade is disabled.")
        if not classic.is_consumer_group:
            raise _stays(classic, "the group does not use the consumer embedded protocol.")
        if len(classic.members) > settings.group_consumer_max_size:
            raise _stays(classic, "the group size exceeds the consumer group maximum size.")
        assigned: set[PartitionId] = set()
        members = []
        for member in classic.members.values():
            try:
                upgraded = self._member_of(classic, member, assigned)
            except MalformedFrame:
                raise _stays(classic, "the embedded consumer protocol is malformed.") from None
            assigned.update(upgraded.assigned)
            members.append(upgraded)
        return members

    def _member_of(
        self, classic: ClassicGroup, member: ClassicGroupMember, assigned: set[PartitionId]
    ) -> ConsumerGroupMember:
        assignment = decode_assignment(member.assignment)
        if assignment.user_data and classic.protocol_name not in FORGETFUL_ASSIGNORS:
            # It would be lost: only the members' own assignor understands it.
            raise _stays(
                classic,
                "an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade.",
            )
        # All protocols of a member have the same metadata.
        subscription = decode_subscription(member.protocols[0][1])
        has = self.partitions_of(assignment.assigned_partitions) - assigned
        return ConsumerGroupMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=frozenset(subscription.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMetadata(
                session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
            ),
            epoch=classic.generation_id,
            previous_epoch=classic.generation_id,
            assigned=dict.fromkeys(has, classic.generation_id),
        )

    def _write(
        self, draft: ConsumerDraft, members: Iterable[ConsumerGroupMember], epoch: int
    ) -> None:
        group_id = draft.group.group_id
        for member in members:
            draft.write(member_record(group_id, member))
        draft.write(epoch_record(group_id, epoch, 0))
        for member in members:
            draft.write(target_record(group_id, member.member_id, frozenset(member.assigned)))
        # Nothing was assigned here yet: the next target need not wait.
        draft.write(target_epoch_record(group_id, epoch, 0))
        for member in members:
            draft.write(current_record(group_id, member))

    def upgraded(self, storing: Upgrading, now: Instant, result: ResultBuilder) -> None:
        """The upgrade is in the log: members that wait in the classic group start again in the new one."""
        classic = self._state.groups.get(storing.group_id)
        if classic is None:
            return
        code = ErrorCode.REBALANCE_IN_PROGRESS
        for member_id, ticket in classic.joining.items():
            result.reply(ticket, refused_join(code, member_id))
        for ticket in classic.syncing.values():
            result.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))
        classic.joining.clear()
        classic.syncing.clear()
        self._state.forget(storing.group_id)
        group = self._state.consumers.get(storing.group_id)
        if group is not None:
            for member in group.members.values():
                self._changing.expect(group.group_id, member, now)

    # -- back to the classic protocol ---------------------------------------------------------------

    def fence(
        self, group: ConsumerGroup, leaving: Collection[str], now: Instant, result: ResultBuilder
    ) -> None:
        """Remove members; if the last one of the consumer protocol goes, a classic group remains."""
        staying = [m for m in group.members.values() if m.member_id not in leaving]
        was_mixed = any(group.members[member_id].classic is None for member_id in leaving)
        if was_mixed and self._may_downgrade(staying):
            self._downgrade(group, staying, now, result)
        else:
            self._changing.remove(GroupDraft(group, result), sorted(leaving), now)

    def downgrade_if_classic(
        self, group: ConsumerGroup, now: Instant, result: ResultBuilder
    ) -> None:
        """A static member of the classic protocol has taken the last other one's place."""
        staying = list(group.members.values())
        if self._may_downgrade(staying):
            self._downgrade(group, staying, now, result)

    def _may_downgrade(self, staying: list[ConsumerGroupMember]) -> bool:
        return (
            bool(staying)
            and all(member.classic is not None for member in staying)
            and self._state.settings.group_consumer_migration_policy in DOWNGRADES
            and len(staying) <= self._state.settings.group_max_size
        )

    def _downgrade(
        self,
        group: ConsumerGroup,
        staying: list[ConsumerGroupMember],
        now: Instant,
        result: ResultBuilder,
    ) -> None:
        result.records.extend(consumer_group_tombstones(group))
        classic = ClassicGroup.of_consumers(
            group.group_id,
            map(_classic_member, staying),
            generation_id=group.epoch,
            now_ms=now.now_ms,
        )
        # It still has what it has yet to revoke: an upgrade that follows must know.
        assignments = {m.member_id: self.assignment_bytes(m, m.owned) for m in staying}
        result.records.append(group_record(classic, assignments))
        result.store(Downgrading(group_id=group.group_id))

    def downgraded(self, storing: Downgrading, now: Instant, result: ResultBuilder) -> None:
        """The downgrade is in the log: the classic group exists, and rebalances."""
        value = self._state.metadata[storing.group_id]
        group = self._state.groups[storing.group_id] = ClassicGroup.loaded(storing.group_id, value)
        for member in group.members.values():
            self._state.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id, member.member_id))
            self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id, member.member_id))
            self._rebalancing.begin_session(group, member, now)
        self._rebalancing.prepare(group, now, result)

    # -- members' metadata --------------------------------------------------------------------------

    def partitions_of(
        self, topics: Iterable[AssignedTopicPartitions | OwnedTopicPartitions]
    ) -> Partitions:
        """Partitions by topic id, of existing topics."""
        found: set[PartitionId] = set()
        for each in topics:
            shape = self._state.topology.topic(each.topic)
            if shape is not None:
                found.update((shape.topic_id, partition) for partition in each.partitions)
        return frozenset(found) or NOTHING

    def assignment_bytes(
        self, member: ConsumerGroupMember, partitions: Iterable[PartitionId]
    ) -> bytes:
        """These partitions of a member of the classic protocol, in the version that it speaks."""
        assert member.classic is not None
        by_name: dict[str, list[int]] = {}
        for topic_id, partition in sorted(partitions):
            name = self._state.topology.name_of(topic_id)
            if name is not None:
                by_name.setdefault(name, []).append(partition)
        assignment = ConsumerProtocolAssignment(
            assigned_partitions=[
                AssignedTopicPartitions(topic=name, partitions=numbers)
                for name, numbers in by_name.items()
            ]
        )
        try:
            version = version_of(member.classic.protocols[0][1])
        except MalformedFrame:
            return EMPTY_ASSIGNMENT
        return encode_assignment(assignment, version)


def _stays(group: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {why}",
    )


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
        result: ResultBuilder,
    ) -> JoinGroupResponse:
        """Admit the member, and return its epoch."""
        try:
            self._check_join(group, request)
            is_new = request.member_id == NO_MEMBER_ID
            member_id = request.member_id
            if is_new:
                prefix = request.group_instance_id or client.client_id
                member_id = f"{prefix}-{self._state.new_id()}"
            returns = client.api_version >= FIRST_VERSION_THAT_RETURNS
            if is_new and returns and request.group_instance_id is None:
                return refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            subscription = _subscription(request)
            draft = GroupDraft(group, result)
            old = self._member(draft, request, member_id)
            owns = any(each.partitions for each in subscription.owned_partitions)
            if owns and member_id not in draft.group.members:
                # It was removed without knowing: what it thinks that it owns may be another's by now.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaError as error:
            return refused_join(error.code)
        known = draft.group.members.get(member_id)
        new = _as_said(old, request, subscription, client)
        changed = self._changing.update(draft, known, new)
        owned = self._migrating.partitions_of(subscription.owned_partitions)
        updated = self._changing.go_on(
            draft, member_id, now, changes_subscription=changed, says_it_owns=owned
        )
        self._changing.expect(group.group_id, updated, now)
        instance_id = request.group_instance_id
        replaced = group.members.get(group.static_ids.get(instance_id or "", ""))
        if replaced is not None and replaced.classic is None:
            self._migrating.downgrade_if_classic(draft.group, now, result)
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

    def _check_join(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        """Refuse a member that may not join, whatever it subscribes to; raises KafkaError."""
        settings = self._state.settings
        lowest, highest = (
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
        )
        if not lowest <= request.session_timeout_ms <= highest:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if settings.group_consumer_migration_policy == MIGRATION_IS_OFF:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        size_max, instance_id = settings.group_consumer_max_size, request.group_instance_id
        group.check_room(request.member_id, size_max, "consumer", instance_id)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type != CONSUMER_PROTOCOL or not group.supports_classic(names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _member(
        self, draft: ConsumerDraft, request: JoinGroupRequest, member_id: str
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
            if self._is_behind(group, member, now) and not revokes:
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
            self._is_behind(group, member, now)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (waits and not group.waits_for_others(member))
        ):
            self._expect_join(group, member, now)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def _is_behind(self, group: ConsumerGroup, member: ConsumerGroupMember, now: Instant) -> bool:
        """Whether joining again takes the member further; while the next target waits it does not."""
        return member.epoch < group.target_epoch or self._state.target_is_due(group, now)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerGroupMember, now: Instant) -> None:
        key = TimerKey(TimerKind.JOIN, group.group_id, member.member_id)
        if self._state.timers.get(key) is None:
            self._state.timers.set(key, now.monotonic_ms + member.rebalance_timeout_ms)

    # -- LeaveGroup ---------------------------------------------------------------------------------

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Instant, result: ResultBuilder
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
            self._migrating.fence(group, set(leaving), now, result)
        return LeaveGroupResponse(members=results)


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """What the member subscribes to; raises KafkaError."""
    try:
        return decode_subscription(request.protocols[0].metadata)
    except MalformedFrame:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None


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


def _classic_member(member: ConsumerGroupMember) -> ClassicGroupMember:
    assert member.classic is not None
    return ClassicGroupMember(
        member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )
