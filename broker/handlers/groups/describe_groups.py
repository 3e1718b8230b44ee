"""Shell: DescribeGroups 0-6: what state are these groups in, and who is in them?

- A group that does not exist is described as Dead, from version 6 on with GROUP_ID_NOT_FOUND (KIP-1043).
- Only Stable groups have the chosen protocol and the members' metadata for it in the answer, as in Kafka.
- On request (v3+) the answer has the operations that the client may do (KIP-430).
- The coordinator's errors, for each group by itself.

Versions: 3 operations; 4 instance ids (KIP-345); 5 flexible; 6 errors of groups (KIP-1043).
Left out: nothing. Groups of the consumer protocol (KIP-848) have their own API; for this one they do not exist.
"""

from __future__ import annotations

from broker.handlers.common import NOT_ASKED
from broker.handlers.groups.common import client_of
from broker.handlers.responses import settled
from broker.metadata.acls import ResourceType
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import operations_for
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from kafka_ds.protocol.messages.group_admin import DescribedGroup
from kafka_ds.protocol.refusal import refusal


def group_operations(context: RequestContext, group_id: str) -> int:
    """What the client may do to a group, as bits by the operations' numbers (KIP-430)."""
    return operations_for(context, ResourceType.GROUP, group_id)


@serves(DescribeGroupsRequest, versions="0-6")
async def describe_groups(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Describe the groups, each by itself."""
    groups = [await _describe(group_id, context) for group_id in request.groups]
    for group in groups:
        asked = request.include_authorized_operations and not group.error_code
        group.authorized_operations = (
            group_operations(context, group.group_id) if asked else NOT_ASKED
        )
    return DescribeGroupsResponse(groups=groups)


async def _describe(group_id: str, context: RequestContext) -> DescribedGroup:
    groups, client = context.broker.groups, client_of(context)
    request = DescribeGroupsRequest(groups=[group_id])
    answer = await settled(lambda: groups.submit(group_id, request, client))
    if isinstance(answer, KafkaError):
        return refusal(DescribedGroup, group_id, answer.code, answer.message)
    described: DescribedGroup = answer.groups[0]
    return described
