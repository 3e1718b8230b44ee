"""Shell: standing for controller: reads and writes the lease, asks the other brokers, makes the claim.

`election` decides. The lease has a thread of its own, so that a commit that waits for the store does not make a
controller look dead. It is written before the claim that it belongs to; at each write the controller checks that the
log still ends with its own records, so that one that was paused notices before it gets a request. A controller whose
commits fail or do not end for a session timeout stops renewing its lease, so that another one takes over. It releases
the lease when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeVar

from broker.membership.channel import endpoint_of
from broker.membership.election import AskPeers, Claim, ControllerElection, Wait
from broker.membership.lease import LEASE_PATH, Lease, decode_lease
from broker.membership.stall_detector import StallDetector
from broker.transport.peer import PeerConnection, PeerLate, PeerUnreachable
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ControllerLivenessRequest, ControllerLivenessResponse

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from broker.controller.metadata_driver import ControllerClaim, MetadataDriver
    from broker.metadata.image import BrokerRegistration
    from kafka_ds.delta.store.store import Store
    from kafka_ds.process.seams import Clock, Network

_LOGGER = logging.getLogger(__name__)

# How long a peer has to answer whether it hears the controller.
ASK_MS_MAX = 1_000
STEP_SECONDS_MAX = 0.5
# A store that does not answer must not keep a broker from stopping.
RELEASE_SECONDS_MAX = 5.0
# A step of this loop that is so late is no coincidence: the process did not run.
PAUSE_MS_MIN = 1_500

T = TypeVar("T")


class Candidacy:
    """One broker's part in the election of a controller."""

    def __init__(
        self,
        config: BrokerConfig,
        driver: MetadataDriver,
        store: Store,
        *,
        executor: Executor,
        clock: Clock,
        network: Network,
        chance: Callable[[], float],
        decide_claim: Callable[[ControllerClaim, int | None], None],
    ) -> None:
        """`executor`: the lease's thread; `decide_claim(claiming, the dead broker)` returns the claim's decisions."""
        self._config = config
        self._driver = driver
        self._store = store
        self._executor = executor
        self._clock = clock
        self._network = network
        self._chance = chance
        self._decide_claim = decide_claim
        # The last written lease: its epoch and its number within that.
        self._leased_epoch = -1
        self._sequence = 0
        self._lease: Lease | None = None
        self._address = ("", 0)
        self._lease_due_ms = 0
        self._awake_ms = clock.monotonic_ms()
        self._was_active = False
        # When the controller has last read and written the store.
        self._reached_ms = self._awake_ms
        self._stall = StallDetector(config.broker_session_timeout_ms, self._awake_ms)
        # Counted for the metrics.
        self.store_errors = 0
        image = driver.image
        self.election = ControllerElection(
            config.node_id,
            controller_id=image.controller_id,
            controller_epoch=image.controller_epoch,
            session_timeout_ms=config.broker_session_timeout_ms,
            lease_interval_ms=config.controller_lease_interval_ms,
            now_ms=self._awake_ms,
        )

    # -- start and stop ------------------------------------------------------------------------

    async def begin(self, host: str, port: int) -> None:
        """Become the controller at once if there is no other to wait for; `host` and `port` are this broker's address.

        Raises ConfigError if a live broker has this node.id.
        """
        self._address = (host, port)
        await self.look()
        await self._refuse_twin()
        action = self.election.next(self._clock.monotonic_ms())
        if isinstance(action, Claim):
            await self.claim(action)

    async def run(self) -> None:
        """Stand for controller, until cancelled."""
        while True:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._awake_ms > self._pause_ms:
                self.election.paused(now_ms)
            self._awake_ms = now_ms
            until_ms = await (self.hold() if self._driver.is_active else self._stand())
            self._awake_ms = self._clock.monotonic_ms()
            seconds = max(0.001, (until_ms - self._awake_ms) / 1_000)
            await self._driver.wait_for_change(min(seconds, STEP_SECONDS_MAX))

    async def release(self) -> None:
        """Release the lease: this broker makes no more decisions. Called after its last one."""
        image, epoch = self._driver.image, self._leased_epoch
        if (image.controller_id, image.controller_epoch) != (self._config.node_id, epoch):
            return  # Another one is the controller, or the epoch is that of an earlier process of this broker.
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                await self.write_lease(epoch, released=True)
        except OSError as error:  # TimeoutError is one.
            why = str(error) or "the store does not answer"
            _LOGGER.warning("%s cannot be released: %s", LEASE_PATH, why)
        self._leased_epoch = -1

    def heard(self, controller_epoch: int) -> None:
        """The controller of this epoch has answered this broker."""
        self.election.hears(controller_epoch, self._clock.monotonic_ms())

    def lost(self) -> None:
        """The controller does not answer this broker: read its lease now."""
        self._lease_due_ms = min(self._lease_due_ms, self._clock.monotonic_ms())

    def last_heard_ms(self, controller_id: int, controller_epoch: int) -> int:
        """How long ago that controller answered this broker; 0 where it is this broker, -1 for never."""
        now_ms = self._clock.monotonic_ms()
        return self.election.last_heard_ms(controller_id, controller_epoch, now_ms)

    @property
    def has_lost_store(self) -> bool:
        """Whether the controller, which this broker is, has not got through to the store for a session timeout."""
        still_ms = self._clock.monotonic_ms() - self._reached_ms
        return self._driver.is_active and still_ms >= self._config.broker_session_timeout_ms

    @property
    def _pause_ms(self) -> int:
        return max(PAUSE_MS_MIN, self._config.broker_session_timeout_ms // 2)

    # -- the controller -------------------------------------------------------------------------

    async def hold(self) -> int:
        """Renew the lease of this controller, and check that it still is; returns until when that is enough."""
        self._was_active = True
        if self._clock.monotonic_ms() >= self._lease_due_ms:
            self._lease_due_ms = (
                self._clock.monotonic_ms() + self._config.controller_lease_interval_ms
            )
            try:
                if await self._driver.confirm() and not self._stands_still():
                    await self.write_lease(self._driver.image.controller_epoch)
                    self._reached_ms = self._clock.monotonic_ms()
            except OSError as error:
                self.store_errors += 1
                _LOGGER.warning("the controller's lease cannot be written: %s", error)
        return self._lease_due_ms

    def _stands_still(self) -> bool:
        driver = self._driver
        return self._stall.looked(
            version=driver.image.version,
            failures=driver.log.failures,
            is_at_store=driver.is_at_store,
            now_ms=self._clock.monotonic_ms(),
        )

    async def write_lease(self, controller_epoch: int, *, released: bool = False) -> None:
        self._sequence = self._sequence + 1 if controller_epoch == self._leased_epoch else 1
        self._leased_epoch = controller_epoch
        host, port = self._address
        lease = Lease(
            controller_id=self._config.node_id,
            controller_epoch=controller_epoch,
            sequence=self._sequence,
            host=host,
            port=port,
            released=released,
        )
        await self._in_thread(lambda: self._store.put_durable(LEASE_PATH, lease.encode()))

    # -- other brokers -------------------------------------------------------------------------

    async def _stand(self) -> int:
        """Watch the controller and act if need be; returns until when nothing has to be done."""
        now_ms = self._clock.monotonic_ms()
        if self._was_active:
            self._was_active = False
            self.election.resigned(now_ms)
        if now_ms >= self._lease_due_ms:
            self._lease_due_ms = now_ms + self._config.controller_lease_interval_ms
            await self.look()
        image = self._driver.image
        self.election.knows(image.controller_id, image.controller_epoch, self._clock.monotonic_ms())
        action = self.election.next(self._clock.monotonic_ms())
        if isinstance(action, AskPeers):
            answers = await self.query_peers()
            self.election.peers_answered(
                answers,
                self._clock.monotonic_ms(),
                brokers=len(self._driver.image.brokers),
                chance=self._chance(),
            )
            action = self.election.next(self._clock.monotonic_ms())
        if isinstance(action, Claim):
            await self.claim(action)
            return self._clock.monotonic_ms()
        assert isinstance(action, Wait), "nothing is asked twice in a row"
        return min(action.until_ms, self._lease_due_ms)

    async def look(self) -> None:
        """Read the lease."""
        try:
            data = await self._in_thread(lambda: self._store.read(LEASE_PATH))
            self._lease = decode_lease(data)
        except FileNotFoundError:
            self._lease = None
        except OSError as error:
            self.store_errors += 1
            _LOGGER.warning("%s cannot be read: %s", LEASE_PATH, error)
            self.election.misses_lease()
            return
        self.election.sees_lease(self._lease, self._clock.monotonic_ms())
        if (
            self._lease is not None
            and self._lease.controller_epoch > self._driver.image.controller_epoch
        ):
            await self._look_into_log()

    async def _look_into_log(self) -> None:
        """There may be a newer controller than the one that this broker hears."""
        try:
            await self._driver.catch_up()
        except (OSError, ValueError) as error:
            _LOGGER.warning("%s cannot be read: %s", self._driver.folder, error)

    async def query_peers(self) -> list[int]:
        """How long ago the controller answered each of the others, as far as they answer."""
        image, config = self._driver.image, self._config
        asked = [
            endpoint
            for broker_id in image.brokers
            if broker_id not in (config.node_id, image.controller_id)
            and (endpoint := endpoint_of(image, broker_id, config.inter_broker_listener))
            is not None
        ]
        controller = (image.controller_id, image.controller_epoch)
        answers = await asyncio.gather(
            *(self._try_controller_liveness(host, port, *controller) for host, port in asked)
        )
        found = [answer.last_heard_ms for answer in answers if answer is not None]
        _LOGGER.warning(
            "controller %d is silent; of %d other brokers %d answer, and last heard from it %s ms ago",
            image.controller_id,
            len(asked),
            len(found),
            found,
        )
        return found

    async def _try_controller_liveness(
        self, host: str, port: int, controller_id: int, controller_epoch: int
    ) -> ControllerLivenessResponse | None:
        try:
            answer = await self.controller_liveness(host, port, controller_id, controller_epoch)
        except (PeerUnreachable, KafkaError):
            return None
        return answer if answer.error_code == ErrorCode.NONE else None

    async def answers(self, registered: BrokerRegistration) -> bool:
        """Whether the registered process of a broker answers at its address."""
        image = self._driver.image
        endpoint = registered.endpoint(self._config.inter_broker_listener)
        if endpoint is None:
            return False
        answer = await self._try_controller_liveness(
            endpoint.host, endpoint.port, image.controller_id, image.controller_epoch
        )
        return answer is not None and answer.incarnation_id == registered.incarnation_id

    async def controller_liveness(
        self, host: str, port: int, controller_id: int, controller_epoch: int
    ) -> ControllerLivenessResponse:
        """Ask a broker when it last heard from that controller. Raises PeerUnreachable, PeerLate, KafkaError."""
        config = self._config
        request = ControllerLivenessRequest(
            asking_id=config.node_id,
            controller_id=controller_id,
            controller_epoch=controller_epoch,
        )
        timeout_ms = min(ASK_MS_MAX, config.broker_session_timeout_ms // 3)
        connection = await PeerConnection.connect(
            self._network,
            host,
            port,
            client_id=f"broker-{config.node_id}",
            timeout_ms=timeout_ms,
        )
        try:
            answer: ControllerLivenessResponse = await connection.send(
                request, timeout_ms=timeout_ms
            )
        finally:
            connection.close()
        return answer

    async def _refuse_twin(self) -> None:
        """Before this broker takes its own former place: another process may have it.

        Without one the connection is refused at once. A process that does not answer may only be paused, and is asked
        for as long as any broker is waited for.
        """
        until_ms = self._clock.monotonic_ms() + self._config.broker_session_timeout_ms
        while await self._may_be_twin() and self._clock.monotonic_ms() < until_ms:
            await self.look()

    async def _may_be_twin(self) -> bool:
        """Whether it is unknown who has this broker's place; raises ConfigError if another process has."""
        return any([await self._may_live(*place) for place in self._former_places()])

    def _former_places(self) -> set[tuple[str, int, int]]:
        """Address and controller epoch of processes that may have this broker's place: by the lease, and by the
        metadata.

        A claiming broker writes a lease first. So the lease of a loser may lie over the winner's, which is only written
        again after an interval.
        """
        lease, image, config = self._lease, self._driver.image, self._config
        places = set()
        is_released = False
        if lease is not None and lease.controller_id == config.node_id:
            is_released = lease.released and lease.controller_epoch >= image.controller_epoch
            if not lease.released:
                places.add((lease.host, lease.port, lease.controller_epoch))
        registered = endpoint_of(image, config.node_id, config.inter_broker_listener)
        if image.controller_id == config.node_id and registered is not None and not is_released:
            places.add((*registered, image.controller_epoch))
        # This port is bound here, so no other process has it.
        return {each for each in places if each[:2] != self._address}

    async def _may_live(self, host: str, port: int, controller_epoch: int) -> bool:
        """Whether a process with this node.id may run there; raises ConfigError if one does."""
        node_id = self._config.node_id
        try:
            answer = await self.controller_liveness(host, port, node_id, controller_epoch)
        except PeerLate as error:
            _LOGGER.warning("another broker with this node.id may be running: %s", error)
            return True
        except (PeerUnreachable, KafkaError):
            return False
        if answer.error_code == ErrorCode.NONE and answer.last_heard_ms == 0:
            raise ConfigError(
                f"node.id={node_id}: already in use by the active controller at {host}:{port}: "
                "give each broker its own node.id"
            )
        return False

    async def claim(self, claim: Claim) -> None:
        driver = self._driver
        dead = claim.controller_id if claim.is_dead else None
        _LOGGER.info("Claiming controller epoch %d: %s", claim.controller_epoch + 1, claim.reason)
        won = False
        try:
            # A broker that starts meanwhile and finds the claim in the log must find a lease beside it.
            await self.write_lease(claim.controller_epoch + 1)
            won = await driver.claim(
                lambda claiming: self._decide_claim(claiming, dead),
                controller_epoch=claim.controller_epoch,
                # Before any duty: old sessions of an earlier time as controller would fence all brokers.
                begin=lambda controller: controller.begin_sessions(self._clock.monotonic_ms()),
            )
        except OSError as error:
            self.store_errors += 1
            _LOGGER.warning("%s does not answer: %s", driver.folder, error)
        now_ms = self._clock.monotonic_ms()
        if not won:
            self.election.claim_failed(now_ms)
            return
        self.election.claim_won(claim.controller_epoch + 1)
        # From here on, though it may be deposed before it is seen to be active.
        self._was_active = True
        self._lease_due_ms = self._reached_ms = now_ms
        _LOGGER.info(
            "Broker %d: becoming the active controller at epoch %d",
            self._config.node_id,
            claim.controller_epoch + 1,
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
