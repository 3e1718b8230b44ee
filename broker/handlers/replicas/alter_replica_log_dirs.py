"""Shell: AlterReplicaLogDirs 1-2: replicas of this broker move to other log directories (KIP-113).

- The answer says that a move has begun, or that there is nothing to do; DescribeLogDirs shows its progress. A later
  request with another directory replaces the move; one with the directory where the log is cancels it.
- A path is absolute, as in DescribeLogDirs. Other paths, and directories that are not in log.dirs: LOG_DIR_NOT_FOUND.
  A failed directory, a replica in one, and any move while one has failed: KAFKA_STORAGE_ERROR, because a copy may be
  in there.
- A cordoned directory: INVALID_REPLICA_ASSIGNMENT (KIP-1066).
- A replica that is not on this broker: REPLICA_NOT_AVAILABLE; if it comes later, its log is made in this directory.
- A topic whose name is too long for the folder of a copy: INVALID_TOPIC_EXCEPTION.
- The request concerns this broker alone: clients send it to the broker that has the replica.

Versions: 2 flexible.
"""

from __future__ import annotations

import logging

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from kafka_ds.protocol.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirTopicResult,
)
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)


@serves(AlterReplicaLogDirsRequest, versions="1-2")
def alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Begin the moves, or refuse with the reason."""
    codes: dict[TopicPartition, ErrorCode] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition)
                try:
                    context.broker.moves.alter(
                        TopicPartition(topic.name, partition), directory.path
                    )
                    codes[key] = ErrorCode.NONE
                except KafkaError as error:
                    _LOGGER.warning(
                        "Unable to alter log dirs for %s to %s: %s", key, directory.path, error
                    )
                    codes[key] = error.code
    return _response(codes)


def _response(codes: dict[TopicPartition, ErrorCode]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (topic, partition), code in codes.items():
        result = AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=code)
        topics.setdefault(topic, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ]
    )
