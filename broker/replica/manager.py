"""Shell: the partitions of this broker: finds them, begins and ends leading them, keeps their checkpoint.

Rules of this file:
- What this broker leads follows from durable events alone (`apply`), at a start and at run time alike.
- A partition whose leader stopped uncleanly takes and gives nothing until its end was compared with the
  lake's: the lake is a replica that is never unclean, and its offsets are never used twice.
- So does one whose log went back under a clean stop (a lost folder, an older one restored).
- Only the event loop's thread is here. Opening many logs gives way to others in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.cluster.events import (
    TOPIC_RESOURCE,
    ConfigChanged,
    Event,
    PartitionChanged,
    PartitionRegistration,
    TopicDeleted,
)
from broker.cluster.image import MetadataImage
from broker.log.config import LogConfig
from broker.log.ending import UNKNOWN
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.replica.hosted import HostedPartition, Proposer
from broker.replica.partition import REPLICA_LAG_TIME_MAX_MS, LeaderPartition
from broker.replica.topic_metrics import topic_metrics
from broker.seams import Clock
from kafka_ds.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.tier.manager import TierManager

_LOGGER = logging.getLogger(__name__)

# How many logs are opened before others get their turn in the event loop.
LOGS_OPENED_AT_ONCE = 8
RECOVERY_RETRY_SECONDS = 1.0
CHECKPOINT_INTERVAL_MS = 5_000

DecideRecovered = Callable[[Sequence[tuple[bytes, int]]], Awaitable[None]]

NO_PARTITIONS: Mapping[int, HostedPartition] = {}


async def _undecided(_: Sequence[tuple[bytes, int]]) -> None:
    raise AssertionError("nobody decides for the cluster yet")


class ReplicaManager:
    """All partitions that this broker leads."""

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
        self._recovering: asyncio.Task[None] | None = None
        self._stopped = False
        # At the end: whether a log that had lost something has not met the lake yet.
        self.has_lost = False
        # Whoever asks the controller for changes of ISRs; None where nobody follows.
        self.proposer: Proposer | None = None
        # Set by whoever decides for the cluster: makes it durable that these have met the lake.
        self.decide_recovered: DecideRecovered = _undecided

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
        # It exists, but is led elsewhere or not opened yet: clients ask again.
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __iter__(self) -> Iterator[HostedPartition]:
        """All partitions led here."""
        for partitions in self._by_topic.values():
            yield from partitions.values()

    # -- beginning and ending -----------------------------------------------------------------

    async def start(self) -> None:
        """Lead what the image says, drop the logs of topics that are gone, begin to recover."""
        self._checkpointed = self._log_manager.high_watermark_checkpoints()
        self._set_strays_aside()
        opened = 0
        for topic in tuple(self._image.topics.values()):
            for index, registration in topic.partitions.items():
                self._take(topic.name, topic.topic_id, index, registration)
                opened += 1
                if opened % LOGS_OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _set_strays_aside(self) -> None:
        """A log whose topic the metadata do not know is nobody's; it is kept, out of the way, as Kafka does."""
        for log in tuple(self._log_manager.logs()):
            topic = self._image.topics.get(log.topic)
            if topic is None or topic.topic_id != log.topic_id:
                name = self._log_manager.set_aside(log.topic, log.partition)
                _LOGGER.error(
                    "%s-%d is a log of no topic of this cluster; its folder is now %s",
                    log.topic,
                    log.partition,
                    name,
                )

    async def apply(self, events: Sequence[Event]) -> None:
        """Do what newly durable events ask of this broker."""
        opened = 0
        for event in events:
            match event:
                case PartitionChanged():
                    self._take(event.topic, event.topic_id, event.partition, event.registration)
                    opened += 1
                    if opened % LOGS_OPENED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                case TopicDeleted():
                    self._delete(event.topic, event.topic_id)
                case ConfigChanged(resource_type=resource, resource_name=topic):
                    if resource == TOPIC_RESOURCE:
                        self._configure(topic)
                case _:
                    pass

    def _take(
        self, topic: str, topic_id: bytes, index: int, registration: PartitionRegistration
    ) -> None:
        image = self._image.topics_by_id.get(topic_id)
        if image is None or self._stopped:
            return  # Deleted by a later event of the same commit.
        partition = self.find(topic, index)
        if registration.leader != self._node_id:
            if partition is not None:
                self._end(partition)
            return
        if partition is None:
            try:
                self._begin(topic, topic_id, index, registration)
            except (OSError, KafkaError) as error:
                # The others go on; clients of this one are told to look for its leader again.
                _LOGGER.error("%s-%d cannot be opened: %s", topic, index, error)
            return
        leader = partition.leader
        epoch, was_recovering = leader.leader_epoch, leader.is_recovering
        partition.changed(registration)
        if leader.is_recovering:
            self._recover_soon()
        elif leader.leader_epoch != epoch or was_recovering:
            self._elected(partition)

    def _begin(
        self, topic: str, topic_id: bytes, index: int, registration: PartitionRegistration
    ) -> None:
        config = self._log_config(self._image.topics[topic].configs)
        existed = self._log_manager.get(topic, index) is not None
        log = self._log_manager.create(topic, index, topic_id, config)
        checkpoint = self._checkpointed.get((topic, index), 0)
        leader = LeaderPartition(
            registration,
            node_id=self._node_id,
            log_end_offset=log.log_end_offset,
            high_watermark=min(max(checkpoint, log.log_start_offset), log.log_end_offset),
            min_insync_replicas=config.min_insync_replicas,
            brokers=self._image.brokers,
            lag_ms_max=self._lag_ms_max,
            has_lost=self._has_lost(log, existed, checkpoint, registration),
        )
        partition = HostedPartition(
            log,
            leader,
            self.topic_metrics.of(topic),
            clock=self._clock,
            proposer=self.proposer,
        )
        self._by_topic.setdefault(topic, {})[index] = partition
        if leader.is_recovering:
            self._recover_soon()
        else:
            self._elected(partition)

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

    def _end(self, partition: HostedPartition) -> None:
        partitions = self._by_topic[partition.topic]
        del partitions[partition.index]
        if not partitions:
            del self._by_topic[partition.topic]
            self.topic_metrics.keep(self._by_topic)
        if self.tier is not None:
            self.tier.partition_closed(partition.topic_id, partition.index)
        partition.log.on_roll = None
        partition.lose()

    def _delete(self, topic: str, topic_id: bytes) -> None:
        has_table = False
        for partition in tuple(self._by_topic.get(topic, NO_PARTITIONS).values()):
            if partition.topic_id == topic_id:
                has_table = has_table or partition.log.config.remote_storage_enable
                self._end(partition)
                self._log_manager.delete(topic, partition.index)
        if self.tier is not None and has_table:
            self.tier.topic_deleted(topic, topic_id)

    def configure_all(self) -> None:
        """What topics inherit has changed."""
        for topic in tuple(self._by_topic):
            self._configure(topic)

    def _configure(self, topic: str) -> None:
        image = self._image.topics.get(topic)
        if image is None:
            return
        config = self._log_config(image.configs)
        for partition in self._by_topic.get(topic, NO_PARTITIONS).values():
            before = partition.log.config
            if before == config:
                continue
            partition.log.update_config(config)
            partition.configured(config.min_insync_replicas)
            if not before.remote_storage_enable and not partition.leader.is_recovering:
                self._tell_tier(partition)

    # -- after an unclean stop ----------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether partitions still have to hear of the lake's end."""
        return any(partition.leader.is_recovering for partition in self)

    def _recover_soon(self) -> None:
        if self._recovering is None and not self._stopped:
            self._recovering = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Compare each recovering partition's end with the lake's, until none is left."""
        try:
            while waiting := [p for p in self if p.leader.is_recovering]:
                known = [partition for partition in waiting if await self._meet_lake(partition)]
                for partition in known:
                    if partition.leader.found_what_was_lost() and not partition.is_lost:
                        self._elected(partition)
                try:
                    await self.decide_recovered([(p.topic_id, p.index) for p in known])
                except KafkaError as error:
                    _LOGGER.warning("cannot end the recovery yet: %s", error)
                    known = []
                if len(known) < len(waiting):
                    await asyncio.sleep(RECOVERY_RETRY_SECONDS)
        finally:
            self._recovering = None

    async def _meet_lake(self, partition: HostedPartition) -> bool:
        """Let the log go on behind the lake's end; False while the lake cannot say where that is."""
        log = partition.log
        if self.tier is None or not log.config.remote_storage_enable:
            return True
        try:
            where = (partition.topic, partition.topic_id, partition.index)
            end, ended = await self.tier.known_tiered_end(*where), UNKNOWN
            if end >= log.log_end_offset:
                ended = await self.tier.ending(*where, end)
        except KafkaError as error:
            _LOGGER.warning("%s-%d waits for the lake: %s", log.topic, log.partition, error)
            return False
        except Exception:
            # A mistake of ours over there must not leave partitions without a leader here.
            _LOGGER.exception("%s-%d waits for the lake", log.topic, log.partition)
            return False
        if partition.is_lost:
            return False
        if end >= log.log_end_offset:
            _LOGGER.warning(
                "%s-%d ends at %d, the lake at %d: going on behind the lake",
                log.topic, log.partition, log.log_end_offset, end,
            )  # fmt: skip
            log.restart_at(end + 1, ended)
            partition.leader.restarted(end + 1)
            log.update_high_watermark(end + 1)
        return True

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
        if current != self._checkpointed:
            self._log_manager.checkpoint_high_watermarks(current)
            self._checkpointed = current

    def stop(self) -> None:
        """Answer everybody who waits, and take nothing more; the logs are closed by their manager."""
        if self._stopped:
            return
        self._stopped = True
        self.has_lost = any(partition.leader.has_lost for partition in self)
        if self._recovering is not None:
            self._recovering.cancel()
        self._checkpoint()
        for partition in tuple(self):
            self._end(partition)
