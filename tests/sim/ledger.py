"""What groups were promised, and what must be true of it.

Apart from the product's code, as `checkers` is: nothing here asks the product whether it did right.
"""

from __future__ import annotations

from collections import defaultdict

Promised = dict[int, tuple[int, int]]


class Ledger:
    """What all members of all groups were told."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int, int], str] = {}
        # By group and partition: the newest generation that has committed, and how far.
        self._promised: dict[str, Promised] = defaultdict(dict)
        self._transactions = 0

    def next_transaction(self) -> int:
        """A number for whoever has to name a transaction that is checked here."""
        self._transactions -= 1
        return self._transactions

    def owns(self, group: str, generation: int, member: str, partitions: list[int]) -> None:
        """A member was told what it owns in a generation: nobody else owns it in that generation."""
        for index in partitions:
            owner = self._owners.setdefault((group, generation, index), member)
            assert owner == member, (
                f"{group} in generation {generation}: {index} is of {owner} and {member}"
            )

    def promised(self, group: str) -> Promised:
        """Up to where each partition is committed as of now, and in which generation."""
        return dict(self._promised[group])

    def began(
        self, group: str, generation: int, index: int, offset: int, promised: Promised
    ) -> None:
        """A member of this generation was told where to begin; what was promised before it asked is not taken back."""
        before, least = promised.get(index, (-1, -1))
        if before <= generation:
            assert offset >= least, (
                f"{group}-{index}: generation {generation} begins at {offset}, "
                f"and {before} has committed {least}"
            )
        self.committed(group, generation, index, offset)

    def committed(self, group: str, generation: int, index: int, offset: int) -> None:
        """A commit was acknowledged, or seen; the answer to one of an earlier generation may come late."""
        before, least = self._promised[group].get(index, (-1, -1))
        if generation == before:
            assert offset >= least, f"{group}-{index}: {offset} was committed after {least}"
        if generation >= before:
            self._promised[group][index] = generation, offset

    def has_reached(self, group: str, ends: dict[int, int]) -> bool:
        """Whether the group has committed all that there is."""
        mine = self._promised[group]
        return all(mine.get(index, (0, 0))[1] >= end for index, end in ends.items())


def check_transformed(
    source: dict[int, list[tuple[int, bytes]]], target: dict[int, list[tuple[int, bytes]]]
) -> None:
    """Each record that was read is in the other topic once, as those see it who read what is committed."""
    for index, records in source.items():
        wanted = [f"{index}:{offset}".encode() for offset, _ in records]
        found = [value for _, value in target[index]]
        assert found == wanted, (
            f"{index}: {len(wanted)} records were to be transformed, "
            f"missing {sorted(set(wanted) - set(found))[:5]}, of {len(found)} there are "
            f"{len(found) - len(set(found))} twice"
        )
