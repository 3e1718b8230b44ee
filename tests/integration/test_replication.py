"""Three brokers as processes: acknowledged records survive the leader's death, byte for byte, on the others."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ds.protocol.messages import MetadataRequest
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.records.batch import iterate_headers, read_records
from tests.integration.cluster_clients import Acknowledged, check_acknowledged
from tests.integration.raw_client import RawClient
from tests.processes import BrokerCluster, cluster, wait_until

TOPIC = "orders"
PARTITIONS = 3
SETTINGS = {
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "log.segment.bytes": 1 << 20,
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 5_000,
}


class Writer:
    """Produces with acks=all until told to stop; `acknowledged` are the values that brokers answered for."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[Acknowledged] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"{number}".encode() * 10
            self._producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0.002)
            number += 1
        assert self._producer.flush(120) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        wait_until(f"{more} more acknowledged", lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def log_bytes(brokers: BrokerCluster, node_id: int, partition: int) -> bytes:
    """All batches of a replica, whichever segments they are in."""
    folder = Path(brokers[node_id].data) / f"{TOPIC}-{partition}"
    data = bytearray()
    for path in sorted(folder.glob("*.log")):
        whole = path.read_bytes()
        for position, header in iterate_headers(whole):
            data += whole[position : position + header.size_in_bytes]
    return bytes(data)


def are_equal(brokers: BrokerCluster, node_ids: list[int]) -> bool:
    return all(
        len({log_bytes(brokers, node_id, index) for node_id in node_ids}) == 1
        for index in range(PARTITIONS)
    )


def values(data: bytes) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for position, header in iterate_headers(data):
        for record in read_records(data[position : position + header.size_in_bytes], 0, header):
            found[record.offset] = record.value
    return found


class Watcher:
    """What the cluster says of the topic; asked of one broker, as a client may choose one that is frozen."""

    def __init__(self, brokers: BrokerCluster) -> None:
        self._brokers = brokers

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._brokers.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(120)

    def _partitions(self, node_id: int) -> list[Any]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        with RawClient(self._brokers[node_id].bootstrap) as client:
            found: list[Any] = client.ask(request, 12).topics[0].partitions
        return found

    def partitions(self, node_id: int) -> list[tuple[int, Any]]:
        """As this broker knows them, by their numbers."""
        return [(each.partition_index, each) for each in self._partitions(node_id)]

    def leaders(self, node_id: int = 1) -> list[int]:
        """As this broker knows them."""
        return [each.leader_id for each in self._partitions(node_id)]

    def is_leading(self, node_id: int) -> bool:
        """Whether one of the others takes this broker for a leader."""
        others = [each for each in self._brokers.brokers if each != node_id]
        return any(node_id in self.leaders(other) for other in others)

    def all_in_sync(self) -> bool:
        """Whether all know that all replicas are in sync."""
        return all(
            len(each.isr_nodes) == 3
            for node_id in self._brokers.brokers
            for each in self._partitions(node_id)
        )


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_was_acknowledged_survives_its_leader(tmp_path: Path, how: str) -> None:
    with cluster(tmp_path, 3, SETTINGS) as brokers:
        watcher = Watcher(brokers)
        watcher.create()
        writer = Writer(brokers.bootstrap)
        try:
            writer.wait_for(200)
            victim = watcher.leaders()[0]
            getattr(brokers[victim], how)()
            others = [node_id for node_id in brokers.brokers if node_id != victim]
            wait_until("other leaders", lambda: not watcher.is_leading(victim))
            writer.wait_for(300)
            brokers[victim].start()
            writer.wait_for(300)
        finally:
            writer.stop()
        wait_until("the others are equal", lambda: are_equal(brokers, others))
        wait_until("the one that was away has caught up", lambda: are_equal(brokers, [1, 2, 3]))
        wait_until("all are in sync", watcher.all_in_sync)
        stored = [values(log_bytes(brokers, victim, index)) for index in range(PARTITIONS)]
        check_acknowledged(stored, writer.acknowledged)


ROUNDS = 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_survives_all_that_befalls_brokers(tmp_path: Path, seed: int) -> None:
    """One broker after the other is killed, stopped or frozen under load; at the end all replicas are equal."""
    chance = random.Random(seed)
    with cluster(tmp_path, 3, SETTINGS) as brokers:
        watcher = Watcher(brokers)
        watcher.create()
        writer = Writer(brokers.bootstrap)
        try:
            for _ in range(ROUNDS):
                writer.wait_for(100)
                victim = chance.choice(sorted(brokers.brokers))
                if chance.random() < 0.3:
                    os.kill(brokers[victim].pid, signal.SIGSTOP)
                    wait_until("other leaders", lambda v=victim: not watcher.is_leading(v))  # type: ignore[misc]
                    os.kill(brokers[victim].pid, signal.SIGCONT)
                else:
                    getattr(brokers[victim], chance.choice(["kill", "stop"]))()
                    writer.wait_for(chance.randint(1, 200))
                    brokers[victim].start()
                wait_until("all are in sync", watcher.all_in_sync)
        finally:
            writer.stop()
        wait_until("all have caught up", lambda: are_equal(brokers, [1, 2, 3]))
        stored = [values(log_bytes(brokers, 1, index)) for index in range(PARTITIONS)]
        check_acknowledged(stored, writer.acknowledged)
