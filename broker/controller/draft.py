"""Pure: the draft of a controller's decision: the cluster as it will be, and the events that make it so.

- The image is not changed: changes are an overlay, so that the parts of one decision see each other.
- A partition that changes several times in one decision changes once in the log, and its epochs go up by one. (A leader
  that lost its place in between and got it back is a new leader: its epoch goes up.)
- Events of brokers come first, then those of topics, then partitions in the order of their first change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from broker.metadata.diskless_change import (
    diskless_change,
    in_next_epoch,
    replicated,
    switched,
)
from broker.metadata.events import (
    NO_LEADER,
    TO_DISKLESS,
    TO_REPLICATED,
    UNASSIGNED_DIRECTORY,
    BrokerRegistrationChanged,
    BrokerUnregistered,
    ConfigChanged,
    Event,
    FeatureLevelChanged,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    RegisterBroker,
    UnfenceBroker,
    WalId,
)
from broker.metadata.features import ELR_FEATURE, level_of
from broker.metadata.image import MetadataImage, TopicImage, registration_of
from broker.metadata.partition_change import PartitionChange, PartitionElection
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.topic.metadata_table import MetadataPosition

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
# default.replication.factor is 1 unless it was set, and no topic is to lose its durability by default.
REPLICATED_FACTOR_MIN = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult(Generic[T]):
    """Events to make durable, and what to answer afterwards."""

    events: tuple[Event, ...]
    result: T


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeResult:
    """What became of an election or a reassignment that was requested for one partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The values that hold if neither a request, a topic nor the cluster's dynamic settings set one."""

    num_partitions: int
    replication_factor: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool


class Draft:
    """The cluster after the decision, and the events of it."""

    def __init__(self, image: MetadataImage, defaults: Defaults) -> None:
        self.image = image
        self.brokers = dict(image.brokers)
        self.elr_enabled = level_of(image, ELR_FEATURE) > 0
        self._defaults = defaults
        self._events: list[Event] = []
        self._partitions: dict[PartitionId, PartitionRegistration] = {}
        self._settings: dict[tuple[str, str], str | None] = {}
        # How many partitions each broker leads after the decision; counted when it is first needed.
        self._leaders: Counter[int] | None = None
        # The same of all replicas.
        self._replicas: Counter[int] | None = None

    def events(self) -> tuple[Event, ...]:
        """All events to make durable, in order."""
        return (*self._events, *self._partition_events())

    def _partition_events(self) -> Iterator[Event]:
        for (topic_id, partition), registration in self.settled().items():
            yield PartitionChanged(
                topic=self.image.topics_by_id[topic_id].name,
                topic_id=topic_id,
                partition=partition,
                registration=registration,
            )

    def settled(self) -> dict[PartitionId, PartitionRegistration]:
        """The partitions that change, as the log will have them."""
        settled = {}
        for key, new in self._partitions.items():
            topic_id, partition = key
            old = self.image.topics_by_id[topic_id].partitions[partition]
            partition_epoch = old.partition_epoch + 1
            leader_epoch = old.leader_epoch + (new.leader_epoch > old.leader_epoch)
            if (new.partition_epoch, new.leader_epoch) != (partition_epoch, leader_epoch):
                new = replace(new, partition_epoch=partition_epoch, leader_epoch=leader_epoch)
            settled[key] = new
        return settled

    # -- brokers ------------------------------------------------------------------------------

    def next_broker_epoch(self) -> int:
        """An epoch above all earlier ones.

        Counted, not derived from the place in the log: decisions that are about to be durable already use it.
        """
        return max(self.image.last_broker_epoch + 1, self._place.epoch)

    @property
    def _place(self) -> MetadataPosition:
        """The first place in the log that the decision may get."""
        return MetadataPosition(self.image.version + 1, 0)

    def register(self, event: RegisterBroker) -> None:
        """A broker has registered with a new incarnation."""
        self._events.append(event)
        self.brokers[event.broker_id] = registration_of(event, self._place)

    def fence(self, broker_id: int) -> None:
        """This broker leads nothing any more."""
        broker = self.brokers[broker_id]
        self._events.append(FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
        self.brokers[broker_id] = replace(broker, fenced=True, in_controlled_shutdown=False)

    def unfence(self, broker_id: int) -> None:
        """This broker may lead."""
        broker = self.brokers[broker_id]
        self._events.append(UnfenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
        self.brokers[broker_id] = replace(broker, fenced=False, in_controlled_shutdown=False)

    def change_broker(
        self,
        broker_id: int,
        *,
        in_controlled_shutdown: bool | None = None,
        log_dirs: tuple[bytes, ...] | None = None,
        cordoned_log_dirs: tuple[bytes, ...] | None = None,
    ) -> None:
        """This broker stays registered and is about to stop, or has other directories, or cordoned others."""
        broker = self.brokers[broker_id]
        if in_controlled_shutdown is not None:
            broker = replace(broker, in_controlled_shutdown=in_controlled_shutdown)
        if log_dirs is not None:
            broker = replace(broker, log_dirs=log_dirs)
        if cordoned_log_dirs is not None:
            broker = replace(broker, cordoned_log_dirs=cordoned_log_dirs)
        self.brokers[broker_id] = broker
        self._events.append(
            BrokerRegistrationChanged(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                fenced=broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
                log_dirs=broker.log_dirs,
                cordoned_log_dirs=broker.cordoned_log_dirs,
            )
        )

    def unregister(self, broker_id: int) -> None:
        """A broker is unregistered."""
        broker = self.brokers.pop(broker_id)
        self._events.append(
            BrokerUnregistered(broker_id=broker_id, broker_epoch=broker.broker_epoch)
        )

    def is_active(self, broker_id: int) -> bool:
        """Whether this broker may lead and be in sync."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def default_directory(self, broker_id: int) -> bytes:
        """The directory in which a broker puts a new replica; known only if it has just one (KIP-858)."""
        broker = self.brokers.get(broker_id)
        if broker is None or len(broker.log_dirs) != 1:
            return UNASSIGNED_DIRECTORY
        return broker.log_dirs[0]

    # -- settings -----------------------------------------------------------------------------

    def set_level(self, name: str, level: int) -> None:
        """A feature gets another level."""
        self._events.append(FeatureLevelChanged(name=name, level=level))
        if name == ELR_FEATURE:
            self.elr_enabled = level > 0

    def set_config(self, event: ConfigChanged) -> None:
        """A setting of a topic, of brokers or of a group changes."""
        self._events.append(event)
        if event.resource_type == TOPIC_RESOURCE:
            self._settings[event.resource_name, event.name] = event.value
        elif event.resource_type == BROKER_RESOURCE and event.resource_name == "":
            # No topic has this name.
            self._settings["", event.name] = event.value

    def min_insync_replicas(self, topic: str) -> int:
        """The topic's own, else that of the cluster."""
        value = self._setting(topic, MIN_INSYNC_REPLICAS)
        return self._defaults.min_insync_replicas if value is None else int(value)

    def is_unclean_election_enabled(self, topic: str) -> bool:
        """Whether this topic may lose records to have leaders."""
        value = self._setting(topic, UNCLEAN_LEADER_ELECTION_ENABLE)
        if value is None:
            return self._defaults.unclean_leader_election_enable
        return value.strip().lower() == "true"

    def _setting(self, topic: str, name: str) -> str | None:
        known = self.image.topics.get(topic)
        own = self._settings.get((topic, name), known.configs.get(name) if known else None)
        if own is not None:
            return own
        return self._settings.get(("", name), self.image.broker_configs.get("", {}).get(name))

    # -- partitions ---------------------------------------------------------------------------

    def partitions(self) -> Iterator[tuple[TopicImage, PartitionId, PartitionRegistration]]:
        """All partitions of the cluster after the decision."""
        changed = self._partitions
        for topic in self.image.topics.values():
            for partition, registration in topic.partitions.items():
                key = (topic.topic_id, partition)
                yield topic, key, changed.get(key, registration)

    def partition(self, key: PartitionId) -> PartitionRegistration | None:
        """A partition of the cluster after the decision, if it exists."""
        topic_id, partition = key
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            return None
        return self._partitions.get(key) or topic.partitions.get(partition)

    def change(
        self,
        key: PartitionId,
        alter: Callable[[PartitionChange], None] = lambda _: None,
        *,
        excluded: Collection[int] = (),
    ) -> PartitionRegistration | None:
        """Change a partition, with all that follows; None if that changes nothing.

        `alter` sets what shall be different. The `excluded` are not elected, though they are alive.
        """
        topic_id, partition = key
        topic = self.image.topics_by_id[topic_id]
        old = self._partitions.get(key) or topic.partitions[partition]

        def is_acceptable(broker_id: int) -> bool:
            broker = self.brokers.get(broker_id)
            if broker is None or not broker.is_active or broker_id in excluded:
                return False
            directory = making.directories.get(broker_id) or old.directory_of(broker_id)
            return broker.has_directory(directory)

        unclean = self.is_unclean_election_enabled(topic.name)
        making = PartitionChange(
            old,
            is_acceptable=is_acceptable,
            min_insync_replicas=self.min_insync_replicas(topic.name),
            elr_enabled=self.elr_enabled,
            election=PartitionElection.UNCLEAN if unclean else PartitionElection.ONLINE,
            default_directory=self.default_directory,
        )
        alter(making)
        new: PartitionRegistration | None
        if making.leader_recovery_state == TO_DISKLESS:
            new = switched(old, self.wal_of(old.leader))
        elif making.leader_recovery_state == TO_REPLICATED:
            new = replicated(old, self._followers(old), self.default_directory)
        elif old.is_diskless:
            new = diskless_change(
                old,
                making,
                is_acceptable=is_acceptable,
                choose=lambda: self._diskless_leader(old, excluded),
                wal_of=self.wal_of,
                default_directory=self.default_directory,
            )
        else:
            new = making.build()
        if new is not None:
            self._partitions[key] = new
            if self._leaders is not None:
                self._leaders[old.leader] -= 1
                self._leaders[new.leader] += 1
        return new

    def begin_epoch(self, key: PartitionId) -> None:
        """Let the leader of a partition lead on in another epoch."""
        old = self.partition(key)
        assert old is not None
        self._partitions[key] = in_next_epoch(old, self.wal_of)

    # -- diskless partitions ------------------------------------------------------------------

    def wal_of(self, broker_id: int) -> WalId:
        """The write-ahead log of this broker's present incarnation."""
        return WalId(broker_id, self.brokers[broker_id].broker_epoch)

    def _diskless_leader(self, old: PartitionRegistration, excluded: Collection[int]) -> int:
        """The next leader: the preferred one, else one in its rack, if possible, and of these the one that leads least.

        The last leader itself comes last: the directory of its log has failed.
        """
        leaders = self._leaders
        if leaders is None:
            leaders = Counter(each.leader for _, _, each in self.partitions())
            self._leaders = leaders
        preferred = old.preferred_leader
        known = [
            self.brokers.get(each) or self.image.brokers.get(each)
            for each in (preferred, *old.replicas)
        ]
        rack = next((each.rack for each in known if each is not None), None)

        def rank(broker_id: int) -> tuple[bool, bool, bool, int, int]:
            is_last, is_other = broker_id == old.leader, broker_id != preferred
            is_elsewhere = self.brokers[broker_id].rack != rack
            return is_last, is_other, is_elsewhere, leaders[broker_id], broker_id

        candidates = (b for b in self.brokers if self.is_active(b) and b not in excluded)
        return min(candidates, key=rank, default=NO_LEADER)

    def _followers(self, old: PartitionRegistration) -> list[int]:
        """Who is to follow the leader of a diskless partition that becomes replicated.

        Each is live, and in a rack without another one, if possible; the preferred leader comes first, and then who has
        the fewest replicas.
        """
        if self._replicas is None:
            self._replicas = Counter(
                broker_id for _, _, each in self.partitions() for broker_id in each.replicas
            )
        counts, followers = self._replicas, list[int]()
        racks = {self.brokers[old.leader].rack}
        left = {
            broker_id: broker
            for broker_id, broker in self.brokers.items()
            if broker_id != old.leader and broker.has_uncordoned_dirs
        }

        def rank(broker_id: int) -> tuple[bool, bool, bool, int, int]:
            broker, is_other = left[broker_id], broker_id != old.preferred_leader
            return (
                not broker.is_active,
                broker.rack in racks,
                is_other,
                counts[broker_id],
                broker_id,
            )

        factor = max(self._defaults.replication_factor, REPLICATED_FACTOR_MIN)
        while left and len(followers) < factor - 1:
            best = min(left, key=rank)
            racks.add(left.pop(best).rack)
            counts[best] += 1
            followers.append(best)
        return followers
