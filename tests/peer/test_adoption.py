"""A data directory that Apache Kafka has written, taken over by a broker of ours that goes on with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ds.protocol.messages import MetadataRequest
from tests.apache_kafka import ApacheKafka
from tests.integration.raw_client import RawClient
from tests.peer.log_writers import consume, produce, produce_transactions
from tests.processes import BrokerProcess

pytestmark = [pytest.mark.jars, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUP = "readers"


def fill(bootstrap: str) -> None:
    """Topics with settings of their own, every codec, transactions, a group in the midst, a topic that is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("codecs", 2, 1, config={"segment.bytes": str(1 << 20)}),
        NewTopic("state-1", 1, 1, config={"cleanup.policy": "compact"}),
        NewTopic("pay", 1, 1),
        NewTopic("gone", 1, 1),
    ]
    for created in admin.create_topics(topics).values():
        created.result(120)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for value in range(500):
            producer.produce("codecs", b"%d" % value, codec, partition=value % 2)
        assert producer.flush(120) == 0
    produce(bootstrap, "state-1", range(50))
    produce_transactions(bootstrap, "pay")
    admin.delete_topics(["gone"])["gone"].result(120)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("codecs", 1, 333)], asynchronous=False)
    consumer.close()


def topics_of(bootstrap: str) -> dict[str, tuple[bytes, int]]:
    """Ids and numbers of partitions."""
    with RawClient(bootstrap) as client:
        found = client.ask(MetadataRequest(topics=None), 12).topics
    return {topic.name: (topic.topic_id, len(topic.partitions)) for topic in found}


def adopted(broker: BrokerProcess) -> str:
    command = broker.command()
    command.insert(command.index("broker") + 1, "adopt")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("clean", [True, False])
def test_consumers_and_producers_go_on(kafka_jars: Path, tmp_path: Path, clean: bool) -> None:
    kafka = ApacheKafka(kafka_jars, tmp_path / "kafka")
    kafka.start()
    try:
        fill(kafka.bootstrap)
        topics = topics_of(kafka.bootstrap)
        broker = BrokerProcess(tmp_path / "ours", {"node.id": 1, "log.dirs": kafka.data})
        running = broker.command()
        running.insert(running.index("broker") + 1, "adopt")
        refused = subprocess.run(running, capture_output=True, text=True, check=False, timeout=120)
        assert "is in use by another broker" in refused.stderr
    finally:
        kafka.stop() if clean else kafka.kill()
    said = adopted(broker)
    assert "5 topics, 6 logs of this broker" in said
    broker.start()
    try:
        assert topics_of(broker.bootstrap) == topics
        for partition in (0, 1):
            values = [v for _ in CODECS for v in range(500) if v % 2 == partition]
            assert read(broker.bootstrap, "codecs", partition, len(values)) == values
        assert consume(broker.bootstrap, "pay", 22) == list(range(10))
        assert consume(broker.bootstrap, "state-1", 50) == list(range(50))
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        (at,) = consumer.committed([TopicPartition("codecs", 1)], timeout=120)
        consumer.close()
        assert at.offset == 333
        produce(broker.bootstrap, "state-1", range(50, 60))
        produce_transactions(broker.bootstrap, "pay")
        assert consume(broker.bootstrap, "state-1", 60) == list(range(60))
        assert consume(broker.bootstrap, "pay", 44) == [*range(10), *range(10)]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert set(admin.list_topics(timeout=120).topics) == set(topics)
    finally:
        broker.stop()
    assert "Traceback" not in broker.log_file.read_text()
    assert not [path.name for path in kafka.data.iterdir() if "stray" in path.name]


def read(bootstrap: str, topic: str, partition: int, count: int) -> list[int]:
    """The first values of a partition, offsets in a row."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[int] = []
    while len(values) < count:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        assert message.offset() == len(values)
        values.append(int(message.value()))
    consumer.close()
    return values
