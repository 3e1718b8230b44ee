"""Pure: whether a producer's records fit their batch's header, without keeping any of them.

Rules of this file: a record costs ten nanoseconds by machine code; as plain Python it would be microseconds. So
`kafka_ds.wire.machine_code` gives this file a walker when it has one. Who asks makes sure that it has (`is_fast`), or
looks into the batch by other means. What is compressed is unpacked piece by piece (`kafka_ds.wire.unpacking`), and
walked while it is in the processor's cache.
"""

from __future__ import annotations

from typing import Any, Protocol

from kafka_ds.wire import walking
from kafka_ds.wire.batch import HEADER_BYTES, BatchHeader, Codec, CorruptRecord
from kafka_ds.wire.unpacking import pieces, unpacked_bytes_max
from kafka_ds.wire.walking import FINE, INDEX, NEWEST_TIME, STOPPED

__all__ = ["AsWritten", "UnpacksToMore", "Walker", "is_fast", "newest_time", "use"]

# The time that a piece takes, however small it is: as long as that of so many bytes. Frames and blocks may be empty.
PIECE_COST_BYTES = 4 << 10

_WRONG = {
    walking.CUT: "cut short",
    walking.LEFT_OVER: "followed by more bytes",
    walking.BAD_LENGTH: "not as long as it says",
    walking.BAD_DELTA: "not at the offset that is due",
    walking.BAD_FIELD: "longer inside than outside",
}


class UnpacksToMore(Exception):
    """A batch holds more than the caller wants to wait for."""


class Walker(Protocol):
    """`kafka_ds.wire.walking`, in whatever way it runs."""

    def begin(self, count: int, base_time: int) -> Any:
        """A state for so many records, whose times are added to this one."""

    def walk(self, data: memoryview | bytes, state: Any, *, is_last: bool) -> int:
        """Walk on through these bytes."""


class AsWritten:
    """The loop as plain Python: what other ways are compared with."""

    def begin(self, count: int, base_time: int) -> list[int]:
        """As `Walker` says."""
        return walking.begun(count, base_time)

    def walk(self, data: memoryview | bytes, state: list[int], *, is_last: bool) -> int:
        """As `Walker` says."""
        return walking.walk(data, 0, len(data), is_last, state)


_walker: Walker | None = None


def use(walker: Walker | None) -> None:
    """Walk by this from now on."""
    global _walker
    _walker = walker


def is_fast() -> bool:
    """Whether there is a walker."""
    return _walker is not None


def newest_time(records: memoryview, header: BatchHeader, *, bytes_max: int | None = None) -> int:
    """The greatest time of the records of a batch that fits its header, -1 if none has one, in milliseconds.

    Raises CorruptRecord where records do not fit or are too many, UnpacksToMore where they take more than `bytes_max`.
    """
    walker = _walker
    assert walker is not None, "callers ask first"
    state = walker.begin(header.record_count, header.base_timestamp)
    payload = records[HEADER_BYTES:]
    if header.codec == Codec.NONE:
        wrong = walker.walk(payload, state, is_last=True)
    else:
        wrong = _walk_pieces(walker, payload, header.codec, state, bytes_max)
    if wrong != FINE:
        raise CorruptRecord(f"record {state[INDEX]} of {header.record_count} is {_WRONG[wrong]}")
    newest: int = state[NEWEST_TIME]
    return newest


def _walk_pieces(
    walker: Walker, payload: memoryview, codec: int, state: Any, bytes_max: int | None
) -> int:
    left = b""
    size, size_max = 0, unpacked_bytes_max(len(payload))
    for piece in pieces(codec, payload):
        size += max(len(piece), PIECE_COST_BYTES)
        if bytes_max is not None and size > bytes_max:
            raise UnpacksToMore
        if size > size_max:
            raise CorruptRecord(f"{len(payload)} bytes unpack to more than {size_max}")
        data = left + piece if left else piece
        wrong = walker.walk(data, state, is_last=False)
        if wrong != FINE:
            return wrong
        left = data[state[STOPPED] :]
    return walker.walk(left, state, is_last=True)
