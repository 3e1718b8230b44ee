"""Shell: the partitions of this broker: finds them, lets events change them, keeps their checkpoint and settings.

What this broker leads and follows comes from durable events alone, at a start and later alike (`state_applier.py`).
Deletions come first, so that a topic may be created again under its name; of several changes of a partition the last
one counts. At a start a log that is not assigned to this broker is set aside. A broker in controlled shutdown follows
no partition: it is out of all ISRs. Only the event loop's thread is here; opening many logs yields to others in
between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from broker.metadata.events import (
    BrokerRegistrationChanged,
    ConfigChanged,
    Event,
    PartitionChanged,
    RegisterBroker,
    TopicDeleted,
    UnfenceBroker,
)
from broker.metadata.topic_names import in_force
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetchers import Fetchers
from broker.replica.follower.partition import FollowerPartition
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replicas import Replicas
from broker.replica.state_applier import LeadingContext, ReplicaStateApplier
from broker.replica.strays import set_strays_aside
from broker.replica.topic_metrics import TopicCounters
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition

if TYPE_CHECKING:
    from broker.metrics.topics import PerTopic

_LOGGER = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_MS = 5_000


class ReplicaManager:
    """All partitions with a replica on this broker. Iterating gives those that it leads."""

    def __init__(
        self,
        context: FetcherContext,
        leading: LeadingContext,
        *,
        checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS,
        new_fetchers: Callable[[FetcherContext], Fetchers] = Fetchers,
    ) -> None:
        self._log_manager = context.logs
        self._node_id = context.node_id
        self._clock = context.clock
        self._image = context.image
        self._log_config = leading.log_config
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._checkpoint_due_ms = 0
        self._lag_ms_max = leading.lag_ms_max
        self._lag_due_ms = 0
        self._replicas = Replicas(context.topic_metrics)
        # At the end: whether a log that had lost something was not compared with the lake yet.
        self.has_lost_records = False
        self.fetchers = new_fetchers(context)
        self.applier = ReplicaStateApplier(self._replicas, self.fetchers, context, leading)

    @property
    def topic_metrics(self) -> PerTopic[TopicCounters]:
        """The counters of each topic with a replica here."""
        return self._replicas.topic_metrics

    # -- finding ------------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> LeaderPartition | None:
        """The partition, if this broker leads it."""
        return self._replicas.find(topic, partition)

    def get(self, topic: str, partition: int) -> LeaderPartition:
        """The partition, or the error by which a client finds it."""
        found = self._replicas.find(topic, partition)
        if found is None:
            raise KafkaError(self.why_absent(topic, partition))
        return found

    def why_absent(self, topic: str, partition: int) -> ErrorCode:
        """Why this broker does not serve the partition."""
        if self._image.partition(topic, partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.is_offline(TopicPartition(topic, partition)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        # It exists, but is led elsewhere or not opened yet: clients ask again.
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def is_offline(self, key: TopicPartition) -> bool:
        """Whether the log of a replica of this broker is in a failed directory, or cannot be opened."""
        return self._log_manager.is_offline(key) or self.applier.is_unopened(key)

    def __iter__(self) -> Iterator[LeaderPartition]:
        """All partitions led here."""
        return iter(self._replicas)

    def replica(self, topic: str, partition: int) -> LeaderPartition | FollowerPartition | None:
        """The partition, led or followed here: what a consumer may read from (KIP-392)."""
        return self.find(topic, partition) or self._replicas.followed.get((topic, partition))

    def followed(self) -> Iterator[FollowerPartition]:
        """All partitions that another broker leads."""
        return iter(self._replicas.followed.values())

    # -- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Lead and follow what the image says, set aside the logs of others, begin to recover."""
        self._replicas.high_watermarks_checkpointed(self._log_manager.high_watermark_checkpoints())
        set_strays_aside(self._log_manager, self._image, self._node_id)
        if self.applier.diskless is not None:
            self.applier.diskless.start()
        await self.applier.start(
            PartitionChanged(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                registration=registration,
            )
            for topic in tuple(self._image.topics.values())
            for partition, registration in tuple(topic.partitions.items())
        )

    async def apply(self, events: Sequence[Event]) -> None:
        """Do what newly durable events ask of this broker."""
        changed: dict[PartitionId, PartitionChanged] = {}
        for event in events:
            if isinstance(event, TopicDeleted):
                self.applier.delete(event.topic, event.topic_id)
            elif isinstance(event, PartitionChanged):
                changed[event.topic_id, event.partition] = event
            elif self._is_leaving(event):
                self.fetchers.stop()
        await self.applier.apply_all(changed.values())
        for event in events:
            if isinstance(event, ConfigChanged) and event.resource_type == TOPIC_RESOURCE:
                self._configure(event.resource_name)
            elif isinstance(event, RegisterBroker | UnfenceBroker):
                self.fetchers.wake(event.broker_id)

    def _is_leaving(self, event: Event) -> bool:
        """Whether this broker's controlled shutdown begins, which takes it out of all ISRs."""
        return (
            isinstance(event, BrokerRegistrationChanged)
            and event.broker_id == self._node_id
            and bool(event.in_controlled_shutdown)
        )

    def directory_failed(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop serving the logs of a directory (KIP-112)."""
        self.applier.directory_failed(partitions)

    # -- settings -----------------------------------------------------------------------------

    def configure_all(self) -> None:
        """Topics' inherited settings have changed."""
        for topic in self._replicas.topics():
            self._configure(topic)
        self.fetchers.configure()

    def _configure(self, topic: str) -> None:
        image = self._image.topics.get(topic)
        if image is None:
            return
        try:
            config = self._log_config(in_force(image.name, image.configs))
        except ConfigError as error:
            _LOGGER.error(
                "cannot apply the topic settings of %s, keeping the previous ones: %s", topic, error
            )
            return
        for partition in self._replicas.led_of(topic):
            before = partition.log.config
            if before == config:
                continue
            partition.log.update_config(config)
            partition.configured(config.min_insync_replicas)
            if before.lake_settings != config.lake_settings and not partition.leader.is_recovering:
                self.applier.update_tier(partition)
        for followed in self._replicas.followed.values():
            if followed.topic == topic and followed.log.config != config:
                followed.log.update_config(config)
                self.fetchers.configured(followed)

    # -- after an unclean stop ----------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether partitions must still be compared with the lake."""
        return any(partition.leader.is_recovering for partition in self)

    # -- periodic work ------------------------------------------------------------------------

    def tick(self) -> None:
        """Open logs that failed to open; when it is time checkpoint high watermarks and look for lagging followers."""
        now_ms = self._clock.monotonic_ms()
        if self.applier.is_stopped:
            return
        self.applier.try_again()
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._checkpoint_interval_ms
            self._checkpoint()
        if now_ms >= self._lag_due_ms:
            # At half the allowed lag, as in Kafka: so a follower is late for one and a half of it at most.
            self._lag_due_ms = now_ms + self._lag_ms_max // 2
            for partition in self:
                if partition.leader.has_followers:
                    partition.tick()

    def _checkpoint(self) -> None:
        current = {p.log.topic_partition: p.high_watermark for p in self}
        current |= {p.key: p.high_watermark for p in self._replicas.followed.values()}
        # An unchanged file is not written.
        self._log_manager.checkpoint_high_watermarks(current)
        self._replicas.high_watermarks_checkpointed(current)

    def stop(self) -> None:
        """Answer all waiting requests and accept no more; the log manager closes the logs."""
        if self.applier.is_stopped:
            return
        self.has_lost_records = any(partition.leader.has_lost_records for partition in self) or any(
            followed.has_lost_records and self._is_in_sync(followed) for followed in self.followed()
        )
        self.applier.stop()
        self.fetchers.stop()
        self._checkpoint()
        for partition in tuple(self):
            self.applier.end(partition)
        for followed in self._replicas.followed.values():
            followed.stop_following()
        self._replicas.followed.clear()

    def _is_in_sync(self, followed: FollowerPartition) -> bool:
        """Whether the cluster relies on this broker's copy of the partition."""
        registration = self._image.partition(*followed.key)
        return registration is not None and self._node_id in registration.isr
