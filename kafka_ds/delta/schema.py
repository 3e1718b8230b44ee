"""Pure: Arrow's schemas as Delta spells them, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

_PRIMITIVES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    TIMESTAMP_TYPE: "timestamp",
}


def arrow_schema(columns: Mapping[str, object]) -> pa.Schema:
    """The columns, each of a primitive Delta type or an array of one, as Arrow's."""
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in columns.items()])


def _arrow_type(delta_type: Any) -> pa.DataType:
    if isinstance(delta_type, dict):
        return pa.list_(pa.field("element", _arrow_type(delta_type["elementType"])))
    return next(arrow for arrow, delta in _PRIMITIVES.items() if delta == delta_type)


def delta_schema_json(schema: pa.Schema) -> str:
    """The schema as the `schemaString` of Delta's metaData action."""
    return json.dumps(_delta_struct(list(schema)), separators=(",", ":"))


def _delta_struct(fields: list[pa.Field]) -> dict[str, Any]:
    return {"type": "struct", "fields": [_delta_field(field) for field in fields]}


def _delta_field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _delta_type(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


def _delta_type(arrow_type: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_struct(arrow_type):
        return _delta_struct([arrow_type.field(i) for i in range(arrow_type.num_fields)])
    if pa.types.is_list(arrow_type):
        return {
            "type": "array",
            "elementType": _delta_type(arrow_type.value_type),
            "containsNull": arrow_type.value_field.nullable,
        }
    return _PRIMITIVES[arrow_type]
