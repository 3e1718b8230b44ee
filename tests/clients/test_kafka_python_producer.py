"""What kafka-python's own integration tests ask of its producer, asked of ours; transactions, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.adaptors import READERS
from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.processes import BrokerProcess
from tests.topics import create_topic

TIMEOUT_S = 120
Make = Callable[..., kafka.KafkaProducer]


@pytest.fixture
def producers(broker: BrokerProcess) -> Iterator[Make]:
    """Makes producers that are closed at the end."""
    made: list[kafka.KafkaProducer] = []

    def make(**settings: Any) -> kafka.KafkaProducer:
        made.append(kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=1)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_record_is_described_as_it_was_stored(
    producers: Make, broker: BrokerProcess, topic: str, codec: str | None
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    producer = producers(compression_type=codec)
    sent = producer.send(
        topic, key=b"a key", value=b"a value", headers=[("h", b"x")], timestamp_ms=99, partition=1
    )
    told = sent.get(TIMEOUT_S)
    assert (told.topic, told.partition, told.offset, told.timestamp) == (topic, 1, 0, 99)
    assert told.topic_partition == TopicPartition(topic, 1)
    assert (told.serialized_key_size, told.serialized_value_size) == (5, 7)
    before_ms = int(time.time() * 1000)
    told = producer.send(topic, value=b"now", partition=1).get(TIMEOUT_S)
    assert told.offset == 1
    assert before_ms - 1 <= told.timestamp <= int(time.time() * 1000)
    assert producer.partitions_for(topic) == {0, 1}
    message = READERS["librdkafka"](broker.bootstrap, topic, 2, 1)[0]
    assert (message.key, message.value, message.headers) == (b"a key", b"a value", [("h", b"x")])


def test_the_time_is_the_brokers_where_the_topic_says_so(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, {"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    told = producers().send(topic, b"v", timestamp_ms=1).get(TIMEOUT_S)
    assert before_ms <= told.timestamp <= int(time.time() * 1000)


def test_a_topic_is_made_by_being_written_to(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    producer = producers()
    sent = [producer.send(topic, b"%d" % i) for i in range(100)]
    told = [future.get(TIMEOUT_S) for future in sent]
    assert {each.partition for each in told} <= {0, 1}
    values = [
        message.value
        for partition in (0, 1)
        for message in READERS["kafka-python"](
            broker.bootstrap, topic, sum(each.partition == partition for each in told), partition
        )
    ]
    assert sorted(values, key=lambda v: int(v or b"-1")) == [b"%d" % i for i in range(100)]


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_an_idempotent_producer_keeps_its_order(
    producers: Make, broker: BrokerProcess, topic: str, in_flight: int
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = producers(
        enable_idempotence=True,
        max_in_flight_requests_per_connection=in_flight,
        batch_size=512,
        linger_ms=2,
    )
    sent = [producer.send(topic, b"%d" % i, partition=0) for i in range(500)]
    assert [future.get(TIMEOUT_S).offset for future in sent] == list(range(500))
    values = [message.value for message in READERS["aiokafka"](broker.bootstrap, topic, 500)]
    assert values == [b"%d" % i for i in range(500)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_each_kind_of_acknowledgement(
    producers: Make, broker: BrokerProcess, topic: str, acks: int | str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = producers(acks=acks, enable_idempotence=False)
    told = [producer.send(topic, b"%d" % i, partition=0) for i in range(20)]
    producer.flush(TIMEOUT_S)
    offsets = [future.get(TIMEOUT_S).offset for future in told]
    if acks != 0:  # without an acknowledgement nobody tells where it is
        assert offsets == list(range(20))
    values = [message.value for message in READERS["librdkafka"](broker.bootstrap, topic, 20)]
    assert values == [b"%d" % i for i in range(20)]


def test_large_batches_of_compressed_records(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = producers(compression_type="lz4", batch_size=1 << 20, linger_ms=50)
    values = [b"%06d" % i * 50 for i in range(5_000)]
    sent = [producer.send(topic, value) for value in values]
    producer.flush(TIMEOUT_S)
    assert sent[-1].get(TIMEOUT_S).offset == 4_999
    assert [m.value for m in READERS["librdkafka"](broker.bootstrap, topic, 5_000)] == values


def test_what_the_broker_refuses_is_told_with_its_reason(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, {"max.message.bytes": "500"})
    producer = producers(enable_idempotence=False, retries=0)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 1000).get(TIMEOUT_S)
    assert producer.send(topic, b"x").get(TIMEOUT_S).offset == 0
    with pytest.raises((InvalidTopicError, KafkaTimeoutError, ValueError)):
        producers(max_block_ms=1_000).send("no/such:name", b"x").get(TIMEOUT_S)


# -- transactions -------------------------------------------------------------------------------------


def test_of_two_transactions_the_committed_one_is_read(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = producers(transactional_id=f"id-{topic}")
    producer.init_transactions()
    for values, commits in (((b"1", b"2"), False), ((b"3", b"4"), True), ((), True)):
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=0).get(TIMEOUT_S)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert read_committed["kafka-python"](broker.bootstrap, topic) == [b"3", b"4"]
    assert read_uncommitted["kafka-python"](broker.bootstrap, topic) == [b"1", b"2", b"3", b"4"]


def test_what_is_not_flushed_is_flushed_by_the_commit(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    producer = producers(transactional_id=f"id-{topic}", linger_ms=5_000, batch_size=2_000)
    producer.init_transactions()
    producer.begin_transaction()
    values = [b"%d" % i for i in range(300)]
    sent = [producer.send(topic, value) for value in values]
    producer.commit_transaction()
    assert all(future.is_done for future in sent)
    assert read_committed["librdkafka"](broker.bootstrap, topic) == values


def test_the_offsets_of_a_group_go_with_the_transaction(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    first, second = (TopicPartition(topic, partition) for partition in (0, 1))
    group = f"g-{topic}"
    producer = producers(transactional_id=f"id-{topic}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"v", partition=0).get(TIMEOUT_S)
    producer.send_offsets_to_transaction({first: OffsetAndMetadata(1, "said so", 0)}, group)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({second: OffsetAndMetadata(1, "not so", 1)}, group)
    producer.abort_transaction()
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        told = admin.list_group_offsets(group)
    finally:
        admin.close()
    assert told == {group: {first: OffsetAndMetadata(1, "said so", 0)}}


def test_a_later_instance_fences_the_first(
    producers: Make, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    first = producers(transactional_id=f"id-{topic}")
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"lost", partition=0).get(TIMEOUT_S)
    second = producers(transactional_id=f"id-{topic}")
    second.init_transactions()  # aborts what the first had begun
    second.begin_transaction()
    second.send(topic, b"kept", partition=0).get(TIMEOUT_S)
    second.commit_transaction()
    with pytest.raises(KafkaError) as caught:
        first.send(topic, b"late", partition=0).get(TIMEOUT_S)
        first.commit_transaction()
    assert isinstance(caught.value, ProducerFencedError) or "epoch" in str(caught.value).lower()
    assert read_committed["librdkafka"](broker.bootstrap, topic) == [b"kept"]
