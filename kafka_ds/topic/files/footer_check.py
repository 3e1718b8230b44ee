"""Pure: whether the footer of another engine's Parquet file is consistent, before Arrow is asked about its columns.

- When pyarrow reads a column chunk's metadata and statistics, C++ exceptions can escape and end the process. This file
  looks for their causes first: a chunk that is missing, encrypted or of another type than the schema says, statistics
  too short for a value of that type, histograms of levels of another size (parquet.thrift).
- It reads the bytes of the footer. A field of another type than the format says is refused, though Arrow would skip it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow.parquet as pq

from kafka_ds.topic.files.thrift import MalformedThrift, ThriftReader

# Fields by their numbers: of the file, a row group, a column's chunk, its metadata, statistics, sizes.
ROW_GROUPS, COLUMNS = 4, 1
META_DATA, CRYPTO, ENCRYPTED = 3, 8, 9
TYPE, STATISTICS, SIZES = 1, 12, 16
MINIMA_AND_MAXIMA = (1, 2, 5, 6)
UNENCODED_BYTES, REPETITION_LEVELS, DEFINITION_LEVELS = 1, 2, 3
# Physical types by their numbers, and how many bytes a plain value has; those of the last two vary.
TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")  # fmt: skip
VALUE_BYTES = (1, 4, 8, 12, 4, 8, 0)

T = TypeVar("T")


class Contradiction(ValueError):
    """A footer that contradicts itself."""


def check(metadata: pq.FileMetaData, footer: bytes) -> None:
    """Raises Contradiction; `footer` is what `metadata` was read of, without length and magic."""
    try:
        fields = ThriftReader(memoryview(footer)).struct()
    except IndexError as error:
        raise Contradiction("a footer that ends early") from error
    except MalformedThrift as error:
        raise Contradiction(f"a footer with {error}") from error
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
