"""Shell: cold reads: rows of a table's Parquet files as record batches again, with the residue between.

- Files are found through the index of the followed snapshot; if one is gone, the snapshot is read again.
- Some batch covers every offset up to the tiered end, except what a RESTORE removed: a read there fails.
- read_committed needs the rows alone, and batches that cannot be decoded, as they were produced; read_uncommitted gets
  all of the residue in its place.
- For a consumer that reads on the next chunk is read ahead. Chunks are cached under the files that they were made of.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.worker.cache.chunk_files import ChunkKey
from broker.worker.cache.chunks import BatchChunk, ChunkCache
from broker.worker.cache.disk_cache import DiskCache
from broker.worker.cache.readers import Readers
from broker.worker.delta.chunk_builder import ChunkBuilder
from broker.worker.delta.residue import ResidueFiles
from broker.worker.delta.tables import TopicTables, highest_offset_in_remote_storage
from broker.worker.delta.times import TimesReader
from broker.worker.errors import OffsetOutOfRange, StorageError
from broker.worker.rpc import TierSettings
from kafka_ds.delta.store.store import Store
from kafka_ds.ipc.shared_memory import WorkerMemory
from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.batches.residue import ResidueBatch
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.snapshot import TopicSnapshot

if TYPE_CHECKING:
    from kafka_ds.topic.batches.records import Rows

log = logging.getLogger(__name__)

# What is prepared for a consumer that reads on, and for one that begins, which waits for it: usually a row group.
AHEAD_BYTES = 2 * 1024 * 1024
BEGIN_BYTES = 128 * 1024
# After so many chunks a consumer that asks for the next offset is known to read on.
ENDS_MAX = 4096
PLACES_MAX = 256
# Four of them are the MiB that consumers ask for by default (max.partition.fetch.bytes).
BATCH_BYTES_MAX = 256 * 1024
BATCH_BYTES_MIN = 16 * 1024
PREFETCHES_MAX = 8
# Decompressing and encoding run without the interpreter's lock: two chunks at a time, one consumer's included.
PREFETCHERS = 2
TRIES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """Batches from an offset on."""

    chunks: tuple[Buffer, ...]
    shared: tuple[tuple[int | None, int], ...] = ((None, 0),)
    """Where all of these bytes lie in the memory shared with the broker, in order: (position, bytes) of each run of
    them. A position None: they are not all there.
    """


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """Which partition is read, and how."""

    partition: TopicIdPartition
    committed_only: bool

    def __str__(self) -> str:
        return str(self.partition)

    def key(self, layout: str) -> ChunkKey:
        """The key under which its chunks are found."""
        return ChunkKey(
            topic_id=self.partition.topic_id,
            partition=self.partition.partition,
            committed_only=self.committed_only,
            layout=layout,
        )


@dataclass(frozen=True, slots=True)
class _Files:
    """The files to read from an offset on."""

    files: tuple[FileEntry, ...]
    reach: int
    """Only these files hold offsets up to here, inclusive."""
    overlap_end: int
    """The last offset that they may hold themselves."""
    highest_offset_in_remote_storage: int
    log_start: int
    layout: str
    """A digest of the files: rewritten ones have other names."""
    undecodable_to: int = -1
    """No batch behind this offset is residue because it cannot be decoded."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The files found in a table's version, and the offset from which they hold (up to their last one)."""

    snapshot: TopicSnapshot
    version: int
    first_offset: int
    files: _Files


@dataclass(slots=True, eq=False)
class _RangeRead:
    """A chunk that is being prepared."""

    done: threading.Event = field(default_factory=lambda: threading.Event())
    following: int | None = None
    """The offset after it, as soon as that is known."""


class ColdReader:
    """Answers cold reads of all topics."""

    def __init__(
        self,
        store: Store,
        tables: TopicTables,
        reader: FileReader,
        settings: TierSettings,
        disk: DiskCache | None = None,
        memory: WorkerMemory | None = None,
    ) -> None:
        """Chunks are kept in the memory that is shared with the broker, if there is any."""
        cache_bytes = settings.lake_reader_cache_bytes
        self._disk = disk
        self._tables = tables
        self._reader = reader
        self.times = TimesReader(tables, reader)
        self._residue = ResidueFiles(store)
        self.cache = ChunkCache(cache_bytes)
        self.builder = ChunkBuilder(memory, self._let_go)
        # Read-ahead must not evict chunks that were read ahead, for others as well, before they are read.
        self._readers = Readers(cache_bytes)
        self._lock = threading.Lock()
        self._known: OrderedDict[ReadPlace, _Known] = OrderedDict()
        self._preparing: dict[tuple[ChunkKey, int], _RangeRead] = {}
        self._ends: OrderedDict[tuple[ReadPlace, int], None] = OrderedDict()
        self._ahead: queue.Queue[tuple[ReadPlace, int]] = queue.Queue(PREFETCHES_MAX)
        self._prefetchers: list[threading.Thread] = []

    def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        committed_only: bool,
    ) -> ColdRead:
        """Batches from `offset` on: one at least, then up to `max_bytes`."""
        place = ReadPlace(partition, committed_only)
        found = self._files(place, offset)
        with self._lock:
            reads_on = offset <= found.log_start or (place, offset) in self._ends
        size_bytes = AHEAD_BYTES if reads_on else BEGIN_BYTES
        chunk, index = self._chunk(place, found.layout, offset, size_bytes, max_bytes)
        key = place.key(found.layout)
        with self._lock:
            runs, following, next_offset = self.cache.slices(key, chunk, index, max_bytes)
        # A consumer within a chunk, or at its begin, has more of it to come unless it is its last.
        if (reads_on or index) and following <= found.highest_offset_in_remote_storage:
            with self._lock:
                self._readers.read(place, offset, next_offset, time.monotonic())
            self.prepare_ahead(place, following)
        return ColdRead(
            chunks=tuple(chain.from_iterable(run.batches for run in runs)),
            shared=tuple((run.shared_at, run.size_bytes) for run in runs),
        )

    def forget(self, topic: str, topic_id: bytes) -> None:
        """The topic is deleted: drop all of its chunks."""
        with self._lock:
            for key in {key for key, _ in self.cache}:
                if isinstance(key, ChunkKey) and key.topic_id == topic_id:
                    self.cache.forget(key)
        if self._disk is not None:
            self._disk.forget(topic_id)
        self._residue.forget(topic)

    def _let_go(self) -> bool:
        with self._lock:
            return self.cache.drop_oldest(self.builder.makes_room)

    # -- chunks -----------------------------------------------------------------------------

    def _chunk(
        self, place: ReadPlace, layout: str, offset: int, size_bytes: int, max_bytes: int
    ) -> tuple[BatchChunk, int]:
        """The chunk with a batch that holds `offset`, prepared if it is not there."""
        key = place.key(layout)
        known, work, is_mine = self._claim(key, offset)
        if known is None and not is_mine:
            work.done.wait()
            known, work, is_mine = self._claim(key, offset)
        if known is not None:
            return known
        # If it failed for another request, and a third one tries again: no request waits twice.
        return self._prepare(place, layout, offset, size_bytes, max_bytes, work)

    def _claim(
        self, key: ChunkKey, offset: int
    ) -> tuple[tuple[BatchChunk, int] | None, _RangeRead, bool]:
        """The chunk if it is there; otherwise the work that prepares it, and whether the caller must do that."""
        with self._lock:
            known, work = self.cache.find(key, offset), self._preparing.get((key, offset))
            is_mine = known is None and work is None
            if work is None:
                work = _RangeRead()
            if is_mine:
                self._preparing[key, offset] = work
        return known, work, is_mine

    def _prepare(
        self,
        place: ReadPlace,
        layout: str,
        offset: int,
        size_bytes: int,
        max_bytes: int,
        work: _RangeRead,
    ) -> tuple[BatchChunk, int]:
        """Get a chunk from the disk, or make it; and the index of the batch that holds the offset."""
        asked = (place.key(layout), offset)
        try:
            key = asked[0]
            known = self._disk.find(key, offset) if self._disk is not None else None
            if known is not None:
                known = (self.builder.placed(known[0]), known[1])
            else:
                work.following = self._following(place, offset, size_bytes)
                chunk, layout = self._build(place, offset, size_bytes, max_bytes)
                key, known = place.key(layout), (chunk, 0)
                if self._disk is not None:
                    self._disk.offer(key, chunk)
            with self._lock:
                self.cache.put(key, known[0])
                self._ends[place, known[0].next_offset] = None
                if len(self._ends) > ENDS_MAX:
                    self._ends.popitem(last=False)
            return known
        finally:
            with self._lock:
                self._preparing.pop(asked, None)
            work.done.set()

    def prepare_ahead(self, place: ReadPlace, offset: int) -> None:
        """Have the chunks from an offset on prepared by another thread, unless those have enough to do."""
        with self._lock:
            while len(self._prefetchers) < PREFETCHERS:
                self._prefetchers.append(threading.Thread(target=self._prefetch, daemon=True))
                self._prefetchers[-1].start()
        with suppress(queue.Full):
            self._ahead.put_nowait((place, offset))

    def _prefetch(self) -> None:
        while True:
            place, offset = self._ahead.get()
            try:
                self.read_ahead(place, offset)
            except (OSError, StorageError, OffsetOutOfRange, UnreadableFile, pa.ArrowException):
                pass  # A later read there will fail with it; nothing has asked yet.
            except Exception:
                # The thread's outermost frame: an error would end it, and read-ahead with it.
                log.exception("%s: read-ahead from offset %d failed", place, offset)

    def read_ahead(self, place: ReadPlace, offset: int) -> None:
        """Prepare the next few chunks, so that a reader need not pause between two of them."""
        prepared = 0
        while prepared < (share := self._share_bytes()):
            size_bytes = min(AHEAD_BYTES, max(BEGIN_BYTES, share))
            found = self._files(place, offset)
            known, work, is_mine = self._claim(place.key(found.layout), offset)
            if is_mine:
                known = self._prepare(
                    place, found.layout, offset, size_bytes, BATCH_BYTES_MAX, work
                )
            if known is not None:
                prepared += known[0].size_bytes
                offset = known[0].next_offset
            elif work.following is not None:
                # Another thread prepares it; the chunk after it can be prepared at the same time.
                prepared += size_bytes
                offset = work.following
            else:
                return  # That thread has a reader waiting for it, which asks for more.
            if offset > found.highest_offset_in_remote_storage:
                return

    def _share_bytes(self) -> int:
        with self._lock:
            return self._readers.share_bytes(time.monotonic())

    def _following(self, place: ReadPlace, offset: int, size_bytes: int) -> int | None:
        """The first offset after the chunk that begins at an offset, if its file's footer has it."""
        found = self._files(place, offset)
        if len(found.files) == 1:
            with suppress(FileNotFoundError, UnreadableFile):  # Reads of it report this.
                footer = self._reader.footer(found.files[0].path)
                _, complete_to = footer.next_groups(offset, found.overlap_end, size_bytes)
                return (found.reach if complete_to >= found.overlap_end else complete_to) + 1
        return None

    def _build(
        self, place: ReadPlace, offset: int, size_bytes: int, max_bytes: int
    ) -> tuple[BatchChunk, str]:
        """Read the rows from an offset on and encode them again; also returns the layout that they were read from."""
        rows, last, found = self._read_rows(place, offset, size_bytes)
        residue: Iterable[ResidueBatch] = ()
        if not place.committed_only or offset <= found.undecodable_to:
            residue = self._residue.between(
                place.partition,
                offset,
                last,
                highest_offset_in_remote_storage=found.highest_offset_in_remote_storage,
                log_start_offset=found.log_start,
                undecodable_only=place.committed_only,
            )
        if place.committed_only and residue:
            # A leader whose log was truncated may have left residue for offsets that another leader's rows have now.
            residue = [each for each in residue if not _has_rows(rows, each)]
        batch_bytes = min(BATCH_BYTES_MAX, max(BATCH_BYTES_MIN, max_bytes))
        chunk = self.builder.make(rows, offset, last, residue, batch_bytes)
        return chunk, found.layout

    def _read_rows(
        self, place: ReadPlace, offset: int, size_bytes: int
    ) -> tuple[Rows, int, _Files]:
        """Rows from an offset on, the offset up to which they are complete, and the files that hold them."""
        # Numba takes 100 MiB that a worker without reads does not need.
        from kafka_ds.topic.batches.records import read_records

        failure: Exception | None = None
        for _ in range(TRIES_MAX):
            found = self._files(place, offset, fresh=failure is not None)
            try:
                rows, complete_to = read_records(
                    self._reader,
                    found.files,
                    start_offset=offset,
                    end_offset=found.overlap_end,
                    max_bytes=size_bytes,
                )
            except (FileNotFoundError, UnreadableFile) as error:
                failure = error
                continue
            return rows, found.reach if complete_to >= found.overlap_end else complete_to, found
        raise StorageError(f"{place}: {failure}")

    # -- the snapshot -----------------------------------------------------------------------

    def _files(self, place: ReadPlace, offset: int, *, fresh: bool = False) -> _Files:
        """The files that hold the offset or the next one after it. Follows the table if need be."""
        topic_id, topic, partition = place.partition
        for now in (fresh, True):
            with self._tables.get(topic).view(fresh=now) as snapshot:
                known = self._known.get(place)
                if (
                    known is not None
                    and known.snapshot is snapshot
                    and known.version == snapshot.version
                    and known.first_offset <= offset <= known.files.overlap_end
                ):
                    return known.files
                end = highest_offset_in_remote_storage(snapshot, topic_id, partition)
                if snapshot is not None and offset <= end:
                    start = snapshot.log_start(partition) or 0
                    if offset >= start:
                        limit = _readable_to(place, snapshot.missing(partition), offset, end)
                        found = _overlapping(snapshot, partition, offset, limit, end, start)
                        self._keep(place, snapshot, found)
                        return found
        raise OffsetOutOfRange(f"{place}: the lake holds offsets up to {end}, not {offset}")

    def _keep(self, place: ReadPlace, snapshot: TopicSnapshot, found: _Files) -> None:
        """Remember the files for readers that continue in a file that no other overlaps."""
        if len(found.files) != 1:
            return
        first = max(found.files[0].min_offset, found.log_start)
        if snapshot.index.find_next(place.partition.partition, first) != list(found.files):
            return
        with self._lock:
            self._known[place] = _Known(snapshot, snapshot.version, first, found)
            if len(self._known) > PLACES_MAX:
                self._known.popitem(last=False)


def _has_rows(rows: Rows, batch: ResidueBatch) -> bool:
    """Whether any of the rows has an offset of the batch."""
    from kafka_ds.topic.batches.records import offsets_of

    low, high = offsets_of(rows).searchsorted([batch.base_offset, batch.last_offset + 1])
    return bool(low < high)


def _readable_to(
    place: ReadPlace,
    missing: Sequence[tuple[int, int]],
    offset: int,
    highest_offset_in_remote_storage: int,
) -> int:
    """The last offset before the next missing range. Raises StorageError inside of one."""
    for first, last in missing:
        if first <= offset <= last:
            raise StorageError(
                f"{place}: a RESTORE removed offsets {first} to {last} from the table "
                "(docs/how-to/repair-the-lake.md)"
            )
        if first > offset:
            return first - 1
    return highest_offset_in_remote_storage


def _overlapping(
    snapshot: TopicSnapshot,
    partition: int,
    offset: int,
    limit: int,
    highest_offset_in_remote_storage: int,
    log_start: int,
) -> _Files:
    """The files around an offset, and where the next ones begin, up to a limit."""
    files = snapshot.index.find_next(partition, offset)
    overlap_end = min(limit, max((each.max_offset for each in files), default=limit))
    following = snapshot.index.find_next(partition, overlap_end + 1)
    reach = min([limit, *(each.min_offset - 1 for each in following)]) if following else limit
    reach = max(reach, overlap_end)
    # Including where it ends: a file that is read again ends a range that skipped its offsets.
    names = "\n".join([*sorted(f"{each.path} {each.vector_id}" for each in files), str(reach)])
    layout = blake2b(names.encode(), digest_size=8).hexdigest()
    return _Files(
        files=tuple(files),
        reach=reach,
        overlap_end=overlap_end,
        highest_offset_in_remote_storage=highest_offset_in_remote_storage,
        log_start=log_start,
        undecodable_to=snapshot.undecodable_to(partition),
        layout=layout,
    )
