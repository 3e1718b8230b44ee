"""Typed tables of JSON whose schemas are in a real registry."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from spark_conf.pipelines.decoder import KEY
from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.schema_registry import Sender
from tests.spark.topics import Topic
from tests.spark.typed_tables import errors_of, keep, rows, values_of

JSON = {"lake.table.value.format": "json", "lake.table.key.format": "json"}


def schema(**fields: Any) -> str:
    return json.dumps({"type": "object", "properties": fields})


@pytest.mark.timeout(300)
def test_a_schema_of_the_registry_says_the_types_of_json(
    registered: Pipelines, topic: Topic, registry: str
) -> None:
    topic.create(partitions=1, **JSON)
    sender = Sender(topic, registry)
    text = '{"type":"object","properties":{"city":{"type":"string"}}}'
    city = sender.referred("city.json", text, "JSON")
    first = sender.other(
        schema(price={"type": "number"}, note={"type": "string"}, at={"$ref": "city.json"}),
        "JSON",
        city,
    )
    second = sender.other(schema(price={"type": "string"}), "JSON")

    def framed(schema_id: int, **fields: Any) -> bytes:
        return struct.pack(">bI", 0, schema_id) + json.dumps(fields).encode()

    sender.send(
        (b'{"id":1}', framed(first, price=1)),
        (struct.pack(">bI", 0, first) + b'{"id":2}', framed(second, price="dear", more=True)),
        (None, b'{"price": 2}'),
        (None, framed(999_999, price=0.5)),
        (None, framed(first)[:-1]),
    )
    sender.send((None, b'{"price": 3}'), headers=[("__value_schema_id", framed(first)[:5])])
    sender.send((None, b'{"price": 4}'), headers=[("other", b"x")])
    keep(registered, topic)
    assert values_of(topic) == [
        {"price": 1.0}, {"price__string": "dear", "more": True}, {"price": 2.0}, {"price": 0.5}, {},
        {"price": 3.0}, {"price": 4.0},
    ]  # fmt: skip
    ids = [first, second, None, 999_999, first, first, None]
    assert [row.get("_schema_id") for row in rows(topic)] == ids
    assert [row.get(KEY) for row in rows(topic)] == ['{"id":1}', '{"id":2}', *[None] * 5]
    assert errors_of(topic) == [
        (1, "price is string: stored in column price__string"),
        (4, "the value is not JSON"),
    ]
    assert {"note", "at"} <= set(topic_columns(topic)), "no value has them yet"

    third = sender.other(schema(extra={"type": "integer"}), "JSON")
    sender.send((None, framed(first, price=5)), (None, framed(third, price=6)))
    sender.send((None, b"x"), headers=[("__value_schema_id", framed(first)[:5])])
    keep(registered, topic)
    assert values_of(topic)[7:] == [{"price": 5.0}, {"price": 6.0}, {}]
    assert [row.get("_schema_id") for row in rows(topic)][7:] == [first, third, first]
    assert "extra" in topic_columns(topic), "a schema that earlier steps did not have"


def topic_columns(topic: Topic) -> list[str]:
    from deltalake import DeltaTable

    return [
        each.name for each in DeltaTable(topic.broker.lake / "tables" / topic.name).schema().fields
    ]
