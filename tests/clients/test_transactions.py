"""Transactions of every client: commit, abort, fencing; what readers of each isolation level see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.errors import KafkaError as KafkaPythonError

from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.processes import BrokerProcess
from tests.topics import create_topic

TIMEOUT_S = 120.0
# What each transaction writes, and whether it commits.
SCRIPT: list[tuple[list[bytes], bool]] = [
    ([b"a0", b"a1"], True),
    ([b"b0"], False),
    ([b"c0", b"c1", b"c2"], True),
    ([b"d0", b"d1"], False),
    ([b"e0"], True),
]
COMMITTED = [value for values, committed in SCRIPT if committed for value in values]
EVERYTHING = [value for values, _ in SCRIPT for value in values]


def with_librdkafka(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    for values, committed in SCRIPT:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0, "what is aborted must have been written"
        if committed:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def with_kafka_python(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    try:
        producer.init_transactions()
        for values, committed in SCRIPT:
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value, partition=0)
            producer.flush(TIMEOUT_S)
            if committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()


def with_aiokafka(bootstrap: str, topic: str, transactional_id: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        await producer.start()
        try:
            for values, committed in SCRIPT:
                await producer.begin_transaction()
                for value in values:
                    await producer.send_and_wait(topic, value, partition=0)
                if committed:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


CLIENTS: dict[str, Callable[[str, str, str], None]] = {
    "librdkafka": with_librdkafka,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_reader_of_what_is_committed_sees_just_that(
    broker: BrokerProcess, topic: str, client: str
) -> None:
    create_topic(broker.bootstrap, topic)
    CLIENTS[client](broker.bootstrap, topic, f"id-{topic}")
    for name, read in read_committed.items():
        assert read(broker.bootstrap, topic) == COMMITTED, name
    for name, read in read_uncommitted.items():
        assert read(broker.bootstrap, topic) == EVERYTHING, name


def test_an_open_transaction_holds_readers_back_until_it_ends(
    broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"id-{topic}"})
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"mine", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    plain.produce(topic, b"other", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    read = read_committed["librdkafka"]
    assert read(broker.bootstrap, topic) == []
    producer.commit_transaction(TIMEOUT_S)
    assert read(broker.bootstrap, topic) == [b"mine", b"other"]


def test_a_second_instance_fences_the_first(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"id-{topic}"}
    first, second = Producer(settings), Producer(settings)
    first.init_transactions(TIMEOUT_S)
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    assert first.flush(TIMEOUT_S) == 0
    second.init_transactions(TIMEOUT_S)
    first.produce(topic, b"too late", partition=0)
    with pytest.raises(KafkaException) as error:
        first.commit_transaction(TIMEOUT_S)
    assert error.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(TIMEOUT_S)
    assert read_committed["librdkafka"](broker.bootstrap, topic) == [b"of the second"]


def test_a_second_instance_of_another_client_fences_too(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    first = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"id-{topic}")
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"of the first", partition=0).get(TIMEOUT_S)
    with_librdkafka(broker.bootstrap, topic, f"id-{topic}")
    with pytest.raises(KafkaPythonError):
        first.commit_transaction()
    first.close(timeout=0)
    assert read_committed["librdkafka"](broker.bootstrap, topic) == COMMITTED


def committed_offset(bootstrap: str, topic: str, group: str) -> int:
    """What a new member of the group would begin with; it waits for transactions that are open."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    consumer.close()
    offset: int = found.offset
    return offset


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_group_count_when_the_transaction_commits(
    broker: BrokerProcess, topic: str, committed: bool
) -> None:
    source, target, group = f"{topic}-from", f"{topic}-to", f"group-{topic}"
    for name in (source, target):
        create_topic(broker.bootstrap, name)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(5):
        plain.produce(source, b"%d" % i, partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"id-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    copied = 0
    while copied < 5:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None, message
        producer.produce(target, message.value(), partition=0)
        copied += 1
    assigned = consumer.position([TopicPartition(source, 0)])
    producer.send_offsets_to_transaction(assigned, consumer.consumer_group_metadata(), TIMEOUT_S)
    if committed:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)
    consumer.close()
    expected = [b"%d" % i for i in range(5)] if committed else []
    assert read_committed["librdkafka"](broker.bootstrap, target) == expected
    assert committed_offset(broker.bootstrap, source, group) == (5 if committed else -1001)


def test_aiokafka_sends_offsets_with_its_transaction(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    group = f"group-{topic}"

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=f"id-{topic}"
        )
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"v", partition=0)
                where = aiokafka.TopicPartition(topic, 0)
                await producer.send_offsets_to_transaction({where: 1}, group)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    assert committed_offset(broker.bootstrap, topic, group) == 1


def test_kafka_python_sends_offsets_with_its_transaction(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    group = f"group-{topic}"
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"id-{topic}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"v", partition=0)
    offset = kafka.structs.OffsetAndMetadata(1, "", -1)
    producer.send_offsets_to_transaction({kafka.TopicPartition(topic, 0): offset}, group)
    producer.commit_transaction()
    producer.close()
    assert committed_offset(broker.bootstrap, topic, group) == 1
