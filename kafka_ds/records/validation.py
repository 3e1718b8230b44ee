"""Pure: validates a producer's records against their batch's header and the rules of their topic.

- Machine code from `kafka_ds.records.machine_code` validates a record in 10 ns. Until it is loaded (`is_fast`), the
  same loop runs as plain Python, in microseconds a record.
- A compressed batch is decompressed piece by piece (`kafka_ds.records.decompression`), and each piece is validated
  while it is in the processor's cache. For recompression the pieces are also kept, in one buffer: joining them later
  would need twice the memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kafka_ds.records import validation_loop
from kafka_ds.records.batch import BatchHeader, CorruptRecord
from kafka_ds.records.compression import decompressed_bytes_max
from kafka_ds.records.decompression import pieces, unpacked_bytes_max
from kafka_ds.records.validation_loop import (
    BAD_TIMESTAMPS,
    INDEX,
    NEWEST_TIME,
    REFUSED,
    STOPPED,
    VALID,
)

__all__ = [
    "NO_RULES",
    "LONG_MAX",
    "LONG_MIN",
    "PythonValidator",
    "RecordRules",
    "RefusedRecord",
    "DecompressedTooLarge",
    "ValidationResult",
    "Validator",
    "is_fast",
    "use",
    "validate_records",
]

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
# The least cost of a piece, as a number of bytes: frames and blocks may be empty, and take time nevertheless.
PIECE_COST_BYTES = 4 << 10

_ERRORS = {
    validation_loop.TRUNCATED: "truncated",
    validation_loop.TRAILING_BYTES: "followed by more bytes",
    validation_loop.BAD_LENGTH: "not as long as its length field says",
    validation_loop.BAD_DELTA: "not at the next offset",
    validation_loop.BAD_FIELD: "shorter than one of its fields",
}


class DecompressedTooLarge(Exception):
    """A batch decompresses to more bytes than the caller allows."""


class RecordRules(NamedTuple):
    """A topic's rules for records: whether they need keys, and the allowed timestamps, in milliseconds of 64 bits."""

    needs_keys: bool
    earliest_ms: int
    latest_ms: int


NO_RULES = RecordRules(False, LONG_MIN, LONG_MAX)


class RefusedRecord(NamedTuple):
    """A record that breaks a rule: its index in the batch, its timestamp, and whether it lacks its key."""

    place: int
    time_ms: int
    lacks_key: bool


class ValidationResult(NamedTuple):
    """The records' max timestamp (-1: none has one), how many are refused, and how many of these for their time."""

    newest_ms: int
    refused: int
    bad_timestamps: int
    refusals: tuple[RefusedRecord, ...]
    """The first refused records, up to `listed_max`."""


class Validator(Protocol):
    """A way to run `kafka_ds.records.validation_loop`."""

    def begin(self, count: int, base_time: int, rules: RecordRules, room: int) -> Any:
        """The state for a batch of `count` records with a base timestamp; up to `room` refused ones are listed."""

    def validate(self, data: memoryview | bytes, state: Any, *, is_last: bool) -> int:
        """Validate the next bytes."""


class PythonValidator:
    """The loop as plain Python."""

    def begin(self, count: int, base_time: int, rules: RecordRules, room: int) -> list[int]:
        """See `Validator`."""
        return validation_loop.initial_state(count, base_time, *rules, room)

    def validate(self, data: memoryview | bytes, state: list[int], *, is_last: bool) -> int:
        """See `Validator`."""
        return validation_loop.validate(data, 0, len(data), is_last, state)


in_use: Validator | None = None
_PYTHON = PythonValidator()


def use(validator: Validator | None) -> None:
    """Validate with this from now on; None: with plain Python."""
    global in_use
    in_use = validator


def is_fast() -> bool:
    """Whether records are validated by machine code."""
    return in_use is not None


def validate_records(
    payload: memoryview,
    header: BatchHeader,
    rules: RecordRules = NO_RULES,
    *,
    bytes_max: int | None = None,
    listed_max: int = 0,
    kept: bytearray | None = None,
) -> ValidationResult:
    """Validate the records of a batch; `payload` are the bytes after its header.

    Up to `listed_max` refused records are listed. If `kept` is given, the decompressed records are appended to it.
    Raises CorruptRecord if the records do not fit the header or are too large, and DecompressedTooLarge if they
    decompress to more than `bytes_max`.
    """
    validator: Validator = in_use or _PYTHON
    state = validator.begin(header.record_count, header.base_timestamp, rules, listed_max)
    codec = header.codec
    if not codec:
        error = validator.validate(payload, state, is_last=True)
    else:
        error = _validate_pieces(validator, payload, codec, state, bytes_max, kept)
    if error != VALID:
        raise CorruptRecord(f"record {state[INDEX]} of {header.record_count} is {_ERRORS[error]}")
    refused = state[REFUSED]
    listed = _listed(state, min(refused, listed_max)) if refused else ()
    return ValidationResult(state[NEWEST_TIME], refused, state[BAD_TIMESTAMPS], listed)


def _validate_pieces(
    validator: Validator,
    payload: memoryview,
    codec: int,
    state: Any,
    bytes_max: int | None,
    kept: bytearray | None,
) -> int:
    left = b""
    size = 0
    is_streamed = kept is None and is_fast()
    size_max = (unpacked_bytes_max if is_streamed else decompressed_bytes_max)(len(payload))
    for piece in pieces(codec, payload):
        size += max(len(piece), PIECE_COST_BYTES)
        if bytes_max is not None and size > bytes_max:
            raise DecompressedTooLarge
        if size > size_max:
            raise CorruptRecord(f"{len(payload)} bytes decompress to more than {size_max}")
        if kept is not None:
            kept += piece
        data = left + piece if left else piece
        error = validator.validate(data, state, is_last=False)
        if error != VALID:
            return error
        left = data[state[STOPPED] :]
    return validator.validate(left, state, is_last=True)


def _listed(state: Any, count: int) -> tuple[RefusedRecord, ...]:
    found = []
    for at in range(validation_loop.STATE_NUMBERS, validation_loop.STATE_NUMBERS + 2 * count, 2):
        index, time_ms = state[at], state[at + 1]
        found.append(RefusedRecord(max(index, ~index), time_ms, index < 0))
    return tuple(found)
