"""A bulk load on three brokers: replicas without a log lead it no worse than the one that committed it."""

from __future__ import annotations

from pathlib import Path

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.sink.options import parse_sink_options
from tests.integration.loads import (
    PARTITIONS,
    ROWS,
    assert_loaded,
    produce,
    sink_of,
    tasks,
)
from tests.processes import BrokerCluster, wait_until

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 5_000,
}


def test_a_follower_of_what_was_loaded_leads_behind_it(tmp_path: Path) -> None:
    brokers = BrokerCluster(tmp_path, overrides=SETTINGS).start()
    try:
        first = brokers[1]
        first.lake = tmp_path / "lake"
        sink = sink_of(first, "t")
        sink.commit([*tasks(sink)])
        assert_loaded(first, "t")
        ends = [produce(first, "t", n) for n in range(PARTITIONS)]
        assert sum(ends) == ROWS
        brokers[2].kill()
        options = parse_sink_options({"kafka.bootstrap.servers": first.bootstrap}, stream=False)

        def are_led_elsewhere() -> bool:
            with Cluster(options.producer.client) as cluster:
                found = Admin(cluster).describe_topics(["t"])["t"].partitions
                return all(each.leader not in (2, -1) for each in found)

        wait_until("other leaders", are_led_elsewhere, every_s=0.5)
        # Committed by a follower that had nothing but the lake's end.
        assert [produce(first, "t", n) for n in range(PARTITIONS)] == [end + 1 for end in ends]
    finally:
        brokers.stop()
