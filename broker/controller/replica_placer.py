"""Pure: which brokers get the replicas of new partitions: rack-aware, striped (Kafka's StripedReplicaPlacer, KIP-36).

Each replica goes to another rack while there are racks without one. The leader is an unfenced broker; fenced ones, and
those about to stop, get other replicas where a rack has no other. Brokers with all directories cordoned get none
(KIP-1066). Each partition begins one rack further than the last, and one broker further inside it; after a full round
the followers are shifted against the leaders. The caller chooses where the first partition begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from broker.metadata.image import BrokerRegistration
from kafka_ds.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


def place(
    brokers: Iterable[BrokerRegistration], *, partitions: int, factor: int, start: int
) -> list[tuple[int, ...]]:
    """The replicas of this many new partitions, the leader first. Raises INVALID_REPLICATION_FACTOR."""
    uncordoned = (each for each in brokers if each.has_uncordoned_dirs)
    known = sorted(uncordoned, key=lambda each: each.broker_id)
    if not any(each.is_active for each in known):
        message = (
            f"Unable to replicate the partition {factor} time(s): All brokers are currently fenced, or have all their "
            "log directories cordoned."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if factor > len(known):
        message = (
            f"Unable to replicate the partition {factor} time(s): The target replication "
            f"factor of {factor} cannot be reached because only {len(known)} broker(s) "
            "are registered or some brokers have all their log directories cordoned."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    by_rack: dict[str | None, list[BrokerRegistration]] = {}
    for each in known:
        by_rack.setdefault(each.rack, []).append(each)
    racks = [_Rack(by_rack[rack]) for rack in sorted(by_rack, key=lambda rack: rack or "")]
    return [_replicas(racks, factor, start + index) for index in range(partitions)]


class _Rack:
    """The brokers of one rack."""

    __slots__ = ("active", "fenced")

    def __init__(self, brokers: list[BrokerRegistration]) -> None:
        self.active = tuple(each.broker_id for each in brokers if each.is_active)
        self.fenced = tuple(each.broker_id for each in brokers if not each.is_active)

    def select(self, turn: int, count: int) -> list[int]:
        """This many brokers, unfenced ones first, starting at a different one each time."""
        return [*_rotated(self.active, turn), *_rotated(self.fenced, turn)][:count]

    @property
    def size(self) -> int:
        return len(self.active) + len(self.fenced)


def _replicas(racks: list[_Rack], factor: int, position: int) -> tuple[int, ...]:
    """The replicas of the partition at this place of the round."""
    leading = [rack for rack in racks if rack.active]
    first = leading[position % len(leading)]
    turn = position // len(leading)
    place = racks.index(first)
    # The followers' racks begin one further with each full turn through the leaders' brokers.
    shift = turn // len(first.active)
    others = racks[place + 1 :] + racks[:place]
    order = [first, *_rotated(others, shift)]
    shares = _shares(order, factor)
    by_rack = [
        rack.select(turn, share) if rack is first else rack.select(position + shift, share)
        for rack, share in zip(order, shares, strict=True)
    ]
    if len(racks) == 1:
        by_rack = [_shifted(first, turn, shift, factor)]
    replicas: list[int] = []
    for depth in range(max(shares)):
        replicas.extend(brokers[depth] for brokers in by_rack if depth < len(brokers))
    return tuple(replicas)


def _shares(order: list[_Rack], factor: int) -> list[int]:
    """How many replicas each rack gets: one each, then one more each, as far as there are brokers."""
    shares = [0] * len(order)
    missing = factor
    while missing:
        for number, rack in enumerate(order):
            if missing and shares[number] < rack.size:
                shares[number] += 1
                missing -= 1
    return shares


def _shifted(rack: _Rack, turn: int, shift: int, count: int) -> list[int]:
    """In one rack: the leader by its turn, its followers shifted once more each full turn."""
    leader, *rest = _rotated(rack.active, turn)
    return [leader, *_rotated(rest, shift), *_rotated(rack.fenced, turn)][:count]


def _rotated(items: Sequence[T], by: int) -> list[T]:
    by = by % len(items) if items else 0
    return [*items[by:], *items[:by]]
