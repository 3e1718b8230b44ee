"""Pure: the parts of a broker, as seen by handlers, metrics and whatever else works with a whole broker.

It names parts and makes none. `broker.node` makes and owns them. Only the program's entry imports `broker.node`;
otherwise each handler would depend on what depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from broker.compaction.log_cleaner import LogCleaner
    from broker.config.loader import BrokerConfig
    from broker.controller.metadata_driver import MetadataDriver
    from broker.coordinator.group.coordinator import GroupCoordinator
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
    from kafka_ds.process.seams import Clock, Disk, Network


class KafkaBroker:
    """What a broker is made of; those after the blank line are there once it has started."""

    config: BrokerConfig  # in force now, dynamic settings included
    clock: Clock
    disk: Disk
    network: Network
    preparer: BatchPreparer
    fetch_manager: FetchManager
    keys: ListenerKeys
    # Done when this broker cannot go on, with the reason; its owner then stops it.
    failed: asyncio.Future[BaseException] | None

    metadata: MetadataImage
    store: Store  # of the lake
    log_manager: LogManager
    replica_manager: ReplicaManager
    metadata_driver: MetadataDriver
    member: ClusterMember
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareCoordinator
    share_partitions: SharePartitionManager
    cleaner: LogCleaner
    alter_partition_manager: AlterPartitionManager
    moves: LogMoves
    security: Security
    client_instances: ClientInstances
    telemetry_exporter: TelemetryExporter
    remote_log_manager: RemoteLogManager | None
