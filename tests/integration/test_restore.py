"""All disks are lost, the lake is there: `python -m broker restore`, and everybody goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeProducersRequest, WriteTxnMarkersRequest
from kafka_ds.protocol.messages.transaction_admin import DescribeProducersTopicRequest
from kafka_ds.protocol.messages.transactions import WritableTxnMarker
from kafka_ds.topic.offsets import OffsetsTable, present
from spark_conf.system_views import duckdb_views
from tests import topics
from tests.bench.machine import children
from tests.clients.transactional_reads import read_committed
from tests.duck import connect
from tests.integration.raw_client import RawClient
from tests.integration.tier_broker import (
    QUICK,
    Feeder,
    assert_table_holds,
    create_topic,
    highest_offset_in_remote_storage,
    restore,
    rows,
)
from tests.integration.transactional_client import TransactionalClient
from tests.processes import BrokerCluster, BrokerProcess, wait_until
from tests.requests import build

TOPIC, UNTIERED, GROUP = "orders", "prices", "billing"
SETTINGS = {
    **QUICK,
    "lake.max.lag.ms": 300,
    "lake.offsets.interval.ms": 200,
    "offsets.topic.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "group.share.assignment.interval.ms": 0,
}


def image_of(lake: Path) -> MetadataImage:
    return MetadataLog(LocalStore(str(lake))).load()


def commit(broker: BrokerProcess, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    try:
        consumer.commit(
            offsets=[TopicPartition(topic, 0, offset, metadata="m")], asynchronous=False
        )
    finally:
        consumer.close()


def committed(broker: BrokerProcess, topic: str) -> TopicPartition:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=120)
    finally:
        consumer.close()
    return found


def wait_for_notes(lake: Path, offsets: dict[str, int], ends: dict[str, int]) -> None:
    """Wait until the lake has the committed offsets and the log ends."""

    def is_noted() -> bool:
        noted = present(OffsetsTable(LocalStore(str(lake))).read())
        groups = {row["topic"]: row["committed_offset"] for row in noted if row["kind"] == "offset"}
        logs = {row["topic"]: row["log_end_offset"] for row in noted if row["kind"] == "partition"}
        return groups == offsets and ends.items() <= logs.items()

    wait_until("the lake to be told of offsets", is_noted, timeout_s=120)


def assert_lags_are_sql(lake: Path) -> None:
    """The views show what was produced, committed and tiered."""
    with connect() as views:
        duckdb_views(views, lake)
        late = "SELECT topic, highest_offset_in_remote_storage, lag FROM tier_lag"
        # The rows are in the table a moment before the tier says so.
        wait_until(
            "FINISHED", lambda: views.execute(late).fetchall() == [(TOPIC, 2999, 0)], timeout_s=60
        )
        lags = "SELECT topic, lag, lag_in_lake FROM group_lag ORDER BY topic"
        assert views.execute(lags).fetchall() == [(TOPIC, 1766, 1766), (UNTIERED, 3, 0)]


def consumed(broker: BrokerProcess, end: int) -> list[int]:
    """The offsets that the group gets, from where it goes on to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    found: list[int] = []
    deadline = time.monotonic() + 120
    try:
        consumer.subscribe([TOPIC])
        while (not found or found[-1] < end - 1) and time.monotonic() < deadline:
            found += [offset_of(each) for each in consumer.consume(1000, 0.2)]
    finally:
        consumer.close()
    return found


def offset_of(message: Message) -> int:
    assert message.error() is None, message.error()
    offset = message.offset()
    assert offset is not None
    return offset


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, SETTINGS)
    yield process
    process.kill()


@pytest.mark.timeout(600)
def test_everybody_goes_on_after_all_disks_are_lost(broker: BrokerProcess) -> None:
    broker.start()
    create_topic(broker, TOPIC, retention_ms=-1)
    create_topic(broker, UNTIERED, remote_storage_enable="false")
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(3000))
    feeder.flush()
    other = Feeder(broker.bootstrap, UNTIERED)
    other.send(rows(10))
    other.flush()
    commit(broker, TOPIC, 1234)
    commit(broker, UNTIERED, 7)
    wait_until(
        "all to be tiered",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == 2999,
        timeout_s=120,
    )
    wait_for_notes(broker.lake, {TOPIC: 1234, UNTIERED: 7}, {TOPIC: 3000, UNTIERED: 10})
    assert_lags_are_sql(broker.lake)
    before = image_of(broker.lake)
    broker.kill()

    refused = restore(broker)
    assert refused.returncode == 1
    assert "is not empty: restore needs empty log.dirs" in refused.stderr

    shutil.rmtree(broker.data)
    done = restore(broker)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith(f"cluster {before.cluster_id}: broker 1 restored from ")
    assert said[1].startswith(f"{TOPIC}-0: offsets 0 to 2999; nothing is known to be lost")
    assert said[2].startswith(f"{UNTIERED}-0: not tiered: starts empty at 0; 10 offsets at least")
    assert said[3].startswith("groups: 1 with 2 committed offsets, as published at ")
    assert said[4:] == [
        f"group {GROUP}: {UNTIERED}-0: goes on at 0 and not at 7, which was not in the lake"
    ]

    broker.start()
    after = image_of(broker.lake)
    for name in (TOPIC, UNTIERED, "__consumer_offsets"):
        assert after.topics[name].topic_id == before.topics[name].topic_id
        assert after.topics[name].configs == before.topics[name].configs
    was, now = (each.topics[TOPIC].partitions[0] for each in (before, after))
    assert now.leader_epoch > was.leader_epoch
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_configs([resource])[resource].result(120)
    assert found["retention.ms"].value == "-1"

    # The group goes on where it was, what it reads first is in the lake alone; the same producer goes on, too.
    mine = committed(broker, TOPIC)
    assert (mine.offset, mine.metadata) == (1234, "m")
    assert committed(broker, UNTIERED).offset == 0
    feeder.send(rows(500, start=3000))
    feeder.flush(120)
    assert consumed(broker, 3500) == list(range(1234, 3500))
    wait_until(
        "the rest",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == 3499,
        timeout_s=120,
    )
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)


def share_member(broker: BrokerProcess) -> ShareConsumer:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP}
    member = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
    member.subscribe([TOPIC])
    return member


def acknowledge(broker: BrokerProcess, accepted: set[int]) -> set[int]:
    """Accept these records and release others, until all were there; the offsets that were delivered."""
    member = share_member(broker)
    delivered: set[int] = set()
    deadline = time.monotonic() + 120
    while not accepted <= delivered and time.monotonic() < deadline:
        for message in member.poll(0.5):
            offset = offset_of(message)
            delivered.add(offset)
            is_accepted = offset in accepted
            kind = AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.RELEASE
            member.acknowledge(message, kind)
        assert all(error is None for error in member.commit_sync().values())
    member.close()
    return delivered


@pytest.mark.timeout(600)
def test_a_share_group_goes_on_where_it_was(broker: BrokerProcess) -> None:
    broker.start()
    create_topic(broker, TOPIC, retention_ms=-1)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(100))
    feeder.flush()
    setting = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(120)
    done = {*range(10), 20}
    acknowledge(broker, done)
    shown = "SELECT topic, lag FROM share_group_state"

    def is_noted() -> bool:
        with connect() as views:
            made = duckdb_views(views, broker.lake)
            found = views.execute(shown).fetchall() if "share_group_state" in made else []
        return found == [(TOPIC, 89)]

    wait_until("the group's state in the lake", is_noted, timeout_s=120)
    wait_until(
        "all rows",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == 99,
        timeout_s=120,
    )
    broker.kill()
    shutil.rmtree(broker.data)
    restored = restore(broker)
    assert restored.returncode == 0, restored.stderr
    assert "share groups: the states of 1 partitions, as published at " in restored.stdout
    broker.start()
    assert acknowledge(broker, set(range(100)) - done) == set(range(100)) - done


def test_an_open_transaction_of_a_diskless_topic_is_named_and_can_be_ended(
    broker: BrokerProcess,
) -> None:
    """Its records come back, its coordinator does not: the report has what `kafka-transactions.sh abort` needs."""
    broker.start()
    create_topic(broker, TOPIC, lake_diskless="true", remote_storage_enable="true")
    client = TransactionalClient(broker.bootstrap, "x", TOPIC)
    client.begin()
    assert client.add(0) == ErrorCode.NONE
    assert client.write([b"open"]) == ErrorCode.NONE
    client.close()
    gone = [Path(f"/proc/{each}") for each in children(broker.pid)]
    broker.kill()
    # A worker that still begins would make folders.
    wait_until("the worker's end", lambda: not any(each.exists() for each in gone))
    shutil.rmtree(broker.data)
    restored = restore(broker)
    assert restored.returncode == 0, restored.stderr
    assert (
        f"{TOPIC}-0: a transaction of producer {client.producer_id} is open from offset 0"
        in restored.stdout
    )
    assert f"abort --topic {TOPIC} --partition 0 --start-offset 0" in restored.stdout
    broker.start()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce(TOPIC, b"later")
    assert producer.flush(120) == 0
    # The tool looks for the producer of this start offset, and has the partition's leader write a marker (KIP-664).
    with RawClient(broker.bootstrap) as raw:
        wanted = DescribeProducersTopicRequest(name=TOPIC, partition_indexes=[0])
        described = raw.ask(DescribeProducersRequest(topics=[wanted]), 0).topics[0].partitions[0]
        (found,) = (e for e in described.active_producers if e.current_txn_start_offset == 0)
        marker = build(
            WritableTxnMarker,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=max(found.coordinator_epoch, 0),
            transaction_result=False,
            topics=[{"name": TOPIC, "partition_indexes": [0]}],
        )
        answer = raw.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == [b"later"]


def test_a_lake_without_a_cluster_is_refused(broker: BrokerProcess) -> None:
    done = restore(broker)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("holds no cluster: nothing to restore")
    assert not broker.data.exists()
    assert not list(broker.lake.rglob("*.json"))


def test_a_restored_broker_leads_what_another_led_last(tmp_path: Path) -> None:
    """Its session has not ended when the restore begins."""
    settings = {
        **SETTINGS,
        "remote.log.storage.system.enable": "true",
        "broker.session.timeout.ms": 15_000,
    }
    brokers = BrokerCluster(tmp_path, 2, settings)
    try:
        brokers.start()
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])])[TOPIC].result(120)
        feeder = Feeder(brokers.bootstrap, TOPIC)
        feeder.send(rows(200))
        feeder.flush(120)
        lake = tmp_path / "lake"
        wait_until(
            "all to be tiered", lambda: highest_offset_in_remote_storage(lake, TOPIC, 0) == 199
        )
        for each in brokers.brokers.values():
            each.stop()
            shutil.rmtree(each.data)
        assert image_of(lake).topics[TOPIC].partitions[0].leader == 2
        done = restore(brokers[1])
        assert done.returncode == 0, done.stderr
        assert f"{TOPIC}-0: offsets 0 to 199" in done.stdout
    finally:
        for each in brokers.brokers.values():
            each.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_brokers_are_restored_one_after_the_other(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "remote.log.storage.system.enable": "true",
        "offsets.topic.replication.factor": 3,
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
    }
    brokers = BrokerCluster(tmp_path, 3, settings)
    try:
        brokers.start()
        lake = tmp_path / "lake"
        for topic, factor in ((TOPIC, 3), ("alone", 1)):
            topics.create_topic(brokers.bootstrap, topic, partitions=3, replicas=factor)
        feeders = [Feeder(brokers.bootstrap, topic) for topic in (TOPIC, "alone")]
        for feeder in feeders:
            for partition in range(3):
                feeder.send(rows(200), partition)
            feeder.flush(120)
        commit(brokers[1], TOPIC, 150)
        for topic in (TOPIC, "alone"):
            for partition in range(3):
                wait_until(
                    f"{topic}-{partition} to be tiered",
                    lambda t=topic, p=partition: (
                        highest_offset_in_remote_storage(lake, t, p) == 199
                    ),
                    timeout_s=120,
                )
        wait_for_notes(lake, {TOPIC: 150}, {TOPIC: 200, "alone": 200})
        for each in brokers.brokers.values():
            each.kill()
            shutil.rmtree(each.data)
        said = ""
        for each in brokers.brokers.values():
            done = restore(each)
            assert done.returncode == 0, done.stderr
            said += done.stdout
        # Whose leader was stopped since, by then restored, came back once more with the next one.
        assert said.count("offsets 0 to 199; nothing is known to be lost") == 3 * 3 + 3
        assert said.count("groups: 1 with 1 committed offsets") == 3
        brokers.start()
        assert committed(brokers[2], TOPIC).offset == 150
        for feeder in feeders:
            for partition in range(3):
                feeder.send(rows(50, start=200), partition)
            feeder.flush(120)
            acknowledged = feeder.acknowledged
            for partition in range(3):
                assert sorted(acknowledged.partition(partition)) == list(range(250))
                wait_until(
                    f"the rest of {feeder.topic}-{partition}",
                    lambda t=feeder.topic, p=partition: (
                        highest_offset_in_remote_storage(lake, t, p) == 249
                    ),
                    timeout_s=120,
                )
            assert_table_holds(lake, feeder.topic, acknowledged)
    finally:
        for each in brokers.brokers.values():
            each.kill()


@contextlib.contextmanager
def frozen_worker(broker: BrokerProcess, seconds: float) -> Iterator[None]:
    """The tier's worker does not run for so long, as where others have all cores."""
    _, worker = children(broker.pid)
    os.kill(worker, signal.SIGSTOP)
    waking = threading.Timer(seconds, os.kill, (worker, signal.SIGCONT))
    waking.start()
    yield
    waking.join()


def test_a_clean_stop_publishes_what_was_committed(tmp_path: Path) -> None:
    """Offsets are written once an hour, and when the broker stops, even if its worker is slow."""
    broker = BrokerProcess(tmp_path, {**SETTINGS, "lake.offsets.interval.ms": 3_600_000}).start()
    try:
        create_topic(broker, TOPIC)
        feeder = Feeder(broker.bootstrap, TOPIC)
        feeder.send(rows(500))
        feeder.flush()
        wait_until(
            "all rows", lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == 499
        )
        commit(broker, TOPIC, 321)
        with frozen_worker(broker, 7.0):
            broker.stop()
        wait_for_notes(broker.lake, {TOPIC: 321}, {TOPIC: 500})
        # Begun on empty disks by mistake, and stopped: what is in the lake stays there.
        shutil.rmtree(broker.data)
        broker.start()
        broker.stop()
        wait_for_notes(broker.lake, {TOPIC: 321}, {})
        shutil.rmtree(broker.data)
        done = restore(broker)
        assert done.returncode == 0, done.stderr
        broker.start()
        assert committed(broker, TOPIC).offset == 321
    finally:
        broker.kill()
