"""The plan of `kafka-ds cluster balance`."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from broker.cli.balance_plan import PartitionLoad, PlannedReassignment, loads, reassignments
from kafka_ds.protocol.topic_partition import TopicPartition

MIB = 1 << 20


def partition(n: int, *replicas: int, mib: int = 10, rate: float = 0.0) -> PartitionLoad:
    return PartitionLoad(
        place=TopicPartition("orders", n), replicas=replicas, size_bytes=mib * MIB, rate=rate
    )


def applied(
    partitions: list[PartitionLoad], plan: list[PlannedReassignment]
) -> list[PartitionLoad]:
    after = {each.place: each.after for each in plan}
    return [
        PartitionLoad(
            place=each.place,
            replicas=after.get(each.place, each.replicas),
            size_bytes=each.size_bytes,
            rate=each.rate,
        )
        for each in partitions
    ]


def test_a_new_broker_gets_its_part_of_the_bytes() -> None:
    partitions = [partition(n, 1 + n % 2) for n in range(12)]
    plan = reassignments(partitions, {1: None, 2: None, 3: None})
    now = loads(applied(partitions, plan), [1, 2, 3])
    assert [now[broker][1] // MIB for broker in (1, 2, 3)] == [40, 40, 40]
    assert all(each.bytes_moved == 10 * MIB for each in plan)
    assert len(plan) == 4  # No more than what the new one gets.


def test_leaders_are_spread_by_what_is_produced_to_them_without_a_copy() -> None:
    rates = [40_000.0, 30_000.0, 20_000.0, 10_000.0]
    partitions = [partition(n, 1, 2, rate=rate) for n, rate in enumerate(rates)]
    plan = reassignments(partitions, {1: None, 2: None})
    now = loads(applied(partitions, plan), [1, 2])
    assert now[1][3] == now[2][3] == 50_000
    assert {each.bytes_moved for each in plan} == {0}
    assert all({*each.before} == {*each.after} for each in plan)


def test_a_balanced_cluster_stays_as_it_is() -> None:
    partitions = [partition(n, *(1 + (n + k) % 3 for k in range(2))) for n in range(9)]
    assert reassignments(partitions, {1: None, 2: None, 3: None}) == []


def test_replicas_stay_on_as_many_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    partitions = [partition(n, 1, 3) for n in range(8)]
    plan = reassignments(partitions, racks)
    for each in applied(partitions, plan):
        assert {racks[broker] for broker in each.replicas} == {"a", "b"}
    now = loads(applied(partitions, plan), list(racks))
    assert {now[broker][0] for broker in racks} == {4}


def test_replicas_on_a_dead_broker_stay_and_none_is_moved_there() -> None:
    partitions = [partition(n, 9, 1) for n in range(4)]
    plan = reassignments(partitions, {1: None, 2: None})
    for each in applied(partitions, plan):
        assert 9 in each.replicas
        assert len({*each.replicas}) == 2


def test_no_more_replicas_are_moved_than_allowed() -> None:
    partitions = [partition(n, 1) for n in range(10)]
    racks = {1: None, 2: None}
    assert len(reassignments(partitions, racks, moves_max=2)) == 2
    assert reassignments(partitions, racks, moves_max=0) == []


def test_each_topic_is_spread_by_itself() -> None:
    partitions = [
        PartitionLoad(place=TopicPartition(topic, n), replicas=(1,), size_bytes=10 * MIB)
        for topic in ("orders", "users")
        for n in range(4)
    ]
    plan = reassignments(partitions, {1: None, 2: None})
    assert Counter(each.place.topic for each in plan) == {"orders": 2, "users": 2}


def test_empty_partitions_are_spread_by_their_number() -> None:
    partitions = [partition(n, 1, mib=0) for n in range(10)]
    now = loads(applied(partitions, reassignments(partitions, {1: None, 2: None})), [1, 2])
    assert now[1][0] == now[2][0] == 5


@pytest.mark.parametrize("seed", range(50))
def test_any_plan_keeps_replicas_apart_and_makes_nothing_worse(seed: int) -> None:
    chance = random.Random(seed)
    brokers = list(range(1, chance.randint(2, 7)))
    racks = {each: chance.choice(["a", "b", "c", None]) for each in brokers}
    partitions = [
        partition(
            n,
            *chance.sample(brokers, chance.randint(1, min(3, len(brokers)))),
            mib=chance.choice([0, 1, 10, 500]),
            rate=chance.choice([0.0, 1e4, 1e6]),
        )
        for n in range(chance.randint(0, 40))
    ]
    tolerance = chance.choice([0.0, 0.1])
    after = applied(partitions, reassignments(partitions, racks, tolerance=tolerance))
    for old, new in zip(partitions, after, strict=True):
        assert len({*new.replicas}) == len(new.replicas) == len(old.replicas)

        def count(each: PartitionLoad) -> int:
            return len({racks[broker] or broker for broker in each.replicas})

        assert count(new) >= count(old)

    def largest(found: list[PartitionLoad]) -> float:
        held = {
            b: sum(each.replica_weight for each in found if b in each.replicas) for b in brokers
        }
        return max(held.values(), default=0.0)

    assert largest(after) <= largest(partitions)


class LookedAt(dict[int, str | None]):
    """Racks that count how often they are asked for: once or more for each partition that a move may take."""

    count = 0

    def get(self, key: int, default: str | None = None) -> str | None:  # type: ignore[override]
        self.count += 1
        return super().get(key, default)


def test_a_move_does_not_look_at_all_partitions() -> None:
    """A new broker beside three full ones: twice as many partitions take twice as many looks."""
    for count in (1_000, 2_000):
        racks = LookedAt(dict.fromkeys(range(1, 5)))
        partitions = [
            PartitionLoad(
                place=TopicPartition(f"t{n % 40}", n), replicas=(1 + n % 3,), size_bytes=n * MIB
            )
            for n in range(count)
        ]
        plan = reassignments(partitions, racks)
        assert plan
        assert racks.count / len(plan) < 50
