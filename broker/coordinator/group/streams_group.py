"""Pure: a streams group (KIP-1071) and its members, as the log has them.

- A task is a subtopology and one of its partitions. One member has it active, others may have it as a standby; no
  process (which may have several members) has a task twice, for its state lies in a directory of the process.
- A task is a member's until a record says that it was revoked: `revoking` counts as owned. Each active task has the
  epoch in which it was assigned, so that a late member may commit what it had then already (KIP-1251).
- Warm-up tasks are only read: no Kafka up to 4.4 assigns them, though 4.4 has settings for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeAlias

from broker.coordinator.group.consumer_group import NO_ASSIGNMENT_EPOCH
from broker.coordinator.group.modern_group import (
    JOINING_EPOCH,
    NO_EPOCH,
    ModernGroup,
    ModernGroupMember,
)
from broker.coordinator.group.streams_topology import StreamsTopology, topology_of
from kafka_ds.protocol.messages.persisted import StreamsGroupKey, StreamsGroupValue
from kafka_ds.protocol.messages.persisted_streams_groups import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

# (subtopology id, partition)
Task: TypeAlias = tuple[str, int]

# What a group begins with, before it has a record of that: its first member's topology is a change (Kafka).
FIRST_EPOCH = 1
NO_TOPOLOGY = -1
NO_TASKS: frozenset[Task] = frozenset()


class Tasks(NamedTuple):
    """Tasks by what is done with them."""

    active: frozenset[Task] = NO_TASKS
    standby: frozenset[Task] = NO_TASKS
    warmup: frozenset[Task] = NO_TASKS

    def both(self, others: Tasks) -> Tasks:
        """Those that are in both, for the same purpose."""
        return Tasks(*(mine & theirs for mine, theirs in zip(self, others, strict=True)))

    def without(self, others: Tasks) -> Tasks:
        """Those that are not in the others for the same purpose."""
        return Tasks(*(mine - theirs for mine, theirs in zip(self, others, strict=True)))

    def with_(self, others: Tasks) -> Tasks:
        """These and the others."""
        return Tasks(*(mine | theirs for mine, theirs in zip(self, others, strict=True)))


NOTHING_TO_DO = Tasks()


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """The partitions of each subtopology, in order."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return found


def tasks_of(ids: Iterable[Any]) -> frozenset[Task]:
    """The tasks that a request or a record lists."""
    return frozenset(
        (each.subtopology_id, partition) for each in ids for partition in each.partitions
    )


class TaskOffsets(NamedTuple):
    """How far a member says that it has restored tasks, and where their changelogs end. The log has nothing of it."""

    restored: Mapping[Task, int] = {}
    ends: Mapping[Task, int] = {}


class StreamsGroupState(Enum):
    """The state of a group; the names are shown to users.

    - Empty: no members; perhaps offsets
    - NotReady: the topology's topics are missing, or do not fit it
    - Assigning, Reconciling, Stable, Dead: as of the consumer protocol
    """

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsMemberState(IntEnum):
    """Where a member is between two targets; the numbers are those of Kafka's records, and not the consumer protocol's.

    - STABLE: it has what its target says
    - UNREVOKED_TASKS: it has to give up tasks before it may go on to the next epoch
    - UNRELEASED_TASKS: it is in the target's epoch, and waits for tasks that others have yet to give up
    - UNKNOWN: a later Kafka has written it
    """

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMember(ModernGroupMember):
    """A member of a streams group."""

    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY
    process_id: str = ""
    # Host and port for interactive queries.
    user_endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: Tasks = NOTHING_TO_DO
    revoking: Tasks = NOTHING_TO_DO
    # The epoch in which it was assigned each of its active tasks.
    since: Mapping[Task, int] = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has what the target of this epoch says."""
        return self.state is StreamsMemberState.STABLE and self.epoch == epoch

    @property
    def has_to_revoke(self) -> bool:
        """Whether it has a deadline to give up tasks; one that has left for a while has given them up."""
        return self.state is StreamsMemberState.UNREVOKED_TASKS and self.epoch >= JOINING_EPOCH


class TaskHolders(NamedTuple):
    """Which processes have each task, by what they do with it."""

    active: Mapping[Task, frozenset[str]]
    standby: Mapping[Task, frozenset[str]]
    warmup: Mapping[Task, frozenset[str]]


class StreamsGroup(ModernGroup[StreamsGroupMember, Tasks]):
    """One group."""

    no_target = NOTHING_TO_DO

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = self.target_epoch = FIRST_EPOCH
        self.topology: StreamsTopology | None = None
        # The epoch of the topology whose topics were there and fitted it.
        self.validated_topology_epoch = NO_TOPOLOGY
        # The settings by which the last target was made.
        self.configs: Mapping[str, str] = {}

    def copy(self) -> StreamsGroup:
        """The same group, to be changed without changing this one."""
        twin = super().copy()
        twin.topology, twin.configs = self.topology, self.configs
        twin.validated_topology_epoch = self.validated_topology_epoch
        return twin

    def facts(self) -> tuple[object, ...]:
        """The replicated state, for comparisons."""
        return (*super().facts(), self.topology, self.validated_topology_epoch, self.configs)

    @property
    def state(self) -> StreamsGroupState:
        """Where the group is."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(m.is_reconciled_to(self.target_epoch) for m in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def topics_of(self, member: StreamsGroupMember) -> frozenset[str]:
        """The topics that a member reads: all have the group's topology."""
        return frozenset() if self.topology is None else frozenset(self.topology.subtopology_of)

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that the group needs."""
        return frozenset() if self.topology is None else self.topology.required_topics()

    def active_since(self, member: StreamsGroupMember, topic: str, partition: int) -> int | None:
        """The epoch since which a member reads this partition; None: it does not."""
        subtopology_id = self.topology.subtopology_of.get(topic) if self.topology else None
        return None if subtopology_id is None else member.since.get((subtopology_id, partition))

    def holders(self) -> TaskHolders:
        """Who has what, from all members."""
        found: tuple[dict[Task, set[str]], ...] = ({}, {}, {})
        for member in self.members.values():
            has = member.assigned.with_(member.revoking)
            for tasks, processes in zip(has, found, strict=True):
                for task in tasks:
                    processes.setdefault(task, set()).add(member.process_id)
        return TaskHolders(*({task: frozenset(p) for task, p in each.items()} for each in found))

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, key: StreamsGroupKey, value: StreamsGroupValue | None) -> None:
        """Apply one record, except the one that ends the whole group."""
        match value:
            case StreamsGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                self.validated_topology_epoch = value.validated_topology_epoch
                self.configs = {c.key: c.value for c in value.last_assignment_configs or ()}
            case StreamsGroupTopologyValue():
                self.topology = topology_of(value)
            case StreamsGroupTargetAssignmentMetadataValue():
                self.target_epoch = value.assignment_epoch
                self.target_made_ms = value.assignment_timestamp
            case StreamsGroupTargetAssignmentMemberValue():
                assert isinstance(key, StreamsGroupTargetAssignmentMemberKey)
                self.targets[key.member_id] = Tasks(
                    tasks_of(value.active_tasks),
                    tasks_of(value.standby_tasks),
                    tasks_of(value.warmup_tasks),
                )
            case StreamsGroupMemberMetadataValue() | StreamsGroupCurrentMemberAssignmentValue():
                assert isinstance(
                    key, StreamsGroupMemberMetadataKey | StreamsGroupCurrentMemberAssignmentKey
                )
                known = self.members.get(key.member_id)
                member = known or StreamsGroupMember(member_id=key.member_id)
                if isinstance(value, StreamsGroupMemberMetadataValue):
                    member = _with_metadata(member, value)
                    if member.instance_id is not None:
                        self.static_ids[member.instance_id] = member.member_id
                else:
                    member = _with_current(member, value)
                self.members[key.member_id] = member
            case _:
                self._replay_tombstone(key)

    def _replay_tombstone(self, key: StreamsGroupKey) -> None:
        if isinstance(key, StreamsGroupTargetAssignmentMetadataKey):
            self.target_epoch, self.target_made_ms = FIRST_EPOCH, 0
        elif isinstance(key, StreamsGroupTargetAssignmentMemberKey):
            self.targets.pop(key.member_id, None)
        elif isinstance(key, StreamsGroupMemberMetadataKey):
            gone = self.members.pop(key.member_id, None)
            if gone is not None and self.static_ids.get(gone.instance_id or "") == gone.member_id:
                del self.static_ids[gone.instance_id or ""]
        elif isinstance(key, StreamsGroupTopologyKey):
            self.topology = None
        elif isinstance(key, StreamsGroupCurrentMemberAssignmentKey):
            member = self.members.get(key.member_id)
            if member is not None:  # Its metadata's tombstone follows.
                self.members[key.member_id] = replace(
                    member,
                    epoch=JOINING_EPOCH,
                    previous_epoch=NO_EPOCH,
                    state=StreamsMemberState.STABLE,
                    assigned=NOTHING_TO_DO,
                    revoking=NOTHING_TO_DO,
                    since={},
                )


def _with_metadata(
    member: StreamsGroupMember, value: StreamsGroupMemberMetadataValue
) -> StreamsGroupMember:
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=tuple(sorted((tag.key, tag.value) for tag in value.client_tags)),
    )


def _with_current(
    member: StreamsGroupMember, value: StreamsGroupCurrentMemberAssignmentValue
) -> StreamsGroupMember:
    known = value.state in StreamsMemberState.__members__.values()
    since = {}
    for each in (*value.active_tasks, *value.active_tasks_pending_revocation):
        epochs = each.assignment_epochs or [NO_ASSIGNMENT_EPOCH] * len(each.partitions)
        for partition, epoch in zip(each.partitions, epochs, strict=True):
            since[each.subtopology_id, partition] = epoch
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=StreamsMemberState(value.state) if known else StreamsMemberState.UNKNOWN,
        assigned=Tasks(
            tasks_of(value.active_tasks),
            tasks_of(value.standby_tasks),
            tasks_of(value.warmup_tasks),
        ),
        revoking=Tasks(
            tasks_of(value.active_tasks_pending_revocation),
            tasks_of(value.standby_tasks_pending_revocation),
            tasks_of(value.warmup_tasks_pending_revocation),
        ),
        since=since,
    )
