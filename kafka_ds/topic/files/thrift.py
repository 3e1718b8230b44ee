"""Pure: Thrift's compact protocol, in which Parquet's footers and headers of pages are written.

Bytes may be damaged, or somebody's who means harm: all that is read is within bounds, and nothing is nested deeper than
Parquet nests. Maps, which Parquet does not have, are refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

DEPTH_MAX = 16
VARINT_BITS_MAX = 70
# The head of a list with more elements than fit into it.
LIST_LONG = 15


class ThriftType(IntEnum):
    """The types of fields and of elements."""

    TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class MalformedThrift(ValueError):
    """Bytes that are no struct of Parquet's."""


def read_varint(data: Any, at: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits and the position after it. Raises MalformedThrift, IndexError at the end."""
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift >= VARINT_BITS_MAX:
            raise MalformedThrift("a number of more than 64 bits")
    return value | byte << shift, at + 1


def read_list_size(data: Any, at: int) -> tuple[int, int]:
    """How many elements a list has, and the position of the first. Raises MalformedThrift, IndexError at the end."""
    size = data[at] >> 4
    return (size, at + 1) if size < LIST_LONG else read_varint(data, at + 1)


class ThriftReader:
    """Reads structs as dicts by the numbers of their fields, one after the other; `position` is behind the last one.

    All methods raise MalformedThrift, and IndexError at the end of the bytes.
    """

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self._data = data
        self.position = position

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct that begins at the position; `depth`: in how many others it is."""
        if depth > DEPTH_MAX:
            raise MalformedThrift("structs within structs")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 0x0F
            fields[number] = (
                kind == ThriftType.TRUE
                if kind in (ThriftType.TRUE, ThriftType.FALSE)
                else self._value(kind, depth)
            )
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise MalformedThrift("lists within lists")
        match kind:
            case ThriftType.INT16 | ThriftType.INT32 | ThriftType.INT64:
                return self._zigzag()
            case ThriftType.BINARY:
                return self._bytes(self._varint())
            case ThriftType.STRUCT:
                return self.struct(depth + 1)
            case ThriftType.LIST | ThriftType.SET:
                element = self._data[self.position] & 0x0F
                size, self.position = read_list_size(self._data, self.position)
                return [self._value(element, depth + 1) for _ in range(size)]
            case ThriftType.TRUE | ThriftType.FALSE | ThriftType.BYTE:
                return self._byte()
            case ThriftType.DOUBLE:
                return self._bytes(8)
        raise MalformedThrift(f"a field of type {kind}")

    def _byte(self) -> int:
        value: int = self._data[self.position]
        self.position += 1
        return value

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self.position:
            raise IndexError
        self.position += size
        return bytes(self._data[self.position - size : self.position])

    def _varint(self) -> int:
        value, self.position = read_varint(self._data, self.position)
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
