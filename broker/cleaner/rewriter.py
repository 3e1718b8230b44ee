"""Shell: cleans one log: maps the keys of its dirty part, then writes segments with the retained records.

- Source segments are never changed; new files have the suffix `.cleaned` until the broker swaps them in.
- Memory is bounded: the key table by its setting, a buffer by the largest batch. The table starts small and grows, as a
  table that fits into the CPU's cache is several times faster.
- If the table is full, the cleaned part ends after the last batch whose keys all fit; later records stay.
- `pace` is called after each buffer: it throttles, and raises if the job is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from broker.cleaner.batch_retention import BatchRetention, skipped
from broker.cleaner.loops import loops
from broker.cleaner.read_buffers import ReadBuffer, read_buffers
from broker.cleaner.rpc import Cleaned, CleanJob, Mapped, SourceSegment
from broker.cleaner.transactions import CleanedTransactions
from broker.cleaner.writer import CleanedSegment
from kafka_ds.process.seams import Disk, ReadableBuffer
from kafka_ds.records import compaction, decoder
from kafka_ds.records.arrays import fixed
from kafka_ds.records.batch import CODEC_MASK, HEADER_BYTES, CorruptRecord, read_header, seal
from kafka_ds.records.compression import compress
from kafka_ds.segments import names
from kafka_ds.segments.files import unlink_if_there
from kafka_ds.segments.index import CorruptIndex, OffsetIndex

FIRST_SLOTS = 1 << 14
# A time before all delete horizons; as a horizon it means none is set.
NEVER = -1

# Called with the number of bytes read or written; raises if the job is aborted.
CountBytes = Callable[[int], None]


class KeysDoNotFit(Exception):
    """The keys of the first batch do not fit into the key table."""


class Cleaning:
    """One cleaning job."""

    def __init__(
        self, job: CleanJob, disk: Disk, secret: tuple[int, int], pace: CountBytes
    ) -> None:
        """`secret` is the 128-bit key of the hash function."""
        self._job = job
        self._disk = disk
        self._settings = job.settings
        self._pace = pace
        self._secret = np.uint64(secret[0]), np.uint64(secret[1])
        self._keys_max = job.settings.keys_max
        self._table = np.zeros((min(FIRST_SLOTS, self._slots_max), 3), np.uint64)
        self._known = np.array([0, job.first_dirty_offset - 1], np.int64)
        due_ms, horizon_ms = job.now_ms, min(job.now_ms + job.delete_retention_ms, 2**63 - 1)
        if job.keeps_tombstones:
            # No delete horizon is set either: readers may still be at the older values in the lake.
            due_ms = horizon_ms = NEVER
        self._rules = fixed(np.array([0, due_ms, horizon_ms], np.int64))
        self._transactions = CleanedTransactions(job.aborted)
        self._retention = BatchRetention(
            self._transactions,
            job.last_records,
            end_offset=job.first_uncleanable_offset,
            now_ms=job.now_ms,
        )
        # Files of an earlier job would keep recovery from completing a swap.
        for name in disk.list_names(job.directory):
            if name.endswith(names.CLEANED):
                unlink_if_there(disk, f"{job.directory}/{name}")
        self._places = np.empty((0, compaction.PLACE_FIELDS), np.int64)
        self._out = np.empty(0, np.uint8)

    # -- key table --------------------------------------------------------------------------------

    def map(self) -> Mapped:
        """Map each key to its last offset. Raises CorruptRecord, KeysDoNotFit, OSError."""
        job = self._job
        start = job.first_dirty_offset
        transactions = CleanedTransactions(
            entry for entry in job.aborted if entry.last_offset >= start
        )
        for segment in job.segments:
            if segment.next_offset <= start:
                continue
            if not self._map_segment(segment, transactions):
                break
            # Compaction may have left a gap at the end of the segment.
            end = min(segment.next_offset, job.first_uncleanable_offset)
            self._known[compaction.LATEST_OFFSET] = max(
                self._known[compaction.LATEST_OFFSET], end - 1
            )
        end_offset = int(self._known[compaction.LATEST_OFFSET]) + 1
        if end_offset <= start and start < job.first_uncleanable_offset:
            raise KeysDoNotFit(
                f"log.cleaner.dedupe.buffer.size has room for {self._keys_max} keys per thread, "
                f"but the batch at offset {start} has more"
            )
        self._rules = fixed(np.array([end_offset - 1, *self._rules[1:]], np.int64))
        used = int(self._known[compaction.KEYS]) / self._keys_max
        return Mapped(end_offset=end_offset, buffer_used=used)

    def _map_segment(self, segment: SourceSegment, transactions: CleanedTransactions) -> bool:
        """Map the keys of a segment; False if the table is full."""
        path = self._path(segment, names.LOG)
        start = self._first_dirty_position(segment)
        file = self._disk.open(path)
        try:
            for buffer in read_buffers(file, segment.size_bytes, self._settings.read_bytes, start):
                self._pace(buffer.size_bytes)
                if not self._enter(buffer, fixed(skipped(buffer, transactions)), path):
                    return False
        finally:
            file.close()
        return True

    @property
    def _slots_max(self) -> int:
        """The largest table; one slot always stays empty."""
        return max(self._settings.slots, self._keys_max + 1)

    def _enter(self, buffer: ReadBuffer, is_skipped: NDArray[np.uint8], path: str) -> bool:
        """Map the keys of a buffer; whether all fitted."""
        done = 0
        while True:
            has_all_slots = len(self._table) == self._slots_max
            room = self._keys_max if has_all_slots else len(self._table) // 2
            more, in_order = loops().enter_keys(
                buffer.data,
                fixed(buffer.rows[done:]),
                is_skipped[done:],
                self._job.first_dirty_offset,
                room,
                self._secret,
                self._table,
                self._known,
            )
            done += more
            if not in_order:
                raise _damaged(path, buffer, done)
            if done == len(buffer.rows) or has_all_slots:
                return done == len(buffer.rows)
            # Mapping the batch that did not fit again is idempotent.
            table = np.zeros((min(4 * len(self._table), self._slots_max), 3), np.uint64)
            loops().move_keys(self._table, table)
            self._table = table

    def _first_dirty_position(self, segment: SourceSegment) -> int:
        """A position in a segment at or before its first dirty record."""
        relative = self._job.first_dirty_offset - segment.base_offset
        if relative <= 0:
            return 0
        try:
            data = self._disk.read_file(self._path(segment, names.OFFSET_INDEX))
            index = OffsetIndex.load(data, log_bytes=segment.size_bytes)
        except (FileNotFoundError, CorruptIndex):
            return 0
        return index.position_before(relative)

    # -- segments ---------------------------------------------------------------------------------

    def clean(self, segments: Sequence[SourceSegment]) -> Cleaned:
        """Write one segment from these, in offset order. Raises CorruptRecord, OSError."""
        target = CleanedSegment(
            self._disk,
            self._job.directory,
            segments[0].base_offset,
            index_interval_bytes=self._job.index_interval_bytes,
        )
        counts = np.zeros(compaction.COUNTS, np.int64)
        self._transactions.kept.clear()
        try:
            for segment in segments:
                self._clean_into(segment, target, counts)
            modified_ms = self._disk.modified_ms(self._path(segments[-1], names.LOG))
            target.finish(self._transactions.kept, modified_ms)
        except BaseException:
            target.close()
            target.remove()
            raise
        return Cleaned(
            size_bytes=target.size_bytes,
            bytes_read=sum(segment.size_bytes for segment in segments),
            records_read=int(counts[compaction.RECORDS_READ]),
            records_kept=int(counts[compaction.RECORDS_KEPT]),
            without_key=int(counts[compaction.WITHOUT_KEY]),
        )

    def _clean_into(
        self, segment: SourceSegment, target: CleanedSegment, counts: NDArray[np.int64]
    ) -> None:
        path = self._path(segment, names.LOG)
        # The whole segment is in the key table.
        is_checked = (
            segment.base_offset >= self._job.first_dirty_offset
            and segment.next_offset - 1 <= self._known[compaction.LATEST_OFFSET]
        )
        file = self._disk.open(path)
        try:
            for buffer in read_buffers(file, segment.size_bytes, self._settings.read_bytes):
                self._pace(buffer.size_bytes)
                results = np.empty((len(buffer.rows), compaction.RESULT_FIELDS), np.int64)
                self._make_room(buffer)
                done = loops().compact(
                    buffer.data,
                    fixed(buffer.rows),
                    is_checked,
                    fixed(self._retention.of(buffer)),
                    self._rules,
                    self._secret,
                    self._table,
                    self._places,
                    self._out,
                    results,
                    counts,
                )
                if done < len(buffer.rows):
                    raise _damaged(path, buffer, done)
                self._append(buffer, results, target)
        finally:
            file.close()

    def _make_room(self, buffer: ReadBuffer) -> None:
        """Enlarge the output arrays for a buffer; they are reused."""
        counts = buffer.rows[:, decoder.RECORD_COUNT]
        most = int(counts.max())
        if most > len(self._places):
            self._places = np.empty((most, compaction.PLACE_FIELDS), np.int64)
        room = buffer.size_bytes + len(buffer.data) + HEADER_BYTES * len(buffer.rows)
        room += compaction.RECORD_GROWTH_BYTES_MAX * int(counts.sum())
        if room > len(self._out):
            self._out = np.empty(room, np.uint8)

    def _append(
        self, buffer: ReadBuffer, results: NDArray[np.int64], target: CleanedSegment
    ) -> None:
        stays = np.flatnonzero(results[:, compaction.OUTCOME] != compaction.DROPPED)
        if not len(stays):
            return
        sizes = (results[:, compaction.OUT_END] - results[:, compaction.OUT_START])[stays]
        pieces: list[ReadableBuffer] = [self._out.data[: int(results[-1, compaction.OUT_END])]]
        codecs = buffer.rows[stays, decoder.ATTRIBUTES] & CODEC_MASK
        is_new = results[stays, compaction.OUTCOME] == compaction.REWRITTEN
        to_pack = np.flatnonzero(is_new & (codecs != 0))
        if len(to_pack):
            pieces = self._packed(results[stays], to_pack.tolist(), sizes)
        newest = results[stays, compaction.KEPT_MAX_TIMESTAMP]
        target.append(pieces, buffer.last_offsets[stays], sizes, newest)
        self._pace(int(sizes.sum()))

    def _packed(
        self, results: NDArray[np.int64], to_pack: list[int], sizes: NDArray[np.int64]
    ) -> list[ReadableBuffer]:
        """The bytes of retained batches, compressed again where they were; updates `sizes`."""
        view = self._out.data
        pieces: list[ReadableBuffer] = []
        begin = 0
        for index in to_pack:
            start, end = (
                int(results[index, compaction.OUT_START]),
                int(results[index, compaction.OUT_END]),
            )
            header = read_header(view, start)
            payload = compress(header.codec, view[start + HEADER_BYTES : end])
            batch = seal(header, payload)
            pieces += (view[begin:start], batch)
            sizes[index] = len(batch)
            begin = end
        pieces.append(view[begin : int(results[-1, compaction.OUT_END])])
        return pieces

    def _path(self, segment: SourceSegment, kind: str) -> str:
        return f"{self._job.directory}/{names.file_name(segment.base_offset, kind)}"


def _damaged(path: str, buffer: ReadBuffer, index: int) -> CorruptRecord:
    offset = int(buffer.rows[index, decoder.BASE_OFFSET])
    return CorruptRecord(f"{path}: the batch at offset {offset} is corrupt")
