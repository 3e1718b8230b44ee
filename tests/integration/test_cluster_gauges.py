"""A cluster's gauges, under Kafka's names, while one broker is down and afterwards."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.apache_kafka import free_ports
from tests.integration.cluster_image import image_of, produce
from tests.processes import BrokerCluster, wait_until
from tests.topics import create_topic

SETTINGS = {
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 3_000,
    "replica.fetch.backoff.ms": 100,
    "auto.leader.rebalance.enable": "false",
}
TOPIC = "watched"
PARTITIONS = 3
MANAGER = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
Gauges = dict[tuple[str, ...], float]


def gauges(brokers: BrokerCluster, node_id: int) -> Gauges:
    """Samples by name and values of labels."""
    families = text_string_to_metric_families(brokers[node_id].metrics())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def total(brokers: BrokerCluster, name: str, *node_ids: int) -> float:
    return sum(gauges(brokers, node_id)[name,] for node_id in node_ids)


def test_gauges_tell_of_a_broker_that_is_down_and_back(tmp_path: Path) -> None:
    brokers = BrokerCluster(tmp_path, 3, SETTINGS)
    for broker in brokers.brokers.values():
        (broker.overrides["metrics.port"],) = free_ports(1)
    try:
        brokers.start()
        create_topic(brokers.bootstrap, TOPIC, partitions=PARTITIONS, replicas=3)
        produce(brokers, TOPIC, PARTITIONS)
        all_are_well(brokers)
        controller = image_of(brokers).controller_id
        down, other = (each for each in (1, 2, 3) if each != controller)
        moved = sum(
            each.leader == down for each in image_of(brokers).topics[TOPIC].partitions.values()
        )
        brokers[down].kill()
        one_is_down(brokers, controller, other, moved)
        produce(brokers, TOPIC, PARTITIONS)
        brokers.start()
        all_are_well(brokers)
        # Each expansion is counted by the leader that has asked for it, and so is nothing else.
        assert total(brokers, f"{MANAGER}isrexpands_total", controller, other) == PARTITIONS
        assert gauges(brokers, controller)[f"{CONTROLLER}preferredreplicaimbalancecount",] == moved
    finally:
        brokers.stop()


def all_are_well(brokers: BrokerCluster) -> None:
    """Three brokers live, and all replicas are in sync."""
    every = (1, 2, 3)
    wait_until(
        "all in sync", lambda: total(brokers, f"{MANAGER}underreplicatedpartitions", *every) == 0
    )
    wait_until(
        "followers at the end",
        lambda: all(
            value == 0
            for node_id in every
            for name, value in gauges(brokers, node_id).items()
            if name[0] in ("kafka_server_replicafetchermanager_maxlag",)
        ),
    )
    found = {node_id: gauges(brokers, node_id) for node_id in every}
    assert sum(each[f"{MANAGER}leadercount",] for each in found.values()) == PARTITIONS
    assert [each[f"{MANAGER}partitioncount",] for each in found.values()] == [PARTITIONS] * 3
    assert [each[f"{MANAGER}offlinereplicacount",] for each in found.values()] == [0] * 3
    assert sum(each[f"{CONTROLLER}activecontrollercount",] for each in found.values()) == 1
    controller = found[image_of(brokers).controller_id]
    assert controller[f"{CONTROLLER}activecontrollercount",] == 1
    assert controller[f"{CONTROLLER}activebrokercount",] == 3
    assert controller[f"{CONTROLLER}fencedbrokercount",] == 0
    assert controller[f"{CONTROLLER}globalpartitioncount",] == PARTITIONS
    assert controller[f"{CONTROLLER}offlinepartitionscount",] == 0


def one_is_down(brokers: BrokerCluster, controller: int, other: int, moved: int) -> None:
    """Metrics of the remaining two: exactly as many replicas as needed are in sync."""
    left = controller, other
    wait_until(
        "its end", lambda: gauges(brokers, controller)[f"{CONTROLLER}fencedbrokercount",] == 1
    )
    wait_until(
        "other leaders", lambda: total(brokers, f"{MANAGER}leadercount", *left) == PARTITIONS
    )
    for name in ("underreplicatedpartitions", "atminisrpartitioncount"):
        wait_until(name, lambda n=name: total(brokers, MANAGER + n, *left) == PARTITIONS)  # type: ignore[misc]
    assert total(brokers, f"{MANAGER}underminisrpartitioncount", *left) == 0
    found = gauges(brokers, controller)
    assert found[f"{CONTROLLER}activebrokercount",] == 2
    assert found[f"{CONTROLLER}offlinepartitionscount",] == 0
    assert found[f"{CONTROLLER}preferredreplicaimbalancecount",] == moved
    by_partition = {
        name[1:]: value
        for node_id in left
        for name, value in gauges(brokers, node_id).items()
        if name[0] == "kafka_cluster_partition_insyncreplicascount"
    }
    assert list(by_partition.values()) == [2.0] * PARTITIONS
