"""Pure: a broker that has all of its parts, as handlers, metrics and the console are given it.

`broker.broker_server` makes it, and starts and stops the parts. Only the program's entry imports that module; otherwise
each handler would depend on what depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.compaction.log_cleaner import LogCleaner
    from broker.config.dynamic import DynamicBrokerConfig
    from broker.config.loader import BrokerConfig
    from broker.controller.metadata_driver import MetadataDriver
    from broker.coordinator.group.coordinator import GroupCoordinator
    from broker.coordinator.offset_publisher import OffsetPublisher
    from broker.coordinator.share.coordinator import ShareCoordinator
    from broker.coordinator.transaction.coordinator import TransactionCoordinator
    from broker.log.directories.log_manager import LogManager
    from broker.membership.member import ClusterMember
    from broker.membership.producer_ids import ProducerIds
    from broker.metadata.image import MetadataImage
    from broker.remote.remote_log_manager import RemoteLogManager
    from broker.replica.leader.alter_partition import AlterPartitionManager
    from broker.replica.leader.batch_preparer import BatchPreparer
    from broker.replica.moves import LogMoves
    from broker.replica.replica_manager import ReplicaManager
    from broker.replica.serving.fetch_manager import FetchManager
    from broker.security.authentication.listener_keys import ListenerKeys
    from broker.security.security import Security
    from broker.share.share_partition_manager import SharePartitionManager
    from broker.telemetry.client_instances import ClientInstances
    from broker.telemetry.exporter import TelemetryExporter
    from kafka_ds.delta.store.store import Store
    from kafka_ds.process.seams import Clock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KafkaBroker:
    """The parts of a broker."""

    dynamic_config: DynamicBrokerConfig
    clock: Clock
    keys: ListenerKeys
    metadata: MetadataImage
    store: Store
    """The lake's."""
    log_manager: LogManager
    metadata_driver: MetadataDriver
    member: ClusterMember
    producer_ids: ProducerIds
    alter_partition_manager: AlterPartitionManager
    replica_manager: ReplicaManager
    moves: LogMoves
    preparer: BatchPreparer
    fetch_manager: FetchManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareCoordinator
    share_partitions: SharePartitionManager
    cleaner: LogCleaner
    security: Security
    client_instances: ClientInstances
    telemetry_exporter: TelemetryExporter
    remote_log_manager: RemoteLogManager | None
    offset_publisher: OffsetPublisher | None

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now, dynamic ones included."""
        return self.dynamic_config.current
