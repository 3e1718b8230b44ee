"""Pure: changes of a group of the consumer protocol: its epochs, its target, and its members' way there.

Rules of this file:
- A draft is the group as it will be when the records so far have been replayed. Everything is decided on the draft, and
  each decision is a record: so the machine and a coordinator that reads the log later cannot differ.
- The records of one event may be written in several batches, so each must make sense without those after it: a member
  gives a partition up before another one gets it.
- A regular expression stands for the matching topics that the requesting member may describe, as in Kafka: the members
  of a group are assumed to have the same rights. If no member asks (a session ends) the expression stands for the same
  topics as before, until the next heartbeat.
- A new target is made in the event that makes the old one obsolete. Kafka 4.3 can wait for more changes (KIP-1263,
  group.consumer.assignment.interval.ms); here it does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinator.group.consumer.assignors import ASSIGNORS, Subscriber
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import ConsumerGroupMember, MemberState, Partitions
from broker.coordinator.group.consumer.reconciling import reconciled
from broker.coordinator.group.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from broker.coordinator.group.consumer.topology import metadata_hash
from broker.coordinator.group.state import Count, GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import CoordinatorRecord, ResultBuilder
from broker.coordinator.result import Instant
from kafka_ds.protocol.messages.persisted import ConsumerGroupKey, ConsumerGroupValue

# What a group begins with: its first member's subscription is a change already (Kafka).
FIRST_EPOCH = 1


class GroupDraft:
    """A group during one event."""

    def __init__(self, group: ConsumerGroup, step: ResultBuilder) -> None:
        self.group = group
        self._step = step
        self._is_copy = False

    def write(self, *records: CoordinatorRecord) -> None:
        """Decide that these records are written."""
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        for key, value in records:
            assert isinstance(key, ConsumerGroupKey)
            assert value is None or isinstance(value, ConsumerGroupValue)
            self.group.replay(key, value)
            self._step.records.append(CoordinatorRecord(key, value))


class ConsumerGroupReconciler:
    """Changes of the groups of a shard."""

    def __init__(self, state: GroupMetadataManager) -> None:
        self._state = state

    # -- epochs and targets -------------------------------------------------------------------------

    def is_current(self, group: ConsumerGroup) -> bool:
        """Whether the topics are unchanged since they were last looked up for this group."""
        version, epoch = group.checked
        return version == self._state.topology.version and group.epoch >= epoch

    def refresh(self, draft: GroupDraft, now: Instant, *, bump: bool = False) -> None:
        """Look up topics and expressions; begin a new epoch if something changed, or if the caller says so."""
        self._resolve(draft, now)
        names = draft.group.subscribed_topics()
        found = metadata_hash(self._state.topology, names)
        epoch = max(draft.group.epoch, FIRST_EPOCH) + (bump or found != draft.group.metadata_hash)
        if epoch > draft.group.epoch:
            draft.write(epoch_record(draft.group.group_id, epoch, found))
            self._state.counts[Count.CONSUMER_REBALANCES] += 1
        if draft.group.regexes and self._state.sees is None:
            return  # the next heartbeat resolves the expressions
        checked = (self._state.topology.version, draft.group.epoch)
        draft.group.checked = checked
        live = self._state.consumers.get(draft.group.group_id)
        if live is not None:
            live.checked = checked

    def _resolve(self, draft: GroupDraft, now: Instant) -> None:
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

    def retarget(self, draft: GroupDraft, now: Instant) -> None:
        """Make the target for the group's epoch, if it has none."""
        group = draft.group
        if group.epoch <= group.target_epoch:
            return
        topology = self._state.topology
        shapes = {}
        for name in group.subscribed_topics():
            shape = topology.topic(name)
            if shape is not None:
                shapes[name] = shape
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
        self, draft: GroupDraft, old: ConsumerGroupMember | None, new: ConsumerGroupMember
    ) -> bool:
        """Write what the member wants, if it changed; returns whether its subscription changed."""
        if old != new:
            draft.write(member_record(draft.group.group_id, new))
        before = (frozenset[str](), "") if old is None else (old.topics, old.regex)
        return before != (new.topics, new.regex)

    def go_on(
        self,
        draft: GroupDraft,
        member_id: str,
        now: Instant,
        *,
        subscribes_anew: bool,
        says_it_owns: Partitions | None,
    ) -> ConsumerGroupMember:
        """Advance epochs, target and this member as far as possible; returns the member after that."""
        if subscribes_anew or not self.is_current(draft.group):
            self.refresh(draft, now, bump=subscribes_anew)
        self.retarget(draft, now)
        group = draft.group
        member = group.members[member_id]
        updated = reconciled(
            member,
            target=group.target_for(member_id),
            target_epoch=group.target_epoch,
            owner_of=group.owners.get,
            says_it_owns=says_it_owns,
            subscribes_to=self._topic_ids_of(group, member) if subscribes_anew else None,
        )
        if updated != member:
            draft.write(current_record(group.group_id, updated))
        if updated.classic is None:
            self.expect_revocation(group.group_id, updated, now, anew=updated != member)
        return updated

    def _topic_ids_of(self, group: ConsumerGroup, member: ConsumerGroupMember) -> frozenset[bytes]:
        shapes = map(self._state.topology.topic, group.topics_of(member))
        return frozenset(shape.topic_id for shape in shapes if shape is not None)

    def expect_revocation(
        self, group_id: str, member: ConsumerGroupMember, now: Instant, *, anew: bool = True
    ) -> None:
        """Set the deadline of a member that must give partitions back (its rebalance timeout), anew or if it has none.

        It has none if it gave them back, and the record of that could not be written.
        """
        key, timers = TimerKey(TimerKind.REBALANCE, group_id, member.member_id), self._state.timers
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            timers.cancel(key)
        elif anew or timers.get(key) is None:
            timers.set(key, now.monotonic_ms + member.rebalance_timeout_ms)

    def remove(self, draft: GroupDraft, member_ids: Iterable[str], now: Instant) -> None:
        """Remove members: others may have their partitions from the next epoch on."""
        group_id = draft.group.group_id
        for member_id in member_ids:
            draft.write(*member_tombstones(group_id, member_id))
        self.refresh(draft, now, bump=True)

    def replace(
        self, draft: GroupDraft, old: ConsumerGroupMember, new: ConsumerGroupMember
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
