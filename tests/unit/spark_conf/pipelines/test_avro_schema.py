"""Avro schemas that refer to others, made whole."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from spark_conf.pipelines.avro_schema import with_references

NAMED = '{"type":"record","name":"a.Named","fields":[{"name":"kind","type":"Kind"}]}'
KIND = '{"type":"enum","name":"Kind","namespace":"a","symbols":["X","Y"]}'


def test_each_name_is_written_out_where_it_comes_first() -> None:
    text = json.dumps(
        {
            "type": "record",
            "name": "Pair",
            "namespace": "b",
            "fields": [
                {"name": "one", "type": ["null", "a.Named"]},
                {"name": "list", "type": {"type": "array", "items": "a.Named"}},
                {"name": "map", "type": {"type": "map", "values": {"type": "long"}}},
                {"name": "own", "type": {"type": "fixed", "name": "Own", "size": 1}},
                {"name": "again", "type": "Own"},
                {"name": "kind", "type": "a.Kind"},
            ],
        }
    )
    whole = with_references(text, {"a.Named": NAMED, "a.Kind": KIND})
    value = {
        "one": {"kind": "X"},
        "list": [{"kind": "Y"}],
        "map": {"k": 1},
        "own": b"o",
        "again": b"p",
        "kind": "Y",
    }
    schema = fastavro.parse_schema(json.loads(whole))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, value)
    assert fastavro.schemaless_reader(io.BytesIO(written.getvalue()), schema, None) == value


def test_what_nobody_defines_stays() -> None:
    assert with_references('"string"', {}) == '"string"'
    assert json.loads(with_references('["null","gone.Name"]', {"a.Kind": KIND}))[1] == "gone.Name"
    recursive = '{"type":"record","name":"T","fields":[{"name":"next","type":["null","T"]}]}'
    assert json.loads(with_references(recursive, {"x": KIND}))["fields"][0]["type"] == ["null", "T"]
    with pytest.raises(ValueError, match="7 is not an Avro schema"):
        with_references("7", {"x": KIND})
