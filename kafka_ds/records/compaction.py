"""Pure: the loops of log compaction: the offset map (the last offset of each key), and what remains of each batch.

- No byte is read outside a batch's payload and none written outside the buffers, as in `kafka_ds.records.decoder`. A
  batch with a wrong checksum or malformed records stops the loop.
- A rewritten batch keeps its offsets, sequences, producer, leader epoch and flags (KIP-98).
- When the cleaner first meets a tombstone (or the marker of a transaction without records), it writes the delete
  horizon to the base timestamp and sets bit 6 of the attributes (KIP-534). The max timestamp is that of the remaining
  records.
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

__all__ = ["compact", "enter_keys", "index_entries", "move_keys"]

CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
# The attributes that a rewritten batch keeps: all but the delete horizon.
KEPT_FLAGS = 0x3F
KIND_FLAGS = 0x38
CRC_FROM = 21

# What is known of the offset map.
KEYS, LATEST_OFFSET = range(2)

# The result for a batch whose keys are entered.
ENTERED, FULL, CORRUPT = range(3)

# Flags of a batch: drop its records; keep it even if it is empty; it is the marker of a transaction without records.
DISCARD, RETAIN_EMPTY, EMPTY_TRANSACTION = 1, 2, 4

# The rules of `compact`: the last offset to compact, the present time, and the delete horizon to set now.
UP_TO_OFFSET, NOW_MS, HORIZON_MS = range(3)

# The columns of a row that describes what happened to a batch.
OUT_START, OUT_END, OUTCOME, KEPT, KEPT_MAX_TIMESTAMP = range(5)
RESULT_FIELDS = 5
DROPPED, UNCHANGED, REWRITTEN, EMPTY = range(4)

# The counters of all calls of `compact`.
RECORDS_READ, RECORDS_KEPT, WITHOUT_KEY = range(3)
COUNTS = 3

# The columns of a row that describes a kept record: where the bytes after its timestamp are, and its timestamp.
REST_START, REST_END, RECORD_TIMESTAMP = range(3)
PLACE_FIELDS = 3

# The most bytes by which a record grows when its timestamp delta is rewritten.
RECORD_GROWTH_BYTES_MAX = 9 + 4

# What `index_entries` carries from call to call.
BYTES_SINCE_ENTRY, NEWEST_MS, NEWEST_OFFSET, LAST_ENTRY_MS, LOG_POSITION = range(5)
INDEX_STATE = 5


# -- the offset map -------------------------------------------------------------------------------


@inlined
def _slot_of(table: NDArray[np.uint64], low: Any, high: Any) -> Any:
    """The slot of a hash, or the empty one for it; there is always an empty slot."""
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
    """For the record body `data[position:end]`: the position after the timestamp (-1: malformed), timestamp delta,
    offset delta, and position and length of the key."""
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
def _crc_is_valid(data: NDArray[np.uint8], batch: NDArray[np.int64]) -> bool:
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
            return CORRUPT
        end = position + length
        rest, _time, delta, key, length = _record_key(data, position, end, batch, delta)
        if rest < 0:
            return CORRUPT
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
    """Enter the last offset of each key; how many batches were done, and whether the next one is intact.

    It stops at a corrupt batch, or when the map is full.
    """
    for index in range(len(batches)):
        batch = batches[index]
        if not _crc_is_valid(data, batch):
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
    """Copy all entries of a map into an empty, larger one."""
    for index in range(len(old)):
        if old[index, 2] != U(0):
            slot = _slot_of(new, old[index, 0], old[index, 1])
            for i in range(3):
                new[slot, i] = old[index, i]


# -- retention ------------------------------------------------------------------------------------


@inlined
def _is_kept(
    data: NDArray[np.uint8],
    key: Int,
    length: Int,
    offset: Int,
    may_drop_tombstone: bool,
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
) -> bool:
    """Whether a record is the last one of its key, and not a tombstone that is due."""
    if may_drop_tombstone:
        return False
    low, high = siphash(data, key, length, secret)
    return bool(U(offset + 1) >= table[_slot_of(table, low, high), 2])


@inlined
def _value_length(data: NDArray[np.uint8], position: Int, end: Int) -> Int:
    """The length of a record's value, -1 for a tombstone; -2 if value and headers do not fill the record."""
    length, position = read_length(data, position, end, -1)
    if position < 0:
        return -2
    headers, position = read_length(data, position + max(length, 0), end, 0)
    if position < 0 or skip_headers(data, position, end, headers) != end:
        return -2
    return length


@inlined
def _select(
    data: NDArray[np.uint8],
    batch: NDArray[np.int64],
    flags: Int,
    rules: NDArray[np.int64],
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[Int, bool]:
    """Fill `places` with the records to keep: their number (-1: corrupt), and whether one is a tombstone."""
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
        is_kept = flags & DISCARD == 0
        if is_kept and attributes & CONTROL_FLAG == 0 and offset <= rules[UP_TO_OFFSET]:
            if key_length < 0:
                counts[WITHOUT_KEY] += 1
                is_kept = False
            else:
                is_dropped = is_due and value_length < 0
                is_kept = _is_kept(data, key, key_length, offset, is_dropped, secret, table)
        if is_kept:
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
    """Write the kept records: the position after them, and their max timestamp."""
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
def _rewrite(
    data: NDArray[np.uint8],
    batch: NDArray[np.int64],
    places: NDArray[np.int64],
    kept: Int,
    horizon_ms: Int,
    out: NDArray[np.uint8],
    start: Int,
) -> tuple[Int, Int]:
    """Write the batch with its kept records: the position after it, and its max timestamp."""
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


def compact(
    data: NDArray[np.uint8],
    batches: NDArray[np.int64],
    is_checked: bool,
    retention: NDArray[np.uint8],
    rules: NDArray[np.int64],
    secret: tuple[Any, Any],
    table: NDArray[np.uint64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
    results: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Int:
    """Write what remains of each batch; how many were done: it stops at a corrupt batch.

    The decompressed payload of a batch is at START to END, the batch itself at POSITION. The records of a rewritten
    batch are not compressed. `is_checked`: the checksums have been validated before.
    """
    at = np.int64(0)
    for index in range(len(batches)):
        batch = batches[index]
        flags = retention[index]
        if not is_checked and not _crc_is_valid(data, batch):
            return index
        result = results[index]
        result[OUT_START] = at
        result[OUTCOME] = DROPPED
        result[KEPT] = 0
        result[KEPT_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP]
        if flags & (DISCARD | RETAIN_EMPTY) != DISCARD:
            kept, has_tombstone = _select(data, batch, flags, rules, secret, table, places, counts)
            if kept < 0:
                return index
            has_horizon = batch[ATTRIBUTES] & DELETE_HORIZON_FLAG != 0
            is_marked = (has_tombstone or flags & EMPTY_TRANSACTION != 0) and not has_horizon
            counts[RECORDS_READ] += batch[RECORD_COUNT]
            counts[RECORDS_KEPT] += kept
            result[KEPT] = kept
            if kept > 0 and kept == batch[RECORD_COUNT] and not is_marked:
                copy_bytes(data, batch[POSITION], out, at, batch[SIZE])
                at += batch[SIZE]
                result[OUTCOME] = UNCHANGED
            elif kept > 0:
                horizon_ms = np.int64(-1)
                if is_marked:
                    horizon_ms = rules[HORIZON_MS]
                elif has_horizon:
                    horizon_ms = batch[BASE_TIMESTAMP]
                at, newest = _rewrite(data, batch, places, kept, horizon_ms, out, at)
                result[KEPT_MAX_TIMESTAMP] = newest
                result[OUTCOME] = REWRITTEN
            elif flags & RETAIN_EMPTY:
                kind = batch[ATTRIBUTES] & KIND_FLAGS
                end = at + HEADER_BYTES
                _put_header(out, at, end, batch, kind, -1, batch[MAX_TIMESTAMP], 0)
                at = end
                result[OUTCOME] = EMPTY
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
    """The index entries for batches that are appended to a segment, as `broker.log.segment` writes them.

    Offset entries are (last offset, position), time entries (timestamp, last offset), with absolute offsets. Returns
    the number of each.
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
