"""Pure: what OffsetCommit, TxnOffsetCommit and OffsetDelete share: only partitions that exist reach the coordinator.

No handler is registered here. These APIs name topics and partitions in the same way and answer for each partition; only
one of them has topic ids.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from broker.handlers.groups.common import topic_of
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.refusal import refusals_of
from kafka_ds.protocol.types import NO_UUID


def remove_unknown(
    request: Any, version: int, image: MetadataImage, *, by_id: bool = False
) -> list[Any]:
    """Leave only partitions that exist in the request, each topic with its name and id; the others' refusals."""
    refused: list[Any] = []
    known = []

    def refuse(topic: Any, code: ErrorCode) -> None:
        refused.extend(refusals_of(type(request), "topics", [topic], version, code))

    for topic in request.topics:
        found = topic_of(image, topic.name, _id_of(topic), by_id=by_id)
        if isinstance(found, ErrorCode):
            refuse(topic, found)
            continue
        topic.name = found[0]
        if hasattr(topic, "topic_id"):
            topic.topic_id = found[1]
        there = image.topics[topic.name].partitions
        absent = [p for p in topic.partitions if p.partition_index not in there]
        if absent:
            missing = copy.copy(topic)
            missing.partitions = absent
            refuse(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic.partitions = [p for p in topic.partitions if p.partition_index in there]
        if topic.partitions or not absent:
            known.append(topic)
    request.topics = known
    return refused


def merge(response: Any, refused: Iterable[Any], *, by_id: bool = False) -> None:
    """Add the refused partitions to the answer, next to others of their topic: one element per topic, as in Kafka."""
    named = _id_of if by_id else _name_of
    known = {named(topic): topic for topic in response.topics}
    for topic in refused:
        same = known.get(named(topic))
        if same is None:
            response.topics.append(topic)
        else:
            same.partitions.extend(topic.partitions)


def _id_of(topic: Any) -> bytes:
    found: bytes = getattr(topic, "topic_id", NO_UUID)
    return found


def _name_of(topic: Any) -> str:
    found: str = topic.name
    return found
