"""Shell: LeaveGroup 0-5: removes members from a group.

- Each member has its own result: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. An operator names a static member by its
  instance id alone (v3+). In a group that does not exist all members are unknown.
- The remaining members rebalance. Requests of a removed member that still wait get UNKNOWN_MEMBER_ID.
- INVALID_GROUP_ID and the coordinator's errors concern the whole request.

Versions: 0-2 one member, whose error is the response's; 3 several (KIP-345); 4 flexible; 5 reasons, which are for logs
(KIP-800).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.handlers.responses import then
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from kafka_ds.protocol.messages.groups import MemberIdentity

FIRST_VERSION_WITH_MANY_MEMBERS = 3


@serves(LeaveGroupRequest, versions="0-5")
def leave_group(
    request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Remove the members."""
    alone = context.header.api_version < FIRST_VERSION_WITH_MANY_MEMBERS
    if alone:
        request.members = [MemberIdentity(member_id=request.member_id)]
    answer = context.broker.groups.submit(request.group_id, request, client_of(context))
    return then(answer, _of_one) if alone else then(answer, lambda response: response)


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    code = response.error_code or next((each.error_code for each in response.members), 0)
    return LeaveGroupResponse(error_code=code)
