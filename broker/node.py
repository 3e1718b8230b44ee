"""Shell: one broker, put together: its parts, and in what order they start and stop.

Wiring only; nothing is decided here.
- Start: first the ports are bound (so that a port in use is an error before anything is changed), then the cluster's
  metadata and the logs are read, then the broker leads its partitions, and only then it accepts clients.
- Stop: no more clients are accepted, parked requests are answered, pending writes are done; then tier, controller and
  logs are closed in this order. The clean-shutdown marker is written last.
- A user's mistake leaves as ConfigError with one line that names the setting.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import broker.handlers  # noqa: F401 - registers what is served
from broker.adoption.mark import check_adopted
from broker.cleaner.rpc import CleanerSettings
from broker.compaction.log_cleaner import LogCleaner
from broker.config.dynamic import with_committed
from broker.config.loader import BrokerConfig, LogConfigs, check_new_topic
from broker.console.server import Console
from broker.controller.controller import Controller, Defaults
from broker.controller.metadata_driver import MetadataDriver
from broker.coordinator.group.coordinator import GroupCoordinator
from broker.coordinator.offset_publisher import PUBLISH_SECONDS, OffsetPublisher
from broker.coordinator.share.coordinator import ShareCoordinator
from broker.coordinator.transaction.coordinator import TransactionCoordinator
from broker.kafka_broker import KafkaBroker
from broker.lake_store import open_exclusive, reason, store_of
from broker.log.config import LogConfig, LogManagerSettings
from broker.log.directories.directories import are_empty, disown, unowned
from broker.log.directories.log_manager import (
    FailureHandling,
    LogManager,
    LogsInCluster,
)
from broker.log.directories.metrics import log_samples
from broker.membership.lifecycle import BrokerIdentity, advertised_endpoints
from broker.membership.member import ClusterMember, MemberContext
from broker.membership.producer_ids import ProducerIds
from broker.metadata.event_lines import Logged, lines_of
from broker.metadata.events import ConfigChanged, Event
from broker.metadata.features import supported_features
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from broker.metadata.publisher import publish
from broker.metadata.topic_names import in_force
from broker.node_metrics import node_samples
from broker.node_replicas import fetcher_context_of, moves_of
from broker.registry import REGISTRY
from broker.remote.remote_log_manager import RemoteLogManager
from broker.replica.leader.alter_partition import AlterPartitionManager
from broker.replica.leader.batch_preparer import PREPARING_THREADS_MAX, BatchPreparer
from broker.replica.replica_manager import ReplicaManager
from broker.replica.serving.fetch_manager import FetchManager
from broker.replica.state_applier import LeadingContext
from broker.security.security import Security
from broker.server.dispatch import Dispatcher
from broker.server.local_request import handle_locally
from broker.server.metrics import Metrics
from broker.server.metrics_server import MetricsServer, text_source
from broker.server.server import Server, own_host
from broker.share.dead_letter_queue import DeadLetterQueue
from broker.share.share_partition_manager import SharePartitionManager
from broker.telemetry.client_instances import ClientInstances
from broker.telemetry.exporter import TelemetryExporter
from broker.transport.secure_network import inter_broker_network
from broker.worker.rpc import TierSettings
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.process.seams import Clock, Disk, Network
from kafka_ds.process.settings import ConfigError, part
from kafka_ds.process.system import ThreadBackground, halt, new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH
from kafka_ds.topic.names import CLUSTER_METADATA

if TYPE_CHECKING:
    from kafka_ds.delta.store.store import Store

log = logging.getLogger(__name__)

# Threads that wait for disks: flushes, cold reads of local files, deletions.
DISK_THREADS_MAX = 4
TICK_SECONDS = 1.0


class Node(KafkaBroker):
    """A broker with everything that belongs to it."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        disk: Disk,
        network: Network,
        *,
        open_lake: Callable[[str], Store] | None = None,
        lake_clock: LogClock | None = None,
        threads: Callable[[int, str], Executor] = ThreadPoolExecutor,
        halt: Callable[[], None] = halt,
    ) -> None:
        """What stands behind the keywords is the machine's own, unless a simulation brings another lake and threads.

        `halt` ends this process at once, where going on does harm.
        """
        self.config = config
        self._open_lake = open_lake or open_exclusive
        self._lake_clock = lake_clock
        self._log_configs = LogConfigs()
        self.clock = clock
        self.disk = disk
        self.network = inter_broker_network(network, config, lambda: self.config)
        self.metrics = Metrics()
        self.remote_log_manager = None
        self._dispatcher = Dispatcher(REGISTRY, self, self.metrics.net)
        self.server = Server(
            config,
            self._dispatcher,
            self.metrics.net,
            clock,
            credentials=lambda user, way: self.security.scram_users.credential(user, way),
            tokens=lambda token_id, way: self.security.token_logins(token_id, way),
        )
        self.keys = self.server.keys
        self._metrics_server = MetricsServer(text_source(self.metrics.samples))
        self.console = Console(self, self._dispatcher, self.metrics.net, config)
        self._executor = threads(DISK_THREADS_MAX, "disk")
        self._threads = threads
        self._ticking: asyncio.Task[None] | None = None
        self.failed = None
        self._logged: Logged = {}
        self._lost_its_disks = False
        # Whether it has all of its parts: those that need the logs or the metadata come after these.
        self._is_wired = False
        self._halt = halt
        self.preparer = BatchPreparer(threads(PREPARING_THREADS_MAX, "prepare"))
        self.fetch_manager = FetchManager(
            lambda: self.config,
            random.randrange,
            unsent_bytes=lambda: self.server.connections.unsent_bytes,
        )

    # -- beginning ----------------------------------------------------------------------------------

    async def start(self, *, serves_clients: bool = True) -> None:
        """Begin; clients are accepted when this returns, unless none are to be served."""
        self._serves_clients = serves_clients
        self.server.bind(self.network)
        if self.config.metrics_port is not None:
            host = self.config.endpoints[0].host
            self._metrics_server.bind(self.network, host, self.config.metrics_port)
            await self._metrics_server.serve()  # Already now: a recovery may take long.
        if self.config.console_port is not None and serves_clients:
            self.console.bind(self.network, self.config.console_port)
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        metadata_log = await loop.run_in_executor(self._executor, self._open_metadata)
        self.config = with_committed(self.config, self.metadata.broker_configs)
        await self.server.open(self.config)
        new_dirs = unowned(self.disk, self.config.log_dirs)
        self.log_manager = await self._open_logs()
        try:
            self._check_lake()
            if self.metadata.cluster_id is None:
                self.metadata = await loop.run_in_executor(self._executor, metadata_log.load)
            self._wire(metadata_log)
            await self._begin_unless(self.failed)
        except BaseException:
            if self._is_wired:
                await self.member.stop()
            # What was clean stays clean: the next start shall not have to recover for this one's failure.
            self.log_manager.close(self.log_manager.previous_broker_epoch)
            if not (self._is_wired and self.member.lifecycle.was_registered):
                disown(self.disk, new_dirs)
            raise
        self.metrics.add_source(lambda: node_samples(self))

    async def _begin_unless(self, failed: asyncio.Future[BaseException]) -> None:
        """Begin, but not for longer than every part of this broker works."""
        beginning = asyncio.get_running_loop().create_task(self._begin())
        try:
            await asyncio.wait((beginning, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not beginning.done():
                beginning.cancel()
                await asyncio.wait((beginning,))
        if failed.done():
            raise failed.result()
        await beginning

    async def _begin(self) -> None:
        await self.member.join()
        self._warn_of_empty_disks()
        if self.remote_log_manager is not None:
            await self.remote_log_manager.start()
        await self.metadata_driver.start_publishing(self._start_publishing)
        self.groups.start()
        self.transactions.start()
        self.shares.start()
        self.cleaner.start()
        if self.remote_log_manager is not None and self.offset_publisher is not None:
            self.remote_log_manager.spawn(self.offset_publisher.run())
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="tick")
        await self.member.live()
        self.moves.resume()
        if self._serves_clients:
            await self.server.serve()
            await self.console.serve()

    async def _start_publishing(self) -> None:
        # ConfigError where a later process has this number: in that one's epoch nothing is fetched from here.
        _ = self.member.lifecycle.registration
        # What was committed since the image was loaded: the first controller's claim sets min.insync.replicas.
        await self._configure()
        self._warn_of_other_min_isr()
        await self.security.start()
        await self.replica_manager.start()

    def _warn_of_other_min_isr(self) -> None:
        of_file = (self.config.started or self.config).topic.min_insync_replicas
        of_cluster = self.config.topic.min_insync_replicas
        if "min.insync.replicas" in self.config.origins and of_file != of_cluster:
            log.warning(
                "ignoring min.insync.replicas=%d of %s: the cluster has %d; "
                "`kafka-configs --entity-type brokers --entity-default` changes it",
                of_file,
                self.config.origins["min.insync.replicas"],
                of_cluster,
            )

    def _open_metadata(self) -> MetadataLog:
        self.store = store_of(self.config.lake_uri, self._open_lake)
        table = DeltaLog(self.store, CLUSTER_METADATA, clock=self._lake_clock)
        metadata_log = MetadataLog(self.store, log=table)
        # Disks with something on them have a cluster: where the lake has none, it may be elsewhere (`_check_lake`).
        self.metadata = metadata_log.load(begins=self._has_empty_disks())
        if self.metadata.cluster_id is None and self._has_empty_disks():
            # Brokers that begin a cluster together agree on its id before their disks bear one.
            metadata_log.found(uuid_text(new_uuid()))
            self.metadata = metadata_log.load()
            log.info(
                "lake.uri=%s held no cluster: a new, empty one begins in %s",
                self.config.lake_uri,
                self.store.uri(""),
            )
        elif self._serves_clients:
            self._lost_its_disks = (
                self.config.node_id in self.metadata.brokers and self._has_empty_disks()
            )
            check_adopted(self.disk, self.metadata, self.config)
        return metadata_log

    def _warn_of_empty_disks(self) -> None:
        """Groups begin empty, and the lake gets that soon: the last moment for a restore.

        But not before it is known that no other process has this number, and its disks.
        """
        if self._lost_its_disks:
            log.warning(
                "log.dirs are empty, though this broker was in the cluster before: if no other broker has what was "
                "in them, stop it now and run `kafka-ds restore`, or groups are lost"
            )

    def _has_empty_disks(self) -> bool:
        return are_empty(self.disk, self.config.log_dirs)

    async def _open_logs(self) -> LogManager:
        config, loop = self.config, asyncio.get_running_loop()
        manager = LogManager(
            config.log_dirs,
            part(LogManagerSettings, config),
            node_id=config.node_id,
            disk=self.disk,
            clock=self.clock,
            background=ThreadBackground(loop, self._executor),
            cluster=LogsInCluster(
                config_for=self._config_for,
                producer_id_expiration_ms=lambda: self.config.producer_id_expiration_ms,
                cluster_id=self.metadata.cluster_id,
                topic_id_for=lambda name: getattr(self.metadata.topics.get(name), "topic_id", None),
                home_for=partial(self.metadata.directory_of, broker_id=config.node_id),
            ),
            failures=FailureHandling(
                soon=loop.call_soon,
                directory_failed=self._directory_failed,
                all_failed=self._halt,
            ),
        )
        self.metrics.add_source(lambda: log_samples(manager))
        try:
            await loop.run_in_executor(self._executor, manager.load)
        except OSError as error:
            dirs = ",".join(config.log_dirs)
            raise ConfigError(f"log.dirs={dirs}: {reason(error)}") from error
        return manager

    def _check_lake(self) -> None:
        """Refuses an empty lake for the cluster of existing logs: they would be strays, and be deleted."""
        if self.metadata.cluster_id is not None:
            return
        if not any(True for _ in self.log_manager.logs()):
            log.warning(
                "lake.uri=%s holds no cluster, but log.dirs=%s were of cluster %s: a new, empty one begins with its "
                "id. If this is not wanted, stop the broker and look whether the lake's folder is mounted",
                self.config.lake_uri,
                ",".join(self.config.log_dirs),
                self.log_manager.cluster_id,
            )
        else:
            raise ConfigError(
                f"lake.uri={self.config.lake_uri} holds no cluster, but "
                f"log.dirs={','.join(self.config.log_dirs)} has the logs of cluster "
                f"{self.log_manager.cluster_id}: is the lake's folder mounted? (Logs of Apache Kafka are taken over "
                "by `kafka-ds adopt`)"
            )

    def _config_for(self, topic: str) -> LogConfig:
        known = self.metadata.topics.get(topic)
        try:
            return self._log_configs.committed(
                self.config, in_force(topic, known.configs if known else {})
            )
        except ConfigError as error:
            raise ConfigError(f"topic {topic}: {error}") from None

    def _wire(self, metadata_log: MetadataLog) -> None:
        if self.config.remote_log_storage_system_enable:
            self.remote_log_manager = RemoteLogManager(
                part(TierSettings, self.config),
                self.clock,
                lambda: self.config,
            )
        self._wire_cluster(metadata_log)
        self._wire_replicas()
        self._wire_coordinators()
        config = self.config
        self.cleaner = LogCleaner(
            part(CleanerSettings, config),
            self.log_manager,
            clock=self.clock,
            disk=self.disk,
            executor=self._executor,
        )
        self._is_wired = True

    def _wire_cluster(self, metadata_log: MetadataLog) -> None:
        config = self.config
        self.metadata_driver = MetadataDriver(
            metadata_log,
            self.metadata,
            node_id=config.node_id,
            new_controller=self._new_controller,
            executor=self._threads(1, "controller"),
            publish=self._publish,
            committed=self.remote_log_manager.cluster_events
            if self.remote_log_manager is not None
            else lambda version: None,
            failed=self._fail,
        )
        self.member = ClusterMember(
            config,
            self.metadata_driver,
            self.store,
            self._identity(),
            self.log_manager,
            MemberContext(
                lease_thread=self._threads(1, "lease"),
                clock=self.clock,
                network=self.network,
                handle_locally=partial(handle_locally, self, self._dispatcher),
                failed=self._fail,
            ),
        )
        self.security = Security(
            config,
            self.metadata,
            self.store,
            node_id=config.node_id,
            executor=self._executor,
            new_uuid=new_uuid,
            clock=self.clock,
            address_rates=self.server.connections.address_rates,
        )

    def _wire_replicas(self) -> None:
        config = self.config
        self.alter_partition_manager = AlterPartitionManager(
            self.member.channel,
            self.member.lifecycle,
            timeout_ms=config.request_timeout_ms,
        )
        self.replica_manager = ReplicaManager(
            fetcher_context_of(self),
            LeadingContext(
                log_config=lambda overrides: self._log_configs.committed(self.config, overrides),
                alter_partition=self.alter_partition_manager,
                controller=self.member.requests,
                lag_ms_max=config.replica_lag_time_max_ms,
            ),
            checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        )
        self.moves = moves_of(self)

    def _wire_coordinators(self) -> None:
        config = self.config
        self.producer_ids = ProducerIds(self.member.requests)
        self.shares = ShareCoordinator(
            config,
            partitions=self.replica_manager,
            image=self.metadata,
            clock=self.clock,
            controller=self.member.requests,
            others=self.member.others(),
        )
        self.share_partitions = SharePartitionManager(
            lambda: self.config,
            partitions=self.replica_manager,
            image=self.metadata,
            clock=self.clock,
            persister=self.shares.persister,
            dead_letters=DeadLetterQueue(
                lambda: self.config,
                others=self.member.others(),
                controller=self.member.requests,
                log_config=lambda overrides: self._log_configs.committed(self.config, overrides),
                executor=self._executor,
                clock=self.clock,
            ),
        )
        self.groups = GroupCoordinator(
            config,
            partitions=self.replica_manager,
            image=self.metadata,
            clock=self.clock,
            controller=self.member.requests,
            persister=self.shares.persister,
            others=self.member.others(),
        )
        self.transactions = TransactionCoordinator(
            config,
            partitions=self.replica_manager,
            image=self.metadata,
            clock=self.clock,
            controller=self.member.requests,
            producer_ids=self.producer_ids,
            complete_transaction=self.groups.complete_transaction,
            others=self.member.others(),
        )
        self.offset_publisher: OffsetPublisher | None = None
        if self.remote_log_manager is not None:
            self.offset_publisher = OffsetPublisher(
                self.remote_log_manager.worker.send,
                self.replica_manager,
                self.groups.runtime,
                self.shares.runtime,
                config.lake_offsets_interval_ms,
            )
        self.client_instances = ClientInstances(self.metadata)
        self.telemetry_exporter = TelemetryExporter(self.metadata, self.member)

    def _new_controller(self, image: MetadataImage) -> Controller:
        config = self.config
        # Later changes are in the image, which also has their removal.
        of_file = (config.started or config).topic
        return Controller(
            image,
            defaults=Defaults(
                num_partitions=config.num_partitions,
                replication_factor=config.default_replication_factor,
                min_insync_replicas=of_file.min_insync_replicas,
                unclean_leader_election_enable=of_file.unclean_leader_election_enable,
            ),
            new_uuid=new_uuid,
            check_configs=self._check_configs,
            session_timeout_ms=config.broker_session_timeout_ms,
        )

    async def _publish(self, events: Sequence[Event]) -> None:
        """Let what is durable now take effect: settings of this broker first, as topics inherit them."""
        if self.member.lifecycle.has_a_successor:
            # Another process leads this broker's partitions: what is appended here would be in vain.
            self.replica_manager.stop()
            return
        for text, fields in lines_of(events, self._logged):
            log.info("%s", text, extra=fields)
        publishers = (
            self.security.apply,
            self._apply_settings,
            self.replica_manager.apply,
            self.member.directories.applied,
            self.groups.apply,
            self.transactions.apply,
            self.shares.apply,
            self.client_instances.apply,
        )
        await publish(events, publishers)

    async def _apply_settings(self, events: Sequence[Event]) -> None:
        if any(isinstance(e, ConfigChanged) and e.resource_type == BROKER_RESOURCE for e in events):
            await self._configure()

    async def _configure(self) -> None:
        """Have the brokers' settings that are committed take effect."""
        self.config = with_committed(self.config, self.metadata.broker_configs)
        self.replica_manager.configure_all()
        self.cleaner.configure(part(CleanerSettings, self.config))
        await self.server.configure(self.config)

    def _check_configs(self, overrides: Mapping[str, str]) -> None:
        try:
            check_new_topic(self._log_configs.of(self.config, overrides))
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    # -- where it is --------------------------------------------------------------------------------

    @property
    def bound_address(self) -> tuple[str, int]:
        """Host and port of the first listener, as clients of this machine reach it."""
        first = self.config.endpoints[0]
        host, port = self.server.addresses[first.name]
        return (host if first.host else own_host(), port)

    def _identity(self) -> BrokerIdentity:
        """The registration of this process."""
        return BrokerIdentity(
            node_id=self.config.node_id,
            cluster_id=self.log_manager.cluster_id,
            incarnation_id=new_uuid(),
            endpoints=advertised_endpoints(self.config, self.server.addresses, own_host()),
            rack=self.config.broker_rack,
            log_dirs=tuple(self.log_manager.directory_ids.values()),
            features=supported_features(),
            previous_broker_epoch=self.log_manager.previous_broker_epoch,
        )

    def _fail(self, error: BaseException) -> None:
        """A part of this broker has ended that it cannot do without."""
        log.error("Encountered fatal fault, shutting down the broker: %s", error, exc_info=error)
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    # -- all along ----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for tick in (self._tick_logs, self.replica_manager.tick, self._tick_coordinators):
                try:
                    tick()
                except OSError as error:
                    log.error("Disk error in scheduled task %s: %s", tick.__qualname__, error)
                except Exception:  # The root of a task: an error would go unnoticed.
                    log.exception("Uncaught exception in scheduled task %s", tick.__qualname__)

    def _tick_logs(self) -> None:
        rolled = self.log_manager.tick(self.clock.now_ms())
        if self.remote_log_manager is not None:
            for each in rolled:
                self.remote_log_manager.segment_rolled(each)

    def _directory_failed(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_wired:  # Otherwise no broker serves them yet.
            self.replica_manager.directory_failed(partitions)

    def _tick_coordinators(self) -> None:
        """A log that could be opened only now is loaded, though the metadata have not changed."""
        self.groups.start()
        self.transactions.start()
        self.shares.start()

    # -- ending -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End cleanly: nothing that was acknowledged needs a recovery at the next start."""
        # Before others coordinate the groups, and once more what comes until they do.
        publisher = self.offset_publisher if self._serves_clients else None
        has_published, left_s = False, PUBLISH_SECONDS
        if publisher is not None:
            began_s = asyncio.get_running_loop().time()
            has_published = await publisher.publish_last(left_s)
            left_s -= asyncio.get_running_loop().time() - began_s
        await self.member.leave()
        if self._ticking is not None:
            self._ticking.cancel()  # not before: until then it leads
        await self.server.stop_accepting()
        await self._metrics_server.stop()
        await self.console.stop()
        await self.cleaner.stop()
        await self.moves.stop()
        if publisher is not None and has_published:
            await publisher.publish_last(left_s)
        self.groups.stop()
        self.transactions.stop()
        self.share_partitions.stop()
        self.shares.stop()
        self.telemetry_exporter.stop()
        self.alter_partition_manager.stop()
        self.security.stop()
        self.replica_manager.stop()
        self.preparer.close()
        await self.server.stop()
        if self.remote_log_manager is not None:
            await self.remote_log_manager.stop()
        await self.member.stop()
        # What still has to ask the lake must ask it at the next start: that was no clean stop.
        unasked = self.replica_manager.has_lost_records
        self.log_manager.close(NO_BROKER_EPOCH if unasked else self.member.lifecycle.broker_epoch)
        self._executor.shutdown(wait=False, cancel_futures=True)
