"""Java's own producer and consumer, with the functions that `tests.clients.adaptors` has for other clients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.clients.adaptors import TIMEOUT_S, Headers, Message
from tests.peer.jvm import Jvm

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
