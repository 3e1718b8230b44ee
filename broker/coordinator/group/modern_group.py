"""Pure: what groups of the consumer protocol, share groups and streams groups have in common (Kafka's ModernGroup).

- Only `replay` changes a group; a member is a value. An event decides on a draft, the group as it will be when the
  records so far are replayed.
- Three epochs follow each other: the group's goes up when members, subscriptions or topics change, the target's when an
  assignment is made for it (an interval after the last at the earliest, KIP-1263), each member's when it has taken it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeAlias, TypeVar

from broker.coordinator.group.metadata_image import (
    CoordinatorMetadataImage,
    TopicShape,
    metadata_hash,
)
from broker.coordinator.group.values import CoordinatorRecord, ResultBuilder
from broker.coordinator.result import LogLine
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

# (topic id, index)
Partitions: TypeAlias = frozenset[PartitionId]

NOTHING: Partitions = frozenset()
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
# A static member leaves, and keeps what it has until its session ends.
LEAVING_STATIC_EPOCH = -2
NO_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernGroupMember:
    """A member as the log describes it."""

    member_id: str
    # A share group's member has none.
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = JOINING_EPOCH
    previous_epoch: int = NO_EPOCH


def check_epoch(member: ModernGroupMember, epoch: int, kind: str, *, owns_no_more: bool) -> None:
    """Fence a member with a wrong epoch.

    With the epoch before it may come if it owns no more than it has: the answer with the present one may be lost.
    """
    if epoch == member.epoch:
        return
    if epoch == member.previous_epoch and epoch < member.epoch and owns_no_more:
        return
    than = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a {than} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


# A kind's member, and a member's target.
M = TypeVar("M", bound=ModernGroupMember)
T = TypeVar("T")


class ModernGroup(Generic[M, T]):
    """One group."""

    # Of a member that has none.
    no_target: T

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.target_made_ms = 0
        self.members: dict[str, M] = {}
        # Derived from the members: instance id -> member id. A share group has none.
        self.static_ids: dict[str, str] = {}
        self.targets: dict[str, T] = {}
        # (version of the topology, group epoch) at which the topics were last looked at.
        self.checked = (-1, -1)

    def copy(self) -> Self:
        """The same group, to be changed without changing this one."""
        twin = type(self)(self.group_id)
        twin.epoch, twin.metadata_hash = self.epoch, self.metadata_hash
        twin.target_epoch, twin.target_made_ms = self.target_epoch, self.target_made_ms
        twin.members, twin.targets = dict(self.members), dict(self.targets)
        twin.static_ids, twin.checked = dict(self.static_ids), self.checked
        return twin

    def facts(self) -> tuple[object, ...]:
        """The replicated state, for comparisons."""
        return (
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            self.target_made_ms,
            self.members,
            self.static_ids,
            self.targets,
        )

    @abstractmethod
    def replay(self, key: Any, value: Any) -> None:
        """Apply one record, except the one that ends the whole group."""

    @abstractmethod
    def topics_of(self, member: M) -> frozenset[str]:
        """What a member subscribes to."""

    def subscribed_topics(self) -> frozenset[str]:
        """What the members subscribe to."""
        return frozenset().union(*(self.topics_of(m) for m in self.members.values()))

    def shapes(self, topology: CoordinatorMetadataImage) -> dict[str, TopicShape]:
        """The topics that the members subscribe to, as far as they exist."""
        found = {name: topology.topic(name) for name in self.subscribed_topics()}
        return {name: shape for name, shape in found.items() if shape is not None}

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to this topic."""
        return any(topic in self.topics_of(m) for m in self.members.values())

    def target_for(self, member_id: str) -> T:
        """A member's target."""
        return self.targets.get(member_id, self.no_target)

    def member(self, member_id: str) -> M:
        """The member of this id; raises KafkaError."""
        found = self.members.get(member_id)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return found

    def named_member(self, member_id: str, instance_id: str | None) -> M:
        """The member that a request names, by its instance id, too, if it is static; raises KafkaError."""
        if instance_id is None:
            return self.member(member_id)
        return self.static_member(instance_id, member_id)

    def static_member(self, instance_id: str, member_id: str) -> M:
        """The member of this instance id, which must have this member id; raises KafkaError."""
        known = self.static_ids.get(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known}.",
            )
        return self.members[known]

    def check_room(
        self, member_id: str, size_max: int, kind: str, instance_id: str | None = None
    ) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if a group of this kind has no room for another member.

        Who comes with a static member's instance id takes its place, or is refused for that (Kafka 4.4).
        """
        if instance_id in self.static_ids:
            return
        if len(self.members) >= size_max and member_id not in self.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The {kind} group has reached its maximum capacity of {size_max} members.",
            )

    # -- epochs -------------------------------------------------------------------------------------

    def is_current(self, topology: CoordinatorMetadataImage) -> bool:
        """Whether the topics are unchanged since they were last looked up for this group."""
        version, epoch = self.checked
        return version == topology.version and self.epoch >= epoch

    def target_is_due(self, interval_ms: int, now_ms: int) -> bool:
        """Whether the target is older than the group's epoch, and the next may be made by now (KIP-1263).

        `interval_ms`: how long a target stays as it is; `now_ms` is the wall clock's, which the log has of each target.
        """
        if self.epoch <= self.target_epoch:
            return False
        # After the clock was set back nothing waits.
        return not self.target_made_ms or not 0 <= now_ms - self.target_made_ms < interval_ms

    def next_epoch(
        self, topology: CoordinatorMetadataImage, *, first: int, bump: bool
    ) -> tuple[int, int]:
        """The epoch that follows if the topics have changed, or the caller says so, and the hash of the topics."""
        found = metadata_hash(topology, self.subscribed_topics())
        return max(self.epoch, first) + (bump or found != self.metadata_hash), found


G = TypeVar("G", bound=ModernGroup[Any, Any])


class GroupDraft(Generic[G]):
    """A group during one event."""

    def __init__(self, group: G, result: ResultBuilder) -> None:
        self.group = group
        self._result = result
        self._is_copy = False

    def write(self, *records: CoordinatorRecord) -> None:
        """Add these records to the draft."""
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        for key, value in records:
            self.group.replay(key, value)
            self._result.records.append(CoordinatorRecord(key, value))

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """A line for the broker's log."""
        self._result.lines.append(LogLine(text, {"group": self.group.group_id}, is_warning))

    def mark_checked(self, live: Mapping[str, G], topology: CoordinatorMetadataImage) -> None:
        """The topics have been looked up; `live` are the groups as they are replayed."""
        self.group.checked = checked = (topology.version, self.group.epoch)
        group = live.get(self.group.group_id)
        if group is not None:
            group.checked = checked


def by_topic(partitions: Iterable[PartitionId]) -> dict[bytes, list[int]]:
    """The partitions of each topic, in order."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return found
