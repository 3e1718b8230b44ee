"""What several tests use: create, leader, log_of, agree and others."""

from __future__ import annotations

from broker.log.log import Log
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import AlterPartitionReassignmentsRequest, CreateTopicsRequest
from kafka_ds.protocol.messages.topics import (
    CreatableTopic,
)
from tests.in_process import Cluster, batch_of
from tests.requests import build
from tests.unit.replica.followed_logs import content

QUICK = {
    "replica_fetch_backoff_ms": 20,
    "replica_fetch_wait_max_ms": 100,
    # The records are of 2023.
    "log_retention_ms": -1,
}


async def create(cluster: Cluster, *replicas: int, name: str = "t", **configs: object) -> None:
    """Create a topic with one partition on these brokers; the first one leads."""
    topic = build(
        CreatableTopic,
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[{"partition_index": 0, "broker_ids": list(replicas)}],
        configs=[
            {"name": config.replace("_", "."), "value": str(value)}
            for config, value in configs.items()
        ],
    )
    answer = await cluster.controller.ask(CreateTopicsRequest(topics=[topic]), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
    await cluster.until("a leader", lambda: leader(cluster, name) is not None)


def leader(cluster: Cluster, topic: str = "t") -> LeaderPartition | None:
    found = [each.node.replica_manager.find(topic, 0) for each in cluster.nodes.values()]
    return next((each for each in found if each is not None), None)


def log_of(cluster: Cluster, node_id: int) -> Log:
    partition = cluster.nodes[node_id].node.replica_manager.replica("t", 0)
    assert partition is not None
    return partition.log


def agree(cluster: Cluster, *node_ids: int, topic: str = "t") -> bool:
    """Whether these replicas have the same records, and know them to be committed."""
    managers = [cluster.nodes[node_id].node.replica_manager for node_id in node_ids]
    replicas = [manager.replica(topic, 0) for manager in managers]
    if any(each is None or each.high_watermark < each.log.log_end_offset for each in replicas):
        return False
    return len({content(each.log) for each in replicas if each is not None}) == 1


async def produce(cluster: Cluster, count: int, *, node_id: int, size: int = 10) -> None:
    for number in range(count):
        batch = batch_of([b"%d" % number * size])
        answer = await cluster.nodes[node_id].produce("t", batch, acks=-1)
        assert answer.error_code == ErrorCode.NONE


def has_followed(cluster: Cluster, node_id: int, log: Log) -> bool:
    partition = cluster.nodes[node_id].node.replica_manager.replica("t", 0)
    return partition is not None and partition.log.log_end_offset == log.log_end_offset


async def reassign(cluster: Cluster, *replicas: int) -> None:
    request = build(
        AlterPartitionReassignmentsRequest,
        timeout_ms=10_000,
        name="t",
        partition_index=0,
        replicas=list(replicas),
    )
    answer = await cluster.controller.ask(request, 0)
    assert answer.error_code == ErrorCode.NONE
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer
