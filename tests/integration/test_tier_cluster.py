"""Brokers as processes with one lake: leaders that die or freeze in the midst of a copy, and unclean elections."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.uri import open_store
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FetchRequest, MetadataRequest
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.topic.names import CLUSTER_METADATA
from tests.in_process import records_of
from tests.integration.raw_client import RawClient
from tests.integration.tier_broker import (
    QUICK,
    Feeder,
    assert_table_holds,
    highest_offset_in_remote_storage,
    rows,
    table,
)
from tests.processes import BrokerCluster, BrokerProcess, cluster, wait_until
from tests.requests import build

TOPIC = "orders"
PARTITIONS = 2
TIERED: Mapping[str, object] = {
    **QUICK,
    "remote.log.storage.system.enable": "true",
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 5_000,
    "lake.max.lag.ms": 200,
    "log.local.retention.bytes": 1,
    # The records' times are long past.
    "log.retention.ms": -1,
}
# Where leaders die, one after the other, whoever comes there first.
STEPS = ("before_commit", "after_commit")


def metadata(broker: BrokerProcess, topic: str = TOPIC) -> dict[int, Any]:
    with RawClient(broker.bootstrap) as client:
        request = build(MetadataRequest, topics=[{"name": topic}])
        found = client.ask(request, 12).topics[0].partitions
    return {each.partition_index: each for each in found}


def leader_of(broker: BrokerProcess, partition: int = 0, topic: str = TOPIC) -> int:
    found = metadata(broker, topic).get(partition)
    return -1 if found is None else int(found.leader_id)


def eventually(what: str, condition: Any) -> None:
    """Wait for it; brokers that come and go may refuse connections meanwhile."""

    def holds() -> bool:
        with contextlib.suppress(ConnectionError, TimeoutError):
            return bool(condition())
        return False

    wait_until(what, holds)


def read_at(broker: BrokerProcess, partition: int, end: int, topic: str = TOPIC) -> dict[int, Any]:
    """The values of offsets below `end` as this broker has them, whether it leads or follows (KIP-392)."""
    found: dict[int, Any] = {}
    offset = 0
    with RawClient(broker.bootstrap) as client:
        while offset < end:
            wanted = FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            request = build(
                FetchRequest,
                max_wait_ms=500,
                min_bytes=1,
                isolation_level=1,
                topics=[{"topic": topic, "partitions": [wanted]}],
            )
            (data,) = client.ask(request, 12).responses[0].partitions
            assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code)
            if not data.records:
                return found
            for record in records_of(data.records):
                if offset <= record.offset < end:
                    found[record.offset] = record.value
            offset = max(found) + 1
    return found


def assert_events_are_rows(lake: Path) -> None:
    """Each event of the cluster is a row, and no row is there twice, whoever was the controller."""
    log = DeltaLog(open_store(str(lake)), CLUSTER_METADATA)
    decided = set()
    for version in range(log.latest_version() + 1):
        ours = kafka_ds_info(log.read_version(version) or []) or {}
        kinds = [each.get("type") for each in ours.get("events", ())]
        decided |= {(version, number) for number, kind in enumerate(kinds) if kind != "Snapshot"}

    def made() -> list[tuple[int, int]]:
        events = pl.read_delta(str(lake / CLUSTER_METADATA)).filter(pl.col("kind") == "event")
        return list(events.select("version", "sequence").iter_rows())

    eventually("rows of all events", lambda: decided <= set(made()))
    assert len(made()) == len(set(made()))


def assert_all_agree(brokers: BrokerCluster, lake: Path, feeder: Feeder) -> None:
    """Table, and consumers from 0 on at each replica, have each acknowledged record once."""
    for partition in range(PARTITIONS):
        expected = {o: row.value for o, row in feeder.acknowledged.partition(partition).items()}
        end = max(expected) + 1
        assert sorted(expected) == list(range(end))
        eventually(
            "the lake",
            lambda partition=partition, end=end: (
                highest_offset_in_remote_storage(lake, TOPIC, partition) == end - 1
            ),
        )
        for broker in brokers.brokers.values():
            eventually(
                "a replica that has all",
                lambda broker=broker, partition=partition, end=end: (
                    len(read_at(broker, partition, end)) == end
                ),
            )
            assert read_at(broker, partition, end) == expected
    assert_table_holds(lake, TOPIC, feeder.acknowledged)


def create(brokers: BrokerCluster, topic: str = TOPIC, **settings: Any) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    new = NewTopic(topic, **(settings or {"num_partitions": PARTITIONS, "replication_factor": 3}))
    admin.create_topics([new])[topic].result(120)


def restart_the_dead(brokers: BrokerCluster) -> int:
    dead = [each for each in brokers.brokers.values() if not each.running()]
    for each in dead:
        each.kill()
    brokers.start()
    return len(dead)


def are_in_sync(brokers: BrokerCluster) -> bool:
    found = [metadata(each) for each in brokers.brokers.values()]
    return all(len(one.isr_nodes) == 3 for each in found for one in each.values())


@contextlib.contextmanager
def frozen(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.timeout(600)
def test_leaders_that_die_or_freeze_in_the_midst_of_a_copy_leave_each_record_once(
    tmp_path: Path,
) -> None:
    once = tmp_path / "once"
    once.mkdir()
    environment = {
        "KAFKA_DS_CRASH_AT": ",".join(STEPS),
        "KAFKA_DS_CRASH_ONCE": str(once),
        "KAFKA_DS_CRASH_WHO": "parent",
    }
    with cluster(tmp_path, 3, TIERED, environment) as brokers:
        lake = tmp_path / "lake"
        create(brokers)
        feeder = Feeder(brokers.bootstrap, TOPIC, acks="all", socket_timeout_ms=3_000)
        number = 0
        while len(list(once.iterdir())) < len(STEPS):
            for partition in range(PARTITIONS):
                feeder.send(rows(60, size=5_000, start=number), partition)
            number += 60
            with contextlib.suppress(AssertionError):
                feeder.flush(1.0)
            restart_the_dead(brokers)
        eventually(
            "all to be in sync", lambda: not restart_the_dead(brokers) and are_in_sync(brokers)
        )
        # One is away for longer than its session, in the midst of whatever it was copying, and comes back.
        feeder.send(rows(100, size=10_000, start=number))
        (victim,) = [each for n, each in brokers.brokers.items() if n == leader_of(brokers[1])]
        others = [each for each in brokers.brokers.values() if each is not victim]
        with frozen(victim):
            eventually(
                "another leader", lambda: leader_of(others[0]) not in (-1, victim_id(victim))
            )
            feeder.send(rows(100, size=10_000, start=number + 100))
            feeder.flush(120)
            eventually(
                "a copy of its successor's",
                lambda: (
                    highest_offset_in_remote_storage(lake, TOPIC, 0)
                    == max(feeder.acknowledged.partition(0))
                ),
            )
        feeder.flush(120)
        assert_all_agree(brokers, lake, feeder)
        assert_events_are_rows(lake)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.delete_topics([TOPIC])[TOPIC].result(120)
        eventually("a table that is cleared", lambda: table(lake, TOPIC).is_empty())
        assert_events_are_rows(lake)
    for broker in brokers.brokers.values():
        assert "Traceback" not in broker.log_file.read_text()


def victim_id(broker: BrokerProcess) -> int:
    return int(str(broker.overrides["node.id"]))


class Unclean:
    """A topic on brokers 2 and 3, only one of which is alive at a time; broker 1 is the controller."""

    def __init__(self, brokers: BrokerCluster, lake: Path) -> None:
        self.brokers = brokers
        self.lake = lake
        self.acknowledged: dict[int, bytes] = {}
        create(
            brokers,
            num_partitions=1,
            replica_assignment=[[2, 3]],
            config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        )

    def only(self, alive: int) -> None:
        """Keep only this broker alive, whatever records the other one has."""
        self.brokers[5 - alive].kill()
        if not self.brokers[alive].running():
            self.brokers[alive].start()
        eventually("its lead", lambda: leader_of(self.brokers[1]) == alive)

    def write(self, count: int, what: str) -> list[int]:
        """Write records one by one, acknowledged only by the leader; returns their offsets."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.brokers[1].bootstrap, "acks": "1"})

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())
            self.acknowledged[message.offset()] = message.value()

        for number in range(count):
            producer.produce(TOPIC, f"{what}-{number}".encode(), partition=0, on_delivery=delivered)
        assert producer.flush(120) == 0
        return offsets

    def wait_for_lake(self, end: int) -> None:
        eventually("the lake", lambda: highest_offset_in_remote_storage(self.lake, TOPIC, 0) == end)


@pytest.mark.timeout(600)
def test_who_is_elected_without_regard_goes_on_behind_the_lake(tmp_path: Path) -> None:
    """Broker 3 copies nothing while it leads; records that only it has are lost, those in the lake are not."""
    settings = {**TIERED, "log.segment.bytes": 64 << 20, "log.local.retention.bytes": -1}
    with cluster(tmp_path, 3, settings) as brokers:
        lake = tmp_path / "lake"
        brokers[3].stop()
        brokers[3].overrides["lake.max.lag.ms"] = -1
        topic = Unclean(brokers, lake)
        topic.only(2)
        assert topic.write(10, "first") == list(range(10))
        topic.wait_for_lake(9)
        # It has nothing; the lake ends at 9.
        topic.only(3)
        assert topic.write(60, "alone") == list(range(10, 70))
        # It has less than the other one, and another history from 10 on: the lake knows nothing of that.
        topic.only(2)
        assert topic.write(20, "second") == list(range(10, 30))
        topic.wait_for_lake(29)
        # It ends at 69, beyond the lake, and has other records from 10 on.
        topic.only(3)
        assert topic.write(5, "last") == list(range(30, 35))
        brokers[2].start()
        for offset in range(35, 70):
            del topic.acknowledged[offset]
        for broker in (brokers[2], brokers[3]):
            eventually(
                "all of it", lambda broker=broker: read_at(broker, 0, 35) == topic.acknowledged
            )
        said = brokers[1].log_file.read_text()
        for leader in (2, 3):
            assert f"Unclean leader election of 1 partition: {TOPIC}-0 (leader {leader})" in said
        found = table(lake, TOPIC)
        assert found["offset"].to_list() == list(range(30))
        assert dict(found.select("offset", "value").iter_rows()) == {
            offset: value for offset, value in topic.acknowledged.items() if offset < 30
        }
