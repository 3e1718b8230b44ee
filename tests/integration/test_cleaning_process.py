"""Compaction by a real broker and its child process: what clients read, also after a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafka_ds.segments.checkpoint import decode_offsets
from tests.processes import BrokerProcess, wait_until
from tests.topics import create_topic

TOPIC = "accounts"
EAGER = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": str(1 << 20),
    "segment.ms": "200",
}


@pytest.fixture
def broker(tmp_path: Path, free_port: int) -> Iterator[BrokerProcess]:
    overrides = {
        "log.cleaner.backoff.ms": 50,
        "log.cleaner.threads": 2,
        "log.segment.delete.delay.ms": 0,
        "metrics.port": free_port,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    process = BrokerProcess(tmp_path / "broker", overrides).start()
    yield process
    process.stop()


def create(broker: BrokerProcess, name: str = TOPIC, **more: str) -> None:
    config = {**EAGER, **{key.replace("_", "."): value for key, value in more.items()}}
    create_topic(broker.bootstrap, name, config)


def alter(broker: BrokerProcess, topic: str, changes: dict[str, str | None]) -> None:
    """Set the settings that have a value, delete those without."""
    kinds = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    entries = [
        ConfigEntry(name, value, incremental_operation=kinds[value is None])
        for name, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(120)


def read(broker: BrokerProcess, topic: str = TOPIC) -> list[tuple[int, bytes, bytes | None]]:
    """All that a committed reader gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(120)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def cleaned_offset(broker: BrokerProcess, topic: str = TOPIC) -> int:
    try:
        data = (broker.data / "cleaner-offset-checkpoint").read_bytes()
    except FileNotFoundError:
        return -1
    return decode_offsets(data).get((topic, 0), -1)


def end_offset(broker: BrokerProcess, topic: str = TOPIC) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])
    finally:
        consumer.close()


def wait_until_clean(broker: BrokerProcess, topic: str = TOPIC) -> None:
    end = end_offset(broker, topic)
    wait_until(f"{topic} to be clean", lambda: cleaned_offset(broker, topic) >= end)


def child_pids(broker: BrokerProcess) -> list[int]:
    """The processes that this broker has started to clean."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == broker.pid and b"broker.cleaner.main" in words:
            found.append(int(entry.name))
    return found


def test_a_reader_gets_the_last_value_of_each_key(broker: BrokerProcess) -> None:
    create(broker)
    random = Random(1)
    expected: dict[bytes, bytes | None] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    steady = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "teller", "linger.ms": 5}
    )
    steady.init_transactions(20)
    for round_ in range(12):
        for _ in range(1500):
            key = b"%d" % random.randrange(400)
            value = None if random.random() < 0.1 else b"%d:" % round_ + random.randbytes(150)
            expected[key] = value
            producer.produce(TOPIC, value, key)
            producer.poll(0)
        producer.flush(120)
        steady.begin_transaction()
        commits = round_ % 3 > 0
        for index in range(20):
            key, value = b"t%d" % index, b"round %d" % round_
            steady.produce(TOPIC, value, key)
            if commits:
                expected[key] = value
        if commits:
            steady.commit_transaction(20)
        else:
            steady.abort_transaction(20)
    wait_until_clean(broker)
    left = {key: value for key, value in expected.items() if value is not None}
    # The marks of deleted keys are dropped by the run that follows the one which has given them their time.
    producer.produce(TOPIC, b"last", b"last")
    producer.flush(120)
    left[b"last"] = b"last"
    wait_until_clean(broker)
    found = read(broker)
    assert {key: value for _, key, value in found} == left
    assert len(found) == len(left)
    assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)
    assert broker.metric("kafka_log_logcleanermanager_uncleanable_partitions_count") == 0
    broker.kill()
    broker.start()
    assert read(broker) == found


def test_a_record_without_a_key_is_refused(broker: BrokerProcess) -> None:
    create(broker)
    errors = []
    for codec in ("none", "gzip"):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.codec": codec})
        producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(120)
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD] * 2


def test_a_child_that_dies_of_a_log_leaves_it_alone(broker: BrokerProcess) -> None:
    """The log that was being cleaned is marked as uncleanable; others are cleaned, and nothing is lost."""
    broker.stop()
    broker.overrides["log.cleaner.io.max.bytes.per.second"] = (
        1000  # So that there is time to kill it.
    )
    broker.overrides["log.cleaner.threads"] = 1
    broker.start()
    create(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for index in range(2000):
        producer.produce(TOPIC, os.urandom(100), b"%d" % (index % 10))
    producer.flush(120)
    wait_until("a child to be at work", lambda: bool(child_pids(broker)))
    pid = child_pids(broker)[0]
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count"

    def kill() -> bool:
        for each in child_pids(broker):
            os.kill(each, signal.SIGKILL)
        return broker.metric(name) == 1

    wait_until("the log to be given up", kill)
    assert pid not in child_pids(broker)
    assert "as uncleanable until the broker restarts" in broker.log_file.read_text()
    assert len(read(broker)) == 2000
    broker.stop()
    del broker.overrides["log.cleaner.io.max.bytes.per.second"]
    broker.start()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(TOPIC, b"", b"0")
    producer.flush(120)
    wait_until_clean(broker)
    assert len(read(broker)) == 10
    assert not list((broker.data / f"{TOPIC}-0").glob("*.cleaned"))


def test_coordinators_forget_nothing(broker: BrokerProcess) -> None:
    create(broker)
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "teller"})
    producer.init_transactions(20)
    consumer = Consumer(config)
    for offset in range(1, 60):
        positions = [TopicPartition(TOPIC, 0, offset)]
        consumer.commit(offsets=positions, asynchronous=False)
        producer.begin_transaction()
        producer.produce(TOPIC, b"%d" % offset, b"k")
        producer.commit_transaction(20)
    for internal in ("__consumer_offsets", "__transaction_state"):
        eager = {name: EAGER[name] for name in ("segment.ms", "min.cleanable.dirty.ratio")}
        # As such a topic was made before there was compaction.
        alter(broker, internal, {**eager, "cleanup.policy": None})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 77)], asynchronous=False)
    before = end_offset(broker, "__consumer_offsets")
    wait_until_clean(broker, "__consumer_offsets")
    wait_until_clean(broker, "__transaction_state")
    assert len(read(broker, "__consumer_offsets")) < 10 < before
    assert len(read(broker, "__transaction_state")) < 10
    broker.kill()
    broker.start()
    (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], 20)
    assert committed.offset == 77
    consumer.close()
    # The producer goes on where it was, and one of its name fences it.
    producer.begin_transaction()
    producer.produce(TOPIC, b"on", b"k")
    producer.commit_transaction(20)
    second = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "teller"})
    second.init_transactions(20)
    producer.begin_transaction()
    producer.produce(TOPIC, b"fenced", b"k")
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    assert read(broker)[-1][2] == b"on"


def test_the_cleaner_is_set_while_it_runs(tmp_path: Path) -> None:
    """By its file it would clean one byte in a second, and look once an hour."""
    overrides = {"log.cleaner.backoff.ms": 3_600_000, "log.cleaner.io.max.bytes.per.second": 1}
    process = BrokerProcess(tmp_path / "broker", overrides).start()
    try:
        create(process)
        producer = Producer({"bootstrap.servers": process.bootstrap, "linger.ms": 5})
        for number in range(3_000):
            producer.produce(TOPIC, key=b"%d" % (number % 7), value=b"v" * 1000)
        producer.flush(60)
        set_broker(process, {"log.cleaner.backoff.ms": "50"})
        directory = process.data / f"{TOPIC}-0"
        wait_until("a run", lambda: "log cleaner" in process.log_file.read_text())
        set_broker(process, {"log.cleaner.io.max.bytes.per.second": "1.0E9"})
        set_broker(process, {"log.cleaner.threads": "2"})
        wait_until(
            "compaction",
            lambda: sum(each.stat().st_size for each in directory.glob("*.log")) < 2 << 20,
        )
    finally:
        process.stop()
    assert "Traceback" not in process.log_file.read_text()


def set_broker(process: BrokerProcess, changes: dict[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)
