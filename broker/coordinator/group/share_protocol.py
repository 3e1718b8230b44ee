"""Pure: share groups (KIP-932): ShareGroupHeartbeat, and which partitions have a share state.

- A member that comes with epoch 0 joins; one whose epoch is ahead, or behind by more than one lost answer, is fenced.
- A partition that a member subscribes to needs a share state first. The heartbeat that finds one without it has the
  shell ask the share coordinator; once that has answered, the next heartbeat of any member begins a new epoch.
- What is asked for is in the log before it is asked. After INITIALIZE_RETRY_MS without an answer it is asked again, as
  it is after a restart.
- A new target is made `share.assignment.interval.ms` after the last at the earliest (KIP-1263).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker.coordinator.group.assignors import Subscriber, assign_simple
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.modern_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    GroupDraft,
    Partitions,
    by_topic,
)
from broker.coordinator.group.records import (
    SHARE,
    epoch_record,
    member_tombstones,
    share_current_record,
    share_member_record,
    state_metadata_record,
    target_epoch_record,
    target_record,
    write_if_emptied,
)
from broker.coordinator.group.share_group import (
    FIRST_EPOCH,
    ShareGroup,
    ShareGroupMember,
    StatePartitions,
    StateTopics,
    partitions_of,
    with_partitions,
    without_partitions,
)
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import Client, GroupMetric, ResultBuilder, require
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kafka_ds.protocol.messages.persisted import ShareGroupKey, ShareGroupValue
from kafka_ds.protocol.messages.persisted_share_groups import ShareGroupMetadataKey
from kafka_ds.protocol.messages.share_groups import (
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

INITIALIZE_RETRY_MS = 30_000
# After this time a member whose removal could not be written is removed once more.
RETRY_MS = 500
SHARE_KIND = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeShareState:
    """The share coordinator shall begin a state for these partitions; the effect of a heartbeat."""

    group_id: str
    state_epoch: int
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateInitialized:
    """The share coordinator has begun these states, or (without success) has not."""

    group_id: str
    partitions: Partitions
    success: bool


class ShareGroups:
    """All share groups of one shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state
        # Group id and topic id -> when its state was last asked for, by the monotonic clock.
        self._asked: dict[tuple[str, bytes], int] = {}

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: ShareGroupKey, value: ShareGroupValue | None) -> None:
        """Replay one record."""
        shares = self._state.shares
        if value is None and isinstance(key, ShareGroupMetadataKey):
            shares.pop(key.group_id, None)
            return
        group = shares.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = shares[key.group_id] = ShareGroup(key.group_id)
        group.replay(key, value)

    def loaded(self, now: Instant) -> None:
        """The log has been read: every session restarts."""
        for group in self._state.shares.values():
            for member_id in group.members:
                self._begin_session(group.group_id, member_id, now)

    # -- ShareGroupHeartbeat ------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ShareGroupHeartbeatRequest,
        client: Client,
        now: Instant,
        result: ResultBuilder,
    ) -> ShareGroupHeartbeatResponse:
        """The member's epoch and, if it changed, its assignment; raises KafkaError."""
        _validate(request)
        group = self._group(request)
        draft = GroupDraft(group, result)
        if request.member_epoch == LEAVING_EPOCH:
            self._remove(draft, group.member(request.member_id), "left", result)
            return ShareGroupHeartbeatResponse(
                member_id=request.member_id, member_epoch=LEAVING_EPOCH
            )
        group.check_room(request.member_id, self._state.settings.group_share_max_size, SHARE_KIND)
        old = _member(group, request)
        new = replace(
            old,
            rack_id=old.rack_id if request.rack_id is None else request.rack_id,
            topics=old.topics
            if request.subscribed_topic_names is None
            else frozenset(request.subscribed_topic_names),
            client_id=client.client_id,
            client_host=client.host,
        )
        if new != group.members.get(new.member_id):
            draft.write(share_member_record(group.group_id, new))
        bump = new.topics != old.topics
        if group.target_epoch >= group.epoch:
            bump = bump or _has_more_to_assign(group, self._state.topology)
        if bump or not group.is_current(self._state.topology):
            self._refresh(draft, bump=bump)
        self._retarget(draft, now)
        changed = draft.group.epoch != group.epoch
        updated = self._reconcile(draft, new.member_id, topics_changed=changed)
        self._begin_session(group.group_id, updated.member_id, now)
        self._initialize(draft, now, result)
        response = ShareGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._state.heartbeat_interval_ms(group.group_id, SHARE_KIND),
        )
        is_full = request.subscribed_topic_names is not None
        if is_full or request.member_epoch == JOINING_EPOCH or updated.assigned != old.assigned:
            response.assignment = ShareGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ShareGroupHeartbeatResponseTopicPartitions(
                        topic_id=topic_id, partitions=partitions
                    )
                    for topic_id, partitions in by_topic(updated.assigned).items()
                ]
            )
        return response

    def _group(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        """The group, or a new one; raises KafkaError."""
        group_id = request.group_id
        group = self._state.shares.get(group_id)
        if group is not None:
            return group
        self._state.check_no_other_group(group_id, SHARE_KIND)
        if request.member_epoch == JOINING_EPOCH:
            return ShareGroup(group_id)
        said = f"Share group {group_id} not found."
        if request.member_epoch == LEAVING_EPOCH:
            said = f"Group {group_id} not found."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, said)

    # -- epochs and targets -------------------------------------------------------------------------

    def _refresh(self, draft: GroupDraft[ShareGroup], *, bump: bool) -> None:
        """Look up topics; begin a new epoch if they have changed, or if the caller says so."""
        group, topology = draft.group, self._state.topology
        epoch, found = group.next_epoch(topology, first=FIRST_EPOCH, bump=bump)
        if epoch > group.epoch:
            draft.write(epoch_record(group.group_id, epoch, found, SHARE))
            self._state.counts[GroupMetric.SHARE_REBALANCES] += 1
        draft.mark_checked(self._state.shares, topology)

    def _retarget(self, draft: GroupDraft[ShareGroup], now: Instant) -> None:
        """Make the target for the group's epoch, if it has none and the last is old enough."""
        group = draft.group
        if not self._state.target_is_due(group, now, SHARE_KIND):
            return
        shapes = group.shapes(self._state.topology)
        subscribers = {
            member.member_id: Subscriber(
                topic_ids=frozenset(shapes[n].topic_id for n in member.topics if n in shapes),
                had=group.target_for(member.member_id),
            )
            for member in group.members.values()
        }
        sizes = {shape.topic_id: shape.partitions for shape in shapes.values()}
        assignable = frozenset(
            (topic_id, partition)
            for topic_id, partition in partitions_of(group.initialized)
            if partition < sizes.get(topic_id, 0)
        )
        for member_id, target in assign_simple(subscribers, assignable).items():
            if group.targets.get(member_id) != target:
                draft.write(target_record(group.group_id, member_id, target, SHARE))
        draft.write(target_epoch_record(group.group_id, group.epoch, now.now_ms, SHARE))

    def _reconcile(
        self, draft: GroupDraft[ShareGroup], member_id: str, *, topics_changed: bool
    ) -> ShareGroupMember:
        """Give a member what the target says; returns the member after that."""
        group = draft.group
        member = group.members[member_id]
        if member.epoch == group.target_epoch and not topics_changed:
            return member
        shapes = map(self._state.topology.topic, member.topics)
        topic_ids = {shape.topic_id for shape in shapes if shape is not None}
        updated = replace(
            member, assigned=frozenset(p for p in group.target_for(member_id) if p[0] in topic_ids)
        )
        if member.epoch != group.target_epoch:
            updated = replace(updated, epoch=group.target_epoch, previous_epoch=member.epoch)
        if updated != member:
            draft.write(share_current_record(group.group_id, updated))
        return updated

    def _remove(
        self,
        draft: GroupDraft[ShareGroup],
        member: ShareGroupMember,
        why: str,
        result: ResultBuilder,
    ) -> None:
        """Remove a member; its session goes on, in case that this cannot be written."""
        group_id = draft.group.group_id
        draft.write(*member_tombstones(group_id, member.member_id, SHARE))
        self._refresh(draft, bump=True)
        write_if_emptied(draft, SHARE)
        result.say(f"Member {member.member_id} of share group {group_id} {why}", group_id)

    # -- share states -------------------------------------------------------------------------------

    def _initialize(
        self, draft: GroupDraft[ShareGroup], now: Instant, result: ResultBuilder
    ) -> None:
        """Have a state begun for what the members subscribe to and has none."""
        group = draft.group
        due_ms = now.monotonic_ms - INITIALIZE_RETRY_MS
        has = partitions_of(group.initialized) | {
            partition
            for partition in partitions_of(group.initializing)
            if self._asked.get((group.group_id, partition[0]), due_ms) > due_ms
        }
        missing: dict[bytes, StatePartitions] = {}
        for name, shape in group.shapes(self._state.topology).items():
            wanted = frozenset(
                number for number in range(shape.partitions) if (shape.topic_id, number) not in has
            )
            if wanted:
                missing[shape.topic_id] = StatePartitions(name, wanted)
                self._asked[group.group_id, shape.topic_id] = now.monotonic_ms
        if missing:
            self.begin(draft, missing)
            result.effects.append(
                InitializeShareState(
                    group_id=group.group_id,
                    state_epoch=draft.group.epoch,
                    partitions=partitions_of(missing),
                )
            )

    def begin(self, draft: GroupDraft[ShareGroup], topics: StateTopics) -> None:
        """Write that these states are being initialized."""
        group = draft.group
        draft.write(
            state_metadata_record(
                group,
                initializing=with_partitions(group.initializing, topics),
                deleting={t: name for t, name in group.deleting.items() if t not in topics},
            )
        )

    def initialized(self, event: ShareStateInitialized, result: ResultBuilder) -> None:
        """The share coordinator has answered."""
        group = self._state.shares.get(event.group_id)
        asked = event.partitions
        for topic_id in {topic_id for topic_id, _ in asked}:
            self._asked.pop((event.group_id, topic_id), None)
        if group is None:
            return  # it was deleted meanwhile
        begun = _selected(group.initializing, asked)
        GroupDraft(group, result).write(
            state_metadata_record(
                group,
                initializing=without_partitions(group.initializing, asked),
                initialized=with_partitions(group.initialized, begun) if event.success else None,
            )
        )

    def topics_deleted(self, topics: Iterable[tuple[str, bytes]], result: ResultBuilder) -> None:
        """Forget the states of deleted topics, which the share coordinator deletes by itself."""
        gone = {topic_id for _, topic_id in topics}
        for group in self._state.shares.values():
            known = {*group.initializing, *group.initialized, *group.deleting}
            if gone.isdisjoint(known):
                continue
            GroupDraft(group, result).write(
                state_metadata_record(
                    group,
                    initializing=_without(group.initializing, gone),
                    initialized=_without(group.initialized, gone),
                    deleting=_without(group.deleting, gone),
                )
            )

    # -- time ---------------------------------------------------------------------------------------

    def _begin_session(self, group_id: str, member_id: str, now: Instant) -> None:
        timeout_ms = self._state.session_timeout_ms(group_id, SHARE_KIND)
        key = TimerKey(TimerKind.SESSION, group_id, member_id)
        self._state.timers.set(key, now.monotonic_ms + timeout_ms)

    def tick(self, group: ShareGroup, key: TimerKey, now: Instant, result: ResultBuilder) -> None:
        """The session of a member has ended."""
        member = group.members.get(key.member_id)
        if member is not None:
            self._remove(
                GroupDraft(group, result), member, "was removed: its session ended", result
            )
            self._state.timers.set(key, now.monotonic_ms + RETRY_MS)


def _validate(request: ShareGroupHeartbeatRequest) -> None:
    require(request.member_id.strip(), "MemberId can't be empty.")
    require(request.group_id.strip(), "GroupId can't be empty.")
    require(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
    if request.member_epoch == JOINING_EPOCH:
        require(
            request.subscribed_topic_names, "SubscribedTopicNames must be set in first request."
        )
    else:
        require(request.member_epoch >= LEAVING_EPOCH, "MemberEpoch is invalid.")


def _member(group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareGroupMember:
    """The requesting member, known or (if it joins) new; raises KafkaError."""
    epoch = request.member_epoch
    if epoch == JOINING_EPOCH:
        return group.members.get(request.member_id) or ShareGroupMember(member_id=request.member_id)
    member = group.member(request.member_id)
    if epoch > member.epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a greater member epoch ({epoch}) than the one known by the "
            f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )
    if epoch < member.epoch and epoch != member.previous_epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a smaller member epoch ({epoch}) than the one known by the "
            f"group coordinator ({member.epoch}), and it does not match the previous member epoch "
            f"({member.previous_epoch}). The member must abandon all its partitions and rejoin.",
        )
    return member


def _has_more_to_assign(group: ShareGroup, topology: CoordinatorMetadataImage) -> bool:
    """Whether partitions have got their state, or lost it, since the target was made.

    States of a topic that was deleted while nobody led the group may still be there: no target has them.
    """
    assigned = frozenset().union(*group.targets.values())
    shapes = group.shapes(topology)
    return any(
        each.name in shapes
        and shapes[each.name].topic_id == topic_id
        and each.partitions != {index for other, index in assigned if other == topic_id}
        for topic_id, each in group.initialized.items()
    )


def _selected(topics: StateTopics, wanted: Partitions) -> StateTopics:
    return without_partitions(topics, partitions_of(topics) - wanted)


def _without(topics: Mapping[bytes, Any], gone: set[bytes]) -> dict[bytes, Any]:
    return {topic_id: each for topic_id, each in topics.items() if topic_id not in gone}
