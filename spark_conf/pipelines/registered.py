"""Shell: keys and values whose schemas are in a registry → rows of a typed table, whatever their format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t

from spark_conf.pipelines.decoder import (
    KEY,
    METADATA,
    NO_COLUMN,
    REASON,
    RESCUED,
    TOMBSTONE,
    VALUE,
    DecodedRows,
    joined_reasons,
)
from spark_conf.pipelines.schema_columns import OWN, SchemaColumns, is_nested
from spark_conf.pipelines.schema_names import (
    ID,
    DecodedSchema,
    SchemaReader,
    framed,
    names_of,
    problem_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def with_keys(rows: DataFrame, reader: SchemaReader) -> DataFrame:
    """The rows with their keys as text: a record's as JSON, other values as they are."""
    read, schemas, problem = _read(rows.withColumnRenamed(KEY, "key"), reader, "key")
    texts = [_text(each) for each in schemas]
    key = f.coalesce(*texts) if texts else f.lit(None).cast("string")
    keyed = read.withColumns(
        {KEY: f.when(problem.isNull(), key), REASON: joined_reasons(REASON, problem)}
    )
    return keyed.select(*METADATA, VALUE, REASON, TOMBSTONE)


def _text(schema: DecodedSchema) -> SparkColumn:
    return f.to_json(schema.value) if is_nested(schema.type) else schema.value.cast("string")


def decode_values(rows: DataFrame, columns: t.StructType, reader: SchemaReader) -> DecodedRows:
    """The rows with a column for each field of their schemas; `columns` are those that the table has."""
    read, schemas, problem = _read(rows, reader, VALUE)
    work = SchemaColumns(now={each.name: each.dataType for each in columns if each.name not in OWN})
    for each in schemas:
        work.place(each)
    left = f.coalesce(*work.rescued) if work.rescued else f.lit(None).cast("string")
    is_left = problem.isNull() & left.isNotNull()
    decoded = read.select(
        *(name for name in METADATA if name != "_schema_id"),
        f.col(ID).alias("_schema_id"),
        *(each.alias(name) for name, each in work.columns()),
        f.when(problem.isNotNull(), f.base64(VALUE)).otherwise(left).alias(RESCUED),
        joined_reasons(REASON, problem, f.when(is_left, f.lit(NO_COLUMN))),
        TOMBSTONE,
    )
    return DecodedRows(rows=decoded, clashes=tuple(work.clashes))


def _read(
    rows: DataFrame, reader: SchemaReader, column: str
) -> tuple[DataFrame, list[DecodedSchema], SparkColumn]:
    """The rows with what their keys or values are, their schemas, and why some cannot be decoded."""
    has_messages = reader.has_messages
    named = framed(rows, column, has_messages=has_messages)
    names = names_of(named, has_messages=has_messages)
    read, schemas, problems = reader.read(named, names, column)
    return read, schemas, problem_of(column, schemas, problems, has_messages=has_messages)
