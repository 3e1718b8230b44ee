"""Pure: the cluster as its metadata log describes it up to one place.

Rules of this file:
- `replay` is the only thing that changes state, here and at a restart alike: what a broker believes
  is exactly what is durable in the log.
- An event was checked when it was decided. One that does not fit the state here is a damaged or
  foreign log, and an error: a broker that goes on would act on a cluster that does not exist.
- The values inside (registrations, endpoints) are frozen, so a copy shares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from broker.cluster.events import (
    BROKER_RESOURCE,
    NO_BROKER_EPOCH,
    TOPIC_RESOURCE,
    ClusterCreated,
    ConfigChanged,
    ControllerChange,
    Endpoint,
    Event,
    PartitionChanged,
    PartitionRegistration,
    ProducerIdBlock,
    RegisterBroker,
    Snapshot,
    TopicCreated,
    TopicDeleted,
)
from broker.cluster.topic_names import INTERNAL_TOPICS, collision_key

# An epoch is a version and a place within its commit in one number that only grows.
COMMIT_EVENTS_MAX = 1 << 20


class Position(NamedTuple):
    """The place of an event: the table's version, and its number within that commit."""

    version: int
    sequence: int

    @property
    def epoch(self) -> int:
        """A number that grows with the position: what a broker epoch is made of."""
        return self.version * COMMIT_EVENTS_MAX + self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker that has registered, and the epoch that this registration has."""

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where clients of this listener reach the broker."""
        return next((e for e in self.endpoints if e.listener == listener), None)


class TopicImage:
    """One topic: name, id, partitions by number, settings that were given."""

    __slots__ = ("configs", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, PartitionRegistration] = {}
        self.configs: dict[str, str] = {}

    @property
    def is_internal(self) -> bool:
        """Whether Kafka keeps its own state in this topic."""
        return self.name in INTERNAL_TOPICS

    def copy(self) -> TopicImage:
        """The same topic, to be changed without changing this one."""
        twin = TopicImage(self.name, self.topic_id)
        twin.partitions.update(self.partitions)
        twin.configs.update(self.configs)
        return twin


class MetadataImage:
    """The state of the cluster after the last replayed event."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.controller_epoch = 0
        self.version = -1
        self.next_producer_id = 0
        self.brokers: dict[int, BrokerRegistration] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        # Names by `collision_key`: two topics with one key could not be told apart somewhere.
        self.names_taken: dict[str, str] = {}

    def topic(self, name: str) -> TopicImage | None:
        """The topic of this name."""
        return self.topics.get(name)

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        """The registration of this partition."""
        found = self.topics.get(topic)
        return found.partitions.get(index) if found else None

    def copy(self) -> MetadataImage:
        """The same state, to be changed without changing this one."""
        twin = MetadataImage()
        twin.cluster_id = self.cluster_id
        twin.controller_id, twin.controller_epoch = self.controller_id, self.controller_epoch
        twin.version, twin.next_producer_id = self.version, self.next_producer_id
        twin.brokers.update(self.brokers)
        twin.broker_configs = {name: dict(v) for name, v in self.broker_configs.items()}
        twin.topics = {name: topic.copy() for name, topic in self.topics.items()}
        twin.topics_by_id = {topic.topic_id: topic for topic in twin.topics.values()}
        twin.names_taken.update(self.names_taken)
        return twin

    def replay(self, event: Event, position: Position) -> None:
        """Take the event at this position into the state."""
        match event:
            case PartitionChanged():
                self._topic_of(event.topic_id).partitions[event.partition] = event.registration
            case ConfigChanged():
                self._replay_config(event)
            case TopicCreated():
                self._replay_topic(event)
            case TopicDeleted():
                topic = self._topic_of(event.topic_id)
                del self.topics[topic.name], self.topics_by_id[topic.topic_id]
                del self.names_taken[collision_key(topic.name)]
            case ProducerIdBlock():
                self._replay_block(event)
            case RegisterBroker():
                self.brokers[event.broker_id] = _registration(event, position)
            case ControllerChange():
                self._replay_controller(event)
            case ClusterCreated():
                _fits(self.cluster_id is None, event)
                self.cluster_id = event.cluster_id
            case Snapshot():
                self._replay_snapshot(event, position)
            case _:
                raise AssertionError(f"no event of the log: {event!r}")
        self.version = position.version

    def _replay_topic(self, event: TopicCreated) -> None:
        key = collision_key(event.topic)
        _fits(key not in self.names_taken and event.topic_id not in self.topics_by_id, event)
        topic = TopicImage(event.topic, event.topic_id)
        self.topics[event.topic] = self.topics_by_id[event.topic_id] = topic
        self.names_taken[key] = event.topic

    def _replay_config(self, event: ConfigChanged) -> None:
        if event.resource_type == TOPIC_RESOURCE:
            _fits(event.resource_name in self.topics, event)
            configs = self.topics[event.resource_name].configs
        else:
            configs = self.broker_configs.setdefault(event.resource_name, {})
        if event.value is None:
            configs.pop(event.name, None)
        else:
            configs[event.name] = event.value

    def _replay_block(self, event: ProducerIdBlock) -> None:
        _fits(event.first_producer_id >= self.next_producer_id and event.size >= 0, event)
        self.next_producer_id = event.first_producer_id + event.size

    def _replay_controller(self, event: ControllerChange) -> None:
        _fits(event.controller_epoch > self.controller_epoch, event)
        self.controller_id, self.controller_epoch = event.controller_id, event.controller_epoch

    def _replay_snapshot(self, event: Snapshot, position: Position) -> None:
        """A snapshot tells what is known already, or it is where reading starts."""
        if self.version >= 0:
            return
        for inner in event.events:
            self.replay(inner, position)

    def _topic_of(self, topic_id: bytes) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise ValueError(
                f"the metadata log speaks of a topic that it never created: {topic_id!r}"
            )
        return topic

    def snapshot(self) -> Snapshot:
        """The whole state as one event."""
        return Snapshot(events=tuple(self._as_events()))

    def _as_events(self) -> Iterator[Event]:
        if self.cluster_id is not None:
            yield ClusterCreated(cluster_id=self.cluster_id)
        if self.controller_epoch:
            yield ControllerChange(
                controller_id=self.controller_id, controller_epoch=self.controller_epoch
            )
        if self.next_producer_id:
            yield ProducerIdBlock(broker_id=-1, first_producer_id=self.next_producer_id, size=0)
        for broker in self.brokers.values():
            yield RegisterBroker(
                broker_id=broker.broker_id,
                incarnation_id=broker.incarnation_id,
                endpoints=broker.endpoints,
                rack=broker.rack,
                broker_epoch=broker.broker_epoch,
            )
        for resource_name, configs in self.broker_configs.items():
            for name, value in configs.items():
                yield ConfigChanged(
                    resource_type=BROKER_RESOURCE,
                    resource_name=resource_name,
                    name=name,
                    value=value,
                )
        for topic in self.topics.values():
            yield from _topic_events(topic)


def _topic_events(topic: TopicImage) -> Iterator[Event]:
    yield TopicCreated(topic=topic.name, topic_id=topic.topic_id)
    for index, registration in topic.partitions.items():
        yield PartitionChanged(
            topic=topic.name, topic_id=topic.topic_id, partition=index, registration=registration
        )
    for name, value in topic.configs.items():
        yield ConfigChanged(
            resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value
        )


def _registration(event: RegisterBroker, position: Position) -> BrokerRegistration:
    known = event.broker_epoch != NO_BROKER_EPOCH
    return BrokerRegistration(
        broker_id=event.broker_id,
        broker_epoch=event.broker_epoch if known else position.epoch,
        incarnation_id=event.incarnation_id,
        endpoints=event.endpoints,
        rack=event.rack,
    )


def _fits(fits: bool, event: Event) -> None:
    if not fits:
        raise ValueError(f"the metadata log contradicts itself at {event!r}")


def bumped(registration: PartitionRegistration, **changes: object) -> PartitionRegistration:
    """A registration changed, with the partition epoch that every change gets."""
    epoch = registration.partition_epoch + 1
    return replace(registration, partition_epoch=epoch, **changes)  # type: ignore[arg-type]
