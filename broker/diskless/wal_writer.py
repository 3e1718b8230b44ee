"""Pure: the order in which a broker's write-ahead log is written: places, acknowledgements, fences, what may be erased.

A bundle is what one object holds; it is acknowledged when all bundles before it are, its object is there, and all
places before that are decided: each has an object of ours or a fence. So a new leader that reads places in order, and
fences the first one that is empty, finds all that was acknowledged. If a fence has a bundle's place, its partitions'
earlier leaders are deposed: none of their parts is acknowledged any more; the rest of the bundle moves to the next
free place. A place is never left undecided, and its bytes never change. Before an object is erased a checkpoint says
that its place was decided and its records are in the table: without it both would look as if they had never been.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.diskless.wal_object import WalHeader, WalPart, encode, encode_checkpoint
from kafka_ds.protocol.topic_partition import PartitionId

ErasureCheck = Callable[[PartitionId, int], bool]
"""Whether a partition's records up to this offset are needed in this write-ahead log no more."""
EVERY_OFFSET = (1 << 63) - 1


class PutObject(NamedTuple):
    """Put these bytes at this place, again until it is known who has it."""

    place: int
    data: bytes


class Checkpoint(NamedTuple):
    """Put these bytes before anything more is erased."""

    acked_to: int
    data: bytes


class Outcome(NamedTuple):
    """What an object's fate has decided."""

    puts: tuple[PutObject, ...] = ()
    acknowledged: tuple[WalPart, ...] = ()
    """These count, in this order."""
    dropped: tuple[WalPart, ...] = ()
    """These do not: their leaders are deposed."""
    fenced: tuple[tuple[PartitionId, int], ...] = ()
    """Partitions with leaders of these epochs elsewhere."""


@dataclass(slots=True)
class _Bundle:
    parts: Sequence[WalPart]
    object_id: bytes
    place: int
    acked_to: int
    is_there: bool = False


class _Object(NamedTuple):
    """An object that is there and acknowledged: where each of its parts ends."""

    keys: list[PartitionId]
    ends: array[int]

    def is_safe(self, is_safe: ErasureCheck) -> bool:
        keys, ends = self.keys, self.ends
        for at, (key, last_offset) in enumerate(zip(keys, ends, strict=True)):
            if not is_safe(key, last_offset):
                # The next call looks at this one first.
                keys[0], keys[at] = keys[at], keys[0]
                ends[0], ends[at] = ends[at], ends[0]
                return False
        return True


class WalWriter:
    """One incarnation's write-ahead log."""

    def __init__(self, new_id: Callable[[], bytes]) -> None:
        """`new_id` gives 16 random bytes: by them a put whose answer was lost is known."""
        self._new_id = new_id
        self._next_place = 0
        self._decided_to = 0
        self._decided: set[int] = set()
        # Not acknowledged yet, in the order in which they were made; and by their places, if these are undecided.
        self._bundles: deque[_Bundle] = deque()
        self._in_flight: dict[int, _Bundle] = {}
        self._fenced: dict[PartitionId, int] = {}
        # There may be thousands of objects, while the table cannot be written, with hundreds of parts each.
        self._objects: dict[int, _Object] = {}
        # In how many parts each partition is; and its one tuple, for all of them.
        self._parts: Counter[PartitionId] = Counter()
        self._keys: dict[PartitionId, PartitionId] = {}
        # What the table must have of partitions whose records were erased here or never were here.
        self._table_ends: dict[PartitionId, int] = {}
        # The newest checkpoint's `acked_to`, and whether another one is due.
        self._checkpointed_to = 0
        self.is_checkpoint_due = False

    # -- writing ------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many objects are being put."""
        return len(self._in_flight)

    @property
    def object_count(self) -> int:
        """How many acknowledged objects are there."""
        return len(self._objects)

    def is_fenced(self, key: PartitionId, leader_epoch: int) -> bool:
        """Whether a partition's leader of this epoch is known to be deposed."""
        return leader_epoch < self.fenced_by(key)

    def fenced_by(self, key: PartitionId) -> int:
        """The epoch of the latest leader elsewhere whose fence was met; -1 for none."""
        return self._fenced.get(key, -1)

    def knows(self, key: PartitionId) -> bool:
        """Whether this log has, or may have, records of the partition."""
        return self._parts[key] > 0

    def put(self, parts: Sequence[WalPart]) -> Outcome:
        """Make an object of these parts; of a partition they must follow those of earlier calls."""
        wanted = [part for part in parts if not self.is_fenced(part.key, part.leader_epoch)]
        dropped = tuple(part for part in parts if self.is_fenced(part.key, part.leader_epoch))
        if not wanted:
            return Outcome(dropped=dropped)
        bundle = _Bundle(wanted, b"", 0, 0)
        self._bundles.append(bundle)
        self._parts.update(part.key for part in wanted)
        return Outcome(puts=(self._place(bundle),), dropped=dropped)

    def _place(self, bundle: _Bundle) -> PutObject:
        bundle.place, self._next_place = self._next_place, self._next_place + 1
        bundle.object_id, bundle.acked_to = self._new_id(), self._decided_to
        self._in_flight[bundle.place] = bundle
        return PutObject(bundle.place, encode(bundle.object_id, bundle.acked_to, bundle.parts))

    # -- what became of it ----------------------------------------------------------------------

    def created(self, place: int) -> Outcome:
        """The object that was put at this place is there."""
        self._in_flight.pop(place).is_there = True
        self._decide(place)
        return self._acknowledge()

    def is_own(self, place: int, found: WalHeader) -> bool:
        """Whether the object at a place where one was put is the one that was put."""
        return self._in_flight[place].object_id == found.object_id

    def exists(self, place: int, found: WalHeader) -> Outcome:
        """The place was taken, by this object: ours, if an answer was lost, or another's."""
        if self.is_own(place, found):
            return self.created(place)
        fenced = tuple((entry.key, entry.leader_epoch) for entry in found.entries if entry.is_fence)
        for key, epoch in fenced:
            self._fenced[key] = max(epoch, self.fenced_by(key))
        bundle = self._in_flight.pop(place)
        self._decide(place)
        left = [part for part in bundle.parts if not self.is_fenced(part.key, part.leader_epoch)]
        dropped = tuple(p for p in bundle.parts if self.is_fenced(p.key, p.leader_epoch))
        bundle.parts = left
        self._forget(part.key for part in dropped)
        puts: tuple[PutObject, ...] = ()
        if left:
            puts = (self._place(bundle),)
        else:
            self._bundles.remove(bundle)
        after = self._acknowledge()
        return after._replace(puts=puts, dropped=dropped + after.dropped, fenced=fenced)

    def _decide(self, place: int) -> None:
        self._decided.add(place)
        while self._decided_to in self._decided:
            self._decided.remove(self._decided_to)
            self._decided_to += 1

    def _acknowledge(self) -> Outcome:
        acknowledged: list[WalPart] = []
        dropped: list[WalPart] = []
        while self._bundles and self._counts(self._bundles[0]):
            bundle = self._bundles.popleft()
            for part in bundle.parts:
                is_fenced = self.is_fenced(part.key, part.leader_epoch)
                (dropped if is_fenced else acknowledged).append(part)
            # Also what was dropped: the new leader may have read it before this clean-up.
            self._objects[bundle.place] = _Object(
                [self._keys.setdefault(part.key, part.key) for part in bundle.parts],
                array("q", [part.last_offset for part in bundle.parts]),
            )
        return Outcome(acknowledged=tuple(acknowledged), dropped=tuple(dropped))

    def _counts(self, bundle: _Bundle) -> bool:
        return bundle.is_there and bundle.place < self._decided_to

    # -- cleaning up ----------------------------------------------------------------------------

    def places(self) -> list[int]:
        """The places of objects that may be cleaned up; do so every minute or so."""
        return list(self._objects)

    def begin_clean_up(self, places: Iterable[int], is_safe: ErasureCheck) -> list[int]:
        """Of these objects, those to be erased as soon as no checkpoint is due.

        Others that nobody needs are erased next time: a listing that has begun before a checkpoint may lack it.
        """
        erased = []
        for place in places:
            found = self._objects.get(place)
            if found is None or not found.is_safe(is_safe):
                continue
            if place < self._checkpointed_to:
                erased.append(place)
            else:
                self.is_checkpoint_due = True
            for key, last_offset in zip(found.keys, found.ends, strict=True):
                if last_offset > self.table_end(key) and not is_safe(key, EVERY_OFFSET):
                    self.table_has(key, last_offset)
        return erased

    def table_end(self, key: PartitionId) -> int:
        """The last offset that the table must have, as far as it is known here; -1 for none."""
        return self._table_ends.get(key, -1)

    def table_has(self, key: PartitionId, last_offset: int) -> None:
        """The table has the partition's records up to this offset, and here are only those behind it."""
        if last_offset != self.table_end(key):
            self._table_ends[key] = last_offset
            self.is_checkpoint_due = True

    def checkpoint(self) -> Checkpoint:
        """What is known now."""
        self.is_checkpoint_due = False
        data = encode_checkpoint(self._new_id(), self._decided_to, self._table_ends)
        return Checkpoint(self._decided_to, data)

    def not_checkpointed(self) -> None:
        """It is not known whether the checkpoint is in the store: another one is due."""
        self.is_checkpoint_due = True

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """The checkpoint is in the store."""
        self._checkpointed_to = max(self._checkpointed_to, checkpoint.acked_to)

    def forget_topics(self, exists: Callable[[bytes], bool]) -> None:
        """Forget what is known of deleted topics, by id. What was put of them stays until it is erased."""
        for known in (self._fenced, self._table_ends):
            for key in [key for key in known if not exists(key[0])]:
                del known[key]

    def forget_table_ends(self, is_safe: ErasureCheck) -> None:
        """Forget those of partitions of which nobody needs anything here."""
        for key in [key for key in self._table_ends if is_safe(key, EVERY_OFFSET)]:
            del self._table_ends[key]

    def erased(self, places: Iterable[int]) -> None:
        """These objects are gone."""
        for place in places:
            self._forget(self._objects.pop(place).keys)

    def _forget(self, keys: Iterable[PartitionId]) -> None:
        """As many parts of these partitions are gone."""
        for key in keys:
            self._parts[key] -= 1
            if not self._parts[key]:
                del self._parts[key]
                self._keys.pop(key, None)
