"""Shell: the listeners and all connections: who may connect, who has been silent for too long, how it ends.

Rules of this file: it knows no Kafka. Silence is measured in ticks, counted by one timer; a connection notes the
tick of its last byte, so that a request costs no timer and no look at a clock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.config.endpoints import Endpoint
from broker.config.loading import BrokerConfig
from broker.config.settings import ConfigError
from broker.net.buffers import BufferPool
from broker.net.connection import Connection
from broker.net.dispatch import Dispatcher
from broker.net.doors import Doors, limit_settings, limits_in_force
from broker.net.frames import Scratch
from broker.net.limits import ConnectionLimits
from broker.net.memory import RequestMemory
from broker.net.metrics import NetMetrics
from broker.seams import Listener, Network
from broker.security.address_rates import AddressRates

if TYPE_CHECKING:
    from broker.security.listener_security import Credentials

log = logging.getLogger(__name__)

# A connection is closed after its idle time and at most a part of this more.
TICKS_PER_IDLE_TIME = 8
TICK_SECONDS_MIN = 0.05
# How long answers may take that are owed when the broker stops.
DRAIN_SECONDS_MAX = 2.0
# How many may be kept waiting who will not be let in; more are sent away at once.
KEPT_OUT_MAX = 1_000
_ANY_HOST = "0.0.0.0"  # noqa: S104 - what an empty host in `listeners` asks for


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Server:
    """Accepts clients on all listeners and holds their connections."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        metrics: NetMetrics,
        *,
        now_ms: Callable[[], int] = _wall_ms,
        credentials: Credentials = lambda user, mechanism: None,
    ) -> None:
        """`now_ms` and `credentials` are what listeners with SASL go by."""
        self._config = config
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.scratch = Scratch()
        self.pool = BufferPool()
        self.request_bytes_max = config.socket_request_max_bytes
        # Of who has not authenticated yet.
        self.unknown_bytes_max = min(config.sasl_server_max_receive_size, self.request_bytes_max)
        most = config.queued_max_request_bytes
        self.memory = RequestMemory(most) if most > 0 else None
        self.limits = ConnectionLimits(limit_settings(config))
        self.address_rates = AddressRates(
            samples=config.quota_window_num, window_ms=config.quota_window_size_seconds * 1_000
        )
        self.doors = Doors(self, now_ms, credentials)
        self.tick = 0
        self.gathers_writes = False
        self._listeners: list[tuple[Endpoint, Listener]] = []
        self._connections: dict[Connection, None] = {}  # In the order in which they came.
        # Who has come too fast, and how it is closed.
        self._kept_out: set[Callable[[], object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._bytes_at_last_tick = 0
        self._all_gone: asyncio.Event | None = None

    # -- listeners ----------------------------------------------------------------------------------

    def bind(self, network: Network) -> None:
        """Takes the ports, before anybody can be served: a port in use is found out first; so are bad keys."""
        self.doors.open(self._config)
        for endpoint in self._config.endpoints:
            self._listeners.append((endpoint, bind(network, endpoint)))

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of each listener by its name, as they are bound."""
        return {endpoint.name: listener.address for endpoint, listener in self._listeners}

    async def serve(self) -> None:
        """Begins to accept."""
        loop = asyncio.get_running_loop()
        # Selector transports of Python 3.11 join what they are given to write.
        self.gathers_writes = type(loop).__module__.startswith("uvloop") or sys.version_info >= (
            3,
            12,
        )
        backlog = self._config.socket_listen_backlog_size
        for endpoint, listener in self._listeners:
            try:
                await self.doors.serve(endpoint.name, listener, backlog)
            except OSError as error:
                raise cannot_listen(endpoint, error) from None
        self.doors.watch()
        self._tick()

    async def configure(self, config: BrokerConfig) -> None:
        """Takes settings that were changed while the broker runs."""
        try:
            self.limits.settings = await limits_in_force(config)
        except (ConfigError, OSError) as error:
            # What is committed is committed: a broker that dies of it would die at each start.
            log.error("the limits of connections stay as they were: %s", error)
        await self.doors.configure(config)

    async def stop_accepting(self) -> None:
        """Lets nobody in any more; who is there is served."""
        if self._timer is not None:
            self._timer.cancel()
        self.doors.stop()
        self._all_gone = asyncio.Event()
        for _, listener in self._listeners:
            await listener.close()

    async def stop(self) -> None:
        """Answers what was begun, and closes all connections."""
        if self._all_gone is None:
            await self.stop_accepting()
        assert self._all_gone is not None
        for close in list(self._kept_out):
            self._send_off(close)
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_gone.wait(), DRAIN_SECONDS_MAX)
            except TimeoutError:
                log.info("%d connections were cut off", len(self._connections))
                for connection in list(self._connections):
                    connection.abort()

    # -- connections --------------------------------------------------------------------------------

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections that are open."""
        return tuple(self._connections)

    def admit(self, connection: Connection) -> str | None:
        """Takes a connection in, or says why not."""
        refusal = self.limits.why_not(connection.host, connection.listener)
        if refusal is not None:
            self.metrics.connections_refused += 1
            return refusal
        if self._all_gone is not None:
            return "the broker is stopping"
        if self.limits.must_give_way:
            self._send_away(connection.listener)
        self._connections[connection] = None
        self.limits.came(connection.host, connection.listener)
        self.metrics.connections = len(self._connections)
        self.metrics.connections_created += 1
        return None

    def _send_away(self, listener: str) -> None:
        """Makes room for a broker: who has been silent for longest goes, of another listener (KIP-402)."""
        others = [connection for connection in self._connections if connection.listener != listener]
        if others:
            silent = min(others, key=lambda connection: connection.last_tick)
            log.info("closing %s: max.connections are there, and a broker comes", silent.peer)
            silent.abort()
            self.forget(silent)

    def keeps_out(self, host: str, close: Callable[[], object]) -> bool:
        """Whether connections from there come too fast (KIP-612): then this one is closed in a while by `close`."""
        loop = asyncio.get_running_loop()
        wait_ms = self.address_rates.wait_ms(host, round(loop.time() * 1_000))
        if not wait_ms:
            return False
        self.metrics.connections_kept_out += 1
        if self._all_gone is not None or len(self._kept_out) >= KEPT_OUT_MAX:
            close()
            return True
        self._kept_out.add(close)
        loop.call_later(wait_ms / 1_000, self._send_off, close)
        return True

    def _send_off(self, close: Callable[[], object]) -> None:
        if close in self._kept_out:
            self._kept_out.remove(close)
            close()

    def delay_s(self, connection: Connection) -> float:
        """How many seconds one that was admitted has to wait (max.connection.creation.rate)."""
        return self.limits.delay_s(connection.listener, asyncio.get_running_loop().time())

    def set_options(self, connected: socket.socket | None) -> None:
        """Kafka's options for a client's socket."""
        if connected is None:
            return
        config = self._config
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if config.socket_send_buffer_bytes >= 0:
            connected.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes
            )
        if config.socket_receive_buffer_bytes >= 0:
            connected.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes
            )

    def forget(self, connection: Connection) -> None:
        """A connection is gone; harmless when it is forgotten."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self.limits.went(connection.host, connection.listener)
        self.metrics.connections = len(self._connections)
        self.metrics.connections_closed += 1
        if not self._connections and self._all_gone is not None:
            self._all_gone.set()

    def _tick(self) -> None:
        """Counts on, closes who was silent for the idle time, lets go of memory that nobody used."""
        idle_ms = self._config.connections_max_idle_ms
        seconds = (
            max(idle_ms / 1000 / TICKS_PER_IDLE_TIME, TICK_SECONDS_MIN) if idle_ms >= 0 else 60.0
        )
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)
        self.tick += 1
        if self.metrics.bytes_in == self._bytes_at_last_tick:
            self.pool.clear()
        self._bytes_at_last_tick = self.metrics.bytes_in
        if idle_ms < 0:
            return
        ticks_max = max(-(-idle_ms // int(seconds * 1000)), 1)
        for connection in [c for c in self._connections if self.tick - c.last_tick > ticks_max]:
            log.info("closed %s: silent for connections.max.idle.ms=%d", connection.peer, idle_ms)
            self.metrics.connections_idle += 1
            connection.abort()


def own_host() -> str:
    """What this machine is called, for clients of a listener without a host."""
    return socket.gethostname()


def bind(network: Network, endpoint: Endpoint) -> Listener:
    """Takes the port of an endpoint; ConfigError says what is in the way."""
    try:
        return network.bind(endpoint.host or _ANY_HOST, endpoint.port)
    except OSError as error:
        raise cannot_listen(endpoint, error) from None


def cannot_listen(endpoint: Endpoint, error: OSError) -> ConfigError:
    """The one line for a port that cannot be had."""
    place = f"{endpoint.name}://{endpoint.host}:{endpoint.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"listeners={place}: the port is in use")
    number = error.errno or 0  # a name that does not resolve has a number of another kind
    reason = os.strerror(number) if number in errno.errorcode else str(error)
    return ConfigError(f"listeners={place}: {reason.lower()}")
