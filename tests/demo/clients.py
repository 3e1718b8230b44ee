"""The demo's Kafka clients: librdkafka produces and reads back, kafka-python reads back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo.flights import FlightRecord

TOPIC = "flights"
PARTITIONS = 4
IDLE_LIMIT_S = 30.0
PARTITION_EOF = KafkaError._PARTITION_EOF

# For each partition, what was acknowledged: the record at index i has offset i.
Acknowledged = list[list[FlightRecord]]


def create_topic(bootstrap: str) -> None:
    """Four partitions; segments of 1 MiB (the least that Kafka 4 takes), so that they roll dozens of times."""
    settings = {
        "segment.bytes": str(1 << 20),
        # The records are of 2013: by their timestamps they would be past any retention.
        "retention.ms": "-1",
        "segment.ms": str(10 * 365 * 86_400_000),
        # Of what is in the lake, nothing but the newest has to stay on the broker's disk.
        "local.retention.bytes": "1",
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1, config=settings)
    admin.create_topics([topic])[TOPIC].result(120)


def produce(
    bootstrap: str, records: Iterator[FlightRecord], progress: Callable[[int], None]
) -> Acknowledged:
    """Produce with acks=all and idempotence; every record must be acknowledged, in order per partition."""
    acknowledged: Acknowledged = [[] for _ in range(PARTITIONS)]
    count = 0

    def deliver(record: FlightRecord) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal count
            if error is not None:
                raise RuntimeError(f"not acknowledged: {error}")
            done = acknowledged[message.partition()]
            if message.offset() != len(done):
                raise RuntimeError(
                    f"offset {message.offset()} was acknowledged after {len(done) - 1}"
                )
            done.append(record)
            count += 1

        return delivered

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 50_000,
        }
    )
    for record in records:
        while True:
            try:
                producer.produce(
                    TOPIC,
                    key=record.key,
                    value=record.value,
                    timestamp=record.timestamp_ms,
                    headers=[("carrier", record.carrier)],
                    on_delivery=deliver(record),
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
        progress(count)
    producer.flush(120)
    return acknowledged


def _differs(record: FlightRecord, key: object, value: object, headers: object, ms: int) -> bool:
    expected = (record.key, record.value, [("carrier", record.carrier)], record.timestamp_ms)
    return (key, value, headers, ms) != expected


def read_with_librdkafka(bootstrap: str, acknowledged: Acknowledged) -> int:
    """Read all partitions from the beginning; the number of records, each compared with what was produced."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    expected = [0] * PARTITIONS
    at_end: set[int] = set()
    heard = time.monotonic()
    while len(at_end) < PARTITIONS:
        # consume() waits for as many as it was asked for, so it is not asked to wait long.
        messages = consumer.consume(10_000, timeout=0.2)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > IDLE_LIMIT_S:
            raise RuntimeError(f"librdkafka got nothing for {IDLE_LIMIT_S:g} s at {expected}")
        for message in messages:
            partition = message.partition()
            if message.error() is not None:
                if message.error().code() != PARTITION_EOF:
                    raise RuntimeError(f"librdkafka: {message.error()}")
                at_end.add(partition)
                continue
            offset = message.offset()
            if offset != expected[partition]:
                raise RuntimeError(
                    f"partition {partition}: {offset} came after {expected[partition]}"
                )
            expected[partition] += 1
            record = acknowledged[partition][offset]
            _, ms = message.timestamp()
            if _differs(record, message.key(), message.value(), message.headers(), ms):
                raise RuntimeError(
                    f"partition {partition} offset {offset} is not what was produced"
                )
    consumer.close()
    return sum(expected)


def read_with_kafka_python(bootstrap: str, acknowledged: Acknowledged) -> int:
    """The same with kafka-python."""
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_poll_records=20_000,
        max_partition_fetch_bytes=4 << 20,
    )
    partitions = [Partition(TOPIC, p) for p in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    expected = [0] * PARTITIONS
    total = sum(len(done) for done in acknowledged)
    while sum(expected) < total:
        polled = consumer.poll(timeout_ms=int(IDLE_LIMIT_S * 1000))
        if not polled:
            raise RuntimeError(f"kafka-python got nothing for {IDLE_LIMIT_S:g} s at {expected}")
        for partition, messages in polled.items():
            for message in messages:
                number = partition.partition
                if message.offset != expected[number]:
                    raise RuntimeError(
                        f"partition {number}: {message.offset} after {expected[number]}"
                    )
                expected[number] += 1
                record = acknowledged[number][message.offset]
                headers = [tuple(header) for header in message.headers]
                if _differs(record, message.key, message.value, headers, message.timestamp):
                    raise RuntimeError(f"partition {number} offset {message.offset} differs")
    consumer.close()
    return sum(expected)
