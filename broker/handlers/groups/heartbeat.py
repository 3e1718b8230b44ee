"""Shell: Heartbeat 0-4: keeps a group member's session alive.

- REBALANCE_IN_PROGRESS: the member has to join again.
- Refused: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
- While the coordinator still reads its log the answer has no error, as in Kafka: all sessions begin again when the log
  is read, and an error would only make the member look for another coordinator.

Versions: 3 static members (KIP-345); 4 flexible.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import HeartbeatRequest, HeartbeatResponse


@serves(HeartbeatRequest, versions="0-4")
def heartbeat(
    request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Answer the state of the member's group."""
    try:
        answer: HeartbeatResponse | Awaitable[HeartbeatResponse] = context.broker.groups.submit(
            request.group_id, request, client_of(context)
        )
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()
        raise
    return answer
