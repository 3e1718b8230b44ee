"""Batches of producers whose records do not fit their header, by what is wrong with them; for tests of all kinds."""

from __future__ import annotations

from kafka_ds.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Record,
    build_batch,
    read_header,
    seal,
    varint,
)
from kafka_ds.records.compression import compress

NOW_MS = 1_700_000_000_000
COUNT = 3
KEY, VALUE = b"key", b"value"
TEXT = b"some text that is longer than a few bytes, "


def body(index: int, *, delta: int | None = None, key: bytes = varint(3) + KEY,
         value: bytes = varint(5) + VALUE, headers: bytes = varint(0)) -> bytes:  # fmt: skip
    """What follows a record's length."""
    at = index if delta is None else delta
    return b"\x00" + varint(0) + varint(at) + key + value + headers


def whole(content: bytes, length: int | None = None) -> bytes:
    """A record, as long as it is or as it says."""
    return varint(len(content) if length is None else length) + content


def with_last(last: bytes) -> bytes:
    """The records of a batch, the last of which is this one."""
    return b"".join(whole(body(index)) for index in range(COUNT - 1)) + last


LAST = COUNT - 1
ALL = with_last(whole(body(LAST)))
# The records' bytes as they are before they are compressed. Each claims to be COUNT of them.
WRONG_INSIDE = {
    "one less": with_last(b""),
    "one more": ALL + whole(body(COUNT)),
    "bytes after the last": ALL + b"\x00\x00",
    "the last is cut": ALL[:-4],
    "the last length is cut": with_last(b"\x80"),
    "a length of too many bytes": with_last(b"\x80\x80\x80\x80\x80\x00" + body(LAST)),
    "a negative length": with_last(whole(body(LAST), -2)),
    "a length of nothing": with_last(whole(body(LAST), 0)),
    "longer than it says": with_last(whole(body(LAST), len(body(LAST)) - 1)),
    "shorter than it says": with_last(whole(body(LAST), len(body(LAST)) + 1) + b"\x00"),
    "a key of -2 bytes": with_last(whole(body(LAST, key=varint(-2)))),
    "a value of -2 bytes": with_last(whole(body(LAST, value=varint(-2)))),
    "a key longer than its record": with_last(whole(body(LAST, key=varint(30) + KEY))),
    "a value longer than its record": with_last(whole(body(LAST, value=varint(30) + VALUE))),
    "-1 headers": with_last(whole(body(LAST, headers=varint(-1)))),
    "more headers than bytes": with_last(whole(body(LAST, headers=varint(1 << 30)))),
    "a header without a key": with_last(whole(body(LAST, headers=varint(1) + varint(-1) * 2))),
    "a header that is cut": with_last(whole(body(LAST, headers=varint(1) + varint(1) + b"h"))),
    "an offset left out": with_last(whole(body(LAST, delta=LAST + 1))),
    "an offset twice": with_last(whole(body(LAST, delta=LAST - 1))),
    "a negative offset": with_last(whole(body(LAST, delta=-1))),
    "nothing": b"",
}
WRONG_OUTSIDE = ("no data of the codec", "data that is cut", "data after the last")


def header(codec: Codec, count: int = COUNT) -> BatchHeader:
    """Of records at NOW_MS."""
    made = build_batch([Record(i, NOW_MS, KEY, VALUE) for i in range(count)], codec=codec)
    return read_header(made)


def fitting(codec: Codec) -> bytes:
    """The batch that all others differ from."""
    return seal(header(codec), compress(codec, ALL))


def unfitting(codec: Codec) -> dict[str, bytes]:
    """By what is wrong, one batch each, whose checksum is right."""
    batches = {
        what: seal(header(codec), compress(codec, inside)) for what, inside in WRONG_INSIDE.items()
    }
    if codec != Codec.NONE:
        packed = fitting(codec)[HEADER_BYTES:]
        outside = (TEXT, packed[:-5], packed + TEXT)
        batches |= {
            what: seal(header(codec), data)
            for what, data in zip(WRONG_OUTSIDE, outside, strict=True)
        }
    return batches
