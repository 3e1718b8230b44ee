"""Pure: ConsumerGroupHeartbeat: members join, say what they want and own, learn their assignment, and leave (KIP-848).

Rules of this file:
- A member that comes with epoch 0 joins: it owns nothing. From version 1 on it brings its own id (KIP-1082).
- A member whose epoch is ahead of ours, or behind by more than one lost answer, is fenced: it must give up everything
  and join anew. A member that repeats itself after a lost answer is believed.
- A static member that leaves with epoch -2 keeps what it has until its session ends; a member that comes with the same
  instance id takes its place. While the static member is there, nobody else can (UNRELEASED_INSTANCE_ID).
- A refused request changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.group.consumer.changing import ConsumerGroupReconciler, GroupDraft
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    ConsumerGroupMember,
    Partitions,
    by_topic,
)
from broker.coordinator.group.consumer.migrating import ProtocolMigration
from broker.coordinator.group.consumer.records import current_record
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.values import Client, ResultBuilder
from broker.coordinator.result import Instant
from broker.patterns import matcher
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafka_ds.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

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
        step: ResultBuilder,
    ) -> ConsumerGroupHeartbeatResponse:
        """The member's epoch and, if it changed, its assignment; raises KafkaError."""
        self._validate(request, client.api_version)
        if request.member_epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            return self._leave(request, now, step)
        joins = request.member_epoch == JOINING_EPOCH
        draft = GroupDraft(self._group(request.group_id, joins=joins), step)
        member_id = request.member_id or self._state.new_id()
        if joins and request.group_id not in self._state.consumers:
            self._migrating.upgrade(request.group_id, draft, now, step)
        self._check_room(draft.group, member_id)
        old = self._member(draft, request, member_id)
        known = draft.group.members.get(member_id)
        new = _as_said(old, request, client)
        owned = _owned(request)
        anew = self._changing.update(draft, known, new)
        updated = self._changing.go_on(
            draft, member_id, now, subscribes_anew=anew, says_it_owns=owned
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

    # -- who may ------------------------------------------------------------------------------------

    def _validate(self, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        if api_version >= FIRST_VERSION_WITH_OWN_IDS or request.member_epoch != JOINING_EPOCH:
            _want(request.member_id.strip(), "MemberId can't be empty.")
        _want(request.group_id.strip(), "GroupId can't be empty.")
        _want(
            request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty."
        )
        _want(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
        epoch = request.member_epoch
        if epoch == JOINING_EPOCH:
            _want(
                request.rebalance_timeout_ms != AS_BEFORE,
                "RebalanceTimeoutMs must be provided in first request.",
            )
            _want(
                request.topic_partitions is not None and not request.topic_partitions,
                "TopicPartitions must be empty when (re-)joining.",
            )
            _want(
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
        elif epoch == LEAVING_STATIC_EPOCH:
            _want(request.instance_id is not None, "InstanceId can't be null.")
        else:
            _want(epoch >= LEAVING_EPOCH, "MemberEpoch is invalid.")
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

    def _check_room(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self._state.settings.group_consumer_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def _member(
        self, draft: GroupDraft, request: ConsumerGroupHeartbeatRequest, member_id: str
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
            return self._take_over(draft, group.members[group.static_ids[instance_id]], member_id)
        _check_epoch(member, request)
        return member

    def _take_over(
        self, draft: GroupDraft, old: ConsumerGroupMember, member_id: str
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
        self, request: ConsumerGroupHeartbeatRequest, now: Instant, step: ResultBuilder
    ) -> ConsumerGroupHeartbeatResponse:
        group = self._group(request.group_id, joins=False)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.static_member(request.instance_id, request.member_id)
        if request.instance_id is not None and request.member_epoch == LEAVING_STATIC_EPOCH:
            away = replace(
                member,
                epoch=LEAVING_STATIC_EPOCH,
                assigned=dict.fromkeys(member.assigned, 0),
                revoking={},
            )
            GroupDraft(group, step).write(current_record(group.group_id, away))
        else:
            self._migrating.fence(group, {member.member_id}, now, step)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )


def _want(condition: object, message: str) -> None:
    if not condition:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_epoch(member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """Fence a member with a wrong epoch."""
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    if epoch == member.previous_epoch and epoch < member.epoch:
        owned = _owned(request)
        if owned is not None and owned <= member.assigned.keys():
            # The answer with its present epoch may have been lost.
            return
    than = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions
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
