"""Pure: a group moves from the classic protocol to the consumer protocol and back, while it runs (KIP-848).

Rules of this file:
- The first member of the consumer protocol upgrades a classic group, with what its members have. When the last such
  member leaves, a classic group remains. `group.consumer.migration.policy` says which of the two may happen.
- The records say everything: tombstones of the old group, then the new one. Waiting requests and sessions of the
  classic group end when these records are in the log, and not before.
- A group without members can always change: it takes the protocol of its next member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from broker.coordinator.group.classic.group import ClassicGroup, ClassicGroupMember
from broker.coordinator.group.classic.rebalance import Rebalancing, refused_join
from broker.coordinator.group.classic.states import ClassicGroupState
from broker.coordinator.group.classic.subscription import CONSUMER_PROTOCOL
from broker.coordinator.group.consumer.changing import ConsumerGroupReconciler, GroupDraft
from broker.coordinator.group.consumer.group import ConsumerGroup
from broker.coordinator.group.consumer.member import (
    NOTHING,
    ClassicMetadata,
    ConsumerGroupMember,
    Partition,
    Partitions,
)
from broker.coordinator.group.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from broker.coordinator.group.records import group_record, group_tombstone
from broker.coordinator.group.state import GroupMetadataManager
from broker.coordinator.group.timers import TimerKey, TimerKind
from broker.coordinator.group.values import EMPTY_ASSIGNMENT, Downgrading, ResultBuilder, Upgrading
from broker.coordinator.result import Instant
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.messages import SyncGroupResponse
from kafka_ds.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)

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

    def upgrade(self, group_id: str, draft: GroupDraft, now: Instant, step: ResultBuilder) -> None:
        """If there is a classic group of this id, make it one of the consumer protocol; raises KafkaError."""
        classic = self._state.find(group_id)
        if classic is None:
            return
        if classic.state is not ClassicGroupState.EMPTY:
            members = self._members_of(classic)
            if group_id in self._state.metadata:
                step.records.append(group_tombstone(group_id))
            self._write(draft, members, classic.generation_id, now)
        elif group_id in self._state.metadata:
            step.records.append(group_tombstone(group_id))
        step.store(Upgrading(group_id=group_id))

    def _members_of(self, classic: ClassicGroup) -> list[ConsumerGroupMember]:
        """The members of a classic group; raises KafkaError if it must not be upgraded."""
        settings = self._state.settings
        if settings.group_consumer_migration_policy not in UPGRADES:
            raise _stays(classic, "online upgrade is disabled.")
        if not classic.is_consumer_group:
            raise _stays(classic, "the group does not use the consumer embedded protocol.")
        if len(classic.members) > settings.group_consumer_max_size:
            raise _stays(classic, "the group size exceeds the consumer group maximum size.")
        taken: set[Partition] = set()
        members = []
        for member in classic.members.values():
            try:
                upgraded = self._member_of(classic, member, taken)
            except MalformedFrame:
                raise _stays(classic, "the embedded consumer protocol is malformed.") from None
            taken.update(upgraded.assigned)
            members.append(upgraded)
        return members

    def _member_of(
        self, classic: ClassicGroup, member: ClassicGroupMember, taken: set[Partition]
    ) -> ConsumerGroupMember:
        assignment = decode_assignment(member.assignment)
        if assignment.user_data and classic.protocol_name not in FORGETFUL_ASSIGNORS:
            # It would be lost: only the members' own assignor understands it.
            raise _stays(
                classic,
                "an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade.",
            )
        # All protocols of a member say the same about topics.
        subscription = decode_subscription(member.protocols[0][1])
        has = self.partitions_of(assignment.assigned_partitions) - taken
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
        self, draft: GroupDraft, members: Iterable[ConsumerGroupMember], epoch: int, now: Instant
    ) -> None:
        group_id = draft.group.group_id
        for member in members:
            draft.write(member_record(group_id, member))
        draft.write(epoch_record(group_id, epoch, 0))
        for member in members:
            draft.write(target_record(group_id, member.member_id, frozenset(member.assigned)))
        draft.write(target_epoch_record(group_id, epoch, now.now_ms))
        for member in members:
            draft.write(current_record(group_id, member))

    def upgraded(self, storing: Upgrading, now: Instant, step: ResultBuilder) -> None:
        """The upgrade is in the log: members that wait in the classic group start again in the new one."""
        classic = self._state.groups.get(storing.group_id)
        if classic is None:
            return
        code = ErrorCode.REBALANCE_IN_PROGRESS
        for member_id, ticket in classic.joining.items():
            step.reply(ticket, refused_join(code, member_id))
        for ticket in classic.syncing.values():
            step.reply(ticket, SyncGroupResponse(error_code=code, assignment=b""))
        classic.joining.clear()
        classic.syncing.clear()
        self._state.forget(storing.group_id)
        group = self._state.consumers[storing.group_id]
        for member in group.members.values():
            self._changing.expect(group.group_id, member, now)

    # -- back to the classic protocol ---------------------------------------------------------------

    def fence(
        self, group: ConsumerGroup, leaving: Collection[str], now: Instant, step: ResultBuilder
    ) -> None:
        """Remove members; if the last one of the consumer protocol goes, a classic group remains."""
        staying = [m for m in group.members.values() if m.member_id not in leaving]
        was_mixed = any(group.members[member_id].classic is None for member_id in leaving)
        if was_mixed and self._may_downgrade(staying):
            self._downgrade(group, staying, now, step)
        else:
            self._changing.remove(GroupDraft(group, step), sorted(leaving), now)

    def downgrade_if_classic(self, group: ConsumerGroup, now: Instant, step: ResultBuilder) -> None:
        """A static member of the classic protocol has taken the last other one's place."""
        staying = list(group.members.values())
        if self._may_downgrade(staying):
            self._downgrade(group, staying, now, step)

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
        step: ResultBuilder,
    ) -> None:
        step.records.extend(group.tombstones())
        classic = ClassicGroup(group.group_id)
        for member in staying:
            assert member.classic is not None
            classic.add(
                ClassicGroupMember(
                    member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    protocols=member.classic.protocols,
                ),
                CONSUMER_PROTOCOL,
            )
        classic.generation_id = group.epoch
        classic.protocol_name = classic.select_protocol()
        classic.state_changed_ms = now.now_ms
        # What a member has yet to give back it has still: an upgrade that follows must know.
        assignments = {m.member_id: self.assignment_bytes(m, m.owned) for m in staying}
        step.records.append(group_record(classic, assignments))
        step.store(Downgrading(group_id=group.group_id))

    def downgraded(self, storing: Downgrading, now: Instant, step: ResultBuilder) -> None:
        """The downgrade is in the log: the classic group exists, and rebalances."""
        value = self._state.metadata[storing.group_id]
        group = self._state.groups[storing.group_id] = ClassicGroup.loaded(storing.group_id, value)
        for member in group.members.values():
            self._state.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id, member.member_id))
            self._state.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id, member.member_id))
            self._rebalancing.begin_session(group, member, now)
        self._rebalancing.prepare(group, now, step)

    # -- the members' own words ---------------------------------------------------------------------

    def partitions_of(
        self, topics: Iterable[AssignedTopicPartitions | OwnedTopicPartitions]
    ) -> Partitions:
        """Partitions by topic id, of existing topics."""
        found: set[Partition] = set()
        for each in topics:
            shape = self._state.topology.topic(each.topic)
            if shape is not None:
                found.update((shape.topic_id, index) for index in each.partitions)
        return frozenset(found) or NOTHING

    def assignment_bytes(
        self, member: ConsumerGroupMember, partitions: Iterable[Partition]
    ) -> bytes:
        """These partitions of a member of the classic protocol, in the version that it speaks."""
        assert member.classic is not None
        by_name: dict[str, list[int]] = {}
        for topic_id, index in sorted(partitions):
            name = self._state.topology.name_of(topic_id)
            if name is not None:
                by_name.setdefault(name, []).append(index)
        assignment = ConsumerProtocolAssignment(
            assigned_partitions=[
                AssignedTopicPartitions(topic=name, partitions=indexes)
                for name, indexes in by_name.items()
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
