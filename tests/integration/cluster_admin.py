"""What several tests use: create, partition, elect."""

from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    ElectLeadersRequest,
)
from kafka_ds.protocol.messages.replicas import (
    TopicPartitions,
)
from kafka_ds.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
)
from tests.in_process import Cluster, InProcess


async def create(cluster: Cluster, *assignments: list[int]) -> None:
    """The topic t with these replicas, known everywhere."""
    wanted = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
        for index, replicas in enumerate(assignments)
    ]
    topic = CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=wanted, configs=[]
    )
    answer = await cluster.others[0].ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0].error_message
    await cluster.until(
        "the topic everywhere",
        lambda: all("t" in each.node.metadata.topics for each in cluster.nodes.values()),
    )


def partition(broker: InProcess, index: int = 0) -> Any:
    return broker.node.metadata.topics["t"].partitions[index]


async def elect(broker: InProcess, kind: int, *indexes: int) -> dict[int, int]:
    wanted = [TopicPartitions(topic="t", partitions=list(indexes))] if indexes else None
    request = ElectLeadersRequest(topic_partitions=wanted, election_type=kind)
    answer = await broker.ask(request, 2)
    assert answer.error_code == ErrorCode.NONE
    return {
        each.partition_id: each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }
