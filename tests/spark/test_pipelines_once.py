"""`kafka-ds pipelines run --once` with each format: what `make spark-versions` asks of a PySpark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import CommandLine
from tests.duck import connect
from tests.processes import BrokerProcess
from tests.spark.schema_registry import Sender, message_class
from tests.spark.topics import Topic
from tests.spark.typed_tables import errors_of, send, values_of

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]})
PROTOBUF = 'syntax = "proto3"; message Order { int32 n = 1; }'
CURRENT = {"lake.table.mode": "current", "lake.table.key.format": "string"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tables_of_each_format_follow_their_topics(
    broker: BrokerProcess, topic: Topic, registry: str, tmp_path: Path
) -> None:
    def made(name: str, **settings: str) -> Topic:
        each = Topic(broker, f"{topic.name[:80]}-{name}")
        value_format = {"lake.table.value.format": name, **settings}
        return each.create(partitions=1, **value_format)

    formats = {name: made(name) for name in ("string", "avro", "protobuf")}
    formats["json"] = made("json", **CURRENT)
    order = message_class(PROTOBUF, "Order")
    command = (
        "pipelines",
        "run",
        "--once",
        "--lake",
        str(broker.lake),
        "--schema-registry",
        registry,
    )
    kafka_ds = CommandLine(broker.bootstrap, tmp_path)
    for n in (1, 2):
        avro, protobuf = (Sender(formats[name], registry) for name in ("avro", "protobuf"))
        # A step of the table of current state replaces the row of the step before.
        send(formats["json"], b'{"n":%d}' % n, b"nope", keys=(b"k", b"%d" % n))
        send(formats["string"], b"%d" % n)
        avro.send((None, avro.framed(AVRO, {"n": n})), (None, b"nope"))
        protobuf.send((None, protobuf.framed_message(order(n=n))), (None, b"nope"))
        done = kafka_ds.run(*command)
        assert done.status == 0, done.errors
    # With deletion vectors, which deltalake does not read.
    path = broker.lake / "tables" / formats["json"].name
    with connect() as duck:
        state = duck.sql(f"SELECT _key, n FROM delta_scan('{path}') ORDER BY _key").fetchall()
    assert state == [("1", None), ("2", None), ("k", 2)]
    assert values_of(formats["string"]) == [{"value": "1"}, {"value": "2"}]
    for name in ("avro", "protobuf"):
        assert values_of(formats[name]) == [{"n": 1}, {}, {"n": 2}, {}]
        assert [offset for offset, _ in errors_of(formats[name])] == [1, 3]
