"""Shell: AssignReplicasToDirs 0: a broker reports the log directories of its replicas (KIP-858).

- Answered by the active controller, once it is durable: NOT_CONTROLLER elsewhere.
- STALE_BROKER_EPOCH for the whole request, if it is from an older incarnation. Each partition has its own answer:
  UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (the broker has no replica of it).

Versions: 0.
"""

from __future__ import annotations

from broker.controller.brokers import DirectoryAssignment
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from kafka_ds.protocol.messages.brokers import (
    AssignReplicasRequestDirectory,
    AssignReplicasResponseDirectory,
    AssignReplicasResponsePartition,
    AssignReplicasResponseTopic,
)


@serves(AssignReplicasToDirsRequest, versions="0", internal=True, pipelined=True)
async def assign_replicas_to_dirs(
    request: AssignReplicasToDirsRequest, context: RequestContext
) -> AssignReplicasToDirsResponse:
    """Record where the replicas are."""
    wanted = [each for directory in request.directories for each in _assignments(directory)]
    errors = await context.broker.metadata_driver.decide(
        lambda c: c.assign_directories(request.broker_id, request.broker_epoch, wanted)
    )
    directories: dict[bytes, dict[bytes, list[AssignReplicasResponsePartition]]] = {}
    for each, error in errors.items():
        topics = directories.setdefault(each.directory, {})
        topics.setdefault(each.topic_id, []).append(
            AssignReplicasResponsePartition(partition_index=each.partition, error_code=error)
        )
    return AssignReplicasToDirsResponse(
        directories=[
            AssignReplicasResponseDirectory(
                id=directory,
                topics=[
                    AssignReplicasResponseTopic(topic_id=topic_id, partitions=partitions)
                    for topic_id, partitions in topics.items()
                ],
            )
            for directory, topics in directories.items()
        ]
    )


def _assignments(directory: AssignReplicasRequestDirectory) -> list[DirectoryAssignment]:
    return [
        DirectoryAssignment(
            directory=directory.id, topic_id=topic.topic_id, partition=partition.partition_index
        )
        for topic in directory.topics
        for partition in topic.partitions
    ]
