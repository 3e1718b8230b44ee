"""Pure: the columns that the source offers, and how a row of the lake or of a fetch becomes one of them.

Rules of this file: names, order and types of the first eight are those of Spark's Kafka source, so that a job changes
one word; a record without headers has null there, as Spark has it; a timestamp that fits no date (-1, garbage) is the
moment that its milliseconds spell, as Spark has it, or null where no 64-bit microsecond can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

# Milliseconds beyond these have no microseconds in 64 bits.
_MILLISECONDS_MAX: Final = (2**63 - 1) // 1_000


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


def ddl(names: Sequence[str]) -> str:
    """The schema as Spark reads it."""
    return ", ".join(f"{name} {COLUMNS[name.lower()].ddl}" for name in names)


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
        self._constants = {"topic": topic, "partition": partition}
        self._built: dict[str, Any] = {}

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, as Spark wants them."""
        import pyarrow as pa

        arrays = [self._array(rows, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        name = field.name.lower()
        if name in self._constants:
            return self._constant(name, field, rows.num_rows)
        if name == "timestamp":
            return timestamps(rows).cast(field.type)
        if name == "headers":
            return headers(rows, field.type)
        column = rows.column(COLUMNS[name].lake[0])
        return column if column.type == field.type else column.cast(field.type)

    def _constant(self, name: str, field: pa.Field, count: int) -> pa.Array:
        import pyarrow as pa

        built = self._built.get(name)
        if built is None or len(built) < count:
            value = pa.scalar(self._constants[name], field.type)
            built = self._built[name] = pa.repeat(value, max(count, 1))
        return built if len(built) == count else built.slice(0, count)


def timestamps(rows: pa.RecordBatch) -> pa.Array:
    """The rows' timestamps in microseconds, UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = rows.column("timestamp")
    if not found.null_count or "timestamp_ms" not in rows.schema.names:
        return found
    raw = rows.column("timestamp_ms")
    fits = pc.less_equal(pc.abs_checked(pc.max_element_wise(raw, -(2**63) + 1)), _MILLISECONDS_MAX)
    spelt = pc.multiply(pc.if_else(fits, raw, pa.scalar(None, pa.int64())), 1_000)
    return pc.coalesce(found, spelt.cast(found.type))


def headers(rows: pa.RecordBatch, wanted: pa.DataType) -> pa.Array:
    """The rows' headers, null where a record has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = rows.column("headers")
    some = pc.greater(pc.list_value_length(found), 0)
    if pc.all(some).as_py() is not True or some.null_count:
        some = pc.fill_null(some, False)
        found = pc.if_else(some, found, pa.scalar(None, found.type))
    return found if found.type == wanted else found.cast(wanted)
