"""Shell: segments with messages of format 0 or 1 are rewritten as record batches, once, when their log is opened.

This is the only place that reads anything but magic 2. Segments are checked from the oldest on, up to the first that
begins with a batch; old messages that a recovery finds after batches are converted, too. The new files are durable
before they replace the segment, as after compaction. Offsets, timestamps, keys, values and the modification time stay.
Damage below the recovery point is not converted: the log is not opened. In a part that is being recovered the log ends
at the damage, as with batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.log.epochs import LeaderEpochs
from broker.log.failures import DamagedLogError
from broker.log.recovery.damage import Dropped, log_truncation
from broker.log.recovery.leftovers import unlink_segment
from broker.log.segment.scan import ReadAt
from kafka_ds.process.amounts import counted
from kafka_ds.process.seams import Disk, DiskFile
from kafka_ds.records.batch import MAGIC_POSITION, read_header
from kafka_ds.records.legacy import HEAD_BYTES, MAGICS, Upconverter, entry_bytes, is_message
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import CorruptCheckpoint, decode_epochs, encode_epochs
from kafka_ds.segments.files import read_or_none, replace, unlink_if_there, write_whole
from kafka_ds.segments.index import RELATIVE_OFFSET_MAX

# Positions in an index have 31 bits. A segment that would grow beyond (recompressed less tightly) becomes two.
SEGMENT_BYTES_MAX = 2**31 - 1
READ_BYTES = 1 << 20

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The new files, under `.swap` names now. `dropped`: the damaged part of the segment, and all behind it."""

    messages: int
    bytes_before: int
    bytes_after: int
    dropped: Dropped | None


def begins_old(read: ReadAt, size: int) -> bool:
    """Whether a segment's first entry is a message of format 0 or 1, even a damaged one (that is no torn batch).

    Space that was never written (zeros in preallocated files) has no length.
    """
    head = read(HEAD_BYTES, 0)
    is_one = len(head) == HEAD_BYTES and head[MAGIC_POSITION] in MAGICS
    return is_one and HEAD_BYTES <= entry_bytes(head, 0) <= size


def is_old(read: ReadAt, position: int, end: int) -> bool:
    """Whether a whole message of format 0 or 1 is there: good data of an old Kafka, no damage."""
    head = read(HEAD_BYTES, position)
    if len(head) < HEAD_BYTES or not HEAD_BYTES <= entry_bytes(head, 0) <= end - position:
        return False
    return is_message(read(entry_bytes(head, 0), position))


def convert(
    disk: Disk,
    directory: str,
    base_offset: int,
    *,
    is_below_recovery_point: bool,
    first_offset: int,
    behind: Sequence[int],
) -> Converted:
    """Write a segment's batches under `.swap` names; finishing leftovers then swaps them in.

    `is_below_recovery_point`: it must be intact, else raise DamagedLogError. `first_offset`: the log's first offset.
    `behind`: the segments after this one; if it is corrupt, they are deleted before it is truncated, so that a crash
    leaves no gap.
    """
    path = f"{directory}/{names.file_name(base_offset, names.LOG)}"
    known, is_changed = _with_first_epoch(disk, directory, first_offset)
    epochs = LeaderEpochs(known)
    parts = _Parts(disk, directory, base_offset)
    upconverter = Upconverter(
        next_offset=base_offset, leader_epoch=max(epochs.epoch_for_offset(base_offset), 0)
    )
    file = disk.open(path)
    try:
        size = file.size()
        consumed = _pour(file, size, upconverter, parts)
        if consumed < size and is_below_recovery_point:
            why = upconverter.damage or "truncated"
            raise DamagedLogError(
                f"{path}: damaged at byte {consumed} of {size} ({why}), so its messages of format 0 or 1 stay. To do "
                f"without what is behind the damage, keep a copy, and take {names.RECOVERY_POINT_CHECKPOINT} and "
                f"{names.CLEAN_SHUTDOWN} out of the log directory: all its logs are recovered then, and each is "
                "deleted from its first damage on"
            )
        parts.finish(disk.modified_ms(path))
        if is_changed:
            checkpoint = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"
            replace(disk, checkpoint, encode_epochs(known), durable=True)
    except BaseException:
        parts.remove()
        raise
    finally:
        parts.close()
        file.close()
    dropped = None
    if consumed < size:
        dropped = _dropped(disk, path, upconverter, consumed, size, behind)
        for base in behind:
            unlink_segment(disk, directory, base)
    parts.swap()
    return Converted(
        messages=upconverter.messages,
        bytes_before=size,
        bytes_after=parts.bytes_written,
        dropped=dropped,
    )


def _dropped(
    disk: Disk, path: str, upconverter: Upconverter, consumed: int, size: int, behind: Sequence[int]
) -> Dropped:
    """Log the damaged end of a segment, and the segments behind it."""
    folder = path.rpartition("/")[0]
    paths = [f"{folder}/{names.file_name(base, names.LOG)}" for base in behind]
    offset = upconverter.next_offset
    dropped = Dropped(
        offset=offset,
        end_offset=max([offset, *behind]),
        size_bytes=size - consumed + sum(map(disk.size, paths)),
    )
    reason = upconverter.damage or "truncated"
    log_truncation(path, consumed, reason, dropped, segments_behind=len(behind))
    return dropped


def _pour(file: DiskFile, size: int, upconverter: Upconverter, parts: _Parts) -> int:
    """Convert a file; returns how many of its bytes were good."""
    position, wanted = 0, READ_BYTES
    while position < size and upconverter.damage is None:
        data = file.read(min(wanted, size - position), position)
        ready, consumed = upconverter.feed(memoryview(data))
        parts.append(ready)
        position += consumed
        if consumed:
            wanted = READ_BYTES
        elif wanted >= size - position or len(data) < HEAD_BYTES:
            break  # The last entry is longer than the file.
        else:
            wanted = max(entry_bytes(data, 0), 2 * wanted)
    parts.append(upconverter.finish())
    return position


def _with_first_epoch(
    disk: Disk, directory: str, first_offset: int
) -> tuple[list[tuple[int, int]], bool]:
    """Let a log's first epoch begin where the log does: messages have none, and rows of the lake need one.

    Returns the epochs, and whether the checkpoint has to be changed.
    """
    try:
        path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"
        known = list(decode_epochs(read_or_none(disk, path) or b""))
    except CorruptCheckpoint:
        known = []
    if known and known[0][1] <= first_offset:
        return known, False
    later = known[1:] if known and known[0][0] == 0 else known
    return [(0, first_offset), *later], True


class _Parts:
    """What a segment becomes: usually one file, under `.cleaned` names until it is whole."""

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_offset = base_offset
        self._offsets: list[int] = []
        self._file: DiskFile | None = None
        self._size = 0
        self.bytes_written = 0
        self._begin(base_offset)

    def _path(self, offset: int, kind: str) -> str:
        return f"{self._directory}/{names.file_name(offset, kind)}"

    def _begin(self, offset: int) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
        self._offsets.append(offset)
        self._file = self._disk.open(self._path(offset, names.LOG) + names.CLEANED, create=True)
        self._file.truncate(0)
        self._size = 0

    def append(self, batches: Iterable[bytes]) -> None:
        for batch in batches:
            header = read_header(batch)
            is_far = header.last_offset - self._offsets[-1] > RELATIVE_OFFSET_MAX
            if self._size and (is_far or self._size + len(batch) > SEGMENT_BYTES_MAX):
                self._begin(header.base_offset)
            self._write(batch)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        written = 0
        while written < len(data):  # A short write is a full disk: the next write raises.
            more = self._file.write(memoryview(data)[written:], self._size + written)
            if more <= 0:
                raise OSError(
                    f"{self._file.path}: {len(data) - written} bytes could not be written"
                )
            written += more
        self._size += written
        self.bytes_written += written

    def finish(self, modified_ms: int) -> None:
        """Flush the new segments, and copy the old one's transaction index: no record has changed its offset."""
        assert self._file is not None
        self._file.sync()
        aborted = read_or_none(
            self._disk, self._path(self._segment_offset, names.TRANSACTION_INDEX)
        )
        if aborted:
            path = self._path(self._offsets[-1], names.TRANSACTION_INDEX) + names.CLEANED
            write_whole(self._disk, path, aborted)
            file = self._disk.open(path)
            try:
                file.sync()
            finally:
                file.close()
        for offset in self._offsets:
            path = self._path(offset, names.LOG) + names.CLEANED
            self._disk.set_modified_ms(path, modified_ms)
        self._disk.sync_directory(self._directory)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        for offset in self._offsets:
            for kind in (names.LOG, names.TRANSACTION_INDEX):
                unlink_if_there(self._disk, self._path(offset, kind) + names.CLEANED)

    def swap(self) -> None:
        """Rename from the last on: while one is `.cleaned` the others do not count. Each one's `.log` comes last."""
        for offset in reversed(self._offsets):
            for kind in (names.TRANSACTION_INDEX, names.LOG):
                path = self._path(offset, kind)
                if self._disk.exists(path + names.CLEANED):
                    self._disk.rename(path + names.CLEANED, path + names.SWAP)
        self._disk.sync_directory(self._directory)


def log_conversion(directory: str, converted: Sequence[Converted]) -> None:
    """Log what was done."""
    if converted:
        _LOGGER.warning(
            "%s: %s of formats 0 and 1 in %s converted to record batches: %d bytes, %d before",
            directory,
            counted(sum(each.messages for each in converted), "message"),
            counted(len(converted), "segment"),
            sum(each.bytes_after for each in converted),
            sum(each.bytes_before for each in converted),
        )
