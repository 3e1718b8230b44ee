"""Shell: ElectLeaders 0-2: elects the preferred leader, or any live replica (KIP-183, KIP-460).

- Answered by the active controller, once it is durable; other brokers forward it.
- A preferred election is for partitions that their preferred leader does not lead, an unclean one for partitions that
  have no leader. All others are ELECTION_NOT_NEEDED, or not listed if the request asks for all partitions (null).
- No replica can be elected: PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION; an unknown kind of election: INVALID_REQUEST.

Versions: 1 unclean elections and an error of the whole answer; 2 flexible.
Left out: nothing.
"""

from __future__ import annotations

from broker.controller.draft import PartitionChangeResult
from broker.controller.elections import ElectionType
from broker.handlers.time_limit import within
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from kafka_ds.protocol.messages.replicas import PartitionResult, ReplicaElectionResult
from kafka_ds.protocol.topic_partition import TopicPartition

_MESSAGES = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
}


@serves(ElectLeadersRequest, versions="0-2", forwarded=True)
async def elect_leaders(
    request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Hold the elections."""
    if request.election_type not in tuple(ElectionType):
        message = f"Unknown election type {request.election_type}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    kind, wanted = ElectionType(request.election_type), None
    if request.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, partition)
            for topic in request.topic_partitions
            for partition in topic.partitions
        ]
    decision = context.broker.metadata_driver.decide(lambda c: c.elect_leaders(kind, wanted))
    by_topic: dict[str, list[PartitionResult]] = {}
    for result in await within(request.timeout_ms, decision):
        by_topic.setdefault(result.topic, []).append(_answer(result))
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=partitions)
            for topic, partitions in by_topic.items()
        ]
    )


def _answer(result: PartitionChangeResult) -> PartitionResult:
    return PartitionResult(
        partition_id=result.partition,
        error_code=result.error,
        error_message=result.message or _MESSAGES.get(result.error),
    )
