"""Shell: one broker's membership of its cluster: candidate, follower, controller, registered broker.

Wiring and order only.
- Joining: a broker that may become the controller at once does so, and registers itself in the same commit; all others
  follow and ask to be registered.
- Each part has connections of its own, so that none waits behind another one's requests.
- Leaving: leaders are handed over while everything still works; then the controller stops deciding, and says so.
- A part that fails stops the broker (`failed`): a broker that does not follow must not continue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.controller.draft import ControllerResult
from broker.controller.duties import Duties
from broker.membership.candidacy import Candidacy
from broker.membership.channel import ControllerChannel, endpoint_of
from broker.membership.directories import DirectoryAssignments
from broker.membership.lifecycle import (
    REFUSED_FOR_GOOD,
    BrokerIdentity,
    Lifecycle,
)
from broker.membership.metadata_fetcher import MetadataFetcher
from broker.membership.other_brokers import OtherBrokers
from broker.membership.requests import ControllerRequests
from broker.metadata.events import ClusterCreated
from broker.metadata.log import refuse_if_fenced
from broker.transport.peers import Peers
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig
    from broker.controller.controller import Controller
    from broker.controller.metadata_driver import ControllerClaim, MetadataDriver
    from broker.log.directories.log_manager import LogManager
    from kafka_ds.delta.store.store import Store
    from kafka_ds.process.seams import Clock, Network


_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberContext:
    """What a membership needs of the machine, and of the broker: its answers to itself, and its end."""

    lease_thread: Executor
    clock: Clock
    network: Network
    handle_locally: Callable[[Any], Awaitable[Any]]
    failed: Callable[[BaseException], None]


class ClusterMember:
    """This broker in its cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        driver: MetadataDriver,
        store: Store,
        identity: BrokerIdentity,
        logs: LogManager,
        context: MemberContext,
    ) -> None:
        self._config = config
        self.driver = driver
        self._context = context
        self.peers: list[Peers] = []
        self._peers = self._new_peers()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.channel = self._new_channel()
        self.candidacy = Candidacy(
            config,
            driver,
            store,
            executor=context.lease_thread,
            clock=context.clock,
            network=context.network,
            chance=random.random,
            decide_claim=self._decide_claim,
        )
        self.lifecycle = Lifecycle(
            identity, config, driver, self._new_channel(), self.candidacy, logs
        )
        self.requests = ControllerRequests(
            driver, self.channel, self.lifecycle, request_timeout_ms=config.request_timeout_ms
        )
        self.following = MetadataFetcher(
            driver,
            self._new_peers(),
            self.candidacy,
            node_id=config.node_id,
            listener=config.inter_broker_listener,
            patience_ms=config.broker_session_timeout_ms // 3,
        )
        self.directories = DirectoryAssignments(
            driver,
            self.channel,
            self.lifecycle,
            logs,
            request_timeout_ms=config.request_timeout_ms,
        )
        self.duties = self._new_duties()

    def others(self) -> OtherBrokers:
        """How parts of this broker reach other brokers."""
        config = self._config
        return OtherBrokers(
            node_id=config.node_id,
            image=self.driver.image,
            listener=config.inter_broker_listener,
            new_peers=self._new_peers,
            timeout_ms=config.request_timeout_ms,
        )

    async def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Any:
        """Another broker's answer."""
        place = endpoint_of(self.driver.image, broker_id, self._config.inter_broker_listener)
        if place is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return await self._peers.send(broker_id, *place, request, timeout_ms=timeout_ms)

    def _new_peers(self) -> Peers:
        peers = Peers(self._context.network, client_id=f"broker-{self._config.node_id}")
        self.peers.append(peers)
        return peers

    def _new_channel(self) -> ControllerChannel:
        return ControllerChannel(
            self.driver,
            self._new_peers(),
            listener=self._config.inter_broker_listener,
            handle_locally=self._context.handle_locally,
        )

    def _new_duties(self) -> Duties:
        config = self._config
        balance_ms = config.leader_imbalance_check_interval_seconds * 1_000
        return Duties(
            self.driver,
            self._context.clock,
            session_timeout_ms=config.broker_session_timeout_ms,
            balance_interval_ms=balance_ms if config.auto_leader_rebalance_enable else None,
            token_check_interval_ms=config.delegation_token_expiry_check_interval_ms,
        )

    # -- joining --------------------------------------------------------------------------------

    async def join(self) -> None:
        """Register; the metadata here are current then. Raises ConfigError if that is impossible."""
        listener, endpoints = self._config.inter_broker_listener, self.lifecycle.identity.endpoints
        mine = next(each for each in endpoints if each.listener == listener)
        await self.candidacy.begin(mine.host, mine.port)
        self._start("candidacy", self.candidacy.run())
        self._start("following", self.following.run())
        self._start("duties", self.duties.run())
        await self.lifecycle.register()

    async def live(self) -> None:
        """Send heartbeats from now on; returns when this broker may lead."""
        self.directories.look_at_all()
        self._start("directories", self.directories.run())
        self._start("heartbeats", self.lifecycle.run())
        await self.lifecycle.unfenced()
        await self.directories.settled()

    # -- in the cluster ------------------------------------------------------------------------

    def _decide_claim(self, claiming: ControllerClaim, dead: int | None) -> None:
        # ConfigError if a later process has this node.id: the claim would replace it.
        _ = self.lifecycle.registration
        decide_claim(claiming, self.lifecycle.identity, dead)

    def _start(self, name: str, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(part, name=name)
        task.add_done_callback(self._ended)
        self.tasks[name] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.failed(error)

    # -- leaving --------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Move leaders and the controller role to others, as far as possible. No error keeps a broker from stopping."""
        if "heartbeats" not in self.tasks or not self.lifecycle.has_others():
            return
        if self.lifecycle.has_a_successor:
            return  # There is nothing left to hand over.
        try:
            await self._hand_over()
        except (
            Exception
        ):  # The last chance to log it: logs and sockets must be closed all the same.
            _LOGGER.exception("stopping without a controlled shutdown")

    async def _hand_over(self) -> None:
        await self._end("heartbeats")
        if self._config.controlled_shutdown_enable:
            await self.lifecycle.shut_down()
        await self._end("candidacy", "duties")
        await self.driver.step_down()
        await self.candidacy.release()

    async def stop(self) -> None:
        """Leave the cluster."""
        await self._end(*self.tasks)
        await self.driver.stop()
        await self.candidacy.release()
        self._context.lease_thread.shutdown(wait=False)
        for peers in self.peers:
            peers.close()

    async def _end(self, *names: str) -> None:
        tasks = [task for name in names if (task := self.tasks.get(name)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def decide_claim(claiming: ControllerClaim, identity: BrokerIdentity, dead: int | None) -> None:
    """The decisions in the commit with which a broker becomes the controller.

    Raises ConfigError if the metadata are another cluster's, are fenced, or demand features that this broker lacks.
    """
    image, node_id = claiming.image, identity.node_id
    refuse_if_fenced(image, claiming.folder)
    if image.cluster_id is None:
        event = ClusterCreated(cluster_id=identity.cluster_id)
        claiming.apply(lambda _: ControllerResult(events=(event,), result=None))
    elif image.cluster_id != identity.cluster_id:
        raise ConfigError(
            f"lake.uri: {claiming.folder} belongs to cluster {image.cluster_id}, "
            f"log.dirs to cluster {identity.cluster_id}"
        )
    claiming.apply(lambda c: c.claim(node_id))
    known = image.brokers.get(node_id)
    if known is None or known.incarnation_id != identity.incarnation_id:
        try:
            claiming.apply(lambda c: _registration(c, identity))
        except KafkaError as refusal:
            raise ConfigError(REFUSED_FOR_GOOD.get(refusal.code, str(refusal))) from refusal
    if dead is not None and dead != node_id:
        # It was silent for a session timeout: as a broker, too.
        claiming.apply(lambda c: c.fence_broker(dead))


def _registration(controller: Controller, identity: BrokerIdentity) -> ControllerResult[bool]:
    return controller.register_broker(
        identity.node_id,
        incarnation_id=identity.incarnation_id,
        endpoints=identity.endpoints,
        rack=identity.rack,
        previous_broker_epoch=identity.previous_broker_epoch,
        log_dirs=identity.log_dirs,
        features=identity.features,
        fenced=False,
    )
