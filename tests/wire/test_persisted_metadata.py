"""Records of Apache Kafka's metadata log, compared with the definitions in its jar."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_metadata import RECORDS, TopicRecord, decode_record
from kafka_ds.protocol.types import message_info
from tests.wire.definitions import (
    assert_declared,
    definition,
)
from tests.wire.random_messages import random_message

CLASSES = list(RECORDS.values())


def record_definition(jars: Path, name: str) -> dict[str, Any]:
    parsed = definition(next(jars.glob("kafka-metadata-[0-9]*.jar")), name, "metadata")
    for field in parsed["fields"]:
        # Kafka's generator lets a field leave out in which versions it is.
        field.setdefault("versions", field.get("taggedVersions") or "0+")
    return parsed


@pytest.mark.jars
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_record_is_declared_as_kafka_defines_it(cls: type, kafka_jars: Path) -> None:
    theirs = record_definition(kafka_jars, cls.__name__)
    assert message_info(cls).key == theirs["apiKey"]
    assert_declared(cls, theirs)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_version_comes_back(cls: Any) -> None:
    random = Random(0)
    info = message_info(cls)
    for version in range(info.versions.first, info.versions.last + 1):
        value = random_message(cls, version, random)
        assert decode(cls, encode(value, version), version) == value
        assert decode_record(bytes([1, info.key, version]) + encode(value, version)) == value


def test_what_is_not_known_is_told_by_its_number_or_refused() -> None:
    topic = encode(TopicRecord(name="t", topic_id=bytes(16)), 0)
    assert decode_record(b"\x01\x0b\x00whatever") == 11
    with pytest.raises(MalformedFrame, match="TopicRecord 1"):
        decode_record(b"\x01\x02\x01" + topic)
    with pytest.raises(MalformedFrame, match="version 2"):
        decode_record(b"\x02\x02\x00" + topic)
    for data in (b"", b"\x01", b"\x01\x02", b"\x01\x02\x00" + topic[:-5]):
        with pytest.raises(MalformedFrame):
            decode_record(data)
