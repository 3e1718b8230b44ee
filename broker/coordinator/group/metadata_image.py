"""Pure: the metadata as groups see it: topics, their partitions, which match an expression; and a group's own settings.

- `names_version` moves when topics come and go, `version` also with partitions and ACLs; both count from the start.
- Expressions (KIP-848) match whole names; matching is done once for all groups and each set of topics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from broker.metadata.events import (
    AclCreated,
    AclDeleted,
    Event,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from broker.metadata.image import MetadataImage
from broker.patterns import matcher
from kafka_ds.protocol.errors import KafkaError

# How many expressions' topics are kept; one more clears them.
MATCHES_MAX = 1_000
NO_HASH = 0


class TopicShape(NamedTuple):
    """What an assignment depends on."""

    topic_id: bytes
    partitions: int


class CoordinatorMetadataImage:
    """What the group coordinator knows of topics: those of the published metadata."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self.version = 0
        self.names_version = 0

    def apply(self, events: Sequence[Event]) -> None:
        """These events have been taken into the image."""
        if any(isinstance(event, TopicCreated | TopicDeleted) for event in events):
            self.names_version += 1
            self.version += 1
        elif any(isinstance(event, PartitionChanged | AclCreated | AclDeleted) for event in events):
            self.version += 1

    def topic(self, name: str) -> TopicShape | None:
        """The topic of this name."""
        found = self._image.topics.get(name)
        return None if found is None else TopicShape(found.topic_id, len(found.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic of this id."""
        found = self._image.topics_by_id.get(topic_id)
        return None if found is None else found.name

    def names(self) -> Iterable[str]:
        """The names of all topics."""
        return self._image.topics

    def settings_of(self, group_id: str) -> Mapping[str, str]:
        """What was set for this group alone."""
        return self._image.group_configs.get(group_id, {})

    def metadata_version(self) -> int:
        """The version of the metadata's table."""
        return self._image.version


class TopicRegexResolver:
    """The topics of expressions."""

    def __init__(self, topology: CoordinatorMetadataImage) -> None:
        self._topology = topology
        self._names_version = -1
        self._found: dict[str, frozenset[str]] = {}

    def of(self, expression: str) -> frozenset[str]:
        """The topics whose whole name it matches: none if a broker with another syntax has admitted the expression."""
        if self._names_version != self._topology.names_version or len(self._found) >= MATCHES_MAX:
            self._names_version = self._topology.names_version
            self._found = {}
        known = self._found.get(expression)
        if known is None:
            known = self._found[expression] = self._matching(expression)
        return known

    def _matching(self, expression: str) -> frozenset[str]:
        try:
            matches = matcher(expression)
        except KafkaError:
            return frozenset()  # As in Kafka: a client that subscribes by it here gets an error.
        return frozenset(name for name in self._topology.names() if matches(name))


def metadata_hash(topology: CoordinatorMetadataImage, names: Iterable[str]) -> int:
    """A number that changes when a topic of these comes, goes, or grows.

    Kafka keeps another hash in the same place (KIP-1101): a group that goes from one to the other rebalances once.
    """
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        shape = topology.topic(name)
        if shape is not None:
            found = True
            digest.update(shape.topic_id + shape.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else NO_HASH
