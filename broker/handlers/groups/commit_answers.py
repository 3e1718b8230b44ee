"""Pure: what OffsetCommit and TxnOffsetCommit share: only partitions that exist reach the coordinator.

Rules of this file: no handler is registered here. Both APIs name topics and partitions in the same way and answer for
each partition; they differ in the types of their messages, and only one of them has topic ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from broker.cluster.image import MetadataImage
from broker.handlers.groups.common import topic_of
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.types import NO_UUID

# The API's answer for a topic, with `partitions`.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """How an API answers: `answer(topic, indexes, code)` says the same of several partitions of a topic."""

    answer: Callable[[Any, list[int], ErrorCode], T]

    def refusing(self, topics: Iterable[Any], code: ErrorCode) -> list[T]:
        """The same error for every partition."""
        return [self.answer(topic, _indexes_of(topic), code) for topic in topics]

    def take_out_unknown(
        self, request: Any, image: MetadataImage, *, by_id: bool = False
    ) -> list[T]:
        """Leave only partitions that exist in the request, each topic with its name and id; the others' answers."""
        refused = []
        known = []
        for topic in request.topics:
            found = topic_of(image, topic.name, _id_of(topic), by_id=by_id)
            if isinstance(found, ErrorCode):
                refused.append(self.answer(topic, _indexes_of(topic), found))
                continue
            topic.name = found[0]
            if hasattr(topic, "topic_id"):
                topic.topic_id = found[1]
            there = image.topics[topic.name].partitions
            missing = [index for index in _indexes_of(topic) if index not in there]
            if missing:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(self.answer(topic, missing, code))
                topic.partitions = [p for p in topic.partitions if p.partition_index in there]
            if topic.partitions or not missing:
                known.append(topic)
        request.topics = known
        return refused


def merge(response: Any, refused: Iterable[Any]) -> None:
    """Add the refused partitions to the answer, next to others of their topic."""
    by_name = {(topic.name, _id_of(topic)): topic for topic in response.topics}
    for topic in refused:
        same = by_name.get((topic.name, _id_of(topic)))
        if same is None:
            response.topics.append(topic)
        else:
            same.partitions.extend(topic.partitions)


def _indexes_of(topic: Any) -> list[int]:
    return [each.partition_index for each in topic.partitions]


def _id_of(topic: Any) -> bytes:
    found: bytes = getattr(topic, "topic_id", NO_UUID)
    return found
