"""Pure: a Delta table's schema as an Iceberg schema, and a file's column statistics as Iceberg bounds.

Every column is optional. PyIceberg assigns field ids; the Parquet files have none, so readers find columns by the name
mapping. Strings and bytes get no bounds: a value that was erased from a table must not survive in its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

_PRIMITIVES: Final[Mapping[str, PrimitiveType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "byte": IntegerType(),
    "short": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_BOUNDED = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)
# Some writers truncate the timestamps in statistics to milliseconds.
_MILLISECOND_US: Final = 1000
PARTITION_FIELD_ID: Final = 1000
# MetadataColumns of Iceberg's Java library.
_RESERVED: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"}
    | {"_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id"}
)
# Columns that MERGE leaves in the data files of a table with a change data feed.
_CHANGE_DATA_COLUMNS: Final = ("_change_type", "__is_cdc")
_NO_COLUMN_ID: Final = 2_000_000_000


class UnsupportedType(Exception):
    """A column has a type that Iceberg's format 2 lacks; the message names it."""


def iceberg_names(delta_schema: Mapping[str, Any]) -> dict[str, str]:
    """Iceberg column names by Delta column names.

    A name that Iceberg reserves for a metadata column gets an underscore: engines refuse it otherwise.
    """
    names = [field["name"] for field in delta_schema["fields"]]
    renamed = {name: f"{name}_" for name in names if name in _RESERVED}
    return {name: renamed.get(name, name) for name in names if renamed.get(name) not in names}


def iceberg_schema(delta_schema: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """The Iceberg schema for a Delta table's `schemaString`, and a warning for each column that is left out."""
    ids, fields, left_out = count(1), [], []
    names = iceberg_names(delta_schema)
    for field in delta_schema["fields"]:
        name = field["name"]
        try:
            if name in names:
                fields.append(_field({**field, "name": names[name]}, ids))
            else:
                left_out.append(
                    f"column {name} is left out: Iceberg reserves the name, and {name}_ exists already"
                )
        except UnsupportedType as problem:
            left_out.append(f"column {name} is left out: Iceberg v2 has no type {problem}")
    return Schema(*fields), left_out


def _field(field: Mapping[str, Any], ids: Iterator[int]) -> NestedField:
    return NestedField(next(ids), field["name"], _type(field["type"], ids), required=False)


def _type(delta_type: Any, ids: Iterator[int]) -> IcebergType:
    if isinstance(delta_type, str):
        if (match := _DECIMAL.fullmatch(delta_type)) is not None:
            return DecimalType(int(match[1]), int(match[2]))
        if delta_type not in _PRIMITIVES:
            raise UnsupportedType(delta_type)
        return _PRIMITIVES[delta_type]
    match delta_type["type"]:
        case "struct":
            return StructType(*(_field(each, ids) for each in delta_type["fields"]))
        case "array":
            element = _type(delta_type["elementType"], ids)
            return ListType(next(ids), element, element_required=False)
        case "map":
            key, value = _type(delta_type["keyType"], ids), _type(delta_type["valueType"], ids)
            return MapType(next(ids), key, next(ids), value, value_required=False)
        case other:
            raise UnsupportedType(other)


def name_mapping(
    schema: Schema, delta_schema: Mapping[str, Any], before: NameMapping | None = None
) -> NameMapping:
    """The name mapping for the table's files; `before` is the present one, which older files may need.

    PyIceberg refuses a file with a column that has no id, so a column that is left out gets an id without a column.
    """
    ids = count(_NO_COLUMN_ID)
    columns = {each.names[0]: each for each in schema.name_mapping.root}
    names = iceberg_names(delta_schema)
    mapped = []
    for field in delta_schema["fields"]:
        column = columns.get(names.get(field["name"], ""))
        if column is None:
            mapped.append(_mapped([field["name"]], next(ids), _parts(field["type"], ids)))
        else:
            mapped.append(_mapped([field["name"]], column.field_id, column.fields))
    there = {field["name"] for field in delta_schema["fields"]}
    for earlier in () if before is None else before.root:
        if there.isdisjoint(earlier.names):
            mapped.append(_as_before(earlier, ids))
            there.update(earlier.names)
    mapped += [_mapped([name], next(ids)) for name in _CHANGE_DATA_COLUMNS if name not in there]
    return NameMapping(mapped)


def _parts(delta_type: Any, ids: Iterator[int]) -> list[MappedField]:
    """The nested fields of a column that is left out."""
    if delta_type == "variant":
        return [_mapped([part], next(ids)) for part in ("metadata", "value")]
    match delta_type if isinstance(delta_type, dict) else {}:
        case {"type": "struct", "fields": fields}:
            parts = {each["name"]: each["type"] for each in fields}
        case {"type": "array", "elementType": element}:
            parts = {"element": element}
        case {"type": "map", "keyType": key, "valueType": value}:
            parts = {"key": key, "value": value}
        case _:
            parts = {}
    return [_mapped([name], next(ids), _parts(each, ids)) for name, each in parts.items()]


def _as_before(earlier: MappedField, ids: Iterator[int]) -> MappedField:
    """The same mapping; ids that belong to no column are replaced by new ones."""
    id_ = earlier.field_id
    is_column = id_ is not None and id_ < _NO_COLUMN_ID
    fields = [_as_before(each, ids) for each in earlier.fields]
    return _mapped(earlier.names, id_ if is_column else next(ids), fields)


def _mapped(
    names: list[str], id_: int | None, fields: list[MappedField] | None = None
) -> MappedField:
    return MappedField.model_validate({"field-id": id_, "names": names, "fields": fields})


def partition_spec(schema: Schema, columns: list[str]) -> PartitionSpec:
    """Identity partitions, as Delta has."""
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field(name).field_id, PARTITION_FIELD_ID + at, IdentityTransform(), name
            )
            for at, name in enumerate(columns)
        )
    )


def bounds(
    schema: Schema, names: Mapping[str, str], values: Mapping[str, Any] | None, *, is_upper: bool
) -> dict[int, bytes]:
    """The lower or upper bounds of a file's columns, by field id, serialized for a manifest.

    `names` are those of `iceberg_names`; dates and timestamps in `values` are numbers, see `as_numbers`.
    """
    found: dict[int, bytes] = {}
    known = {name: (values or {}).get(delta_name) for delta_name, name in names.items()}
    for field in schema.fields:
        value = known.get(field.name)
        if value is None or not isinstance(field.field_type, _BOUNDED):
            continue
        if is_upper and isinstance(field.field_type, TimestampType | TimestamptzType):
            value += _MILLISECOND_US
        found[field.field_id] = to_bytes(field.field_type, value)
    return found


def as_numbers(type_: Any) -> Any:
    """An Arrow type with integers for dates (days) and timestamps (µs): Python's own types end with the year 9999."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(each.name, as_numbers(each.type)) for each in type_])
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_
