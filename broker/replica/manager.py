"""Shell: the partitions of this broker: finds them, begins and ends leading and following them, keeps their checkpoint.

Rules of this file:
- What this broker leads and follows comes from durable events alone (`apply`), at a start and at run time alike, and
  by partition epochs: what is older than what is known changes nothing.
- Deletions come first, so that a topic may be created again under its name. Of several changes of a partition the last
  one counts. Fetchers hear of all changes of a commit at once; until then what is no more followed is `lost`, and
  nothing is appended to it.
- A log that this broker is no more to have is deleted; at a start it is set aside, as nobody saw it go.
- A partition whose leader stopped uncleanly takes and gives nothing until its end was compared with the
  lake's: the lake is a replica that is never unclean, and its offsets are never used twice.
- So does one whose log went back under a clean stop (a lost folder, an older one restored).
- Only the event loop's thread is here. Opening many logs gives way to others in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.cluster.events import (
    NO_LEADER,
    TOPIC_RESOURCE,
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
    RegisterBroker,
    TopicDeleted,
    UnfenceBroker,
)
from broker.cluster.image import MetadataImage
from broker.cluster.topic_names import in_force
from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.replica.fetchers import Fetchers
from broker.replica.followed import FollowedPartition
from broker.replica.follower import FollowerPartition
from broker.replica.hosted import HostedPartition, Proposer
from broker.replica.lake_recovery import DecideRecovered, LakeRecovery
from broker.replica.partition import REPLICA_LAG_TIME_MAX_MS, LeaderPartition
from broker.replica.strays import set_strays_aside
from broker.replica.surroundings import Surroundings
from broker.replica.topic_metrics import topic_metrics
from broker.seams import Clock
from kafka_ds.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.tier.manager import TierManager

_LOGGER = logging.getLogger(__name__)

# How many logs are opened before others get their turn in the event loop.
LOGS_OPENED_AT_ONCE = 8
CHECKPOINT_INTERVAL_MS = 5_000

NO_PARTITIONS: Mapping[int, HostedPartition] = {}


async def _undecided(_: Sequence[tuple[bytes, int]]) -> None:
    raise AssertionError("nobody decides for the cluster yet")


class FetcherChanges:
    """What fetchers have to be told after a commit."""

    def __init__(self) -> None:
        self.remove: list[FollowedPartition] = []
        self.add: dict[tuple[str, int], FollowedPartition] = {}


class ReplicaManager:
    """All partitions of which this broker has a replica. Iterating gives those that it leads."""

    def __init__(
        self,
        log_manager: LogManager,
        *,
        node_id: int,
        clock: Clock,
        image: MetadataImage,
        log_config: Callable[[Mapping[str, str]], LogConfig],
        checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS,
        lag_ms_max: int = REPLICA_LAG_TIME_MAX_MS,
    ) -> None:
        """`image` is the published one; `log_config` makes a log's settings of a topic's own."""
        self.tier: TierManager | None = None
        self.topic_metrics = topic_metrics()
        self._log_manager = log_manager
        self._node_id = node_id
        self._clock = clock
        self._image = image
        self._log_config = log_config
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._checkpoint_due_ms = 0
        self._lag_ms_max = lag_ms_max
        self._lag_due_ms = 0
        self._checkpointed: dict[tuple[str, int], int] = {}
        self._by_topic: dict[str, dict[int, HostedPartition]] = {}
        self._followed: dict[tuple[str, int], FollowedPartition] = {}
        self._stopped = self._is_starting = False
        # At the end: whether a log that had lost something has not met the lake yet.
        self.has_lost = False
        # Whoever asks the controller for changes of ISRs; None where nobody follows.
        self.proposer: Proposer | None = None
        # Set by whoever decides for the cluster: makes it durable that these have met the lake.
        self.decide_recovered: DecideRecovered = _undecided
        self.fetchers: Fetchers | None = None
        self._recovery = LakeRecovery(
            self,
            tier=lambda: self.tier,
            decide_recovered=lambda known: self.decide_recovered(known),
            elected=self._elected,
        )

    def follow_others(self, around: Surroundings) -> None:
        """Other brokers may lead: fetch from them. To be called before `start`."""
        around.write_recovery_points = self._log_manager.checkpoint_recovery_points
        around.end_of_lake = self._recovery.end_of_lake
        around.count_bytes_in = self._count_bytes_in
        self.fetchers = Fetchers(around)

    def _count_bytes_in(self, partition: FollowedPartition, size_bytes: int) -> None:
        self.topic_metrics.of(partition.topic).replication_bytes_in += size_bytes

    # -- finding ------------------------------------------------------------------------------

    def find(self, topic: str, index: int) -> HostedPartition | None:
        """The partition, if this broker leads it."""
        return self._by_topic.get(topic, NO_PARTITIONS).get(index)

    def get(self, topic: str, index: int) -> HostedPartition:
        """The partition, or the error that tells a client where to look."""
        partition = self._by_topic.get(topic, NO_PARTITIONS).get(index)
        if partition is None:
            raise KafkaError(self.why_absent(topic, index))
        return partition

    def why_absent(self, topic: str, index: int) -> ErrorCode:
        """Why this broker does not serve the partition."""
        if self._image.partition(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._log_manager.is_offline(topic, index):
            return ErrorCode.KAFKA_STORAGE_ERROR
        # It exists, but is led elsewhere or not opened yet: clients ask again.
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __iter__(self) -> Iterator[HostedPartition]:
        """All partitions led here."""
        for partitions in self._by_topic.values():
            yield from partitions.values()

    def replica(self, topic: str, index: int) -> HostedPartition | FollowedPartition | None:
        """The partition, led or followed here: what a consumer may read from (KIP-392)."""
        return self.find(topic, index) or self._followed.get((topic, index))

    def followed(self) -> Iterator[FollowedPartition]:
        """All partitions that another broker leads."""
        return iter(self._followed.values())

    # -- beginning and ending -----------------------------------------------------------------

    async def start(self) -> None:
        """Lead and follow what the image says, set aside the logs of others, begin to recover."""
        self._checkpointed = self._log_manager.high_watermark_checkpoints()
        set_strays_aside(self._log_manager, self._image, self._node_id)
        self._is_starting = True
        await self._take_all(
            PartitionChanged(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=index,
                registration=registration,
            )
            for topic in tuple(self._image.topics.values())
            for index, registration in tuple(topic.partitions.items())
        )
        self._is_starting = False

    async def apply(self, events: Sequence[Event]) -> None:
        """Do what newly durable events ask of this broker."""
        changed: dict[tuple[bytes, int], PartitionChanged] = {}
        for event in events:
            if isinstance(event, TopicDeleted):
                self._delete(event.topic, event.topic_id)
            elif isinstance(event, PartitionChanged):
                changed[event.topic_id, event.partition] = event
        await self._take_all(changed.values())
        for event in events:
            if isinstance(event, ConfigChanged) and event.resource_type == TOPIC_RESOURCE:
                self._configure(event.resource_name)
            elif isinstance(event, RegisterBroker | UnfenceBroker) and self.fetchers is not None:
                self.fetchers.wake(event.broker_id)

    async def _take_all(self, changed: Iterable[PartitionChanged]) -> None:
        changes = FetcherChanges()
        try:
            for number, event in enumerate(changed, 1):
                self._take(event, changes)
                if number % LOGS_OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if self.fetchers is not None and not self._stopped:
                self.fetchers.update(remove=changes.remove, add=changes.add.values())

    def _take(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        if event.topic_id not in self._image.topics_by_id or self._stopped:
            return  # Deleted by a later event of the same commit.
        registration = event.registration
        try:
            if registration.leader == self._node_id:
                self._lead(event, changes)
            elif self._node_id in registration.replicas:
                self._follow(event, changes)
            else:
                self._leave(event, changes)
        except (OSError, KafkaError) as error:
            # The others go on; clients of this one are told to look for its leader again.
            _LOGGER.error("%s-%d cannot be opened: %s", event.topic, event.partition, error)

    # -- leading ------------------------------------------------------------------------------

    def _lead(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        topic, index, registration = event.topic, event.partition, event.registration
        followed = self._followed.get((topic, index))
        if followed is not None:
            if registration.partition_epoch < followed.follower.partition_epoch:
                return
            self._unfollow(followed, changes)
        partition = self.find(topic, index)
        if partition is None:
            self._begin(event, followed)
            return
        leader = partition.leader
        epoch, was_recovering = leader.leader_epoch, leader.is_recovering
        partition.changed(registration)
        if leader.is_recovering:
            self._recovery.soon()
        elif leader.leader_epoch != epoch or was_recovering:
            self._elected(partition)

    def _begin(self, event: PartitionChanged, followed: FollowedPartition | None) -> None:
        """Lead from now on, what was followed until now or what lies on the disk."""
        if followed is not None:
            log, watermark, has_lost = followed.log, followed.high_watermark, followed.has_lost
            if followed.is_cut_unwritten:
                self._log_manager.write_recovery_points()
        else:
            log, watermark, has_lost = self._open(event)
        leader = LeaderPartition(
            event.registration,
            node_id=self._node_id,
            log_end_offset=log.log_end_offset,
            high_watermark=watermark,
            min_insync_replicas=log.config.min_insync_replicas,
            brokers=self._image.brokers,
            lag_ms_max=self._lag_ms_max,
            has_lost=has_lost,
        )
        partition = HostedPartition(
            log,
            leader,
            self.topic_metrics.of(event.topic),
            clock=self._clock,
            proposer=self.proposer,
        )
        self._by_topic.setdefault(event.topic, {})[event.partition] = partition
        if leader.is_recovering:
            self._recovery.soon()
        else:
            self._elected(partition)

    def _open(self, event: PartitionChanged) -> tuple[Log, int, bool]:
        """The partition's log, its high watermark of the checkpoint, and whether it has lost something."""
        topic, index = event.topic, event.partition
        config = self._log_config(in_force(topic, self._image.topics[topic].configs))
        existed = self._log_manager.get(topic, index) is not None
        is_new = event.registration.partition_epoch == 0 and not self._is_starting
        log = self._log_manager.create(topic, index, event.topic_id, config, is_new=is_new)
        checkpoint = self._checkpointed.get((topic, index), 0)
        watermark = min(max(checkpoint, log.log_start_offset), log.log_end_offset)
        return log, watermark, self._has_lost(log, existed, checkpoint, event.registration)

    def _has_lost(
        self, log: Log, existed: bool, checkpoint: int, registration: PartitionRegistration
    ) -> bool:
        """Whether a log that may be in the lake holds less than it is known to have held."""
        if self.tier is None or not log.config.remote_storage_enable:
            return False
        is_new = registration.leader_epoch == 0
        lost = log.log_end_offset < checkpoint or not (existed or is_new)
        if lost:
            _LOGGER.error(
                "%s ends at %d, but was led before up to %d at least: asking the lake",
                log.name, log.log_end_offset, checkpoint,
            )  # fmt: skip
        return lost

    def _elected(self, partition: HostedPartition) -> None:
        log = partition.log
        log.assign_leader_epoch(partition.leader.leader_epoch, log.log_end_offset)
        partition.elected()
        self._tell_tier(partition)

    def _tell_tier(self, partition: HostedPartition) -> None:
        tier = self.tier
        if tier is None or not partition.log.config.remote_storage_enable:
            return
        partition.log.on_roll = tier.segment_rolled
        tier.partition_opened(
            partition.log,
            leader_epoch=partition.leader.leader_epoch,
            last_stable_offset=partition.last_stable_offset,
        )

    def directory_failed(self, _directory_id: bytes, partitions: Sequence[tuple[str, int]]) -> None:
        """Serve what was in a log directory no more (KIP-112)."""
        changes = FetcherChanges()
        for key in partitions:
            partition, followed = self.find(*key), self._followed.get(key)
            if partition is not None:
                self._end(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            elif followed is not None:
                self._unfollow(followed, changes)
        if self.fetchers is not None and changes.remove:
            self.fetchers.update(remove=changes.remove)

    def _end(
        self, partition: HostedPartition, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
    ) -> None:
        partitions = self._by_topic[partition.topic]
        del partitions[partition.index]
        if not partitions:
            del self._by_topic[partition.topic]
            self._keep_metrics()
        if self.tier is not None:
            self.tier.partition_closed(partition.topic_id, partition.index)
        partition.log.on_roll = None
        partition.lose(code)

    # -- following ----------------------------------------------------------------------------

    def _follow(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        topic, index, registration = event.topic, event.partition, event.registration
        followed = self._followed.get((topic, index))
        partition = self.find(topic, index)
        if partition is not None:
            if registration.partition_epoch < partition.leader.partition_epoch:
                return
            watermark, has_lost = partition.high_watermark, partition.leader.has_lost
            self._end(partition)
            followed = self._begin_following(partition.log, watermark, has_lost=has_lost)
        elif followed is None:
            log, watermark, has_lost = self._open(event)
            followed = self._begin_following(log, watermark, has_lost=has_lost)
        follower = followed.follower
        if registration.partition_epoch <= follower.partition_epoch:
            return
        follower.partition_epoch = registration.partition_epoch
        if registration.leader == NO_LEADER:
            follower.orphaned(registration.leader_epoch)
            changes.remove.append(followed)
            changes.add.pop(followed.key, None)
        elif follower.must_begin(registration.leader, registration.leader_epoch):
            followed.follow(registration.leader, registration.leader_epoch)
            changes.add[followed.key] = followed

    def _begin_following(self, log: Log, watermark: int, *, has_lost: bool) -> FollowedPartition:
        followed = FollowedPartition(
            log, FollowerPartition(high_watermark=watermark), has_lost=has_lost
        )
        self._followed[followed.key] = followed
        return followed

    def _unfollow(self, followed: FollowedPartition, changes: FetcherChanges) -> None:
        del self._followed[followed.key]
        self._keep_metrics()
        changes.add.pop(followed.key, None)
        changes.remove.append(followed)
        followed.lose()

    def _leave(self, event: PartitionChanged, changes: FetcherChanges) -> None:
        """The partition lives on other brokers alone."""
        topic, index = event.topic, event.partition
        partition, followed = self.find(topic, index), self._followed.get((topic, index))
        if partition is not None:
            if event.registration.partition_epoch < partition.leader.partition_epoch:
                return
            self._end(partition)
        elif followed is not None:
            if event.registration.partition_epoch < followed.follower.partition_epoch:
                return
            self._unfollow(followed, changes)
        else:
            return
        _LOGGER.info("%s-%d is no replica here any more: its log goes", topic, index)
        self._log_manager.delete(topic, index)

    def _keep_metrics(self) -> None:
        """Topics of which nothing is left here are not shown any more."""
        self.topic_metrics.keep({*self._by_topic, *(topic for topic, _ in self._followed)})

    def _delete(self, topic: str, topic_id: bytes) -> None:
        has_table = False
        for partition in tuple(self._by_topic.get(topic, NO_PARTITIONS).values()):
            if partition.topic_id == topic_id:
                has_table = has_table or partition.log.config.remote_storage_enable
                self._end(partition)
                self._log_manager.delete(topic, partition.index)
        changes = FetcherChanges()
        for followed in tuple(self._followed.values()):
            if followed.topic_id == topic_id:
                self._unfollow(followed, changes)
                self._log_manager.delete(topic, followed.index)
        if self.fetchers is not None and changes.remove:
            self.fetchers.update(remove=changes.remove)
        if self.tier is not None and has_table:
            self.tier.topic_deleted(topic, topic_id)

    # -- settings -----------------------------------------------------------------------------

    def configure_all(self) -> None:
        """What topics inherit has changed."""
        for topic in {*self._by_topic, *(topic for topic, _ in self._followed)}:
            self._configure(topic)

    def _configure(self, topic: str) -> None:
        image = self._image.topics.get(topic)
        if image is None:
            return
        config = self._log_config(in_force(image.name, image.configs))
        for partition in self._by_topic.get(topic, NO_PARTITIONS).values():
            before = partition.log.config
            if before == config:
                continue
            partition.log.update_config(config)
            partition.configured(config.min_insync_replicas)
            if not before.remote_storage_enable and not partition.leader.is_recovering:
                self._tell_tier(partition)
        for followed in self._followed.values():
            if followed.topic == topic and followed.log.config != config:
                followed.log.update_config(config)

    # -- after an unclean stop ----------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether partitions still have to hear of the lake's end."""
        return any(partition.leader.is_recovering for partition in self)

    # -- all along ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Write the high watermarks down and look for followers that lag, when it is time."""
        now_ms = self._clock.monotonic_ms()
        if self._stopped:
            return
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._checkpoint_interval_ms
            self._checkpoint()
        if now_ms >= self._lag_due_ms:
            # Every half of what is allowed, as in Kafka: so nobody is late for more than one and a half of it.
            self._lag_due_ms = now_ms + self._lag_ms_max // 2
            for partition in self:
                if partition.leader.has_followers:
                    partition.tick()

    def _checkpoint(self) -> None:
        current = {(p.topic, p.index): p.high_watermark for p in self}
        current |= {key: p.high_watermark for key, p in self._followed.items()}
        if current != self._checkpointed:
            self._log_manager.checkpoint_high_watermarks(current)
            self._checkpointed = current

    def stop(self) -> None:
        """Answer everybody who waits, and take nothing more; the logs are closed by their manager."""
        if self._stopped:
            return
        self._stopped = True
        self.has_lost = any(partition.leader.has_lost for partition in self) or any(
            followed.has_lost and self._is_in_sync(followed) for followed in self.followed()
        )
        self._recovery.stop()
        if self.fetchers is not None:
            self.fetchers.stop()
        self._checkpoint()
        for partition in tuple(self):
            self._end(partition)
        for followed in self._followed.values():
            followed.lose()
        self._followed.clear()

    def _is_in_sync(self, followed: FollowedPartition) -> bool:
        """Whether the cluster counts on what this broker has of the partition."""
        registration = self._image.partition(*followed.key)
        return registration is not None and self._node_id in registration.isr
