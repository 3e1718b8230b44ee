"""Pure: which leader epoch owns which offsets, and therefore what a reader may see.

Rules of this file: a chain is what Kafka's leader-epoch checkpoint holds: (epoch, start offset), both rising. An
offset belongs to the last epoch that starts at or before it; a row is visible when it was written in
that epoch. What lies before the first entry is below the log start. KIP-101, KIP-405.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

NO_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRange:
    """The offsets [start_offset, end_offset] of one leader epoch; end None: to the end of the log."""

    epoch: int
    start_offset: int
    end_offset: int | None


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
        """A chain out of entries as they come: of an epoch without offsets nothing is kept."""
        lineage = cls()
        for epoch, start in entries:
            lineage = lineage.assign(epoch, start)
        return lineage

    @property
    def latest_epoch(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    @property
    def start_offset(self) -> int | None:
        """The first offset whose epoch is known."""
        return self.entries[0][1] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> Lineage:
        """A leader of `epoch` writes from `start_offset` on. Entries that it contradicts go."""
        if self.entries and self.entries[-1][0] == epoch:
            return self
        kept = [each for each in self.entries if each[0] < epoch and each[1] < start_offset]
        return Lineage((*kept, (epoch, start_offset)))

    def epoch_of(self, offset: int) -> int | None:
        """The leader epoch that owns an offset; None before the chain begins."""
        at = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[at - 1][0] if at else None

    def is_visible(self, epoch: int, offset: int) -> bool:
        """Whether a row written in `epoch` at `offset` is part of this history."""
        return self.epoch_of(offset) == epoch

    def ranges(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[EpochRange]:
        """The epochs' ranges, cut to [start_offset, end_offset]."""
        for at, (epoch, start) in enumerate(self.entries):
            last = self.entries[at + 1][1] - 1 if at + 1 < len(self.entries) else None
            low = max(start, start_offset)
            high = last if end_offset is None or (last is not None and last < end_offset) else None
            high = end_offset if high is None else high
            if high is None or low <= high:
                yield EpochRange(epoch=epoch, start_offset=low, end_offset=high)

    def slice(self, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """The chain of a segment: the epochs of [start_offset, end_offset], the first from its start."""
        return tuple(
            (each.epoch, each.start_offset) for each in self.ranges(start_offset, end_offset)
        )

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetsForLeaderEpoch answers; (-1, -1) where nothing is known.

        The greatest epoch at or below the one asked for, and the offset at which the next one begins.
        """
        if not self.entries:
            return (NO_OFFSET, NO_OFFSET)
        if epoch == self.entries[-1][0]:
            return (epoch, log_end_offset)
        at = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if at == len(self.entries):
            return (NO_OFFSET, NO_OFFSET)
        if at == 0:
            return (epoch, self.entries[0][1])
        return (self.entries[at - 1][0], self.entries[at][1])

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

    def holds(self, epochs: Sequence[tuple[int, int]], start_offset: int, end_offset: int) -> bool:
        """Whether a segment's chain is this history's for its offsets (those that are still in it)."""
        if not epochs or not self.entries:
            return False
        low = max(start_offset, self.entries[0][1])
        if low > end_offset:
            return False
        segment = Lineage.of(epochs)
        return segment.slice(low, end_offset) == self.slice(low, end_offset)

    def truncate_to(self, end_offset: int) -> Lineage:
        """The chain of a log that was cut so that `end_offset` is its next offset."""
        return Lineage(tuple(each for each in self.entries if each[1] < end_offset))

    def start_from(self, start_offset: int) -> Lineage:
        """The chain of a log that begins at `start_offset` from now on."""
        before = [each for each in self.entries if each[1] <= start_offset]
        after = tuple(each for each in self.entries if each[1] > start_offset)
        if not before:
            return Lineage(after)
        return Lineage(((before[-1][0], start_offset), *after))
