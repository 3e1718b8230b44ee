"""What several tests use: log_bytes, are_equal, values, TopicWatcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafka_ds.protocol.messages import MetadataRequest
from kafka_ds.records.batch import iterate_headers, read_records
from tests.integration.raw_client import RawClient
from tests.processes import BrokerCluster
from tests.requests import build
from tests.topics import create_topic

TOPIC = "orders"


PARTITIONS = 3


SETTINGS = {
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "log.segment.bytes": 1 << 20,
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 5_000,
}


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


class TopicWatcher:
    """What the cluster says of the topic; asked of one broker, as a client may choose one that is frozen."""

    def __init__(self, brokers: BrokerCluster) -> None:
        self._brokers = brokers

    def create(self) -> None:
        create_topic(self._brokers.bootstrap, TOPIC, partitions=PARTITIONS, replicas=3)

    def _partitions(self, node_id: int) -> list[Any]:
        request = build(MetadataRequest, topics=[{"name": TOPIC}])
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
