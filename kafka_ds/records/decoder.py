"""Pure: the loops that convert the records of batches to columns; `kafka_ds.records.kernel` compiles them.

- No byte is read outside the batch and none written outside the buffers: every length is compared with the rest of its
  record, and every output has room for all payloads.
- If one record of a batch is malformed, the whole batch is marked as not decoded. Nothing raises.
- Positions are signed in arithmetic and unsigned as indexes: a signed index costs a test for negative values (2 instead
  of 30 GB/s).
- The code uses only numbers and arrays, so that it also runs as plain Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

__all__ = ["Buffers", "decode", "scan"]

U = np.uint64
# Reference counts and calls (for a varint) would take ten times as long.
inlined = register_jitable(_nrt=False, forceinline=True)
Int = Any  # an int in Python, 64 signed bits once compiled

# The columns of a row that describes a batch: positions of the batch and its records, and its header.
POSITION, SIZE, START, END = range(4)
BASE_OFFSET, LEADER_EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = range(4, 10)
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT = range(
    10, 16
)
BATCH_FIELDS = 16

# Why `scan` stopped: the end, a truncated batch, an invalid length or size, a full output.
AT_END, AT_CUT_BATCH, AT_GARBAGE, OUTPUT_FULL = range(4)

# The counters that successive calls of `decode` share.
ROWS, KEY_BYTES, KEY_NULLS, VALUE_BYTES, VALUE_NULLS = range(5)
HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, HEADER_VALUE_NULLS = range(5, 9)
RAW_ROWS, RAW_BYTES = range(9, 11)
COUNTERS = 11

# The wanted columns, as bits; the others are validated, but not written.
WANT_KEY, WANT_VALUE, WANT_HEADERS = 1, 2, 4

HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12
LEGACY_BYTES_MIN = 14
MAGIC_BYTE = 16
MAGIC_V2 = 2
LOG_APPEND_TIME_FLAG = 8


class Buffers(NamedTuple):
    """The output of `decode`: Arrow's layout, but with a byte per value for validity (1: not null)."""

    offset: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    key_offsets: NDArray[np.int32]
    key_data: NDArray[np.uint8]
    key_valid: NDArray[np.uint8]
    value_offsets: NDArray[np.int32]
    value_data: NDArray[np.uint8]
    value_valid: NDArray[np.uint8]
    header_offsets: NDArray[np.int32]
    header_key_offsets: NDArray[np.int32]
    header_key_data: NDArray[np.uint8]
    header_value_offsets: NDArray[np.int32]
    header_value_data: NDArray[np.uint8]
    header_value_valid: NDArray[np.uint8]
    raw_row: NDArray[np.int32]
    raw_end: NDArray[np.int32]
    raw_data: NDArray[np.uint8]
    counters: NDArray[np.int64]
    saved: NDArray[np.int64]


# -- framing ------------------------------------------------------------------------------------


@inlined
def _big_endian(data: NDArray[np.uint8], position: Int, size: Int) -> Any:
    number = U(0)
    for i in range(size):
        number = number << U(8) | U(data[U(position + i)])
    return number


@inlined
def _int16(data: NDArray[np.uint8], position: Int) -> Int:
    return np.int64(np.int16(_big_endian(data, position, 2)))


@inlined
def _int32(data: NDArray[np.uint8], position: Int) -> Int:
    return np.int64(np.int32(_big_endian(data, position, 4)))


@inlined
def _int64(data: NDArray[np.uint8], position: Int) -> Int:
    return np.int64(_big_endian(data, position, 8))


def scan(data: NDArray[np.uint8], position: Int, rows: NDArray[np.int64]) -> tuple[Int, Int, Int]:
    """Fill `rows` with the batches from `position` on: their number, the position where it stopped, and why.

    The row of a batch of another magic has only position, size and magic; other columns are zero.
    """
    count = 0
    length_max = len(data)
    while position < length_max:
        if count == len(rows):
            return count, position, OUTPUT_FULL
        if length_max - position <= MAGIC_BYTE:
            return count, position, AT_CUT_BATCH
        length = _int32(data, position + 8)
        if length < LEGACY_BYTES_MIN:
            return count, position, AT_GARBAGE
        size = length + LOG_OVERHEAD_BYTES
        if size > length_max - position:
            return count, position, AT_CUT_BATCH
        row = rows[count]
        for i in range(BATCH_FIELDS):
            row[i] = 0
        row[POSITION] = position
        row[SIZE] = size
        row[MAGIC] = data[U(position + MAGIC_BYTE)]
        if row[MAGIC] == MAGIC_V2:
            if size < HEADER_BYTES:
                return count, position, AT_GARBAGE
            _read_header(data, position, size, row)
        count += 1
        position += size
    return count, position, AT_END


@inlined
def _read_header(data: NDArray[np.uint8], position: Int, size: Int, row: NDArray[np.int64]) -> None:
    row[START] = position + HEADER_BYTES
    row[END] = position + size
    row[BASE_OFFSET] = _int64(data, position)
    row[LEADER_EPOCH] = _int32(data, position + 12)
    row[CRC] = np.int64(_big_endian(data, position + 17, 4))
    row[ATTRIBUTES] = _int16(data, position + 21)
    row[LAST_OFFSET_DELTA] = _int32(data, position + 23)
    row[BASE_TIMESTAMP] = _int64(data, position + 27)
    row[MAX_TIMESTAMP] = _int64(data, position + 35)
    row[PRODUCER_ID] = _int64(data, position + 43)
    row[PRODUCER_EPOCH] = _int16(data, position + 51)
    row[BASE_SEQUENCE] = _int32(data, position + 53)
    row[RECORD_COUNT] = _int32(data, position + 57)


# -- records ------------------------------------------------------------------------------------


@inlined
def read_varint(data: NDArray[np.uint8], position: Int, end: Int) -> tuple[Int, Int]:
    """A zigzag varint of 32 bits, and the position after it: -1 if there is none."""
    number = U(0)
    shift = U(0)
    while position < end and shift < U(35):
        byte = U(data[U(position)])
        position += 1
        number |= (byte & U(0x7F)) << shift
        if byte < U(0x80):
            number &= U(0xFFFF_FFFF)
            return np.int64(number >> U(1)) ^ -np.int64(number & U(1)), position
        shift += U(7)
    return 0, -1


@inlined
def read_varlong(data: NDArray[np.uint8], position: Int, end: Int) -> tuple[Int, Int]:
    """A zigzag varint of 64 bits, and the position after it: -1 if there is none."""
    number = U(0)
    shift = U(0)
    while position < end and shift < U(70):
        byte = U(data[U(position)])
        position += 1
        number |= (byte & U(0x7F)) << shift
        if byte < U(0x80):
            return np.int64(number >> U(1)) ^ -np.int64(number & U(1)), position
        shift += U(7)
    return 0, -1


@inlined
def read_length(data: NDArray[np.uint8], position: Int, end: Int, least: Int) -> tuple[Int, Int]:
    """A length between `least` (-1 is null) and the number of bytes left; position -1 if it is another."""
    length, position = read_varint(data, position, end)
    if position < 0 or length < least or length > end - position:
        return 0, -1
    return length, position


@inlined
def copy_bytes(
    data: NDArray[np.uint8], position: Int, out: NDArray[np.uint8], at: Int, length: Int
) -> None:
    source = U(position)
    target = U(at)
    for i in range(U(length)):
        out[target + i] = data[source + i]


@inlined
def _key(data: NDArray[np.uint8], position: Int, end: Int, wanted: Int, out: Buffers) -> Int:
    length, position = read_length(data, position, end, -1)
    if position < 0 or wanted & WANT_KEY == 0:
        return position + max(length, 0)
    row = out.counters[ROWS]
    at = out.counters[KEY_BYTES]
    out.key_valid[U(row)] = length >= 0
    if length > 0:
        copy_bytes(data, position, out.key_data, at, length)
        at += length
        position += length
    out.counters[KEY_NULLS] += length < 0
    out.counters[KEY_BYTES] = at
    out.key_offsets[U(row + 1)] = at
    return position


@inlined
def _value(data: NDArray[np.uint8], position: Int, end: Int, wanted: Int, out: Buffers) -> Int:
    length, position = read_length(data, position, end, -1)
    if position < 0 or wanted & WANT_VALUE == 0:
        return position + max(length, 0)
    row = out.counters[ROWS]
    at = out.counters[VALUE_BYTES]
    out.value_valid[U(row)] = length >= 0
    if length > 0:
        copy_bytes(data, position, out.value_data, at, length)
        at += length
        position += length
    out.counters[VALUE_NULLS] += length < 0
    out.counters[VALUE_BYTES] = at
    out.value_offsets[U(row + 1)] = at
    return position


# -- headers ------------------------------------------------------------------------------------


@inlined
def _continuations(data: NDArray[np.uint8], position: Int, end: Int, count: Int) -> bool:
    if end - position < count:
        return False
    ok = True
    for i in range(count):
        ok &= data[U(position + i)] & 0xC0 == 0x80
    return ok


@inlined
def _sequence_bytes(data: NDArray[np.uint8], position: Int, end: Int) -> Int:
    """The number of bytes of the character at this position; 0 if it is invalid (RFC 3629, section 4)."""
    lead = np.int64(data[U(position)])
    second = np.int64(data[U(position + 1)]) if position + 1 < end else 0
    if lead < 0xC2 or lead > 0xF4:
        return 0
    if lead < 0xE0:
        count = 2
    elif lead < 0xF0:
        count = 3
        if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F):
            return 0
    else:
        count = 4
        if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
            return 0
    return count if _continuations(data, position + 1, end, count - 1) else 0


@inlined
def _is_utf8(data: NDArray[np.uint8], position: Int, length: Int) -> bool:
    end = position + length
    while position < end:
        if data[U(position)] < 0x80:
            position += 1
            continue
        count = _sequence_bytes(data, position, end)
        if count == 0:
            return False
        position += count
    return True


@inlined
def _one_header(data: NDArray[np.uint8], position: Int, end: Int, out: Buffers) -> tuple[Int, bool]:
    """Write one header: the position after it (-1: malformed), and whether its key is UTF-8."""
    counters = out.counters
    index = counters[HEADERS]
    length, position = read_length(data, position, end, 0)
    if position < 0:
        return -1, False
    is_utf8 = _is_utf8(data, position, length)
    copy_bytes(data, position, out.header_key_data, counters[HEADER_KEY_BYTES], length)
    counters[HEADER_KEY_BYTES] += length
    out.header_key_offsets[U(index + 1)] = counters[HEADER_KEY_BYTES]
    length, position = read_length(data, position + length, end, -1)
    if position < 0:
        return -1, False
    out.header_value_valid[U(index)] = length >= 0
    if length > 0:
        copy_bytes(data, position, out.header_value_data, counters[HEADER_VALUE_BYTES], length)
        counters[HEADER_VALUE_BYTES] += length
        position += length
    counters[HEADER_VALUE_NULLS] += length < 0
    out.header_value_offsets[U(index + 1)] = counters[HEADER_VALUE_BYTES]
    counters[HEADERS] = index + 1
    return position, is_utf8


@inlined
def skip_headers(data: NDArray[np.uint8], position: Int, end: Int, count: Int) -> Int:
    for _ in range(count):
        length, position = read_length(data, position, end, 0)
        if position < 0:
            return -1
        length, position = read_length(data, position + length, end, -1)
        if position < 0:
            return -1
        position += max(length, 0)
    return position


@inlined
def _headers(data: NDArray[np.uint8], start: Int, end: Int, wanted: Int, out: Buffers) -> Int:
    """Write the headers of a record: the position after them (-1: malformed).

    If a key is not UTF-8, the section's bytes go to `raw_data` instead.
    """
    count, position = read_length(data, start, end, 0)
    if position < 0:
        return -1
    if wanted & WANT_HEADERS == 0:
        return skip_headers(data, position, end, count)
    counters = out.counters
    if count > 0:
        index = counters[HEADERS]
        key_bytes = counters[HEADER_KEY_BYTES]
        value_bytes = counters[HEADER_VALUE_BYTES]
        nulls = counters[HEADER_VALUE_NULLS]
        all_utf8 = True
        for _ in range(count):
            position, is_utf8 = _one_header(data, position, end, out)
            if position < 0:
                return -1
            all_utf8 &= is_utf8
        if not all_utf8:
            counters[HEADERS] = index
            counters[HEADER_KEY_BYTES] = key_bytes
            counters[HEADER_VALUE_BYTES] = value_bytes
            counters[HEADER_VALUE_NULLS] = nulls
            _raw_headers(data, start, position, out)
    out.header_offsets[U(counters[ROWS] + 1)] = counters[HEADERS]
    return position


@inlined
def _raw_headers(data: NDArray[np.uint8], start: Int, end: Int, out: Buffers) -> None:
    counters = out.counters
    copy_bytes(data, start, out.raw_data, counters[RAW_BYTES], end - start)
    counters[RAW_BYTES] += end - start
    out.raw_row[U(counters[RAW_ROWS])] = counters[ROWS]
    out.raw_end[U(counters[RAW_ROWS])] = counters[RAW_BYTES]
    counters[RAW_ROWS] += 1


# -- batches ------------------------------------------------------------------------------------


@inlined
def _record(
    data: NDArray[np.uint8],
    position: Int,
    end: Int,
    batch: NDArray[np.int64],
    previous_delta: Int,
    wanted: Int,
    out: Buffers,
) -> Int:
    """Write the record with the body `data[position:end]`: its offset delta, or -1 if it is malformed."""
    timestamp_delta, position = read_varlong(data, position + 1, end)
    if position < 0:
        return -1
    delta, position = read_varint(data, position, end)
    if position < 0 or delta <= previous_delta or delta > batch[LAST_OFFSET_DELTA]:
        return -1
    position = _key(data, position, end, wanted, out)
    if position < 0:
        return -1
    position = _value(data, position, end, wanted, out)
    if position < 0:
        return -1
    if _headers(data, position, end, wanted, out) != end:
        return -1
    row = U(out.counters[ROWS])
    out.offset[row] = batch[BASE_OFFSET] + delta
    if batch[ATTRIBUTES] & LOG_APPEND_TIME_FLAG:
        out.timestamp[row] = batch[MAX_TIMESTAMP]
    else:
        out.timestamp[row] = batch[BASE_TIMESTAMP] + timestamp_delta
    out.counters[ROWS] += 1
    return delta


@inlined
def _batch(data: NDArray[np.uint8], batch: NDArray[np.int64], wanted: Int, out: Buffers) -> bool:
    position = batch[START]
    end = batch[END]
    delta = np.int64(-1)
    for _ in range(batch[RECORD_COUNT]):
        length, position = read_length(data, position, end, 1)
        if position < 0:
            return False
        delta = _record(data, position, position + length, batch, delta, wanted, out)
        if delta < 0:
            return False
        position += length
    return bool(position == end)


def decode(
    data: NDArray[np.uint8],
    batches: NDArray[np.int64],
    wanted: Int,
    out: Buffers,
    decoded: NDArray[np.uint8],
) -> None:
    """Append the records of these batches to `out`, and mark the batches that were decoded."""
    counters = out.counters
    before = out.saved
    for index in range(len(batches)):
        for i in range(COUNTERS):
            before[i] = counters[i]
        ok = _batch(data, batches[index], wanted, out)
        if not ok:
            for i in range(COUNTERS):
                counters[i] = before[i]
        decoded[index] = ok
