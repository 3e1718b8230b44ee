"""Typed tables by Karapace, which keeps its schemas in our broker."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import SchemaRegistry
from tests.clients.suites.building import CannotBuild
from tests.processes import BrokerProcess
from tests.spark.schema_registry import Sender, id_of, message_class, running_karapace
from tests.spark.topics import Topic
from tests.spark.typed_tables import errors_of, keep, rows, values_of

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Stop",
        "fields": [{"name": "city", "type": "string"}, {"name": "n", "type": "int"}],
    }
)
PLACE = 'syntax = "proto3"; message Place { string city = 1; }'
PROTOBUF = 'syntax = "proto3"; import "place.proto"; message Stop { Place at = 1; int64 n = 2; }'
# Karapace takes no references of JSON Schema.
JSON = json.dumps({"type": "object", "properties": {"n": {"type": "number"}}})


class Round:
    """A record of each format, framed with ids of Karapace."""

    def __init__(self, topics: dict[str, Topic], url: str) -> None:
        self._topics = topics
        self._senders = {each: Sender(topic, url) for each, topic in topics.items()}

    def send(self, n: int) -> dict[str, int]:
        """The schema ids."""
        framed = {
            "avro": self._senders["avro"].framed(AVRO, {"city": "Köln", "n": n}),
            "protobuf": self._protobuf(n),
            "json": self._json(n),
        }
        for name, value in framed.items():
            self._senders[name].send((None, value))
        return {name: id_of(value) for name, value in framed.items()}

    def _protobuf(self, n: int) -> bytes:
        sender = self._senders["protobuf"]
        place = sender.referred("place.proto", PLACE, "PROTOBUF")
        schema_id = sender.other(PROTOBUF, "PROTOBUF", place)
        message = message_class(PROTOBUF, "Stop", (("place.proto", PLACE),))(n=n)
        message.at.city = "Köln"
        data: bytes = message.SerializeToString()
        return struct.pack(">bIb", 0, schema_id, 0) + data

    def _json(self, n: int) -> bytes:
        sender = self._senders["json"]
        schema_id = sender.other(JSON, "JSON")
        return struct.pack(">bI", 0, schema_id) + json.dumps({"n": n}).encode()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tables_of_each_format_by_karapace(
    spark: SparkSession, broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    """Its schemas are still there after it was killed: they are in the broker."""
    topics = {
        name: Topic(broker, f"{topic.name}-{name}").create(
            partitions=1, **{"lake.table.value.format": name}
        )
        for name in ("avro", "protobuf", "json")
    }

    def kept(url: str) -> None:
        options = {"kafka.bootstrap.servers": broker.bootstrap}
        pipelines = Pipelines(spark, options, str(broker.lake), SchemaRegistry(url))
        for each in topics.values():
            keep(pipelines, each)
        pipelines.close()

    try:
        with running_karapace(tmp_path, broker.bootstrap) as url:
            ids = Round(topics, url).send(1)
            kept(url)
    except CannotBuild as problem:
        pytest.skip(f"Karapace cannot be built here: {problem}")
    with running_karapace(tmp_path, broker.bootstrap) as url:
        assert Round(topics, url).send(2) == ids
        kept(url)
    expected: dict[str, Any] = {
        "avro": [{"city": "Köln", "n": n} for n in (1, 2)],
        "protobuf": [{"at": {"city": "Köln"}, "n": n} for n in (1, 2)],
        "json": [{"n": float(n)} for n in (1, 2)],
    }
    for name, each in topics.items():
        assert errors_of(each) == []
        assert values_of(each) == expected[name]
        assert [row["_schema_id"] for row in rows(each)] == [ids[name]] * 2
