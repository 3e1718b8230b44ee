"""Shell: Avro by a schema registry → columns, by Spark's `from_avro` for each schema id of a batch.

A value is framed as Confluent frames it: 0 and four bytes of schema id before it, or in a header. It is decoded with
the schema that it was written with, and a mark that is put after it: so a value that ends early or late is not taken
for another. Whole numbers are `bigint` and fractions `double` from the beginning: what a schema may widen has room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.avro.functions import from_avro

from kafka_ds.errors import OptionError
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
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.pipelines.schema_evolution import COLUMNS_MAX, JSON, Clash, Place

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# How many schemas the records of one step may name: each is an expression of its own.
SCHEMAS_MAX: Final = 100
NO_ID: Final = "has no schema id: it is not framed as a registry's serializers do"
_ID, _PAYLOAD = "_id", "_payload"
_MARK: Final = b"kafka-ds"
_MARKED: Final = """{"type":"record","name":"KafkaDsMarked","fields":[{"name":"value","type":%s},
{"name":"mark","type":{"type":"fixed","name":"KafkaDsMark","size":8}}]}"""
_KEPT: Final = (
    t.DoubleType,
    t.BooleanType,
    t.StringType,
    t.BinaryType,
    t.DateType,
    t.TimestampType,
)
_WHOLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSchema:
    """A schema id of a batch, the first record that names it, and its values; without a type, why there is none."""

    schema_id: int
    first: Place
    type: t.DataType | None = None
    values: SparkColumn | None = None
    problem: str = ""


# -- frames -------------------------------------------------------------------------------------


def _framed(rows: DataFrame, name: str) -> DataFrame:
    """The rows with the schema id of their key or value, and the bytes after it."""
    header = f"__{name}_schema_id"
    of_header = f.element_at(f.filter("_headers", lambda each: each["key"] == header), f.lit(-1))[
        "value"
    ]
    id_of_header = f.when(f.length(of_header) == len(b"0_id_"), _schema_id(of_header))
    is_in_header = id_of_header.isNotNull()
    return rows.withColumns(
        {
            _ID: f.when(is_in_header, id_of_header).otherwise(_schema_id(f.col(name))),
            _PAYLOAD: f.concat(
                f.when(is_in_header, f.col(name)).otherwise(f.expr(f"substring({name}, 6)")),
                f.lit(_MARK),
            ),
        }
    )


def _schema_id(frame: SparkColumn) -> SparkColumn:
    number = f.conv(f.hex(f.substring(frame, 2, 4)), 16, 10).try_cast("int")
    return f.when(f.hex(f.substring(frame, 1, 1)) == "00", number).cast("int")


def _schemas(framed: DataFrame, registry: SchemaRegistry) -> list[DecodedSchema]:
    """The schemas that the rows name."""
    place = f.min(f.struct("_partition", "_offset")).alias("first")
    named = framed.where(f.col(_ID).isNotNull()).groupBy(_ID).agg(place)
    found = sorted(
        (row[_ID], tuple(row["first"])) for row in named.limit(SCHEMAS_MAX + 1).collect()
    )
    if len(found) > SCHEMAS_MAX:
        raise OptionError(f"the records of one step name more than {SCHEMAS_MAX} schemas")
    return [_decoded(framed, schema_id, first, registry) for schema_id, first in found]


def _decoded(
    framed: DataFrame, schema_id: int, first: Place, registry: SchemaRegistry
) -> DecodedSchema:
    schema = registry.schema(schema_id)
    problem = ""
    if schema is None:
        problem = f"the registry has no schema {schema_id}"
    elif schema.kind != "AVRO":
        problem = f"schema {schema_id} is not Avro but {schema.kind}"
    elif schema.has_references:
        problem = f"schema {schema_id} refers to others, which is not supported"
    if schema is None or problem:
        return DecodedSchema(schema_id=schema_id, first=first, problem=problem)
    marked = from_avro(_PAYLOAD, _MARKED % schema.text, {"mode": "PERMISSIVE"})
    try:
        kind = framed.select(marked.alias("each")).schema["each"].dataType
    except (PySparkException, Py4JError) as problem_of_schema:
        text = f"schema {schema_id} cannot be read: {str(problem_of_schema).partition(chr(10))[0]}"
        return DecodedSchema(schema_id=schema_id, first=first, problem=text)
    assert isinstance(kind, t.StructType)
    values = f.when(f.col(_ID) == schema_id, marked)
    return DecodedSchema(
        schema_id=schema_id, first=first, type=kind["value"].dataType, values=values
    )


def _marked(schema: DecodedSchema, name: str) -> str:
    return f"_{name}_{schema.schema_id}"


def _value(schema: DecodedSchema, name: str) -> SparkColumn:
    """What it is; null where the mark is not where it ends."""
    marked = f.col(_marked(schema, name))
    return f.when(marked["mark"] == f.lit(_MARK), marked["value"])


def _with_values(framed: DataFrame, schemas: list[DecodedSchema], name: str) -> DataFrame:
    marked = {_marked(s, name): s.values for s in schemas if s.values is not None}
    return framed.withColumns(marked) if marked else framed


def _problem(schemas: list[DecodedSchema], name: str) -> SparkColumn:
    """Why a key or a value cannot be decoded; null where it can."""
    problem = f.when(f.col(_ID).isNull(), f.lit(f"the {name} {NO_ID}"))
    for each in schemas:
        is_its = f.col(_ID) == each.schema_id
        if each.problem:
            problem = problem.when(is_its, f.lit(each.problem))
        else:
            wrong = f.lit(f"the {name} is not as schema {each.schema_id} says")
            is_bad = ~f.coalesce(f.col(_marked(each, name))["mark"] == f.lit(_MARK), f.lit(False))
            problem = problem.when(is_its & is_bad, wrong)
    return f.when(f.col(name).isNotNull(), problem)


# -- keys ---------------------------------------------------------------------------------------


def with_avro_keys(rows: DataFrame, registry: SchemaRegistry) -> DataFrame:
    """The rows with their keys as text: a record's as JSON, other values as they are."""
    framed = _framed(rows.withColumnRenamed(KEY, "key"), "key")
    schemas = _schemas(framed, registry)
    texts = [_text(each, "key") for each in schemas if each.type is not None]
    problem = _problem(schemas, "key")
    key = f.coalesce(*texts) if texts else f.lit(None).cast("string")
    keyed = _with_values(framed, schemas, "key").withColumns(
        {KEY: f.when(problem.isNull(), key), REASON: joined_reasons(REASON, problem)}
    )
    return keyed.select(*METADATA, VALUE, REASON, TOMBSTONE)


def _text(schema: DecodedSchema, name: str) -> SparkColumn:
    value = _value(schema, name)
    return f.to_json(value) if _is_nested(schema.type) else value.cast("string")


def _is_nested(kind: t.DataType | None) -> bool:
    return isinstance(kind, t.StructType | t.ArrayType | t.MapType)


# -- values -------------------------------------------------------------------------------------


def decode_avro(rows: DataFrame, columns: t.StructType, registry: SchemaRegistry) -> DecodedRows:
    """The rows with a column for each field of their schemas; `columns` are those that the table has."""
    framed = _framed(rows, VALUE)
    schemas = _schemas(framed, registry)
    work = _Work(now={each.name: each.dataType for each in columns if each.name not in _OWN})
    for each in schemas:
        work.place(each)
    problem = _problem(schemas, VALUE)
    left = f.coalesce(*work.rescued) if work.rescued else f.lit(None).cast("string")
    is_left = problem.isNull() & left.isNotNull()
    decoded = _with_values(framed, schemas, VALUE).select(
        *(name for name in METADATA if name != "_schema_id"),
        f.col(_ID).alias("_schema_id"),
        *(each.alias(name) for name, each in work.columns()),
        f.when(problem.isNotNull(), f.base64(VALUE)).otherwise(left).alias(RESCUED),
        joined_reasons(REASON, problem, f.when(is_left, f.lit(NO_COLUMN))),
        TOMBSTONE,
    )
    return DecodedRows(rows=decoded, clashes=tuple(work.clashes))


_OWN: Final = {*METADATA, RESCUED, REASON, TOMBSTONE}


@dataclass(slots=True, kw_only=True)
class _Work:
    """The columns that there are by now, and which field of which schema fills them."""

    now: dict[str, t.DataType]
    sources: dict[str, list[tuple[SparkColumn, t.DataType]]] = field(default_factory=dict)
    rescued: list[SparkColumn] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)

    def columns(self) -> Iterator[tuple[str, SparkColumn]]:
        for name, sources in self.sources.items():
            fitted = [_fitted(value, kind, self.now[name]) for value, kind in sources]
            yield name, f.coalesce(*fitted)

    def place(self, schema: DecodedSchema) -> None:
        if schema.type is None:
            return
        value = _value(schema, VALUE)
        fields = {VALUE: (value, schema.type)}
        if isinstance(schema.type, t.StructType):
            fields = {each.name: (value.getField(each.name), each.dataType) for each in schema.type}
        refused: list[SparkColumn] = []
        for name, (of_field, kind) in fields.items():
            wanted = _normal(kind)
            if wanted is None:
                continue
            column = self._column_for(name, wanted, schema)
            if column is None:
                refused.append(of_field.alias(name))
                continue
            as_text = column.endswith(f"__{JSON}")
            source = (f.to_json(of_field), t.StringType()) if as_text else (of_field, kind)
            self.sources.setdefault(column, []).append(source)
        if refused:
            text = f.to_json(f.struct(*refused))
            self.rescued.append(f.when(f.col(_ID) == schema.schema_id, f.nullif(text, f.lit("{}"))))

    def _column_for(self, name: str, wanted: t.DataType, schema: DecodedSchema) -> str | None:
        """The column that takes values of this type, which may be a new one; None where none can."""
        spelled = {each.lower(): each for each in self.now}
        is_of_clash = re.fullmatch(r".*__(\w+)", name) is not None and name not in self.now
        if name.lower() in _OWN or spelled.get(name.lower(), name) != name or is_of_clash:
            return None
        present = self.now.get(name)
        merged = wanted if present is None else _merged(present, wanted)
        if merged is not None and self._add(name, merged):
            return name
        kind = JSON if _is_nested(wanted) else re.sub(r"\W+", "_", wanted.simpleString()).strip("_")
        column = f"{name}__{kind}"
        of_column = t.StringType() if kind == JSON else wanted
        is_new = column not in self.now
        if self.now.get(column, of_column) != of_column or not self._add(column, of_column):
            return None
        if is_new:
            reason = f"{name} is {wanted.simpleString()} in schema {schema.schema_id}: it is in column {column}"
            self.clashes.append(Clash(column=column, place=schema.first, reason=reason))
        return column

    def _add(self, column: str, kind: t.DataType) -> bool:
        has_room = column in self.now or len(self.now) < COLUMNS_MAX
        if has_room:
            self.now[column] = kind
        return has_room


def _normal(kind: t.DataType) -> t.DataType | None:
    """The type of a column for values of this type; None where there is nothing to take."""
    if isinstance(kind, t.StructType):
        fields = [(each.name, _normal(each.dataType)) for each in kind]
        kept = [t.StructField(name, each) for name, each in fields if each is not None]
        return t.StructType(kept) if kept else None
    if isinstance(kind, t.ArrayType):
        element = _normal(kind.elementType)
        return None if element is None else t.ArrayType(element)
    if isinstance(kind, t.MapType):
        value = _normal(kind.valueType)
        return None if value is None else t.MapType(kind.keyType, value)
    if isinstance(kind, t.NullType):
        return None
    if isinstance(kind, _WHOLE):
        return t.LongType()
    if isinstance(kind, t.FloatType):
        return t.DoubleType()
    return kind if isinstance(kind, (*_KEPT, t.DecimalType)) else t.StringType()


def _merged(now: t.DataType, new: t.DataType) -> t.DataType | None:
    """The column's type that takes the new type, too; None where it clashes. What there is is never retyped."""
    if isinstance(now, t.StructType) and isinstance(new, t.StructType):
        return _merged_fields(now, new)
    if isinstance(now, t.ArrayType) and isinstance(new, t.ArrayType):
        element = _merged(now.elementType, new.elementType)
        return None if element is None else t.ArrayType(element)
    if isinstance(now, t.MapType) and isinstance(new, t.MapType):
        value = _merged(now.valueType, new.valueType)
        return None if value is None else t.MapType(now.keyType, value)
    if isinstance(now, t.DecimalType) and isinstance(new, t.DecimalType):
        whole = new.precision - new.scale
        return now if new.scale <= now.scale and whole <= now.precision - now.scale else None
    widens = isinstance(now, t.DoubleType) and isinstance(new, t.LongType)
    return now if widens or now == new else None


def _merged_fields(now: t.StructType, new: t.StructType) -> t.StructType | None:
    fields: dict[str, t.DataType] = {each.name: each.dataType for each in now}
    spelled = {name.lower(): name for name in fields}
    for each in new:
        if spelled.setdefault(each.name.lower(), each.name) != each.name:
            return None
        present = fields.get(each.name)
        merged = each.dataType if present is None else _merged(present, each.dataType)
        if merged is None:
            return None
        fields[each.name] = merged
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def _fitted(value: SparkColumn, kind: t.DataType, wanted: t.DataType) -> SparkColumn:
    """A value of one type as one of another that takes it."""
    if isinstance(wanted, t.StructType) and isinstance(kind, t.StructType):
        there: Mapping[str, t.DataType] = {each.name: each.dataType for each in kind}
        fields = [
            _fitted(value.getField(each.name), there[each.name], each.dataType).alias(each.name)
            if each.name in there
            else f.lit(None).cast(each.dataType).alias(each.name)
            for each in wanted
        ]
        return f.when(value.isNotNull(), f.struct(*fields))
    if isinstance(wanted, t.ArrayType) and isinstance(kind, t.ArrayType):
        element, of_element = kind.elementType, wanted.elementType
        return f.transform(value, lambda each: _fitted(each, element, of_element))
    if isinstance(wanted, t.MapType) and isinstance(kind, t.MapType):
        before, after = kind.valueType, wanted.valueType
        return f.transform_values(value, lambda _, each: _fitted(each, before, after))
    return value if kind == wanted else value.cast(wanted)
