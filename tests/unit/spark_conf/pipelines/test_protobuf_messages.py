"""Protobuf → Arrow: what each kind of field becomes, and what one bad message does to a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_conf.pipelines import protobuf
from spark_conf.pipelines.protobuf import compiled
from spark_conf.pipelines.protobuf_messages import MessageType, UnreadableMessage

TEXT = """syntax = "proto2"; package all;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/wrappers.proto"; import "google/type/date.proto";
message All {
  required int32 a = 1; optional string b = 2 [default = "x"]; repeated sint64 c = 3 [packed = true];
  enum E { A = 1; B = 2; } optional E e = 4; optional google.protobuf.Timestamp at = 5;
  optional google.protobuf.Duration took = 6; optional google.protobuf.Struct free = 7;
  repeated google.protobuf.UInt64Value big = 8; optional google.type.Date day = 9; optional float f = 10;
  map<uint64, Tree> trees = 11; oneof one { fixed32 x = 12; bytes y = 13; } optional Nothing nothing = 14;
  optional Tree tree = 15; map<string, Nothing> nothings = 16;
}
message Tree { optional string name = 1; repeated Tree kids = 2; optional Branch branch = 3; }
message Branch { optional Tree tree = 1; optional int32 n = 2; }
message Nothing {}
"""
FILES = compiled(TEXT, ())
ALL = MessageType(FILES, "all.All")


def _class() -> Any:
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(FILES).file:
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName("all.All"))


All = _class()


def read(*messages: bytes | None) -> list[dict[str, Any] | None]:
    found = ALL.read_each(pa.array(messages, pa.binary())).to_pylist()
    return [each and {n: v for n, v in each.items() if v not in (None, [])} for each in found]


def test_fields_become_what_the_table_has() -> None:
    given = All(a=-1, e=2, c=[-5], f=0.5)
    given.at.FromMicroseconds(-1)
    given.took.FromMilliseconds(1500)
    given.free["k"] = 1
    given.big.add(value=(1 << 64) - 1)
    given.day.year = 2020
    given.trees[1 << 63].kids.add(name="leaf")
    given.y = b""
    given.tree.branch.n = 3
    given.nothing.SetInParent()
    assert read(given.SerializeToString()) == [
        {
            "a": -1,
            "c": [-5],
            "e": "B",
            "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            "took": "1.500s",
            "free": '{"k": 1.0}',
            "big": [Decimal((1 << 64) - 1)],
            "day": '{"year": 2020}',
            "f": 0.5,
            "trees": [(Decimal(1 << 63), {"name": None, "kids": ['{"name": "leaf"}'], "branch": None})],
            "y": b"",
            "tree": {"name": None, "kids": [], "branch": '{"n": 3}'},
        }
    ]  # fmt: skip
    assert str(ALL.type.field("x").type) == "int64"
    assert ALL.type.get_field_index("nothings") == -1


def test_one_bad_message_takes_no_other_with_it() -> None:
    good = All(a=1).SerializeToString()
    late = All(a=1)
    late.at.seconds = 1 << 50
    no_duration = All(a=1)
    no_duration.took.seconds = 1 << 50
    beyond_its_end = b"r" + b"\xff" * 9 + b"\x01" + good
    no_value = good + b"\x5a\x02\x08\x01"
    bad = [good[:-1], late.SerializeToString(), no_duration.SerializeToString(), beyond_its_end]
    found = read(good, *bad, None, good, no_value)
    one = {"a": 1}
    assert found[:-1] == [one, None, None, None, None, None, one]
    assert found[-1] == {**one, "trees": [(Decimal(1), None)]}
    assert read(b"\x08\x01\x20\x63") == [{"a": 1, "e": "99"}], "a number without a name"
    with pytest.raises(UnreadableMessage):
        ALL.read(pa.array(bad[:1], pa.binary()))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('syntax = "proto2"; message A { optional group G = 1 {} }', "A has a group"),
        ('edition = "2023"; message A { int32 a = 1; }', "has an edition"),
        ('syntax = "proto3"; message A { int32 id = 1; int32 ID = 2; }', "conflicts with field 'ID'"),
        (
            'syntax = "proto2"; message A { optional int32 a_b = 1; optional int32 aB = 2; }',
            "duplicate json_name",
        ),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_read_is_an_error_of_its_own_records(
    text: str, problem: str
) -> None:
    """A panic in ptars would end the process, and with it the tables of all topics."""
    with pytest.raises(ValueError, match=problem):
        MessageType(compiled(text, ()), "A")


# As Apicurio's serializer in Java registers `map<string, int64> stock = 2;`.
SPELLED_OUT = """syntax = "proto3"; package all;
message Shop {
  string name = 1;
  repeated .all.Shop.StockEntry stock = 2;
  message StockEntry { option map_entry = true; string key = 1; int64 value = 2; }
}
"""


def test_a_map_that_is_spelled_out_is_a_map() -> None:
    shop = MessageType(compiled(SPELLED_OUT, ()), "all.Shop")
    (found,) = shop.read_each(pa.array([b"\x12\x05\x0a\x01k\x10\x07"])).to_pylist()
    assert found == {"name": "", "stock": [("k", 7)]}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_none(noise: bytes) -> None:
    assert len(read(noise, All(a=1).SerializeToString())) == 2


def test_a_schema_for_which_protoc_takes_too_long_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one with an error, so that its records are errors: other exceptions fail the step, which is tried again."""
    monkeypatch.setattr(protobuf, "PROTOC_TIMEOUT_S", 0.0)
    with pytest.raises(ValueError, match="protoc took more than"):
        compiled('syntax = "proto3"; message Slow {}', ())
