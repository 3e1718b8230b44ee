"""Pure: whether the footer of another engine's Parquet file is consistent, before Arrow is asked about its columns.

- When pyarrow reads a column chunk's metadata and statistics, C++ exceptions can escape and end the process. This file
  looks for their causes first: a chunk that is missing, encrypted or of another type than the schema says, statistics
  too short for a value of that type, histograms of levels of another size (parquet.thrift).
- It reads the bytes of the footer: Thrift's compact protocol. A field of another type than the format says is refused,
  though Arrow would skip it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

import pyarrow.parquet as pq

# Fields by their numbers: of the file, a row group, a column's chunk, its metadata, statistics, sizes.
ROW_GROUPS, COLUMNS = 4, 1
META_DATA, CRYPTO, ENCRYPTED = 3, 8, 9
TYPE, STATISTICS, SIZES = 1, 12, 16
MINIMA_AND_MAXIMA = (1, 2, 5, 6)
UNENCODED_BYTES, REPETITION_LEVELS, DEFINITION_LEVELS = 1, 2, 3
# Physical types by their numbers, and how many bytes a plain value has; those of the last two vary.
TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")  # fmt: skip
VALUE_BYTES = (1, 4, 8, 12, 4, 8, 0)
DEPTH_MAX = 16
VARINT_BITS_MAX = 70


T = TypeVar("T")


class ThriftType(IntEnum):
    """Thrift's types."""

    TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class Contradiction(ValueError):
    """A footer that contradicts itself."""


def check(metadata: pq.FileMetaData, footer: bytes) -> None:
    """Raises Contradiction; `footer` is what `metadata` was read of, without length and magic."""
    try:
        fields = FooterReader(memoryview(footer)).struct(0)
    except (IndexError, RecursionError) as error:
        raise Contradiction("a footer that ends early") from error
    leaves = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    groups = _field(fields, ROW_GROUPS, list)
    if len(groups) != metadata.num_row_groups:
        raise Contradiction("a footer that can be understood in several ways")
    for number, group in enumerate(groups):
        chunks = _field(group, COLUMNS, list)
        if len(chunks) != len(leaves):
            raise Contradiction(f"{len(chunks)} columns in row group {number}, not {len(leaves)}")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            if (why := _wrong_in(chunk, leaf)) is not None:
                raise Contradiction(f"column {leaf.path} of row group {number}: {why}")


def _field(fields: Any, number: int, kind: type[T]) -> T:
    """The field of this number, or an empty value if it is absent. Raises Contradiction if it has another type."""
    found = fields.get(number, kind()) if isinstance(fields, dict) else None
    if type(found) is not kind:
        raise Contradiction(f"field {number} is no {kind.__name__}")
    return found


def _wrong_in(chunk: Any, leaf: pq.ColumnSchema) -> str | None:
    of_chunk = _field(chunk, META_DATA, dict)
    if not of_chunk or CRYPTO in chunk or ENCRYPTED in chunk:
        return "encrypted, or without metadata"
    kind = _field(of_chunk, TYPE, int)
    if not 0 <= kind < len(TYPES) or TYPES[kind] != leaf.physical_type:
        return f"type {kind}, where the schema has {leaf.physical_type}"
    statistics, sizes = _field(of_chunk, STATISTICS, dict), _field(of_chunk, SIZES, dict)
    value_bytes = VALUE_BYTES[kind] if kind < len(VALUE_BYTES) else leaf.length
    for field in MINIMA_AND_MAXIMA:
        if 0 < len(_field(statistics, field, bytes)) < value_bytes:
            return "statistics too short for a value"
    if UNENCODED_BYTES in sizes and leaf.physical_type != "BYTE_ARRAY":
        return "the bytes of what are no bytes"
    for field, most in (
        (REPETITION_LEVELS, leaf.max_repetition_level),
        (DEFINITION_LEVELS, leaf.max_definition_level),
    ):
        if (levels := _field(sizes, field, list)) and len(levels) != most + 1:
            return f"{len(levels)} counts of levels, where there are {most + 1}"
    return None


class FooterReader:
    """Reads Thrift's compact protocol: structs as dicts by the numbers of their fields. Raises IndexError."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > DEPTH_MAX:
            raise Contradiction("structs within structs")
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
            raise Contradiction("lists within lists")
        match kind:
            case ThriftType.INT16 | ThriftType.INT32 | ThriftType.INT64:
                return self._zigzag()
            case ThriftType.BINARY:
                return self._bytes(self._varint())
            case ThriftType.STRUCT:
                return self.struct(depth + 1)
            case ThriftType.LIST | ThriftType.SET:
                head = self._byte()
                size = head >> 4 if head >> 4 < 15 else self._varint()
                return [self._value(head & 0x0F, depth + 1) for _ in range(size)]
            case ThriftType.TRUE | ThriftType.FALSE | ThriftType.BYTE:
                return self._byte()
            case ThriftType.DOUBLE:
                return self._bytes(8)
        raise Contradiction(f"a field of type {kind}")

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise IndexError
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= VARINT_BITS_MAX:
                raise Contradiction("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
