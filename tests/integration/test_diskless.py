"""Diskless topics on real brokers: leaders are killed, their disks wiped, or they are paused; nothing is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from kafka_ds.topic.names import topic_table
from tests.apache_kafka import tool
from tests.processes import BrokerCluster, cluster, wait_until
from tests.s3_faults import bad_weather, faulty_way
from tests.s3_server import S3Server
from tests.topics import create_topic

TOPIC = "orders"
PARTITIONS = 4
SETTINGS: Mapping[str, object] = {
    "remote.log.storage.system.enable": "true",
    "log.segment.bytes": 1 << 20,
    "lake.local.grace.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "lake.diskless.linger.ms": 20,
}
DISKLESS = {"lake.diskless": "true", "remote.storage.enable": "true"}
PATIENCE_S = 60


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerCluster]:
    with cluster(tmp_path, overrides=SETTINGS) as started:
        yield started


def leaders(brokers: BrokerCluster) -> list[int]:
    """As a broker that lives knows them."""
    client = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    found = client.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions
    return [found[each].leader for each in range(PARTITIONS)]


def wait_for_other_leaders(brokers: BrokerCluster, node_id: int) -> None:
    def are_there() -> bool:
        try:
            return node_id not in leaders(brokers)
        except KafkaException:
            return False  # The client has asked one that cannot answer.

    wait_until("other leaders", are_there, timeout_s=PATIENCE_S)


def wipe(brokers: BrokerCluster, node_id: int) -> None:
    brokers[node_id].kill()
    shutil.rmtree(brokers[node_id].data)


class Writer:
    """An idempotent producer in a thread, and what was acknowledged to it."""

    def __init__(self, brokers: BrokerCluster, **settings: Any) -> None:
        self.acknowledged: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.failed: list[str] = []
        self.count = 0
        self._producer = Producer(
            {
                "bootstrap.servers": brokers.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                # Before an idempotent producer of librdkafka goes on after an error it waits for all brokers.
                "socket.timeout.ms": 10_000,
                "delivery.timeout.ms": PATIENCE_S * 1_000,
                "log_level": 0,
                **settings,
            }
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._ends.is_set():
            for _ in range(20):
                value = b"%08d" % self.count + bytes(500)
                self._producer.produce(
                    TOPIC, value, partition=self.count % PARTITIONS, on_delivery=self._delivered
                )
                self.count += 1
            self._producer.poll(0.01)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.partition()].append((message.offset(), message.value()))

    @property
    def acknowledged_count(self) -> int:
        return sum(len(each) for each in self.acknowledged.values())

    def wait_for(self, more: int) -> None:
        target = self.acknowledged_count + more
        wait_until(
            f"{more} more acknowledgements",
            lambda: self.acknowledged_count >= target,
            timeout_s=PATIENCE_S,
        )


def read(brokers: BrokerCluster, partition: int, **settings: Any) -> dict[int, bytes]:
    """All that a consumer gets of a partition, from its begin to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": f"g{time.time_ns()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
            **settings,
        }
    )
    found: dict[int, bytes] = {}
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            for message in consumer.consume(1_000, 1.0):
                if message.error() is None:
                    assert message.offset() not in found
                    found[message.offset()] = message.value()
                elif message.error().name() == "_PARTITION_EOF":
                    return found
        raise TimeoutError(f"partition {partition} has no end")
    finally:
        consumer.close()


def check(brokers: BrokerCluster, writer: Writer) -> None:
    """All that was acknowledged is there, once, at its offset, in the order in which it was sent."""
    assert not writer.failed
    for partition in range(PARTITIONS):
        found = read(brokers, partition)
        for offset, value in writer.acknowledged[partition]:
            assert found.get(offset) == value, f"{partition}: {offset}"
        numbers = [int(found[offset][:8]) for offset in sorted(found)]
        assert numbers == sorted(set(numbers)), "in order, without duplicates"


def test_leaders_are_killed_and_their_disks_wiped(brokers: BrokerCluster) -> None:
    create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
    with Writer(brokers) as writer:
        writer.wait_for(2_000)
        for node_id in (1, 2, 3):
            wipe(brokers, node_id)
            wait_for_other_leaders(brokers, node_id)
            writer.wait_for(4_000)
            brokers.start()
            writer.wait_for(4_000)
    check(brokers, writer)


@pytest.mark.slow
def test_all_brokers_are_killed_at_once_and_all_disks_wiped(brokers: BrokerCluster) -> None:
    create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
    with Writer(brokers) as writer:
        writer.wait_for(4_000)
        for _ in range(2):
            for node_id in (1, 2, 3):
                wipe(brokers, node_id)
            brokers.start()
            writer.wait_for(4_000)
    check(brokers, writer)


@pytest.mark.slow
def test_a_topic_with_replicas_becomes_diskless_while_it_is_written(brokers: BrokerCluster) -> None:
    """All brokers are killed as soon as it is, and nothing is on any disk: followers' logs are needed no more."""
    table = {"remote.storage.enable": "true", "min.insync.replicas": "2"}
    create_topic(brokers.bootstrap, TOPIC, table, partitions=PARTITIONS, replicas=3)
    with Writer(brokers) as writer:
        writer.wait_for(4_000)
        alter(brokers, "lake.diskless", "true")
        wait_until("one replica each", lambda: are_replicated(brokers, 1), timeout_s=PATIENCE_S)
        for node_id in (1, 2, 3):
            wipe(brokers, node_id)
        brokers.start()
        writer.wait_for(2_000)
    check(brokers, writer)


def test_a_diskless_topic_has_replicas_again_while_it_is_written(brokers: BrokerCluster) -> None:
    """A leader is killed as soon as it has followers, and its disk is gone: the table has what they lack."""
    settings = {**DISKLESS, "min.insync.replicas": "2"}
    create_topic(brokers.bootstrap, TOPIC, settings, partitions=PARTITIONS)
    with Writer(brokers) as writer:
        writer.wait_for(2_000)
        alter(brokers, "lake.diskless", "false")
        wait_until("two replicas", lambda: are_replicated(brokers, 2), timeout_s=PATIENCE_S)
        wipe(brokers, leaders(brokers)[0])
        brokers.start()
        writer.wait_for(2_000)
    check(brokers, writer)


def are_replicated(brokers: BrokerCluster, factor: int) -> bool:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    found = client.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions
    return all(len(found[each].replicas) == factor for each in range(PARTITIONS))


def test_deleted_records_stay_deleted_though_all_disks_are_wiped_at_once(
    brokers: BrokerCluster,
) -> None:
    """They are in no table yet, but in write-ahead logs, which the next leaders take over."""
    create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
    with Writer(brokers) as writer:
        writer.wait_for(400)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    places = [TopicPartition(TOPIC, each, 20 + each) for each in range(PARTITIONS)]
    for place, done in admin.delete_records(places, request_timeout=PATIENCE_S).items():
        assert done.result(PATIENCE_S).low_watermark == place.offset
    for node_id in (1, 2, 3):
        wipe(brokers, node_id)
    brokers.start()
    for place in places:
        found = read(brokers, place.partition, **{"auto.offset.reset": "earliest"})
        assert min(found) == place.offset


def test_a_leader_that_was_only_paused_acknowledges_nothing_any_more(
    brokers: BrokerCluster,
) -> None:
    create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
    with Writer(brokers) as writer:
        for node_id in (1, 2, 3):
            writer.wait_for(2_000)
            os.kill(brokers[node_id].pid, signal.SIGSTOP)
            try:
                wait_for_other_leaders(brokers, node_id)
                writer.wait_for(2_000)
            finally:
                os.kill(brokers[node_id].pid, signal.SIGCONT)
    check(brokers, writer)


@pytest.mark.slow
def test_transactions_are_whole_though_leaders_are_killed(brokers: BrokerCluster) -> None:
    """Each transaction writes its number to every partition; every third one is aborted."""
    create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "transactional.id": "x",
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    committed = []
    for number in range(90):
        if number % 30 == 15:
            wipe(brokers, number // 30 + 1)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
        if number % 3:
            producer.commit_transaction(PATIENCE_S)
            committed.append(b"%d" % number)
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        if number % 30 == 25:
            brokers.start()
    for partition in range(PARTITIONS):
        found = read(brokers, partition)
        assert [found[offset] for offset in sorted(found)] == committed


def test_the_store_is_slow_throttles_and_loses_answers(tmp_path: Path, s3_server: S3Server) -> None:
    """A twentieth of all requests fails in one way or another."""
    weather = bad_weather(5, delay_ms=20, throttled=0.03, lost=0.02)
    with faulty_way(s3_server.endpoint, weather) as way:
        settings = {**SETTINGS, "lake.uri": s3_server.address_for(tmp_path)}
        environment = {**s3_server.environment, "AWS_ENDPOINT_URL": way.endpoint}
        with cluster(tmp_path, overrides=settings, environment=environment) as brokers:
            create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
            with Writer(brokers) as writer:
                writer.wait_for(1_000)
                for node_id in (1, 2):
                    wipe(brokers, node_id)
                    wait_for_other_leaders(brokers, node_id)
                    writer.wait_for(2_000)
                    brokers.start()
                    writer.wait_for(2_000)
            check(brokers, writer)


def test_a_producer_writes_to_leaders_in_its_rack(tmp_path: Path, kafka_jars: Path) -> None:
    """KIP-1123: Java's producer of 4.4 takes a partition by its leader's rack, also when leaders have moved."""
    brokers = BrokerCluster(tmp_path, overrides=SETTINGS)
    racks = {1: "a", 2: "a", 3: "b"}
    for node_id, rack in racks.items():
        brokers[node_id].overrides["broker.rack"] = rack
    try:
        brokers.start()
        create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
        in_rack = {each for each, leader in enumerate(leaders(brokers)) if racks[leader] == "a"}
        assert 0 < len(in_rack) < PARTITIONS
        produce_from_rack_a(brokers, kafka_jars)
        first = [len(read(brokers, each)) for each in range(PARTITIONS)]
        [gone, *_] = (each for each in leaders(brokers) if racks[each] == "a")
        wipe(brokers, gone)
        wait_for_other_leaders(brokers, gone)
        produce_from_rack_a(brokers, kafka_jars)
        second = [len(read(brokers, each)) for each in range(PARTITIONS)]
    finally:
        brokers.stop()
    assert (sum(first), sum(second)) == (500, 1_000)
    for partition in range(PARTITIONS):
        assert (first[partition] > 0) == (partition in in_rack)
        assert (second[partition] > first[partition]) == (partition in in_rack)


def produce_from_rack_a(brokers: BrokerCluster, kafka_jars: Path) -> None:
    """500 records without keys, in many small batches: each batch may go to another partition."""
    settings = {"client.rack": "a", "partitioner.rack.aware": "true", "batch.size": 200}
    tool(
        kafka_jars,
        "org.apache.kafka.tools.ConsoleProducer",
        f"--bootstrap-server={brokers.bootstrap}",
        f"--topic={TOPIC}",
        *(f"--command-property={name}={value}" for name, value in settings.items()),
        typed="a record of a producer in rack a\n" * 500,
    )


def rows_of(lake: Path) -> int:
    """How many records the topic's table has."""
    try:
        return int(DeltaTable(str(lake / topic_table(TOPIC))).to_pyarrow_table().num_rows)
    except TableNotFoundError:
        return 0


def is_said(brokers: BrokerCluster, what: str) -> bool:
    """Whether a broker has logged this pattern."""
    return any(re.search(what, brokers[each].log_file.read_text()) for each in (1, 2, 3))


def test_a_table_that_has_lost_commits_is_not_gone_on_from(tmp_path: Path) -> None:
    """Only the table has the records, as an earlier take-over ended their log; then its newest versions are gone."""
    with cluster(tmp_path, overrides={**SETTINGS, "lake.max.lag.ms": 500}) as brokers:
        lake = Path(str(brokers[1].overrides["lake.uri"]))
        create_topic(brokers.bootstrap, TOPIC, DISKLESS, partitions=PARTITIONS)
        ends, versions, written = [], [], 0
        for _ in range(2):
            with Writer(brokers) as writer:
                writer.wait_for(1_000)
            written += writer.acknowledged_count
            wait_until("copies", lambda rows=written: rows_of(lake) == rows, timeout_s=PATIENCE_S)
            ends.append([writer.acknowledged[each][-1][0] for each in range(PARTITIONS)])
            versions.append(DeltaTable(str(lake / topic_table(TOPIC))).version())
        for is_again in (False, True):
            for node_id in (1, 2, 3):
                brokers[node_id].kill()
            for commit in (lake / topic_table(TOPIC) / "_delta_log").glob("*.json"):
                if is_again and int(commit.stem) > versions[0]:
                    commit.unlink()
            brokers.start()
            if not is_again:
                check_ends(brokers, ends[1])
        for partition, (first, last) in enumerate(zip(*ends, strict=True)):
            lost = f"{TOPIC}-{partition} yet: offsets {first + 1} to {last} were acknowledged"
            wait_until(lost, lambda lost=lost: is_said(brokers, lost), timeout_s=PATIENCE_S)
        alter(brokers, "unclean.leader.election.enable", "true")
        with Writer(brokers) as writer:
            writer.wait_for(100)
        assert not writer.failed
        assert writer.acknowledged[0][0][0] == ends[0][0] + 1


def check_ends(brokers: BrokerCluster, ends: Sequence[int]) -> None:
    for partition, end in enumerate(ends):
        assert max(read(brokers, partition)) == end


def alter(brokers: BrokerCluster, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
