"""The sticky assignor of streams groups (KIP-1071)."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from broker.coordinator.group.streams_assignor import (
    StreamsAssignee,
    TasksToAssign,
    assign_sticky,
)
from broker.coordinator.group.streams_group import Task, Tasks


def to_assign(*stateful: str, standbys: int = 0, **counts: int) -> TasksToAssign:
    return TasksToAssign(counts=counts, stateful=frozenset(stateful), standby_replicas=standbys)


def alone(had: dict[str, Tasks]) -> dict[str, StreamsAssignee]:
    """Members that have a process each."""
    return {m: StreamsAssignee(process_id=f"p{m}", had=each) for m, each in had.items()}


def active_of(found: dict[str, Tasks]) -> list[Task]:
    return sorted(task for each in found.values() for task in each.active)


def test_tasks_stay_where_they_were_and_the_rest_is_even() -> None:
    wanted = to_assign(a=4)
    first = assign_sticky(alone({"1": Tasks()}), wanted)
    second = assign_sticky(alone({"1": first["1"], "2": Tasks()}), wanted)
    assert len(second["1"].active) == len(second["2"].active) == 2
    assert second["1"].active < first["1"].active
    assert assign_sticky(alone(second), wanted) == second


def test_a_standby_takes_over() -> None:
    wanted = to_assign("a", a=3, standbys=1)
    first = assign_sticky(alone({m: Tasks() for m in "123"}), wanted)
    gone = first.pop("3").active
    second = assign_sticky(alone(first), wanted)
    for task in gone:
        (heir,) = [m for m, each in second.items() if task in each.active]
        if any(task in each.standby for each in first.values()):
            assert task in first[heir].standby


def test_the_state_that_is_furthest_gets_the_task() -> None:
    """A replica's before that of who only says that it has one."""
    task, wanted = ("a", 0), to_assign("a", a=1)

    def owner(**members: StreamsAssignee) -> list[str]:
        return [m for m, each in assign_sticky(members, wanted).items() if task in each.active]

    nothing = StreamsAssignee(process_id="p", had=Tasks())
    near, far = (
        StreamsAssignee(process_id=f"p{offset}", had=Tasks(), restored={task: offset})
        for offset in (5, 9)
    )
    replica = StreamsAssignee(process_id="q", had=Tasks(standby=frozenset({task})))
    assert owner(a=nothing, b=near) == ["b"]
    assert owner(a=near, b=far) == ["b"]
    assert owner(a=near, b=far, c=replica) == ["c"]


def test_members_of_one_process_have_no_standbys_of_each_other() -> None:
    members = {m: StreamsAssignee(process_id="p", had=Tasks()) for m in "12"}
    found = assign_sticky(members, to_assign("a", a=3, standbys=1))
    assert active_of(found) == [("a", 0), ("a", 1), ("a", 2)]
    assert not any(each.standby for each in found.values())


def test_only_tasks_with_a_state_have_standbys() -> None:
    found = assign_sticky(alone({"1": Tasks(), "2": Tasks()}), to_assign("b", a=2, b=2, standbys=1))
    assert {s for each in found.values() for s, _ in each.standby} == {"b"}


def test_nobody_gets_nothing() -> None:
    assert assign_sticky({}, to_assign(a=2)) == {}


subtopologies = st.dictionaries(st.sampled_from("abc"), st.integers(1, 6), min_size=1)
processes = st.lists(st.sampled_from(["p", "q", "r"]), min_size=1, max_size=5)


@given(subtopologies, processes, processes, st.integers(0, 2))
def test_every_task_is_active_once_and_numbers_are_even(
    counts: dict[str, int], before: list[str], after: list[str], standbys: int
) -> None:
    wanted = TasksToAssign(
        counts=counts, stateful=frozenset({"a"} & counts.keys()), standby_replicas=standbys
    )
    had: dict[str, Tasks] = {}
    for each in (before, after):
        members = {
            f"m{n}": StreamsAssignee(process_id=process, had=had.get(f"m{n}", Tasks()))
            for n, process in enumerate(each)
        }
        had = assign_sticky(members, wanted)
        assert active_of(had) == sorted((s, p) for s, n in counts.items() for p in range(n))
        numbers = [len(tasks.active) for tasks in had.values()]
        if len(set(each)) == len(each):
            assert max(numbers) - min(numbers) <= 1
        copies = Counter(task for tasks in had.values() for task in tasks.standby)
        room = min(standbys, len(set(each)) - 1)
        assert all(copies["a", p] == room for p in range(counts.get("a", 0)))
        for process in set(each):
            mine = [had[m] for m, member in members.items() if member.process_id == process]
            has = [task for tasks in mine for task in (*tasks.active, *tasks.standby)]
            assert len(has) == len(set(has))
