"""Shell: describes groups of the consumer protocol and share groups, for the API of each.

No handler is registered here.
"""

from __future__ import annotations

from typing import Any

from broker.handlers.common import NOT_ASKED
from broker.handlers.groups.common import client_of
from broker.handlers.groups.describe_groups import group_operations
from broker.handlers.responses import settled
from broker.registry import RequestContext
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ConsumerGroupDescribeRequest, ShareGroupDescribeRequest
from kafka_ds.protocol.refusal import refusal


async def described_groups(
    request: ConsumerGroupDescribeRequest | ShareGroupDescribeRequest,
    element: type[Any],
    context: RequestContext,
) -> list[Any]:
    """The response's element for each group of the request."""
    groups = [
        await _describe(type(request), group_id, element, context) for group_id in request.group_ids
    ]
    for group in groups:
        asked = request.include_authorized_operations and not group.error_code
        group.authorized_operations = (
            group_operations(context, group.group_id) if asked else NOT_ASKED
        )
    return groups


async def _describe(
    request: type[Any], group_id: str, element: type[Any], context: RequestContext
) -> Any:
    groups, client = context.node.groups, client_of(context)
    if not group_id:
        return refusal(element, group_id, ErrorCode.INVALID_GROUP_ID, None)
    answer = await settled(lambda: groups.submit(group_id, request(group_ids=[group_id]), client))
    if isinstance(answer, KafkaError):
        return refusal(element, group_id, answer.code, answer.message)
    described = answer.groups[0]
    if not all(client.sees(name) for name in _topics_of(described)):
        message = "The group has topics that the client is not authorized to describe."
        return refusal(element, group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
    return described


def _topics_of(group: Any) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        # Members of share groups have what the target says.
        for assignment in (member.assignment, getattr(member, "target_assignment", None))
        if assignment is not None
        for topic in assignment.topic_partitions
    }
