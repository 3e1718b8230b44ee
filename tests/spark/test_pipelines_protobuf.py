"""Typed tables of Protobuf: schemas of a real registry, messages framed by confluent-kafka's serializer."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField
from pyspark.sql import SparkSession

from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.schema_registry import Sender, id_of, message_class
from tests.spark.topics import Topic
from tests.spark.typed_tables import alter, errors_of, keep, rows, state_of, values_of

PROTOBUF = {"lake.table.value.format": "protobuf", "lake.table.key.format": "string"}
MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; uint64 nanos = 2; }'
FIRST = """syntax = "proto3"; package shop;
import "shop/money.proto"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Other { message Within { string within = 1; } }
message Order {
  int32 n = 1; optional int32 maybe = 2; float total = 3; Money price = 4; repeated string tags = 5;
  map<string, Money> by = 6; enum Status { OPEN = 0; DONE = 1; } Status status = 7;
  oneof how { string card = 8; bool cash = 9; } google.protobuf.Timestamp at = 10;
  google.protobuf.StringValue note = 11; uint64 big = 12; bytes raw = 13; Tree tree = 14;
}
message Tree { string name = 1; repeated Tree kids = 2; }
"""
SECOND = """syntax = "proto3"; package shop; import "shop/money.proto";
message Order { int64 n = 1; string total = 3; Money price = 4; string city = 20; int32 _offset = 21; }
"""


def message(text: str, name: str) -> Any:
    """The class of a schema's message."""
    return message_class(text, name, (("shop/money.proto", MONEY),))


NO_MONEY = {"units": 0, "nanos": Decimal(0)}
# What the columns have of a message, and of an empty one.
OF_ORDER = {
    "n": 1, "total": 0.5, "price": {**NO_MONEY, "units": 3}, "tags": ["x"],
    "by": [("k", {**NO_MONEY, "nanos": Decimal(1 << 63)})], "status": "DONE", "card": "c",
    "note": "", "big": Decimal((1 << 64) - 1), "raw": b"\x00",
    "tree": {"name": "", "kids": ['{"name": "leaf"}']},
}  # fmt: skip
OF_NOTHING = {
    "n": 0, "total": 0.0, "tags": [], "by": [], "status": "OPEN", "big": Decimal(0), "raw": b"",
}  # fmt: skip


def filled_order(order_class: Any) -> Any:
    """A message with something in each kind of field."""
    order = order_class(n=1, total=0.5, tags=["x"], status=1, card="c", big=(1 << 64) - 1)
    order.price.units = 3
    order.by["k"].nanos = 1 << 63
    order.at.seconds = 1
    order.note.value = ""
    order.raw = b"\x00"
    order.tree.kids.add(name="leaf")
    return order


@pytest.mark.timeout(300)
def test_columns_follow_protobuf_schemas_and_what_cannot_be_decoded_is_told(
    registered: Pipelines, topic: Topic, registry: str
) -> None:
    topic.create(partitions=1, **PROTOBUF)
    sender = Sender(topic, registry)
    before, after = message(FIRST, "shop.Order"), message(SECOND, "shop.Order")
    one = sender.framed_message(filled_order(before))
    empty = sender.framed_message(before())
    two = sender.framed_message(after(n=1 << 40, total="dear", city="x", _offset=9))
    within = sender.framed_message(message(FIRST, "shop.Other.Within")(within="w"))
    # Registered as text, which refers to another text.
    money = sender.referred("shop/money.proto", MONEY, "PROTOBUF")
    text = sender.other(SECOND, "PROTOBUF", money)
    other = sender.other('{"type":"record","name":"A","fields":[]}', "AVRO")
    broken = sender.other(
        'syntax = "proto3"; import "gone.proto"; message A { B b = 1; }', "PROTOBUF"
    )
    late = before()
    late.at.seconds = 1 << 40
    sender.send(
        (b"a", one),
        (b"b", empty),
        (b"c", two),
        (b"d", within),
        (b"e", None),
        (b"f", one[:-1]),
        (b"g", struct.pack(">bI", 0, text) + two[5:]),
        (b"h", struct.pack(">bI", 0, other) + b"\x00"),
        (b"i", one[:5]),
        (b"j", one[:5] + b"\x02\x0e" + one[6:]),
        (b"k", sender.framed_message(late)),
        (b"l", struct.pack(">bI", 0, broken) + b"\x00"),
    )
    sender.send((b"m", two[6:]), headers=[("__value_schema_id", two[:6])])
    keep(registered, topic)

    found = values_of(topic)
    ids = [id_of(each) for each in (one, two, within)]
    assert found[0].pop("at").timestamp() == 1
    assert found[:2] == [OF_ORDER, OF_NOTHING]
    of_second = {"n": 1 << 40, "total__string": "dear", "city": "x"}
    assert found[2] == found[6] == found[12] == of_second
    assert found[3] == {"within": "w"}
    assert found[4:6] == [{}] * 2
    assert [row.get("_schema_id") for row in rows(topic)] == [
        ids[0], ids[0], ids[1], ids[2], None, ids[0], text, other, ids[0], ids[0], ids[0], broken, ids[1],
    ]  # fmt: skip
    wrong = f"the value does not match schema {ids[0]}"
    errors = errors_of(topic)
    assert errors.pop(-2)[1].startswith(
        f"schema {broken} cannot be read: gone.proto: File not found"
    )
    no_column = "no column can hold what is in _rescued"
    assert errors == [
        (2, no_column),
        (2, f"total is string in schema {ids[1]}: stored in column total__string"),
        (5, wrong),
        (6, no_column),
        (7, f"schema {other} is not Protobuf but AVRO"),
        (8, "the value has no schema id: no serializer of a schema registry wrote it"),
        (9, f"schema {ids[0]} cannot be read: it has no message with this index"),
        (10, wrong),
        (12, no_column),
    ]
    alter(topic, "lake.table.value.format", "string")
    assert registered.replay(topic.name) > 0


@pytest.mark.timeout(300)
def test_current_state_by_protobuf_keys(
    spark: SparkSession, registered: Pipelines, topic: Topic, registry: str
) -> None:
    settings = {**PROTOBUF, "lake.table.key.format": "protobuf", "lake.table.mode": "current"}
    topic.create(partitions=1, **settings)
    sender = Sender(topic, registry)
    key, order = message(MONEY, "shop.Money"), message(FIRST, "shop.Order")
    keys = [sender.framed_message(key(units=n), MessageField.KEY) for n in range(2)]
    values = [sender.framed_message(order(maybe=n)) for n in range(3)]
    sender.send((keys[0], values[0]), (keys[1], values[1]), (b"bad", values[1]), (keys[1], None))
    sender.send((keys[0], values[2]))
    keep(registered, topic)
    ((of_key, state),) = state_of(spark, topic).items()
    assert (of_key, state["maybe"]) == ('{"units":0,"nanos":0}', 2)
    assert [offset for offset, _ in errors_of(topic)] == [2]
