"""Shell: AlterPartitionReassignments 0-1, ListPartitionReassignments 0: replicas move between brokers (KIP-455).

- With one broker there is nowhere to move to: the replicas that a partition has are accepted and nothing happens;
  others are INVALID_REPLICA_ASSIGNMENT; null replicas, which stop a move: NO_REASSIGNMENT_IN_PROGRESS.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION.
- The list of what moves is empty.

Versions: 1 of the first may forbid a change of the replication factor, which nothing here changes.
Left out: moving replicas.
"""

from __future__ import annotations

from broker.cluster.image import MetadataImage
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka_ds.wire.messages.replicas import (
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def refuse(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str | None
) -> AlterPartitionReassignmentsResponse:
    """The answer to a request that cannot be answered."""
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=message, responses=[])


@serves(AlterPartitionReassignmentsRequest, versions="0-1", failure=refuse, forwarded=True)
def alter(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Tell why nothing moves."""
    image = context.node.metadata
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_answer(image, topic.name, each) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def refuse_list(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str | None
) -> ListPartitionReassignmentsResponse:
    """The answer to a request that cannot be answered."""
    return ListPartitionReassignmentsResponse(error_code=code, error_message=message, topics=[])


@serves(ListPartitionReassignmentsRequest, versions="0", failure=refuse_list, forwarded=True)
def list_moves(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Tell that nothing moves."""
    return ListPartitionReassignmentsResponse(topics=[])


def _answer(
    image: MetadataImage, topic: str, wanted: ReassignablePartition
) -> ReassignablePartitionResponse:
    code, message = _judge(image, topic, wanted)
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )


def _judge(
    image: MetadataImage, topic: str, wanted: ReassignablePartition
) -> tuple[ErrorCode, str | None]:
    registration = image.partition(topic, wanted.partition_index)
    replicas = wanted.replicas
    if registration is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic or partition."
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
    if tuple(replicas) == registration.replicas:
        return ErrorCode.NONE, None
    unknown = [replica for replica in replicas if replica not in image.brokers]
    if not replicas:
        message = "The manual partition assignment includes an empty replica list."
    elif unknown:
        message = f"The manual partition assignment includes broker {unknown[0]}, which is unknown."
    else:
        message = "The manual partition assignment includes a broker more than once."
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
