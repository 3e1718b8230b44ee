"""Shell: JoinGroup 0-9: a member joins a group, or stays in it through a rebalance.

- The answer comes when all known members have joined or the rebalance timeout is over; the first generation waits
  group.initial.rebalance.delay.ms for more members. The leader gets all members, the others an empty list.
- A member without a member id gets one: from version 4 on with MEMBER_ID_REQUIRED, and joins again with it (KIP-394).
- A static member (group_instance_id, v5+) without a member id takes over the place of its instance; requests with the
  former member id are FENCED_INSTANCE_ID. In a stable group this causes no rebalance.
- Refused: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL (another protocol
  type, or no protocol that all others have), GROUP_MAX_SIZE_REACHED. NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS
  as in all APIs of groups.

Versions: 1 the rebalance timeout by itself; 4 MEMBER_ID_REQUIRED; 5 static members (KIP-345); 6 flexible; 7 the
protocol type (KIP-559), and null for no protocol; 8 a reason, which is for logs (KIP-800); 9 skip_assignment
(KIP-814).
Left out: nothing. In a group of the consumer protocol (KIP-848) each member is answered at once.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.handlers.responses import then
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import JoinGroupRequest, JoinGroupResponse

FIRST_VERSION_WITHOUT_A_PROTOCOL = 7


@serves(JoinGroupRequest, versions="0-9")
def join_group(
    request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Admit the member, once the group's next generation begins."""
    answer: JoinGroupResponse | Awaitable[JoinGroupResponse] = context.broker.groups.submit(
        request.group_id, request, client_of(context)
    )
    if context.header.api_version >= FIRST_VERSION_WITHOUT_A_PROTOCOL:
        return answer
    return then(answer, _with_a_protocol)


def _with_a_protocol(response: JoinGroupResponse) -> JoinGroupResponse:
    """Old clients do not accept null here."""
    if response.protocol_name is None:
        response.protocol_name = ""
    return response
