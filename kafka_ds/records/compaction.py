"""Pure: the loops of log compaction: which key was written last where, and what of a batch stays.

- No byte is read outside a batch's payload and none written outside the buffers, as in `kafka_ds.records.decoder`. A
  batch whose checksum or records are wrong stops the loop.
- Base and last offset, sequences, producer, leader epoch and kind of a batch stay, also of one kept in part (KIP-98).
- When a batch is first seen to hold a tombstone (or the marker of a transaction without records), its delete horizon
  goes into the base timestamp and bit 6 of the attributes (KIP-534). The largest timestamp is that of what is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_ds.records.decoder import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CRC,
    END,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_BYTE,
    MAGIC_V2,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
    START,
    Int,
    U,
    copy_bytes,
    inlined,
    read_length,
    read_varint,
    read_varlong,
    skip_headers,
)
from kafka_ds.records.encoder import put_varint, varint_bytes
from kafka_ds.records.hashes import crc32c_of, siphash

__all__ = ["enter_keys", "index_entries", "move_keys", "thin_out"]

CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
# Bits about the records' format and writer: all that a rewritten batch takes over.
KEPT_FLAGS = 0x3F
KIND_FLAGS = 0x38
CRC_FROM = 21

# What is known of the table of keys.
KEYS, LATEST_OFFSET = range(2)

# What became of a batch whose keys were to be entered.
ENTERED, FULL, NOT_IN_ORDER = range(3)

# A batch's orders, one bit each: its records go; it stays even if it is empty; it is the marker of a
# transaction of which nothing is left.
DISCARD, RETAIN_EMPTY, EMPTY_TRANSACTION = 1, 2, 4

# What `thin_out` goes by: offsets above the first are not judged; now; from when marks made now may go.
UP_TO_OFFSET, NOW_MS, HORIZON_MS = range(3)

# The columns of a row with the outcome of a batch.
OUT_START, OUT_END, FATE, KEPT, KEPT_MAX_TIMESTAMP = range(5)
RESULT_FIELDS = 5
GONE, AS_IT_WAS, MADE_ANEW, EMPTY = range(4)

# What is counted over all calls of `thin_out`.
RECORDS_READ, RECORDS_KEPT, WITHOUT_KEY = range(3)
COUNTS = 3

# The columns of a record that stays: where its bytes behind the timestamp are, and its time.
REST_START, REST_END, RECORD_TIMESTAMP = range(3)
PLACE_FIELDS = 3

# The most by which a record grows when its time is rewritten.
RECORD_GROWTH_BYTES_MAX = 9 + 4

# What `index_entries` carries from call to call.
BYTES_SINCE_ENTRY, NEWEST_MS, NEWEST_OFFSET, LAST_ENTRY_MS, LOG_POSITION = range(5)
INDEX_STATE = 5


# -- the table of keys ----------------------------------------------------------------------------


@inlined
def _slot_of(table: NDArray[np.uint64], low: Any, high: Any) -> Any:
    """Where a hash is, or the empty slot where it would be; there is always an empty one."""
    count = U(len(table))
    slot = (low >> U(32)) * count >> U(32)
    while table[slot, 2] != U(0) and (table[slot, 0] != low or table[slot, 1] != high):
        slot += U(1)
        if slot == count:
            slot = U(0)
    return slot


@inlined
def _record_key(
    data: NDArray[np.uint8], position: Int, end: Int, batch: NDArray[np.int64], previous: Int
) -> tuple[Int, Int, Int, Int, Int]:
    """Of the record whose body is `data[position:end]`: where its bytes behind the timestamp begin (-1: it is no
    record), timestamp delta, offset delta, and position and length of its key."""
    timestamp_delta, rest = read_varlong(data, position + 1, end)
    if rest < 0:
        return -1, 0, 0, 0, 0
    delta, key = read_varint(data, rest, end)
    if key < 0 or delta <= previous or delta > batch[LAST_OFFSET_DELTA]:
        return -1, 0, 0, 0, 0
    length, key = read_length(data, key, end, -1)
    if key < 0:
        return -1, 0, 0, 0, 0
    return rest, timestamp_delta, delta, key, length


@inlined
def _is_whole(data: NDArray[np.uint8], batch: NDArray[np.int64]) -> bool:
    start = batch[POSITION] + CRC_FROM
    return bool(crc32c_of(data, start, batch[POSITION] + batch[SIZE]) == batch[CRC])


@inlined
def _enter_batch(
    data: NDArray[np.uint8],
    batch: NDArray[np.int64],
    from_offset: Int,
    keys_max: Int,
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    known: NDArray[np.int64],
) -> Int:
    position = batch[START]
    delta = np.int64(-1)
    for _ in range(batch[RECORD_COUNT]):
        length, position = read_length(data, position, batch[END], 1)
        if position < 0:
            return NOT_IN_ORDER
        end = position + length
        rest, _time, delta, key, length = _record_key(data, position, end, batch, delta)
        if rest < 0:
            return NOT_IN_ORDER
        offset = batch[BASE_OFFSET] + delta
        if length >= 0 and offset >= from_offset:
            if known[KEYS] >= keys_max:
                return FULL
            low, high = siphash(data, key, length, secret)
            slot = _slot_of(table, low, high)
            if table[slot, 2] == U(0):
                table[slot, 0] = low
                table[slot, 1] = high
                known[KEYS] += 1
            table[slot, 2] = U(offset + 1)
        position = end
    return ENTERED


def enter_keys(
    data: NDArray[np.uint8],
    batches: NDArray[np.int64],
    is_skipped: NDArray[np.uint8],
    from_offset: Int,
    keys_max: Int,
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    known: NDArray[np.int64],
) -> tuple[Int, bool]:
    """Enter the last offset of each key; how many batches were done, and whether the next one is in order.

    Fewer than all are done where the table is full, or where a batch is not in order.
    """
    for index in range(len(batches)):
        batch = batches[index]
        if not _is_whole(data, batch):
            return index, False
        last_offset = batch[BASE_OFFSET] + batch[LAST_OFFSET_DELTA]
        if is_skipped[index] == 0 and last_offset >= from_offset:
            entered = _enter_batch(data, batch, from_offset, keys_max, secret, table, known)
            if entered != ENTERED:
                return index, entered == FULL
        if last_offset >= from_offset:
            known[LATEST_OFFSET] = max(known[LATEST_OFFSET], last_offset)
    return len(batches), True


def move_keys(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    """Enter all keys of a table into an empty one with more room."""
    for index in range(len(old)):
        if old[index, 2] != U(0):
            slot = _slot_of(new, old[index, 0], old[index, 1])
            for i in range(3):
                new[slot, i] = old[index, i]


# -- what stays -----------------------------------------------------------------------------------


@inlined
def _stays(
    data: NDArray[np.uint8],
    key: Int,
    length: Int,
    offset: Int,
    may_drop_tombstone: bool,
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
) -> bool:
    """Whether a record with a key is the last of it that is known, and no mark that has done its duty."""
    if may_drop_tombstone:
        return False
    low, high = siphash(data, key, length, secret)
    return bool(U(offset + 1) >= table[_slot_of(table, low, high), 2])


@inlined
def _value_length(data: NDArray[np.uint8], position: Int, end: Int) -> Int:
    """The length of a record's value, -1 for a tombstone; -2 where value and headers do not fill the record."""
    length, position = read_length(data, position, end, -1)
    if position < 0:
        return -2
    headers, position = read_length(data, position + max(length, 0), end, 0)
    if position < 0 or skip_headers(data, position, end, headers) != end:
        return -2
    return length


@inlined
def _look_at(
    data: NDArray[np.uint8],
    batch: NDArray[np.int64],
    order: Int,
    rules: NDArray[np.int64],
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[Int, bool]:
    """Fill `places` with the records that stay: their number (-1: not in order), and whether a tombstone is among
    them."""
    attributes = batch[ATTRIBUTES]
    has_horizon = attributes & DELETE_HORIZON_FLAG != 0
    is_due = has_horizon and batch[BASE_TIMESTAMP] <= rules[NOW_MS]
    position = batch[START]
    delta = np.int64(-1)
    kept = np.int64(0)
    has_tombstone = False
    for _ in range(batch[RECORD_COUNT]):
        length, position = read_length(data, position, batch[END], 1)
        if position < 0:
            return -1, False
        end = position + length
        rest, time_delta, delta, key, key_length = _record_key(data, position, end, batch, delta)
        if rest < 0:
            return -1, False
        value_length = _value_length(data, key + max(key_length, 0), end)
        if value_length < -1:
            return -1, False
        offset = batch[BASE_OFFSET] + delta
        stays = order & DISCARD == 0
        if stays and attributes & CONTROL_FLAG == 0 and offset <= rules[UP_TO_OFFSET]:
            if key_length < 0:
                counts[WITHOUT_KEY] += 1
                stays = False
            else:
                is_dropped = is_due and value_length < 0
                stays = _stays(data, key, key_length, offset, is_dropped, secret, table)
        if stays:
            place = places[kept]
            place[REST_START] = rest
            place[REST_END] = end
            if attributes & LOG_APPEND_TIME_FLAG:
                place[RECORD_TIMESTAMP] = batch[MAX_TIMESTAMP]
            else:
                place[RECORD_TIMESTAMP] = batch[BASE_TIMESTAMP] + time_delta
            has_tombstone |= value_length < 0
            kept += 1
        position = end
    if position != batch[END]:
        return -1, False
    return kept, has_tombstone


@inlined
def _put(out: NDArray[np.uint8], at: Int, number: Int, size: Int) -> Int:
    for i in range(size):
        out[U(at + i)] = np.uint8(U(number) >> U(8 * (size - 1 - i)) & U(0xFF))
    return at + size


@inlined
def _put_header(
    out: NDArray[np.uint8],
    start: Int,
    end: Int,
    batch: NDArray[np.int64],
    attributes: Int,
    base_timestamp: Int,
    max_timestamp: Int,
    count: Int,
) -> None:
    at = _put(out, start, batch[BASE_OFFSET], 8)
    at = _put(out, at, end - start - LOG_OVERHEAD_BYTES, 4)
    at = _put(out, at, batch[LEADER_EPOCH], 4)
    out[U(start + MAGIC_BYTE)] = MAGIC_V2
    at = _put(out, start + CRC_FROM, attributes, 2)
    at = _put(out, at, batch[LAST_OFFSET_DELTA], 4)
    at = _put(out, at, base_timestamp, 8)
    at = _put(out, at, max_timestamp, 8)
    at = _put(out, at, batch[PRODUCER_ID], 8)
    at = _put(out, at, batch[PRODUCER_EPOCH], 2)
    at = _put(out, at, batch[BASE_SEQUENCE], 4)
    _put(out, at, count, 4)
    _put(out, start + MAGIC_BYTE + 1, crc32c_of(out, start + CRC_FROM, end), 4)


@inlined
def _put_records(
    data: NDArray[np.uint8],
    places: NDArray[np.int64],
    kept: Int,
    base_timestamp: Int,
    out: NDArray[np.uint8],
    at: Int,
) -> tuple[Int, Int]:
    """Write the records that stay: the position behind them, and the largest of their times."""
    max_timestamp = np.int64(-1)
    for index in range(kept):
        place = places[index]
        time_delta = place[RECORD_TIMESTAMP] - base_timestamp
        max_timestamp = max(max_timestamp, place[RECORD_TIMESTAMP])
        rest = place[REST_END] - place[REST_START]
        at = put_varint(out, at, 1 + varint_bytes(time_delta) + rest)
        out[U(at)] = 0  # attributes: no bit of them is in use
        at = put_varint(out, at + 1, time_delta)
        copy_bytes(data, place[REST_START], out, at, rest)
        at += rest
    return at, max_timestamp


@inlined
def _made_anew(
    data: NDArray[np.uint8],
    batch: NDArray[np.int64],
    places: NDArray[np.int64],
    kept: Int,
    horizon_ms: Int,
    out: NDArray[np.uint8],
    start: Int,
) -> tuple[Int, Int]:
    """Write the batch with what stays of it: where it ends, and its largest time."""
    attributes = batch[ATTRIBUTES] & KEPT_FLAGS
    base_timestamp = places[0, RECORD_TIMESTAMP]
    if horizon_ms >= 0:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = horizon_ms
    end, max_timestamp = _put_records(data, places, kept, base_timestamp, out, start + HEADER_BYTES)
    if attributes & LOG_APPEND_TIME_FLAG:
        max_timestamp = batch[MAX_TIMESTAMP]
    _put_header(out, start, end, batch, attributes, base_timestamp, max_timestamp, kept)
    return end, max_timestamp


def thin_out(
    data: NDArray[np.uint8],
    batches: NDArray[np.int64],
    is_known_whole: bool,
    orders: NDArray[np.uint8],
    rules: NDArray[np.int64],
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
    results: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Int:
    """Write what stays of each batch; how many were done, which is fewer than all where one is not in order.

    The payload of a batch lies where START and END say, not compressed; the batch itself at POSITION. One that is made
    anew has its records uncompressed. Checksums of batches that are known whole are not looked at again.
    """
    at = np.int64(0)
    for index in range(len(batches)):
        batch = batches[index]
        order = orders[index]
        if not is_known_whole and not _is_whole(data, batch):
            return index
        result = results[index]
        result[OUT_START] = at
        result[FATE] = GONE
        result[KEPT] = 0
        result[KEPT_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP]
        if order & (DISCARD | RETAIN_EMPTY) != DISCARD:
            kept, has_tombstone = _look_at(data, batch, order, rules, secret, table, places, counts)
            if kept < 0:
                return index
            has_horizon = batch[ATTRIBUTES] & DELETE_HORIZON_FLAG != 0
            is_marked = (has_tombstone or order & EMPTY_TRANSACTION != 0) and not has_horizon
            counts[RECORDS_READ] += batch[RECORD_COUNT]
            counts[RECORDS_KEPT] += kept
            result[KEPT] = kept
            if kept > 0 and kept == batch[RECORD_COUNT] and not is_marked:
                copy_bytes(data, batch[POSITION], out, at, batch[SIZE])
                at += batch[SIZE]
                result[FATE] = AS_IT_WAS
            elif kept > 0:
                horizon_ms = np.int64(-1)
                if is_marked:
                    horizon_ms = rules[HORIZON_MS]
                elif has_horizon:
                    horizon_ms = batch[BASE_TIMESTAMP]
                at, newest = _made_anew(data, batch, places, kept, horizon_ms, out, at)
                result[KEPT_MAX_TIMESTAMP] = newest
                result[FATE] = MADE_ANEW
            elif order & RETAIN_EMPTY:
                kind = batch[ATTRIBUTES] & KIND_FLAGS
                end = at + HEADER_BYTES
                _put_header(out, at, end, batch, kind, -1, batch[MAX_TIMESTAMP], 0)
                at = end
                result[FATE] = EMPTY
        result[OUT_END] = at
    return len(batches)


# -- indexes --------------------------------------------------------------------------------------


def index_entries(
    last_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    interval_bytes: Int,
    state: NDArray[np.int64],
    offset_entries: NDArray[np.int64],
    time_entries: NDArray[np.int64],
) -> tuple[Int, Int]:
    """The entries of both indexes for batches that are appended to a segment, as `broker.log.segment` makes them.

    (last offset, position) and (time, last offset), offsets absolute; their numbers.
    """
    offsets = 0
    times = 0
    for index in range(len(last_offsets)):
        if timestamps[index] > state[NEWEST_MS]:
            state[NEWEST_MS] = timestamps[index]
            state[NEWEST_OFFSET] = last_offsets[index]
        if state[BYTES_SINCE_ENTRY] > interval_bytes:
            offset_entries[offsets, 0] = last_offsets[index]
            offset_entries[offsets, 1] = state[LOG_POSITION]
            offsets += 1
            if state[NEWEST_MS] > state[LAST_ENTRY_MS]:
                time_entries[times, 0] = state[NEWEST_MS]
                time_entries[times, 1] = state[NEWEST_OFFSET]
                state[LAST_ENTRY_MS] = state[NEWEST_MS]
                times += 1
            state[BYTES_SINCE_ENTRY] = 0
        state[BYTES_SINCE_ENTRY] += sizes[index]
        state[LOG_POSITION] += sizes[index]
    return offsets, times
