"""Shell: one broker, put together: what makes its parts, and in what order they start and stop.

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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import broker.handlers  # noqa: F401 - registers what is served
from broker.adoption.mark import check_adopted
from broker.broker_metrics import broker_samples
from broker.cleaner.rpc import CleanerSettings
from broker.compaction.log_cleaner import LogCleaner
from broker.config.dynamic import DynamicBrokerConfig
from broker.config.loader import BrokerConfig
from broker.console.server import Console
from broker.controller.controller import Controller, Defaults
from broker.controller.metadata_driver import MetadataDriver
from broker.coordinator.group.coordinator import GroupCoordinator
from broker.coordinator.offset_publisher import PUBLISH_SECONDS, OffsetPublisher
from broker.coordinator.share.coordinator import ShareCoordinator
from broker.coordinator.transaction.coordinator import TransactionCoordinator
from broker.diskless.write_ahead_log import WAL_THREADS_MAX, WalSettings, WriteAheadLog
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
from broker.metadata.events import ConfigChanged, Event, WalId
from broker.metadata.features import supported_features
from broker.metadata.image import MetadataImage
from broker.metadata.log import FencedCluster, MetadataLog, refuse_if_fenced
from broker.metadata.publisher import publish
from broker.metadata.topic_names import in_force
from broker.rates import ByteRate
from broker.registry import REGISTRY
from broker.remote.remote_log_manager import RemoteLogManager
from broker.replica.fetcher.context import FetcherContext
from broker.replica.leader.alter_partition import AlterPartitionManager
from broker.replica.leader.batch_preparer import PREPARING_THREADS_MAX, BatchPreparer
from broker.replica.moves import LogMoves, LogMovesContext
from broker.replica.replica_manager import ReplicaManager
from broker.replica.serving.fetch_manager import FetchManager
from broker.replica.state_applier import LeadingContext
from broker.replica.topic_metrics import topic_metrics
from broker.security.security import Security
from broker.server.dispatch import Dispatcher
from broker.server.local_request import handle_locally
from broker.server.metrics import Metrics
from broker.server.metrics_server import MetricsServer, text_source
from broker.server.server import Server, bind, own_host
from broker.share.dead_letter_queue import DeadLetterQueue
from broker.share.share_partition_manager import SharePartitionManager
from broker.telemetry.client_instances import ClientInstances
from broker.telemetry.exporter import TelemetryExporter
from broker.transport.secure_network import inter_broker_network
from broker.worker.rpc import TierSettings
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.process.seams import BoundListener, Clock, Disk, Network
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


class BrokerServer:
    """Starts one broker, keeps it going, and stops it."""

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
        self.dynamic_config = DynamicBrokerConfig(config)
        self._open_lake = open_lake or open_exclusive
        self._lake_clock = lake_clock
        self._clock = clock
        self._disk = disk
        self._network = inter_broker_network(network, self.dynamic_config)
        self.metrics = Metrics()
        self.server = Server(config, self.metrics.net, clock)
        self._metrics_server: MetricsServer | None = None
        self.console: Console | None = None
        self._executor = threads(DISK_THREADS_MAX, "disk")
        self._threads = threads
        self._ticking: asyncio.Task[None] | None = None
        # Done when this broker cannot go on, with the reason; its owner then stops it.
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._logged: Logged = {}
        self._halt = halt
        # Has the broker, whose parts can be made once the metadata and the logs are read.
        self.dispatcher: Dispatcher | None = None

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now."""
        return self.dynamic_config.current

    @property
    def broker(self) -> KafkaBroker:
        """The broker with all of its parts."""
        assert self.dispatcher is not None, "metadata and logs are not read yet"
        return self.dispatcher.broker

    # -- beginning ----------------------------------------------------------------------------------

    async def start(self, *, serves_clients: bool = True) -> KafkaBroker:
        """Begin; clients are accepted when this returns, unless none are to be served."""
        config, loop = self.config, asyncio.get_running_loop()
        self.server.bind(self._network)
        if config.metrics_port is not None:
            bound = self._bind("metrics.port", config.endpoints[0].host, config.metrics_port)
            self._metrics_server = MetricsServer(text_source(self.metrics.samples), bound)
            await self._metrics_server.serve()  # Already now: a recovery may take long.
        console_listener = None
        if config.console_port is not None and serves_clients:
            console_listener = self._bind("console.port", config.console_host, config.console_port)
        store, metadata_log, image = await loop.run_in_executor(
            self._executor, self._open_metadata, serves_clients
        )
        lost_its_disks = (
            serves_clients and config.node_id in image.brokers and self._has_empty_disks()
        )
        self.dynamic_config.apply(image.broker_configs)
        security = self._new_security(store, image)
        await self.server.open(self.config, security.scram_users.credential, security.token_logins)
        new_dirs = unowned(self._disk, config.log_dirs)
        logs = await self._open_logs(image)
        try:
            self._check_lake(image, logs)
            if image.cluster_id is None:
                load = partial(metadata_log.load, into=image)
                await loop.run_in_executor(self._executor, load)
            broker = self._new_broker(
                store, metadata_log, image, security, logs, serves_clients=serves_clients
            )
            apis = REGISTRY.enabled(unstable_versions=config.unstable_api_versions_enable)
            self.dispatcher = Dispatcher(apis, broker, self.metrics.net)
            await self._unless_failed(self._begin(broker, lost_its_disks=lost_its_disks))
            if serves_clients:
                await self._unless_failed(self._serve(self.dispatcher, console_listener))
        except BaseException:
            if self.dispatcher is not None:
                await self.broker.member.stop()
            # What was clean stays clean: the next start shall not have to recover for this one's failure.
            logs.close(logs.previous_broker_epoch)
            if self.dispatcher is None or not self.broker.member.lifecycle.was_registered:
                disown(self._disk, new_dirs)
            raise
        self.metrics.add_source(lambda: broker_samples(broker))
        return broker

    def _bind(self, setting: str, host: str, port: int) -> BoundListener:
        return bind(self._network, host, port, f"{setting}={port}")

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this, but not for longer than every part of this broker works."""
        working = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait((working, self.failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
        if self.failed.done():
            raise self.failed.result()
        await working

    async def _begin(self, broker: KafkaBroker, *, lost_its_disks: bool) -> None:
        await broker.member.join()
        if lost_its_disks:
            # Groups begin empty, and the lake gets that soon: the last moment for a restore. But not before it is known
            # that no other process has this number, and its disks.
            log.warning(
                "log.dirs are empty, though this broker was in the cluster before: if no other broker has what was "
                "in them, stop it now and run `kafka-ds restore`, or groups are lost"
            )
        if broker.remote_log_manager is not None:
            await broker.remote_log_manager.start()
        await broker.metadata_driver.start_publishing(
            partial(self._start_publishing, broker), partial(self._publish, broker)
        )
        broker.groups.start()
        broker.transactions.start()
        broker.shares.start()
        broker.cleaner.start()
        if broker.remote_log_manager is not None and broker.offset_publisher is not None:
            broker.remote_log_manager.spawn(broker.offset_publisher.run())
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="tick")
        await broker.member.live()
        await (
            broker.metadata_driver.applied()
        )  # The elections of this broker: clients know of them.
        broker.moves.resume()

    async def _serve(self, dispatcher: Dispatcher, console_listener: BoundListener | None) -> None:
        await self.server.serve(dispatcher)
        if console_listener is not None:
            self.console = Console(dispatcher, self.metrics.net, console_listener)
            await self.console.serve()

    async def _start_publishing(self, broker: KafkaBroker) -> None:
        # ConfigError where a later process has this number: in that one's epoch nothing is fetched from here.
        _ = broker.member.lifecycle.registration
        # What was committed since the image was loaded: the first controller's claim sets min.insync.replicas.
        await self._configure(broker)
        self._warn_of_other_min_isr()
        await broker.security.start()
        await broker.replica_manager.start()

    def _warn_of_other_min_isr(self) -> None:
        config = self.config
        of_file = (config.started or config).topic.min_insync_replicas
        of_cluster = config.topic.min_insync_replicas
        if "min.insync.replicas" in config.origins and of_file != of_cluster:
            log.warning(
                "ignoring min.insync.replicas=%d of %s: the cluster has %d; "
                "`kafka-configs --entity-type brokers --entity-default` changes it",
                of_file,
                config.origins["min.insync.replicas"],
                of_cluster,
            )

    def _open_metadata(self, serves_clients: bool) -> tuple[Store, MetadataLog, MetadataImage]:
        config = self.config
        store = store_of(config.lake_uri, self._open_lake)
        table = DeltaLog(store, CLUSTER_METADATA, clock=self._lake_clock)
        metadata_log = MetadataLog(store, log=table)
        # Disks with something on them have a cluster: where the lake has none, it may be elsewhere (`_check_lake`).
        image = metadata_log.load(begins=self._has_empty_disks())
        if image.cluster_id is None and self._has_empty_disks():
            # Brokers that begin a cluster together agree on its id before their disks bear one.
            metadata_log.found(uuid_text(new_uuid()))
            image = metadata_log.load()
            log.info(
                "lake.uri=%s held no cluster: a new, empty one begins in %s",
                config.lake_uri,
                store.uri(""),
            )
        elif serves_clients:
            check_adopted(self._disk, image, config)
        refuse_if_fenced(image, metadata_log.folder)
        return store, metadata_log, image

    def _has_empty_disks(self) -> bool:
        return are_empty(self._disk, self.config.log_dirs)

    async def _open_logs(self, image: MetadataImage) -> LogManager:
        config, loop = self.config, asyncio.get_running_loop()
        manager = LogManager(
            config.log_dirs,
            part(LogManagerSettings, config),
            node_id=config.node_id,
            disk=self._disk,
            clock=self._clock,
            background=ThreadBackground(loop, self._executor),
            cluster=LogsInCluster(
                config_for=partial(self._config_for, image),
                producer_id_expiration_ms=lambda: self.config.producer_id_expiration_ms,
                cluster_id=image.cluster_id,
                topic_id_for=lambda name: getattr(image.topics.get(name), "topic_id", None),
                home_for=partial(image.directory_of, broker_id=config.node_id),
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

    def _check_lake(self, image: MetadataImage, logs: LogManager) -> None:
        """Refuses an empty lake for the cluster of existing logs: they would be strays, and be deleted."""
        if image.cluster_id is not None:
            return
        config = self.config
        if not any(True for _ in logs.logs()):
            log.warning(
                "lake.uri=%s holds no cluster, but log.dirs=%s were of cluster %s: a new, empty one begins with its "
                "id. If this is not wanted, stop the broker and look whether the lake's folder is mounted",
                config.lake_uri,
                ",".join(config.log_dirs),
                logs.cluster_id,
            )
        else:
            raise ConfigError(
                f"lake.uri={config.lake_uri} holds no cluster, but "
                f"log.dirs={','.join(config.log_dirs)} has the logs of cluster "
                f"{logs.cluster_id}: is the lake's folder mounted? (Logs of Apache Kafka are taken over "
                "by `kafka-ds adopt`)"
            )

    def _config_for(self, image: MetadataImage, topic: str) -> LogConfig:
        known = image.topics.get(topic)
        try:
            return self.dynamic_config.log_config(in_force(topic, known.configs if known else {}))
        except ConfigError as error:
            raise ConfigError(f"topic {topic}: {error}") from None

    # -- its parts ----------------------------------------------------------------------------------

    def _new_broker(
        self,
        store: Store,
        metadata_log: MetadataLog,
        image: MetadataImage,
        security: Security,
        logs: LogManager,
        *,
        serves_clients: bool,
    ) -> KafkaBroker:
        config = self.config
        tier: RemoteLogManager | None = None
        if config.remote_log_storage_system_enable:
            settings = part(TierSettings, config)
            tier = RemoteLogManager(settings, self._clock, lambda: self.config)
        driver = self._new_metadata_driver(metadata_log, image, tier)
        member = self._new_member(driver, store, logs)
        alter_partition_manager = AlterPartitionManager(
            member.channel, member.lifecycle, timeout_ms=config.request_timeout_ms
        )
        wal = self._new_wal(store, member) if tier is not None else None
        leading = self._leading(member, alter_partition_manager, wal)
        replicas = self._new_replica_manager(image, logs, tier, leading)
        producer_ids = ProducerIds(member.requests)
        shares, groups, transactions = self._new_coordinators(member, replicas, producer_ids)
        # A restore must not publish that there are no groups, while it brings them back from what was published.
        offset_publisher = None
        if tier is not None and serves_clients:
            offset_publisher = self._new_offset_publisher(tier, replicas, groups, shares)
        return KafkaBroker(
            dynamic_config=self.dynamic_config,
            clock=self._clock,
            keys=self.server.keys,
            metadata=image,
            store=store,
            log_manager=logs,
            metadata_driver=driver,
            member=member,
            producer_ids=producer_ids,
            alter_partition_manager=alter_partition_manager,
            replica_manager=replicas,
            moves=self._new_moves(logs, member),
            preparer=BatchPreparer(self._threads(PREPARING_THREADS_MAX, "prepare")),
            fetch_manager=FetchManager(
                self.dynamic_config,
                random.randrange,
                unsent_bytes=lambda: self.server.connections.unsent_bytes,
            ),
            groups=groups,
            transactions=transactions,
            shares=shares,
            share_partitions=self._new_share_partitions(member, replicas, shares),
            cleaner=LogCleaner(
                part(CleanerSettings, config),
                logs,
                clock=self._clock,
                disk=self._disk,
                executor=self._executor,
            ),
            security=security,
            client_instances=ClientInstances(image),
            telemetry_exporter=TelemetryExporter(image, member),
            remote_log_manager=tier,
            offset_publisher=offset_publisher,
        )

    def _new_offset_publisher(
        self,
        tier: RemoteLogManager,
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        shares: ShareCoordinator,
    ) -> OffsetPublisher:
        return OffsetPublisher(
            tier.worker.send,
            replicas,
            groups.runtime,
            shares.runtime,
            self.config.lake_offsets_interval_ms,
        )

    def _new_wal(self, store: Store, member: ClusterMember) -> WriteAheadLog:
        """What this broker's diskless partitions are put into."""
        dynamic = self.dynamic_config

        def wal_id() -> WalId | None:
            epoch = member.lifecycle.broker_epoch
            return None if epoch == NO_BROKER_EPOCH else WalId(self.config.node_id, epoch)

        def settings() -> WalSettings:
            config = dynamic.current
            return WalSettings(
                linger_ms=config.lake_diskless_linger_ms,
                batch_bytes=config.lake_diskless_batch_bytes,
                buffer_bytes=config.lake_diskless_buffer_bytes,
            )

        return WriteAheadLog(
            store,
            wal_id,
            settings,
            clock=self._clock,
            executor=self._threads(WAL_THREADS_MAX, "wal"),
            new_id=new_uuid,
            failed=self._fail,
        )

    def _new_security(self, store: Store, image: MetadataImage) -> Security:
        config = self.config
        return Security(
            config,
            image,
            store,
            node_id=config.node_id,
            executor=self._executor,
            new_uuid=new_uuid,
            clock=self._clock,
            address_rates=self.server.connections.address_rates,
        )

    def _new_metadata_driver(
        self, metadata_log: MetadataLog, image: MetadataImage, tier: RemoteLogManager | None
    ) -> MetadataDriver:
        return MetadataDriver(
            metadata_log,
            image,
            node_id=self.config.node_id,
            controller=self._new_controller(image.copy()),
            executor=self._threads(1, "controller"),
            committed=tier.cluster_events if tier is not None else lambda version: None,
            failed=self._fail,
        )

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

    def _new_member(self, driver: MetadataDriver, store: Store, logs: LogManager) -> ClusterMember:
        config = self.config
        identity = BrokerIdentity(
            node_id=config.node_id,
            cluster_id=logs.cluster_id,
            incarnation_id=new_uuid(),
            endpoints=advertised_endpoints(config, self.server.addresses, own_host()),
            rack=config.broker_rack,
            log_dirs=tuple(logs.directory_ids.values()),
            features=supported_features(),
            previous_broker_epoch=logs.previous_broker_epoch,
        )
        return ClusterMember(
            config,
            driver,
            store,
            identity,
            logs,
            MemberContext(
                lease_thread=self._threads(1, "lease"),
                clock=self._clock,
                network=self._network,
                handle_locally=self._handle_locally,
                failed=self._fail,
            ),
        )

    def _new_replica_manager(
        self,
        image: MetadataImage,
        logs: LogManager,
        tier: RemoteLogManager | None,
        leading: LeadingContext,
    ) -> ReplicaManager:
        dynamic, config = self.dynamic_config, self.config
        return ReplicaManager(
            FetcherContext(
                network=self._network,
                clock=self._clock,
                image=image,
                node_id=config.node_id,
                listener=config.inter_broker_listener,
                config=dynamic,
                logs=logs,
                remote_log_manager=tier,
                topic_metrics=topic_metrics(),
                throttle=ByteRate(
                    lambda: dynamic.current.follower_replication_throttled_rate,
                    samples_max=config.replication_quota_window_num,
                    sample_ms=config.replication_quota_window_size_seconds * 1_000,
                ),
            ),
            leading,
            checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        )

    def _leading(
        self,
        member: ClusterMember,
        alter_partition_manager: AlterPartitionManager,
        wal: WriteAheadLog | None,
    ) -> LeadingContext:
        return LeadingContext(
            log_config=self.dynamic_config.log_config,
            alter_partition=alter_partition_manager,
            controller=member.requests,
            lag_ms_max=self.config.replica_lag_time_max_ms,
            wal=wal,
        )

    def _new_moves(self, logs: LogManager, member: ClusterMember) -> LogMoves:
        """What moves replicas between the broker's directories."""
        dynamic, config = self.dynamic_config, self.config
        context = LogMovesContext(
            clock=self._clock,
            throttle=ByteRate(
                lambda: dynamic.current.replica_alter_log_dirs_io_max_bytes_per_second,
                samples_max=config.alter_log_dirs_replication_quota_window_num,
                sample_ms=config.alter_log_dirs_replication_quota_window_size_seconds * 1_000,
            ),
            at_once=config.num_replica_alter_log_dirs_threads or len(config.log_dirs),
            backoff_ms=config.replica_fetch_backoff_ms,
            node_id=config.node_id,
            directories=member.directories,
            driver=member.driver,
        )
        return LogMoves(logs, context)

    def _new_coordinators(
        self, member: ClusterMember, replicas: ReplicaManager, producer_ids: ProducerIds
    ) -> tuple[ShareCoordinator, GroupCoordinator, TransactionCoordinator]:
        config, image = self.config, member.driver.image
        shares = ShareCoordinator(
            config,
            partitions=replicas,
            image=image,
            clock=self._clock,
            controller=member.requests,
            others=member.others(),
        )
        groups = GroupCoordinator(
            self.dynamic_config,
            partitions=replicas,
            image=image,
            clock=self._clock,
            controller=member.requests,
            persister=shares.persister,
            others=member.others(),
        )
        transactions = TransactionCoordinator(
            config,
            partitions=replicas,
            image=image,
            clock=self._clock,
            controller=member.requests,
            producer_ids=producer_ids,
            complete_transaction=groups.complete_transaction,
            others=member.others(),
        )
        return shares, groups, transactions

    def _new_share_partitions(
        self, member: ClusterMember, replicas: ReplicaManager, shares: ShareCoordinator
    ) -> SharePartitionManager:
        return SharePartitionManager(
            self.dynamic_config,
            partitions=replicas,
            image=member.driver.image,
            clock=self._clock,
            persister=shares.persister,
            dead_letters=DeadLetterQueue(
                self.dynamic_config,
                others=member.others(),
                controller=member.requests,
                executor=self._executor,
                clock=self._clock,
            ),
        )

    # -- what its parts call ------------------------------------------------------------------------

    async def _handle_locally(self, request: Any) -> Any:
        """Answer a part that asks the controller, which is here."""
        assert self.dispatcher is not None
        return await handle_locally(self.dispatcher, request)

    async def _publish(self, broker: KafkaBroker, events: Sequence[Event]) -> None:
        """Let what is durable now take effect: settings of this broker first, as topics inherit them."""
        try:
            refuse_if_fenced(broker.metadata, broker.metadata_driver.folder)
        except FencedCluster as error:
            # What is acknowledged from now on would be lost: nothing more is.
            broker.replica_manager.stop()
            self._fail(error)
            return
        if broker.member.lifecycle.has_a_successor:
            # Another process leads this broker's partitions: what is appended here would be in vain.
            broker.replica_manager.stop()
            return
        for text, fields in lines_of(events, self._logged):
            log.info("%s", text, extra=fields)
        publishers = (
            broker.security.apply,
            partial(self._apply_settings, broker),
            broker.replica_manager.apply,
            broker.member.directories.applied,
            broker.groups.apply,
            broker.transactions.apply,
            broker.shares.apply,
            broker.client_instances.apply,
        )
        await publish(events, publishers)

    async def _apply_settings(self, broker: KafkaBroker, events: Sequence[Event]) -> None:
        if any(isinstance(e, ConfigChanged) and e.resource_type == BROKER_RESOURCE for e in events):
            await self._configure(broker)

    async def _configure(self, broker: KafkaBroker) -> None:
        """Have the brokers' settings that are committed take effect."""
        self.dynamic_config.apply(broker.metadata.broker_configs)
        broker.log_manager.update_cordoned_log_dirs(broker.config.cordoned_log_dirs)
        broker.replica_manager.configure_all()
        broker.cleaner.configure(part(CleanerSettings, broker.config))
        if broker.remote_log_manager is not None:
            broker.remote_log_manager.configure(part(TierSettings, broker.config))
        await self.server.configure(broker.config)

    def _check_configs(self, overrides: Mapping[str, str]) -> None:
        try:
            self.dynamic_config.check_new_topic(overrides)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _directory_failed(self, partitions: Sequence[TopicPartition]) -> None:
        if self.dispatcher is not None:  # Otherwise no broker serves them yet.
            self.broker.replica_manager.directory_failed(partitions)

    def _fail(self, error: BaseException) -> None:
        """A part of this broker has ended that it cannot do without."""
        is_bug = not isinstance(error, ConfigError)
        log.error(
            "Encountered fatal fault, shutting down the broker: %s",
            error,
            exc_info=error if is_bug else None,
        )
        if not self.failed.done():
            self.failed.set_result(error)

    @property
    def bound_address(self) -> tuple[str, int]:
        """Host and port of the first listener, as clients of this machine reach it."""
        return self.server.first_address

    # -- all along ----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            replicas = self.broker.replica_manager
            for tick in (self._tick_logs, replicas.tick, self._tick_coordinators):
                try:
                    tick()
                except OSError as error:
                    log.error("Disk error in scheduled task %s: %s", tick.__qualname__, error)
                except Exception:  # The root of a task: an error would go unnoticed.
                    log.exception("Uncaught exception in scheduled task %s", tick.__qualname__)

    def _tick_logs(self) -> None:
        rolled = self.broker.log_manager.tick(self._clock.now_ms())
        if self.broker.remote_log_manager is not None:
            for each in rolled:
                self.broker.remote_log_manager.segment_rolled(each)

    def _tick_coordinators(self) -> None:
        """A log that could be opened only now is loaded, though the metadata have not changed."""
        self.broker.groups.start()
        self.broker.transactions.start()
        self.broker.shares.start()

    # -- ending -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End cleanly: nothing that was acknowledged needs a recovery at the next start."""
        broker = self.broker
        # Before others coordinate the groups, and once more what comes until they do.
        has_published, left_s = False, PUBLISH_SECONDS
        if broker.offset_publisher is not None:
            began_s = asyncio.get_running_loop().time()
            has_published = await broker.offset_publisher.publish_last(left_s)
            left_s -= asyncio.get_running_loop().time() - began_s
        await broker.member.leave()
        if self._ticking is not None:
            self._ticking.cancel()  # not before: until then it leads
        await self.server.stop_accepting()
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        if self.console is not None:
            await self.console.stop()
        await broker.cleaner.stop()
        await broker.moves.stop()
        if broker.offset_publisher is not None and has_published:
            await broker.offset_publisher.publish_last(left_s)
        broker.groups.stop()
        broker.transactions.stop()
        broker.share_partitions.stop()
        broker.shares.stop()
        broker.telemetry_exporter.stop()
        broker.alter_partition_manager.stop()
        broker.security.stop()
        broker.replica_manager.stop()
        broker.preparer.close()
        await self.server.stop()
        if broker.remote_log_manager is not None:
            await broker.remote_log_manager.stop()
        await broker.member.stop()
        # What still has to ask the lake must ask it at the next start: that was no clean stop.
        unasked = broker.replica_manager.has_lost_records
        epoch = NO_BROKER_EPOCH if unasked else broker.member.lifecycle.broker_epoch
        broker.log_manager.close(epoch)
        self._executor.shutdown(wait=False, cancel_futures=True)
