"""Pure: the cluster's metadata as clients of a read-only broker see them.

The broker is not in the metadata log, and follows it as it is; all that differs is who is there: this broker alone,
which leads each partition that the lake has a table for, at the leader epoch of the log. Other partitions have no
leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from broker.metadata.events import (
    NO_LEADER,
    BrokerRegistrationChanged,
    BrokerUnregistered,
    ConfigChanged,
    Event,
    FenceBroker,
    PartitionChanged,
    RegisterBroker,
    Snapshot,
    TopicCreated,
    TopicDeleted,
    UnfenceBroker,
)
from broker.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from kafka_ds.protocol.messages.configs import CLIENT_METRICS_RESOURCE, TOPIC_RESOURCE
from kafka_ds.topic.metadata_table import MetadataPosition

# Of the brokers that write to the lake.
_OF_BROKERS = (
    RegisterBroker,
    FenceBroker,
    UnfenceBroker,
    BrokerRegistrationChanged,
    BrokerUnregistered,
)


class ServedImage:
    """Keeps an image as clients see it."""

    def __init__(self, here: BrokerRegistration, has_table: Callable[[TopicImage], bool]) -> None:
        """`here` is this broker; `has_table` says by a topic's settings whether the lake has its records."""
        self.image = MetadataImage()
        self.image.brokers[here.broker_id] = here
        self._here = here.broker_id
        self._has_table = has_table

    def load(self, cluster: MetadataImage) -> None:
        """Begin with the state of the cluster at a version."""
        self.apply(cluster.version, [cluster.snapshot()])

    def apply(self, version: int, events: Sequence[Event]) -> list[Event]:
        """Apply a commit; the events that concern clients here. Raises ValueError if it does not fit."""
        served = [each for each in map(_served, events) if each is not None]
        for event in served:
            self.image.replay(event, MetadataPosition(version, 0))
        self.image.version = version
        for topic_id in self.touched(served):
            self.place(topic_id)
        return served

    def place(self, topic_id: bytes) -> None:
        """Say who leads the partitions of a topic."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            return
        leader = self._here if self._has_table(topic) else NO_LEADER
        alone = (self._here,) if leader == self._here else ()
        for number, registration in topic.partitions.items():
            topic.partitions[number] = replace(
                registration,
                replicas=(self._here,),
                isr=alone,
                leader=leader,
                elr=(),
                last_known_elr=(),
                adding_replicas=(),
                removing_replicas=(),
                directories=(),
            )

    def touched(self, events: Iterable[Event]) -> set[bytes]:
        """The ids of the topics that these events concern, deleted ones included."""
        found: set[bytes] = set()
        for event in events:
            if isinstance(event, Snapshot):
                found |= self.touched(event.events)
            elif isinstance(event, TopicCreated | TopicDeleted | PartitionChanged):
                found.add(event.topic_id)
            elif isinstance(event, ConfigChanged) and event.resource_type == TOPIC_RESOURCE:
                topic = self.image.topics.get(event.resource_name)
                found |= {topic.topic_id} if topic is not None else set()
        return found


def _served(event: Event) -> Event | None:
    """The event as this broker's clients are concerned by it; None: not at all."""
    if isinstance(event, _OF_BROKERS):
        return None
    if isinstance(event, ConfigChanged) and event.resource_type == CLIENT_METRICS_RESOURCE:
        return None  # Clients would be asked for metrics that are not taken here.
    if isinstance(event, Snapshot):
        return Snapshot(events=tuple(e for each in event.events if (e := _served(each))))
    return event
