"""Shell: DescribeTopicPartitions 0: topics with their partitions, a page at a time (KIP-966).

- Topics by name, or without names all that the client may describe; always in the order of their names.
- A page holds as many partitions as the request allows, at least one and at most 2,000. If more follow, the cursor
  names the topic and partition with which the next page begins. Topics before the cursor are skipped.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION; an invalid name: INVALID_TOPIC_EXCEPTION; later pages do not repeat either.
  This request creates no topics. A cursor at a partition below 0, or at a topic that the request does not name:
  INVALID_REQUEST.
- Eligible leader replicas and the last known ones are those in the metadata.

Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.handlers.common import topic_operations
from broker.metadata.image import MetadataImage, TopicImage
from broker.metadata.topic_names import why_illegal
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import sees
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kafka_ds.protocol.messages.quorum import (
    Cursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kafka_ds.protocol.refusal import refusal

# Kafka's max.request.partition.size.limit.
PAGE_PARTITIONS_MAX = 2_000


@serves(DescribeTopicPartitionsRequest, versions="0")
def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Answer one page."""
    cursor = request.cursor
    if cursor and cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    image = context.broker.metadata
    wanted = {topic.name for topic in request.topics} or {
        name for name in image.topics if sees(context, name)
    }
    names = sorted(name for name in wanted if cursor is None or name >= cursor.topic_name)
    first = cursor.partition_index if cursor and names[:1] == [cursor.topic_name] else 0
    if cursor and request.topics and cursor.topic_name not in wanted:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    limit = max(min(request.response_partition_limit, PAGE_PARTITIONS_MAX), 1)
    topics, next_cursor = _page(context, names, first, limit)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def _page(
    context: RequestContext, names: Sequence[str], first: int, limit: int
) -> tuple[list[DescribeTopicPartitionsResponseTopic], Cursor | None]:
    """The partitions that fit, and where the next page begins."""
    image: MetadataImage = context.broker.metadata
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if limit == 0:
            return topics, Cursor(topic_name=name, partition_index=0)
        topic = image.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if why_illegal(name):
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(refusal(DescribeTopicPartitionsResponseTopic, name, code))
            continue
        numbers = [number for number in sorted(topic.partitions) if number >= first]
        first = 0
        topics.append(_topic(context, topic, numbers[:limit]))
        if len(numbers) > limit:
            return topics, Cursor(topic_name=name, partition_index=numbers[limit])
        limit -= len(numbers)
    return topics, None


def _topic(
    context: RequestContext, topic: TopicImage, numbers: Sequence[int]
) -> DescribeTopicPartitionsResponseTopic:
    image: MetadataImage = context.broker.metadata
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(image, topic, partition) for partition in numbers],
        topic_authorized_operations=topic_operations(context, topic.name),
    )


def _partition(
    image: MetadataImage, topic: TopicImage, partition: int
) -> DescribeTopicPartitionsResponsePartition:
    found = topic.partitions[partition]
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if found.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition,
        leader_id=found.leader,
        leader_epoch=found.leader_epoch,
        replica_nodes=list(found.replicas),
        isr_nodes=list(found.isr),
        eligible_leader_replicas=list(found.elr),
        last_known_elr=list(found.last_known_elr),
        offline_replicas=[r for r in found.replicas if r not in image.brokers],
    )
