"""Shell: ConsumerGroupHeartbeat 0-1: the consumer group protocol (KIP-848): join, stay, revoke, and leave a group.

- Epoch 0 joins, -1 leaves, -2 leaves for a moment (static members). The answer has the member's epoch, and its
  assignment if that has changed or the request was a full one.
- A group of the classic protocol becomes one of the consumer protocol when the first such member joins, if
  group.consumer.migration.policy allows it; else GROUP_ID_NOT_FOUND.
- A member that names a topic that it may not describe is refused; an expression does not match such topics.
- Refused: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
  GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
- While group.version is 0, or group.coordinator.rebalance.protocols lacks the protocol: UNSUPPORTED_VERSION.

Versions: 1 regular expressions, and members that bring their own ids (KIP-1082).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.common import check_consumer_groups
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@serves(ConsumerGroupHeartbeatRequest, versions="0-1")
def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Process a member's heartbeat; the answer has its assignment."""
    check_consumer_groups(context.broker)
    if not request.group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    answer: ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse] = (
        context.broker.groups.submit(request.group_id, request, client_of(context))
    )
    return answer
