"""Pure: which leader epoch owns which offsets of a log, and from where on two logs differ.

A chain is the content of Kafka's leader-epoch checkpoint: (epoch, start offset), both rising. An offset belongs to the
last epoch that starts at or before it. What lies before the first entry is below the log start. KIP-101, KIP-405.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lineage:
    """A chain of leader epochs. Values: each change gives a new chain."""

    entries: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for (epoch, start), (next_epoch, next_start) in zip(
            self.entries, self.entries[1:], strict=False
        ):
            assert epoch < next_epoch and start < next_start, "epochs and their offsets rise"

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> Lineage:
        """A chain out of entries as they come; an epoch without offsets is dropped."""
        lineage = cls()
        for epoch, start in entries:
            lineage = lineage.assign(epoch, start)
        return lineage

    def assign(self, epoch: int, start_offset: int) -> Lineage:
        """A leader of `epoch` writes from `start_offset` on. Entries that it contradicts are dropped."""
        if self.entries and self.entries[-1][0] == epoch:
            return self
        kept = [each for each in self.entries if each[0] < epoch and each[1] < start_offset]
        return Lineage((*kept, (epoch, start_offset)))

    def epoch_of(self, offset: int) -> int | None:
        """The leader epoch that owns an offset; None before the chain begins."""
        at = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[at - 1][0] if at else None

    def divergence(self, other: Lineage, end_offset: int) -> int | None:
        """The first offset up to `end_offset` that two chains give to different epochs.

        Offsets that either of them does not reach back to are no evidence.
        """
        if not self.entries or not other.entries:
            return None
        low = max(self.entries[0][1], other.entries[0][1])
        bounds = {low, *(start for _, start in (*self.entries, *other.entries) if start > low)}
        for offset in sorted(bounds):
            if offset <= end_offset and self.epoch_of(offset) != other.epoch_of(offset):
                return offset
        return None
