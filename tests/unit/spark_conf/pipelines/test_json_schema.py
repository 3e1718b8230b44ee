"""JSON Schema → kinds of fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_conf.pipelines.json_schema import kinds_of_fields
from spark_conf.pipelines.kinds import parse_kind


def kinds(references: dict[str, Any] | None = None, **schema: Any) -> dict[str, str]:
    others = {name: json.dumps(each) for name, each in (references or {}).items()}
    return kinds_of_fields(json.dumps(schema), others)


def test_what_a_schema_says_is_the_kind_of_a_field() -> None:
    found = kinds(
        type="object",
        properties={
            "whole": {"type": ["null", "integer"]},
            "number": {"type": "number"},
            "yes": {"type": "boolean"},
            "text": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "list": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}},
            "other": {"$ref": "other.json"},
            "all": {"allOf": [{"properties": {"x": {"type": "string"}}}, {"$ref": "#/$defs/a~1b"}]},
        },
        **{"$defs": {"a/b": {"properties": {"b c": {"type": "number"}}}}},
        references={"other.json": {"$ref": "#/own", "own": {"type": "integer"}}},
    )
    assert found == {
        "whole": "BIGINT",
        "number": "DOUBLE",
        "yes": "BOOLEAN",
        "text": "STRING",
        "list": "ARRAY<OBJECT<`b c`: DOUBLE>>",
        "other": "BIGINT",
        "all": "OBJECT<`b c`: DOUBLE, `x`: STRING>",
    }
    assert all(parse_kind(each) for each in found.values())


def test_what_a_schema_leaves_open_is_left_to_the_values() -> None:
    two = [{"type": "string"}, {"type": "number"}]
    open_fields: dict[str, Any] = {
        "two": {"anyOf": two},
        "types": {"type": ["string", "number"]},
        "any": True,
        "itself": {"$ref": "#"},
        "gone": {"$ref": "#/$defs/gone"},
        "elsewhere": {"$ref": "https://example.org/s.json"},
        "list": {"type": "array"},
        "nothing": {"type": "object"},
        "enum": {"enum": [1, "a"]},
        "odd": 7,
    }
    assert kinds(type="object", properties=open_fields) == {}
    for schema in ("[]", "true", '{"type":"string"}', '{"properties":[]}'):
        assert kinds_of_fields(schema, {}) == {}
    with pytest.raises(ValueError, match="Expecting"):
        kinds_of_fields("{", {})
