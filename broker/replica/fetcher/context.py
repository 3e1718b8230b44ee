"""Shell: what a fetcher needs of the broker around it.

It only passes on; addresses and epochs are those of the metadata at the moment of asking.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.metadata.image import MetadataImage
from broker.rates import ByteRate
from broker.replica.throttle import is_listed
from kafka_ds.process.seams import Clock, Network
from kafka_ds.process.settings import MAX_LONG

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from broker.config.dynamic import DynamicBrokerConfig
    from broker.log.directories.log_manager import LogManager
    from broker.metrics.topics import PerTopic
    from broker.remote.remote_log_manager import RemoteLogManager
    from broker.replica.follower.partition import FollowerPartition
    from broker.replica.topic_metrics import TopicCounters


THROTTLED_REPLICAS = "follower.replication.throttled.replicas"


def _no_limit() -> int:
    return MAX_LONG


@dataclass(slots=True, kw_only=True)
class FetcherContext:
    """The machine, the metadata, the settings, the logs and the tier."""

    network: Network
    clock: Clock
    image: MetadataImage
    node_id: int
    listener: str
    """The inter-broker listener's name."""
    config: DynamicBrokerConfig
    logs: LogManager
    remote_log_manager: RemoteLogManager | None
    topic_metrics: PerTopic[TopicCounters]
    throttle: ByteRate = field(default_factory=lambda: ByteRate(_no_limit))

    @property
    def settings(self) -> BrokerConfig:
        """The current settings."""
        return self.config.current

    def _is_throttled(self, partition: FollowerPartition) -> bool:
        topic = self.image.topics.get(partition.topic)
        listed = None if topic is None else topic.configs.get(THROTTLED_REPLICAS)
        return listed is not None and is_listed(listed, partition.partition, self.node_id)

    def must_wait(self, partition: FollowerPartition) -> bool:
        """Whether the follower's throttle holds this one back (KIP-73); one that is in sync never."""
        if partition.follower.is_caught_up or not self._is_throttled(partition):
            return False
        return self.throttle.is_exceeded(self.clock.monotonic_ms())

    def came_in(self, partition: FollowerPartition, size_bytes: int) -> None:
        """Count appended bytes of a partition."""
        registered = self.image.partition(partition.topic, partition.partition)
        self.topic_metrics.of(partition.topic).replicated(
            size_bytes,
            is_reassignment=registered is not None and self.node_id in registered.adding_replicas,
        )
        if self._is_throttled(partition):
            self.throttle.record(size_bytes, self.clock.monotonic_ms())

    def address_of(self, broker_id: int) -> tuple[str, int] | None:
        """The address by which other brokers reach this one."""
        registered = self.image.brokers.get(broker_id)
        endpoint = None if registered is None else registered.endpoint(self.listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def broker_epoch(self) -> int:
        """The epoch of this broker's own registration, -1 before there is one."""
        registered = self.image.brokers.get(self.node_id)
        return -1 if registered is None else registered.broker_epoch
