"""Pure: which replicas and preferred leaders `kafka-ds cluster balance` moves, from sizes and produce rates.

Each move takes a replica, or the preferred leadership of a partition, from a broker with more than the mean to one with
less, so that the two are closer afterwards. The plan ends where no broker is above the mean by more than the tolerance,
or no such move is left. A move never puts a partition's replicas on fewer racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    held: dict[int, set[TopicPartition]] = {broker: set() for broker in brokers}
    for place, of_place in holders.items():
        for broker in of_place & held.keys():
            held[broker].add(place)
    load = {broker: sum(weights[place] for place in places) for broker, places in held.items()}
    limit = sum(load.values()) / max(len(load), 1) * (1 + tolerance)
    count = 0
    while moves_max is None or count < moves_max:
        found = _best(weights, held, load, may_move, limit)
        if found is None:
            return
        place, source, target = found
        holders[place].symmetric_difference_update({source, target})
        held[source].remove(place)
        held[target].add(place)
        load[source] -= weights[place]
        load[target] += weights[place]
        count += 1
        yield found


def _best(
    weights: Mapping[TopicPartition, float],
    held: Mapping[int, set[TopicPartition]],
    load: Mapping[int, float],
    may_move: Callable[[TopicPartition, int, int], bool],
    limit: float,
) -> tuple[TopicPartition, int, int] | None:
    """The move from the fullest broker to the emptiest that brings them closest, or one between others."""
    for source in sorted((each for each in load if load[each] > limit), key=lambda b: -load[b]):
        for target in sorted(load, key=lambda b: load[b]):
            gap = load[source] - load[target]
            fitting = [
                place
                for place in held[source]
                if weights[place] < gap and may_move(place, source, target)
            ]
            if fitting:
                more = Counter(each.topic for each in held[source])
                more.subtract(each.topic for each in held[target])
                # Of equal ones that of the topic of which the fullest has most more: its load comes at one time.
                return (
                    min(
                        fitting,
                        key=lambda each: (abs(weights[each] - gap / 2), -more[each.topic], each),
                    ),
                    source,
                    target,
                )
    return None
