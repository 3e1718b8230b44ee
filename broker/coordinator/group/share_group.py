"""Pure: a share group (KIP-932) and its members, as the log has them.

- Members have partitions together, so nobody waits for another: a member is in the target's epoch at once.
- A partition is assigned only while the share coordinator has a state for it. `initializing` are those for which it was
  asked for one, `initialized` those that have it, `deleting` topics whose states are to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from broker.coordinator.group.modern_group import (
    NO_EPOCH,
    NOTHING,
    ModernGroup,
    ModernGroupMember,
    Partitions,
)
from kafka_ds.protocol.messages.persisted import ShareGroupKey, ShareGroupValue
from kafka_ds.protocol.messages.persisted_share_groups import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartitionsInfo,
)

# What a group begins with, before it has a record of that: its first member's subscription is a change (Kafka).
FIRST_EPOCH = 1


class ShareGroupState(Enum):
    """The state of a group; the names are shown to users."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMember(ModernGroupMember):
    """A member of a share group."""

    topics: frozenset[str] = frozenset()
    assigned: Partitions = NOTHING


class StatePartitions(NamedTuple):
    """Partitions of a topic of this name."""

    name: str
    partitions: frozenset[int]


# By topic id.
StateTopics = Mapping[bytes, StatePartitions]


class ShareGroup(ModernGroup[ShareGroupMember, Partitions]):
    """One group."""

    no_target = NOTHING

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = self.target_epoch = FIRST_EPOCH
        self.initializing: StateTopics = {}
        self.initialized: StateTopics = {}
        # Topic id -> name.
        self.deleting: Mapping[bytes, str] = {}

    def copy(self) -> ShareGroup:
        """The same group, to be changed without changing this one."""
        twin = super().copy()
        twin.initializing, twin.initialized = self.initializing, self.initialized
        twin.deleting = self.deleting
        return twin

    def facts(self) -> tuple[object, ...]:
        """The replicated state, for comparisons."""
        return (*super().facts(), self.initializing, self.initialized, self.deleting)

    @property
    def state(self) -> ShareGroupState:
        """Where the group is."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def topics_of(self, member: ShareGroupMember) -> frozenset[str]:
        """What a member subscribes to."""
        return member.topics

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: ShareGroupKey, value: ShareGroupValue | None) -> None:
        """Apply one record, except the one that ends the whole group."""
        match value:
            case ShareGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupTargetAssignmentMetadataValue():
                self.target_epoch = value.assignment_epoch
                self.target_made_ms = value.assignment_timestamp
            case ShareGroupTargetAssignmentMemberValue():
                assert isinstance(key, ShareGroupTargetAssignmentMemberKey)
                self.targets[key.member_id] = frozenset(
                    (t.topic_id, partition)
                    for t in value.topic_partitions
                    for partition in t.partitions
                )
            case ShareGroupMemberMetadataValue() | ShareGroupCurrentMemberAssignmentValue():
                self._replay_member(key, value)
            case ShareGroupStatePartitionMetadataValue():
                self.initializing = _topics(value.initializing_topics)
                self.initialized = _topics(value.initialized_topics)
                self.deleting = {each.topic_id: each.topic_name for each in value.deleting_topics}
            case _:
                self._replay_tombstone(key)

    def _replay_member(
        self,
        key: ShareGroupKey,
        value: ShareGroupMemberMetadataValue | ShareGroupCurrentMemberAssignmentValue,
    ) -> None:
        assert isinstance(key, ShareGroupMemberMetadataKey | ShareGroupCurrentMemberAssignmentKey)
        member = self.members.get(key.member_id) or ShareGroupMember(member_id=key.member_id)
        if isinstance(value, ShareGroupMemberMetadataValue):
            self.members[key.member_id] = replace(
                member,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                topics=frozenset(value.subscribed_topic_names),
            )
            return
        self.members[key.member_id] = replace(
            member,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=frozenset(
                (t.topic_id, partition)
                for t in value.assigned_partitions
                for partition in t.partitions
            ),
        )

    def _replay_tombstone(self, key: ShareGroupKey) -> None:
        if isinstance(key, ShareGroupTargetAssignmentMetadataKey):
            self.target_epoch, self.target_made_ms = FIRST_EPOCH, 0
        elif isinstance(key, ShareGroupTargetAssignmentMemberKey):
            self.targets.pop(key.member_id, None)
        elif isinstance(key, ShareGroupMemberMetadataKey):
            self.members.pop(key.member_id, None)
        elif isinstance(key, ShareGroupStatePartitionMetadataKey):
            self.initializing = self.initialized = {}
            self.deleting = {}
        elif isinstance(key, ShareGroupCurrentMemberAssignmentKey):
            member = self.members.get(key.member_id)
            if member is not None:  # Its subscription's tombstone follows.
                self.members[key.member_id] = replace(
                    member, epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=NOTHING
                )


def _topics(topics: Iterable[TopicPartitionsInfo]) -> StateTopics:
    return {
        each.topic_id: StatePartitions(each.topic_name, frozenset(each.partitions))
        for each in topics
    }


def with_partitions(topics: StateTopics, more: StateTopics) -> StateTopics:
    """These partitions and those."""
    found = dict(topics)
    for topic_id, (name, partitions) in more.items():
        known = found.get(topic_id)
        found[topic_id] = StatePartitions(
            name, partitions if known is None else partitions | known.partitions
        )
    return found


def without_partitions(topics: StateTopics, gone: Partitions) -> StateTopics:
    """These partitions but for some, and no topic without any."""
    found = {}
    for topic_id, (name, partitions) in topics.items():
        left = frozenset(partition for partition in partitions if (topic_id, partition) not in gone)
        if left:
            found[topic_id] = StatePartitions(name, left)
    return found


def partitions_of(topics: StateTopics) -> Partitions:
    """The partitions of these topics, each with its topic's id."""
    return frozenset(
        (topic_id, partition) for topic_id, each in topics.items() for partition in each.partitions
    )
