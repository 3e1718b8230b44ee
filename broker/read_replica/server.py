"""Shell: one read-only broker, put together: what makes its parts, and in what order they start and stop.

- Nothing is written to the lake: its store refuses (`ReadOnlyStore`). `log.dirs` have a cache of cold reads, no logs.
- Start: ports are bound, the metadata read, the lake looked through once; only then clients are accepted.
- It answers each client with itself alone: the brokers that write are not among its brokers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import broker.handlers  # noqa: F401 - registers what is served
from broker.config.dynamic import DynamicBrokerConfig
from broker.config.loader import BrokerConfig
from broker.lake_store import store_of
from broker.membership.lifecycle import advertised_endpoints
from broker.metadata.events import ConfigChanged, Event
from broker.metadata.features import supported_features
from broker.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from broker.metadata.log import MetadataLog, begins_with_snapshot
from broker.metadata.publisher import publish
from broker.metadata.topic_names import in_force
from broker.read_replica.apis import read_only_registry
from broker.read_replica.follower import LakeFollower
from broker.read_replica.groups import LakeGroups
from broker.read_replica.image import ServedImage
from broker.read_replica.partitions import LakePartitions
from broker.registry import ClientInformation
from broker.remote.remote_log_manager import RemoteLogManager
from broker.replica.serving.fetch_manager import FetchManager
from broker.security.security import Security
from broker.server.dispatch import Dispatcher
from broker.server.metrics import Metrics
from broker.server.metrics_server import MetricsServer, text_source
from broker.server.server import Server, bind, own_host
from broker.transport.secure_network import inter_broker_network
from broker.worker.rpc import TierSettings
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.process.seams import Clock, Disk, Network
from kafka_ds.process.settings import ConfigError, part
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE
from kafka_ds.topic.lake import open_lake

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker
    from broker.log.config import LogConfig
    from broker.metrics.names import MetricSample
    from broker.security.authentication.listener_keys import ListenerKeys
    from kafka_ds.delta.store.store import Store

log = logging.getLogger(__name__)

# Threads that read the metadata and credentials.
STORE_THREADS_MAX = 2


class NoSharePartitions:
    """No share consumer has anything on a read-only broker."""

    def disconnected(self, client: ClientInformation) -> None:
        """Nothing is to be given back."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadReplica:
    """The parts of a read-only broker, under the names that `KafkaBroker` has for them."""

    dynamic_config: DynamicBrokerConfig
    clock: Clock
    keys: ListenerKeys
    metadata: MetadataImage
    store: Store
    replica_manager: LakePartitions
    fetch_manager: FetchManager
    groups: LakeGroups
    share_partitions: NoSharePartitions
    security: Security
    remote_log_manager: RemoteLogManager

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now."""
        return self.dynamic_config.current


class ReadReplicaServer:
    """Starts one read-only broker, keeps it going, and stops it; as `BrokerServer` does."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        disk: Disk,
        network: Network,
        *,
        open_store: Callable[[str], Store] | None = None,
    ) -> None:
        """`disk` is not used: there are no logs. `open_store` opens the lake, for reading only."""
        self.dynamic_config = DynamicBrokerConfig(replace(config, auto_create_topics_enable=False))
        self._open_store = open_store or _open_for_reading
        self._clock = clock
        self._network = inter_broker_network(network, self.dynamic_config)
        self.metrics = Metrics()
        self.server = Server(config, self.metrics.net, clock)
        self._metrics_server: MetricsServer | None = None
        self._executor: Executor = ThreadPoolExecutor(STORE_THREADS_MAX, "lake")
        # Done when this broker cannot go on, with the reason; its owner then stops it.
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None] | None = None
        self._broker: ReadReplica | None = None

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now."""
        return self.dynamic_config.current

    async def start(self) -> ReadReplica:
        """Begin; clients are accepted when this returns. Raises ConfigError."""
        config = self.config
        self.server.bind(self._network)
        if config.metrics_port is not None:
            where = f"metrics.port={config.metrics_port}"
            bound = bind(self._network, config.endpoints[0].host, config.metrics_port, where)
            self._metrics_server = MetricsServer(text_source(self.metrics.samples), bound)
            await self._metrics_server.serve()
        loop = asyncio.get_running_loop()
        store, metadata_log, cluster = await loop.run_in_executor(self._executor, self._load)
        self.dynamic_config.apply(cluster.broker_configs)
        served = ServedImage(self._registration(), self._has_table)
        served.load(cluster)
        broker = self._broker = self._new_broker(store, served.image)
        await self.server.open(
            self.config, broker.security.scram_users.credential, broker.security.token_logins
        )
        await broker.security.start()
        follower = self._new_follower(broker, metadata_log, served)
        follower.begin()
        await follower.look()
        registry = read_only_registry(follower.know_epochs)
        # The handlers of reads use no part that a read-only broker lacks.
        dispatcher = Dispatcher(registry, cast("KafkaBroker", broker), self.metrics.net)
        self._following = loop.create_task(
            follower.run(self.config.lake_read_only_interval_ms), name="following the lake"
        )
        self._following.add_done_callback(self._ended)
        self.metrics.add_source(lambda: self._samples(broker, follower))
        await self.server.serve(dispatcher)
        return broker

    def _load(self) -> tuple[Store, MetadataLog, MetadataImage]:
        uri = self.config.lake_uri
        store = store_of(uri, self._open_store)
        is_copy = self.config.lake_read_only_replicated
        if is_copy:
            store = ArrivedStore(store, is_beginning=begins_with_snapshot)
        metadata_log = MetadataLog(store)
        cluster = metadata_log.load(begins=False)
        if cluster.cluster_id is None:
            yet = ", or not all of its metadata have arrived" if is_copy else ""
            raise ConfigError(
                f"lake.uri={uri} holds no cluster{yet}: a broker with lake.read.only=true begins none"
            )
        return store, metadata_log, cluster

    def _registration(self) -> BrokerRegistration:
        config = self.config
        return BrokerRegistration(
            broker_id=config.node_id,
            broker_epoch=0,
            incarnation_id=new_uuid(),
            endpoints=advertised_endpoints(config, self.server.addresses, own_host()),
            rack=config.broker_rack,
            features=supported_features(),
        )

    def _config_of(self, topic: TopicImage) -> LogConfig:
        return self.dynamic_config.log_config(in_force(topic.name, topic.configs))

    def _has_table(self, topic: TopicImage) -> bool:
        return self._config_of(topic).has_table

    def _new_broker(self, store: Store, image: MetadataImage) -> ReadReplica:
        config = self.config
        return ReadReplica(
            dynamic_config=self.dynamic_config,
            clock=self._clock,
            keys=self.server.keys,
            metadata=image,
            store=store,
            replica_manager=LakePartitions(image, config.node_id, self._config_of),
            fetch_manager=FetchManager(
                self.dynamic_config,
                random.randrange,
                unsent_bytes=lambda: self.server.connections.unsent_bytes,
            ),
            groups=LakeGroups(lambda: self.config, image, self._clock),
            share_partitions=NoSharePartitions(),
            security=Security(
                config,
                image,
                store,
                node_id=config.node_id,
                executor=self._executor,
                new_uuid=new_uuid,
                clock=self._clock,
                address_rates=self.server.connections.address_rates,
            ),
            # Never started: it copies, deletes and optimises nothing.
            remote_log_manager=RemoteLogManager(
                part(TierSettings, config), self._clock, lambda: self.config
            ),
        )

    def _new_follower(
        self, broker: ReadReplica, metadata_log: MetadataLog, served: ServedImage
    ) -> LakeFollower:
        async def published(events: Sequence[Event]) -> None:
            await publish(events, (broker.security.apply, self._apply_settings))

        return LakeFollower(
            metadata_log,
            served,
            broker.replica_manager,
            broker.groups,
            broker.remote_log_manager.worker,
            clock=self._clock,
            executor=self._executor,
            publish=published,
        )

    async def _apply_settings(self, events: Sequence[Event]) -> None:
        if any(isinstance(e, ConfigChanged) and e.resource_type == BROKER_RESOURCE for e in events):
            assert self._broker is not None
            self.dynamic_config.apply(self._broker.metadata.broker_configs)
            await self.server.configure(self.config)

    def _samples(self, broker: ReadReplica, follower: LakeFollower) -> list[MetricSample]:
        return [
            *broker.replica_manager.topic_metrics.samples(),
            *broker.remote_log_manager.samples(),
            *broker.fetch_manager.samples(),
            *follower.metrics.samples(self._clock.monotonic_ms(), self._clock.now_ms()),
        ]

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None or self.failed.done():
            return
        log.error("Encountered fatal fault, shutting down the broker: %s", error, exc_info=error)
        self.failed.set_result(error)

    @property
    def bound_address(self) -> tuple[str, int]:
        """Host and port of the first listener, as clients of this machine reach it."""
        return self.server.first_address

    async def stop(self) -> None:
        """End: no more clients are accepted, and those that wait are answered."""
        await self.server.stop_accepting()
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
        broker = self._broker
        if broker is not None:
            broker.security.stop()
            for partition in broker.replica_manager:
                partition.lose()
        await self.server.stop()
        if broker is not None:
            await broker.remote_log_manager.stop()
        cast("ThreadPoolExecutor", self._executor).shutdown(wait=False, cancel_futures=True)


def _open_for_reading(uri: str) -> Store:
    return open_lake(uri, is_there=False, is_read_only=True)
