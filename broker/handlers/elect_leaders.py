"""Shell: ElectLeaders 0-2: the preferred leader leads again, or any that lives (KIP-183, KIP-460).

- A partition with a leader that lives needs no election: ELECTION_NOT_NEEDED. This broker alone has every replica, so
  that is the answer for each partition that is asked for by name; where all are asked for (null) none is listed.
- A partition without a leader: PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE where an unclean
  election was asked for.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION; an unknown kind of election: INVALID_REQUEST.

Versions: 1 unclean elections and an error of the whole answer; 2 flexible.
Left out: elections between brokers.
"""

from __future__ import annotations

from broker.cluster.events import NO_LEADER
from broker.cluster.image import MetadataImage
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import ElectLeadersRequest, ElectLeadersResponse
from kafka_ds.wire.messages.replicas import PartitionResult, ReplicaElectionResult

PREFERRED, UNCLEAN = 0, 1
_MESSAGES = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "No such topic or partition.",
}


def refuse(
    request: ElectLeadersRequest, code: ErrorCode, message: str | None
) -> ElectLeadersResponse:
    """The same error for every partition, and for the whole (v1+)."""
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=code, error_message=message)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


@serves(ElectLeadersRequest, versions="0-2", failure=refuse, forwarded=True)
def elect_leaders(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Tell that the leaders lead."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        message = f"Unknown election type {request.election_type}"
        return refuse(request, ErrorCode.INVALID_REQUEST, message)
    image = context.node.metadata
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _result(image, topic.topic, index, request.election_type)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _result(image: MetadataImage, topic: str, index: int, kind: int) -> PartitionResult:
    registration = image.partition(topic, index)
    if registration is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif registration.leader != NO_LEADER:
        code = ErrorCode.ELECTION_NOT_NEEDED
    elif kind == PREFERRED:
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return PartitionResult(partition_id=index, error_code=code, error_message=_MESSAGES.get(code))
