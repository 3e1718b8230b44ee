"""Shell: OffsetForLeaderEpoch 2-4: where a leader epoch ends, so that a reader sees whether its log diverges.

- The answer is the largest known epoch up to the requested one, and the offset at which it ends; for the current epoch
  that is the end of the log; -1 and -1 if nothing is known (KIP-101, KIP-279).
- The current epoch in the request is checked first: FENCED_LEADER_EPOCH if it is old, UNKNOWN_LEADER_EPOCH if it is
  newer than this leader's (KIP-320).
- Partitions that are not led here: UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER. Only leaders answer, as in
  Kafka: a follower may be about to truncate its epochs.

Versions: 3 the asking replica, which changes nothing; 4 flexible.
"""

from __future__ import annotations

from broker.handlers.recovery import waits_for_recovery
from broker.registry import RequestContext, serves
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kafka_ds.protocol.messages.offsets import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def _read_by_consumer(request: OffsetForLeaderEpochRequest) -> list[tuple[str, int]]:
    if request.replica_id >= 0:
        return []
    return [(topic.topic, each.partition) for topic in request.topics for each in topic.partitions]


@serves(OffsetForLeaderEpochRequest, versions="2-4")
@waits_for_recovery(_read_by_consumer)
def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Answer where each epoch ends."""
    replicas = context.broker.replica_manager
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end(replicas, topic.topic, each) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end(
    replicas: ReplicaManager, topic: str, wanted: OffsetForLeaderPartition
) -> OffsetForLeaderEpochEndOffset:
    try:
        partition = replicas.get(topic, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
    except KafkaError as error:
        return OffsetForLeaderEpochEndOffset(error_code=error.code, partition=wanted.partition)
    epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return OffsetForLeaderEpochEndOffset(
        partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset
    )
