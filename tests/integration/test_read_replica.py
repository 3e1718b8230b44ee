"""A broker with `lake.read.only` beside a cluster: it serves what is in the lake, and changes nothing there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.metadata.log import MetadataLog, begins_with_snapshot
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.delta.store.local import LocalStore
from tests.integration.lake_copier import LakeCopier
from tests.integration.tier_broker import (
    QUICK,
    Feeder,
    broker_process,
    consume,
    create_topic,
    delete_topic,
    highest_offset_in_remote_storage,
    rows,
)
from tests.processes import BrokerProcess, wait_until

TOPIC, UNTIERED, GROUP = "orders", "prices", "billing"
SETTINGS = {
    **QUICK,
    "lake.max.lag.ms": 300,
    "lake.offsets.interval.ms": 200,
    "offsets.topic.num.partitions": 4,
}
REPLICA_ID = 101
PATIENCE_S = 120


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = broker_process(tmp_path / "writer", SETTINGS)
    yield broker
    broker.kill()


@pytest.fixture
def replica(writer: BrokerProcess, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(
        tmp_path / "replica",
        {
            "lake.uri": writer.lake,
            "lake.read.only": "true",
            "lake.read.only.interval.ms": 100,
            "node.id": REPLICA_ID,
        },
    )
    yield broker
    broker.kill()


def fill(writer: BrokerProcess) -> Feeder:
    """1,500 records, the last 500 of them by a later leader."""
    writer.start()
    create_topic(writer, TOPIC, retention_ms=-1)
    create_topic(writer, UNTIERED, remote_storage_enable="false")
    feeder = Feeder(writer.bootstrap, TOPIC)
    feeder.send(rows(1_000))
    feeder.flush()
    tiered(writer, 999)
    assert writer.stop() == 0
    writer.start()
    feeder.send(rows(500, start=1_000))
    feeder.flush()
    tiered(writer, 1_499)
    return feeder


def tiered(writer: BrokerProcess, last: int) -> None:
    wait_until(
        f"offset {last} in the lake",
        lambda: highest_offset_in_remote_storage(writer.lake, TOPIC, 0) == last,
        timeout_s=PATIENCE_S,
    )


def ended(replica: BrokerProcess, end: int, topic: str = TOPIC) -> None:
    """Wait until the replica's high watermark is this."""
    client = Consumer({"bootstrap.servers": replica.bootstrap, "group.id": "none"})
    try:
        wait_until(
            f"{topic} to end at {end}",
            lambda: client.get_watermark_offsets(TopicPartition(topic, 0), 10)[1] == end,
            timeout_s=PATIENCE_S,
        )
    finally:
        client.close()


def files(lake: Path) -> dict[str, tuple[int, int]]:
    return {
        str(each.relative_to(lake)): (each.stat().st_size, each.stat().st_mtime_ns)
        for each in lake.rglob("*")
        if each.is_file()
    }


@pytest.mark.timeout(600)
def test_a_replica_serves_what_is_in_the_lake(
    writer: BrokerProcess, replica: BrokerProcess
) -> None:
    feeder = fill(writer)
    consumer = Consumer({"bootstrap.servers": writer.bootstrap, "group.id": GROUP})
    consumer.commit(
        offsets=[TopicPartition(TOPIC, 0, 1_234, metadata="m"), TopicPartition(UNTIERED, 0, 0)],
        asynchronous=False,
    )
    consumer.close()
    assert writer.stop() == 0
    before = files(writer.lake)
    replica.start()

    assert consume(replica.bootstrap, TOPIC, 0, end=1_500) == feeder.acknowledged.partition(0)
    assert consume(
        replica.bootstrap, TOPIC, 0, start=900, end=1_200, isolation_level="read_uncommitted"
    ) == {n: row for n, row in feeder.acknowledged.partition(0).items() if 900 <= n < 1_200}

    admin = AdminClient({"bootstrap.servers": replica.bootstrap})
    shown = admin.list_topics(timeout=PATIENCE_S)
    assert list(shown.brokers) == [REPLICA_ID]
    assert shown.topics[TOPIC].partitions[0].leader == REPLICA_ID
    # Nothing of it is in the lake.
    assert shown.topics[UNTIERED].partitions[0].leader == -1
    where = TopicPartition(TOPIC, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 1_500)):
        (asked,) = admin.list_offsets({where: spec}).values()
        assert asked.result(PATIENCE_S).offset == offset
    at = rows(1, start=700)[0].timestamp_ms
    assert at is not None
    (asked,) = admin.list_offsets({where: OffsetSpec.for_timestamp(at)}).values()
    assert asked.result(PATIENCE_S).offset == 700

    (listed,) = admin.list_consumer_groups().result(PATIENCE_S).valid
    assert listed.group_id == GROUP
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
    assert described.state.name == "EMPTY"
    wanted = [ConsumerGroupTopicPartitions(GROUP)]
    committed = admin.list_consumer_group_offsets(wanted)[GROUP].result(PATIENCE_S)
    assert {(each.topic, each.offset) for each in committed.topic_partitions} == {
        (TOPIC, 1_234),
        (UNTIERED, 0),
    }
    assert files(writer.lake) == before
    assert replica.stop() == 0
    assert files(writer.lake) == before


@pytest.mark.timeout(600)
def test_a_replica_follows_the_cluster(writer: BrokerProcess, replica: BrokerProcess) -> None:
    feeder = fill(writer)
    replica.start()
    ended(replica, 1_500)
    # A reader beyond the lake's end waits for the records, and is not reset.
    waiting = Consumer(
        {"bootstrap.servers": replica.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    )
    waiting.assign([TopicPartition(TOPIC, 0, 1_600)])
    assert waiting.poll(2) is None
    feeder.send(rows(200, start=1_500))
    feeder.flush()
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 100 and time.monotonic() < deadline:
        for message in waiting.consume(100, 0.2):
            assert message.error() is None, message.error()
            found.append(message.offset() or 0)
    waiting.close()
    assert found == list(range(1_600, 1_700))
    assert consume(replica.bootstrap, TOPIC, 0, end=1_700) == feeder.acknowledged.partition(0)

    create_topic(writer, "later", retention_ms=-1)
    later = Feeder(writer.bootstrap, "later")
    later.send(rows(10))
    later.flush()
    ended(replica, 10, "later")
    delete_topic(writer, "later")
    admin = AdminClient({"bootstrap.servers": replica.bootstrap})
    wait_until(
        "the topic to go",
        lambda: "later" not in admin.list_topics(timeout=PATIENCE_S).topics,
        timeout_s=PATIENCE_S,
    )
    assert replica.stop() == 0


@pytest.mark.timeout(600)
def test_a_replica_refuses_what_would_change_something(
    writer: BrokerProcess, replica: BrokerProcess
) -> None:
    fill(writer)
    replica.start()
    ended(replica, 1_500)
    failed: list[KafkaError] = []
    plain = Producer({"bootstrap.servers": replica.bootstrap, "log_level": 0})
    plain.produce(TOPIC, b"v", partition=0, on_delivery=lambda e, _: failed.append(e))
    assert plain.flush(PATIENCE_S) == 0
    assert [each.code() for each in failed] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    # Of one that numbers its batches it is the end.
    settings = {"bootstrap.servers": replica.bootstrap, "log_level": 0, "enable.idempotence": True}
    numbering = Producer(settings)
    with pytest.raises(KafkaException) as refused:
        wait_until("an error", lambda: bool(numbering.poll(0.1)), timeout_s=PATIENCE_S)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED

    admin = AdminClient({"bootstrap.servers": replica.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("new", 1)])["new"].result(PATIENCE_S)
    error = refused.value.args[0]
    assert error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert "lake.read.only=true" in error.str()

    consumer = Consumer({"bootstrap.servers": replica.bootstrap, "group.id": GROUP})
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + PATIENCE_S
    message = None
    while message is None and time.monotonic() < deadline:
        message = consumer.poll(1)
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    said = replica.log_file.read_text()
    assert said.count("refused JoinGroup of client rdkafka") == 1
    assert writer.running()


@pytest.mark.timeout(600)
def test_a_replica_of_a_copy_in_any_order_serves_a_prefix_and_in_the_end_all(
    writer: BrokerProcess, tmp_path: Path
) -> None:
    """In another region: objects are copied in any order while the cluster writes and lays its tables out again."""
    writer.overrides |= {"lake.maintenance.interval.ms": 500, "lake.checkpoint.interval": 5}
    feeder = fill(writer)
    with LakeCopier(writer.lake, tmp_path / "copy", Random(7)) as copier:
        replica = BrokerProcess(
            tmp_path / "replica",
            {
                "lake.uri": copier.target,
                "lake.read.only": "true",
                "lake.read.only.replicated": "true",
                "lake.read.only.interval.ms": 50,
                "node.id": REPLICA_ID,
            },
        )
        wait_until("metadata", lambda: has_metadata(copier.target), timeout_s=PATIENCE_S)
        replica.start()
        try:
            for number in range(8):
                feeder.send(rows(300, start=1_500 + 300 * number))
                feeder.flush()
                # What is there is read without an error, and whole.
                end = end_of(replica)
                read = consume(replica.bootstrap, TOPIC, 0, end=end) if end else {}
                assert read == {
                    n: row for n, row in feeder.acknowledged.partition(0).items() if n < end
                }
            tiered(writer, 3_899)
            ended(replica, 3_900)
            assert consume(replica.bootstrap, TOPIC, 0, end=3_900) == feeder.acknowledged.partition(
                0
            )
            assert replica.stop() == 0
        finally:
            replica.kill()
    assert copier.out_of_order > 10


def has_metadata(lake: Path) -> bool:
    store = ArrivedStore(LocalStore(str(lake)), is_beginning=begins_with_snapshot)
    return MetadataLog(store).load(begins=False).cluster_id is not None


def end_of(replica: BrokerProcess) -> int:
    client = Consumer({"bootstrap.servers": replica.bootstrap, "group.id": "none"})
    try:
        return client.get_watermark_offsets(TopicPartition(TOPIC, 0), 30)[1]
    except KafkaException:
        return 0  # The topic has not come yet.
    finally:
        client.close()


def test_a_replica_without_a_lake_is_refused(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"lake.read.only": "true"})
    with pytest.raises(RuntimeError, match="holds no cluster: a broker with lake.read.only=true"):
        broker.start()
    assert not broker.lake.exists()
