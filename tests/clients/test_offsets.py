"""Positions: the beginning, the end, by timestamp, out of range; through each client's own calls."""

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.clients.adaptors import Message, librdkafka_produce
from tests.processes import BrokerProcess
from tests.topics import create_topic

BEGAN_MS = 1_700_000_000_000


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    create_topic(broker.bootstrap, topic)
    messages = [Message(None, b"%d" % i, [], BEGAN_MS + 10 * i) for i in range(100)]
    librdkafka_produce(broker.bootstrap, topic, messages[:50])
    librdkafka_produce(broker.bootstrap, topic, messages[50:], "zstd")
    return topic


def test_librdkafka_asks_for_watermarks_and_times(broker: BrokerProcess, filled: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    assert consumer.get_watermark_offsets(TopicPartition(filled, 0), timeout=120) == (0, 100)
    for at, expected in ((0, 0), (BEGAN_MS + 333, 34), (BEGAN_MS + 770, 77), (BEGAN_MS + 991, -1)):
        found = consumer.offsets_for_times([TopicPartition(filled, 0, at)], timeout=120)[0]
        assert found.offset == expected, at
    consumer.close()


def test_kafka_python_asks_for_watermarks_and_times(broker: BrokerProcess, filled: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    where = kafka.TopicPartition(filled, 0)
    assert consumer.beginning_offsets([where]) == {where: 0}
    assert consumer.end_offsets([where]) == {where: 100}
    found = consumer.offsets_for_times({where: BEGAN_MS + 333})[where]
    assert (found.offset, found.timestamp) == (34, BEGAN_MS + 340)
    assert consumer.offsets_for_times({where: BEGAN_MS + 991})[where] is None
    consumer.close()


def test_an_offset_out_of_range_is_said_to_be_one(broker: BrokerProcess, filled: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(filled, 0, 5000)])
    message = consumer.poll(120)
    assert message is not None and message.error() is not None
    assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    consumer.close()


def test_a_seek_into_the_middle_of_a_batch(broker: BrokerProcess, filled: str) -> None:
    """The broker returns the whole batch; the client begins at the offset asked for."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    for offset in (17, 50, 73, 99):
        consumer.assign([TopicPartition(filled, 0, offset)])
        message = consumer.poll(120)
        assert message is not None and message.error() is None
        assert (message.offset(), message.value()) == (offset, b"%d" % offset)
    consumer.close()
