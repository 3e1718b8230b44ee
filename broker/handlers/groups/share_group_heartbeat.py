"""Shell: ShareGroupHeartbeat 1: join, stay in, and leave a share group (KIP-932).

- Epoch 0 joins, -1 leaves. The answer has the member's epoch, and its assignment if that has changed or the request was
  a full one. Partitions are assigned once the share coordinator has a state for them, mostly with the second heartbeat.
- A member that names a topic that it may not describe is refused.
- Refused: INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: one; version 0 was a preview.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.common import check_share_groups, check_share_member
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


@serves(ShareGroupHeartbeatRequest, versions="1")
def share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    """Process a member's heartbeat; the answer has its assignment."""
    check_share_groups(context.broker.metadata)
    check_share_member(request.member_id)
    if not request.group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    answer: ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse] = (
        context.broker.groups.submit(request.group_id, request, client_of(context))
    )
    return answer
