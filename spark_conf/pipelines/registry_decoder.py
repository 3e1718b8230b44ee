"""Shell: keys and values with schemas in a registry → rows of a typed table; for Avro and Protobuf."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from kafka_ds.topic.typed_columns import OWN
from spark_conf.pipelines.decoder import (
    DEBEZIUM,
    KEY,
    METADATA,
    NO_COLUMN,
    NO_ENVELOPE,
    NOT_A_CHANGE,
    REASON,
    RESCUED,
    TOMBSTONE,
    VALUE,
    WITH_ROWS,
    DecodedRows,
    joined_reasons,
    rescued_key,
)
from spark_conf.pipelines.schema_columns import SchemaColumns, is_nested
from spark_conf.pipelines.schema_names import (
    ID,
    DecodedSchema,
    ExpectedNames,
    SchemaReader,
    framed,
    problem_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def with_keys(rows: DataFrame, reader: SchemaReader, expected: ExpectedNames) -> DataFrame:
    """The rows with decoded keys: structs, arrays and maps as JSON, others as text."""
    read, schemas, problem = _read(rows.withColumnRenamed(KEY, "key"), reader, "key", expected)
    texts = [_text(each) for each in schemas]
    key = f.coalesce(*texts) if texts else f.lit(None).cast("string")
    keyed = read.withColumns(
        {
            KEY: f.when(problem.isNull(), key),
            RESCUED: f.when(problem.isNotNull(), rescued_key("key")),
            REASON: joined_reasons(REASON, problem),
        }
    )
    return keyed.select(*METADATA, VALUE, RESCUED, REASON, TOMBSTONE)


def _text(schema: DecodedSchema) -> SparkColumn:
    return f.to_json(schema.value) if is_nested(schema.type) else schema.value.cast("string")


def decode_values(
    rows: DataFrame,
    columns: t.StructType,
    reader: SchemaReader,
    expected: ExpectedNames,
    envelope: str = NO_ENVELOPE,
    reserved: Collection[str] = OWN,
) -> DecodedRows:
    """The rows with a column for each field of their schemas; `columns` are the table's present ones.

    No field gets a `reserved` name.
    """
    read, schemas, problem = _read(rows, reader, VALUE, expected)
    is_tombstone = f.col(TOMBSTONE)
    if envelope == DEBEZIUM:
        schemas, is_change, is_deletion = _of_changes(schemas)
        is_none = f.col(VALUE).isNotNull() & ~is_change
        problem = f.coalesce(problem, f.when(is_none, f.lit(NOT_A_CHANGE)))
        is_tombstone |= problem.isNull() & is_deletion
    placed = SchemaColumns(
        now={each.name: each.dataType for each in columns if each.name not in OWN},
        reserved=reserved,
    )
    for each in schemas:
        placed.place(each)
    rescued = f.coalesce(*placed.rescued) if placed.rescued else f.lit(None).cast("string")
    is_rescued = problem.isNull() & rescued.isNotNull()
    decoded = read.select(
        *(name for name in METADATA if name != "_schema_id"),
        f.col(ID).alias("_schema_id"),
        *(each.alias(name) for name, each in placed.columns()),
        f.coalesce(f.when(problem.isNotNull(), f.base64(VALUE)).otherwise(rescued), RESCUED).alias(
            RESCUED
        ),
        joined_reasons(REASON, problem, f.when(is_rescued, f.lit(NO_COLUMN))),
        is_tombstone.alias(TOMBSTONE),
    )
    return DecodedRows(rows=decoded, clashes=tuple(placed.clashes))


def _of_changes(
    schemas: list[DecodedSchema],
) -> tuple[list[DecodedSchema], SparkColumn, SparkColumn]:
    """The schemas reduced to the row after the change (Debezium's `after`); is it a change event, is it a deletion."""
    of_rows: list[DecodedSchema] = []
    is_row = is_deletion = f.lit(False)
    for each in schemas:
        fields = {} if not isinstance(each.type, t.StructType) else dict(_fields(each.type))
        after = fields.get("after")
        if fields.get("op") != t.StringType() or not isinstance(after, t.StructType):
            continue
        operation, row = each.value["op"], each.value["after"]
        is_its_row = f.coalesce(operation.isin(*WITH_ROWS) & row.isNotNull(), f.lit(False))
        is_row |= is_its_row
        is_deletion |= f.coalesce(operation == "d", f.lit(False))
        of_rows.append(replace(each, type=after, value=f.when(is_its_row, row)))
    return of_rows, is_row | is_deletion, is_deletion


def _fields(kind: t.StructType) -> Iterator[tuple[str, t.DataType]]:
    return ((each.name, each.dataType) for each in kind)


def _read(
    rows: DataFrame, reader: SchemaReader, column: str, expected: ExpectedNames
) -> tuple[DataFrame, list[DecodedSchema], SparkColumn]:
    """The rows with decoded keys or values, their schemas, and why some cannot be decoded."""
    has_messages = reader.has_messages
    named = framed(rows, column, has_messages=has_messages)
    names = expected.in_rows(named, column, has_messages=has_messages)
    read, schemas, problems = reader.read(named, names, column)
    return read, schemas, problem_of(column, schemas, problems, has_messages=has_messages)
