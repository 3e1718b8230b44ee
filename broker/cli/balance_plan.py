"""Pure: which replicas and preferred leaders `kafka-ds cluster balance` moves, from sizes and produce rates.

Each move takes a replica, or the preferred leadership of a partition, from a broker with more than the mean to one with
less, so that the two are closer afterwards. The plan ends where no broker is above the mean by more than the tolerance,
or no such move is left. A move never puts a partition's replicas on fewer racks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from kafka_ds.protocol.topic_partition import TopicPartition

# What an empty replica counts (files, fetches of followers), and a leader of a partition that nobody produces to.
REPLICA_BYTES_MIN = 1 << 20
LEADER_RATE_MIN = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """A partition's replicas, the preferred leader first, their bytes, and the bytes produced to it a second."""

    place: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int = 0
    rate: float = 0.0

    @property
    def replica_weight(self) -> float:
        return float(max(self.size_bytes, REPLICA_BYTES_MIN))

    @property
    def leader_weight(self) -> float:
        return max(self.rate, LEADER_RATE_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReassignment:
    """A partition with its replicas before and after; the first is the preferred leader."""

    place: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes_moved: int


def reassignments(
    partitions: Sequence[PartitionLoad],
    racks: Mapping[int, str | None],
    *,
    tolerance: float = 0.1,
    moves_max: int | None = None,
) -> list[PlannedReassignment]:
    """The partitions to reassign; ``racks`` has the live brokers. Replicas on other brokers stay where they are.

    ``tolerance`` is the part of the mean by which a broker may exceed it; ``moves_max`` limits the replicas moved.
    """
    now = {each.place: each for each in partitions}
    held = {each.place: set(each.replicas) for each in partitions}
    weights = {each.place: each.replica_weight for each in partitions}

    def may_hold(place: TopicPartition, source: int, target: int) -> bool:
        replicas = held[place]
        if target in replicas:
            return False
        left = {_rack(racks, each) for each in replicas - {source}}
        return _rack(racks, target) not in left or _rack(racks, source) in left

    moves = _evened(weights, held, racks, may_hold, tolerance=tolerance, moves_max=moves_max)
    for place, source, target in moves:
        at = now[place]
        moved = tuple(target if each == source else each for each in at.replicas)
        now[place] = replace(at, replicas=moved)
    leaders = {place: {at.replicas[0]} for place, at in now.items()}
    rates = {place: at.leader_weight for place, at in now.items()}

    def may_lead(place: TopicPartition, source: int, target: int) -> bool:
        return target in now[place].replicas

    for place, _, target in _evened(rates, leaders, racks, may_lead, tolerance=tolerance):
        others = (each for each in now[place].replicas if each != target)
        now[place] = replace(now[place], replicas=(target, *others))
    return [
        PlannedReassignment(
            place=each.place,
            before=each.replicas,
            after=now[each.place].replicas,
            bytes_moved=each.size_bytes * len({*now[each.place].replicas} - {*each.replicas}),
        )
        for each in partitions
        if each.replicas != now[each.place].replicas
    ]


def loads(
    partitions: Sequence[PartitionLoad], brokers: Sequence[int]
) -> dict[int, tuple[int, int, int, float]]:
    """By broker: how many replicas it has, their bytes, how many partitions it is to lead, and their rate."""
    found = dict.fromkeys(brokers, (0, 0, 0, 0.0))
    for each in partitions:
        for broker in found.keys() & {*each.replicas}:
            replicas, size, leads, rate = found[broker]
            is_leader = broker == each.replicas[0]
            found[broker] = (
                replicas + 1,
                size + each.size_bytes,
                leads + is_leader,
                rate + each.rate * is_leader,
            )
    return found


def _rack(racks: Mapping[int, str | None], broker: int) -> str:
    """Its rack; a broker without one is a rack of its own."""
    return racks.get(broker) or f"broker {broker}"


def _evened(
    weights: Mapping[TopicPartition, float],
    holders: Mapping[TopicPartition, set[int]],
    brokers: Mapping[int, object],
    may_move: Callable[[TopicPartition, int, int], bool],
    *,
    tolerance: float,
    moves_max: int | None = None,
) -> Iterator[tuple[TopicPartition, int, int]]:
    """Moves (partition, from, to), each applied to ``holders``, until no broker has too much."""
    held = {broker: _Held() for broker in brokers}
    for place, of_place in holders.items():
        for broker in of_place & held.keys():
            held[broker].add(place, weights[place])
    load = {broker: each.load for broker, each in held.items()}
    limit = sum(load.values()) / max(len(load), 1) * (1 + tolerance)
    count = 0
    while moves_max is None or count < moves_max:
        found = _best(held, load, may_move, limit)
        if found is None:
            return
        place, source, target = found
        holders[place].symmetric_difference_update({source, target})
        held[source].remove(place, weights[place])
        held[target].add(place, weights[place])
        load[source] -= weights[place]
        load[target] += weights[place]
        count += 1
        yield found


def _best(
    held: Mapping[int, _Held],
    load: Mapping[int, float],
    may_move: Callable[[TopicPartition, int, int], bool],
    limit: float,
) -> tuple[TopicPartition, int, int] | None:
    """The move from the fullest broker to the emptiest that brings them closest, or one between others."""
    targets = sorted(load, key=lambda b: load[b])
    for source in sorted((each for each in load if load[each] > limit), key=lambda b: -load[b]):
        for target in targets:
            gap = load[source] - load[target]
            if gap <= 0:
                break
            place = held[source].first(gap, may_move, source, target)
            if place is not None:
                return place, source, target
    return None


class _Held:
    """A broker's partitions by their weights: a move looks at those that it may take, not at all of them."""

    def __init__(self) -> None:
        self.load = 0.0
        self._counts: Counter[str] = Counter()
        self._weights: list[float] = []
        self._places: dict[float, dict[str, list[TopicPartition]]] = {}
        # By weight, a heap of topics by how many partitions of them the broker has; counts may be of before.
        self._topics: dict[float, list[tuple[int, str]]] = {}

    def add(self, place: TopicPartition, weight: float) -> None:
        if weight not in self._places:
            insort(self._weights, weight)
            self._places[weight], self._topics[weight] = {}, []
        insort(self._places[weight].setdefault(place.topic, []), place)
        self._counts[place.topic] += 1
        heappush(self._topics[weight], (-self._counts[place.topic], place.topic))
        self.load += weight

    def remove(self, place: TopicPartition, weight: float) -> None:
        of_weight = self._places[weight]
        of_topic = of_weight[place.topic]
        del of_topic[bisect_left(of_topic, place)]
        self._counts[place.topic] -= 1
        if not of_topic:
            del of_weight[place.topic]
        if not of_weight:
            del self._places[weight], self._topics[weight]
            del self._weights[bisect_left(self._weights, weight)]

    def first(
        self,
        gap: float,
        may_move: Callable[[TopicPartition, int, int], bool],
        source: int,
        target: int,
    ) -> TopicPartition | None:
        """One that may go and weighs less than the gap, as near to half of it as possible.

        Of equal ones one of the topic of which the broker has most: its load comes at one time.
        """
        weights, above = self._weights, bisect_left(self._weights, gap / 2)
        below = above - 1
        while below >= 0 or (above < len(weights) and weights[above] < gap):
            has_above = above < len(weights) and weights[above] < gap
            if has_above and (below < 0 or weights[above] - gap / 2 < gap / 2 - weights[below]):
                weight, above = weights[above], above + 1
            else:
                weight, below = weights[below], below - 1
            place = self._first_of(weight, lambda each: may_move(each, source, target))
            if place is not None:
                return place
        return None

    def _first_of(
        self, weight: float, may: Callable[[TopicPartition], bool]
    ) -> TopicPartition | None:
        places, topics = self._places[weight], self._topics[weight]
        tried: dict[str, int] = {}
        found = None
        while topics and found is None:
            count, topic = heappop(topics)
            if topic not in places or topic in tried:
                continue  # Of before, or twice.
            if count != -self._counts[topic]:
                heappush(topics, (-self._counts[topic], topic))
                continue
            tried[topic] = count
            found = next((each for each in places[topic] if may(each)), None)
        for topic, count in tried.items():
            heappush(topics, (count, topic))
        return found
