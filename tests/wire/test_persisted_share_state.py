"""What lies in `__share_group_state`, compared with the definitions in Apache Kafka's jar and with its own tool."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.messages.share_state import StateBatch
from tests.wire.definitions import (
    assert_declared,
    definition,
    shown_by_dump,
)
from tests.wire.random_messages import random_message

CLASSES = [ShareSnapshotKey, ShareSnapshotValue, ShareUpdateKey, ShareUpdateValue]
SNAPSHOT = ShareSnapshotKey(group_id="gä", topic_id=bytes(range(16)), partition=3)
UPDATE = ShareUpdateKey(group_id="gä", topic_id=bytes(range(16)), partition=3)


def batches() -> list[StateBatch]:
    return [StateBatch(first_offset=5, last_offset=9, delivery_state=2, delivery_count=1)]


def snapshot() -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=10,
        write_timestamp=11,
        state_batches=batches(),
    )


def update() -> ShareUpdateValue:
    return ShareUpdateValue(
        snapshot_epoch=1,
        leader_epoch=3,
        start_offset=-1,
        delivery_complete_count=5,
        state_batches=batches(),
    )


@pytest.mark.jars
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_record_is_declared_as_kafka_defines_it(cls: type, kafka_jars: Path) -> None:
    jar = next(kafka_jars.glob("kafka-share-coordinator-[0-9]*.jar"))
    theirs = definition(jar, cls.__name__)
    assert theirs["apiKey"] == ("Update" in cls.__name__)
    assert_declared(cls, theirs)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_record_comes_back(cls: type) -> None:
    random = Random(cls.__name__)
    for _ in range(20):
        value = random_message(cls, 0, random)
        assert decode(cls, encode(value, 0), 0) == value


def test_a_key_begins_with_its_type_and_a_value_with_its_version() -> None:
    named = "0003 67c3a4 000102030405060708090a0b0c0d0e0f 00000003"
    assert encode_key(SNAPSHOT) == bytes.fromhex("0000" + named)
    assert encode_key(UPDATE) == bytes.fromhex("0001" + named)
    for key in (SNAPSHOT, UPDATE):
        assert decode_key(encode_key(key)) == key
    assert encode_value(update())[:2] == b"\x00\x00"
    assert decode_value(UPDATE, encode_value(update())) == update()
    assert decode_value(SNAPSHOT, encode_value(snapshot())) == snapshot()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00", b"\x00\x01\x00\x01gg"])
def test_a_broken_key_is_an_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_key(data)


def test_what_is_not_known_is_not_guessed() -> None:
    assert decode_key(bytes.fromhex("0002 0001 67")) is None
    with pytest.raises(MalformedFrame, match="ShareUpdateValue 1"):
        decode_value(UPDATE, b"\x00\x01rest")


@pytest.mark.jars
def test_kafkas_own_tool_reads_what_we_write(kafka_jars: Path, tmp_path: Path) -> None:
    pairs: list[tuple[Any, Any]] = [(SNAPSHOT, snapshot()), (UPDATE, update()), (SNAPSHOT, None)]
    written = [
        (encode_key(key), None if value is None else encode_value(value)) for key, value in pairs
    ]
    shown = shown_by_dump(kafka_jars, tmp_path, written, "--share-group-state-decoder")
    names = {"groupId": "gä", "topicId": "AAECAwQFBgcICQoLDA0ODw", "partition": 3}
    assert [json.loads(key) for key, _ in shown] == [
        {"type": kind, "data": names} for kind in ("0", "1", "0")
    ]
    batch_told = {"firstOffset": 5, "lastOffset": 9, "deliveryState": 2, "deliveryCount": 1}
    assert json.loads(shown[0][1])["data"]["stateBatches"] == [batch_told]
    assert json.loads(shown[1][1])["data"] == {
        "snapshotEpoch": 1,
        "leaderEpoch": 3,
        "startOffset": -1,
        "deliveryCompleteCount": 5,
        "stateBatches": [batch_told],
    }
    assert shown[2][1] == "<DELETE>"
