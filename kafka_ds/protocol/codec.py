"""Pure: bytes to messages and back, by code compiled for each (message, version) at its first use.

- Whatever is wrong with the bytes leaves as MalformedFrame, and here is the only place that makes it
  one. A message fills its bytes exactly.
- Whatever is wrong with a message that we want to write is our own fault: an AssertionError.
- Compiled source is two to three times faster than closures composed of the same declarations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.plan import plan
from kafka_ds.protocol.reader_source import ReaderSource
from kafka_ds.protocol.writer_source import WriterSource

M = TypeVar("M")
Buffer = bytes | bytearray | memoryview
Reader = Callable[[memoryview, int, int], tuple[Any, int]]
Writer = Callable[[Any, bytearray, list[Any]], bytearray]


def _read_function(cls: type, version: int) -> Reader:
    source = ReaderSource()
    source.message(plan(cls, version))
    read: Reader = source.page.compile(f"reader of {cls.__name__} {version}")["read"]
    return read


def _write_function(cls: type, version: int) -> Writer:
    source = WriterSource()
    source.message(plan(cls, version))
    write: Writer = source.page.compile(f"writer of {cls.__name__} {version}")["write"]
    return write


# `read(view, position, end) -> (message, position after it)`; its errors are those of `reader_source`.
reader: Callable[[type, int], Reader] = cache(_read_function)
# `write(message, out, parts) -> out`: what is full goes to `parts`, the rest is returned.
writer: Callable[[type, int], Writer] = cache(_write_function)


def decode(
    cls: type[M], buffer: Buffer, version: int, position: int = 0, *, spare_bytes_max: int = 0
) -> M:
    """The message that fills `buffer` from `position` to its end; at most `spare_bytes_max` bytes may be left."""
    read = reader(cls, version)
    view = memoryview(buffer)
    end = len(view)
    try:
        message, position = read(view, position, end)
    except (MalformedFrame, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"{cls.__name__} {version}: {error}") from error
    if not 0 <= end - position <= spare_bytes_max:
        raise MalformedFrame(f"{cls.__name__} {version}: {end - position} bytes too many")
    result: M = message
    return result


def write_parts(message: Any, version: int, out: bytearray) -> list[Any]:
    """Append the message to `out`, and return `out` and the parts that have to follow it."""
    parts: list[Any] = []
    try:
        last = writer(type(message), version)(message, out, parts)
    except (struct.error, AttributeError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(message).__name__} {version}"
        raise AssertionError(f"{what} cannot be written: {error}: {message!r:.300}") from error
    if last:
        parts.append(last)
    return parts


def encode_parts(message: Any, version: int) -> list[Any]:
    """The message as buffers in order; `records` of some size are among them as they were given."""
    return write_parts(message, version, bytearray())


def encode(message: Any, version: int) -> bytes:
    """The message in one piece."""
    return b"".join(encode_parts(message, version))
