"""Shell: the acknowledgements in a ShareFetch or a ShareAcknowledge, and what becomes of each partition's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.metadata.acls import AclOperation, ResourceType
from broker.registry import RequestContext
from broker.replica.topic_metrics import TopicCounters
from broker.security.authorization.permissions import may
from broker.share.share_partition import AcknowledgeType
from broker.share.share_sessions import ShareSessionKey
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.share_fetch import AcknowledgementBatch
from kafka_ds.protocol.topic_partition import PartitionId

_KINDS = frozenset(AcknowledgeType)


def acknowledgements_of(topics: Iterable[Any]) -> dict[PartitionId, list[AcknowledgementBatch]]:
    """The batches of each partition that has any."""
    return {
        (topic.topic_id, partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


async def acknowledge_all(
    key: ShareSessionKey,
    acknowledgements: Mapping[PartitionId, Sequence[AcknowledgementBatch]],
    context: RequestContext,
    *,
    may_renew: bool,
) -> dict[PartitionId, KafkaError | None]:
    """The outcome of each partition's acknowledgements, when they are written."""
    outcomes = await asyncio.gather(
        *(
            _acknowledge(key, partition_id, batches, context, may_renew)
            for partition_id, batches in acknowledgements.items()
        ),
        return_exceptions=True,
    )
    found: dict[PartitionId, KafkaError | None] = {}
    for partition_id, outcome in zip(acknowledgements, outcomes, strict=True):
        if outcome is not None and not isinstance(outcome, KafkaError):
            raise outcome
        found[partition_id] = outcome
        counters = counters_of(partition_id, context)
        counters.share_acknowledgement_requests += 1
        counters.share_acknowledgement_failures += outcome is not None
    return found


async def _acknowledge(
    key: ShareSessionKey,
    partition_id: PartitionId,
    batches: Sequence[AcknowledgementBatch],
    context: RequestContext,
    may_renew: bool,
) -> None:
    check_topic(partition_id, context)
    _check(batches, may_renew)
    shares = context.broker.share_partitions
    led = shares.get(key.group_id, partition_id)
    if led is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await led.acknowledge(key.member_id, batches)
    for batch in batches:
        number = batch.last_offset - batch.first_offset + 1
        kinds = batch.acknowledge_types
        shares.acknowledged.update(kinds if len(kinds) > 1 else {kinds[0]: number})


def counters_of(partition_id: PartitionId, context: RequestContext) -> TopicCounters:
    """The counters of a partition's topic; what is not led here counts for no topic in particular."""
    replicas = context.broker.replica_manager
    topic = context.broker.metadata.topics_by_id.get(partition_id[0])
    led = None if topic is None else replicas.find(topic.name, partition_id[1])
    return replicas.topic_metrics.of_none if led is None else led.counters


def check_topic(partition_id: PartitionId, context: RequestContext) -> None:
    """Raises UNKNOWN_TOPIC_ID and TOPIC_AUTHORIZATION_FAILED."""
    topic = context.broker.metadata.topics_by_id.get(partition_id[0])
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not may(context, AclOperation.READ, ResourceType.TOPIC, topic.name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _check(batches: Sequence[AcknowledgementBatch], may_renew: bool) -> None:
    """Raises INVALID_REQUEST for batches out of order, or with types that do not fit."""
    end = -1
    for batch in batches:
        kinds, size = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        is_known = all(kind in _KINDS for kind in kinds)
        if batch.first_offset <= end or size < 1 or len(kinds) not in (1, size) or not is_known:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if AcknowledgeType.RENEW in kinds and not may_renew:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        end = batch.last_offset
