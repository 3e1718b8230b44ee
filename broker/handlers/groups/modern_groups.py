"""Shell: describes groups of the consumer protocol, share groups and streams groups, for the API of each.

No handler is registered here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from broker.handlers.common import NOT_ASKED
from broker.handlers.groups.common import client_of
from broker.handlers.groups.describe_groups import group_operations
from broker.handlers.responses import settled
from broker.registry import RequestContext
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from kafka_ds.protocol.messages.streams_groups import StreamsGroupDescribeResponseDescribedGroup
from kafka_ds.protocol.refusal import refusal

DescribeRequest: TypeAlias = (
    ConsumerGroupDescribeRequest | ShareGroupDescribeRequest | StreamsGroupDescribeRequest
)


async def described_groups(
    request: DescribeRequest,
    element: type[Any],
    context: RequestContext,
) -> list[Any]:
    """The response's element for each group of the request."""
    groups = [
        await _describe(request, group_id, element, context) for group_id in request.group_ids
    ]
    for group in groups:
        asked = request.include_authorized_operations and not group.error_code
        group.authorized_operations = (
            group_operations(context, group.group_id) if asked else NOT_ASKED
        )
    return groups


async def _describe(
    request: DescribeRequest, group_id: str, element: type[Any], context: RequestContext
) -> Any:
    groups, client = context.broker.groups, client_of(context)
    if not group_id:
        return refusal(element, group_id, ErrorCode.INVALID_GROUP_ID, None)
    asked: DescribeRequest = type(request)(group_ids=[group_id])
    if isinstance(request, StreamsGroupDescribeRequest):
        described_fully = request.include_topology_description
        asked = StreamsGroupDescribeRequest(
            group_ids=[group_id], include_topology_description=described_fully
        )
    answer = await settled(lambda: groups.submit(group_id, asked, client))
    if isinstance(answer, KafkaError):
        return refusal(element, group_id, answer.code, answer.message)
    described = answer.groups[0]
    if not all(client.sees(name) for name in _topics_of(described)):
        message = "The group has topics that the client is not authorized to describe."
        return refusal(element, group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
    return described


def _topics_of(group: Any) -> set[str]:
    if isinstance(group, StreamsGroupDescribeResponseDescribedGroup):
        return _topics_of_topology(group)
    return {
        topic.topic_name
        for member in group.members
        # Members of share groups have what the target says.
        for assignment in (member.assignment, getattr(member, "target_assignment", None))
        if assignment is not None
        for topic in assignment.topic_partitions
    }


def _topics_of_topology(group: StreamsGroupDescribeResponseDescribedGroup) -> set[str]:
    subtopologies = (group.topology.subtopologies if group.topology else None) or ()
    names = {name for e in subtopologies for name in (*e.source_topics, *e.repartition_sink_topics)}
    for each in subtopologies:
        topics = (*each.repartition_source_topics, *each.state_changelog_topics)
        names.update(topic.name for topic in topics)
    return names
