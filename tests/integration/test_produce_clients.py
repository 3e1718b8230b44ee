"""Producing to a real broker: librdkafka, kafka-python, raw frames; idempotence, codecs, crashes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import InitProducerIdRequest, MetadataRequest
from kafka_ds.records.batch import Codec
from tests.in_process import batch_of, fetch_request, produce_request, values_of
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, running_broker
from tests.requests import build

SETTINGS = {"remote.log.storage.system.enable": "false"}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker"), SETTINGS) as process:
        yield process


def produce(bootstrap: str, topic: str, values: list[bytes | None], **settings: Any) -> list[int]:
    """Produce with librdkafka; the offsets that were acknowledged, in order."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    given = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, **given})
    for value in values:
        producer.produce(topic, value, key=b"k", partition=0, on_delivery=delivered)
    assert producer.flush(120) == 0
    return offsets


def consume(bootstrap: str, topic: str, count: int, start: int = 0) -> list[bytes | None]:
    """Read a partition with librdkafka from an offset on."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "fetch.queue.backoff.ms": 5}
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 120
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 0.2):
            assert message.error() is None, message.error()
            assert message.offset() == start + len(values)
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_with_every_codec(broker: BrokerProcess, codec: str, idempotent: bool) -> None:
    topic = f"librdkafka-{codec}-{idempotent}"
    values: list[bytes | None] = [b"v" * (i % 300) for i in range(500)]
    settings = {"compression_type": codec, "enable_idempotence": idempotent}
    assert produce(broker.bootstrap, topic, values, **settings) == list(range(500))
    assert consume(broker.bootstrap, topic, 500) == values


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_with_every_codec(broker: BrokerProcess, codec: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as Partition

    topic = f"kafka-python-{codec}"
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all",
        linger_ms=2,
    )
    sent = [producer.send(topic, b"v" * i, key=b"k", partition=0) for i in range(100)]
    producer.flush(120)
    assert [each.get(10).offset for each in sent] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=10_000)
    consumer.assign([Partition(topic, 0)])
    consumer.seek_to_beginning()
    values = []
    for message in consumer:
        values.append(message.value)
        if len(values) == 100:
            break
    consumer.close()
    assert values == [b"v" * i for i in range(100)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(broker: BrokerProcess, acks: str) -> None:
    topic = f"acks-{acks}"
    produce(broker.bootstrap, topic, [b"a"] * 50, acks=acks)
    assert consume(broker.bootstrap, topic, 50) == [b"a"] * 50


def test_a_record_that_is_too_large_is_refused_and_the_next_is_not(broker: BrokerProcess) -> None:
    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 5_000_000, "linger.ms": 0}
    )
    for size in (2_000_000, 10):
        producer.produce(
            "large", b"v" * size, partition=0, on_delivery=lambda e, m: errors.append(e)
        )
        assert producer.flush(120) == 0
    assert [error.code() if error else None for error in errors] == [
        KafkaError.MSG_SIZE_TOO_LARGE,
        None,
    ]


def make_topic(client: RawClient, topic: str) -> None:
    request = build(MetadataRequest, topics=[{"name": topic}])
    response = client.ask(request, 9)
    assert response.topics[0].error_code == ErrorCode.NONE


def answer_to(client: RawClient, topic: str, batch: bytes) -> tuple[int, int]:
    response = client.ask(produce_request(topic, batch), 9)
    found = response.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def test_idempotence_frame_by_frame(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        make_topic(client, "raw")
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        producer_id = client.ask(request, 4).producer_id

        def batch(sequence: int) -> bytes:
            return batch_of(
                [b"a", b"b"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )

        for i in range(6):
            assert answer_to(client, "raw", batch(2 * i)) == (0, 2 * i)
        # The last five batches are known, and answered with the offset of the first time.
        for i in range(5, 0, -1):
            assert answer_to(client, "raw", batch(2 * i)) == (0, 2 * i)
        assert answer_to(client, "raw", batch(14)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert answer_to(client, "raw", batch(12)) == (0, 12)
        data = client.ask(fetch_request("raw", 0), 12).responses[0].partitions[0]
        assert len(values_of(data.records)) == 14


def test_requests_of_one_connection_are_answered_in_order(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        make_topic(client, "pipeline")
        request = produce_request("pipeline", batch_of([b"a"]))
        for _ in range(200):
            client.send(request, 9)
        offsets = [
            client.receive(request, 9).responses[0].partition_responses[0].base_offset
            for _ in range(200)
        ]
        assert offsets == list(range(200))


def test_without_acks_an_error_closes_the_connection_and_nothing_else(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        make_topic(client, "noacks")
        client.send(produce_request("noacks", batch_of([b"a"]), acks=0), 9)
        client.send(produce_request("nowhere", batch_of([b"a"]), acks=0), 9)
        assert client.is_closed_by_peer()
        data = other.ask(fetch_request("noacks", 0, max_wait_ms=2000), 12).responses[0]
        assert data.partitions[0].high_watermark == 1


@pytest.mark.parametrize("codec", list(Codec))
def test_damaged_batches_never_enter_the_log(broker: BrokerProcess, codec: Codec) -> None:
    topic = f"damaged-{codec.name}"
    whole = batch_of([b"v" * 50] * 5, codec=codec)
    with RawClient(broker.bootstrap) as client:
        make_topic(client, topic)
        for position in range(8, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x81
            code, offset = answer_to(client, topic, bytes(damaged))
            if 12 <= position < 16:  # The leader epoch is the broker's to say, under no checksum.
                assert code == ErrorCode.NONE
            else:
                assert code != ErrorCode.NONE, position
                assert offset == -1
        assert answer_to(client, topic, whole) == (0, 20)


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_acknowledged_survives_a_stop(tmp_path: Path, clean: bool) -> None:
    with running_broker(tmp_path, SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            first_id = client.ask(request, 4).producer_id
            make_topic(client, "raw")
            # Producers are forgotten a day after their last record's time.
            now_ms = int(time.time() * 1000)
            header = {"producer_id": first_id, "producer_epoch": 0, "timestamp": now_ms}
            batches = [batch_of([b"%d" % i], base_sequence=i, **header) for i in range(8)]
            for i, batch in enumerate(batches[:7]):
                assert answer_to(client, "raw", batch) == (0, i)
        assert (broker.stop() if clean else broker.kill()) is not None
        broker.start()
        with RawClient(broker.bootstrap) as client:
            wait_for_leader(client, "raw")
            # The broker knows the producer still: duplicates, gaps, and what comes next.
            assert answer_to(client, "raw", batches[6]) == (0, 6)
            assert answer_to(client, "raw", batches[7]) == (0, 7)
            assert client.ask(request, 4).producer_id > first_id
            data = client.ask(fetch_request("raw", 0), 12).responses[0].partitions[0]
            assert values_of(data.records) == [b"%d" % i for i in range(8)]


def wait_for_leader(client: RawClient, topic: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        data = client.ask(fetch_request(topic, 0), 12).responses[0].partitions[0]
        if data.error_code == ErrorCode.NONE:
            return
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        time.sleep(0.02)
    raise AssertionError("nobody leads")


def test_fsync_before_the_answer_holds_up_nobody_else(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.flush.interval.messages": 1}
    with running_broker(tmp_path, settings) as broker, RawClient(broker.bootstrap) as client:
        make_topic(client, "durable")
        for i in range(20):
            assert answer_to(client, "durable", batch_of([b"a"])) == (0, i)
        offsets = produce(broker.bootstrap, "durable", [b"b"] * 200, enable_idempotence=True)
        assert offsets == list(range(20, 220))
        data = client.ask(fetch_request("durable", 0), 12).responses[0].partitions[0]
        assert data.high_watermark == 220
