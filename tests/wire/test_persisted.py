"""What lies in `__consumer_offsets`, compared with the definitions in Apache Kafka's jar and with its own classes."""

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_subscription,
)
from kafka_ds.protocol.messages.persisted import (
    RECORD_TYPES,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.messages.persisted_consumer_groups import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kafka_ds.protocol.types import fields_of, is_struct, message_info, uuid_text
from kafka_ds.protocol.versioned import encode_numbered
from tests.wire.definitions import (
    assert_declared,
    definition,
    shown_by_dump,
)
from tests.wire.random_messages import random_message

CLASSES = list(dict.fromkeys(cls for types in RECORD_TYPES.values() for cls in types))
VERSIONED = [
    (cls, version)
    for cls in CLASSES
    for version in range(message_info(cls).versions.first, message_info(cls).versions.last + 1)
]


def record_definition(
    jars: Path, name: str, library: str = "kafka-group-coordinator"
) -> dict[str, Any]:
    return definition(next(jars.glob(f"{library}-[0-9]*.jar")), name)


@pytest.mark.jars
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_record_is_declared_as_kafka_defines_it(cls: type, kafka_jars: Path) -> None:
    theirs = record_definition(kafka_jars, cls.__name__)
    assert_declared(cls, theirs)


@pytest.mark.parametrize("cls", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_what_consumers_tell_each_other_is_declared_as_kafka_defines_it(
    cls: type, kafka_clients_jar: Path
) -> None:
    theirs = record_definition(kafka_clients_jar.parent, cls.__name__, "kafka-clients")
    assert_declared(cls, theirs)


def test_what_a_later_consumer_adds_is_passed_over() -> None:
    said = ConsumerProtocolSubscription(topics=["t"], rack_id="r", generation_id=4)
    data = encode_numbered(said, 3)
    assert decode_subscription(b"\x00\x09" + data[2:] + b"more") == said
    for broken in (b"", b"\x00", b"\xff\xff", b"\x00\x03\x00"):
        with pytest.raises(MalformedFrame):
            decode_subscription(broken)


@pytest.mark.jars
def test_the_types_of_records_have_kafkas_numbers(kafka_jars: Path) -> None:
    for number, types in RECORD_TYPES.items():
        assert record_definition(kafka_jars, types.key.__name__)["apiKey"] == number
        assert record_definition(kafka_jars, types.value.__name__)["apiKey"] == max(number, 1)


@pytest.mark.parametrize(("cls", "version"), VERSIONED, ids=str)
def test_every_version_comes_back(cls: type, version: int) -> None:
    random = Random(cls.__name__)
    for _ in range(20):
        message = random_message(cls, version, random)
        assert decode(cls, encode(message, version), version) == message


def test_a_key_begins_with_its_type_and_a_value_with_its_version() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=7)
    assert encode_key(key) == bytes.fromhex("0001 0001 67 0001 74 00000007")
    assert decode_key(encode_key(key)) == key
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    data = encode_value(value, 3)
    assert data == bytes.fromhex("0003 0000000000000005 00000002 0001 6d 0000000000000009")
    assert decode_value(key, data) == value
    group = GroupMetadataKey(group="g")
    assert encode_key(group) == bytes.fromhex("0002 0001 67")


def test_a_key_of_the_oldest_type_is_read_as_one_of_today() -> None:
    old = encode_key(LegacyOffsetCommitKey(group="g", topic="t", partition=7))
    assert old[:2] == b"\x00\x00"
    assert decode_key(old) == OffsetCommitKey(group="g", topic="t", partition=7)


def test_a_type_that_is_not_ours_is_left_alone() -> None:
    assert decode_key(bytes.fromhex("0018 0001 67")) is None


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01\x00", b"\x00\x02\x00\x01gg"])
def test_a_broken_key_is_an_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_key(data)


def test_a_value_of_a_later_version_is_refused() -> None:
    key = GroupMetadataKey(group="g")
    with pytest.raises(MalformedFrame, match="GroupMetadataValue 5"):
        decode_value(key, b"\x00\x05rest")


def as_kafka_shows(message: Any, version: int) -> Any:
    """A message as Kafka's tools print it: names in camel case, bytes in base64, defaults of tagged fields left out."""
    if isinstance(message, bytes):
        return base64.b64encode(message).decode()
    if isinstance(message, list):
        return [as_kafka_shows(element, version) for element in message]
    if not is_struct(type(message)):
        return message
    shown = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if version not in field.versions or (field.tag is not None and value == field.default):
            continue
        first, *rest = field.name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
        is_id = field.name == "topic_id"
        shown[name] = uuid_text(value) if is_id else as_kafka_shows(value, version)
    return shown


@pytest.mark.jars
def test_kafkas_own_tool_reads_what_we_write(kafka_jars: Path, tmp_path: Path) -> None:
    offset_key = OffsetCommitKey(group="gruppe-ä", topic="t", partition=7)
    offset = OffsetCommitValue(
        offset=5, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=bytes(range(1, 17))
    )
    plain = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    expiring = OffsetCommitValue(offset=5, metadata="", commit_timestamp=9, expire_timestamp=11)
    group_key = GroupMetadataKey(group="g")
    member = MemberMetadata(
        member_id="a-1",
        group_instance_id="a",
        client_id="a",
        client_host="/127.0.0.1",
        rebalance_timeout=300,
        session_timeout=200,
        subscription=b"\x00sub",
        assignment=b"ass",
    )
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="a-1",
        current_state_timestamp=77,
        members=[member],
    )
    empty = GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, members=[]
    )
    records: list[tuple[Any, Any, int]] = [
        (offset_key, offset, 4),
        (offset_key, plain, 4),
        (offset_key, plain, 3),
        (offset_key, expiring, 1),
        (offset_key, None, 0),
        *((group_key, group, version) for version in range(5)),
        (group_key, empty, 3),
        (group_key, None, 0),
    ]
    written = [
        (encode_key(key), None if value is None else encode_value(value, version))
        for key, value, version in records
    ]
    shown = shown_by_dump(kafka_jars, tmp_path, written, "--offsets-decoder")
    for (shown_key, shown_value), (key, value, version) in zip(shown, records, strict=True):
        assert json.loads(shown_key)["data"] == as_kafka_shows(key, 0)
        if value is None:
            assert shown_value == "<DELETE>"
        else:
            body = {"version": str(version), "data": as_kafka_shows(value, version)}
            assert json.loads(shown_value) == body


def test_who_speaks_the_consumer_protocol_is_written_as_kafka_reads_it() -> None:
    """Left out, the classic metadata would be an empty struct to Kafka: null is said, as 0 in a tagged field."""
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="",
        client_host="",
        subscribed_topic_names=[],
        subscribed_topic_regex="",
        server_assignor=None,
    )
    data = encode_value(value, 0)
    assert data.endswith(bytes.fromhex("01 00 01 00"))
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    assert decode_value(key, data) == value
