"""Pure: how a new leader takes over the records of a write-ahead log: where it fences it, and what counts in it.

Places are read in order, from the highest `acked_to` of the objects that are there: all below is decided, and what is
missing there was erased. The first empty place above gets the fence; if another object takes it first, that one is
read, and the next place is tried. The log's writer acknowledges nothing behind that place for these partitions, for it
has to pass it. An entry counts unless a fence of a later epoch is at its place or below, or it is of an epoch before
that of the last leader that recovered: that one has put all that counted again. Entries that count do not contradict
one another, so those of all logs are joined by their offsets; what lies behind a gap was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.diskless.wal_object import WalEntry, WalHeader
from broker.metadata.events import WalId
from kafka_ds.protocol.topic_partition import PartitionId


class TakenPartition(NamedTuple):
    """What is taken over."""

    leader_epoch: int
    """The new leader's."""
    wals_since: int
    """The epoch of the last leader that had put all records again: earlier entries do not count."""


class FoundEntry(NamedTuple):
    """An entry that counts, and its object."""

    wal: WalId
    place: int
    entry: WalEntry


class WalTakeOver:
    """Several partitions' records in one write-ahead log, taken over at once."""

    def __init__(self, wal: WalId, partitions: Mapping[PartitionId, TakenPartition]) -> None:
        self.wal = wal
        self.partitions = partitions
        self.headers: dict[int, WalHeader] = {}

    def read(self, place: int, header: WalHeader) -> None:
        """There is an object at this place. All that a listing has shown must be read before `next_fence`."""
        self.headers[place] = header

    def next_fence(self) -> tuple[int, tuple[tuple[PartitionId, int], ...]] | None:
        """The place for a fence and the partitions to fence there; None when the log is fenced.

        If something is at that place already, `read` must say what, as it must of a fence that was put.
        """
        missing = {key: taken.leader_epoch for key, taken in self.partitions.items()}
        place = max((header.acked_to for header in self.headers.values()), default=0)
        # A fence of an earlier attempt is as good, if all places below it are decided.
        for at, header in self.headers.items():
            if at < place:
                for entry in header.entries:
                    self._meet(missing, entry)
        while missing and place in self.headers:
            for entry in self.headers[place].entries:
                self._meet(missing, entry)
            place += 1
        return (place, tuple(missing.items())) if missing else None

    @staticmethod
    def _meet(missing: dict[PartitionId, int], entry: WalEntry) -> None:
        if entry.is_fence and entry.key in missing and entry.leader_epoch >= missing[entry.key]:
            del missing[entry.key]

    def counting(self) -> dict[PartitionId, list[FoundEntry]]:
        """The entries that count, by partition, once the log is fenced."""
        found: dict[PartitionId, list[FoundEntry]] = {key: [] for key in self.partitions}
        least = {key: taken.wals_since for key, taken in self.partitions.items()}
        for place in sorted(self.headers):
            entries = [each for each in self.headers[place].entries if each.key in found]
            for entry in entries:
                if entry.is_fence:
                    least[entry.key] = max(entry.leader_epoch, least[entry.key])
            for entry in entries:
                if not entry.is_fence and entry.leader_epoch >= least[entry.key]:
                    found[entry.key].append(FoundEntry(self.wal, place, entry))
        return found


def contiguous(entries: Iterable[FoundEntry], start_offset: int) -> list[FoundEntry]:
    """Those entries that together have all offsets from this one up to the first gap, in order.

    They may overlap: of each, what the ones before it have is to be left out.
    """
    ordered = sorted(entries, key=lambda each: (each.entry.first_offset, -each.entry.last_offset))
    chosen: list[FoundEntry] = []
    next_offset = start_offset
    best: FoundEntry | None = None
    for each in ordered:
        if each.entry.first_offset > next_offset and best is not None:
            chosen.append(best)
            next_offset, best = best.entry.last_offset + 1, None
        if each.entry.first_offset > next_offset:
            break
        last = next_offset - 1 if best is None else best.entry.last_offset
        if each.entry.last_offset > last:
            best = each
    if best is not None:
        chosen.append(best)
    return chosen


def end_offset(entries: Iterable[FoundEntry]) -> int:
    """The offset behind the last of these entries; -1 for none."""
    return max((each.entry.last_offset + 1 for each in entries), default=-1)
