"""What groups were promised, and what must be true of it.

Like `checkers`, this is independent of the product's code: it never asks the product whether it did right.
"""

from __future__ import annotations

from collections import defaultdict

Promised = dict[int, tuple[int, int]]


class Ledger:
    """What all members of all groups were promised."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int, int], str] = {}
        # By group and partition: the newest generation that has committed, and its offset.
        self._promised: dict[str, Promised] = defaultdict(dict)
        self._transactions = 0

    def next_transaction(self) -> int:
        """A new number for a transaction that this ledger checks."""
        self._transactions -= 1
        return self._transactions

    def owns(self, group: str, generation: int, member: str, partitions: list[int]) -> None:
        """A member owns these partitions in a generation: no other member may own them in that generation."""
        for index in partitions:
            owner = self._owners.setdefault((group, generation, index), member)
            assert owner == member, (
                f"{group} in generation {generation}: {index} is of {owner} and {member}"
            )

    def promised(self, group: str) -> Promised:
        """For each partition the newest generation that has committed, and its offset."""
        return dict(self._promised[group])

    def began(
        self, group: str, generation: int, index: int, offset: int, promised: Promised
    ) -> None:
        """A member of this generation begins here: not below what was promised before the member asked."""
        before, least = promised.get(index, (-1, -1))
        if before <= generation:
            assert offset >= least, (
                f"{group}-{index}: generation {generation} begins at {offset}, "
                f"and {before} has committed {least}"
            )
        self.committed(group, generation, index, offset)

    def committed(self, group: str, generation: int, index: int, offset: int) -> None:
        """A commit was acknowledged, or seen. The answer to a commit of an earlier generation may come late."""
        before, least = self._promised[group].get(index, (-1, -1))
        if generation == before:
            assert offset >= least, f"{group}-{index}: {offset} was committed after {least}"
        if generation >= before:
            self._promised[group][index] = generation, offset

    def has_reached(self, group: str, ends: dict[int, int]) -> bool:
        """Whether the group has committed up to these ends."""
        mine = self._promised[group]
        return all(mine.get(index, (0, 0))[1] >= end for index, end in ends.items())


def check_transformed(
    source: dict[int, list[tuple[int, bytes]]], target: dict[int, list[tuple[int, bytes]]]
) -> None:
    """Each source record has its record in the target topic once, for readers with read_committed."""
    for index, records in source.items():
        wanted = [f"{index}:{offset}".encode() for offset, _ in records]
        found = [value for _, value in target[index]]
        assert found == wanted, (
            f"{index}: {len(wanted)} records were to be transformed, "
            f"missing {sorted(set(wanted) - set(found))[:5]}, of {len(found)} there are "
            f"{len(found) - len(set(found))} twice"
        )
