"""Shell: the batches of a segment file, scanned without its index.

A scan ends at the first bytes that are no batch in its place, as after a torn write: a length beyond the end of the
file, a magic other than 2, or offsets that do not ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kafka_ds.records.batch import HEADER, HEADER_BYTES, MAGIC, BatchHeader, crc_is_valid

ReadAt = Callable[[int, int], bytes | bytearray]
"""(size, position) → bytes, fewer only at the end of the file."""

LOOK_BYTES = 4096 + HEADER_BYTES
SCAN_BYTES = 64 << 10
CHECK_BYTES = 1 << 20


def headers(
    read: ReadAt, start: int, end: int, *, buffer_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in [start, end); checksums are not checked."""
    position = start
    while end - position >= HEADER_BYTES:
        buffer = read(min(buffer_bytes, end - position), position)
        at = 0
        while len(buffer) - at >= HEADER_BYTES:
            header = BatchHeader._make(HEADER.unpack_from(buffer, at))
            size = header.size_in_bytes
            if not _fits(header, size, end - position):
                return
            yield position, header
            at += size
            position += size
        if not at:
            return  # The file is shorter than it should be.


def valid_batches(read: ReadAt, start: int, end: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Position, header and bytes of each whole batch whose checksum holds, up to the first bad."""
    position = start
    while end - position >= HEADER_BYTES:
        buffer = bytes(read(min(CHECK_BYTES, end - position), position))
        at = 0
        while len(buffer) - at >= HEADER_BYTES:
            header = BatchHeader._make(HEADER.unpack_from(buffer, at))
            size = header.size_in_bytes
            if not _fits(header, size, end - position):
                return
            if size > len(buffer) - at:
                if at:
                    break  # Read on from this batch.
                buffer = bytes(read(size, position))
                if len(buffer) < size:
                    return
            if not crc_is_valid(buffer, at, header):
                return
            yield position, header, buffer[at : at + size]
            at += size
            position += size
        if not at:
            return


def _fits(header: BatchHeader, size: int, left: int) -> bool:
    return (
        header.magic == MAGIC
        and HEADER_BYTES <= size <= left
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
    )
