"""Shell: records of a topic → rows of its typed table, as Spark expressions.

A row has the record's metadata (`METADATA`), the columns of its value, and `_rescued`: the data that no column can
hold. `_reason` (why data was rescued) and `_tombstone` (the value is null) are dropped before the rows are written. No
record fails a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from kafka_ds.topic.typed_columns import OWN, VARIANT
from spark_conf.pipelines import json_reader
from spark_conf.pipelines.json_schema import kinds_of_fields
from spark_conf.pipelines.kinds import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MIXED,
    STRING,
    ArrayOf,
    Kind,
    ObjectOf,
    ddl,
    is_foreign,
)
from spark_conf.pipelines.registry import NoSuchSchema
from spark_conf.pipelines.schema_evolution import (
    Clash,
    FieldColumn,
    ObjectFields,
    PlacedField,
    Seen,
    TextPlace,
    place,
)
from spark_conf.pipelines.schema_names import (
    ID,
    PAYLOAD,
    SCHEMAS_MAX,
    framed,
    has_name,
    without_frame,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from spark_conf.pipelines.registry import SchemaRegistry

KEY: Final = "_key"
METADATA: Final = ("_partition", "_offset", "_timestamp", KEY, "_headers", "_schema_id")
RESCUED: Final = "_rescued"
REASON: Final = "_reason"
TOMBSTONE: Final = "_tombstone"
VALUE: Final = "value"
# The most kinds of fields in one batch, and the longest text of one: beyond these limits values are rescued.
KINDS_MAX: Final = 10_000
KIND_CHARACTERS_MAX: Final = 1 << 16
NOT_UTF8: Final = "the value is not UTF-8: _rescued has it in base64"
NOT_JSON: Final = "the value is not JSON"
NO_COLUMN: Final = "no column can hold what is in _rescued"
NOT_AN_OBJECT: Final = "the value is not a JSON object"
NOT_A_CHANGE: Final = "the value is not a change event in Debezium's envelope"
# Formats whose schemas are in a registry.
REGISTERED: Final = ("avro", "protobuf")
NO_ENVELOPE: Final = "none"
DEBEZIUM: Final = "debezium"
# Debezium's `op` of changes that leave a row: create, update, read (of a snapshot).
WITH_ROWS: Final = ("c", "u", "r")
_PARSED: Final = "_parsed"
_FIELDS: Final = "_fields"
_SIMPLE: Final = {each: each for each in (BIGINT, DOUBLE, BOOLEAN, STRING, VARIANT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """Rows with the table's columns, new ones included, and the clashes that made new ones necessary."""

    rows: DataFrame
    clashes: tuple[Clash, ...] = ()


def with_metadata(records: DataFrame, key_format: str) -> DataFrame:
    """The records' metadata and undecoded values; `_reason` says why a key cannot be decoded, `_rescued` has it.

    A key with a schema of a registry is not decoded here.
    """
    is_bytes = key_format in ("none", *REGISTERED)
    key = f.col("key")
    if key_format == "json":
        is_framed = f.hex(f.substring(key, 1, 1)) == "00"
        key = f.when(is_framed, f.expr("substring(key, 6)")).otherwise(key)
    is_text = f.lit(True) if is_bytes else f.coalesce(f.is_valid_utf8(key), f.lit(True))
    key = key if is_bytes else f.when(is_text, key.cast("string"))
    return records.select(
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        f.col("timestamp").alias("_timestamp"),
        key.alias(KEY),
        f.col("headers").alias("_headers"),
        f.lit(None).cast("int").alias("_schema_id"),
        VALUE,
        f.when(~is_text, rescued_key("key")).alias(RESCUED),
        f.when(~is_text, f.lit("the key is not UTF-8")).alias(REASON),
        f.col(VALUE).isNull().alias(TOMBSTONE),
    )


def rescued_key(column: str) -> SparkColumn:
    """What `_rescued` has of a key that cannot be decoded, if nothing of the value is there: its bytes, as JSON."""
    return f.to_json(f.struct(f.base64(column).alias(KEY)))


def decode_string(rows: DataFrame, columns: ObjectOf) -> DecodedRows:
    """Values as text, in the column `value`, or `value__string` where `value` is of another type."""
    is_text = f.is_valid_utf8(VALUE)
    level = place(columns, {VALUE: {"STRING": (0, 0)}})
    name = next((each.name for each in level.fields[0].columns), None)
    clashes = level.clashes
    if clashes:
        at = f.min(f.struct("_partition", "_offset"))
        (first,) = rows.where(f.col(VALUE).isNotNull()).agg(at).collect()[0]
        clashes = () if first is None else (replace(clashes[0], place=tuple(first)),)
    text = f.when(is_text, f.col(VALUE).cast("string"))
    rescued = f.when(~is_text, f.base64(VALUE)) if name else f.coalesce(text, f.base64(VALUE))
    why = f.when(~is_text, f.lit(NOT_UTF8))
    if name is None:
        why = why.when(is_text, f.lit(NO_COLUMN))
    return DecodedRows(
        rows=rows.select(
            *METADATA,
            *([text.alias(name)] if name else ()),
            f.coalesce(rescued, RESCUED).alias(RESCUED),
            joined_reasons(REASON, why),
            TOMBSTONE,
        ),
        clashes=clashes,
    )


def parse_json(rows: DataFrame, envelope: str = NO_ENVELOPE) -> DataFrame:
    """The rows with parsed values, unwrapped from their envelope; they are to be cached, and then decoded."""
    rows = without_frame(rows, VALUE)
    text = f.when(f.is_valid_utf8(VALUE), f.col(VALUE).cast("string"))
    parsed = rows.withColumn("_text", text).withColumn(_PARSED, f.try_parse_json("_text"))
    is_object = f.ltrim("_text", f.lit(" \t\r\n")).startswith("{")
    problem = (
        f.when(f.col(VALUE).isNull(), None)
        .when(f.col("_text").isNull(), f.lit(NOT_UTF8))
        .when(f.col(_PARSED).isNull(), f.lit(NOT_JSON))
        .when(~is_object, f.lit(NOT_AN_OBJECT))
    )
    value, is_tombstone = f.col(_PARSED), f.col(TOMBSTONE)
    if envelope == DEBEZIUM:
        change = _payload(value)
        operation = f.try_variant_get(change, "$.op", "string")
        is_deletion = f.coalesce(operation == "d", f.lit(False))
        value = f.when(~is_deletion, f.try_variant_get(change, "$.after", "variant"))
        is_row = operation.isin(*WITH_ROWS) & f.schema_of_variant(value).startswith("OBJECT")
        is_change = is_deletion | f.coalesce(is_row, f.lit(False))
        problem = problem.when(~is_change, f.lit(NOT_A_CHANGE))
        is_tombstone |= problem.isNull() & is_deletion
    rescued = f.when(problem == NOT_UTF8, f.base64(VALUE)).when(problem.isNotNull(), f.col("_text"))
    return parsed.select(
        *METADATA,
        f.when(problem.isNull(), value).alias(_PARSED),
        f.coalesce(rescued, RESCUED).alias(RESCUED),
        joined_reasons(REASON, problem),
        is_tombstone.alias(TOMBSTONE),
    )


def _payload(document: SparkColumn) -> SparkColumn:
    """The payload if Kafka Connect's JSON converter wrote the document with its schema (`schemas.enable`), else all."""
    has_schema = f.try_variant_get(document, "$.schema", "variant").isNotNull()
    payload = f.try_variant_get(document, "$.payload", "variant")
    return f.when(has_schema & payload.isNotNull(), payload).otherwise(document)


def without_schema(rows: DataFrame) -> DataFrame:
    """The rows with keys reduced to the payload if Kafka Connect's JSON converter wrote them with a schema."""
    document = f.try_parse_json(KEY)
    payload = f.to_json(_payload(document))
    return rows.withColumn(KEY, f.when(document.isNotNull(), payload).otherwise(f.col(KEY)))


def decode_json(
    rows: DataFrame,
    columns: ObjectOf,
    registry: SchemaRegistry | None = None,
    *,
    reserved: Collection[str] = OWN,
    envelope: str = NO_ENVELOPE,
    declared: set[int] | None = None,
    cached: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DecodedRows:
    """The rows with a column for each field; `columns` are the table's present ones.

    Values that fit them are read by their types, which takes a sixth of the CPU time of `_decode_parsed`. No field gets
    a `reserved` name. `declared` are the ids of the schemas whose fields have columns; those of this batch are added.
    `cached` caches what is read more than once.
    """
    declared = set() if declared is None else declared
    objects = json_reader.object_type(columns)

    def decode_parsed(rows: DataFrame) -> DecodedRows:
        parsed = cached(parse_json(rows, envelope))
        return _decode_parsed(parsed, columns, registry, declared, reserved)

    if envelope != NO_ENVELOPE or not objects.num_fields or _variants(columns):
        return decode_parsed(rows)
    read = cached(_read_json(rows, objects, declared))
    is_read = f.col(VALUE).isNull()
    fitting = read.where(is_read).select(
        *METADATA,
        *(f.col(_FIELDS)[each.name].alias(each.name) for each in objects),
        RESCUED,
        REASON,
        TOMBSTONE,
    )
    others = read.where(~is_read).select(rows.columns)
    if not others.count():
        return DecodedRows(rows=fitting)
    decoded = decode_parsed(others)
    now = decoded.rows.schema
    if any(now[each.name].dataType != each.dataType for each in fitting.schema):
        # A field within a column is new: the rows that fit do not have it.
        return decode_parsed(rows)
    both = decoded.rows.unionByName(fitting, allowMissingColumns=True)
    return replace(decoded, rows=both)


def _read_json(rows: DataFrame, objects: pa.StructType, declared: Collection[int]) -> DataFrame:
    """The rows with the fields of those values that fit them as a struct; others are still in `value`.

    No field is a column yet: one may be called `value`. A schema that is not `declared` may have fields without a
    column.
    """
    fields = from_arrow_schema(pa.schema(list(objects)))
    # PySpark infers the UDF's kind from its type hints.
    read = arrow_udf(json_reader.json_reader(objects), fields)  # type: ignore[call-overload]
    named = framed(rows, VALUE)
    is_plain = ~has_name()
    text = f.when(is_plain, f.col(VALUE)).when(f.col(ID).isin(*declared), f.col(PAYLOAD))
    is_read = f.col(_FIELDS).isNotNull()
    return (
        named.withColumn(_FIELDS, read(text))
        .withColumns(
            {VALUE: f.when(~is_read, f.col(VALUE)), "_schema_id": f.when(is_read, f.col(ID))}
        )
        .select(*rows.columns, _FIELDS)
    )


def _decode_parsed(
    parsed: DataFrame,
    columns: ObjectOf,
    registry: SchemaRegistry | None,
    declared: set[int],
    reserved: Collection[str],
) -> DecodedRows:
    """The rows of `parse_json` with a column for each field, whatever they are."""
    variants = _variants(columns)
    seen, is_all = _kinds_seen(parsed, variants)
    for name, texts in _kinds_declared(parsed, registry, declared).items() if registry else ():
        if name not in variants:
            seen[name] = {**texts, **seen.get(name, {})}
    level = place(columns, seen, reserved=reserved)
    rescued = _rescued(level, variants, is_all=is_all)
    why = f.when(rescued.isNotNull(), f.lit(NO_COLUMN))
    of_value = _columns(level, (), is_all=is_all) | {each: _variant(each) for each in variants}
    rows = parsed.select(
        *METADATA,
        *(each.alias(name) for name, each in of_value.items()),
        f.coalesce(rescued, RESCUED).alias(RESCUED),
        joined_reasons(REASON, why),
        TOMBSTONE,
    )
    return DecodedRows(rows=rows, clashes=level.clashes)


def _variants(columns: ObjectOf) -> list[str]:
    """The columns that take whatever their fields have, whose kinds nobody asks for."""
    return [name for name, kind in columns.fields if kind == VARIANT]


def _variant(name: str) -> SparkColumn:
    value = f.variant_get(f.col(_PARSED), _path((name,)), VARIANT)
    return f.when(~f.is_variant_null(value), value)


def columns_of(schema: t.StructType) -> ObjectOf:
    """The kinds of a typed table's value columns."""
    return ObjectOf(
        tuple((each.name, _kind_of(each.dataType)) for each in schema if each.name not in OWN)
    )


def _kind_of(kind: t.DataType) -> Kind:
    if isinstance(kind, t.ArrayType):
        return ArrayOf(_kind_of(kind.elementType))
    if isinstance(kind, t.StructType):
        return ObjectOf(tuple((each.name, _kind_of(each.dataType)) for each in kind))
    # A column of another type was added by another engine, and stays null.
    return _SIMPLE.get(kind.simpleString(), MIXED)


# -- kinds in a batch ---------------------------------------------------------------------------


def _kinds_seen(
    parsed: DataFrame, variants: Collection[str]
) -> tuple[dict[str, dict[str, TextPlace]], bool]:
    """The kinds of each field with the first record that has it; and whether the list is complete.

    Without those of the fields that are `variants`.
    """
    spark = parsed.sparkSession
    at = f.struct("_partition", "_offset")
    # One record of each kind is enough: 200,000 records of ten fields take 1.8 s of CPU, otherwise 3.4 s.
    first = parsed.groupBy(_full_text_of_kind(f.col(_PARSED))).agg(
        f.min_by(_PARSED, at).alias(_PARSED), f.min(at).alias("first")
    )
    # SQL over a view: the Python API has no lateral join with variant_explode.
    view = f"kafka_ds_parsed_{id(parsed)}"
    first.createOrReplaceTempView(view)
    try:
        exploded = spark.sql(
            f"SELECT first, each.key, each.value FROM {view}, LATERAL variant_explode({_PARSED}) each"  # noqa: S608
        )
        found = (
            exploded.where(~f.col("key").isin(*variants))
            .groupBy("key", _text_of_kind(f.col("value")).alias("kind"))
            .agg(f.min("first").alias("first"))
            .limit(KINDS_MAX + 1)
            .collect()
        )
    finally:
        spark.catalog.dropTempView(view)
    seen: dict[str, dict[str, TextPlace]] = {}
    for row in found[:KINDS_MAX]:
        seen.setdefault(row["key"], {})[row["kind"]] = tuple(row["first"])
    return seen, len(found) <= KINDS_MAX


def _kinds_declared(parsed: DataFrame, registry: SchemaRegistry, declared: set[int]) -> Seen:
    """The kinds of fields in the records' JSON Schemas, each with the first record that refers to its schema.

    The schemas' ids are added to `declared`.
    """
    named = parsed.where(f.col("_schema_id").isNotNull()).groupBy("_schema_id")
    first = named.agg(f.min(f.struct("_partition", "_offset")).alias("first"))
    kinds_of: dict[str, dict[str, TextPlace]] = {}
    for schema_id, place_of_first in sorted(first.limit(SCHEMAS_MAX).collect()):
        try:
            schema = registry.schema(schema_id)
        except NoSuchSchema:
            continue
        declared.add(schema_id)
        if schema.kind != "JSON":
            continue
        try:
            kinds = kinds_of_fields(schema.text, schema.references)
        except ValueError:
            continue  # The kinds are inferred from the values.
        for name, kind in kinds.items():
            kinds_of.setdefault(name, {}).setdefault(kind, tuple(place_of_first))
    return kinds_of


def _text_of_kind(value: SparkColumn) -> SparkColumn:
    text = _full_text_of_kind(value)
    return f.when(f.length(text) > KIND_CHARACTERS_MAX, f.lit("VARIANT")).otherwise(text)


def _full_text_of_kind(value: SparkColumn) -> SparkColumn:
    """Decimals become doubles: each precision would be its own kind. A field may have the name `DECIMAL(1,2)`."""
    text = f.schema_of_variant(value)
    return f.regexp_replace(text, r"(^|: |<)DECIMAL\(\d+,\d+\)(?=[,>]|$)", "$1DOUBLE")


# -- columns ------------------------------------------------------------------------------------


def _columns(level: ObjectFields, path: tuple[str, ...], *, is_all: bool) -> dict[str, SparkColumn]:
    """All columns of an object, by name; without those of foreign types, which append and MERGE fill with nulls."""
    sources = {column.name: (each, column) for each in level.fields for column in each.columns}
    return {
        name: f.lit(None).cast(ddl(kind))
        if name not in sources
        else _column(*sources[name], path, is_all=is_all)
        for name, kind in level.kind.fields
        if name in sources or not is_foreign(kind)
    }


def _column(
    of_field: PlacedField, column: FieldColumn, path: tuple[str, ...], *, is_all: bool
) -> SparkColumn:
    here = (*path, of_field.name)
    value = f.variant_get(f.col(_PARSED), _path(here), "variant")
    if column.within is not None:
        # `is_all` holds within it: only objects whose kinds are all known get here.
        inner = _columns(column.within, here, is_all=True)
        decoded = f.struct(*(each.alias(name) for name, each in inner.items()))
        is_there = value.isNotNull() & ~f.is_variant_null(value)
    elif column.is_json:
        decoded, is_there = f.to_json(value), f.lit(True)
    else:
        decoded = f.try_variant_get(f.col(_PARSED), _path(here), ddl(column.kind))
        is_there = f.lit(True)
    if is_all and len(of_field.columns) == 1 and not of_field.rescued:
        return decoded if column.within is None else f.when(is_there, decoded)
    return f.when(is_there & _text_of_kind(value).isin(*sorted(column.texts)), decoded)


def _rescued(level: ObjectFields, variants: Collection[str], *, is_all: bool) -> SparkColumn:
    """The fields that no column can hold, as JSON; null if there are none."""
    refused = [f"{text} {each.name}" for each in level.fields for text in each.rescued]
    if is_all and not refused:
        return f.lit(None).cast("string")
    fitting = {
        f"{text} {each.name}"
        for each in level.fields
        for column in each.columns
        for text in column.texts
    }

    def is_left(name: SparkColumn, value: SparkColumn) -> SparkColumn:
        kind = _text_of_kind(value)
        named = f.concat(kind, f.lit(" "), name)
        left = named.isin(refused) if is_all else ~named.isin(sorted(fitting - set(refused)))
        return left & (kind != "VOID") & ~name.isin(*variants)

    fields = f.try_variant_get(f.col(_PARSED), "$", "map<string,variant>")
    left = f.map_filter(fields, is_left)
    return f.when(f.size(left) > 0, f.to_json(left))


def _path(names: tuple[str, ...]) -> str:
    return "$" + "".join(f'["{name}"]' for name in names)


def joined_reasons(*reasons: SparkColumn | str) -> SparkColumn:
    """All reasons as one text; null if there is none."""
    columns = [f.col(each) if isinstance(each, str) else each for each in reasons]
    joined = f.concat_ws("; ", *columns)
    return f.when(joined != "", joined).alias(REASON)
