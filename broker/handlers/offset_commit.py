"""Shell: OffsetCommit 2-10: remember these offsets for this group.

- Members name their generation; a commit for another one is ILLEGAL_GENERATION, by nobody we know UNKNOWN_MEMBER_ID or
  FENCED_INSTANCE_ID. While the assignment is awaited: REBALANCE_IN_PROGRESS. Generation -1 is for "simple" consumers
  and operators, and only while the group has no members.
- A group that is not there: with a generation GROUP_ID_NOT_FOUND (v9+) or ILLEGAL_GENERATION; else it comes into being.
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID where topics are named by id. Metadata
  longer than offset.metadata.max.bytes: OFFSET_METADATA_TOO_LARGE. The others of the request are committed.
- A commit is in the log, and below the high watermark, when it is answered. It keeps the member's session alive.

Versions: 2-4 retention_time_ms, which is kept; 5 without it (KIP-211); 6 leader epochs (KIP-320); 7 static members
(KIP-345); 8 flexible; 9 the errors of KIP-848; 10 topic ids (KIP-848).
Left out: the member epochs of KIP-848's groups.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.grouped import client_of, then, topic_of
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from kafka_ds.wire.messages.group_offsets import (
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_TOPIC_IDS = 10


def refuse(
    request: OffsetCommitRequest, code: ErrorCode, message: str | None
) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            _refused(topic, [p.partition_index for p in topic.partitions], code)
            for topic in request.topics
        ]
    )


@serves(OffsetCommitRequest, versions="2-10", failure=refuse)
def offset_commit(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit the offsets of partitions that exist."""
    refused = _take_out_unknown(request, context)
    if refused and not any(topic.partitions for topic in request.topics):
        return OffsetCommitResponse(topics=refused)
    answer = context.node.groups.submit(request.group_id, request, client_of(context))

    def finish(response: OffsetCommitResponse) -> OffsetCommitResponse:
        _merge(response, refused)
        return response

    return then(answer, finish)


def _take_out_unknown(
    request: OffsetCommitRequest, context: RequestContext
) -> list[OffsetCommitResponseTopic]:
    """Leave only partitions that exist in the request, each topic with name and id; the others' answers."""
    image = context.node.metadata
    by_id = context.header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    refused = []
    known = []
    for topic in request.topics:
        found = topic_of(image, topic.name, topic.topic_id, by_id=by_id)
        if isinstance(found, ErrorCode):
            refused.append(_refused(topic, [p.partition_index for p in topic.partitions], found))
            continue
        topic.name, topic.topic_id = found
        partitions = image.topics[topic.name].partitions
        missing = [
            p.partition_index for p in topic.partitions if p.partition_index not in partitions
        ]
        if missing:
            refused.append(_refused(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
        known.append(topic)
    request.topics = known
    return refused


def _refused(
    topic: OffsetCommitRequestTopic, partitions: list[int], code: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=index, error_code=code)
            for index in partitions
        ],
    )


def _merge(response: OffsetCommitResponse, refused: list[OffsetCommitResponseTopic]) -> None:
    """Put the partitions that were refused beside those of the same topic."""
    by_name = {(topic.name, topic.topic_id): topic for topic in response.topics}
    for topic in refused:
        same = by_name.get((topic.name, topic.topic_id))
        if same is None:
            response.topics.append(topic)
        else:
            same.partitions.extend(topic.partitions)
