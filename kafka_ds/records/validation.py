"""Pure: whether a producer's records fit their batch's header and what their topic demands, without keeping any.

- A record costs ten nanoseconds by machine code, which `kafka_ds.records.machine_code` gives this file when it has it
  (`is_fast`). Without, the same loop runs as plain Python, in microseconds: there is one loop, and one answer.
- What is compressed is decompressed piece by piece (`kafka_ds.records.decompression`), and validated while it is in the
  processor's cache. Who recompresses it keeps the pieces, in one buffer that grows (joined, they are in memory twice).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kafka_ds.records import validation_loop
from kafka_ds.records.batch import BatchHeader, Codec, CorruptRecord
from kafka_ds.records.compression import decompressed_bytes_max
from kafka_ds.records.decompression import pieces, unpacked_bytes_max
from kafka_ds.records.validation_loop import FINE, INDEX, MISDATED, NEWEST_TIME, REFUSED, STOPPED

__all__ = [
    "ANYTHING",
    "LONG_MAX",
    "LONG_MIN",
    "AsWritten",
    "Demands",
    "Refusal",
    "UnpacksToMore",
    "Walked",
    "Walker",
    "is_fast",
    "use",
    "walk_over",
]

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
# The time that a piece takes, however small it is: as long as that of so many bytes. Frames and blocks may be empty.
PIECE_COST_BYTES = 4 << 10

_WRONG = {
    validation_loop.CUT: "truncated",
    validation_loop.LEFT_OVER: "followed by more bytes",
    validation_loop.BAD_LENGTH: "not as long as it says",
    validation_loop.BAD_DELTA: "not at the offset that is due",
    validation_loop.BAD_FIELD: "longer inside than outside",
}


class UnpacksToMore(Exception):
    """A batch holds more than the caller wants to wait for."""


class Demands(NamedTuple):
    """What a topic demands of each record: a key, and a time between these, in milliseconds of 64 bits."""

    needs_keys: bool
    earliest_ms: int
    latest_ms: int


ANYTHING = Demands(False, LONG_MIN, LONG_MAX)


class Refusal(NamedTuple):
    """A record that does not meet them: its place in the batch, its time, and whether a key is what it lacks."""

    place: int
    time_ms: int
    lacks_key: bool


class Walked(NamedTuple):
    """The result of a validation: the records' greatest time (-1: none has one), how many are refused, and for
    their time.
    """

    newest_ms: int
    refused: int
    misdated: int
    refusals: tuple[Refusal, ...]
    """The first of them, as many as were asked for."""


class Walker(Protocol):
    """`kafka_ds.records.validation_loop`, in whatever way it runs."""

    def begin(self, count: int, base_time: int, demands: Demands, room: int) -> Any:
        """A state for so many records, whose times are relative to this one; so many refused ones are listed."""

    def walk(self, data: memoryview | bytes, state: Any, *, is_last: bool) -> int:
        """Walk on through these bytes."""


class AsWritten:
    """The loop as plain Python: what other ways are compared with."""

    def begin(self, count: int, base_time: int, demands: Demands, room: int) -> list[int]:
        """As in `Walker`."""
        return validation_loop.begun(count, base_time, *demands, room)

    def walk(self, data: memoryview | bytes, state: list[int], *, is_last: bool) -> int:
        """As in `Walker`."""
        return validation_loop.walk(data, 0, len(data), is_last, state)


_walker: Walker | None = None
_AS_WRITTEN = AsWritten()


def use(walker: Walker | None) -> None:
    """Walk by this from now on; None: by the loop as it is written."""
    global _walker
    _walker = walker


def is_fast() -> bool:
    """Whether records are validated by machine code."""
    return _walker is not None


def walk_over(
    payload: memoryview,
    header: BatchHeader,
    demands: Demands = ANYTHING,
    *,
    bytes_max: int | None = None,
    named_max: int = 0,
    kept: bytearray | None = None,
) -> Walked:
    """Walk over the records of a batch, whose bytes follow its header; all of them fit it.

    Refused ones are reported one by one up to `named_max`. What compressed ones decompress to is added to `kept`, if
    given. Raises CorruptRecord where records do not fit or are too many, UnpacksToMore where they take more than
    `bytes_max`.
    """
    walker: Walker = _walker or _AS_WRITTEN
    state = walker.begin(header.record_count, header.base_timestamp, demands, named_max)
    if header.codec == Codec.NONE:
        wrong = walker.walk(payload, state, is_last=True)
    else:
        wrong = _walk_pieces(walker, payload, header.codec, state, bytes_max, kept)
    if wrong != FINE:
        raise CorruptRecord(f"record {state[INDEX]} of {header.record_count} is {_WRONG[wrong]}")
    refused = state[REFUSED]
    named = _named(state, min(refused, named_max)) if refused else ()
    return Walked(state[NEWEST_TIME], refused, state[MISDATED], named)


def _walk_pieces(
    walker: Walker,
    payload: memoryview,
    codec: int,
    state: Any,
    bytes_max: int | None,
    kept: bytearray | None,
) -> int:
    left = b""
    size = 0
    passes_by = kept is None and is_fast()
    size_max = (unpacked_bytes_max if passes_by else decompressed_bytes_max)(len(payload))
    for piece in pieces(codec, payload):
        size += max(len(piece), PIECE_COST_BYTES)
        if bytes_max is not None and size > bytes_max:
            raise UnpacksToMore
        if size > size_max:
            raise CorruptRecord(f"{len(payload)} bytes decompress to more than {size_max}")
        if kept is not None:
            kept += piece
        data = left + piece if left else piece
        wrong = walker.walk(data, state, is_last=False)
        if wrong != FINE:
            return wrong
        left = data[state[STOPPED] :]
    return walker.walk(left, state, is_last=True)


def _named(state: Any, count: int) -> tuple[Refusal, ...]:
    found = []
    for at in range(validation_loop.STATE_NUMBERS, validation_loop.STATE_NUMBERS + 2 * count, 2):
        index, time_ms = state[at], state[at + 1]
        found.append(Refusal(max(index, ~index), time_ms, index < 0))
    return tuple(found)
