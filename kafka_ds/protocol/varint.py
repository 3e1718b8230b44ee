"""Pure: the variable-length integers of flexible versions.

Counts, lengths and tags have 32 bits, so at most 5 bytes; longer varints are malformed.
"""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.errors import MalformedFrame


def read_unsigned_varint(buffer: Any, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedFrame("a varint of more than 5 bytes")
    if value > 0xFFFFFFFF:
        raise MalformedFrame("a varint of more than 32 bits")
    return value, position


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def unsigned_varint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    assert value >= 0
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
