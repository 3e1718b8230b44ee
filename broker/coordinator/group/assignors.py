"""Pure: which member gets which partition: the assignors `uniform` and `range` (KIP-848), `simple` (KIP-932).

- The same group gets the same assignment on every broker: members are taken in order.
- `uniform` balances the number of partitions per member, and otherwise leaves each partition where it was. With equal
  subscriptions numbers differ by at most one, with others they are as even as single moves can make them.
- `range` gives each member a run of every topic's partitions, so that a member reads the same ones of several topics.
- `simple` gives a partition to several members of a share group where there are fewer partitions than members.
- Racks are ignored, as in Kafka since 4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.coordinator.group.modern_group import NOTHING, Partitions
from kafka_ds.protocol.topic_partition import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it."""

    instance_id: str | None = None
    topic_ids: frozenset[bytes]
    had: Partitions


Subscribers = Mapping[str, Subscriber]
# Topic id -> number of partitions.
Sizes = Mapping[bytes, int]
Assignor = Callable[[Subscribers, Sizes], dict[str, Partitions]]


def assign_uniform(members: Subscribers, sizes: Sizes) -> dict[str, Partitions]:
    """The most even assignment, with few moves."""
    order = sorted(members)
    topics = {topic for member in members.values() for topic in member.topic_ids if topic in sizes}
    if len({member.topic_ids for member in members.values()}) <= 1:
        has = _level(members, order, topics, sizes)
    else:
        has = _spread(members, order, topics, sizes)
    return {member_id: frozenset(partitions) for member_id, partitions in has.items()}


def _kept(
    members: Subscribers, order: list[str], sizes: Sizes
) -> tuple[dict[str, set[PartitionId]], set[PartitionId]]:
    """What each member had and may keep; and all of these partitions together."""
    held: set[PartitionId] = set()
    has: dict[str, set[PartitionId]] = {}
    for member_id in order:
        member = members[member_id]
        has[member_id] = {
            p for p in member.had - held if p[0] in member.topic_ids and p[1] < sizes.get(p[0], 0)
        }
        held |= has[member_id]
    return has, held


def _level(
    members: Subscribers, order: list[str], topics: set[bytes], sizes: Sizes
) -> dict[str, set[PartitionId]]:
    """All subscribe to the same topics: each gets an equal number, and some one more."""
    has, held = _kept(members, order, sizes)
    if not order:
        return has
    least, more = divmod(sum(sizes[topic] for topic in topics), len(order))
    # Those that had most are the ones with one more: that moves least.
    quota = {
        member_id: least + (place < more)
        for place, member_id in enumerate(sorted(order, key=lambda m: (-len(has[m]), m)))
    }
    for member_id in order:
        surplus = sorted(has[member_id])[quota[member_id] :]
        has[member_id].difference_update(surplus)
        held.difference_update(surplus)
    free = iter(
        [
            (topic, partition)
            for topic in sorted(topics)
            for partition in range(sizes[topic])
            if (topic, partition) not in held
        ]
    )
    for member_id in order:
        for _ in range(quota[member_id] - len(has[member_id])):
            has[member_id].add(next(free))
    return has


def _spread(
    members: Subscribers, order: list[str], topics: set[bytes], sizes: Sizes
) -> dict[str, set[PartitionId]]:
    """Subscriptions differ: give free partitions to those with the fewest, then move from those with the most."""
    has, held = _kept(members, order, sizes)
    levels = _Levels(members, order, topics, has)
    # Topics with few subscribers come first: the others have more places to go to.
    for topic in sorted(topics, key=lambda t: (levels.subscribers[t].bit_count(), t)):
        for partition in range(sizes[topic]):
            if (topic, partition) not in held:
                levels.add(levels.least(topic), (topic, partition))
    # Each move reduces the sum of the squares, so this ends.
    moved = True
    while moved:
        moved = False
        for giver in sorted(range(len(order)), key=lambda place: (-levels.counts[place], place)):
            if not levels.may_give(giver):
                continue
            moved |= _give_away(levels, giver)
    return has


def _give_away(levels: _Levels, giver: int) -> bool:
    """Move one member's partitions to members with at least two fewer, one of each topic in turn."""
    of_topic: dict[bytes, list[PartitionId]] = {}
    for partition in sorted(levels.has[giver]):
        of_topic.setdefault(partition[0], []).append(partition)
    gave, again = False, True
    while again:
        again = False
        for topic, partitions in of_topic.items():
            taker = levels.least(topic)
            if partitions and levels.counts[taker] + 1 < levels.counts[giver]:
                partition = partitions.pop()
                levels.remove(giver, partition)
                levels.add(taker, partition)
                gave = again = True
    return gave


class _Levels:
    """How many partitions members have, to find the subscriber with the fewest without asking each of them.

    A member is a number, its place in the order, and a set of members is an integer with the bits at their places: two
    sets have a member in common if their `&` is not zero, and its lowest bit is the first such member.
    """

    def __init__(
        self,
        members: Subscribers,
        order: list[str],
        topics: set[bytes],
        has: dict[str, set[PartitionId]],
    ) -> None:
        self.has = [has[member_id] for member_id in order]
        self.counts = [len(each) for each in self.has]
        self.subscribers = dict.fromkeys(topics, 0)
        for place, member_id in enumerate(order):
            for topic in members[member_id].topic_ids & topics:
                self.subscribers[topic] |= 1 << place
        # Number of partitions -> the members with that many; and the smallest number of all members.
        self._at: dict[int, int] = {}
        for place, count in enumerate(self.counts):
            self._at[count] = self._at.get(count, 0) | 1 << place
        self._lowest = min(self._at, default=0)

    def least(self, topic: bytes) -> int:
        """The first of those subscribers that have the fewest."""
        wanting, count = self.subscribers[topic], self._lowest
        while True:
            found = self._at.get(count, 0) & wanting
            if found:
                return (found & -found).bit_length() - 1
            count += 1

    def may_give(self, giver: int) -> bool:
        """Whether a member with two fewer partitions subscribes to a topic of one of this member's partitions."""
        fewer = 0
        for count in range(self._lowest, self.counts[giver] - 1):
            fewer |= self._at.get(count, 0)
        return bool(fewer) and any(
            self.subscribers[topic] & fewer for topic in {topic for topic, _ in self.has[giver]}
        )

    def add(self, place: int, partition: PartitionId) -> None:
        """One more for this member."""
        self.has[place].add(partition)
        self._move(place, 1)

    def remove(self, place: int, partition: PartitionId) -> None:
        """One fewer for this member."""
        self.has[place].remove(partition)
        self._move(place, -1)

    def _move(self, place: int, by: int) -> None:
        bit, count = 1 << place, self.counts[place]
        self._at[count] ^= bit
        self.counts[place] = count + by
        self._at[count + by] = self._at.get(count + by, 0) | bit
        self._lowest = min(self._lowest, count + by)
        while not self._at.get(self._lowest):
            self._lowest += 1


def assign_range(members: Subscribers, sizes: Sizes) -> dict[str, Partitions]:
    """A run of each topic's partitions for each of its subscribers."""
    has: dict[str, set[PartitionId]] = {member_id: set() for member_id in members}
    # Static members come first, so that a new id of one moves nothing.
    order = sorted(members, key=lambda m: _range_order(m, members[m].instance_id))
    for topic in {topic for member in members.values() for topic in member.topic_ids}:
        wanting = [m for m in order if topic in members[m].topic_ids]
        least, more = divmod(sizes.get(topic, 0), len(wanting))
        first = 0
        for place, member_id in enumerate(wanting):
            count = least + (place < more)
            has[member_id].update((topic, partition) for partition in range(first, first + count))
            first += count
    return {member_id: frozenset(partitions) for member_id, partitions in has.items()}


def _range_order(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (instance_id is None, member_id if instance_id is None else instance_id)


def assign_simple(members: Subscribers, assignable: Partitions) -> dict[str, Partitions]:
    """These partitions, each for as many members of a share group as make the members' numbers even.

    Members with equal subscriptions share all partitions, others each topic's by itself.
    """
    order = sorted(members)
    if len({member.topic_ids for member in members.values()}) <= 1:
        wanted = frozenset(p for p in assignable if order and p[0] in members[order[0]].topic_ids)
        return _shared(order, wanted, members)
    has: dict[str, Partitions] = dict.fromkeys(order, NOTHING)
    for topic in sorted({topic for topic, _ in assignable}):
        wanting = [m for m in order if topic in members[m].topic_ids]
        of_topic = frozenset(p for p in assignable if p[0] == topic)
        for member_id, more in _shared(wanting, of_topic, members).items():
            has[member_id] |= more
    return has


def _shared(
    order: list[str], partitions: Partitions, members: Subscribers
) -> dict[str, Partitions]:
    if not order or not partitions:
        return dict.fromkeys(order, NOTHING)
    sharing = -(-len(order) // len(partitions))
    total, count = sharing * len(partitions), len(order)
    quota = {
        member_id: -(-total * (place + 1) // count) + (-total * place // count)
        for place, member_id in enumerate(order)
    }
    has: dict[str, set[PartitionId]] = {member_id: set() for member_id in order}
    holders: dict[PartitionId, int] = dict.fromkeys(sorted(partitions), 0)
    for member_id in order:
        for partition in sorted(members[member_id].had & partitions):
            if len(has[member_id]) < quota[member_id] and holders[partition] < sharing:
                has[member_id].add(partition)
                holders[partition] += 1
    for partition, held in holders.items():
        free = [m for m in order if len(has[m]) < quota[m] and partition not in has[m]]
        free.sort(key=lambda m: len(has[m]))
        for member_id in free[: sharing - held]:
            has[member_id].add(partition)
    return {member_id: frozenset(held) for member_id, held in has.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
