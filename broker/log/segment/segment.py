"""Shell: one segment of a log: its file of batches, and its indexes.

A batch is written before anything in memory knows of it; a failed write is truncated again. Index entries are written
when the segment is flushed, rolled or closed, never with each batch: after a crash all above the recovery point is
scanned and indexed again. Nothing of a rolled segment is in memory until it is asked for. Any thread may ask, while the
event loop's thread renames the files or puts a cleaned segment in its place: what was read under a name that is no
longer the segment's is dropped, and read again under the new name.
"""

from __future__ import annotations

import logging
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from broker.log.config import LogConfig
from broker.log.segment.aborted import TransactionIndex
from broker.log.segment.scan import LOOK_BYTES, SCAN_BYTES, ReadAt, headers
from kafka_ds.process.seams import Disk, DiskFile, ReadableBuffer
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import NO_TIMESTAMP, BatchHeader
from kafka_ds.segments import names
from kafka_ds.segments.files import extend, sync_file
from kafka_ds.segments.index import (
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_BYTES,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
)

_LOGGER = logging.getLogger(__name__)

# Places of the last batches appended, kept so that reads at the tail need no index and no disk.
TAIL_BATCHES_MAX = 512
# Where reads have ended, by the offset that comes there: a sequential reader comes back for it.
READ_ENDS_MAX = 16


class Segment:
    """Batches from `base_offset` up to `next_offset`, in one file."""

    __slots__ = (
        "_read_ends",
        "_disk",
        "_file",
        "_offset_index",
        "_suffix",
        "_tail",
        "_time_index",
        "_written",
        "aborted",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "first_timestamp_ms",
        "index_interval_bytes",
        "invalid_from",
        "is_active",
        "is_damaged",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "next_offset",
        "path",
        "size_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        created_ms: int,
        index_interval_bytes: int,
        size_bytes: int = 0,
        next_offset: int | None = None,
        has_aborted: bool = False,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self._suffix = ""
        self.path = self.file_path(names.LOG)
        self.created_ms = created_ms
        self.index_interval_bytes = index_interval_bytes
        self.size_bytes = size_bytes
        self.next_offset = base_offset if next_offset is None else next_offset
        self.is_active = False
        self.is_damaged = False
        self._file: DiskFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self.aborted = TransactionIndex(
            disk, self.file_path(names.TRANSACTION_INDEX), exists=has_aborted
        )
        # The first byte at which a reader found no batch: the records behind it cannot be read.
        self.invalid_from: int | None = None
        self._read_ends: dict[int, int] = {}
        # Last offsets and positions. Replaced when trimmed, never shortened: a thread may be reading.
        self._tail = (array("q"), array("q"))
        # How much of each index file is known to be what is in memory, -1 if nothing is known.
        self._written = {names.OFFSET_INDEX: -1, names.TIME_INDEX: -1}
        self.bytes_since_index = 0
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        created_ms: int,
        index_interval_bytes: int,
        preallocate_bytes: int = 0,
    ) -> Segment:
        """A new, empty, active segment."""
        segment = cls(
            disk,
            directory,
            base_offset,
            created_ms=created_ms,
            index_interval_bytes=index_interval_bytes,
        )
        segment._file = disk.open(segment.path, create=True)
        # A file of this name can only be a leftover that was not known to be a segment.
        segment._file.truncate(0)
        if preallocate_bytes:
            segment._file.truncate(preallocate_bytes)
        segment.is_active = True
        segment._offset_index = OffsetIndex()
        segment._time_index = TimeIndex()
        return segment

    @property
    def file(self) -> DiskFile:
        """The open .log file. If another thread renames or opens it meanwhile, it is tried again. Raises OSError."""
        while self._file is None:
            path = self.path
            try:
                opened = self._disk.open(path)
            except FileNotFoundError:
                if path == self.path and self._file is None:
                    raise
                continue
            if path == self.path and self._file is None:
                self._file = opened
            else:
                opened.close()
        return self._file

    def file_path(self, kind: str) -> str:
        """The path of one of its files, by the ending."""
        return f"{self.directory}/{names.file_name(self.base_offset, kind)}{self._suffix}"

    def moved(self, directory: str) -> None:
        """The log's folder was renamed."""
        self.directory = directory
        self.renamed(self._suffix)

    def renamed(self, suffix: str) -> None:
        """The segment's files were renamed with this suffix."""
        self._suffix = suffix
        self.path = self.file_path(names.LOG)
        self.aborted.path = self.file_path(names.TRANSACTION_INDEX)

    def update_config(self, config: LogConfig) -> None:
        """The topic's settings are now these."""
        self.index_interval_bytes = config.index_interval_bytes

    def cover_up_to(self, offset: int) -> None:
        """The next segment begins at this offset: those after the last batch have no record."""
        self.next_offset = offset

    # -- appending ------------------------------------------------------------------------------

    def write(self, records: ReadableBuffer) -> None:
        """Write whole batches at the end. After an OSError the file is as it was, or damaged."""
        file = self._file or self.file
        position = self.size_bytes
        size = len(records)
        try:
            written = file.write(records, position)
            while written < size:  # A short write is a full disk: the next write raises.
                more = file.write(memoryview(records)[written:], position + written)
                if more <= 0:
                    raise OSError(f"{self.path}: {size - written} bytes could not be written")
                written += more
        except OSError:
            self.is_damaged = True
            self.truncate_file(position)
            self.is_damaged = False
            raise

    def truncate_file(self, size: int) -> None:
        """Truncate bytes that are not batches, durably: they must not be back after a crash."""
        self.file.truncate(size)
        self.file.sync()

    def note(self, header: BatchHeader) -> None:
        """Account for the batch that was written at the end."""
        position = self.size_bytes
        size = header.batch_length + 12
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.add_index_entries(last_offset, position)
            self.bytes_since_index = 0
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = timestamp
        self.bytes_since_index += size
        last_offsets, positions = self._tail
        positions.append(position)
        last_offsets.append(last_offset)
        if len(last_offsets) > TAIL_BATCHES_MAX:
            kept = TAIL_BATCHES_MAX // 2
            self._tail = (last_offsets[-kept:], positions[-kept:])
        self.next_offset = last_offset + 1
        self.size_bytes = position + size

    def add_index_entries(self, last_offset: int, position: int) -> None:
        """Index the batch that ends at `last_offset`, and the latest time up to it."""
        base_offset = self.base_offset
        self.offset_index.append(last_offset - base_offset, position)
        self.time_index.append_if_later(
            self.max_timestamp_ms, self.max_timestamp_offset - base_offset
        )

    # -- rolling --------------------------------------------------------------------------------

    def should_roll(
        self, config: LogConfig, name: str, *, size: int, last: BatchHeader, now_ms: int
    ) -> bool:
        """Whether batches of that size need a new segment; `last` is their last one's header.

        Time is the records' own if they have one, as in Kafka: old data that is replayed rolls as it did before.
        """
        index_bytes_max = config.segment_index_bytes
        if (
            self.offset_index.count >= index_bytes_max // OFFSET_ENTRY_BYTES
            or self.time_index.count >= index_bytes_max // TIME_ENTRY_BYTES - 1
            # Too far from the base to be indexed.
            or last.last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        ):
            return True
        if not self.size_bytes:
            return False
        if self.size_bytes + size > config.segment_bytes:
            return True
        first_ms = self.first_timestamp()
        waited_ms = last.max_timestamp - first_ms if first_ms >= 0 else now_ms - self.created_ms
        return waited_ms > self.roll_after_ms(config, name)

    def set_back(self, by_ms: int) -> None:
        """The clock was set back: the segment is as old as it was."""
        self.created_ms -= by_ms

    def is_due(self, config: LogConfig, name: str, now_ms: int) -> bool:
        """Whether a segment that gets no more records has been open for segment.ms."""
        if not self.size_bytes:
            return False
        waited_ms = now_ms - self.created_ms
        # Asked of each log each second: without the jitter's hash if it is too early with any.
        if waited_ms + config.segment_jitter_ms < config.segment_ms and not config.is_compacted:
            return False
        return waited_ms > self.roll_after_ms(config, name)

    def roll_after_ms(self, config: LogConfig, name: str) -> int:
        """segment.ms minus a jitter that differs between logs and is constant for each."""
        roll_ms = config.segment_ms
        if config.is_compacted:
            # Only rolled segments are compacted, so none may stay open for longer (KIP-354).
            roll_ms = min(roll_ms, config.max_compaction_lag_ms)
        jitter_ms = min(config.segment_jitter_ms, roll_ms)
        if jitter_ms <= 0:
            return roll_ms
        return roll_ms - zlib.crc32(f"{name}-{self.base_offset}".encode()) % jitter_ms

    # -- reading --------------------------------------------------------------------------------

    def position_of(self, offset: int, read: ReadAt | None = None) -> int:
        """The position of the first batch that ends at or after an offset; the size if none does.

        Raises KafkaError if the batches on the way are damaged: nothing is skipped.
        """
        if not self.base_offset < offset < self.next_offset:
            return 0 if offset < self.next_offset else self.size_bytes
        last_offsets, positions = self._tail
        if last_offsets and offset > last_offsets[0]:
            at = bisect_left(last_offsets, offset)
            return positions[at] if at < len(positions) else self.size_bytes
        known = self._read_ends.get(offset)
        if known is not None:
            return known
        start = self.offset_index.position_before(offset - self.base_offset)
        for position, header in self.batches_from(start, read, buffer_bytes=LOOK_BYTES):
            if header.last_offset >= offset:
                return position
        return self.size_bytes

    def batches_from(
        self, position: int, read: ReadAt | None = None, *, buffer_bytes: int = SCAN_BYTES
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from a batch's position on; raises KafkaError at what is no batch."""
        end = self.size_bytes
        walk = headers(read or self.file.read, position, end, buffer_bytes=buffer_bytes)
        for at, header in walk:
            yield at, header
            position = at + header.size_in_bytes
        if position < end:
            raise self._corrupt(position)

    def _corrupt(self, position: int) -> KafkaError:
        """The error for a reader that meets bytes that are no batch; this broker's log has the details."""
        if self.invalid_from is None or position < self.invalid_from:
            self.invalid_from = position
        _LOGGER.error(
            "%s: Found invalid messages in log segment %s at byte offset %d of %d: the records there cannot be read",
            self.directory.rpartition("/")[2], self.path, position, self.size_bytes,
        )  # fmt: skip
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.path}: no batch at byte {position}")

    def end_within(
        self, start: int, limit: int, max_bytes: int, *, min_one_batch: bool, read: ReadAt
    ) -> tuple[int, int]:
        """The last batch boundary of [start, limit] within max_bytes, and an offset there.

        No record before that boundary has this offset or a higher one. Raises KafkaError as `position_of`.
        """
        entry = self.offset_index.entry_not_after(start + max_bytes)
        if entry is not None and start < entry[1] <= limit:
            end = entry[1]
            for _, header in headers(read, end, self.size_bytes, buffer_bytes=LOOK_BYTES):
                self._remember_end(header.base_offset, end)
                return end, header.base_offset
            return end, self.base_offset + entry[0]
        sound_to, following = start, self.base_offset
        for position, header in headers(read, start, limit, buffer_bytes=LOOK_BYTES):
            sound_to, following = position + header.size_in_bytes, header.next_offset
            if sound_to > start + max_bytes:
                if position == start and min_one_batch:
                    return sound_to, following
                self._remember_end(header.base_offset, position)
                return position, header.base_offset
        # There is more than fits, so only damage ends the walk: what is before it is good.
        if sound_to == start:
            raise self._corrupt(start)
        return sound_to, following

    def _remember_end(self, offset: int, position: int) -> None:
        if len(self._read_ends) >= READ_ENDS_MAX:
            for oldest in list(self._read_ends)[:1]:
                self._read_ends.pop(oldest, None)
        self._read_ends[offset] = position

    # -- indexes --------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        return self._offset_index or self.load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index or self.load_indexes()[1]

    def load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Read both indexes; one that is missing or does not fit this segment is rebuilt from the batches."""
        while True:
            path = self.path
            found = self._read_indexes()
            if path == self.path:
                break
        if found is None:
            return self.rebuild_indexes()
        offsets, times = found
        self._offset_index, self._time_index = offsets, times
        self._written[names.OFFSET_INDEX] = len(offsets.data)
        self._written[names.TIME_INDEX] = len(times.data)
        entry = times.last_entry
        if entry is not None and entry[0] >= self.max_timestamp_ms:
            self.max_timestamp_ms = entry[0]
            self.max_timestamp_offset = self.base_offset + entry[1]
        return offsets, times

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """The indexes in the files, if they fit this segment."""
        try:
            offsets = OffsetIndex.load(
                self._disk.read_file(self.file_path(names.OFFSET_INDEX)),
                log_bytes=self.size_bytes,
            )
            times = TimeIndex.load(
                self._disk.read_file(self.file_path(names.TIME_INDEX)),
                last_relative_offset=max(self.next_offset - 1 - self.base_offset, 0),
            )
        except FileNotFoundError:
            _LOGGER.warning(
                "Could not find an index file corresponding to log file %s, rebuilding indexes...",
                self.path,
            )
            return None
        except CorruptIndex:
            _LOGGER.warning(
                "Found a corrupted index file corresponding to log file %s, rebuilding indexes...",
                self.path,
            )
            return None
        return offsets, times

    def drop_indexes(self) -> None:
        """Forget the indexes of a rolled segment; they are in its files."""
        assert not self.is_active
        self._offset_index = self._time_index = None
        self._forget_places()

    def reset(self) -> tuple[OffsetIndex, TimeIndex]:
        """Forget all that `note` collected and begin new indexes; the file is unchanged."""
        self.size_bytes = 0
        self.next_offset = self.base_offset
        offsets, times = self._offset_index, self._time_index = OffsetIndex(), TimeIndex()
        self._written = {names.OFFSET_INDEX: -1, names.TIME_INDEX: -1}
        self._forget_places()
        self.bytes_since_index = 0
        self.first_timestamp_ms = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        return offsets, times

    def _forget_places(self) -> None:
        self._read_ends.clear()
        self._tail = (array("q"), array("q"))

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild the indexes of a rolled or loaded segment from its headers: aside, as others may be reading here."""
        aside = self._copy()
        offsets, times = aside.reset()
        for _, header in headers(self.file.read, 0, self.size_bytes):
            aside.note(header)
        if aside.size_bytes < self.size_bytes:
            _LOGGER.warning(
                "Found invalid messages in log segment %s at byte offset %d of %d",
                self.path, aside.size_bytes, self.size_bytes,
            )  # fmt: skip
        self.first_timestamp_ms = aside.first_timestamp_ms
        self.max_timestamp_ms = aside.max_timestamp_ms
        self.max_timestamp_offset = aside.max_timestamp_offset
        self._written = aside._written
        self._offset_index, self._time_index = offsets, times
        self.complete_indexes()
        return offsets, times

    def load_tail(self) -> bool:
        """After a clean stop: find the end from index and batches; returns whether all of it is batches."""
        self.next_offset = self.base_offset + RELATIVE_OFFSET_MAX  # Not known yet.
        offsets, _ = self.load_indexes()
        self.next_offset = self.base_offset
        return self._read_tail(offsets.entry(offsets.count - 1)[1] if offsets.count else 0)

    def _read_tail(self, start: int) -> bool:
        """Read what appends need to know from the batches from `start` on; returns whether all is batches."""
        end, offsets = start, self.offset_index
        for position, header in headers(self.file.read, start, self.size_bytes):
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            if position == 0:
                self.first_timestamp_ms = header.max_timestamp
            self.next_offset = header.next_offset
            end = position + header.size_in_bytes
        indexed = offsets.entry(offsets.count - 1)[1] if offsets.count else 0
        self.bytes_since_index = end - indexed
        return end == self.size_bytes

    def first_timestamp(self) -> int:
        """The timestamp of the first batch, by which a roll by time is measured."""
        if self.first_timestamp_ms is None:
            for _, header in headers(self.file.read, 0, self.size_bytes, buffer_bytes=LOOK_BYTES):
                self.first_timestamp_ms = header.max_timestamp
                break
        return NO_TIMESTAMP if self.first_timestamp_ms is None else self.first_timestamp_ms

    def largest_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if no record has one."""
        if self._time_index is None and self.max_timestamp_ms == NO_TIMESTAMP:
            # The last entry is enough, so that retention need not read whole indexes.
            entry = self._last_time_entry()
            if entry is None:
                self.load_indexes()
            else:
                self.max_timestamp_ms = entry[0]
                self.max_timestamp_offset = self.base_offset + entry[1]
        return self.max_timestamp_ms

    def _last_time_entry(self) -> tuple[int, int] | None:
        try:
            file = self._disk.open(self.file_path(names.TIME_INDEX))
        except FileNotFoundError:
            return None
        try:
            size = file.size()
            data = file.read(TIME_ENTRY_BYTES, max(size - TIME_ENTRY_BYTES, 0))
        finally:
            file.close()
        if size % TIME_ENTRY_BYTES or not any(data):
            return None
        return TimeIndex(bytearray(data)).entry(0)

    def write_indexes(self) -> None:
        """Write what is in memory to the index files."""
        if self._offset_index is not None:
            self._write_index(names.OFFSET_INDEX, self._offset_index.data)
        if self._time_index is not None:
            self._write_index(names.TIME_INDEX, self._time_index.data)

    def _write_index(self, kind: str, data: bytearray) -> None:
        known_bytes = self._written[kind]
        if known_bytes < 0 or known_bytes != len(data):
            self._written[kind] = -1
            extend(self._disk, self.file_path(kind), data, known_bytes)
            self._written[kind] = len(data)

    # -- end ------------------------------------------------------------------------------------

    def complete_indexes(self, *, with_aborted: bool = True) -> None:
        """Make the indexes cover all of the segment, in memory and in their files."""
        self.time_index.append_if_later(
            self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset
        )
        self.write_indexes()
        if with_aborted:
            self.aborted.write_if_dirty()

    def become_active(self) -> None:
        """The segment is the last one of its log: records are appended to it."""
        self.is_active = True

    def become_inactive(self) -> None:
        """There are no more appends, or none before the next start."""
        self.complete_indexes()
        if self.file.size() != self.size_bytes:  # Preallocated.
            self.file.truncate(self.size_bytes)
        self.is_active = False
        self._tail = (array("q"), array("q"))

    def without(self, offset: int) -> Segment:
        """This segment without the batches that hold this offset or a later one; nothing has changed yet.

        It ends at `offset`, as in Kafka, even if compaction removed what was right before it: no offset is used twice.
        It ends earlier only if the first truncated batch began earlier. Raises OSError, CorruptIndex.
        """
        position, end_offset = self.position_of(offset), min(offset, self.next_offset)
        for _, header in headers(
            self.file.read, position, self.size_bytes, buffer_bytes=LOOK_BYTES
        ):
            end_offset = min(end_offset, header.base_offset)
            break
        left = self._copy()
        left._offset_index = offsets = self.offset_index.without(position)
        left._time_index = times = self.time_index.without(offset - self.base_offset)
        left._read_ends, left._tail = {}, (array("q"), array("q"))
        left.invalid_from = None
        left.first_timestamp_ms = self.first_timestamp_ms if position else None
        # Unknown: an index that has grown again may be as long as the file's content.
        left._written = dict.fromkeys(self._written, -1)
        left.aborted, left.size_bytes, left.is_active = self.aborted.without(offset), position, True
        left.max_timestamp_ms, left.max_timestamp_offset, start = NO_TIMESTAMP, self.base_offset, 0
        if times.last_entry is not None:
            # A later, truncated time hid those between the last that is left and the end.
            left.max_timestamp_ms, last_offset = times.last_entry
            left.max_timestamp_offset += last_offset
            start = offsets.position_before(last_offset)
        whole = left._read_tail(start)
        assert whole
        left.next_offset = end_offset
        return left

    def shorten(self, left: Segment) -> None:
        """Become what `without` returned; the next flush writes the indexes. OSError: nothing has changed."""
        if left.size_bytes < self.size_bytes:
            self.file.truncate(left.size_bytes)
        self._become(left)

    def _copy(self) -> Segment:
        """The same segment in another object."""
        copied = Segment(
            self._disk,
            self.directory,
            self.base_offset,
            created_ms=self.created_ms,
            index_interval_bytes=self.index_interval_bytes,
        )
        copied._become(self)
        return copied

    def _become(self, other: Segment) -> None:
        """Take each field of another one. (Neither `copy` nor a loop over names works if it is compiled.)"""
        self._disk, self._file = other._disk, other._file
        self.directory, self._suffix, self.path = other.directory, other._suffix, other.path
        self.base_offset, self.next_offset = other.base_offset, other.next_offset
        self.created_ms, self.index_interval_bytes = other.created_ms, other.index_interval_bytes
        self.size_bytes, self.is_active = other.size_bytes, other.is_active
        self.is_damaged, self.aborted = other.is_damaged, other.aborted
        self.invalid_from = other.invalid_from
        self._offset_index, self._time_index = other._offset_index, other._time_index
        self._read_ends, self._tail = other._read_ends, other._tail
        self._written, self.bytes_since_index = other._written, other.bytes_since_index
        self.first_timestamp_ms = other.first_timestamp_ms
        self.max_timestamp_ms = other.max_timestamp_ms
        self.max_timestamp_offset = other.max_timestamp_offset

    def sync(self) -> None:
        """Make all of the segment's files durable; for a thread."""
        self.file.sync()
        for kind in (names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX):
            sync_file(self._disk, self.file_path(kind))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
