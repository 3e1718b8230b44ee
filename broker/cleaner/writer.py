"""Shell: writes a new segment with the suffix `.cleaned`: batches and indexes.

It is invalid until `finish` has made it durable; the next start removes unfinished files (`broker.log.recovery`). It
gets the modification time of the newest segment that it replaces, by which records without timestamps expire.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from broker.cleaner.loops import loops
from kafka_ds.process.seams import Disk, DiskFile, ReadableBuffer
from kafka_ds.records import compaction
from kafka_ds.records.arrays import fixed
from kafka_ds.segments import names
from kafka_ds.segments.files import unlink_if_there
from kafka_ds.segments.index import AbortedTxn, encode_aborted

_OFFSET_ENTRIES = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRIES = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class CleanedSegment:
    """A cleaned segment being written."""

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, *, index_interval_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._state = np.zeros(compaction.INDEX_STATE, np.int64)
        self._state[compaction.NEWEST_MS] = self._state[compaction.LAST_ENTRY_MS] = -1
        self._state[compaction.NEWEST_OFFSET] = base_offset
        self._offset_entries: list[NDArray[np.int64]] = []
        self._time_entries: list[NDArray[np.int64]] = []
        self.remove()
        self._file = self._create(names.LOG)
        self.size_bytes = 0

    def _path(self, kind: str) -> str:
        return f"{self._directory}/{names.file_name(self.base_offset, kind)}{names.CLEANED}"

    def _create(self, kind: str) -> DiskFile:
        return self._disk.open(self._path(kind), create=True)

    def remove(self) -> None:
        """Delete its files."""
        for kind in names.SEGMENT_KINDS:
            unlink_if_there(self._disk, self._path(kind))

    def append(
        self,
        pieces: Iterable[ReadableBuffer],
        last_offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        timestamps: NDArray[np.int64],
    ) -> None:
        """Append batches: their bytes, and the last offset, size and largest timestamp of each."""
        for piece in pieces:
            self.size_bytes += _write(self._file, piece, self.size_bytes)
        count = len(last_offsets)
        offsets, times = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
        offset_count, time_count = loops().index_entries(
            fixed(last_offsets),
            fixed(sizes),
            fixed(timestamps),
            self._interval_bytes,
            self._state,
            offsets,
            times,
        )
        if offset_count:
            self._offset_entries.append(offsets[:offset_count].copy())
            self._time_entries.append(times[:time_count].copy())
        assert self._state[compaction.LOG_POSITION] == self.size_bytes

    def finish(self, aborted: Iterable[AbortedTxn], modified_ms: int) -> None:
        """Write the indexes and make everything durable."""
        state = self._state
        if state[compaction.NEWEST_MS] > state[compaction.LAST_ENTRY_MS]:
            last = state[[compaction.NEWEST_MS, compaction.NEWEST_OFFSET]]
            self._time_entries.append(last.reshape(1, 2))
        parts = {
            names.OFFSET_INDEX: self._encoded(self._offset_entries, _OFFSET_ENTRIES),
            names.TIME_INDEX: self._encoded(self._time_entries, _TIME_ENTRIES),
        }
        transactions = encode_aborted(aborted)
        if transactions:
            parts[names.TRANSACTION_INDEX] = transactions
        for kind, data in parts.items():
            file = self._create(kind)
            try:
                _write(file, data, 0)
                file.sync()
            finally:
                file.close()
        self._file.sync()
        self.close()
        self._disk.set_modified_ms(self._path(names.LOG), modified_ms)

    def _encoded(self, entries: list[NDArray[np.int64]], kind: np.dtype[np.void]) -> bytes:
        rows = np.concatenate(entries) if entries else np.empty((0, 2), np.int64)
        encoded = np.empty(len(rows), kind)
        for column, name in enumerate(kind.names or ()):
            base = self.base_offset if name == "offset" else 0
            encoded[name] = rows[:, column] - base
        return encoded.tobytes()

    def close(self) -> None:
        """Close its file."""
        self._file.close()


def _write(file: DiskFile, data: ReadableBuffer, position: int) -> int:
    view = memoryview(data)
    written = 0
    while written < len(view):  # After a short write to a full disk the next write raises.
        more = file.write(view[written:], position + written)
        if more <= 0:
            raise OSError(f"{file.path}: {len(view) - written} bytes were not written")
        written += more
    return written
