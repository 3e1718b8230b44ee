"""Three brokers on each side: ours on one lake, Apache Kafka's with KRaft. Both at their defaults but replicated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.apache_kafka import ApacheCluster
from tests.bench import machine
from tests.bench.sides import ApacheSide, OurSide
from tests.processes import BrokerCluster

BROKERS = 3
# What people set for three brokers.
REPLICATED: Mapping[str, object] = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": BROKERS - 1,
    "offsets.topic.replication.factor": BROKERS,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": BROKERS - 1,
}


class OurClusterSide(BrokerCluster):
    name = OurSide.name
    SETTINGS = REPLICATED
    launch = BrokerCluster.start

    def pids(self) -> list[int]:
        running = [each.pid for each in self.brokers.values() if each.running()]
        return [pid for each in running for pid in machine.children(each)]


class ApacheClusterSide(ApacheCluster):
    """Each broker and controller in one process."""

    name = ApacheSide.name
    launch = ApacheCluster.start

    def __init__(self, folder: Path) -> None:
        settings = dict.fromkeys(range(1, BROKERS + 1), REPLICATED)
        super().__init__(folder, settings, is_combined=True, new=ApacheSide)

    def pids(self) -> list[int]:
        return [each.pid for each in self.brokers.values()]
