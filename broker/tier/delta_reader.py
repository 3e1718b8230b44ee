"""Shell: cold reads: rows of a table's Parquet files as record batches again, with the residue between them.

Rules of this file: files are found through the index of the followed snapshot, never by a remembered path; one
that is gone when it is opened means that the snapshot is old: it is followed and the read begins again. Every
offset up to the tiered end is accounted for by some batch, so that a consumer's position gets over gaps.
read_committed needs the rows alone; read_uncommitted gets the residue in its place. What comes next is
prepared before it is asked for, once a consumer is seen to read on or begins at the beginning; who reads at a place
by lot is given that alone, and nobody waits for more than it. What was prepared is kept for others, in memory
and on disk, under the files that it was made of: rows that somebody has erased since are not found there. Any thread.
"""

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from broker.tier.delta_residue import ResidueFiles, ResiduePiece
from broker.tier.delta_tables import TopicTables, tiered_end
from broker.tier.disk_cache import DiskCache
from broker.tier.piece_files import PieceKey
from broker.tier.pieces import Piece, PieceCache
from broker.tier.spi import ColdRead, OffsetOutOfRange, StorageError
from kafka_ds.lake.index import FileEntry, FileIndex
from kafka_ds.lake.parquet import FileReader, UnreadableFile, read_files
from kafka_ds.lake.snapshot import TopicSnapshot
from kafka_ds.lake.store import Store
from kafka_ds.lake.tables import TOPIC_FILE_SCHEMA
from kafka_ds.wire.batch import read_header

log = logging.getLogger(__name__)

# What is prepared for a consumer that reads on, and for one that begins: it waits for that, a row group as a rule.
AHEAD_BYTES = 2 * 1024 * 1024
BEGIN_BYTES = 128 * 1024
# Of so many pieces it is known that who asks for what follows them reads on.
ENDS_MAX = 4096
PLACES_MAX = 256
BATCH_BYTES_MAX = 1024 * 1024
BATCH_BYTES_MIN = 16 * 1024
PREFETCHES_MAX = 8
TRIES_MAX = 3
_FOREVER = 1 << 62
# What a record is made of: all but the framing of the batch that it came in.
RECORD_COLUMNS = tuple(name for name in TOPIC_FILE_SCHEMA.names if name != "batch")
TIME_COLUMNS = ("offset", "leader_epoch", "timestamp", "timestamp_ms")


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose offsets are read, and how."""

    topic: str
    topic_id: bytes
    partition: int
    committed_only: bool

    def key(self, layout: str) -> PieceKey:
        """What pieces of it are found by."""
        return PieceKey(
            topic_id=self.topic_id,
            partition=self.partition,
            committed_only=self.committed_only,
            layout=layout,
        )


@dataclass(frozen=True, slots=True)
class _Files:
    """The files to read from an offset on."""

    files: tuple[FileEntry, ...]
    reach: int
    """Nothing but they hold offsets up to here, inclusive."""
    cluster_end: int
    """The last offset that they may hold themselves."""
    tiered_end: int
    log_start: int
    layout: str
    """A digest of the files: what others write anew has other names."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found in a version of a table, and from which offset on (up to the cluster's end) it is found again."""

    snapshot: TopicSnapshot
    version: int
    first_offset: int
    files: _Files


class ColdReader:
    """Answers cold reads of all topics."""

    def __init__(
        self,
        store: Store,
        tables: TopicTables,
        reader: FileReader,
        *,
        cache_bytes: int,
        disk: DiskCache | None = None,
    ) -> None:
        self._disk = disk
        self._tables = tables
        self._reader = reader
        self._residue = ResidueFiles(store)
        self._cache = PieceCache(cache_bytes)
        # Two consumers' share of what is kept: what is prepared ahead must not drive out what was before it is read.
        self._ahead_bytes = max(1, cache_bytes // 4)
        self._lock = threading.Lock()
        self._known: OrderedDict[_Place, _Known] = OrderedDict()
        self._preparing: OrderedDict[tuple[PieceKey, int], threading.Event] = OrderedDict()
        self._ends: OrderedDict[tuple[_Place, int], None] = OrderedDict()
        self._ahead: queue.Queue[tuple[_Place, int]] = queue.Queue(PREFETCHES_MAX)
        self._prefetcher: threading.Thread | None = None

    def read(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        committed_only: bool,
    ) -> ColdRead:
        """Batches from `offset` on: one at least, then up to `max_bytes`."""
        place = _Place(topic, topic_id, partition, committed_only)
        found = self._files(place, offset)
        with self._lock:
            reads_on = offset <= found.log_start or (place, offset) in self._ends
        size_bytes = AHEAD_BYTES if reads_on else BEGIN_BYTES
        piece, index = self._piece(place, found.layout, offset, size_bytes, max_bytes)
        batches, end = piece.take(index, max_bytes)
        # Who is in the middle of a piece, or begins with one, has more of it to come as long as it is not its last.
        if (reads_on or index) and piece.next_offset <= found.tiered_end:
            self._prepare_ahead(place, piece.next_offset)
        return ColdRead(
            chunks=batches,
            next_offset=piece.next_offsets[end - 1],
            tiered_end=found.tiered_end,
            log_start_offset=found.log_start,
        )

    def forget(self, topic: str, topic_id: bytes) -> None:
        """The topic is gone: keep nothing of it."""
        with self._lock:
            for key in self._cache.owners():
                if isinstance(key, PieceKey) and key.topic_id == topic_id:
                    self._cache.forget(key)
        if self._disk is not None:
            self._disk.forget(topic_id)
        self._residue.forget(topic)

    # -- pieces -----------------------------------------------------------------------------

    def _piece(
        self, place: _Place, layout: str, offset: int, size_bytes: int, max_bytes: int
    ) -> tuple[Piece, int]:
        """The piece with a batch that holds `offset`, prepared if it is not there."""
        key = place.key(layout)
        with self._lock:
            known = self._cache.find(key, offset)
            under_way = self._preparing.get((key, offset))
        if known is None and under_way is not None:
            under_way.wait()
            with self._lock:
                known = self._cache.find(key, offset)
        if known is not None:
            return known
        return self._prepare(place, layout, offset, size_bytes, max_bytes)

    def _prepare(
        self, place: _Place, layout: str, offset: int, size_bytes: int, max_bytes: int
    ) -> tuple[Piece, int]:
        """Get a piece from the disk, or make it; and the index of the batch that holds the offset."""
        asked, done = (place.key(layout), offset), threading.Event()
        with self._lock:
            self._preparing[asked] = done
        try:
            key = asked[0]
            known = self._disk.find(key, offset) if self._disk is not None else None
            if known is None:
                piece, layout = self._build(place, offset, size_bytes, max_bytes)
                key, known = place.key(layout), (piece, 0)
                if self._disk is not None:
                    self._disk.offer(key, piece)
            with self._lock:
                self._cache.put(key, known[0])
                self._ends[place, known[0].next_offset] = None
                if len(self._ends) > ENDS_MAX:
                    self._ends.popitem(last=False)
            return known
        finally:
            with self._lock:
                self._preparing.pop(asked, None)
            done.set()

    def _prepare_ahead(self, place: _Place, offset: int) -> None:
        with self._lock:
            if self._prefetcher is None:
                self._prefetcher = threading.Thread(target=self._prefetch, daemon=True)
                self._prefetcher.start()
        with suppress(queue.Full):
            self._ahead.put_nowait((place, offset))

    def _prefetch(self) -> None:
        while True:
            place, offset = self._ahead.get()
            try:
                self._read_ahead(place, offset)
            except (OSError, StorageError, OffsetOutOfRange, UnreadableFile, pa.ArrowException):
                pass  # Whoever reads there is told of it; nobody has asked yet.
            except Exception:
                # The root of a thread: it would end, and nobody be read ahead for any more.
                log.exception(
                    "%s-%d is not read ahead from %d", place.topic, place.partition, offset
                )

    def _read_ahead(self, place: _Place, offset: int) -> None:
        """Have the pieces ready that come next, a few of them, so that there is no pause between any two."""
        room = self._ahead_bytes
        while room > 0:
            found = self._files(place, offset)
            key = place.key(found.layout)
            with self._lock:
                known = self._cache.find(key, offset)
                under_way = (key, offset) in self._preparing
            if known is None and under_way:
                return  # Who prepares it has somebody who waits for it, and asks for more.
            if known is None:
                known = self._prepare(place, found.layout, offset, AHEAD_BYTES, BATCH_BYTES_MAX)
            room -= known[0].size_bytes
            offset = known[0].next_offset
            if offset > found.tiered_end:
                return

    def _build(
        self, place: _Place, offset: int, size_bytes: int, max_bytes: int
    ) -> tuple[Piece, str]:
        """Read what follows an offset, and encode it again; and the layout that it was read of."""
        table, last, found = self._read_rows(place, offset, size_bytes)
        encoder = _Encoder(table, offset, min(BATCH_BYTES_MAX, max(BATCH_BYTES_MIN, max_bytes)))
        if not place.committed_only:
            for each in self._residue.between(
                place.topic,
                place.topic_id,
                place.partition,
                offset,
                last,
                tiered_end=found.tiered_end,
                log_start_offset=found.log_start,
            ):
                encoder.rows_to(each.base_offset - 1)
                encoder.put(each)
        encoder.rows_to(last)
        piece = Piece(offset, tuple(encoder.batches), tuple(encoder.next_offsets))
        return piece, found.layout

    def _read_rows(
        self, place: _Place, offset: int, size_bytes: int
    ) -> tuple[pa.Table, int, _Files]:
        """Rows from an offset on, the offset up to which they are all, and where they lie."""
        failure: Exception | None = None
        for _ in range(TRIES_MAX):
            found = self._files(place, offset, fresh=failure is not None)
            try:
                table, complete_to = read_files(
                    self._reader,
                    found.files,
                    start_offset=offset,
                    end_offset=found.cluster_end,
                    max_bytes=size_bytes,
                    columns=RECORD_COLUMNS,
                )
            except (FileNotFoundError, UnreadableFile) as error:
                failure = error
                continue
            return table, found.reach if complete_to >= found.cluster_end else complete_to, found
        raise StorageError(f"{place.topic}-{place.partition}: {failure}")

    # -- the snapshot -----------------------------------------------------------------------

    def _files(self, place: _Place, offset: int, *, fresh: bool = False) -> _Files:
        """The files that hold the offset or the next one after it. Follows the table if need be."""
        for now in (fresh, True):
            with self._tables.get(place.topic).view(fresh=now) as snapshot:
                known = self._known.get(place)
                if (
                    known is not None
                    and known.snapshot is snapshot
                    and known.version == snapshot.version
                    and known.first_offset <= offset <= known.files.cluster_end
                ):
                    return known.files
                end = tiered_end(snapshot, place.topic_id, place.partition)
                if snapshot is not None and offset <= end:
                    start = snapshot.log_start(place.partition) or 0
                    if offset >= start:
                        found = _cluster(snapshot, place.partition, offset, end, start)
                        self._keep(place, snapshot, found)
                        return found
        raise OffsetOutOfRange(
            f"{place.topic}-{place.partition}: the lake holds offsets up to {end}, not {offset}"
        )

    def _keep(self, place: _Place, snapshot: TopicSnapshot, found: _Files) -> None:
        """Find the same for whoever reads on in a file that no other overlaps."""
        if len(found.files) != 1:
            return
        first = max(found.files[0].min_offset, found.log_start)
        if snapshot.index.find_next(place.partition, first) != list(found.files):
            return
        with self._lock:
            self._known[place] = _Known(snapshot, snapshot.version, first, found)
            if len(self._known) > PLACES_MAX:
                self._known.popitem(last=False)

    # -- by time ----------------------------------------------------------------------------

    def offset_for_timestamp(
        self, topic: str, topic_id: bytes, partition: int, timestamp_ms: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        """The first record at or after a time, not below `start_offset`: (timestamp_ms, offset, leader_epoch)."""
        files, start, end = self._files_from(
            topic,
            topic_id,
            partition,
            start_offset,
            lambda index: index.find_timestamp(partition, timestamp_ms),
        )
        best: tuple[int, int, int] | None = None
        for entry in files:
            if best is not None and entry.min_offset > best[1]:
                break
            found = self._first_at(entry, timestamp_ms, start, end)
            if found is not None and (best is None or found[1] < best[1]):
                best = found
        return best

    def max_timestamp(
        self, topic: str, topic_id: bytes, partition: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        """The first record of the greatest timestamp from `start_offset` on: (timestamp_ms, offset, leader_epoch)."""
        files, start, end = self._files_from(
            topic, topic_id, partition, start_offset, lambda index: index.files(partition)
        )
        best: tuple[int, int, int] | None = None
        # Those that may hold the greatest come first: as a rule one file is read, of a year of them.
        for entry in sorted(files, key=lambda each: -_latest_ms(each)):
            if best is not None and _latest_ms(entry) < best[0]:
                break
            times, offsets, epochs = self._times(entry, start, end)
            greatest = pc.max(times).as_py()
            if greatest is None:
                continue
            index = pc.index(times, greatest).as_py()
            found = (int(greatest), offsets[index].as_py(), epochs[index].as_py())
            if best is None or (found[0], -found[1]) > (best[0], -best[1]):
                best = found
        return best

    def _files_from(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        start_offset: int,
        choose: Callable[[FileIndex], Iterable[FileEntry]],
    ) -> tuple[list[FileEntry], int, int]:
        """The chosen files behind the log start and `start_offset`; the later of these, and the tiered end."""
        with self._tables.get(topic).view(fresh=True) as snapshot:
            end = tiered_end(snapshot, topic_id, partition)
            if snapshot is None or end < 0:
                return [], start_offset, end
            start = max(snapshot.log_start(partition) or 0, start_offset)
            return [each for each in choose(snapshot.index) if each.max_offset >= start], start, end

    def _first_at(
        self, entry: FileEntry, timestamp_ms: int, start: int, end: int
    ) -> tuple[int, int, int] | None:
        times, offsets, epochs = self._times(entry, start, end)
        index = pc.index(pc.greater_equal(times, timestamp_ms), True).as_py()
        if index < 0:
            return None
        return int(times[index].as_py()), offsets[index].as_py(), epochs[index].as_py()

    def _times(
        self, entry: FileEntry, start: int, end: int
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
        """Milliseconds, offsets and leader epochs of a file's rows of [start, end]."""
        try:
            table, _ = self._reader.read(
                entry.path, start_offset=start, end_offset=end, columns=TIME_COLUMNS
            )
        except (FileNotFoundError, UnreadableFile) as error:
            raise StorageError(str(error)) from error
        moments = pc.cast(pc.cast(table.column("timestamp"), pa.int64()), pa.int64())
        moments = pc.coalesce(table.column("timestamp_ms"), pc.floor(pc.divide(moments, 1000)))
        return moments, table.column("offset"), table.column("leader_epoch")


class _Encoder:
    """Rows of a table as batches, cut where something comes between."""

    def __init__(self, table: pa.Table, first_offset: int, batch_bytes: int) -> None:
        self._table = table
        self._offsets = table.column("offset").to_numpy()
        self._next = first_offset
        self._batch_bytes = batch_bytes
        self.batches: list[bytes] = []
        self.next_offsets: list[int] = []

    def rows_to(self, last: int) -> None:
        """All rows up to that offset, and a span over the offsets that have none."""
        if last < self._next:
            return
        # With numba, 100 MiB that a worker which reads nothing does without.
        from kafka_ds.lake.convert import encode_batches

        low, high = self._offsets.searchsorted([self._next, last + 1])
        made = encode_batches(
            self._table.slice(low, high - low),
            first_offset=self._next,
            last_offset=last,
            batch_bytes_max=self._batch_bytes,
        )
        self.batches += made
        self.next_offsets += [read_header(each).next_offset for each in made]
        self._next = last + 1

    def put(self, piece: ResiduePiece) -> None:
        """A batch as it is."""
        self.batches.append(piece.data)
        self._next = max(self._next, piece.last_offset + 1)
        self.next_offsets.append(self._next)


def _latest_ms(entry: FileEntry) -> int:
    """No record of the file is later, as far as its statistics can tell."""
    if entry.max_timestamp_ms is None or entry.null_timestamps:
        return _FOREVER
    return entry.max_timestamp_ms


def _cluster(
    snapshot: TopicSnapshot, partition: int, offset: int, end: int, log_start: int
) -> _Files:
    """The files around an offset, and where the next ones begin."""
    files = snapshot.index.find_next(partition, offset)
    cluster_end = min(end, max((each.max_offset for each in files), default=end))
    following = snapshot.index.find_next(partition, cluster_end + 1)
    reach = min([end, *(each.min_offset - 1 for each in following)]) if following else end
    names = "\n".join(sorted(each.path for each in files))
    layout = blake2b(names.encode(), digest_size=8).hexdigest()
    return _Files(tuple(files), max(reach, cluster_end), cluster_end, end, log_start, layout)
