"""Pure: the cluster as its metadata log describes it up to one version.

- Only `replay` changes state, at run time and at a restart alike: a broker's state is exactly what is durable in the
  log.
- An event was checked when it was decided. If it does not fit the state here, the log is damaged or foreign, which is
  an error: otherwise the broker would act on a cluster that does not exist.
- The values inside (registrations, endpoints) are frozen, so a copy shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.metadata.events import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistrationChanged,
    BrokerUnregistered,
    ClusterCreated,
    ClusterFenced,
    ClusterPromoted,
    ConfigChanged,
    ControllerChange,
    Endpoint,
    Event,
    FeatureLevelChanged,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    ProducerIdBlock,
    RegisterBroker,
    Snapshot,
    SupportedFeature,
    TopicCreated,
    TopicDeleted,
    UnfenceBroker,
)
from broker.metadata.security_image import SECURITY_EVENTS, SecurityImage
from broker.metadata.topic_names import INTERNAL_TOPICS, LAKE_DISKLESS, collision_key
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH, MetadataPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A registered broker, and the epoch of this registration.

    `version` is the version of the metadata log at which it registered, or a later one after a snapshot: a broker that
    has read the log up to there knows of the registration.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    cordoned_log_dirs: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = ()
    version: int = field(default=-1, compare=False)

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync: neither fenced nor about to stop nor without any disk."""
        return not self.fenced and not self.in_controlled_shutdown and not self._lost_all

    @property
    def _lost_all(self) -> bool:
        return self.log_dirs == (LOST_DIRECTORY,)

    def has_directory(self, directory: bytes) -> bool:
        """Whether a replica there is online, as far as is known (KIP-858)."""
        if not self.log_dirs:
            return True
        if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return not self._lost_all
        return directory != LOST_DIRECTORY and directory in self.log_dirs

    @property
    def has_uncordoned_dirs(self) -> bool:
        """Whether it may get new replicas (KIP-1066)."""
        return not self.log_dirs or not set(self.log_dirs) <= set(self.cordoned_log_dirs)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's address for clients of this listener."""
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

    @property
    def is_diskless(self) -> bool:
        """Whether it is diskless as it is set; partitions that have not switched yet are still replicated."""
        is_set = self.configs.get(LAKE_DISKLESS, "").strip().lower() == "true"
        return is_set and not self.is_internal

    @property
    def has_diskless_partitions(self) -> bool:
        """Whether some of its partitions are diskless, whatever is set: they switch one by one."""
        return any(each.is_diskless for each in self.partitions.values())

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
        # Where the cluster goes on, if this lake was fenced.
        self.fenced_by: str | None = None
        # The lake that it went on in when it was promoted last.
        self.promoted_in: str | None = None
        self.controller_id = -1
        self.controller_epoch = 0
        self.version = -1
        self.next_producer_id = 0
        # The highest that any broker ever had, also one that is not registered any more.
        self.last_broker_epoch = NO_BROKER_EPOCH
        # The levels that were set; of all other features the default holds (`features.level_of`).
        self.features: dict[str, int] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        # Of groups that have settings of their own; these exist without the group, too.
        self.group_configs: dict[str, dict[str, str]] = {}
        # By subscription, which is nothing but its settings (KIP-714).
        self.client_metrics_configs: dict[str, dict[str, str]] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        # Names by `collision_key`: two topics with one key could not be told apart somewhere.
        self.names_taken: dict[str, str] = {}
        self.security = SecurityImage()

    def partition(self, topic: str, partition: int) -> PartitionRegistration | None:
        """The registration of this partition."""
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found else None

    @property
    def partition_count(self) -> int:
        """The number of all topics' partitions."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    def directory_of(self, key: TopicPartition, broker_id: int) -> bytes | None:
        """The directory of this broker's replica; None without such a partition."""
        registration = self.partition(*key)
        return None if registration is None else registration.directory_of(broker_id)

    def registered_at(self, broker_id: int, broker_epoch: int, version: int) -> None:
        """A registration that was replayed ahead of its commit has become durable at this version."""
        known = self.brokers.get(broker_id)
        if known is not None and known.broker_epoch == broker_epoch:
            self.brokers[broker_id] = replace(known, version=version)

    def copy(self) -> MetadataImage:
        """The same state, to be changed without changing this one."""
        twin = MetadataImage()
        twin.cluster_id = self.cluster_id
        twin.fenced_by, twin.promoted_in = self.fenced_by, self.promoted_in
        twin.controller_id, twin.controller_epoch = self.controller_id, self.controller_epoch
        twin.version, twin.next_producer_id = self.version, self.next_producer_id
        twin.last_broker_epoch = self.last_broker_epoch
        twin.features.update(self.features)
        twin.brokers.update(self.brokers)
        twin.broker_configs = {name: dict(v) for name, v in self.broker_configs.items()}
        twin.group_configs = {name: dict(v) for name, v in self.group_configs.items()}
        twin.client_metrics_configs = {
            name: dict(v) for name, v in self.client_metrics_configs.items()
        }
        twin.topics = {name: topic.copy() for name, topic in self.topics.items()}
        twin.topics_by_id = {topic.topic_id: topic for topic in twin.topics.values()}
        twin.names_taken.update(self.names_taken)
        twin.security = self.security.copy()
        return twin

    def replay(self, event: Event, position: MetadataPosition) -> None:
        """Apply the event at this position."""
        replay = _REPLAYS.get(type(event))
        assert replay is not None, f"no event of the log: {event!r}"
        replay(self, event, position)
        self.version = position.version

    # -- the cluster and its brokers ----------------------------------------------------------

    def _replay_cluster(self, event: ClusterCreated, _: MetadataPosition) -> None:
        _fits(self.cluster_id is None, event)
        self.cluster_id = event.cluster_id

    def _replay_fence(self, event: ClusterFenced, _: MetadataPosition) -> None:
        self.fenced_by = event.successor

    def _replay_promotion(self, event: ClusterPromoted, _: MetadataPosition) -> None:
        self.fenced_by, self.promoted_in = None, event.lake

    def _replay_controller(self, event: ControllerChange, _: MetadataPosition) -> None:
        _fits(event.controller_epoch > self.controller_epoch, event)
        self.controller_id, self.controller_epoch = event.controller_id, event.controller_epoch

    def _replay_broker(self, event: RegisterBroker, position: MetadataPosition) -> None:
        registration = registration_of(event, position)
        self.brokers[event.broker_id] = registration
        self.last_broker_epoch = max(self.last_broker_epoch, registration.broker_epoch)

    def _replay_fencing(self, event: FenceBroker | UnfenceBroker, _: MetadataPosition) -> None:
        # A fenced broker begins again: it is no longer shutting down.
        fenced = isinstance(event, FenceBroker)
        self._change_broker(event, fenced=fenced, in_controlled_shutdown=False)

    def _replay_broker_change(self, event: BrokerRegistrationChanged, _: MetadataPosition) -> None:
        self._change_broker(
            event,
            fenced=event.fenced,
            in_controlled_shutdown=event.in_controlled_shutdown,
            log_dirs=event.log_dirs,
            cordoned_log_dirs=event.cordoned_log_dirs,
        )

    def _change_broker(
        self, event: FenceBroker | UnfenceBroker | BrokerRegistrationChanged, **changes: Any
    ) -> None:
        known = self.brokers.get(event.broker_id)
        _fits(known is not None and known.broker_epoch == event.broker_epoch, event)
        if known is not None:
            self.brokers[event.broker_id] = replace(known, **changes)

    def _replay_unregistered(self, event: BrokerUnregistered, _: MetadataPosition) -> None:
        self.last_broker_epoch = max(self.last_broker_epoch, event.broker_epoch)
        if event.broker_id >= 0:
            known = self.brokers.pop(event.broker_id, None)
            _fits(known is not None and known.broker_epoch == event.broker_epoch, event)

    def _replay_feature(self, event: FeatureLevelChanged, _: MetadataPosition) -> None:
        self.features[event.name] = event.level

    def _replay_block(self, event: ProducerIdBlock, _: MetadataPosition) -> None:
        _fits(event.first_producer_id >= self.next_producer_id and event.size >= 0, event)
        self.next_producer_id = event.first_producer_id + event.size

    # -- topics -------------------------------------------------------------------------------

    def _replay_topic(self, event: TopicCreated, _: MetadataPosition) -> None:
        key = collision_key(event.topic)
        _fits(key not in self.names_taken and event.topic_id not in self.topics_by_id, event)
        topic = TopicImage(event.topic, event.topic_id)
        self.topics[event.topic] = self.topics_by_id[event.topic_id] = topic
        self.names_taken[key] = event.topic

    def _replay_deletion(self, event: TopicDeleted, _: MetadataPosition) -> None:
        topic = self._topic_of(event.topic_id)
        del self.topics[topic.name], self.topics_by_id[topic.topic_id]
        del self.names_taken[collision_key(topic.name)]

    def _replay_partition(self, event: PartitionChanged, _: MetadataPosition) -> None:
        partitions = self._topic_of(event.topic_id).partitions
        known, new = partitions.get(event.partition), event.registration
        if known is not None:
            _fits(
                new.partition_epoch > known.partition_epoch
                and new.leader_epoch >= known.leader_epoch,
                event,
            )
        partitions[event.partition] = new

    def _replay_config(self, event: ConfigChanged, _: MetadataPosition) -> None:
        if event.resource_type == TOPIC_RESOURCE:
            _fits(event.resource_name in self.topics, event)
            resources = {event.resource_name: self.topics[event.resource_name].configs}
        elif event.resource_type == GROUP_RESOURCE:
            resources = self.group_configs
        elif event.resource_type == CLIENT_METRICS_RESOURCE:
            resources = self.client_metrics_configs
        else:
            resources = self.broker_configs
        configs = resources.setdefault(event.resource_name, {})
        if event.value is None:
            configs.pop(event.name, None)
        else:
            configs[event.name] = event.value
        if event.resource_type in (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE) and not configs:
            del resources[event.resource_name]

    def _replay_security(self, event: Event, _: MetadataPosition) -> None:
        _fits(self.security.replay(event), event)

    def _replay_snapshot(self, event: Snapshot, position: MetadataPosition) -> None:
        """A snapshot repeats what is known already, or is where reading starts."""
        if self.version >= 0:
            return
        for inner in event.events:
            self.replay(inner, position)

    def _topic_of(self, topic_id: bytes) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise ValueError(
                f"the metadata log refers to a topic that it never created: {topic_id!r}"
            )
        return topic

    def snapshot(self) -> Snapshot:
        """The whole state as one event."""
        return Snapshot(events=tuple(self._as_events()))

    def _as_events(self) -> Iterator[Event]:
        if self.cluster_id is not None:
            yield ClusterCreated(cluster_id=self.cluster_id)
        if self.promoted_in is not None:
            yield ClusterPromoted(lake=self.promoted_in)
        if self.fenced_by is not None:
            yield ClusterFenced(successor=self.fenced_by)
        if self.controller_epoch:
            yield ControllerChange(
                controller_id=self.controller_id, controller_epoch=self.controller_epoch
            )
        if self.next_producer_id:
            yield ProducerIdBlock(broker_id=-1, first_producer_id=self.next_producer_id, size=0)
        if self.last_broker_epoch != NO_BROKER_EPOCH:
            yield BrokerUnregistered(broker_id=-1, broker_epoch=self.last_broker_epoch)
        for name, level in self.features.items():
            yield FeatureLevelChanged(name=name, level=level)
        for broker in self.brokers.values():
            yield RegisterBroker(
                broker_id=broker.broker_id,
                incarnation_id=broker.incarnation_id,
                endpoints=broker.endpoints,
                rack=broker.rack,
                broker_epoch=broker.broker_epoch,
                fenced=broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
                log_dirs=broker.log_dirs,
                cordoned_log_dirs=broker.cordoned_log_dirs,
                features=broker.features,
            )
        yield from _config_events(BROKER_RESOURCE, self.broker_configs)
        yield from _config_events(GROUP_RESOURCE, self.group_configs)
        yield from _config_events(CLIENT_METRICS_RESOURCE, self.client_metrics_configs)
        for topic in self.topics.values():
            yield from _topic_events(topic)
        yield from self.security.as_events()


def _config_events(kind: int, resources: Mapping[str, Mapping[str, str]]) -> Iterator[Event]:
    for resource_name, configs in resources.items():
        for name, value in configs.items():
            yield ConfigChanged(
                resource_type=kind, resource_name=resource_name, name=name, value=value
            )


def _topic_events(topic: TopicImage) -> Iterator[Event]:
    yield TopicCreated(topic=topic.name, topic_id=topic.topic_id)
    for partition, registration in topic.partitions.items():
        yield PartitionChanged(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            registration=registration,
        )
    for name, value in topic.configs.items():
        yield ConfigChanged(
            resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value
        )


def registration_of(event: RegisterBroker, position: MetadataPosition) -> BrokerRegistration:
    """The registration that an event at this place in the log makes."""
    known = event.broker_epoch != NO_BROKER_EPOCH
    return BrokerRegistration(
        broker_id=event.broker_id,
        broker_epoch=event.broker_epoch if known else position.epoch,
        incarnation_id=event.incarnation_id,
        endpoints=event.endpoints,
        rack=event.rack,
        fenced=event.fenced,
        in_controlled_shutdown=event.in_controlled_shutdown,
        log_dirs=event.log_dirs,
        cordoned_log_dirs=event.cordoned_log_dirs,
        features=event.features,
        version=position.version,
    )


def _fits(fits: bool, event: Event) -> None:
    if not fits:
        raise ValueError(f"the metadata log contradicts itself at {event!r}")


_REPLAYS: Mapping[type, Callable[[MetadataImage, Any, MetadataPosition], None]] = {
    ClusterCreated: MetadataImage._replay_cluster,
    ClusterFenced: MetadataImage._replay_fence,
    ClusterPromoted: MetadataImage._replay_promotion,
    ControllerChange: MetadataImage._replay_controller,
    RegisterBroker: MetadataImage._replay_broker,
    FenceBroker: MetadataImage._replay_fencing,
    UnfenceBroker: MetadataImage._replay_fencing,
    BrokerRegistrationChanged: MetadataImage._replay_broker_change,
    BrokerUnregistered: MetadataImage._replay_unregistered,
    FeatureLevelChanged: MetadataImage._replay_feature,
    ProducerIdBlock: MetadataImage._replay_block,
    TopicCreated: MetadataImage._replay_topic,
    TopicDeleted: MetadataImage._replay_deletion,
    PartitionChanged: MetadataImage._replay_partition,
    ConfigChanged: MetadataImage._replay_config,
    Snapshot: MetadataImage._replay_snapshot,
    **dict.fromkeys(SECURITY_EVENTS, MetadataImage._replay_security),
}
