"""`kafka-ds cluster balance` moves replicas and leaders in a cluster of processes, and goes on where one was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from tests.command_line import CommandLine
from tests.processes import BrokerCluster, wait_until
from tests.topics import create_topic

TOPIC, PARTITIONS = "orders", 6
RECORDS, SIZE = 1_500, 1_024  # A partition has 1.5 MB.
NO_SAMPLE = ("--sample-seconds", "0")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Three, of which the third came after the topic was made and filled."""
    found = BrokerCluster(tmp_path, 3)
    try:
        for node_id in (1, 2):
            found[node_id].start()
        create_topic(found.bootstrap, TOPIC, partitions=PARTITIONS, replicas=1)
        producer = Producer({"bootstrap.servers": found.bootstrap})
        for partition in range(PARTITIONS):
            for n in range(RECORDS):
                producer.produce(TOPIC, bytes(SIZE), str(n), partition=partition)
            producer.flush()
        yield found.start()
    finally:
        found.stop()


@pytest.fixture
def admin(brokers: BrokerCluster) -> Iterator[Admin]:
    with Cluster(parse_settings({"kafka.bootstrap.servers": brokers.bootstrap})) as cluster:
        yield Admin(cluster)


def leaders(admin: Admin) -> Counter[int]:
    return Counter(each.leader for each in admin.describe_topics([TOPIC])[TOPIC].partitions)


def throttles(admin: Admin) -> list[str]:
    """The throttles that are set on the topic or on a broker."""
    entries = [*admin.describe_topic_configs(TOPIC)]
    for node_id in (1, 2, 3):
        entries += admin.describe_broker_configs(node_id)
    return [
        f"{each.name}={each.value}"
        for each in entries
        if "replication.throttled" in each.name and each.value and each.source in (1, 2)
    ]


def ends(admin: Admin, brokers: BrokerCluster) -> int:
    found = CommandLine(brokers.bootstrap, Path.cwd()).json("topic", "describe", TOPIC)
    return sum(each["end_offset"] for each in found["partitions"])


def test_a_new_broker_gets_its_part(brokers: BrokerCluster, admin: Admin, tmp_path: Path) -> None:
    kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
    plan = kafka_ds.json("cluster", "balance", *NO_SAMPLE)
    assert [each["replicas_planned"] for each in plan["moves"]] == [[3], [3]]
    assert leaders(admin) == {1: 3, 2: 3}  # It was only shown.
    shown = kafka_ds.ok("cluster", "balance", "--execute", "--throttle", "50000000", *NO_SAMPLE)
    assert "2 partitions to reassign" in shown
    assert leaders(admin) == {1: 2, 2: 2, 3: 2}
    assert throttles(admin) == []
    assert ends(admin, brokers) == PARTITIONS * RECORDS
    # What a run leaves that was killed when the moves had nearly ended.
    admin.alter_broker_configs(1, {"leader.replication.throttled.rate": "1000"})
    assert throttles(admin)
    assert "nothing to move" in kafka_ds.ok("cluster", "balance", "--execute", *NO_SAMPLE)
    assert throttles(admin) == []


def test_a_run_that_was_killed_is_gone_on_with(
    brokers: BrokerCluster, admin: Admin, tmp_path: Path
) -> None:
    kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
    killed = kafka_ds.popen("cluster", "balance", "--execute", "--throttle", "1000", *NO_SAMPLE)
    try:
        wait_until("reassignments are under way", admin.list_partition_reassignments)
    finally:
        killed.kill()
        killed.communicate()
    assert throttles(admin)
    done = kafka_ds.run("cluster", "balance", "--execute", *NO_SAMPLE)
    assert done.status == 0, done.errors
    assert "are being reassigned already" in done.errors
    assert leaders(admin) == {1: 2, 2: 2, 3: 2}
    assert throttles(admin) == []
    assert ends(admin, brokers) == PARTITIONS * RECORDS
