"""Shell: the schema id in a key, a value or a header, as Confluent's serializers write it.

A frame is 0 and four bytes of schema id, or 1 and the 16 bytes of a GUID. It precedes the key or value, or is in a
header. With Protobuf the message indexes follow: their count, and the indexes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as f

from spark_conf.pipelines.registry import NoSuchSchema
from spark_conf.pipelines.schema_evolution import TextPlace

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql import types as t

    from spark_conf.pipelines.registry import RegisteredSchema, SchemaRegistry

# How many schemas one step reads: each is an expression of its own.
SCHEMAS_MAX: Final = 100
ID, PAYLOAD = "_id", "_payload"
_GUID, _MESSAGE, _REST = "_guid", "_message", "_rest"
_ID_BYTES, _GUID_BYTES = 5, 17
# Why a record is not decoded: none of the expected names is its schema's. If those are an earlier step's, they are
# looked for, and the step is decoded again.
UNEXPECTED: Final = (
    f"the schema is not one of the {SCHEMAS_MAX} that most records of this step have"
)
# The most bytes of message indexes.
_INDEXES_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaName:
    """A schema's id or GUID, and with Protobuf the bytes of the message indexes, in hexadecimal digits."""

    number: int | None
    guid: str | None
    message: str | None

    def __str__(self) -> str:
        return str(self.id_or_guid)

    @property
    def id_or_guid(self) -> int | str:
        """The id, or the GUID as text."""
        if self.number is not None:
            return self.number
        assert self.guid is not None
        return str(uuid.UUID(self.guid))

    def matches(self) -> SparkColumn:
        """Whether a row has this name."""
        number, guid, message = f.lit(self.number), f.lit(self.guid), f.lit(self.message)
        named = f.equal_null(_GUID, guid) if self.number is None else f.equal_null(ID, number)
        return named if self.message is None else named & f.equal_null(_MESSAGE, message)


@dataclass(frozen=True, slots=True)
class ExpectedNames:
    """The schema names of the last step's keys and values, by column; empty if they are to be looked for.

    `declared` are the ids of JSON Schemas whose fields have columns.

    Looking for them is a query of its own over the records (1.7 of 7.8 s of CPU a million, 2026-11-29).
    """

    of_column: dict[str, list[tuple[SchemaName, TextPlace]]] = field(default_factory=dict)
    declared: set[int] = field(default_factory=set)

    def in_rows(
        self, rows: DataFrame, column: str, *, has_messages: bool
    ) -> list[tuple[SchemaName, TextPlace]]:
        """The expected names, or those in framed rows, which are expected from now on."""
        if column not in self.of_column:
            self.of_column[column] = names_of(rows, has_messages=has_messages)
        return self.of_column[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSchema:
    """The decoded records of a schema; `value` is null for other and for malformed records."""

    name: SchemaName
    first: TextPlace
    type: t.DataType
    value: SparkColumn
    is_read: SparkColumn


class SchemaReader(Protocol):
    """Reads the keys or values of a format."""

    has_messages: bool
    """Whether a frame has message indexes (Protobuf)."""

    def read(
        self, framed: DataFrame, names: Sequence[tuple[SchemaName, TextPlace]], column: str
    ) -> tuple[DataFrame, list[DecodedSchema], dict[SchemaName, str]]:
        """The rows with decoded payloads, the schemas, and for other names why there is no schema."""


def registered_schema(
    registry: SchemaRegistry, name: SchemaName, kind: str
) -> RegisteredSchema | str:
    """The schema; or why there is none of this kind."""
    try:
        schema = registry.schema(name.id_or_guid)
    except NoSuchSchema as problem:
        return str(problem)
    if schema.kind != kind.upper():
        return f"schema {name} is not {kind} but {schema.kind}"
    return schema


def schema_id_header(column: str) -> str:
    """The header that may have the schema's id or GUID of the record's key or value."""
    return f"__{column}_schema_id"


def framed(rows: DataFrame, column: str, *, has_messages: bool = False) -> DataFrame:
    """The rows with the schema name of their key or value, null if it has none, and the payload after the frame."""
    header = schema_id_header(column)
    of_header = f.try_element_at(
        f.filter("_headers", lambda each: each["key"] == header), f.lit(-1)
    )
    has_id, has_guid = _begins(of_header["value"], b"\0"), _begins(of_header["value"], b"\1")
    size = f.length(of_header["value"])
    is_whole = (has_id & (size == _ID_BYTES)) | (has_guid & (size == _GUID_BYTES))
    if has_messages:
        is_whole = (has_id & (size > _ID_BYTES)) | (has_guid & (size > _GUID_BYTES))
    is_in_header = f.coalesce(is_whole, f.lit(False))
    frame = f.when(is_in_header, of_header["value"]).otherwise(f.col(column))
    number = f.conv(f.hex(f.substring(frame, 2, 4)), 16, 10).try_cast("int")
    is_long = f.length(frame) >= _GUID_BYTES
    named = rows.withColumns(
        {
            ID: f.when(_begins(frame, b"\0"), number).cast("int"),
            _GUID: f.when(_begins(frame, b"\1") & is_long, f.hex(f.substring(frame, 2, 16))),
            _REST: f.when(_begins(frame, b"\0"), _after(frame, _ID_BYTES)).otherwise(
                _after(frame, _GUID_BYTES)
            ),
        }
    )
    message = _indexes(f.col(_REST)) if has_messages else f.lit(None).cast("string")
    payload = f.col(_REST)
    if has_messages:
        payload = f.expr(f"substring({_REST}, 1 + length({_MESSAGE}) DIV 2)")
    return named.withColumn(_MESSAGE, message).withColumn(
        PAYLOAD, f.when(is_in_header, f.col(column)).otherwise(payload)
    )


def without_frame(rows: DataFrame, column: str) -> DataFrame:
    """The rows with frames removed from their values and the id in `_schema_id`."""
    named = framed(rows, column)
    value = f.when(has_name(), f.col(PAYLOAD)).otherwise(f.col(column))
    return named.withColumns({column: value, "_schema_id": f.col(ID)}).select(*rows.columns)


def _begins(frame: SparkColumn, byte: bytes) -> SparkColumn:
    return f.substring(frame, 1, 1) == f.lit(byte)


def _after(frame: SparkColumn, size: int) -> SparkColumn:
    return f.substring(frame, size + 1, (1 << 31) - 1)


def _indexes(rest: SparkColumn) -> SparkColumn:
    """The bytes of the message indexes: a count, and so many varints, whose last bytes are below 128."""
    first = f.hex(f.substring(rest, 1, 1))
    text = f.hex(f.substring(rest, 1, _INDEXES_BYTES))
    # The count is zigzag-encoded: its byte is twice the count.
    count = f.shiftright(f.conv(first, 16, 10).cast("int"), 1).cast("string")
    numbers = f.concat(f.lit("^..(?:(?:[89A-F].)*[0-7].){"), count, f.lit("}"))
    found = f.call_function("regexp_extract", text, numbers, f.lit(0))
    return f.when(first == "00", first).otherwise(f.nullif(found, f.lit("")))


def names_of(rows: DataFrame, *, has_messages: bool = False) -> list[tuple[SchemaName, TextPlace]]:
    """The schema names that most framed rows have, SCHEMAS_MAX at most, each with its first record.

    Others may be garbage, and no record stops a table.
    """
    place = f.min(f.struct("_partition", "_offset")).alias("first")
    of_name = rows.where(has_name(has_messages=has_messages)).groupBy(ID, _GUID, _MESSAGE)
    found = of_name.agg(place, f.count("*").alias("rows")).orderBy(f.desc("rows"), "first")
    named = [
        (
            SchemaName(number=row[ID], guid=row[_GUID], message=row[_MESSAGE]),
            tuple(row["first"]),
        )
        for row in found.limit(SCHEMAS_MAX).collect()
    ]
    return sorted(named, key=lambda each: (each[0].number or 0, each[1]))


def has_name(*, has_messages: bool = False) -> SparkColumn:
    """Whether a framed row has a schema name."""
    named = f.col(ID).isNotNull() | f.col(_GUID).isNotNull()
    return named & f.col(_MESSAGE).isNotNull() if has_messages else named


def problem_of(
    column: str,
    schemas: Sequence[DecodedSchema],
    problems: dict[SchemaName, str],
    *,
    has_messages: bool,
) -> SparkColumn:
    """Why a key or a value cannot be decoded; null if it can."""
    no_name = f"the {column} has no schema id: no serializer of a schema registry wrote it"
    problem = f.when(~has_name(has_messages=has_messages), f.lit(no_name))
    is_expected = f.lit(False)
    for name, text in problems.items():
        problem = problem.when(name.matches(), f.lit(text))
    for each in schemas:
        wrong = f.lit(f"the {column} does not match schema {each.name}")
        is_bad = ~f.coalesce(each.is_read, f.lit(False))
        problem = problem.when(each.name.matches() & is_bad, wrong)
    for name in (*problems, *(each.name for each in schemas)):
        is_expected |= name.matches()
    problem = problem.when(~is_expected, f.lit(UNEXPECTED))
    return f.when(f.col(column).isNotNull(), problem)
