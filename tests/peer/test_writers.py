"""What any client wrote, in any codec: read by Java and others from the log, from the lake, and compacted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafka_ds.segments.checkpoint import decode_offsets
from tests.clients.adaptors import PRODUCERS, TIMEOUT_S, Headers, Message
from tests.clients.messages import CODECS, sendable, some_messages
from tests.integration.tier_broker import broker_process, consume
from tests.peer.jvm import Jvm
from tests.processes import BrokerProcess, wait_until
from tests.topics import create_topic

POLL_MS = 500


def java_produce(
    jvm: Jvm,
    bootstrap: str,
    topic: str,
    messages: Sequence[Message],
    codec: str = "none",
    *,
    transactional_id: str = "",
) -> list[int]:
    """Offsets in the order of ``messages``; in a transaction, behind one that was aborted, if there is an id."""
    classes = jvm.classes
    settings = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "enable.idempotence": bool(transactional_id),
        "linger.ms": 20,
        "max.request.size": 11 << 20,
    }
    if transactional_id:
        settings["transactional.id"] = transactional_id
    serializer = classes.org.apache.kafka.common.serialization.ByteArraySerializer
    producer = classes.org.apache.kafka.clients.producer.KafkaProducer(
        _properties(classes, settings), serializer(), serializer()
    )
    try:
        if transactional_id:
            producer.initTransactions()
            producer.beginTransaction()
            for message in messages[:5]:
                producer.send(_record(classes, topic, message))
            producer.flush()
            producer.abortTransaction()
            producer.beginTransaction()
        sent = [producer.send(_record(classes, topic, message)) for message in messages]
        producer.commitTransaction() if transactional_id else producer.flush()
        return [each.get().offset() for each in sent]
    finally:
        producer.close()


def java_read(
    jvm: Jvm, bootstrap: str, topic: str, ends: Mapping[int, int]
) -> dict[tuple[int, int], Message]:
    """The committed records before these offsets, by partition and offset, their checksums verified."""
    classes = jvm.classes
    settings = {
        "bootstrap.servers": bootstrap,
        "check.crcs": True,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "max.poll.records": 5000,
    }
    deserializer = classes.org.apache.kafka.common.serialization.ByteArrayDeserializer
    consumer = classes.org.apache.kafka.clients.consumer.KafkaConsumer(
        _properties(classes, settings), deserializer(), deserializer()
    )
    places = {index: classes.org.apache.kafka.common.TopicPartition(topic, index) for index in ends}
    listed = classes.java.util.ArrayList()
    for place in places.values():
        listed.add(place)
    consumer.assign(listed)
    consumer.seekToBeginning(listed)
    pause = classes.java.time.Duration.ofMillis(POLL_MS)
    found: dict[tuple[int, int], Message] = {}
    give_up_s = time.monotonic() + TIMEOUT_S
    try:
        while any(consumer.position(places[index]) < end for index, end in ends.items()):
            assert time.monotonic() < give_up_s, f"only {len(found)} records of {topic}"
            records = consumer.poll(pause).iterator()
            while records.hasNext():
                record = records.next()
                if record.offset() < ends[record.partition()]:
                    found[record.partition(), record.offset()] = _message(record)
    finally:
        consumer.close()
    return found


def _properties(classes: Any, settings: Mapping[str, object]) -> Any:
    properties = classes.java.util.Properties()
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        properties.setProperty(name, text)
    return properties


def _record(classes: Any, topic: str, message: Message) -> Any:
    record = classes.org.apache.kafka.clients.producer.ProducerRecord(
        topic, message.partition, message.timestamp_ms, message.key, message.value
    )
    header = classes.org.apache.kafka.common.header.internals.RecordHeader
    for key, value in message.headers:
        record.headers().add(header(key, value))
    return record


def _message(record: Any) -> Message:
    headers: Headers = [
        (header.key(), _bytes(header.value())) for header in record.headers().toArray()
    ]
    return Message(
        _bytes(record.key()),
        _bytes(record.value()),
        headers,
        record.timestamp(),
        record.partition(),
    )


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


pytestmark = pytest.mark.jars

JAVA = "java"
WRITERS = [(client, codec) for client in (*PRODUCERS, JAVA) for codec in CODECS]
LAST = b"what closes the segment before it"
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path, SETTINGS).start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text()


def write(
    broker: BrokerProcess, jvm: Jvm, topic: str, settings: Mapping[str, str]
) -> dict[tuple[int, int], Message]:
    """A partition for each client and codec; the records by partition and offset."""
    create_topic(broker.bootstrap, topic, settings, partitions=len(WRITERS))
    written = {}
    for partition, (client, codec) in enumerate(WRITERS):
        messages = [
            replace(sendable(client, each), partition=partition, key=each.key or b"none")
            for each in some_messages(30)
        ]
        if client == JAVA:
            # Java's transactions: each partition begins with an aborted one.
            offsets = java_produce(
                jvm,
                broker.bootstrap,
                topic,
                messages,
                codec,
                transactional_id=f"{topic}-{partition}",
            )
        else:
            idempotent = bool(partition % 2)
            produce = PRODUCERS[client]
            offsets = produce(broker.bootstrap, topic, messages, codec, idempotent=idempotent)
        written.update({(partition, at): m for at, m in zip(offsets, messages, strict=True)})
    return written


def ends_of(written: Mapping[tuple[int, int], Message]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for partition, offset in written:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def close_segments(broker: BrokerProcess, topic: str) -> None:
    """The next record of each partition begins a segment."""
    entry = ConfigEntry("segment.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(120)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(len(WRITERS)):
        producer.produce(topic, LAST, LAST, partition=partition)
    assert producer.flush(120) == 0


def files_of(broker: BrokerProcess, topic: str, kind: str) -> list[Path]:
    return sorted(broker.data.glob(f"{topic}-*/*.{kind}"))


def check_files(broker: BrokerProcess, jvm: Jvm, topic: str) -> None:
    """Kafka's own tool finds nothing wrong with the files of a topic."""
    text = jvm.dump(files_of(broker, topic, "log"), "--deep-iteration")
    assert "invalid bytes" not in text
    assert "isvalid: false" not in text
    indexes = [
        file
        for kind in ("index", "timeindex")
        for file in files_of(broker, topic, kind)
        if file.stat().st_size
    ]
    assert jvm.dump(indexes, "--index-sanity-check").count("passed sanity check") == len(indexes)


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_from_the_log_and_from_the_lake(broker: BrokerProcess, jvm: Jvm, times: str) -> None:
    topic = f"t-{times}"
    written = write(broker, jvm, topic, {"message.timestamp.type": times})
    ends = ends_of(written)
    hot = java_read(jvm, broker.bootstrap, topic, ends)
    if times == "CreateTime":
        assert hot == written
    else:
        assert hot.keys() == written.keys()
        written = {
            key: replace(m, timestamp_ms=hot[key].timestamp_ms) for key, m in written.items()
        }
        assert hot == written
    check_files(broker, jvm, topic)
    close_segments(broker, topic)
    wait_until(
        "the records to be in the lake alone",
        lambda: all(
            int(file.stem) >= ends[int(file.parent.name.rpartition("-")[2])]
            for file in files_of(broker, topic, "log")
        ),
        timeout_s=120,
    )
    assert java_read(jvm, broker.bootstrap, topic, ends) == written
    for partition, end in ends.items():
        rows = consume(broker.bootstrap, topic, partition, end=end)
        assert {
            offset: (row.key, row.value, list(row.headers), row.timestamp_ms)
            for offset, row in rows.items()
        } == {
            offset: (m.key, m.value, m.headers, m.timestamp_ms)
            for (index, offset), m in written.items()
            if index == partition
        }


def test_compacted(broker: BrokerProcess, jvm: Jvm) -> None:
    topic = "t-compacted"
    settings = {"cleanup.policy": "compact", "remote.storage.enable": "false"}
    written = write(broker, jvm, topic, settings)
    again = [replace(each, value=b"again") for key, each in written.items() if key[1] % 3 == 0]
    for index in range(len(WRITERS)):
        some = [each for each in again if each.partition == index]
        offsets = PRODUCERS["librdkafka"](broker.bootstrap, topic, some, CODECS[index % 5])
        written.update({(index, at): each for at, each in zip(offsets, some, strict=True)})
    ends = ends_of(written)
    close_segments(broker, topic)
    checkpoint = broker.data / "cleaner-offset-checkpoint"

    def is_clean() -> bool:
        found = decode_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
        return all(found.get((topic, index), 0) >= end for index, end in ends.items())

    wait_until("all partitions to be cleaned", is_clean, timeout_s=120)
    last = {(each.partition, each.key): place for place, each in sorted(written.items())}
    kept = {place: written[place] for place in last.values()}
    assert len(kept) < len(written)
    assert java_read(jvm, broker.bootstrap, topic, ends) == kept
    broker.stop()  # It would go on replacing files under the tool.
    check_files(broker, jvm, topic)
