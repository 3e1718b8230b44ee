"""Shell: OffsetFetch 1-10: the committed offsets of groups.

- A partition without an offset, and every partition of a group that does not exist, gets -1 and no error. Null topics
  ask for all offsets (v2+).
- require_stable (v7+): an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT (KIP-447).
- An offset that was committed for an earlier topic of the same name does not count for today's topic.
- Errors of the coordinator, for each group by itself: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. A coordinator that
  cannot be reached for another reason is NOT_COORDINATOR, too: consumers before 3.9 know no other error (Kafka).
- Topics by id (v10) that do not exist: UNKNOWN_TOPIC_ID. Offsets of deleted topics have no id there, and are left out
  of an answer with all offsets.

Versions: 1 errors per partition; 2 one for the whole, and null topics; 5 leader epochs (KIP-320); 6 flexible;
7 require_stable; 8 several groups (KIP-709); 9 member id and epoch, for KIP-848's groups; 10 topic ids.
Left out: nothing. Groups of the classic protocol ignore member epochs; KIP-848's answer STALE_MEMBER_EPOCH.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.coordinator.group.shard import FetchOffsets
from broker.handlers.groups.common import client_of, topic_of
from broker.handlers.responses import settled
from broker.metadata.acls import AclOperation, ResourceType
from broker.metadata.image import MetadataImage
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import may, sees
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from kafka_ds.protocol.messages.group_offsets import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import NO_UUID

FIRST_VERSION_WITH_AN_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8


class GroupOffsetFetch(NamedTuple):
    """The request of one group, without the topics that do not exist, and the answers about those."""

    group: OffsetFetchRequestGroup
    refused: list[OffsetFetchResponseTopics]


@serves(OffsetFetchRequest, versions="1-10")
async def offset_fetch(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Answer the committed offsets of each group."""
    version = context.header.api_version
    if version >= FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(
            groups=[
                await _fetch(group, request.require_stable, context) for group in request.groups
            ]
        )
    topics = request.topics
    alone = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ],
    )
    return _for_one_group(alone, await _fetch(alone, request.require_stable, context), version)


async def _fetch(
    group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext
) -> OffsetFetchResponseGroup:
    by_id = context.header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    image = context.broker.metadata
    asked_for_all = group.topics is None
    wanted = _resolve(group, context, by_id=by_id)
    request = FetchOffsets(group=wanted.group, require_stable=require_stable)
    groups, client = context.broker.groups, client_of(context)
    answer = await settled(lambda: groups.submit(group.group_id, request, client))
    if isinstance(answer, KafkaError):
        return OffsetFetchResponseGroup(
            group_id=group.group_id, topics=[], error_code=_code_of(answer)
        )
    response: OffsetFetchResponseGroup = answer
    response.topics = [each for each in response.topics if sees(context, each.name)]
    if asked_for_all and by_id:
        response.topics = _with_ids(response.topics, image)
    response.topics.extend(wanted.refused)
    return response


def _code_of(error: KafkaError) -> ErrorCode:
    if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return ErrorCode.NOT_COORDINATOR
    return error.code


def _may_describe(context: RequestContext, topic: str) -> bool:
    return may(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


def _resolve(
    group: OffsetFetchRequestGroup, context: RequestContext, *, by_id: bool
) -> GroupOffsetFetch:
    """Give each topic its name and id; refuse those that may not be described."""
    image: MetadataImage = context.broker.metadata
    if group.topics is None:
        return GroupOffsetFetch(group, [])
    known, refused = [], []
    for topic in group.topics:
        found = topic_of(image, topic.name, topic.topic_id, by_id=by_id)
        if not isinstance(found, ErrorCode):
            topic.name, topic.topic_id = found
        elif by_id:
            refused.append(refusal(OffsetFetchResponseTopics, topic, found))
            continue
        if _may_describe(context, topic.name):
            known.append(topic)
        else:
            refused.append(
                refusal(OffsetFetchResponseTopics, topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            )
    resolved = OffsetFetchRequestGroup(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        topics=known,
    )
    return GroupOffsetFetch(resolved, refused)


def _with_ids(
    topics: list[OffsetFetchResponseTopics], image: MetadataImage
) -> list[OffsetFetchResponseTopics]:
    for topic in topics:
        known = image.topics.get(topic.name)
        topic.topic_id = NO_UUID if known is None else known.topic_id
    return [topic for topic in topics if topic.topic_id != NO_UUID]


def _for_one_group(
    request: OffsetFetchRequestGroup, group: OffsetFetchResponseGroup, version: int
) -> OffsetFetchResponse:
    """The answer in the form that it had before there were several groups."""
    if group.error_code and version < FIRST_VERSION_WITH_AN_ERROR:
        # There an error of the whole can only be reported partition by partition.
        code = ErrorCode(group.error_code)
        group.topics = [
            refusal(OffsetFetchResponseTopics, topic, code) for topic in request.topics or ()
        ]
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)
