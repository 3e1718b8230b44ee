"""Typed tables of Avro: schemas of a real registry, written by confluent-kafka's serializers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import OptionError
from spark_conf.pipelines import schema_names
from spark_conf.pipelines.decoder import KEY, RESCUED
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import REGISTRY_URL, SchemaRegistry
from spark_conf.pipelines.schema_columns import SchemaColumns
from spark_conf.pipelines.schema_names import UNEXPECTED, DecodedSchema, SchemaName
from tests.processes import BrokerProcess
from tests.spark.schema_registry import Sender, id_of
from tests.spark.topics import Topic
from tests.spark.typed_tables import alter, errors_of, keep, rows, state_of, values_of

KEYS = (("int", 7), ("string", "seven"))
AVRO = {"lake.table.value.format": "avro", "lake.table.key.format": "string"}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "lat", "type": "float"}]}
WIDER = {**POINT, "fields": [*POINT["fields"], {"name": "alt", "type": ["null", "int"]}]}


def record(**fields: Any) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


FIRST = record(n="int", price="float", pos=POINT, nothing="null")
SECOND = record(
    n="long",
    price="string",
    pos=WIDER,
    tags={"type": "array", "items": "string"},
    at={"type": "long", "logicalType": "timestamp-millis"},
    _offset="int",
)
# One schema refers to another, by its name alone, as it is in the same namespace.
NAMED = '{"type":"record","name":"Named","namespace":"shop","fields":[{"name":"id","type":"int"}]}'
_BOTH = '[{"name":"a","type":"Named"},{"name":"b","type":"shop.Named"}]'
PAIR = f'{{"type":"record","name":"Pair","namespace":"shop","fields":{_BOTH}}}'


@pytest.mark.timeout(300)
def test_columns_follow_the_schemas_and_what_cannot_be_decoded_is_told(
    registered: Pipelines, topic: Topic, registry: str
) -> None:
    topic.create(partitions=1, **AVRO)
    sender = Sender(topic, registry)
    one = sender.framed(FIRST, {"n": 1, "price": 0.5, "pos": {"lat": 1.5}})
    two = sender.framed(
        SECOND,
        {"n": 1 << 40, "price": "dear", "pos": {"lat": 2.5, "alt": 7}, "tags": ["x"], "at": 0, "_offset": 3},
    )  # fmt: skip
    other = sender.other('{"$schema":"http://json-schema.org/draft-07/schema#"}', "JSON")
    unknown = 999_999
    pair = sender.other(PAIR, "AVRO", sender.referred("shop.Named", NAMED, "AVRO"))
    guid = bytes(range(16))
    sender.send(
        (b"a", one),
        (b"b", two),
        (b"c", None),
        (b"d", one[:-1]),
        (b"e", one + b"\x00"),
        (b"f", b"nope"),
        (b"g", struct.pack(">bI", 0, unknown) + one[5:]),
        (b"h", struct.pack(">bI", 0, other) + b"{}"),
    )
    sender.send((b"i", one[5:]), headers=[("__value_schema_id", one[:5])])
    sender.send((b"i2", struct.pack(">bI", 0, pair) + b"\x02\x04"))
    sender.send((b"i3", one[5:]), headers=[("__value_schema_id", b"\x01" + guid)])
    keep(registered, topic)

    found = values_of(topic)
    assert found[0] == found[8] == {"n": 1, "price": 0.5, "pos": {"lat": 1.5, "alt": None}}
    at = found[1].pop("at")
    assert at.timestamp() == 0
    assert found[1] == {
        "n": 1 << 40,
        "price__string": "dear",
        "pos": {"lat": 2.5, "alt": 7},
        "tags": ["x"],
    }
    assert found[2:8] == [{}] * 6
    assert found[9:] == [{"a": {"id": 1}, "b": {"id": 2}}, {}]
    ids = [id_of(one), id_of(two)]
    assert [row.get("_schema_id") for row in rows(topic)] == [
        *ids, None, ids[0], ids[0], None, unknown, other, ids[0], pair, None,
    ]  # fmt: skip
    assert [row[KEY] for row in rows(topic)] == [*"abcdefghi", "i2", "i3"]
    assert rows(topic)[1][RESCUED] == '{"_offset":3}'
    wrong = f"the value does not match schema {ids[0]}"
    assert errors_of(topic) == [
        (1, "no column can hold what is in _rescued"),
        (1, f"price is string in schema {ids[1]}: stored in column price__string"),
        (3, wrong),
        (4, wrong),
        (5, "the value has no schema id: no serializer of a schema registry wrote it"),
        (6, f"the registry has no schema {unknown}"),
        (7, f"schema {other} is not Avro but JSON"),
        (10, "the registry has no schema 00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ]
    # The next batch has one of the schemas alone; columns stay. After the format was mended the text is taken.
    endless = sender.framed(record(next=["null", "Order"]), {"next": None})
    sender.send((b"j", two), (b"k", endless))
    keep(registered, topic)
    assert values_of(topic)[11]["price__string"] == "dear"
    assert errors_of(topic)[-1][0] == 12
    assert errors_of(topic)[-1][1].startswith(f"schema {id_of(endless)} cannot be read: ")
    alter(topic, "lake.table.value.format", "string")
    assert registered.replay(topic.name) == 3, "nope, JSON, and the endless one"


def test_only_names_of_columns_of_clashes_are_refused(spark: SparkSession) -> None:
    """`__deleted` and the like come from Debezium; a Delta table may have them as columns."""
    taken = ["__deleted", "__op", "user__id", "n"]
    refused = ["n__string", "o__json", "d__date", "p__decimal_10_2", "n__bigint"]
    kind = t.StructType([t.StructField(name, t.StringType()) for name in (*taken, *refused)])
    columns = SchemaColumns(now={})
    columns.place(
        DecodedSchema(
            name=SchemaName(number=1, guid=None, message=None),
            first=(0, 0),
            type=kind,
            value=f.col("value"),
            is_read=f.lit(True),
        )
    )
    assert [*columns.now] == taken
    assert len(columns.rescued) == 1


@pytest.mark.timeout(300)
def test_current_state_by_avro_keys_and_a_registry_that_is_away(
    spark: SparkSession, registered: Pipelines, topic: Topic, registry: str, broker: BrokerProcess
) -> None:
    settings = {**AVRO, "lake.table.key.format": "avro", "lake.table.mode": "current"}
    topic.create(partitions=1, **settings)
    sender = Sender(topic, registry)
    key_schema = json.dumps(
        {"type": "record", "name": "K", "fields": [{"name": "id", "type": "int"}]}
    )
    keys = [sender.framed(key_schema, {"id": number}, MessageField.KEY) for number in range(3)]
    values = [sender.framed(record(n="int"), {"n": number}) for number in range(4)]
    sender.send(
        (keys[0], values[0]), (keys[1], values[1]), (b"bad", values[2]), (keys[0], values[3])
    )

    options = {"kafka.bootstrap.servers": broker.bootstrap}
    without = Pipelines(spark, options, str(broker.lake), SchemaRegistry("http://127.0.0.1:1"))
    with pytest.raises(OptionError, match="schema registry http://127.0.0.1:1"):
        keep(without, topic)
    without.close()
    assert rows(topic) == [], "nothing is taken before the registry answers"

    keep(registered, topic)
    assert state_of(spark, topic) == {'{"id":0}': {"n": 3}, '{"id":1}': {"n": 1}}
    ((offset, reason),) = errors_of(topic)
    assert offset == 2
    assert reason.startswith("the key has no schema id")
    sender.send(
        (keys[1], None), (keys[2], sender.framed(record(n="long", m="string"), {"n": 5, "m": "x"}))
    )
    keep(registered, topic)
    assert state_of(spark, topic) == {'{"id":0}': {"n": 3}, '{"id":2}': {"n": 5, "m": "x"}}


@pytest.mark.timeout(300)
def test_a_record_within_a_map_and_a_list_gains_a_field(
    spark: SparkSession, registered: Pipelines, topic: Topic, registry: str
) -> None:
    topic.create(partitions=1, **AVRO, **{"lake.table.mode": "current"})
    sender = Sender(topic, registry)
    points: list[Any] = [{"a": {"lat": 1.5}}, {"a": {"lat": 2.5, "alt": 7}}]
    wanted = [{"lat": 1.5, "alt": None}, {"lat": 2.5, "alt": 7}]
    for number, (of_point, value) in enumerate(zip((POINT, WIDER), points, strict=True)):
        schema = record(
            at={"type": "map", "values": of_point},
            all={"type": "array", "items": of_point.get("name")},
        )
        made = sender.framed(schema, {"at": value, "all": [value["a"]]})
        sender.send((b"%d" % number, made))
        if number:
            viewed = registered.view(topic.name).orderBy("_offset").collect()
            assert (
                [row["at"]["a"].asDict() for row in viewed]
                == [row["all"][0].asDict() for row in viewed]
                == wanted
            )
        keep(registered, topic)
    state = state_of(spark, topic)
    assert [state[key]["at"]["a"].asDict() for key in "01"] == wanted
    assert errors_of(topic) == []


@pytest.mark.timeout(300)
def test_more_schemas_than_a_step_looks_up_stop_no_topic(
    registered: Pipelines, topic: Topic, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids may be garbage: those of most records are looked up, and records with other ids are errors."""
    monkeypatch.setattr(schema_names, "SCHEMAS_MAX", 2)
    topic.create(partitions=1, **AVRO)
    sender = Sender(topic, registry)
    good = sender.framed(record(n="int"), {"n": 1})
    garbage = [struct.pack(">bI", 0, 900_000 + number) + good[5:] for number in range(3)]
    sender.send(*((b"", each) for each in (*garbage, good, good)))
    keep(registered, topic)
    assert values_of(topic) == [{}, {}, {}, {"n": 1}, {"n": 1}]
    none = "the registry has no schema 900000"
    assert errors_of(topic) == [(0, none), (1, UNEXPECTED), (2, UNEXPECTED)]


@pytest.mark.timeout(300)
def test_a_table_of_current_state_follows_debeziums_changes_in_avro(
    spark: SparkSession, registered: Pipelines, topic: Topic, registry: str
) -> None:
    settings = {**AVRO, "lake.table.mode": "current", "lake.table.envelope": "debezium"}
    topic.create(partitions=1, **settings)
    sender = Sender(topic, registry)
    row = {"type": "record", "name": "Value", "fields": [{"name": "n", "type": "int"}]}
    wider = {**row, "fields": [*row["fields"], {"name": "m", "type": ["null", "string"]}]}

    def change(op: str, before: Any, after: Any, of_row: dict[str, Any] = row) -> bytes:
        schema = record(before=["null", of_row], after=["null", "Value"], op="string")
        return sender.framed(schema, {"before": before, "after": after, "op": op})

    sender.send(
        (b"a", change("r", None, {"n": 1})),
        (b"b", change("c", None, {"n": 2})),
        (b"a", change("u", {"n": 1}, {"n": 3, "m": "x"}, wider)),
        (b"b", change("d", {"n": 2}, None)),
        (b"b", None),
        (b"c", change("c", None, {"n": 4})),
        (b"d", change("t", None, None)),
        (b"e", sender.framed(record(n="int"), {"n": 5})),
    )
    keep(registered, topic)
    none = "the value is not a change event in Debezium's envelope"
    assert errors_of(topic) == [(6, none), (7, none)]
    assert state_of(spark, topic) == {"a": {"n": 3, "m": "x"}, "c": {"n": 4}, "d": {}, "e": {}}


@pytest.mark.timeout(300)
def test_keys_of_a_schema_that_earlier_steps_did_not_have(
    registered: Pipelines, topic: Topic, registry: str
) -> None:
    """A step expects the schemas of the last one: these records would have no key, or those of an Avro value no row."""
    settings = {"lake.table.value.format": "json", "lake.table.key.format": "avro"}
    topic.create(partitions=1, **settings)
    sender = Sender(topic, registry)
    whole, text = (sender.framed(f'"{kind}"', key, MessageField.KEY) for kind, key in KEYS)
    sender.send((whole, b'{"n": 1}'))
    keep(registered, topic)
    sender.send((whole, b'{"n": 2}'), (text, b'{"n": 3}'))
    keep(registered, topic)
    sender.send((text, b'{"n": 4}'), (b"bad", b'{"n": 5}'))
    keep(registered, topic)
    assert [row.get(KEY) for row in rows(topic)] == ["7", "7", "seven", "seven", None]
    assert [each["n"] for each in values_of(topic)] == [1, 2, 3, 4, 5]
    bad = "the key has no schema id: no serializer of a schema registry wrote it"
    assert errors_of(topic) == [(4, bad)]


@pytest.mark.timeout(300)
def test_the_brokers_name_the_registry_while_the_pipelines_run(
    pipelines: Pipelines, topic: Topic, registry: str
) -> None:
    topic.create(partitions=1, **AVRO)
    sender = Sender(topic, registry)
    sender.send((b"a", sender.framed(record(n="int"), {"n": 1})))
    with pytest.raises(OptionError, match=r"set the brokers' schema\.registry\.url, or name it"):
        keep(pipelines, topic)
    with Cluster(parse_settings({"kafka.bootstrap.servers": topic.broker.bootstrap})) as cluster:
        admin = Admin(cluster)
        node_id = min(cluster.addresses())
        admin.alter_broker_configs(node_id, {REGISTRY_URL: registry})
        try:
            keep(pipelines, topic)
        finally:
            admin.alter_broker_configs(node_id, {REGISTRY_URL: None})
    assert values_of(topic) == [{"n": 1}]
