"""Shell: a broker's life in its cluster: registration, heartbeats, controlled shutdown (KIP-631).

Until it is registered it serves no client; until it is unfenced it leads nothing. While another process of its node.id
has a session it tries again, up to initial.broker.registration.timeout.ms, unless that process answers. A heartbeat
reports up to where the metadata were applied here, not only read. A stopping broker stops when the controller has moved
its leaders, or has not answered for a session timeout. If the metadata show another process of the same node.id, this
one stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.metadata.events import Endpoint, SupportedFeature
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import BrokerHeartbeatRequest, BrokerRegistrationRequest
from kafka_ds.protocol.messages.brokers import BrokerRegistrationFeature, BrokerRegistrationListener
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig
    from broker.controller.metadata_driver import MetadataDriver
    from broker.log.directories.log_manager import LogManager
    from broker.membership.candidacy import Candidacy
    from broker.membership.channel import ControllerChannel
    from broker.metadata.image import BrokerRegistration
    from kafka_ds.protocol.messages import BrokerHeartbeatResponse
    from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)

# KRaft's bound on a controlled shutdown.
SHUTDOWN_SECONDS_MAX = 300.0
# While something is waited for, a heartbeat comes sooner than the interval.
SOON_SECONDS = 0.05
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
# Kafka's words.
IS_DUPLICATE = (
    "another broker is registered with that broker id. If the broker was recently restarted this should self-resolve "
    "once its session expires (broker.session.timeout.ms)"
)
# Errors that no second try will change.
REFUSED_FOR_GOOD = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "lake.uri: the controller belongs to another cluster",
    ErrorCode.INVALID_REGISTRATION: "log.dirs: another broker is registered with one of these directories",
    ErrorCode.UNSUPPORTED_VERSION: "this release does not work at the cluster's feature levels",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """A broker's registration."""

    node_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]
    features: tuple[SupportedFeature, ...]
    previous_broker_epoch: int


def advertised_endpoints(
    config: BrokerConfig, bound: Mapping[str, tuple[str, int]], own_host: str
) -> tuple[Endpoint, ...]:
    """The endpoints for clients: the advertised ones, completed with the ports of the bound sockets."""
    return tuple(
        Endpoint(
            listener=endpoint.name,
            host=endpoint.host or own_host,
            port=endpoint.port or bound[endpoint.name][1],
            security_protocol=config.protocols[endpoint.name],
        )
        for endpoint in config.advertised_endpoints
    )


class Lifecycle:
    """This broker as the controller sees it."""

    def __init__(
        self,
        identity: BrokerIdentity,
        config: BrokerConfig,
        driver: MetadataDriver,
        channel: ControllerChannel,
        candidacy: Candidacy,
        logs: LogManager,
    ) -> None:
        self.identity = identity
        self._config = config
        self._driver = driver
        self._channel = channel
        self._candidacy = candidacy
        self._logs = logs
        self._wants_shut_down = False
        self.was_registered = False

    # -- state ----------------------------------------------------------------------------------

    @property
    def registration(self) -> BrokerRegistration | None:
        """This incarnation's epoch, once it is known to be durable.

        Raises ConfigError if a later process has this node.id.
        """
        node_id = self.identity.node_id
        known = self._driver.image.brokers.get(node_id)
        if known is not None and known.incarnation_id == self.identity.incarnation_id:
            self.was_registered = True
            return known
        if known is not None and self.was_registered:
            raise ConfigError(
                f"node.id={node_id}: another broker with this node.id has registered; shutting down"
            )
        return None

    @property
    def broker_epoch(self) -> int:
        """The epoch of this process's registration; -1 before there is one, and if a later process has replaced it."""
        known = self._driver.image.brokers.get(self.identity.node_id)
        if known is None or known.incarnation_id != self.identity.incarnation_id:
            return NO_BROKER_EPOCH
        return known.broker_epoch

    @property
    def has_a_successor(self) -> bool:
        """Whether a later process has registered with this broker's node.id."""
        known = self._driver.image.brokers.get(self.identity.node_id)
        return known is not None and known.incarnation_id != self.identity.incarnation_id

    @property
    def is_fenced(self) -> bool:
        """Whether this broker is fenced."""
        known = self.registration
        return known is None or known.fenced

    # -- registration ---------------------------------------------------------------------------

    async def register(self) -> None:
        """Register; on return the metadata here includes it. Raises ConfigError if it is refused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.initial_broker_registration_timeout_ms / 1_000
        pause_seconds = self._config.broker_heartbeat_interval_ms / 1_000
        why = "no controller answers"
        while self.registration is None:
            left_ms = int((deadline - loop.time()) * 1_000)
            if left_ms <= 0:
                raise ConfigError(f"node.id={self.identity.node_id}: registration failed: {why}")
            try:
                answer = await self._channel.send(
                    self._registration_request(),
                    timeout_ms=min(left_ms, self._config.broker_session_timeout_ms),
                )
                error = ErrorCode(answer.error_code)
                why = error.name
            except KafkaError as refusal:
                error, why = refusal.code, refusal.message or refusal.code.name
            if error == ErrorCode.NONE:
                await self._seen(deadline)
                continue
            if error in REFUSED_FOR_GOOD:
                raise ConfigError(REFUSED_FOR_GOOD[error])
            if error == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                why = f"{error.name}: {IS_DUPLICATE}"
                await self._refuse_twin()
            _LOGGER.warning(
                "registration of broker %d is not accepted yet: %s", self.identity.node_id, why
            )
            await self._driver.wait_for_change(
                min(pause_seconds, max(0.001, deadline - loop.time()))
            )

    async def _refuse_twin(self) -> None:
        """Of a process that crashed the session ends; one that answers keeps it. Raises ConfigError."""
        node_id = self.identity.node_id
        known = self._driver.image.brokers.get(node_id)
        if (
            known is None
            or known.in_controlled_shutdown
            or not await self._candidacy.answers(known)
        ):
            return
        endpoint = known.endpoint(self._config.inter_broker_listener)
        assert endpoint is not None, "it answers there"
        raise ConfigError(
            f"node.id={node_id}: already in use by the broker at {endpoint.host}:{endpoint.port}"
        )

    async def _seen(self, deadline: float) -> None:
        """Wait until the registration has come back in the metadata."""
        loop = asyncio.get_running_loop()
        while self.registration is None and (left := deadline - loop.time()) > 0:
            await self._driver.wait_for_change(left)

    def _registration_request(self) -> BrokerRegistrationRequest:
        identity = self.identity
        return BrokerRegistrationRequest(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=[
                BrokerRegistrationListener(
                    name=each.listener,
                    host=each.host,
                    port=each.port,
                    security_protocol=SECURITY_PROTOCOLS[each.security_protocol],
                )
                for each in identity.endpoints
            ],
            features=[
                BrokerRegistrationFeature(
                    name=each.name,
                    min_supported_version=each.lowest,
                    max_supported_version=each.highest,
                )
                for each in identity.features
            ],
            rack=identity.rack,
            log_dirs=list(identity.log_dirs),
            previous_broker_epoch=identity.previous_broker_epoch
            if not self.was_registered
            else NO_BROKER_EPOCH,
        )

    async def unfenced(self) -> None:
        """Wait until this broker is unfenced."""
        while self.is_fenced:
            await self._driver.wait_for_change(self._config.broker_session_timeout_ms / 1_000)

    # -- heartbeats -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Send heartbeats, until cancelled."""
        interval = self._config.broker_heartbeat_interval_ms / 1_000
        # What a heartbeat changes is answered when it is durable. The next ones come all the same: it lives.
        patience_ms = self._config.broker_session_timeout_ms // 3
        while True:
            is_behind = self._driver.applied_version < self._driver.image.version
            answer = await self._beat(patience_ms)
            self._give_up_full()
            waits = answer is None or (answer.is_fenced and not self._wants_shut_down)
            waits = waits or is_behind
            await asyncio.sleep(min(SOON_SECONDS, interval) if waits else interval)

    async def _beat(self, timeout_ms: int) -> BrokerHeartbeatResponse | None:
        """Send a heartbeat; the controller's answer, or None if it is of no use."""
        known = self.registration
        if known is None:
            # Unregistered by an operator: a running broker registers again.
            await self.register()
            return None
        full = self._full_log_dirs()
        try:
            answer: BrokerHeartbeatResponse = await self._channel.send(
                BrokerHeartbeatRequest(
                    broker_id=self.identity.node_id,
                    broker_epoch=known.broker_epoch,
                    current_metadata_offset=self._driver.applied_version,
                    want_fence=False,
                    want_shut_down=self._wants_shut_down,
                    offline_log_dirs=[*self._offline_log_dirs(), *full],
                    full_log_dirs=full,
                    cordoned_log_dirs=self._logs.cordoned_directory_ids,
                ),
                timeout_ms=timeout_ms,
            )
            error, why = ErrorCode(answer.error_code), ""
        except KafkaError as refusal:
            error, why = refusal.code, refusal.message or ""
        if error == ErrorCode.NONE:
            return answer
        _LOGGER.warning("heartbeat failed: %s %s", error.name, why)
        return None

    def _offline_log_dirs(self) -> list[bytes]:
        online = self._logs.directory_ids.values()
        return [each for each in self.identity.log_dirs if each not in online]

    def _full_log_dirs(self) -> list[bytes]:
        """Of the others those with a refused partition that another replica in sync can lead, as far as is known."""
        online = self._logs.directory_ids.values()
        refused = self._logs.take_refused().items()
        full = {each for key, each in refused if self._could_be_led_elsewhere(key)}
        return [each for each in self.identity.log_dirs if each in online and each in full]

    def _could_be_led_elsewhere(self, key: TopicPartition) -> bool:
        known = self._driver.image.partition(*key)
        if known is None or self.identity.node_id not in known.isr:
            return False
        return len(known.isr) > 1 or (known.is_diskless and self.has_others())

    def _give_up_full(self) -> None:
        """Take full directories offline that the metadata show as such: their leaders have moved.

        Not before: while the controller can commit nothing, nobody else could lead, and what is here can be read.
        """
        if (known := self.registration) is not None:
            self._logs.keep_online(known.log_dirs)

    # -- controlled shutdown --------------------------------------------------------------------

    def has_others(self) -> bool:
        """Whether there is another broker that could lead."""
        return any(
            broker.is_active
            for broker in self._driver.image.brokers.values()
            if broker.broker_id != self.identity.node_id
        )

    async def shut_down(self) -> None:
        """Move this broker's leaders to others, as far as possible; `run` has ended before."""
        self._wants_shut_down = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SHUTDOWN_SECONDS_MAX
        while loop.time() < deadline:
            if self.registration is None:
                return  # Unregistered by an operator: it leads nothing.
            answer = await self._beat(self._config.broker_session_timeout_ms)
            if answer is None:
                _LOGGER.warning("stopping without a controlled shutdown: no controller answers")
                return
            if answer.should_shut_down:
                return
            await self._driver.wait_for_change(SOON_SECONDS)
        _LOGGER.warning(
            "stopping: the controller did not complete the controlled shutdown within %g s",
            SHUTDOWN_SECONDS_MAX,
        )
