"""Pure: which member of a streams group gets which task: the assignor `sticky` (KIP-1071).

- Each active task stays with its last member, else goes to one that has it as a standby, or says that it has its state,
  as long as that member has not yet its part of all tasks; else to the least loaded process, and there to the least
  loaded member.
- A stateful task has so many standbys, each in another process than the task itself; fewer, if there are too few.
- Members of a process count as one for the state: a process never has a task twice.
- The same group gets the same tasks on every broker: tasks and members are taken in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker.coordinator.group.streams_group import Task, Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsAssignee:
    """A member as the assignor sees it."""

    process_id: str
    had: Tasks
    # How far it says that it has restored tasks, of whose state it has a copy.
    restored: Mapping[Task, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksToAssign:
    """Subtopology id -> number of its tasks; which have a state; and how many standbys each of those shall have."""

    counts: Mapping[str, int]
    stateful: frozenset[str]
    standby_replicas: int


def assign_sticky(
    members: Mapping[str, StreamsAssignee], wanted: TasksToAssign
) -> dict[str, Tasks]:
    """The tasks of each member."""
    if not members:
        return {}
    work = _StickyAssignment(members, wanted)
    work.assign_active()
    work.assign_standby()
    return {
        member_id: Tasks(frozenset(work.active[member_id]), frozenset(work.standby[member_id]))
        for member_id in members
    }


class _FairShare:
    """How many tasks a member may have, so that numbers differ by at most one.

    The first to reach the rounded-up mean leave less for the others, whose mean then counts.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = self._mean()

    def _mean(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def reached(self, count: int) -> None:
        """A member has so many tasks now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = self._mean()


class _Process:
    """A process: its members, and what it has."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()

    @property
    def load(self) -> float:
        """Tasks for each member."""
        return sum(self.counts.values()) / len(self.counts)

    def least_loaded(self) -> str:
        """Its member with the fewest tasks."""
        return min(self.counts, key=lambda member_id: (self.counts[member_id], member_id))


class _StickyAssignment:
    """An assignment while it is made."""

    def __init__(self, members: Mapping[str, StreamsAssignee], wanted: TasksToAssign) -> None:
        self._members, self._wanted = members, wanted
        self._processes: dict[str, _Process] = {}
        self._last_active: dict[Task, str] = {}
        ranked: dict[Task, list[tuple[bool, int, str]]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            self._processes.setdefault(member.process_id, _Process()).counts[member_id] = 0
            self._last_active |= dict.fromkeys(member.had.active, member_id)
            replicas = member.had.standby | member.had.warmup
            for task in replicas | member.restored.keys():
                # Replicas first, and of each kind who is furthest.
                rank = task not in replicas, -member.restored.get(task, 0), member_id
                ranked.setdefault(task, []).append(rank)
        self._last_standby = {t: [each[2] for each in sorted(of)] for t, of in ranked.items()}
        self.active: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self.standby: dict[str, set[Task]] = {member_id: set() for member_id in members}
        counts = wanted.counts
        total = sum(counts.values())
        stateful = sum(counts[each] for each in wanted.stateful)
        self._active_quota = _FairShare(total, len(members))
        self._quota = _FairShare(total + stateful * wanted.standby_replicas, len(members))

    def assign_active(self) -> None:
        """Each task to one member."""
        # Partition by partition, so that a member keeps the same ones of several subtopologies.
        tasks = sorted(
            ((each, p) for each, count in self._wanted.counts.items() for p in range(count)),
            key=lambda task: (task[1], task[0]),
        )
        for last in (self._last_actives, self._last_standbys):
            left = []
            for task in tasks:
                member_id = self._least_loaded(last(task))
                if member_id is None or self._count(member_id) >= self._active_quota.each:
                    left.append(task)
                else:
                    self._give(member_id, task, self.active)
            tasks = left
        for task in sorted(tasks):
            self._give(self._lightest(self._processes.values()), task, self.active)

    def assign_standby(self) -> None:
        """Each stateful task to so many other processes."""
        tasks = [
            (each, p)
            for each in self._wanted.stateful
            for p in range(self._wanted.counts[each])
            for _ in range(self._wanted.standby_replicas)
        ]
        left = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            for last in (self._last_actives, self._last_standbys):
                able = [m for m in last(task) if task not in self._process(m).tasks]
                member_id = self._least_loaded(able)
                if member_id is not None and self._count(member_id) < self._quota.each:
                    self._give(member_id, task, self.standby)
                    break
            else:
                left.append(task)
        for task in sorted(left, reverse=True):
            others = [each for each in self._processes.values() if task not in each.tasks]
            if others:  # Otherwise there are fewer processes than copies.
                self._give(self._lightest(others), task, self.standby)

    def _last_actives(self, task: Task) -> list[str]:
        member_id = self._last_active.get(task)
        return [] if member_id is None else [member_id]

    def _last_standbys(self, task: Task) -> list[str]:
        return self._last_standby.get(task, [])

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _count(self, member_id: str) -> int:
        return self._process(member_id).counts[member_id]

    def _least_loaded(self, member_ids: Iterable[str]) -> str | None:
        """The first member, unless a later one has fewer tasks in a process with less load."""
        found, least = None, (0.0, 0)
        for each in member_ids:
            load = self._process(each).load, self._count(each)
            if found is None or (load[0] < least[0] and load[1] < least[1]):
                found, least = each, load
        return found

    def _lightest(self, processes: Iterable[_Process]) -> str:
        return min(processes, key=lambda each: each.load).least_loaded()

    def _give(self, member_id: str, task: Task, to: dict[str, set[Task]]) -> None:
        process = self._process(member_id)
        process.tasks.add(task)
        process.counts[member_id] = count = process.counts[member_id] + 1
        to[member_id].add(task)
        self._quota.reached(count)
        if to is self.active:
            self._active_quota.reached(count)
