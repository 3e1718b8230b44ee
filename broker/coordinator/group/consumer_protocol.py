"""Pure: the consumer protocol of groups (KIP-848): ConsumerGroupHeartbeat, and requests of other and of late clients.

- A member that comes with epoch 0 joins and owns nothing; with version 1 it brings its own id (KIP-1082).
- A member whose epoch is ahead, or behind by more than one lost answer, is fenced: it gives up all and rejoins.
- A static member that leaves with epoch -2 keeps its partitions until its session ends; while it is there no other may
  take its place (UNRELEASED_INSTANCE_ID). A refused request changes nothing.
- A deadline that removes a member is set again soon after, in case its records cannot be written.
"""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.group.classic_protocol import Rebalancing
from broker.coordinator.group.consumer_group import ConsumerGroup, ConsumerGroupMember
from broker.coordinator.group.consumer_group_reconciler import (
    ConsumerDraft,
    ConsumerGroupReconciler,
)
from broker.coordinator.group.group_admin import ConsumerGroupDescriber
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    GroupDraft,
    Partitions,
    by_topic,
    check_epoch,
)
from broker.coordinator.group.protocol_migration import ClassicMembers, ProtocolMigration
from broker.coordinator.group.records import current_record
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import Client, ResultBuilder, require
from broker.coordinator.result import Instant
from broker.patterns import matcher
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka_ds.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from kafka_ds.protocol.messages.persisted import ConsumerGroupKey, ConsumerGroupValue
from kafka_ds.protocol.messages.persisted_consumer_groups import ConsumerGroupMetadataKey

FIRST_VERSION_WITH_OWN_IDS = 1
AS_BEFORE = -1


class Heartbeats:
    """ConsumerGroupHeartbeat for all groups of a shard."""

    def __init__(
        self,
        state: GroupMetadataManager,
        changing: ConsumerGroupReconciler,
        migrating: ProtocolMigration,
    ) -> None:
        self._state = state
        self._changing = changing
        self._migrating = migrating

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now: Instant,
        result: ResultBuilder,
    ) -> ConsumerGroupHeartbeatResponse:
        """The member's epoch and, if it changed, its assignment; raises KafkaError."""
        self._validate(request, client.api_version)
        if request.member_epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            return self._leave(request, now, result)
        joins = request.member_epoch == JOINING_EPOCH
        draft = GroupDraft(self._group(request.group_id, joins=joins), result)
        member_id = request.member_id or self._state.new_id()
        if joins and request.group_id not in self._state.consumers:
            self._migrating.upgrade(request.group_id, draft, result)
        size_max = self._state.settings.group_consumer_max_size
        draft.group.check_room(member_id, size_max, "consumer", request.instance_id)
        old = self._member(draft, request, member_id)
        known = draft.group.members.get(member_id)
        new = _as_said(old, request, client)
        owned = _owned(request)
        changed = self._changing.update(draft, known, new)
        # To Kafka a new member's expression without letters is a subscription, as null is none.
        changed = changed or (known is None and request.subscribed_topic_regex == "")
        updated = self._changing.go_on(
            draft, member_id, now, changes_subscription=changed, says_it_owns=owned
        )
        self._changing.expect(request.group_id, updated, now)
        is_full = joins or (
            request.rebalance_timeout_ms != AS_BEFORE
            and (
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None
            )
            and owned is not None
        )
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._state.heartbeat_interval_ms(request.group_id),
        )
        if is_full or updated.assigned.keys() != old.assigned.keys():
            response.assignment = assignment_of(updated)
        return response

    # -- checks ------------------------------------------------------------------------------------

    def _validate(self, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        if api_version >= FIRST_VERSION_WITH_OWN_IDS or request.member_epoch != JOINING_EPOCH:
            require(request.member_id.strip(), "MemberId can't be empty.")
        require(request.group_id.strip(), "GroupId can't be empty.")
        require(
            request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty."
        )
        require(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
        epoch = request.member_epoch
        if epoch == JOINING_EPOCH:
            require(
                request.rebalance_timeout_ms != AS_BEFORE,
                "RebalanceTimeoutMs must be provided in first request.",
            )
            require(
                request.topic_partitions is not None and not request.topic_partitions,
                "TopicPartitions must be empty when (re-)joining.",
            )
            require(
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
        elif epoch == LEAVING_STATIC_EPOCH:
            require(request.instance_id is not None, "InstanceId can't be null.")
        else:
            require(epoch >= LEAVING_EPOCH, "MemberEpoch is invalid.")
        allowed = self._state.settings.group_consumer_assignors
        if request.server_assignor is not None and request.server_assignor not in allowed:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(allowed)}.",
            )
        if request.subscribed_topic_regex:
            matcher(request.subscribed_topic_regex)

    def _group(self, group_id: str, *, joins: bool) -> ConsumerGroup:
        """The group, or a new one; raises KafkaError."""
        group = self._state.consumers.get(group_id)
        if group is not None:
            return group
        classic = self._state.find(group_id)
        if not joins:
            said = f"Consumer group {group_id} not found."
            if classic is not None:
                said = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, said)
        return ConsumerGroup(group_id)

    def _member(
        self, draft: ConsumerDraft, request: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> ConsumerGroupMember:
        """The requesting member, known or (if it joins) new; raises KafkaError."""
        group, instance_id = draft.group, request.instance_id
        joins = request.member_epoch == JOINING_EPOCH
        if instance_id is None:
            if joins:
                return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
            member = group.member(member_id)
        elif not joins:
            member = group.static_member(instance_id, member_id)
        elif instance_id not in group.static_ids:
            return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        else:
            return self._replace_static_member(
                draft, group.members[group.static_ids[instance_id]], member_id
            )
        owned = _owned(request)
        owns_no_more = owned is not None and owned <= member.assigned.keys()
        check_epoch(member, request.member_epoch, "consumer", owns_no_more=owns_no_more)
        return member

    def _replace_static_member(
        self, draft: ConsumerDraft, old: ConsumerGroupMember, member_id: str
    ) -> ConsumerGroupMember:
        """A static member is back, perhaps under another id."""
        if old.classic is None and old.epoch != LEAVING_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {old.instance_id} cannot join the group "
                f"because the instance id is owned by {old.member_id} member.",
            )
        new = replace(old, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        self._changing.replace(draft, old, new)
        return new

    # -- leaving ------------------------------------------------------------------------------------

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now: Instant, result: ResultBuilder
    ) -> ConsumerGroupHeartbeatResponse:
        group = self._group(request.group_id, joins=False)
        member = group.named_member(request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == LEAVING_STATIC_EPOCH:
            away = replace(
                member,
                epoch=LEAVING_STATIC_EPOCH,
                assigned=dict.fromkeys(member.assigned, 0),
                revoking={},
            )
            GroupDraft(group, result).write(current_record(group.group_id, away))
        else:
            self._migrating.fence(group, {member.member_id}, now, result)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic.topic_id, partition)
        for topic in request.topic_partitions
        for partition in topic.partitions
    )


def _as_said(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerGroupMember:
    """The member, updated with the changed fields of its request."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == AS_BEFORE else timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        client_id=client.client_id,
        client_host=client.host,
        classic=None,
    )


def assignment_of(member: ConsumerGroupMember) -> ConsumerGroupHeartbeatResponseAssignment:
    """The member's assignment, as the response holds it."""
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(member.assigned).items()
        ]
    )


# After this time a member whose removal could not be written is removed once more.
RETRY_MS = 500


class ConsumerGroups:
    """All groups of the consumer protocol of one shard."""

    def __init__(self, state: GroupMetadataManager, rebalancing: Rebalancing) -> None:
        self._state = state
        self._changing = ConsumerGroupReconciler(state)
        self.migrating = ProtocolMigration(state, self._changing, rebalancing)
        self.heartbeats = Heartbeats(state, self._changing, self.migrating)
        self._classic = ClassicMembers(state, self._changing, self.migrating)
        self._describing = ConsumerGroupDescriber(state, self._changing)

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Replay one record."""
        consumers = self._state.consumers
        group = consumers.get(key.group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            consumers.pop(key.group_id, None)
            return
        if group is None:
            if value is None:
                return
            group = consumers[key.group_id] = ConsumerGroup(key.group_id)
        group.replay(key, value)

    def loaded(self, now: Instant) -> None:
        """The log has been read: every session restarts."""
        for group in self._state.consumers.values():
            for member in group.members.values():
                self._changing.expect(group.group_id, member, now)
                if member.classic is None:
                    self._state.expect_revocation(group.group_id, member, now)

    # -- requests of the classic protocol -----------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: Client,
        now: Instant,
        result: ResultBuilder,
    ) -> JoinGroupResponse:
        """JoinGroup of a group with members."""
        return self._classic.join(group, request, client, now, result)

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, now: Instant
    ) -> SyncGroupResponse:
        """SyncGroup."""
        return self._classic.sync(group, request, now)

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Instant
    ) -> HeartbeatResponse:
        """Heartbeat."""
        return self._classic.heartbeat(group, request, now)

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Instant, result: ResultBuilder
    ) -> LeaveGroupResponse:
        """LeaveGroup."""
        return self._classic.leave(group, request, now, result)

    # -- monitoring --------------------------------------------------------------------------------

    def described(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe."""
        return ConsumerGroupDescribeResponse(
            groups=[self._describing.described(group_id) for group_id in request.group_ids]
        )

    # -- time ---------------------------------------------------------------------------------------

    def tick(
        self, group: ConsumerGroup, key: TimerKey, now: Instant, result: ResultBuilder
    ) -> None:
        """A deadline of this group has come."""
        member = group.members.get(key.member_id)
        if member is None:
            return
        if key.kind is TimerKind.REBALANCE and not (member.has_to_revoke and member.revoking):
            return
        if key.kind in (TimerKind.JOIN, TimerKind.SYNC) and member.classic is None:
            return
        self._state.timers.set(key, now.monotonic_ms + RETRY_MS)
        self.migrating.fence(group, {member.member_id}, now, result)
