"""Dependencies between operations, and cycles of them.

Adya's dependencies, for a log: `ww` from the sender of a record to the sender of the next one, `wr` from a record's
sender to those who polled it, `rw` from whoever has polled a record last to the sender of the next one. `rt` follows
real time: from an operation that has ended to those that began later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

# From an operation's number to those that depend on it, with the kind of each dependency.
Graph = Mapping[int, Mapping[int, str]]


def components(graph: Graph) -> Iterator[list[int]]:
    """Tarjan's strongly connected components of more than one node."""
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    is_on_path: set[int] = set()
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph.get(root, ())))]
        index[root] = lowest[root] = len(index)
        path.append(root)
        is_on_path.add(root)
        while work:
            node, following = work[-1]
            for each in following:
                if each not in index:
                    index[each] = lowest[each] = len(index)
                    path.append(each)
                    is_on_path.add(each)
                    work.append((each, iter(graph.get(each, ()))))
                    break
                if each in is_on_path:
                    lowest[node] = min(lowest[node], index[each])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    found = []
                    while not found or found[-1] != node:
                        found.append(path.pop())
                    is_on_path.difference_update(found)
                    if len(found) > 1:
                        yield found


def shortest(graph: Graph, component: Iterable[int]) -> list[tuple[int, str]]:
    """A shortest cycle of a component: its nodes, each with the kind of the edge that leaves it."""
    inside = set(component)
    best: list[tuple[int, str]] = []
    for start in sorted(inside):
        came: dict[int, int] = {}
        waiting = deque([start])
        while waiting and start not in came:
            node = waiting.popleft()
            for each in graph.get(node, ()):
                if each in inside and each not in came:
                    came[each] = node
                    waiting.append(each)
        cycle, node = [], start
        while not cycle or node != start:
            before = came[node]
            cycle.append((before, graph[before][node]))
            node = before
        if not best or len(cycle) < len(best):
            best = cycle[::-1]
        if len(best) == 2 or len(inside) > 1_000:
            break
    return best


def in_time(spans: Sequence[tuple[int, int]]) -> dict[int, dict[int, str]]:
    """Edges of real time between operations, given their beginnings and ends.

    Each end is a node of its own, with a negative number, and leads to the next end; so a history of n operations
    has 3 n edges.
    """
    ends = sorted((ended, node) for node, (_, ended) in enumerate(spans))
    graph: dict[int, dict[int, str]] = {node: {} for node in range(len(spans))}
    for place, (_, node) in enumerate(ends):
        graph[node][-1 - place] = "rt"
        graph[-1 - place] = {-2 - place: "rt"} if place + 1 < len(ends) else {}
    begins = sorted((began, node) for node, (began, _) in enumerate(spans))
    place = 0
    for began, node in begins:
        while place < len(ends) and ends[place][0] < began:
            place += 1
        if place:
            graph[-place][node] = "rt"
    return graph
