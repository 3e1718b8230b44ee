"""Shell: what a fetcher needs of the broker around it.

It only passes on; addresses and epochs are those of the metadata at the moment of asking.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.log.values import RemoteLogAuxState
from broker.metadata.image import MetadataImage
from broker.rates import ByteRate
from broker.replica.throttle import is_listed
from kafka_ds.process.seams import Clock, Network
from kafka_ds.process.settings import MAX_LONG
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from broker.replica.follower.partition import FollowerPartition


THROTTLED_REPLICAS = "follower.replication.throttled.replicas"


def _no_limit() -> int:
    return MAX_LONG


async def _no_lake(partition: FollowerPartition, _: int | None) -> tuple[int, RemoteLogAuxState]:
    raise KafkaError(
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
        f"{partition.key} is tiered, but remote.log.storage.system.enable=false on this broker",
    )


async def _nothing_written(_: str) -> None:
    """No recovery points are kept."""


@dataclass(slots=True, kw_only=True)
class FetcherContext:
    """The machine, the metadata, the settings, and callbacks.

    `write_recovery_points` makes lowered recovery points durable in the directory of the log in this folder (OSError if
    it cannot). `end_of_lake` gives the first offset after the lake's range that holds an offset (None: after the lake's
    last range), and the state that the lake has there besides records (KafkaError if it is not available).
    """

    network: Network
    clock: Clock
    image: MetadataImage
    node_id: int
    listener: str
    """The inter-broker listener's name."""
    config: Callable[[], BrokerConfig]
    """The current settings."""
    write_recovery_points: Callable[[str], Awaitable[None]] = _nothing_written
    end_of_lake: Callable[
        [FollowerPartition, int | None], Awaitable[tuple[int, RemoteLogAuxState]]
    ] = _no_lake
    count_bytes_in: Callable[[FollowerPartition, int], None] = lambda _partition, _bytes: None
    throttle: ByteRate = field(default_factory=lambda: ByteRate(_no_limit))

    @property
    def settings(self) -> BrokerConfig:
        """The current settings."""
        return self.config()

    def _is_throttled(self, partition: FollowerPartition) -> bool:
        topic = self.image.topics.get(partition.topic)
        listed = None if topic is None else topic.configs.get(THROTTLED_REPLICAS)
        return listed is not None and is_listed(listed, partition.partition, self.node_id)

    def must_wait(self, partition: FollowerPartition) -> bool:
        """Whether the follower's throttle holds this one back (KIP-73); one that is in sync never."""
        if partition.follower.is_in_sync or not self._is_throttled(partition):
            return False
        return self.throttle.is_exceeded(self.clock.monotonic_ms())

    def came_in(self, partition: FollowerPartition, size_bytes: int) -> None:
        """Count appended bytes of a partition."""
        self.count_bytes_in(partition, size_bytes)
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
