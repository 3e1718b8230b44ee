"""Pure: a group of the consumer protocol (KIP-848) and its members, as the log has them.

- Only `replay` changes a group; a member is a value. Records may come in any order that compaction leaves.
- Three epochs follow each other: the group's goes up when members, subscriptions or topics change, the target's when an
  assignment is made for it, each member's when it has revoked what others are to get.
- A partition is a member's until a record says that it was revoked: `revoking` counts as owned. Each has the epoch in
  which it was assigned, so that a late member may commit what it had then already (KIP-1251).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TypeAlias

from broker.coordinator.group.modern_group import (
    NOTHING,
    ModernGroup,
    ModernGroupMember,
    Partitions,
)
from broker.coordinator.group.values import Protocols
from kafka_ds.protocol.messages.persisted import ConsumerGroupKey, ConsumerGroupValue
from kafka_ds.protocol.messages.persisted_consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
)
from kafka_ds.protocol.topic_partition import PartitionId

# Partitions with the epoch at which each was assigned.
Owned: TypeAlias = Mapping[PartitionId, int]

# Written by a Kafka without epochs: the partition has always been the member's.
NO_ASSIGNMENT_EPOCH = 0


class MemberState(IntEnum):
    """Where a member is between two targets; the numbers are those of Kafka's records.

    - STABLE: it has what its target says
    - UNREVOKED_PARTITIONS: it has to revoke partitions before it may go on to the next epoch
    - UNRELEASED_PARTITIONS: it is in the target's epoch, and waits for partitions that others have yet to revoke
    - UNKNOWN: a later Kafka has written it
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """What a member of the classic protocol has joined with."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember(ModernGroupMember):
    """A member of the consumer protocol."""

    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    # None: it speaks the consumer protocol.
    classic: ClassicMetadata | None = None
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    @property
    def owned(self) -> Iterator[PartitionId]:
        """Everything that no other member may have."""
        yield from self.assigned
        yield from self.revoking

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has what the target of this epoch says."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def has_to_revoke(self) -> bool:
        """Whether it has a deadline to revoke partitions."""
        return self.state is MemberState.UNREVOKED_PARTITIONS


# -- members' records --------------------------------------------------------------------------


def with_metadata(
    member: ConsumerGroupMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerGroupMember:
    """The member with the subscription of this record."""
    classic = value.classic_member_metadata
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=tuple((p.name, bytes(p.metadata)) for p in classic.supported_protocols),
        ),
    )


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    """The member's target in the record."""
    return frozenset(
        (t.topic_id, partition) for t in value.topic_partitions for partition in t.partitions
    )


def with_current(
    member: ConsumerGroupMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerGroupMember:
    """The member with the assignment of this record."""
    known = value.state in MemberState.__members__.values()
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=_owned(value.assigned_partitions),
        revoking=_owned(value.partitions_pending_revocation),
    )


def _owned(topics: Iterable[CurrentTopicPartitions]) -> Owned:
    found = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [NO_ASSIGNMENT_EPOCH] * len(topic.partitions)
        for partition, epoch in zip(topic.partitions, epochs, strict=True):
            found[topic.topic_id, partition] = epoch
    return found


class ConsumerGroupState(Enum):
    """The state of a group; the names are shown to users.

    - Empty: no members; perhaps offsets
    - Assigning: the target is behind the group
    - Reconciling: members are on their way to the target
    - Stable: each member has what the target says
    - Dead: the group is deleted; only this name reports it
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(ModernGroup[ConsumerGroupMember, Partitions]):
    """One group."""

    no_target = NOTHING

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        # Expression -> the topics that it matched.
        self.regexes: dict[str, frozenset[str]] = {}
        # Derived from the members: whose each partition is.
        self.owners: dict[PartitionId, str] = {}
        # Kafka before 4.1 has left a record that goes with the group.
        self.has_old_metadata = False

    def copy(self) -> ConsumerGroup:
        """The same group, to be changed without changing this one."""
        twin = super().copy()
        twin.regexes, twin.owners = dict(self.regexes), dict(self.owners)
        twin.has_old_metadata = self.has_old_metadata
        return twin

    def facts(self) -> tuple[object, ...]:
        """The replicated state, for comparisons."""
        return (*super().facts(), self.regexes, self.owners)

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Apply one record, except the one that ends the whole group."""
        if isinstance(
            key, ConsumerGroupMemberMetadataKey | ConsumerGroupCurrentMemberAssignmentKey
        ):
            self._replay_member(key, value)
            return
        match value:
            case ConsumerGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupTargetAssignmentMetadataValue():
                self.target_epoch = value.assignment_epoch
                self.target_made_ms = value.assignment_timestamp
            case ConsumerGroupTargetAssignmentMemberValue():
                assert isinstance(key, ConsumerGroupTargetAssignmentMemberKey)
                self.targets[key.member_id] = target_of(value)
            case ConsumerGroupRegularExpressionValue():
                assert isinstance(key, ConsumerGroupRegularExpressionKey)
                self.regexes[key.regular_expression] = frozenset(value.topics)
            case ConsumerGroupPartitionMetadataValue():
                self.has_old_metadata = True
            case _:
                self._replay_tombstone(key)

    def _replay_tombstone(self, key: ConsumerGroupKey) -> None:
        if isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            self.target_epoch = self.target_made_ms = 0
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            self.targets.pop(key.member_id, None)
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            self.regexes.pop(key.regular_expression, None)
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            self.has_old_metadata = False

    def _replay_member(
        self,
        key: ConsumerGroupMemberMetadataKey | ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupValue | None,
    ) -> None:
        known = self.members.get(key.member_id)
        member: ConsumerGroupMember | None = known or ConsumerGroupMember(member_id=key.member_id)
        assert member is not None
        if isinstance(value, ConsumerGroupMemberMetadataValue):
            member = with_metadata(member, value)
        elif isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            member = with_current(member, value)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            member = None
        elif known is None:
            return
        else:
            # The subscription stays for a moment: its tombstone follows.
            member = with_current(
                member,
                ConsumerGroupCurrentMemberAssignmentValue(
                    member_epoch=0,
                    previous_member_epoch=-1,
                    state=MemberState.STABLE,
                    assigned_partitions=[],
                    partitions_pending_revocation=[],
                ),
            )
        self._put(known, member)

    def _put(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        if old is not None:
            for partition in old.owned:
                if self.owners.get(partition) == old.member_id:
                    del self.owners[partition]
            if old.instance_id and self.static_ids.get(old.instance_id) == old.member_id:
                del self.static_ids[old.instance_id]
            if new is None:
                del self.members[old.member_id]
        if new is not None:
            self.members[new.member_id] = new
            for partition in new.owned:
                self.owners[partition] = new.member_id
            if new.instance_id is not None:
                self.static_ids[new.instance_id] = new.member_id

    # -- monitoring --------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """Where the group is."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(m.is_reconciled_to(self.target_epoch) for m in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """What a member subscribes to, by names and by expression."""
        return member.topics | self.regexes.get(member.regex, frozenset())

    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for, if any does."""
        votes = Counter(m.server_assignor for m in self.members.values() if m.server_assignor)
        return max(votes, key=lambda name: (votes[name], name), default=None)

    def classic_members(self) -> list[ConsumerGroupMember]:
        """The members that speak the classic protocol."""
        return [m for m in self.members.values() if m.classic is not None]

    def supports_classic(self, names: list[str]) -> bool:
        """Whether all members of the classic protocol know one of these protocols."""
        known = [
            {name for name, _ in m.classic.protocols} for m in self.classic_members() if m.classic
        ]
        return any(all(name in each for each in known) for name in names)

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Whether another member still owns a part of this member's target."""
        return any(
            partition not in member.assigned
            and self.owners.get(partition, member.member_id) != member.member_id
            for partition in self.target_for(member.member_id)
        )
