"""Shell: fields of a registered schema → columns of a typed table, for Avro and Protobuf.

Integers are `bigint` and floats `double` from the beginning, so that a schema may widen them. Columns are added, never
dropped or retyped: if the type of a field changes, it gets another column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from kafka_ds.topic.typed_columns import JSON, OWN
from spark_conf.pipelines.decoder import VALUE
from spark_conf.pipelines.schema_evolution import COLUMNS_MAX, Clash
from spark_conf.pipelines.schema_names import DecodedSchema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_KEPT: Final = (
    t.DoubleType,
    t.BooleanType,
    t.StringType,
    t.BinaryType,
    t.DateType,
    t.TimestampType,
)
_WHOLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
# Columns of values that do not fit the field's own column: no field gets one of these.
_OF_CLASHES: Final = re.compile(
    rf".*__({'|'.join(kind().simpleString() for kind in (*_KEPT, t.LongType))}|decimal_\d+_\d+|{JSON})"
)


@dataclass(slots=True, kw_only=True)
class SchemaColumns:
    """The table's columns (`now`), with those that were added, and the fields of schemas that fill them.

    No field gets a `reserved` name.
    """

    now: dict[str, t.DataType]
    reserved: Collection[str] = OWN
    sources: dict[str, list[tuple[SparkColumn, t.DataType]]] = field(default_factory=dict)
    rescued: list[SparkColumn] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)

    def columns(self) -> Iterator[tuple[str, SparkColumn]]:
        """The columns that are filled, by name."""
        for name, sources in self.sources.items():
            fitted = [_fitted(value, kind, self.now[name]) for value, kind in sources]
            yield name, f.coalesce(*fitted)

    def place(self, schema: DecodedSchema) -> None:
        """Choose columns for the fields of a schema."""
        value, of_value = schema.value, schema.type
        fields = {VALUE: (value, of_value)}
        if isinstance(of_value, t.StructType):
            fields = {each.name: (value.getField(each.name), each.dataType) for each in of_value}
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
            self.rescued.append(f.when(schema.name.matches(), f.nullif(text, f.lit("{}"))))

    def _column_for(self, name: str, wanted: t.DataType, schema: DecodedSchema) -> str | None:
        """The column for values of this type, new or present; None if there can be none."""
        spelled = {each.lower(): each for each in self.now}
        is_spelled_otherwise = spelled.get(name.lower(), name) != name
        if name.lower() in self.reserved or is_spelled_otherwise or _OF_CLASHES.fullmatch(name):
            return None
        present = self.now.get(name)
        merged = wanted if present is None else merged_type(present, wanted)
        if merged is not None and self._add(name, merged):
            return name
        kind = JSON if is_nested(wanted) else re.sub(r"\W+", "_", wanted.simpleString()).strip("_")
        column = f"{name}__{kind}"
        of_column = t.StringType() if kind == JSON else wanted
        is_new = column not in self.now
        if self.now.get(column, of_column) != of_column or not self._add(column, of_column):
            return None
        if is_new:
            reason = f"{name} is {wanted.simpleString()} in schema {schema.name}: stored in column {column}"
            self.clashes.append(Clash(column=column, place=schema.first, reason=reason))
        return column

    def _add(self, column: str, kind: t.DataType) -> bool:
        has_room = column in self.now or len(self.now) < COLUMNS_MAX
        if has_room:
            self.now[column] = kind
        return has_room


def is_nested(kind: t.DataType) -> bool:
    """Whether values of this type are stored as JSON text if they do not fit the field's own column."""
    return isinstance(kind, t.StructType | t.ArrayType | t.MapType)


def _normal(kind: t.DataType) -> t.DataType | None:
    """The column type for values of this type; None for types without values."""
    if isinstance(kind, t.StructType):
        fields = [(each.name, _normal(each.dataType)) for each in kind]
        kept = [t.StructField(name, each) for name, each in fields if each is not None]
        return t.StructType(kept) if kept else None
    if isinstance(kind, t.ArrayType):
        element = _normal(kind.elementType)
        return None if element is None else t.ArrayType(element)
    if isinstance(kind, t.MapType):
        key, value = _normal(kind.keyType), _normal(kind.valueType)
        return None if key is None or value is None else t.MapType(key, value)
    if isinstance(kind, t.NullType):
        return None
    if isinstance(kind, _WHOLE):
        return t.LongType()
    if isinstance(kind, t.FloatType):
        return t.DoubleType()
    return kind if isinstance(kind, (*_KEPT, t.DecimalType)) else t.StringType()


def merged_type(now: t.DataType, new: t.DataType) -> t.DataType | None:
    """The type `now`, with new nested fields, that also holds the new type; None if they clash."""
    if isinstance(now, t.StructType) and isinstance(new, t.StructType):
        return _merged_fields(now, new)
    if isinstance(now, t.ArrayType) and isinstance(new, t.ArrayType):
        element = merged_type(now.elementType, new.elementType)
        return None if element is None else t.ArrayType(element)
    if isinstance(now, t.MapType) and isinstance(new, t.MapType):
        value = merged_type(now.valueType, new.valueType) if now.keyType == new.keyType else None
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
        merged = each.dataType if present is None else merged_type(present, each.dataType)
        if merged is None:
            return None
        fields[each.name] = merged
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def with_fields_of(rows: DataFrame, schema: t.StructType) -> DataFrame:
    """The rows, whose columns of lists, maps and structs have all fields that a schema has there."""
    wanted = {each.name: each.dataType for each in schema}

    def column(name: str, kind: t.DataType) -> SparkColumn:
        value = f.col(f"`{name}`")
        now = merged_type(kind, wanted.get(name, kind)) if is_nested(kind) else None
        if now is None or now.simpleString() == kind.simpleString():
            return value
        return _fitted(value, kind, now).alias(name)

    return rows.select(*(column(each.name, each.dataType) for each in rows.schema))


def _fitted(value: SparkColumn, kind: t.DataType, wanted: t.DataType) -> SparkColumn:
    """A value cast to a wider type."""
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
