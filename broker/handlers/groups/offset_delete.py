"""Shell: OffsetDelete 0: deletes a group's offsets for some partitions.

- Topics that the group's members subscribe to: GROUP_SUBSCRIBED_TO_TOPIC. If a consumer group's subscriptions are not
  known, every topic counts as subscribed to.
- The whole request: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (a group whose members are not consumers).
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION. One without an offset is no error.

Versions: one (KIP-496).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.answers import then
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse
from kafka_ds.protocol.messages.group_offsets import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@serves(OffsetDeleteRequest, versions="0")
def offset_delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Forget the offsets of partitions that exist."""
    refused = _take_out_unknown(request, context)
    answer = context.node.groups.submit(request.group_id, request, client_of(context))

    def finish(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            _merge(response, refused)
        return response

    return then(answer, finish)


def _take_out_unknown(
    request: OffsetDeleteRequest, context: RequestContext
) -> list[OffsetDeleteResponseTopic]:
    """Leave only partitions that exist in the request; the others' answers."""
    refused = []
    for topic in request.topics:
        known = context.node.metadata.topics.get(topic.name)
        partitions = known.partitions if known is not None else {}
        missing = [p for p in topic.partitions if p.partition_index not in partitions]
        if missing:
            topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results = [
                OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=code)
                for p in missing
            ]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
    request.topics = [topic for topic in request.topics if topic.partitions]
    return refused


def _merge(response: OffsetDeleteResponse, refused: list[OffsetDeleteResponseTopic]) -> None:
    by_name = {topic.name: topic for topic in response.topics}
    for topic in refused:
        if topic.name in by_name:
            by_name[topic.name].partitions.extend(topic.partitions)
        else:
            response.topics.append(topic)
