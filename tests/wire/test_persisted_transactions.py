"""What lies in `__transaction_state`, compared with the definitions in Apache Kafka's jar and with its own tool."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_transactions import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tests.wire.definitions import (
    assert_declared,
    definition,
    shown_by_dump,
)
from tests.wire.random_messages import random_message

CLASSES = [TransactionLogKey, TransactionLogValue]


def record_definition(jars: Path, name: str) -> dict[str, Any]:
    parsed = definition(next(jars.glob("kafka-transaction-coordinator-[0-9]*.jar")), name)
    for field in parsed["fields"]:
        # Kafka's generator lets a tagged field say once in which versions it is.
        field.setdefault("versions", field.get("taggedVersions"))
    return parsed


@pytest.mark.jars
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_record_is_declared_as_kafka_defines_it(cls: type, kafka_jars: Path) -> None:
    theirs = record_definition(kafka_jars, cls.__name__)
    assert theirs["apiKey"] == 0
    assert_declared(cls, theirs)


@pytest.mark.parametrize("version", [0, 1])
def test_every_version_comes_back(version: int) -> None:
    random = Random(version)
    for _ in range(20):
        value = random_message(TransactionLogValue, version, random)
        assert decode(TransactionLogValue, encode(value, version), version) == value


def value_of(**changes: Any) -> TransactionLogValue:
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 2,
        "transaction_timeout_ms": 60_000,
        "transaction_status": 1,
        "transaction_partitions": [PartitionsSchema(topic="t", partition_ids=[0, 3])],
        "transaction_last_update_timestamp_ms": 11,
        "transaction_start_timestamp_ms": 9,
    }
    return TransactionLogValue(**fields | changes)


def test_a_key_begins_with_its_type_and_a_value_with_its_version() -> None:
    key = TransactionLogKey(transactional_id="tä")
    assert encode_key(key) == bytes.fromhex("0000 0003 74c3a4")
    assert decode_key(encode_key(key)) == key
    value = value_of(transaction_partitions=None)
    assert encode_value(value, 0) == bytes.fromhex(
        "0000 0000000000000007 0002 0000ea60 01 ffffffff 000000000000000b 0000000000000009"
    )
    assert decode_value(encode_value(value, 0)) == value


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00", b"\x00\x00\x00\x01gg"])
def test_a_broken_key_is_an_error(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_key(data)


def test_what_is_not_known_is_not_guessed() -> None:
    assert decode_key(bytes.fromhex("0001 0001 67")) is None
    with pytest.raises(MalformedFrame, match="TransactionLogValue 2"):
        decode_value(b"\x00\x02rest")


@pytest.mark.jars
def test_kafkas_own_tool_reads_what_we_write(kafka_jars: Path, tmp_path: Path) -> None:
    values = [
        (value_of(), 0),
        (value_of(transaction_partitions=None, transaction_status=0), 1),
        (value_of(previous_producer_id=5, client_transaction_version=2), 1),
        (None, 0),
    ]
    key = encode_key(TransactionLogKey(transactional_id="tä"))
    written = [
        (key, None if value is None else encode_value(value, version)) for value, version in values
    ]
    shown = shown_by_dump(kafka_jars, tmp_path, written, "--transaction-log-decoder")
    assert all(json.loads(key)["data"] == {"transactionalId": "tä"} for key, _ in shown)
    bodies = [json.loads(body) if body != "<DELETE>" else None for _, body in shown]
    assert bodies[0] == {
        "version": "0",
        "data": {
            "producerId": 7,
            "producerEpoch": 2,
            "transactionTimeoutMs": 60_000,
            "transactionStatus": "Ongoing",
            "transactionPartitions": [{"topic": "t", "partitionIds": [0, 3]}],
            "transactionLastUpdateTimestampMs": 11,
            "transactionStartTimestampMs": 9,
        },
    }
    assert bodies[1]["data"]["transactionPartitions"] is None
    assert bodies[2]["data"]["previousProducerId"] == 5
    assert bodies[2]["data"]["clientTransactionVersion"] == 2
    assert bodies[3] is None
