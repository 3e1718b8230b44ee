"""Shell: AlterPartitionReassignments 0-1, ListPartitionReassignments 0: replicas move between brokers (KIP-455).

- Answered by the active controller, Alter once it is durable; other brokers forward both.
- A move is accepted at once and ends when all new replicas are in sync; List shows the moves that go on. Null replicas
  cancel a move: NO_REASSIGNMENT_IN_PROGRESS if there is none, INVALID_REPLICA_ASSIGNMENT if only new replicas are in
  sync and unclean elections are not allowed.
- The replicas that the partition has already: no move and no error. No replicas, one twice, or unknown brokers:
  INVALID_REPLICA_ASSIGNMENT. Unknown: UNKNOWN_TOPIC_OR_PARTITION.

Versions: version 1 of Alter can forbid a change of the replication factor: INVALID_REPLICATION_FACTOR (KIP-860).
Left out: nothing.
"""

from __future__ import annotations

from broker.controller.draft import PartitionChangeResult
from broker.controller.reassignment import Reassignment
from broker.handlers.time_limit import within
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka_ds.protocol.messages.replicas import (
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@serves(AlterPartitionReassignmentsRequest, versions="0-1", forwarded=True)
async def alter(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Begin, change or cancel moves, or refuse with the reason."""
    may_change = request.allow_replication_factor_change
    wanted = [
        Reassignment(
            topic=topic.name,
            partition=each.partition_index,
            replicas=None if each.replicas is None else tuple(each.replicas),
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    decision = context.broker.metadata_driver.decide(
        lambda c: c.alter_reassignments(wanted, allow_replication_factor_change=may_change)
    )
    by_topic: dict[str, list[ReassignablePartitionResponse]] = {}
    for result in await within(request.timeout_ms, decision):
        by_topic.setdefault(result.topic, []).append(_answer(result))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change,
        responses=[
            ReassignableTopicResponse(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def _answer(result: PartitionChangeResult) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=result.partition, error_code=result.error, error_message=result.message
    )


@serves(ListPartitionReassignmentsRequest, versions="0", forwarded=True)
async def list_moves(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """List the moves."""
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, []).extend(topic.partition_indexes)
    decision = context.broker.metadata_driver.decide(lambda c: c.list_reassignments(wanted))
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for move in await within(request.timeout_ms, decision):
        by_topic.setdefault(move.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=move.partition,
                replicas=list(move.replicas),
                adding_replicas=list(move.adding_replicas),
                removing_replicas=list(move.removing_replicas),
            )
        )
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]
    )
