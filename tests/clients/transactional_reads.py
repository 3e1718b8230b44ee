"""Partition 0 from its beginning to its end, by each client, in each isolation level."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

import aiokafka
import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

TIMEOUT_S = 120.0

Read = Callable[[str, str], list[bytes]]


def _librdkafka(bootstrap: str, topic: str, *, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return values
    raise TimeoutError(f"{len(values)} values and no end")


def _kafka_python(bootstrap: str, topic: str, *, isolation: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    # With read_committed, too, this is how far the reader may get: nothing is open.
    end = consumer.end_offsets([where])[where]
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position(where) < end:
        assert time.monotonic() < deadline, f"{len(values)} values and no end"
        for records in consumer.poll(200).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def _aiokafka(bootstrap: str, topic: str, *, isolation: str) -> list[bytes]:
    async def run() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            where = aiokafka.TopicPartition(topic, 0)
            consumer.assign([where])
            end = (await consumer.end_offsets([where]))[where]
            await consumer.seek_to_beginning(where)
            values: list[bytes] = []
            while await consumer.position(where) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    values += [record.value for record in records]
            return values
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


_READERS = {"librdkafka": _librdkafka, "kafka-python": _kafka_python, "aiokafka": _aiokafka}

read_committed: Mapping[str, Read] = {
    name: partial(read, isolation="read_committed") for name, read in _READERS.items()
}
read_uncommitted: Mapping[str, Read] = {
    name: partial(read, isolation="read_uncommitted") for name, read in _READERS.items()
}
