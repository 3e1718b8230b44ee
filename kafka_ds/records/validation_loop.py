"""Pure: the loop that validates a batch's records against its header and the rules of its topic.

- It runs as machine code (`kafka_ds.records.machine_code`) and as plain Python. So it imports nothing, uses only
  integers, bytes and a list of integers, and all expressions fit into signed 64 bits; `wrapped` adds like Java.
- Records may come in pieces, split anywhere; `state` carries over. No byte at or after `end` is read.
- A producer's batch has the offset deltas 0, 1, 2 and so on. Refused records are counted, and listed while there is
  room. A record without a timestamp (-1) is never too old, as in Kafka.
"""

from __future__ import annotations

from typing import Any

# The state. For a record that continues in the next piece: the next field, how many bytes of the last field to skip
# first, how many bytes and headers the record still has, its timestamp.
PHASE, TO_SKIP, RECORD_LEFT, HEADERS_LEFT, TIME_SEEN = range(5)
# The index of the next record, the position in the piece where the validation stopped, how many records are refused,
# and how many of those for their timestamp.
INDEX, STOPPED, REFUSED, BAD_TIMESTAMPS = range(5, 9)
# The header's record count and base timestamp, the max timestamp so far; whether records need keys, the least and the
# greatest allowed timestamp, and how many refused records can be listed.
COUNT, BASE_TIME, NEWEST_TIME, NEEDS_KEYS, EARLIEST, LATEST, ROOM = range(9, 16)
STATE_NUMBERS = 16
# Then two numbers for each listed record: its index, or ~index if it lacks its key, and its timestamp.

# Fields, in their order in a record. The attributes, a byte without a used bit, are skipped with the timestamp.
LENGTH, TIME, DELTA, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE = range(8)

# The results.
VALID, TRUNCATED, TRAILING_BYTES, BAD_LENGTH, BAD_DELTA, BAD_FIELD = range(6)

# The largest field that is read: the attributes and ten bytes of a timestamp.
FIELD_BYTES_MAX = 11
# The smallest record: attributes, timestamp, delta and three lengths.
BODY_BYTES_MIN = 6
_INT_SHIFT_MAX, _LONG_SHIFT_MAX = 35, 70
_LONG_MAX = 0x7FFF_FFFF_FFFF_FFFF
_NO_TIME = -1


def initial_state(
    count: int, base_time: int, needs_keys: int, earliest: int, latest: int, room: int
) -> list[int]:
    """The state before the first record."""
    given = (count, base_time, _NO_TIME, needs_keys, earliest, latest, room)
    return [*(0,) * COUNT, *given, *(0,) * (2 * room)]


def wrapped(number: int) -> int:
    """As a signed number of 64 bits, as Java adds. (Machine code replaces this by the number itself.)"""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits (higher ones are dropped), and the position after it: -1 if there is none."""
    number = 0
    shift = 0
    while position < end and shift < _INT_SHIFT_MAX:
        byte = data[position] & 0xFF
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number &= 0xFFFF_FFFF
            return number >> 1 ^ -(number & 1), position
        shift += 7
    return 0, -1


def varlong(data: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 64 bits, and the position after it: -1 if there is none."""
    number = 0
    shift = 0
    while position < end and shift < _LONG_SHIFT_MAX:
        byte = data[position] & 0xFF
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 & _LONG_MAX ^ -(number & 1), position
        shift += 7
    return 0, -1


def skip_field(data: Any, position: int, end: int, least: int) -> int:
    """The position after a length of at least `least` (-1 is null) and so many bytes; -1 if they do not fit."""
    size, position = varint(data, position, end)
    if position < 0 or size < least or size > end - position:
        return -1
    return position + max(size, 0)


def field_error(phase: int, number: int, room: int, index: int) -> int:
    """The error of a field's number, in a record that has `room` more bytes."""
    if phase == TIME:
        return VALID
    if phase == DELTA:
        return VALID if number == index else BAD_DELTA
    least = 0 if phase in (HEADERS, HEADER_KEY) else -1
    return VALID if number >= least and number <= room else BAD_FIELD


def check_rules(index: int, time: int, key_bytes: int, state: Any) -> None:
    """Count a record that breaks a rule of its topic; list it, if there is room."""
    lacks_key = key_bytes < 0 and state[NEEDS_KEYS] != 0
    is_bad_timestamp = time != _NO_TIME and (time < state[EARLIEST] or time > state[LATEST])
    if lacks_key or is_bad_timestamp:
        if state[REFUSED] < state[ROOM]:
            place = STATE_NUMBERS + 2 * state[REFUSED]
            state[place] = ~index if lacks_key else index
            state[place + 1] = time
        state[REFUSED] += 1
        if not lacks_key:  # Of two reasons Kafka reports the key's.
            state[BAD_TIMESTAMPS] += 1


def whole_record(data: Any, position: int, end: int, index: int) -> tuple[int, int, int]:
    """The error of the record body `data[position:end]`, its timestamp delta, and its key's length (-1: none)."""
    time, position = varlong(data, position + 1, end)
    if position < 0:
        return BAD_FIELD, 0, 0
    delta, position = varint(data, position, end)
    if position < 0 or delta != index:
        return BAD_DELTA, 0, 0
    key_bytes, position = varint(data, position, end)
    if position < 0 or key_bytes < -1 or key_bytes > end - position:
        return BAD_FIELD, 0, 0
    position = skip_field(data, position + max(key_bytes, 0), end, -1)
    if position < 0:
        return BAD_FIELD, 0, 0
    headers, position = varint(data, position, end)
    if position < 0 or headers < 0:
        return BAD_FIELD, 0, 0
    for _ in range(headers):  # A wrong count ends with the record.
        position = skip_field(data, position, end, 0)
        if position < 0:
            return BAD_FIELD, 0, 0
        position = skip_field(data, position, end, -1)
        if position < 0:
            return BAD_FIELD, 0, 0
    return (VALID if position == end else BAD_LENGTH), time, key_bytes


def part_of_record(data: Any, position: int, end: int, state: Any) -> tuple[int, int]:
    """Continue a record of which `data` has only a part: the error, and the position where it stopped.

    It stops at the end of the piece, or before a field that may be incomplete.
    """
    phase, headers = state[PHASE], state[HEADERS_LEFT]
    record_end = position + state[RECORD_LEFT]
    seen = min(record_end, end)
    skip = state[TO_SKIP]
    wrong = VALID
    while phase != LENGTH:
        passed = min(skip, seen - position)
        position += passed
        skip -= passed
        if skip > 0 or (record_end > end and end - position < FIELD_BYTES_MAX):
            break
        if phase == HEADER_KEY and headers == 0:
            phase = LENGTH
            wrong = VALID if position == record_end else BAD_LENGTH
            state[INDEX] += 1
            break
        if phase == TIME:
            number, position = varlong(data, position + 1, seen)
            time = wrapped(state[BASE_TIME] + number)
            state[TIME_SEEN] = time
            state[NEWEST_TIME] = max(state[NEWEST_TIME], time)
        else:
            number, position = varint(data, position, seen)
        wrong = field_error(phase, number, record_end - position, state[INDEX])
        if position < 0 or wrong != VALID:
            wrong = max(wrong, BAD_LENGTH)
            break
        if phase == KEY:
            check_rules(state[INDEX], state[TIME_SEEN], number, state)
        if phase == HEADERS:
            headers = number
        elif phase >= KEY:
            skip = max(number, 0)
        headers -= phase == HEADER_VALUE
        phase = HEADER_KEY if phase == HEADER_VALUE else phase + 1
    state[PHASE], state[HEADERS_LEFT] = phase, headers
    state[TO_SKIP], state[RECORD_LEFT] = skip, record_end - position
    return wrong, position


def whole_records(data: Any, position: int, end: int, is_last: int, state: Any) -> tuple[int, int]:
    """Validate whole records up to the first incomplete one: the error, and the position where it stopped."""
    index, count, base = state[INDEX], state[COUNT], state[BASE_TIME]
    newest = state[NEWEST_TIME]
    wrong = VALID
    while index < count and (is_last or end - position >= FIELD_BYTES_MAX):
        length, body = varint(data, position, end)
        if body < 0 or length < BODY_BYTES_MIN:
            wrong = TRUNCATED if position == end else BAD_LENGTH
            break
        if length > end - body:
            state[PHASE], state[RECORD_LEFT] = TIME, length
            position = body
            break
        wrong, delta, key_bytes = whole_record(data, body, body + length, index)
        if wrong != VALID:
            break
        time = wrapped(base + delta)
        newest = max(newest, time)
        check_rules(index, time, key_bytes, state)
        position = body + length
        index += 1
    if index == count and position < end:
        wrong = TRAILING_BYTES
    state[INDEX], state[NEWEST_TIME] = index, newest
    return wrong, position


def validate(data: Any, position: int, end: int, is_last: int, state: Any) -> int:
    """Validate `data[position:end]`: VALID, or the error.

    The bytes from state[STOPPED] on must be put before the next piece. `is_last`: no piece follows.
    """
    wrong, position = part_of_record(data, position, end, state)
    if wrong == VALID and state[PHASE] == LENGTH:
        wrong, position = whole_records(data, position, end, is_last, state)
        if wrong == VALID:
            wrong, position = part_of_record(data, position, end, state)
    if wrong == VALID and is_last and (state[PHASE] != LENGTH or state[INDEX] < state[COUNT]):
        wrong = TRUNCATED
    state[STOPPED] = position
    return wrong
