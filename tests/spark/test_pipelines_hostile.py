"""Records, schemas and settings that a typed table cannot take as they are: each is told, and nothing stops."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest
from confluent_kafka.serialization import MessageField
from deltalake import DeltaTable
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql import SparkSession

from kafka_ds.errors import OptionError
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.protobuf import compiled
from spark_conf.pipelines.registry import SchemaRegistry
from tests.spark.schema_registry import Sender
from tests.spark.topics import Topic
from tests.spark.typed_tables import (
    JSON_TOPIC,
    alter,
    errors_of,
    keep,
    rows,
    send,
    state_of,
    values_of,
)

NO_COLUMN = "no column can hold what is in _rescued"
FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def avro_record(name: str, *fields: tuple[str, Any]) -> str:
    named = [{"name": each, "type": kind} for each, kind in fields]
    return json.dumps({"type": "record", "name": name, "fields": named})


def new_name() -> str:
    return f"N{uuid4().hex}"


def with_id(schema_id: int, frame: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + frame[5:]


@pytest.mark.timeout(600)
def test_text_beside_a_column_value_of_another_type(pipelines: Pipelines, topic: Topic) -> None:
    topic.create(partitions=1, **JSON_TOPIC)
    send(topic, b'{"value":1}', b"nope")
    keep(pipelines, topic)
    alter(topic, "lake.table.value.format", "string")
    assert pipelines.replay(topic.name) == 1
    send(topic, b"x")
    keep(pipelines, topic)
    assert values_of(topic) == [{"value": 1}, {"value__string": "nope"}, {"value__string": "x"}]
    assert errors_of(topic) == [(1, "value is string: stored in column value__string")]

    named = Topic(topic.broker, f"{topic.name}-named").create(partitions=1, **JSON_TOPIC)
    send(named, b'{"Value":1}')
    keep(pipelines, named)
    alter(named, "lake.table.value.format", "string")
    send(named, b"x")
    keep(pipelines, named)
    assert values_of(named) == [{"Value": 1}, {}]
    assert (rows(named)[1]["_rescued"], errors_of(named)) == ("x", [(1, NO_COLUMN)])


@pytest.mark.timeout(600)
def test_declared_columns_have_their_types_before_a_value(
    pipelines: Pipelines, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.create(
        partitions=1, **JSON_TOPIC, **{"lake.table.columns": "price DOUBLE,pos.lat DOUBLE"}
    )
    send(topic, b'{"price":1,"n":1}')
    keep(pipelines, topic)
    send(topic, b'{"price":1.5,"pos":{"lat":2}}', b'{"n":1.5}')
    alter(topic, "lake.table.columns", "n DOUBLE,at STRING")
    keep(pipelines, topic)
    ignored = "lake.table.columns does not hold for n: its column has another type"
    assert [each for each in caplog.messages if "lake.table.columns" in each] == [
        f"{topic.name}: {ignored}"
    ]
    assert values_of(topic) == [
        {"price": 1.0, "n": 1},
        {"price": 1.5, "pos": {"lat": 2.0}},
        {"n__double": 1.5},
    ]
    assert errors_of(topic) == [(2, "n is double: stored in column n__double")]
    columns = DeltaTable(topic.broker.lake / "tables" / topic.name).schema().fields
    assert {"pos", "at"} <= {each.name for each in columns}


@pytest.mark.timeout(600)
def test_the_format_of_keys_of_a_table_stays(pipelines: Pipelines, topic: Topic) -> None:
    topic.create(partitions=1, **{"lake.table.value.format": "json"})
    send(topic, b'{"n":1}', b"nope")
    keep(pipelines, topic)
    alter(topic, "lake.table.key.format", "string")
    send(topic, b'{"n":2}')
    refused = (
        "lake.table.key.format=string, but the table was created with keys as bytes: set it back"
    )
    for each in (lambda: keep(pipelines, topic), lambda: pipelines.replay(topic.name)):
        with pytest.raises(OptionError, match=refused):
            each()
    alter(topic, "lake.table.key.format", "none")
    keep(pipelines, topic)
    assert values_of(topic) == [{"n": 1}, {}, {"n": 2}]


@contextmanager
def forbidding(registry: str, forbidden: set[int]) -> Iterator[str]:
    """The address of a proxy of the registry, at which the user may not read schemas of these ids."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = 403, b"{}"
            if int(self.path.rpartition("/")[2]) not in forbidden:
                with urlopen(registry + self.path) as answer:
                    status, body = answer.status, answer.read()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


PROTOS = {
    "Good": 'syntax = "proto3"; message Good { int32 n = 1; map<int32, string> by = 2; }',
    "Group": 'syntax = "proto2"; message Group { optional group G = 1 { optional int32 a = 2; } }',
    "Edition": 'edition = "2023"; message Edition { int32 n = 1; }',
    "Twins": 'syntax = "proto3"; message Twins { int32 id = 1; int32 ID = 2; }',
    "Keys": 'syntax = "proto3"; message Keys { int32 n = 1; map<string, string> by = 2; }',
}
GOOD = b"\x08\x01\x12\x05\x08\x01\x12\x01x"
OTHER_KEYS = b"\x08\x02\x12\x06\x0a\x01k\x12\x01x"


def described(text: str) -> str:
    """A schema as a descriptor, as confluent-kafka registers it: this registry does not know editions in texts."""
    (file,) = FileDescriptorSet.FromString(compiled(text, ())).file
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.timeout(600)
def test_hostile_schemas_stop_no_topic(
    spark: SparkSession, topic: Topic, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each kind, between good records, in topics that come before another one."""

    def made(name: str, **settings: str) -> Topic:
        named = {f"lake.table.{each.replace('_', '.')}": text for each, text in settings.items()}
        found = Topic(topic.broker, f"{topic.name}-{name}")
        return found.create(partitions=1, **{"lake.table.key.format": "string", **named})

    avro = made("a", value_format="avro")
    current = made("b", value_format="json", mode="current")
    protobuf = made("c", value_format="protobuf")
    other = made("z", value_format="json")

    sender = Sender(protobuf, registry)
    texts = {**PROTOS, "Edition": described(PROTOS["Edition"])}
    ids = {name: sender.other(text, "PROTOBUF") for name, text in texts.items()}
    payloads = {name: OTHER_KEYS if name == "Keys" else GOOD for name in PROTOS}
    frames = {name: struct.pack(">bI", 0, ids[name]) + b"\x00" + payloads[name] for name in PROTOS}
    sender.send(*((b"k", each) for each in (*frames.values(), frames["Good"])))

    sender = Sender(avro, registry)
    twins = [("id", "int"), ("ID", "int")]
    schemas = [
        avro_record("Good", ("n", "int")),
        avro_record("Twins", *twins),
        avro_record("Nested", ("of", json.loads(avro_record("Twins", *twins)))),
        avro_record("Forbidden", ("n", "int")),
    ]
    of_avro = [sender.other(each, "AVRO") for each in schemas]
    of_one, of_two = b"\x02", b"\x02\x02"
    values = zip((*of_avro, of_avro[0]), (of_one, of_two, of_two, of_one, of_one), strict=True)
    sender.send(*((b"k", struct.pack(">bI", 0, each) + value) for each, value in values))
    # What anybody sends who publishes Delta's change data feed.
    of_feed = {"n": 1, **dict.fromkeys(FEED, "x"), "_metadata": 1}
    for each in (current, other):
        send(each, json.dumps(of_feed).encode(), b'{"n":2}')

    options = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    wanted = Pipelines.wanted
    monkeypatch.setattr(
        Pipelines,
        "wanted",
        lambda *given: [each for each in wanted(*given) if each.topic.startswith(topic.name)],
    )
    with forbidding(registry, {of_avro[3]}) as url:
        pipelines = Pipelines(spark, options, str(topic.broker.lake), SchemaRegistry(url))
        assert pipelines.run_once() == []
        pipelines.close()

    assert values_of(other) == [of_feed, {"n": 2}]
    assert errors_of(other) == []
    assert state_of(spark, current) == {"0": {"n": 1}, "1": {"n": 2}}
    assert errors_of(current) == [(0, NO_COLUMN)]
    good = {"n": 1, "by": [(1, "x")]}
    keys = {"n": 2, "by__json": '{"k":"x"}'}
    assert values_of(protobuf) == [good, {}, {}, {}, keys, good]
    unread = [f"schema {ids[name]} cannot be read: " for name in ("Group", "Edition", "Twins")]
    of_keys = f"by is map<string,string> in schema {ids['Keys']}: stored in column by__json"
    check_errors(protobuf, (1, unread[0]), (2, unread[1]), (3, unread[2]), (4, of_keys))
    assert values_of(avro) == [{"n": 1}, {}, {}, {}, {"n": 1}]
    check_errors(
        avro,
        (1, f"schema {of_avro[1]} cannot be read: fields id and ID differ in case alone"),
        (2, f"schema {of_avro[2]} cannot be read: fields id and ID differ in case alone"),
        (3, f"the registry forbids this user to read schema {of_avro[3]}"),
    )


def check_errors(topic: Topic, *expected: tuple[int, str]) -> None:
    """The offsets of all errors, and how their reasons begin."""
    found = errors_of(topic)
    assert [offset for offset, _ in found] == [offset for offset, _ in expected]
    for (_, reason), (_, beginning) in zip(found, expected, strict=True):
        assert reason.startswith(beginning)


@pytest.mark.timeout(600)
def test_a_replay_takes_keys_and_deletions_into_the_current_state(
    spark: SparkSession, registered: Pipelines, topic: Topic, registry: str
) -> None:
    """A key's schema and that of a deletion were missing. What newer records have overtaken stays so."""
    settings = {"value.format": "avro", "key.format": "avro", "mode": "current"}
    named = {f"lake.table.{name}": text for name, text in settings.items()}
    topic.create(partitions=1, **named, **{"lake.table.envelope": "debezium"})
    sender = Sender(topic, registry)
    of_row = json.loads(avro_record("Row", ("n", "int")))

    def change(name: str) -> str:
        return avro_record(
            name, ("before", ["null", of_row]), ("after", ["null", "Row"]), ("op", "string")
        )

    def key(number: int) -> bytes:
        return sender.framed(avro_record("K", ("id", "int")), {"id": number}, MessageField.KEY)

    def created(number: int) -> bytes:
        return sender.framed(change("C"), {"after": {"n": number}, "op": "c"})

    def registered_until(schema_id: int, text: Callable[[str], str]) -> None:
        """A registry counts, and knows the texts of other tests."""
        ids = (sender.other(text(new_name()), "AVRO") for _ in count())
        assert next(each for each in ids if each >= schema_id) == schema_id

    deletion = sender.framed(change("C"), {"before": {"n": 1}, "op": "d"})
    last = sender.other(avro_record(new_name()), "AVRO")
    of_key, of_value = last + 3, last + 6
    sender.send(
        (key(0), created(1)),
        (key(0), with_id(of_value, deletion)),
        (with_id(of_key, key(1)), created(2)),
        (with_id(of_key, key(2)), created(3)),
        (with_id(of_key, key(2)), None),
        (with_id(of_key, key(3)), created(4)),
        (key(3), created(5)),
    )
    keep(registered, topic)
    assert state_of(spark, topic) == {'{"id":0}': {}, '{"id":3}': {"n": 5}}
    assert [offset for offset, _ in errors_of(topic)] == [1, 2, 3, 4, 5]
    assert registered.replay(topic.name) == 0
    registered_until(of_key, lambda name: avro_record(name, ("id", "int")))
    registered_until(of_value, change)
    assert registered.replay(topic.name) == 5
    assert state_of(spark, topic) == {'{"id":1}': {"n": 2}, '{"id":3}': {"n": 5}}
    assert errors_of(topic) == []
