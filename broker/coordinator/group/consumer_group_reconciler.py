"""Pure: how a group of the consumer protocol advances (KIP-848): its epochs, its target, its members' way there.

- All is decided on a draft, the group as it will be when the records so far are replayed; each change is a record.
- The records may be written in several batches: a member gives a partition up before another one gets it.
- A member stays in its epoch until it reports that it no longer owns what others are to get; then takes what is free.
- An expression stands for the topics that the asking member may describe; if none asks, for the same topics as before.
- A new target is made `consumer.assignment.interval.ms` after the last at the earliest (KIP-1263). Until then members
  (new ones too) are in the epoch of the old one, and have only topics of it that they still subscribe to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from typing import TypeAlias

from broker.coordinator.group.assignors import ASSIGNORS, Subscriber
from broker.coordinator.group.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    Owned,
)
from broker.coordinator.group.group_metadata_manager import GroupMetadataManager
from broker.coordinator.group.modern_group import GroupDraft, Partitions
from broker.coordinator.group.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
    write_if_emptied,
)
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import GroupMetric
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

# What a group begins with: its first member's subscription is a change already (Kafka).
FIRST_EPOCH = 1


ConsumerDraft: TypeAlias = GroupDraft[ConsumerGroup]


class ConsumerGroupReconciler:
    """Changes of the groups of a shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    # -- epochs and targets -------------------------------------------------------------------------

    def refresh(self, draft: ConsumerDraft, now: Instant, *, bump: bool = False) -> None:
        """Look up topics and expressions; begin a new epoch if something changed, or if the caller says so."""
        self._resolve(draft, now)
        group, topology = draft.group, self._state.topology
        epoch, found = group.next_epoch(topology, first=FIRST_EPOCH, bump=bump)
        if epoch > group.epoch:
            draft.write(epoch_record(group.group_id, epoch, found))
            self._state.counts[GroupMetric.CONSUMER_REBALANCES] += 1
        if draft.group.regexes and self._state.sees is None:
            return  # the next heartbeat resolves the expressions
        draft.mark_checked(self._state.consumers, topology)

    def _resolve(self, draft: ConsumerDraft, now: Instant) -> None:
        """Write which topics the members' expressions match now, if that has changed."""
        group = draft.group
        used = {member.regex for member in group.members.values() if member.regex}
        sees = self._state.sees
        for regex in sorted(used if sees is not None else ()):
            topics = frozenset(filter(sees, self._state.matches.of(regex)))
            if group.regexes.get(regex) != topics:
                version = self._state.topology.metadata_version()
                draft.write(regex_record(group.group_id, regex, topics, version, now.now_ms))
        for regex in sorted(group.regexes.keys() - used):
            draft.write(regex_tombstone(group.group_id, regex))

    def retarget(self, draft: ConsumerDraft, now: Instant) -> None:
        """Make the target for the group's epoch, if it has none and the last is old enough."""
        group = draft.group
        if not self._state.target_is_due(group, now):
            return
        shapes = group.shapes(self._state.topology)
        subscribers = {
            member.member_id: Subscriber(
                instance_id=member.instance_id,
                topic_ids=frozenset(
                    shapes[name].topic_id for name in group.topics_of(member) if name in shapes
                ),
                had=group.target_for(member.member_id),
            )
            for member in group.members.values()
        }
        sizes = {shape.topic_id: shape.partitions for shape in shapes.values()}
        targets = ASSIGNORS[self.assignor_of(group)](subscribers, sizes)
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                draft.write(target_record(group.group_id, member_id, target))
        draft.write(target_epoch_record(group.group_id, group.epoch, now.now_ms))

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The group's assignor: the one that most members ask for, else the broker's first."""
        allowed = self._state.settings.group_consumer_assignors
        wanted = group.preferred_assignor()
        return wanted if wanted in allowed else allowed[0]

    # -- members ------------------------------------------------------------------------------------

    def update(
        self, draft: ConsumerDraft, old: ConsumerGroupMember | None, new: ConsumerGroupMember
    ) -> bool:
        """Write the member's subscription, if it changed; returns whether it did."""
        if old != new:
            draft.write(member_record(draft.group.group_id, new))
        before = (frozenset[str](), "") if old is None else (old.topics, old.regex)
        return before != (new.topics, new.regex)

    def go_on(
        self,
        draft: ConsumerDraft,
        member_id: str,
        now: Instant,
        *,
        changes_subscription: bool,
        says_it_owns: Partitions | None,
    ) -> ConsumerGroupMember:
        """Advance epochs, target and this member as far as possible; returns the member after that."""
        if changes_subscription or not draft.group.is_current(self._state.topology):
            self.refresh(draft, now, bump=changes_subscription)
        self.retarget(draft, now)
        group = draft.group
        member, target = group.members[member_id], group.target_for(member_id)
        topic_ids = None
        if changes_subscription or group.target_epoch < group.epoch:
            topic_ids = self._topic_ids_of(group, member)
            target = frozenset(p for p in target if p[0] in topic_ids)
        updated = reconciled(
            member,
            target=target,
            target_epoch=group.target_epoch,
            owner_of=group.owners.get,
            says_it_owns=says_it_owns,
            subscribes_to=topic_ids if changes_subscription else None,
        )
        if updated != member:
            draft.write(current_record(group.group_id, updated))
        if updated.classic is None:
            self._state.expect_revocation(group.group_id, updated, now, restart=updated != member)
        return updated

    def _topic_ids_of(self, group: ConsumerGroup, member: ConsumerGroupMember) -> frozenset[bytes]:
        shapes = map(self._state.topology.topic, group.topics_of(member))
        return frozenset(shape.topic_id for shape in shapes if shape is not None)

    def remove(self, draft: ConsumerDraft, member_ids: Iterable[str], now: Instant) -> None:
        """Remove members: others may have their partitions from the next epoch on."""
        group_id = draft.group.group_id
        for member_id in member_ids:
            draft.write(*member_tombstones(group_id, member_id))
        self.refresh(draft, now, bump=True)
        write_if_emptied(draft)

    def replace(
        self, draft: ConsumerDraft, old: ConsumerGroupMember, new: ConsumerGroupMember
    ) -> None:
        """Let a static member continue under another id, with everything that it had."""
        group_id, target = draft.group.group_id, draft.group.target_for(old.member_id)
        draft.write(
            *member_tombstones(group_id, old.member_id),
            member_record(group_id, new),
            target_record(group_id, new.member_id, target),
            current_record(group_id, new),
        )

    # -- sessions -----------------------------------------------------------------------------------

    def expect(self, group_id: str, member: ConsumerGroupMember, now: Instant) -> None:
        """The member is alive: restart its session."""
        timeout_ms = self._state.session_timeout_ms(group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        key = TimerKey(TimerKind.SESSION, group_id, member.member_id)
        self._state.timers.set(key, now.monotonic_ms + timeout_ms)


def reconciled(
    member: ConsumerGroupMember,
    *,
    target: Partitions,
    target_epoch: int,
    owner_of: Callable[[PartitionId], str | None],
    says_it_owns: Partitions | None,
    subscribes_to: Set[bytes] | None = None,
) -> ConsumerGroupMember:
    """The member after this step, or the same if there is no step to take.

    `subscribes_to`: the ids of its topics, where its subscription has just changed.
    """
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return member if subscribes_to is None else _within(member, subscribes_to, says_it_owns)
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS
    if revokes and _still_owns(member.revoking, says_it_owns):
        return member if subscribes_to is None else _within(member, subscribes_to, says_it_owns)
    # Otherwise the request is fulfilled; whether the target has moved on meanwhile is checked below.
    if member.state is MemberState.UNKNOWN:
        if says_it_owns is None or says_it_owns:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        epoch = target_epoch
    return _next(member, epoch, target, target_epoch, owner_of, says_it_owns)


def _next(
    member: ConsumerGroupMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owner_of: Callable[[PartitionId], str | None],
    says_it_owns: Partitions | None,
) -> ConsumerGroupMember:
    kept = {p: since for p, since in member.assigned.items() if p in target}
    revoking = {p: since for p, since in member.assigned.items() if p not in target}
    if revoking and _still_owns(revoking, says_it_owns):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )
    missing = [p for p in target if p not in kept]
    # What it has just revoked is free for itself, too.
    free = [p for p in missing if owner_of(p) in (None, member.member_id)]
    waits = len(free) < len(missing)
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=kept | dict.fromkeys(free, target_epoch),
        revoking={},
    )


def _within(
    member: ConsumerGroupMember, topic_ids: Set[bytes], says_it_owns: Partitions | None
) -> ConsumerGroupMember:
    """The member, which must revoke partitions of other topics (as well)."""
    kept = {p: since for p, since in member.assigned.items() if p[0] in topic_ids}
    if len(kept) == len(member.assigned):
        return member
    more = {p: since for p, since in member.assigned.items() if p not in kept}
    revoking = {**member.revoking, **more}
    if not _still_owns(revoking, says_it_owns):
        return replace(member, previous_epoch=member.epoch, assigned=kept)
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_epoch=member.epoch,
        assigned=kept,
        revoking=revoking,
    )


def _still_owns(partitions: Owned, says_it_owns: Partitions | None) -> bool:
    return says_it_owns is None or not says_it_owns.isdisjoint(partitions)
