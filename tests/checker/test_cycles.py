"""Cycles of dependencies between operations."""

from __future__ import annotations

from tests.checker.cycles import components, in_time, shortest


def test_components_are_those_with_a_cycle() -> None:
    graph = {1: {2: "wr"}, 2: {3: "wr", 4: "wr"}, 3: {1: "wr"}, 4: {5: "wr"}, 5: {}, 6: {6: "wr"}}
    assert [sorted(each) for each in components(graph)] == [[1, 2, 3]]


def test_a_long_chain_needs_no_deep_stack() -> None:
    graph = {each: {each + 1: "wr"} for each in range(50_000)} | {50_000: {0: "wr"}}
    assert [len(each) for each in components(graph)] == [50_001]


def test_the_shortest_cycle_is_told() -> None:
    graph = {1: {2: "ww"}, 2: {3: "ww"}, 3: {1: "ww", 2: "wr"}}
    assert shortest(graph, [1, 2, 3]) == [(2, "ww"), (3, "wr")]


def test_real_time_leads_from_each_end_to_what_began_later() -> None:
    spans = [(0, 5), (1, 2), (3, 4), (6, 7)]
    graph = in_time(spans)

    def follow(node: int) -> set[int]:
        return {node} | {found for each in graph[node] for found in follow(each)}

    reached = [sorted(each for each in follow(node) - {node} if each >= 0) for node in range(4)]
    assert reached == [[3], [2, 3], [3], []]
