"""Shell: SyncGroup 0-5: members get their assignments; the leader sends them all.

- The leader's assignments are written before any member gets one; the other members wait for them. In a stable group
  the answer comes at once, so a member that lost an answer can ask again.
- A member without an assignment from the leader gets an empty one.
- Members that joined and do not send this request within the rebalance timeout are removed.
- Refused: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
  INCONSISTENT_GROUP_PROTOCOL (protocol type and name, which version 5 must give).

Versions: 3 static members (KIP-345); 4 flexible; 5 protocol type and name (KIP-559).
Left out: nothing. In a group of the consumer protocol (KIP-848) each member is answered at once.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOLS = 5


@serves(SyncGroupRequest, versions="0-5")
def sync_group(
    request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Return the member's assignment, once the leader has sent it."""
    if context.header.api_version >= FIRST_VERSION_WITH_PROTOCOLS and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    answer: SyncGroupResponse | Awaitable[SyncGroupResponse] = context.broker.groups.submit(
        request.group_id, request, client_of(context)
    )
    return answer
