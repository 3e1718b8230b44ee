"""Shell: the residue of a partition by offset: what never entered the table, for read_uncommitted. Any thread.

- All attempts at a range by leaders of one history have the same residue: any file that covers an offset will do, and a
  batch in two of them counts once. After an unclean election the file of the higher leader epoch wins.
- Files are listed when a reader asks beyond what was listed, or misses a file. Files of another incarnation of the
  topic are skipped, and so are bytes that no client could take for a batch.
- Open files are bounded by number and by their batches.
"""

import logging
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from broker.worker.errors import StorageError
from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.batch import CorruptRecord, crc_is_valid, read_header
from kafka_ds.topic.batches.residue import CorruptResidue, Residue, ResidueBatch, ResidueHeader
from kafka_ds.topic.lineage import Lineage
from kafka_ds.topic.names import RESIDUE, start_of_residue, topic_table

log = logging.getLogger(__name__)

OPEN_FILES_MAX = 256
# Of all files; one batch's place takes some 250 bytes. The file that was opened last stays, whatever it holds.
OPEN_BATCHES_MAX = 100_000
# Attempts that lost leave files beside those that won: so many are searched for one that covers the offset.
WALK_BACK_MAX = 1024


@dataclass(slots=True)
class _ResidueListing:
    """The residue files of a partition by start offset."""

    starts: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    known_end: int = -1


class ResidueFiles:
    """All topics' residue files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listings: dict[TopicIdPartition, _ResidueListing] = {}
        self._open: OrderedDict[str, Residue | None] = OrderedDict()
        self.open_batches = 0
        """How many batches' places are in memory."""
        self._lock = threading.Lock()

    def between(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        last_offset: int,
        *,
        highest_offset_in_remote_storage: int,
        log_start_offset: int,
        undecodable_only: bool = False,
    ) -> list[ResidueBatch]:
        """The batches that hold offsets of [start_offset, last_offset], by offset; all, or what cannot be decoded.

        Raises StorageError if no file covers an offset at or above the log start: what is missing might be an aborted
        transaction, which Kafka does not pass over either.
        """
        for is_last in (False, True):
            with self._lock:
                listing = self._listing(partition, last_offset, highest_offset_in_remote_storage)
                covering = self._covering(listing, partition.topic_id, start_offset, last_offset)
                first = max(start_offset, log_start_offset)
                missing = _first_uncovered(covering, first, last_offset)
                try:
                    name = str(partition)
                    found = _batches(name, covering, start_offset, last_offset, undecodable_only)
                    if missing is None:
                        break
                except (FileNotFoundError, CorruptResidue):
                    if is_last:
                        raise
                # Of an attempt that lost, and deleted since, or not there when it was listed: the others have the same
                # residue.
                # Or rewritten without erased records since it was opened.
                self._listings.pop(partition, None)
                self._close(0)
        else:
            raise StorageError(f"{partition}: no residue file holds offset {missing}")
        return [found[base] for base in sorted(found)]

    def holding(
        self, partition: TopicIdPartition, offset: int, *, highest_offset_in_remote_storage: int
    ) -> ResidueHeader | None:
        """The header of the file whose range holds the offset; of several the one that ends first and has the most
        state.
        """
        with self._lock:
            listing = self._listing(partition, offset, highest_offset_in_remote_storage)
            covering = self._covering(listing, partition.topic_id, offset, offset)
            headers = [
                each.header
                for each in covering
                if offset <= each.header.end_offset <= highest_offset_in_remote_storage
            ]
            return min(
                headers,
                key=lambda each: (each.end_offset, -len(each.producer_snapshot)),
                default=None,
            )

    def with_snapshot(self, partition: TopicIdPartition, end_offset: int) -> ResidueHeader | None:
        """The header of the last file that ends there or before and has the producers at its end."""
        with self._lock:
            listing = self._listing(partition, end_offset, end_offset)
            at = bisect_right(listing.starts, end_offset)
            later: list[ResidueHeader] = []
            for rivals in self._backwards(listing, partition.topic_id, at):
                later += [replace(each.header, batches=()) for each in rivals]
                for header in (each.header for each in rivals):
                    if (
                        header.end_offset <= end_offset
                        and header.producer_snapshot
                        and not any(_is_of_lost_leader(header, each) for each in later)
                    ):
                        return header
        return None

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        with self._lock:
            for key in [key for key in self._listings if key.topic == topic]:
                del self._listings[key]
            for path in [path for path in self._open if path.startswith(f"{topic_table(topic)}/")]:
                self.open_batches -= _count(self._open.pop(path))

    def _listing(
        self,
        partition: TopicIdPartition,
        last_offset: int,
        highest_offset_in_remote_storage: int,
    ) -> _ResidueListing:
        """The files of a partition of that topic and id; an earlier listing for the id says nothing of this one."""
        known = self._listings.get(partition)
        if known is not None and last_offset <= known.known_end:
            return known
        made = _ResidueListing(known_end=highest_offset_in_remote_storage)
        folder = f"{topic_table(partition.topic)}/{RESIDUE}/partition={partition.partition}"
        for entry in self._store.list(folder):
            start = start_of_residue(entry.path)
            if start is not None:
                made.starts.append(start)
                made.paths.append(entry.path)
        self._listings[partition] = made
        return made

    def _covering(
        self, listing: _ResidueListing, topic_id: bytes, start_offset: int, last_offset: int
    ) -> list[Residue]:
        """The files of the range, and earlier ones until each of its offsets is covered."""
        found = []
        at = bisect_right(listing.starts, start_offset)
        for path in listing.paths[at : bisect_right(listing.starts, last_offset)]:
            residue = self._opened(path)
            if residue is not None and residue.header.topic_id == topic_id:
                found.append(residue)
        for rivals in self._backwards(listing, topic_id, at, at - WALK_BACK_MAX):
            reaching = [each for each in rivals if each.header.end_offset >= start_offset]
            found += reaching
            # The first ones may be of shorter attempts, which lost.
            of_one = _of_one_history(found) if reaching else ()
            if _first_uncovered(of_one, start_offset, last_offset) is None:
                break
        return _chosen(found, start_offset, last_offset)

    def _backwards(
        self, listing: _ResidueListing, topic_id: bytes, end: int, start: int = 0
    ) -> Iterator[list[Residue]]:
        """The files of these places of a listing, the last ones first; those that begin at one offset together."""
        while end > max(0, start):
            first = bisect_left(listing.starts, listing.starts[end - 1])
            paths = listing.paths[max(first, start) : end]
            opened = map(self._opened, reversed(paths))
            yield [each for each in opened if each is not None and each.header.topic_id == topic_id]
            end = first

    def _opened(self, path: str) -> Residue | None:
        """A residue file with its header read; None if it is gone or broken."""
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        residue = None
        try:
            size = self._store.size(path)
            if size is not None:
                residue = Residue(
                    lambda start, length: self._store.read_range(path, start, length),
                    name=path,
                    size=size,
                )
        except (CorruptResidue, FileNotFoundError) as error:
            log.warning("skipped a residue file: %s", error)
        self._open[path] = residue
        self.open_batches += _count(residue)
        self._close(OPEN_FILES_MAX)
        return residue

    def _close(self, files_max: int) -> None:
        """Close the least recently used files until both bounds hold: of open files, and of their batches."""
        while len(self._open) > files_max or (
            self.open_batches > OPEN_BATCHES_MAX and len(self._open) > 1
        ):
            self.open_batches -= _count(self._open.popitem(last=False)[1])


def _count(residue: Residue | None) -> int:
    return 0 if residue is None else len(residue.header.batches)


def _chosen(files: Sequence[Residue], start: int, end: int) -> list[Residue]:
    """Those of one history, and of others what is needed for offsets of [start, end] that are in none of these."""
    chosen = _of_one_history(files)
    if len(chosen) == len(files):
        return chosen
    left = [each for each in files if each not in chosen]
    for each in left:
        low, high = max(start, each.header.start_offset), min(end, each.header.end_offset)
        if _first_uncovered(chosen, low, high) is not None:
            chosen.append(each)
    return chosen


def _of_one_history(files: Sequence[Residue]) -> list[Residue]:
    """Those that none of the others contradicts by a higher leader epoch."""
    lost: set[int] = set()
    reaching: list[Residue] = []
    for each in sorted(files, key=lambda one: one.header.start_offset):
        start = each.header.start_offset
        reaching = [other for other in reaching if other.header.end_offset >= start]
        for other in reaching:
            if _is_of_lost_leader(each.header, other.header):
                lost.add(id(each))
            elif _is_of_lost_leader(other.header, each.header):
                lost.add(id(other))
        reaching.append(each)
    return [each for each in files if id(each) not in lost]


def _is_of_lost_leader(header: ResidueHeader, other: ResidueHeader) -> bool:
    """Whether the other file gives an offset of both to a higher leader epoch."""
    end = min(header.end_offset, other.end_offset)
    if header is other or end < max(header.start_offset, other.start_offset):
        return False
    mine, others = Lineage.of(header.leader_epochs), Lineage.of(other.leader_epochs)
    offset = mine.divergence(others, end)
    return offset is not None and (mine.epoch_of(offset) or 0) < (others.epoch_of(offset) or 0)


def _first_uncovered(covering: Iterable[Residue], start: int, end: int) -> int | None:
    """The first offset of [start, end] that no file covers."""
    for header in sorted((each.header for each in covering), key=lambda each: each.start_offset):
        if header.start_offset > start:
            break
        start = max(start, header.end_offset + 1)
    return start if start <= end else None


def _batches(
    name: str,
    covering: Iterable[Residue],
    start_offset: int,
    last_offset: int,
    undecodable_only: bool,
) -> dict[int, ResidueBatch]:
    """The batches that hold offsets of [start_offset, last_offset], by base offset."""
    found: dict[int, ResidueBatch] = {}
    for residue in covering:
        for place in residue.header.find(start_offset, last_offset):
            if undecodable_only and place.kind != "undecodable":
                continue
            data = residue.batch(place)
            if place.kind == "undecodable" and not is_batch(
                data, place.base_offset, place.last_offset
            ):
                log.error(
                    "%s: offsets %d to %d are skipped in a read: they were damaged in the log when it was copied",
                    name, place.base_offset, place.last_offset,
                )  # fmt: skip
                continue
            found[place.base_offset] = ResidueBatch(
                kind=place.kind,
                base_offset=place.base_offset,
                last_offset=place.last_offset,
                data=data,
            )
    return found


def is_batch(data: bytes, base_offset: int, last_offset: int) -> bool:
    """Whether a client could take it for a batch."""
    try:
        header = read_header(data)
    except CorruptRecord:
        return False
    return (
        header.size_in_bytes == len(data)
        and (header.base_offset, header.last_offset) == (base_offset, last_offset)
        and crc_is_valid(data, 0, header)
    )
