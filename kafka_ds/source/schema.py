"""Pure: the columns that the source offers, and how a row of the lake or of a fetch becomes one of them.

- Names, order and types of the first eight are those of Spark's Kafka source: a job changes one word.
- A timestamp that fits no date (-1, garbage) is the moment of its milliseconds, as in Spark, or null if microseconds in
  64 bits cannot hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

# Milliseconds beyond these have no microseconds in 64 bits.
MILLISECONDS_MAX: Final = (2**63 - 1) // 1_000


class ColumnError(ValueError):
    """A column that the source does not have; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its type as Spark's DDL spells it, and the columns of the lake that it is made of."""

    name: str
    ddl: str
    lake: tuple[str, ...]


COLUMNS: Final = {
    column.name.lower(): column
    for column in (
        Column(name="key", ddl="binary", lake=("key",)),
        Column(name="value", ddl="binary", lake=("value",)),
        Column(name="topic", ddl="string", lake=()),
        Column(name="partition", ddl="int", lake=()),
        Column(name="offset", ddl="bigint", lake=("offset",)),
        Column(name="timestamp", ddl="timestamp", lake=("timestamp", "timestamp_ms")),
        Column(name="timestampType", ddl="int", lake=("timestamp_type",)),
        Column(
            name="headers",
            ddl="array<struct<key:string,value:binary>>",
            lake=("headers", "headers_raw"),
        ),
        Column(name="leader_epoch", ddl="int", lake=("leader_epoch",)),
    )
}
KAFKA_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)


def parse_columns(text: str) -> tuple[str, ...]:
    """The option ``columns``: names separated by commas, in the order of the rows.

    Raises:
        ColumnError: no name, an unknown one, or one twice.
    """
    names = tuple(name for name in map(str.strip, text.split(",")) if name)
    if not names:
        raise ColumnError("it names no column")
    return known_columns(names)


def known_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names as the source spells them.

    Raises:
        ColumnError: an unknown name, or one twice.
    """
    for name in names:
        if name.lower() not in COLUMNS:
            there = ", ".join(column.name for column in COLUMNS.values())
            raise ColumnError(f"there is no column {name!r}; there are {there}")
    spelt = tuple(COLUMNS[name.lower()].name for name in names)
    if len(set(spelt)) != len(spelt):
        raise ColumnError(f"a column is named twice: {', '.join(spelt)}")
    return spelt


def default_columns(*, include_headers: bool) -> tuple[str, ...]:
    """The columns of Spark's Kafka source."""
    return (*KAFKA_COLUMNS, "headers") if include_headers else KAFKA_COLUMNS


def lake_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of the lake that must be read to make these."""
    return tuple(dict.fromkeys(c for name in names for c in COLUMNS[name.lower()].lake))


class Projection:
    """Rows in the lake's columns into the columns that Spark declared, exactly as it declared them.

    ``schema`` is what Spark expects: names, order, types and nullability. One projection serves one topic partition:
    the columns that are the same in every row are built once and sliced.
    """

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._constants: dict[str, str | int] = {"topic": topic, "partition": partition}
        self._built: dict[str, Any] = {}

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, as Spark wants them."""
        import pyarrow as pa

        arrays = [self._array(rows, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        name = field.name.lower()
        if name in self._constants:
            return self._constant(name, rows.num_rows)
        if name == "headers":
            return headers(rows, field.type)
        if name == "timestamp":
            column = timestamps(rows)
        else:
            source = COLUMNS[name].lake[0]
            column = rows.column(source) if source in rows.schema.names else None
        return _column_or_nulls(column, rows.num_rows, field.type)

    def _constant(self, name: str, count: int) -> pa.Array:
        from kafka_ds.source.filters.masks import repeated

        built = self._built.get(name)
        if built is None or len(built) < count:
            built = self._built[name] = repeated(self._constants[name], max(count, 1))
        return built if len(built) == count else built.slice(0, count)


def timestamps(rows: pa.RecordBatch) -> pa.Array:
    """The rows' timestamps in microseconds, UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = rows.column("timestamp")
    wanted = pa.timestamp("us", tz="UTC")
    if found.type != wanted:
        found = found.cast(wanted)
    if not found.null_count or "timestamp_ms" not in rows.schema.names:
        return found
    raw = rows.column("timestamp_ms")
    fits = pc.and_(pc.greater_equal(raw, -MILLISECONDS_MAX), pc.less_equal(raw, MILLISECONDS_MAX))
    spelt = pc.multiply(pc.if_else(fits, raw, pa.scalar(None, pa.int64())), 1_000)
    return pc.coalesce(found, spelt.cast(wanted))


def headers(rows: pa.RecordBatch, wanted: pa.DataType) -> pa.Array:
    """The rows' headers; those whose keys are not UTF-8 are read with the replacement character, as in Java."""
    found = rows.column("headers") if "headers" in rows.schema.names else None
    raw = rows.column("headers_raw") if "headers_raw" in rows.schema.names else None
    if raw is not None and raw.null_count < len(raw):
        import pyarrow as pa

        spelt = found.to_pylist() if found is not None else [None] * rows.num_rows
        for index, section in enumerate(raw.to_pylist()):
            if section is not None:
                spelt[index] = parse_headers(section)
        return pa.array(spelt, wanted)
    return _column_or_nulls(found, rows.num_rows, wanted)


def parse_headers(section: bytes) -> list[dict[str, Any]]:
    """The header section of a record: a count, then keys and values, each behind its length."""
    position = 0

    def varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = section[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)

    def field() -> bytes | None:
        nonlocal position
        length = varint()
        if length < 0:
            return None
        position += length
        return section[position - length : position]

    found: list[dict[str, Any]] = []
    for _ in range(varint()):
        key = field() or b""
        found.append({"key": key.decode("utf-8", errors="replace"), "value": field()})
    return found


def _column_or_nulls(column: pa.Array | None, count: int, wanted: pa.DataType) -> pa.Array:
    """A column as Spark wants it; if an engine left it out of a file, nulls."""
    import pyarrow as pa

    if column is None:
        return pa.nulls(count, wanted)
    return column if column.type == wanted else column.cast(wanted)
