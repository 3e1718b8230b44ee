"""Pure: the three indexes of a segment, in memory as in the file: offset index, time index and transaction index.

Offset index: an entry of 8 bytes per index.interval.bytes: a batch's last offset, relative to the base offset, and its
position. Time index: entries of 12 bytes: the max timestamp so far and the last offset of its batch; both ascend
strictly. Transaction index: 34 bytes per aborted transaction (KIP-98). The zeros at the end of a preallocated file are
dropped.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
TRANSACTION_INDEX_VERSION = 0

OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size
RELATIVE_OFFSET_MAX = 2**31 - 1


class AbortedTxn(NamedTuple):
    """An aborted transaction, with its marker at `last_offset` (an entry of .txnindex)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CorruptIndex(Exception):
    """An index does not fit its segment; it is rebuilt from the segment."""


class OffsetIndex:
    """Maps offsets to positions in the .log file."""

    __slots__ = ("_data", "count")

    def __init__(self, data: bytearray | None = None) -> None:
        self._data = bytearray() if data is None else data
        self.count = len(self._data) // OFFSET_ENTRY_BYTES

    @classmethod
    def load(cls, data: bytes, *, log_bytes: int) -> OffsetIndex:
        """Parse a file; raises CorruptIndex if it does not fit a segment of that size."""
        index = cls(_without_zeros(data, OFFSET_ENTRY_BYTES))
        if index.count:
            offset, position = index.entry(index.count - 1)
            first_offset, first_position = index.entry(0)
            if not (
                0 <= first_offset <= offset
                and 0 < first_position <= position < log_bytes
                and offset - first_offset >= index.count - 1
            ):
                raise CorruptIndex(f"last entry ({offset}, {position}) of {log_bytes} bytes")
        return index

    @property
    def data(self) -> bytearray:
        return self._data

    def entry(self, index: int) -> tuple[int, int]:
        """(relative offset, position)."""
        offset, position = _OFFSET_ENTRY.unpack_from(self._data, index * OFFSET_ENTRY_BYTES)
        return offset, position

    def append(self, relative_offset: int, position: int) -> None:
        """Add the batch that ends at this offset and begins at this position of the .log file."""
        self._data += _OFFSET_ENTRY.pack(relative_offset, position)
        self.count += 1

    def position_before(self, relative_offset: int) -> int:
        """The position of the last indexed batch that begins no later than this offset's."""
        data = self._data
        # An entry has the LAST offset of its batch, so the batch of an equal entry may contain the offset.
        at = bisect_right(
            range(self.count),
            relative_offset,
            key=lambda i: _OFFSET_ENTRY.unpack_from(data, i * OFFSET_ENTRY_BYTES)[0],
        )
        return self.entry(at - 1)[1] if at else 0

    def entry_not_after(self, position: int) -> tuple[int, int] | None:
        """The last entry whose batch begins at or before a position."""
        data = self._data
        at = bisect_right(
            range(self.count),
            position,
            key=lambda i: _OFFSET_ENTRY.unpack_from(data, i * OFFSET_ENTRY_BYTES)[1],
        )
        return self.entry(at - 1) if at else None

    def without(self, position: int) -> OffsetIndex:
        """This index without the batches that begin at or after a position."""
        kept = self.count
        while kept and self.entry(kept - 1)[1] >= position:
            kept -= 1
        return OffsetIndex(self._data[: kept * OFFSET_ENTRY_BYTES])


class TimeIndex:
    """Maps timestamps to offsets before which all records are older."""

    __slots__ = ("_data", "count", "last_timestamp_ms")

    def __init__(self, data: bytearray | None = None) -> None:
        self._data = bytearray() if data is None else data
        self.count = len(self._data) // TIME_ENTRY_BYTES
        self.last_timestamp_ms = self.entry(self.count - 1)[0] if self.count else -1

    @classmethod
    def load(cls, data: bytes, *, last_relative_offset: int) -> TimeIndex:
        """Parse a file; raises CorruptIndex if it does not fit a segment that ends there."""
        index = cls(_without_zeros(data, TIME_ENTRY_BYTES))
        if index.count:
            first_timestamp, first_offset = index.entry(0)
            timestamp, offset = index.entry(index.count - 1)
            if not (
                0 <= first_timestamp <= timestamp
                and 0 <= first_offset <= offset <= last_relative_offset
            ):
                raise CorruptIndex(f"last entry ({timestamp}, {offset})")
        return index

    @property
    def data(self) -> bytearray:
        return self._data

    @property
    def last_entry(self) -> tuple[int, int] | None:
        return self.entry(self.count - 1) if self.count else None

    def entry(self, index: int) -> tuple[int, int]:
        """(timestamp, relative offset)."""
        timestamp, offset = _TIME_ENTRY.unpack_from(self._data, index * TIME_ENTRY_BYTES)
        return timestamp, offset

    def append_if_later(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry if the timestamp is later than the last one's."""
        if timestamp_ms > self.last_timestamp_ms:
            self._data += _TIME_ENTRY.pack(timestamp_ms, relative_offset)
            self.count += 1
            self.last_timestamp_ms = timestamp_ms

    def offset_before(self, timestamp_ms: int) -> int:
        """A relative offset; all batches before its batch are older than the timestamp."""
        data = self._data
        at = bisect_right(
            range(self.count),
            timestamp_ms - 1,
            key=lambda i: _TIME_ENTRY.unpack_from(data, i * TIME_ENTRY_BYTES)[0],
        )
        return self.entry(at - 1)[1] if at else 0

    def without(self, relative_offset: int) -> TimeIndex:
        """This index without the batches that end at or after an offset."""
        kept = self.count
        while kept and self.entry(kept - 1)[1] >= relative_offset:
            kept -= 1
        return TimeIndex(self._data[: kept * TIME_ENTRY_BYTES])


def encode_aborted(transactions: Iterable[AbortedTxn]) -> bytes:
    """The content of a .txnindex file."""
    return b"".join(_TRANSACTION_ENTRY.pack(TRANSACTION_INDEX_VERSION, *t) for t in transactions)


def decode_aborted(data: bytes) -> list[AbortedTxn]:
    """The entries of a .txnindex; raises CorruptIndex."""
    if len(data) % _TRANSACTION_ENTRY.size:
        raise CorruptIndex(f"a transaction index of {len(data)} bytes")
    entries = []
    for version, *fields in _TRANSACTION_ENTRY.iter_unpack(data):
        if version != TRANSACTION_INDEX_VERSION:
            raise CorruptIndex(f"a transaction index entry of version {version}")
        entries.append(AbortedTxn(*fields))
    return entries


def _without_zeros(data: bytes, entry_bytes: int) -> bytearray:
    """The entries of a file that may have been preallocated and not trimmed."""
    used = len(data.rstrip(b"\0"))
    used += -used % entry_bytes
    # An entry may end with zeros, but is not all zeros: position 0 is not indexed. The exception is a first record with
    # timestamp 0 in the time index; a file of one entry was not preallocated.
    if len(data) == entry_bytes:
        used = entry_bytes
    if used > len(data):
        raise CorruptIndex(f"{len(data)} bytes are not whole entries")
    return bytearray(data[:used])
