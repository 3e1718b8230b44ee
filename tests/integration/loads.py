"""What several tests of bulk loads use: a load without Spark around it, and what it must have made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.partitioner.default import murmur2

from kafka_ds.delta.store.uri import open_store
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.load import LoadMessage, LoadSink, load_sink
from kafka_ds.sink.options import parse_sink_options
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.snapshot import TopicSnapshot
from tests import duck
from tests.processes import BrokerProcess, wait_until

PARTITIONS = 3
ROWS = 2_000


def keyed(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": [f"k{n}" for n in numbers], "value": [f"value {n}" for n in numbers]}
    )


def sink_of(
    broker: BrokerProcess, topic: str, columns: str = "key string, value string", **more: str
) -> LoadSink:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic,
        "load": "lake",
        "partitions": str(PARTITIONS),
        **more,
    }
    options = parse_sink_options(given, stream=False)
    assert options.load is not None
    types = dict(each.split() for each in columns.split(", "))
    return load_sink(options, options.load, check_columns(types, topic))


def tasks(sink: LoadSink, count: int = 2, rows: int = ROWS) -> list[LoadMessage]:
    """What so many tasks wrote, each its share of the rows."""
    return [sink.write(iter([keyed(range(n, rows, count))])) for n in range(count)]


def loaded(broker: BrokerProcess, topic: str, **more: str) -> list[LoadMessage]:
    sink = sink_of(broker, topic, **more)
    messages = tasks(sink)
    sink.commit([*messages])
    return messages


def consumed(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """Every message from offset 0 to the end, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": "false"}
    )
    places = [TopicPartition(topic, n, 0) for n in range(partitions)]
    ends: dict[int, int] = {}

    def is_led() -> bool:
        try:
            for each in places:
                ends[each.partition] = consumer.get_watermark_offsets(each)[1]
        except KafkaException:
            return False
        return True

    wait_until("leaders", is_led)
    consumer.assign(places)
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(consumer.consume(1000, 0.2))
        assert not any(each.error() for each in found)
        positions = {each.partition: each.offset for each in consumer.position(places)}
        return all(positions[n] == end or not end for n, end in ends.items())

    wait_until("every message", has_all)
    consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def plain(messages: Sequence[Any]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(each.partition(), each.offset(), each.key(), each.value()) for each in messages]


def in_table(broker: BrokerProcess, topic: str) -> list[tuple[Any, ...]]:
    with duck.connect() as engine:
        return engine.execute(
            f"SELECT partition, \"offset\", key, value FROM delta_scan('{broker.lake}/topics/{topic}') ORDER BY 1, 2"
        ).fetchall()


def assert_loaded(broker: BrokerProcess, topic: str, rows: int = ROWS) -> None:
    """Each row once, in the partition of its key, for a consumer as for an engine; and one event for each file."""
    found = plain(consumed(broker, topic))
    assert sorted(value for *_, value in found) == sorted(b"value %d" % n for n in range(rows))
    assert all(p == (murmur2(key) & 0x7FFFFFFF) % PARTITIONS for p, _, key, _ in found if key)
    assert in_table(broker, topic) == found
    store = open_store(str(broker.lake))
    snapshot = TopicSnapshot.load(store, topic)
    finished: dict[bytes, str] = {}
    events = RemoteLogEvents(store)
    for event in events.follow():
        if event.topic_id == snapshot.topic_id:
            finished[event.segment_id] = event.state.name
    named = [each for each in finished.values() if each == "COPY_SEGMENT_FINISHED"]
    assert len(named) == len(snapshot.files)


def produce(broker: BrokerProcess, topic: str, partition: int) -> int:
    placed: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        topic, b"after", partition=partition, on_delivery=lambda _, m: placed.append(m.offset())
    )
    producer.flush()
    return placed[0]
