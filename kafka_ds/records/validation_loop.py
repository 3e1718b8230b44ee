"""Pure: the loop that validates a batch's records: do they fit its header, and what would their topic refuse?

- It runs compiled (`kafka_ds.records.machine_code`) and as plain Python alike: it imports nothing, uses numbers, bytes
  and a list of numbers, and no expression needs more than 64 bits with a sign; Java's addition is `wrapped`.
- Records may come in pieces, split anywhere: `state` is all that is known between. No byte at or behind `end` is read.
- A producer's batch has the offset deltas 0, 1, 2 and so on. Refused records are counted, and listed as far as there is
  room. A record without a time (-1) is never too old, as in Kafka.
"""

from __future__ import annotations

from typing import Any

# What is in the state. Of a record that goes on in the next piece: the field that comes next, how many bytes of the
# last one are to be passed over first, how many bytes and headers are left of it, its time.
PHASE, TO_SKIP, RECORD_LEFT, HEADERS_LEFT, TIME_SEEN = range(5)
# The next record, where in its piece the validation stopped, how many records are refused, and how many of those for
# their time.
INDEX, STOPPED, REFUSED, MISDATED = range(5, 9)
# How many the header claims, the time that theirs are added to, the greatest one; whether they need keys, the least
# and the greatest time that is allowed, for how many refused ones there is room.
COUNT, BASE_TIME, NEWEST_TIME, NEEDS_KEYS, EARLIEST, LATEST, ROOM = range(9, 16)
STATE_NUMBERS = 16
# Behind them lie two numbers for each refused record: its index, or ~index if it lacks its key, and its time.

# Fields, in their order in a record. Its attributes, one byte of which no bit is in use, are read with its time.
LENGTH, TIME, DELTA, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE = range(8)

# The results: all valid, or what is wrong.
FINE, CUT, LEFT_OVER, BAD_LENGTH, BAD_DELTA, BAD_FIELD = range(6)

# More than any field but those that are passed over: the attributes and ten bytes of a time.
FIELD_BYTES_MAX = 11
# A record's attributes, time, delta, three lengths: the least that it can hold.
BODY_BYTES_MIN = 6
_INT_SHIFT_MAX, _LONG_SHIFT_MAX = 35, 70
_LONG_MAX = 0x7FFF_FFFF_FFFF_FFFF
_NO_TIME = -1


def begun(
    count: int, base_time: int, needs_keys: int, earliest: int, latest: int, room: int
) -> list[int]:
    """The initial state: so many records, whose times are relative to this one, and the limits."""
    given = (count, base_time, _NO_TIME, needs_keys, earliest, latest, room)
    return [*(0,) * COUNT, *given, *(0,) * (2 * room)]


def wrapped(number: int) -> int:
    """As 64 bits with a sign, as Java adds. (Compiled, numbers are no others.)"""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits, of which higher ones are dropped, and where it ends: -1 if there is none."""
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
    """A zigzag varint of 64 bits, and where it ends: -1 if there is none."""
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


def behind(data: Any, position: int, end: int, least: int) -> int:
    """Behind a length from `least` (-1 stands for null) and as many bytes; -1 if they do not fit."""
    size, position = varint(data, position, end)
    if position < 0 or size < least or size > end - position:
        return -1
    return position + max(size, 0)


def misfit(phase: int, number: int, room: int, index: int) -> int:
    """What is wrong with a field's number, in a record that has so many bytes behind it."""
    if phase == TIME:
        return FINE
    if phase == DELTA:
        return FINE if number == index else BAD_DELTA
    least = 0 if phase in (HEADERS, HEADER_KEY) else -1
    return FINE if number >= least and number <= room else BAD_FIELD


def judge(index: int, time: int, key_bytes: int, state: Any) -> None:
    """Count a record that its topic refuses; list it, if there is room."""
    lacks_key = key_bytes < 0 and state[NEEDS_KEYS] != 0
    is_misdated = time != _NO_TIME and (time < state[EARLIEST] or time > state[LATEST])
    if lacks_key or is_misdated:
        if state[REFUSED] < state[ROOM]:
            place = STATE_NUMBERS + 2 * state[REFUSED]
            state[place] = ~index if lacks_key else index
            state[place + 1] = time
        state[REFUSED] += 1
        if not lacks_key:  # Of two reasons Kafka reports the key's.
            state[MISDATED] += 1


def whole_record(data: Any, position: int, end: int, index: int) -> tuple[int, int, int]:
    """What is wrong with the record whose body lies there, its time's delta, and its key's bytes (-1: none)."""
    time, position = varlong(data, position + 1, end)
    if position < 0:
        return BAD_FIELD, 0, 0
    delta, position = varint(data, position, end)
    if position < 0 or delta != index:
        return BAD_DELTA, 0, 0
    key_bytes, position = varint(data, position, end)
    if position < 0 or key_bytes < -1 or key_bytes > end - position:
        return BAD_FIELD, 0, 0
    position = behind(data, position + max(key_bytes, 0), end, -1)
    if position < 0:
        return BAD_FIELD, 0, 0
    headers, position = varint(data, position, end)
    if position < 0 or headers < 0:
        return BAD_FIELD, 0, 0
    for _ in range(headers):  # A false number of them ends where the record does.
        position = behind(data, position, end, 0)
        if position < 0:
            return BAD_FIELD, 0, 0
        position = behind(data, position, end, -1)
        if position < 0:
            return BAD_FIELD, 0, 0
    return (FINE if position == end else BAD_LENGTH), time, key_bytes


def part_of_record(data: Any, position: int, end: int, state: Any) -> tuple[int, int]:
    """Walk on through a record of which `data` has no more than a part: what is wrong, and where it stopped.

    It stops where the piece ends, or at a field that may be cut.
    """
    phase, headers = state[PHASE], state[HEADERS_LEFT]
    record_end = position + state[RECORD_LEFT]
    seen = min(record_end, end)
    skip = state[TO_SKIP]
    wrong = FINE
    while phase != LENGTH:
        passed = min(skip, seen - position)
        position += passed
        skip -= passed
        if skip > 0 or (record_end > end and end - position < FIELD_BYTES_MAX):
            break
        if phase == HEADER_KEY and headers == 0:
            phase = LENGTH
            wrong = FINE if position == record_end else BAD_LENGTH
            state[INDEX] += 1
            break
        if phase == TIME:
            number, position = varlong(data, position + 1, seen)
            time = wrapped(state[BASE_TIME] + number)
            state[TIME_SEEN] = time
            state[NEWEST_TIME] = max(state[NEWEST_TIME], time)
        else:
            number, position = varint(data, position, seen)
        wrong = misfit(phase, number, record_end - position, state[INDEX])
        if position < 0 or wrong != FINE:
            wrong = max(wrong, BAD_LENGTH)
            break
        if phase == KEY:
            judge(state[INDEX], state[TIME_SEEN], number, state)
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
    """Walk on, record by record, to one that is not whole: what is wrong, and where it stopped."""
    index, count, base = state[INDEX], state[COUNT], state[BASE_TIME]
    newest = state[NEWEST_TIME]
    wrong = FINE
    while index < count and (is_last or end - position >= FIELD_BYTES_MAX):
        length, body = varint(data, position, end)
        if body < 0 or length < BODY_BYTES_MIN:
            wrong = CUT if position == end else BAD_LENGTH
            break
        if length > end - body:
            state[PHASE], state[RECORD_LEFT] = TIME, length
            position = body
            break
        wrong, delta, key_bytes = whole_record(data, body, body + length, index)
        if wrong != FINE:
            break
        time = wrapped(base + delta)
        newest = max(newest, time)
        judge(index, time, key_bytes, state)
        position = body + length
        index += 1
    if index == count and position < end:
        wrong = LEFT_OVER
    state[INDEX], state[NEWEST_TIME] = index, newest
    return wrong, position


def walk(data: Any, position: int, end: int, is_last: int, state: Any) -> int:
    """Walk on through `data[position:end]`: FINE, or what is wrong.

    What lies behind state[STOPPED] belongs before the next piece. `is_last`: nothing follows.
    """
    wrong, position = part_of_record(data, position, end, state)
    if wrong == FINE and state[PHASE] == LENGTH:
        wrong, position = whole_records(data, position, end, is_last, state)
        if wrong == FINE:
            wrong, position = part_of_record(data, position, end, state)
    if wrong == FINE and is_last and (state[PHASE] != LENGTH or state[INDEX] < state[COUNT]):
        wrong = CUT
    state[STOPPED] = position
    return wrong
