"""Pure: which leader epoch wrote which offsets of a log (KIP-101, KIP-320).

Entries ascend strictly in epoch and in start offset; an epoch owns the offsets from its start to the next entry's. A
new entry that contradicts older ones wins: they were written by leaders whose tail was replaced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

UNDEFINED = (-1, -1)


class LeaderEpochs:
    """The epochs of one log, as in its leader-epoch-checkpoint."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest_epoch = -1
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` writes from `start_offset` on; returns whether that is new."""
        assert epoch >= 0
        assert start_offset >= 0
        if self._epochs and epoch <= self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest_epoch = epoch
        return True

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that owns an offset, -1 if unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The greatest epoch not above `epoch`, and where it ends (OffsetForLeaderEpoch)."""
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            # Older than all that is known: whatever it wrote ended where the first known began.
            return epoch, self._starts[0]
        return self._epochs[index - 1], self._starts[index]

    def between(self, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """The epochs that own offsets of [start, end), the first one clipped to the start."""
        first = max(bisect_right(self._starts, start_offset) - 1, 0)
        return tuple(
            (epoch, max(start, start_offset))
            for epoch, start in self.entries[first:]
            if start < end_offset
        )

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget the epochs that begin at or after the new end of the log."""
        before = len(self._epochs)
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        self.latest_epoch = self._epochs[-1] if self._epochs else -1
        return len(self._epochs) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget what lies below the new start of the log; the epoch that owns it stays."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:index], self._starts[:index]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        """Forget all epochs."""
        self._epochs.clear()
        self._starts.clear()
        self.latest_epoch = -1
