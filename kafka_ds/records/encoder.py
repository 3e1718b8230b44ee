"""Pure: the loops that convert columns to record batches; `kafka_ds.records.kernel` compiles them.

- The offsets of one call's batches are contiguous, so that readers get past offsets without a record.
- A new batch begins if the maximum size is reached, or if leader epoch, timestamp type or, with LogAppendTime, the
  timestamp changes.
- The caller fills in the header: 61 bytes are left before the records.
- Positions are signed in arithmetic and unsigned as indexes, as in `kafka_ds.records.decoder`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from kafka_ds.records.arrays import read_only

__all__ = [
    "NO_BINARY",
    "NO_HEADERS",
    "BinaryColumn",
    "Columns",
    "HeaderColumns",
    "encode",
    "rows_of",
]

U = np.uint64
# Reference counts and calls (for a varint) would take ten times as long.
inlined = register_jitable(_nrt=False, forceinline=True)
Int = Any  # an int in Python, 64 signed bits once compiled

# The columns of a row that describes a batch.
FIRST_ROW, END_ROW, START, END, BASE_OFFSET, MAX_TIMESTAMP = range(6)
BATCH_FIELDS = 6

HEADER_BYTES = 61
OFFSET_DELTA_MAX = (1 << 31) - 1
LOG_APPEND_TIME = 1

# The most bytes of a record apart from its keys and values: the varints of length, timestamp, offset, key length, value
# length and header count, and the attributes.
RECORD_OVERHEAD_BYTES_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD_BYTES_MAX = 5 + 5


class BinaryColumn(NamedTuple):
    """Arrow's layout, but with a byte per row for validity, and none if no row is null."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.uint8]


class HeaderColumns(NamedTuple):
    """The headers of all rows: `offsets` delimit those of a row, and are empty if no row has any.

    If `raw` is not null in a row, its bytes are the row's header section.
    """

    offsets: NDArray[np.int32]
    valid: NDArray[np.uint8]
    keys: BinaryColumn
    values: BinaryColumn
    raw: BinaryColumn


class Columns(NamedTuple):
    """The rows that become records."""

    offset: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    leader_epoch: NDArray[np.int32]
    timestamp_type: NDArray[np.int32]
    key: BinaryColumn
    value: BinaryColumn
    headers: HeaderColumns


_NO_BYTES = read_only(None, np.uint8)
_NO_INTS = read_only(None, np.int32)
NO_BINARY = BinaryColumn(_NO_INTS, _NO_BYTES, _NO_BYTES)
NO_HEADERS = HeaderColumns(_NO_INTS, _NO_BYTES, NO_BINARY, NO_BINARY, NO_BINARY)


def rows_of(columns: Columns, low: int, high: int) -> Columns:
    """The rows `low` to `high` (exclusive), as views."""

    def binary(column: BinaryColumn) -> BinaryColumn:
        return BinaryColumn(column.offsets[low : high + 1], column.data, column.valid[low:high])

    headers = columns.headers
    return Columns(
        offset=columns.offset[low:high],
        timestamp=columns.timestamp[low:high],
        leader_epoch=columns.leader_epoch[low:high],
        timestamp_type=columns.timestamp_type[low:high],
        key=binary(columns.key),
        value=binary(columns.value),
        headers=headers._replace(
            offsets=headers.offsets[low : high + 1],
            valid=headers.valid[low:high],
            raw=binary(headers.raw),
        ),
    )


@inlined
def _zigzag(number: Int) -> Any:
    signed = np.int64(number)
    return U(signed << np.int64(1)) ^ U(signed >> np.int64(63))


@inlined
def varint_bytes(number: Int) -> Int:
    rest = _zigzag(number) >> U(7)
    size = 1
    while rest > U(0):
        rest >>= U(7)
        size += 1
    return size


@inlined
def put_varint(out: NDArray[np.uint8], at: Int, number: Int) -> Int:
    rest = _zigzag(number)
    while rest > U(0x7F):
        out[U(at)] = np.uint8(rest & U(0x7F) | U(0x80))
        rest >>= U(7)
        at += 1
    out[U(at)] = np.uint8(rest)
    return at + 1


@inlined
def _put_bytes(
    out: NDArray[np.uint8], at: Int, data: NDArray[np.uint8], start: Int, length: Int
) -> Int:
    target = U(at)
    source = U(start)
    for i in range(U(length)):
        out[target + i] = data[source + i]
    return at + length


@inlined
def _is_null(column: BinaryColumn, row: Int) -> bool:
    return len(column.valid) > 0 and column.valid[U(row)] == 0


@inlined
def _field_bytes(column: BinaryColumn, row: Int) -> Int:
    """The bytes of a nullable field with its length."""
    if _is_null(column, row):
        return 1
    length = np.int64(column.offsets[U(row + 1)]) - np.int64(column.offsets[U(row)])
    return varint_bytes(length) + length


@inlined
def _put_field(out: NDArray[np.uint8], at: Int, column: BinaryColumn, row: Int) -> Int:
    if _is_null(column, row):
        return put_varint(out, at, -1)
    start = np.int64(column.offsets[U(row)])
    length = np.int64(column.offsets[U(row + 1)]) - start
    return _put_bytes(out, put_varint(out, at, length), column.data, start, length)


# -- headers ------------------------------------------------------------------------------------


@inlined
def _has_raw(headers: HeaderColumns, row: Int) -> bool:
    return len(headers.raw.offsets) > 0 and not _is_null(headers.raw, row)


@inlined
def _header_range(headers: HeaderColumns, row: Int) -> tuple[Int, Int]:
    if len(headers.offsets) == 0 or (len(headers.valid) > 0 and headers.valid[U(row)] == 0):
        return np.int64(0), np.int64(0)
    return np.int64(headers.offsets[U(row)]), np.int64(headers.offsets[U(row + 1)])


@inlined
def _headers_bytes(headers: HeaderColumns, row: Int) -> Int:
    if _has_raw(headers, row):
        offsets = headers.raw.offsets
        return np.int64(offsets[U(row + 1)]) - np.int64(offsets[U(row)])
    start, end = _header_range(headers, row)
    size = varint_bytes(end - start)
    for index in range(start, end):
        size += _field_bytes(headers.keys, index) + _field_bytes(headers.values, index)
    return size


@inlined
def _put_headers(out: NDArray[np.uint8], at: Int, headers: HeaderColumns, row: Int) -> Int:
    if _has_raw(headers, row):
        start = np.int64(headers.raw.offsets[U(row)])
        length = np.int64(headers.raw.offsets[U(row + 1)]) - start
        return _put_bytes(out, at, headers.raw.data, start, length)
    start, end = _header_range(headers, row)
    at = put_varint(out, at, end - start)
    for index in range(start, end):
        at = _put_field(out, at, headers.keys, index)
        at = _put_field(out, at, headers.values, index)
    return at


# -- batches ------------------------------------------------------------------------------------


@inlined
def _record_bytes(columns: Columns, row: Int, base_offset: Int, base_timestamp: Int) -> Int:
    """The bytes of a record without its length prefix."""
    r = U(row)
    return (
        1
        + varint_bytes(columns.timestamp[r] - base_timestamp)
        + varint_bytes(columns.offset[r] - base_offset)
        + _field_bytes(columns.key, row)
        + _field_bytes(columns.value, row)
        + _headers_bytes(columns.headers, row)
    )


@inlined
def _put_record(
    out: NDArray[np.uint8],
    at: Int,
    columns: Columns,
    row: Int,
    base_offset: Int,
    base_timestamp: Int,
    size: Int,
) -> Int:
    r = U(row)
    at = put_varint(out, at, size)
    out[U(at)] = 0
    at = put_varint(out, at + 1, columns.timestamp[r] - base_timestamp)
    at = put_varint(out, at, columns.offset[r] - base_offset)
    at = _put_field(out, at, columns.key, row)
    at = _put_field(out, at, columns.value, row)
    return _put_headers(out, at, columns.headers, row)


@inlined
def _begins_batch(columns: Columns, row: Int, first_row: Int, base_offset: Int) -> bool:
    """Whether this row needs another batch than `first_row`, whatever its size."""
    r = U(row)
    first = U(first_row)
    if columns.leader_epoch[r] != columns.leader_epoch[first]:
        return True
    if columns.timestamp_type[r] != columns.timestamp_type[first]:
        return True
    if columns.offset[r] - base_offset > OFFSET_DELTA_MAX:
        return True
    is_log_append = columns.timestamp_type[r] == LOG_APPEND_TIME
    return bool(is_log_append and columns.timestamp[r] != columns.timestamp[first])


@inlined
def _put_batch(
    columns: Columns,
    first_row: Int,
    base_offset: Int,
    bytes_max: Int,
    out: NDArray[np.uint8],
    start: Int,
) -> tuple[Int, Int, Int]:
    """Write a batch from `first_row` on: the row and the position after it, and its max timestamp."""
    base_timestamp = columns.timestamp[U(first_row)]
    max_timestamp = base_timestamp
    at = start + HEADER_BYTES
    row = first_row
    while row < len(columns.offset):
        if row > first_row and _begins_batch(columns, row, first_row, base_offset):
            break
        size = _record_bytes(columns, row, base_offset, base_timestamp)
        if row > first_row and at + varint_bytes(size) + size - start > bytes_max:
            break
        at = _put_record(out, at, columns, row, base_offset, base_timestamp, size)
        max_timestamp = max(max_timestamp, columns.timestamp[U(row)])
        row += 1
    return row, at, max_timestamp


def encode(
    columns: Columns,
    first_offset: Int,
    bytes_max: Int,
    out: NDArray[np.uint8],
    batches: NDArray[np.int64],
) -> Int:
    """Write all rows, which are sorted by offset, as batches; their number. `batches` describes each.

    After a gap that is wider than a batch can span, the next base offset is that of the row; the caller fills the gap.
    """
    row = np.int64(0)
    at = np.int64(0)
    count = 0
    base_offset = np.int64(first_offset)
    while row < len(columns.offset):
        if columns.offset[U(row)] - base_offset > OFFSET_DELTA_MAX:
            base_offset = columns.offset[U(row)]
        end_row, end, max_timestamp = _put_batch(columns, row, base_offset, bytes_max, out, at)
        batch = batches[count]
        batch[FIRST_ROW] = row
        batch[END_ROW] = end_row
        batch[START] = at
        batch[END] = end
        batch[BASE_OFFSET] = base_offset
        batch[MAX_TIMESTAMP] = max_timestamp
        count += 1
        base_offset = columns.offset[U(end_row - 1)] + 1
        row = end_row
        at = end
    return count
