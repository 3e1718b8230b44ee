"""The three clients behind two functions each: produce records, read a partition from its beginning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiokafka
import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

TIMEOUT_S = 120
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """A record as a client gives and gets it; the timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    partition: int = 0


def librdkafka_produce(
    bootstrap: str,
    topic: str,
    messages: Sequence[Message],
    codec: str = "none",
    *,
    idempotent: bool = False,
) -> list[int]:
    """Offsets in the order of ``messages``."""
    offsets: dict[int, int] = {}

    def done(index: int) -> Callable[[object, object], None]:
        def delivered(error: object, message: object) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets[index] = message.offset()  # type: ignore[attr-defined]

        return delivered

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 10,
            "message.max.bytes": 11 << 20,
        }
    )
    for i, m in enumerate(messages):
        producer.produce(
            topic,
            key=m.key,
            value=m.value,
            headers=m.headers,
            timestamp=m.timestamp_ms,
            partition=m.partition,
            on_delivery=done(i),
        )
    assert producer.flush(TIMEOUT_S) == 0
    return [offsets[i] for i in range(len(messages))]


def librdkafka_read(
    bootstrap: str, topic: str, count: int, partition: int = 0, **settings: object
) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), timeout=1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                assert message.offset() == len(found)
                found.append(
                    Message(
                        message.key(),
                        message.value(),
                        message.headers() or [],
                        message.timestamp()[1],
                        partition,
                    )
                )
    finally:
        consumer.close()
    return found


def _settings(bootstrap: str, codec: str, idempotent: bool) -> dict[str, Any]:
    """Of a producer in Python."""
    return {
        "bootstrap_servers": bootstrap,
        "compression_type": None if codec == "none" else codec,
        "enable_idempotence": idempotent,
        "acks": "all",
        "linger_ms": 10,
        "max_request_size": 11 << 20,
    }


def kafka_python_produce(
    bootstrap: str,
    topic: str,
    messages: Sequence[Message],
    codec: str = "none",
    *,
    idempotent: bool = False,
) -> list[int]:
    producer = kafka.KafkaProducer(**_settings(bootstrap, codec, idempotent))
    try:
        sent = [producer.send(topic, **asdict(m)) for m in messages]
        return [future.get(TIMEOUT_S).offset for future in sent]
    finally:
        producer.close(timeout=TIMEOUT_S)


def kafka_python_read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Message]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    where = kafka.TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    found: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.poll(timeout_ms=1000).get(where, []):
                assert message.offset == len(found)
                headers = [(name, value) for name, value in message.headers]
                found.append(
                    Message(message.key, message.value, headers, message.timestamp, partition)
                )
    finally:
        consumer.close()
    return found


def aiokafka_produce(
    bootstrap: str,
    topic: str,
    messages: Sequence[Message],
    codec: str = "none",
    *,
    idempotent: bool = False,
) -> list[int]:
    async def work() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(**_settings(bootstrap, codec, idempotent))
        await producer.start()
        try:
            sent = [await producer.send(topic, **asdict(m)) for m in messages]
            return [(await future).offset for future in sent]
        finally:
            await producer.stop()

    return asyncio.run(asyncio.wait_for(work(), TIMEOUT_S * 2))


def aiokafka_read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Message]:
    async def work() -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        where = aiokafka.TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek(where, 0)
        found: list[Message] = []
        try:
            while len(found) < count:
                message = await consumer.getone()
                assert message.offset == len(found)
                found.append(
                    Message(
                        message.key,
                        message.value,
                        list(message.headers),
                        message.timestamp,
                        partition,
                    )
                )
        finally:
            await consumer.stop()
        return found

    return asyncio.run(asyncio.wait_for(work(), TIMEOUT_S * 2))


PRODUCERS = {
    "librdkafka": librdkafka_produce,
    "kafka-python": kafka_python_produce,
    "aiokafka": aiokafka_produce,
}
READERS = {
    "librdkafka": librdkafka_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
}
