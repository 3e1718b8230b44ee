"""Pure: how a new leader takes over the records of a write-ahead log: where it fences it, and what counts in it.

The first empty place at or above the highest `acked_to` gets a fence; below, what is missing was erased. Then the log
is listed again: if an object says that the fence's place had been decided, the writer has passed it, and another one is
put further on. Behind the last one the writer acknowledges nothing of these partitions, for it has to pass all places.
Entries count from the epoch of the last leader that recovered on: that one has put again all that counted. They never
contradict one another, so those of all logs are joined by offsets; what is behind a gap was never acknowledged, unless
the table has lost what a checkpoint says that it has. In a promoted copy they may contradict (`contiguous`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
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


class FoundRecords(NamedTuple):
    """What a write-ahead log says of partitions that are taken over."""

    entries: dict[PartitionId, list[FoundEntry]]
    table_ends: dict[PartitionId, int]
    """The last offsets that the table has had, of those partitions of which something was erased."""


NO_CHECKPOINT = WalHeader(b"", 0, ())


class WalTakeOver:
    """Several partitions' records in one write-ahead log, taken over at once."""

    def __init__(self, wal: WalId, partitions: Mapping[PartitionId, TakenPartition]) -> None:
        self.wal = wal
        self.partitions = partitions
        self.headers: dict[int, WalHeader] = {}
        self.checkpoint, self.checkpoint_number = NO_CHECKPOINT, -1
        self._lost = 0
        self.known_to = 0
        """All places below were read, or erased: listings have to begin here."""

    def read(self, place: int, header: WalHeader) -> None:
        """There is an object at this place. All that a listing has shown must be read before `next_fence`."""
        self.headers[place] = header

    def read_checkpoint(self, number: int, checkpoint: WalHeader) -> None:
        """This is the newest one that a listing has shown; it must be read as objects must."""
        self.checkpoint, self.checkpoint_number = checkpoint, number

    def put(self, place: int, header: WalHeader, *, is_ours: bool) -> None:
        """A fence was put at this place, or something else came first; the log is to be listed again now."""
        self.headers[place] = header
        self._lost = 0 if is_ours else self._lost + 1

    def next_fence(self) -> tuple[int, tuple[tuple[PartitionId, int], ...]] | None:
        """The place for a fence and the partitions to fence there; None when the log is fenced.

        A writer that is busy has puts under way: after each place that it was first to take it is met further ahead,
        and the places before are looked at again.
        """
        missing = {key: taken.leader_epoch for key, taken in self.partitions.items()}
        place = max(each.acked_to for each in (self.checkpoint, *self.headers.values()))
        while missing and place in self.headers:
            for entry in self.headers[place].entries:
                self._meet(missing, entry)
            place += 1
        self.known_to = place
        return (place + self._lost, tuple(missing.items())) if missing else None

    @staticmethod
    def _meet(missing: dict[PartitionId, int], entry: WalEntry) -> None:
        if entry.is_fence and entry.key in missing and entry.leader_epoch >= missing[entry.key]:
            del missing[entry.key]

    def found(self) -> FoundRecords:
        """What counts, once the log is fenced."""
        ends = {each.key: each.last_offset for each in self.checkpoint.entries}
        return FoundRecords(
            self.counting(), {key: ends[key] for key in self.partitions if key in ends}
        )

    def counting(self) -> dict[PartitionId, list[FoundEntry]]:
        """The entries that count, by partition, once the log is fenced."""
        found: dict[PartitionId, list[FoundEntry]] = {key: [] for key in self.partitions}
        for place in sorted(self.headers):
            for entry in self.headers[place].entries:
                taken = self.partitions.get(entry.key)
                if taken and not entry.is_fence and entry.leader_epoch >= taken.wals_since:
                    found[entry.key].append(FoundEntry(self.wal, place, entry))
        return found


def contiguous(entries: Iterable[FoundEntry], start_offset: int) -> list[FoundEntry]:
    """Those entries that together have all offsets from this one up to the first gap, in order.

    They may overlap: of each, what the ones before it have is to be left out. Of those that have the next offset the
    one of the latest leader epoch is taken, then the longest. Nothing is cut off at its end: a leader that died while
    it put again has put the beginning only, and the rest is in earlier entries.

    In a copy of a lake (`kafka-ds promote`) the metadata may be older than the logs: then entries that a later leader
    has left out count, too, and contradict that leader's. Whoever led later had put again what was acknowledged, before
    it put anything of its own. Fences do not tell: one may stand where an object was erased, before acknowledged ones.
    """
    ahead = sorted(entries, key=lambda each: each.entry.first_offset, reverse=True)
    begun: list[tuple[int, int, FoundEntry]] = []
    chosen: list[FoundEntry] = []
    next_offset = start_offset
    while True:
        while ahead and ahead[-1].entry.first_offset <= next_offset:
            each = ahead.pop()
            heappush(begun, (-each.entry.leader_epoch, -each.entry.last_offset, each))
        while begun and begun[0][2].entry.last_offset < next_offset:
            heappop(begun)
        if not begun:
            return chosen
        chosen.append(begun[0][2])
        next_offset = chosen[-1].entry.last_offset + 1


def lost_offsets(
    plan: Sequence[FoundEntry], start_offset: int, table_end: int
) -> tuple[int, int] | None:
    """The first and last offset that a leader would use twice.

    The table has had all up to `table_end`; now it ends before `start_offset`, and these entries are all that follow.
    """
    next_offset = plan[-1].entry.last_offset + 1 if plan else start_offset
    return (next_offset, table_end) if next_offset <= table_end else None
