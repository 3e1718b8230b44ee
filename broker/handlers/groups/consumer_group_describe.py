"""Shell: ConsumerGroupDescribe 0-1: what state are these groups of the consumer protocol in (KIP-848)?

- A group that does not exist, or is of the classic protocol: GROUP_ID_NOT_FOUND; clients then send DescribeGroups.
- On request the answer has the operations that the client may do, as in DescribeGroups.
- The coordinator's errors, for each group by itself.
- While group.version is 0: UNSUPPORTED_VERSION.

Versions: 1 which protocol each member speaks (KIP-1099).
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import NOT_ASKED
from broker.handlers.groups.common import client_of
from broker.handlers.groups.consumer_group_heartbeat import check_served
from broker.handlers.groups.describe_groups import group_operations
from broker.handlers.responses import settled
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupDescribeResponseDescribedGroup
from kafka_ds.protocol.refusal import refusal


@serves(ConsumerGroupDescribeRequest, versions="0-1")
async def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe the groups, each by itself."""
    check_served(context.node.metadata)
    groups = [await _describe(group_id, context) for group_id in request.group_ids]
    for group in groups:
        asked = request.include_authorized_operations and not group.error_code
        group.authorized_operations = (
            group_operations(context, group.group_id) if asked else NOT_ASKED
        )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(
    group_id: str, context: RequestContext
) -> ConsumerGroupDescribeResponseDescribedGroup:
    groups, client = context.node.groups, client_of(context)
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    if not group_id:
        return refusal(
            ConsumerGroupDescribeResponseDescribedGroup, group_id, ErrorCode.INVALID_GROUP_ID, None
        )
    answer = await settled(lambda: groups.submit(group_id, request, client))
    if isinstance(answer, KafkaError):
        return refusal(
            ConsumerGroupDescribeResponseDescribedGroup, group_id, answer.code, answer.message
        )
    described: ConsumerGroupDescribeResponseDescribedGroup = answer.groups[0]
    if not all(client.sees(name) for name in _topics_of(described)):
        message = "The group has topics that the client is not authorized to describe."
        return refusal(
            ConsumerGroupDescribeResponseDescribedGroup,
            group_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            message,
        )
    return described


def _topics_of(group: ConsumerGroupDescribeResponseDescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
