"""Shell: what all connections share: limits, the list of them, buffers, and which was silent for too long.

Rules of this file: it knows no Kafka. Silence is measured in ticks, counted by one timer; a connection notes the
tick of its last byte, so that a request costs no timer and no look at a clock. Who reads a large answer slowly is not
silent, either, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from broker.security.quotas.address_rates import AddressRates
from broker.server.connection_limits import ConnectionLimits, LimitSettings
from kafka_ds.protocol.buffer_pool import BufferPool
from kafka_ds.protocol.frame_assembler import FrameBuffer
from kafka_ds.protocol.request_memory import RequestMemory

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics

log = logging.getLogger(__name__)

# A connection is closed after its idle time and at most a part of this more.
TICKS_PER_IDLE_TIME = 8
TICK_SECONDS_MIN = 0.05
# How long answers may take that are owed when the broker stops.
DRAIN_SECONDS_MAX = 2.0
# How many rejected clients may be kept waiting; more are closed at once.
REJECTED_MAX = 1_000


class ConnectionInfo(Protocol):
    """A connection, as far as it is kept here (`broker.server.connection`)."""

    host: str
    peer: str  # host and port
    listener: str
    last_tick: int

    def unsent_bytes(self) -> int:
        """How much of its answers lies here."""

    def drain(self) -> None:
        """Answer what was begun, and close."""

    def abort(self) -> None:
        """Close at once."""


class Connections:
    """The connections of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        metrics: NetMetrics,
        limits: LimitSettings,
    ) -> None:
        self._config = config
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.scratch = FrameBuffer()
        self.pool = BufferPool()
        self.request_bytes_max = config.socket_request_max_bytes
        # Connections that have not authenticated yet.
        self.unknown_bytes_max = min(config.sasl_server_max_receive_size, self.request_bytes_max)
        most = config.queued_max_request_bytes
        self.memory = RequestMemory(most) if most > 0 else None
        self.limits = ConnectionLimits(limits)
        self.address_rates = AddressRates(
            samples=config.quota_window_num, window_ms=config.quota_window_size_seconds * 1_000
        )
        self.tick = 0
        self.gathers_writes = False
        self._open: dict[ConnectionInfo, None] = {}  # In the order in which they came.
        # Of answers that their clients do not read as fast as they come: how much lies here, of each and altogether.
        self._unsent: dict[ConnectionInfo, int] = {}
        self.unsent_bytes = 0
        # Clients that connected too fast, and how each is closed.
        self._rejected: set[Callable[[], object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._bytes_at_last_tick = 0
        self._all_closed: asyncio.Event | None = None

    def __iter__(self) -> Iterator[ConnectionInfo]:
        """Those that are open now."""
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    # -- beginning and ending -----------------------------------------------------------------------

    def begin(self) -> None:
        """Let clients come, and the ticks run."""
        # Selector transports join what they are given (Python 3.11), or never ask for a pause, however much it is
        # (3.12.0 to 3.12.8, 3.13.0 and 3.13.1; CVE-2024-12254).
        self.gathers_writes = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        self._tick()

    @property
    def is_stopping(self) -> bool:
        """Whether no connection is accepted any more."""
        return self._all_closed is not None

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open are served."""
        if self._timer is not None:
            self._timer.cancel()
        self._all_closed = asyncio.Event()

    async def end(self) -> None:
        """Answer what was begun, and close all."""
        assert self._all_closed is not None, "accepting is stopped first"
        for close in list(self._rejected):
            self._close_rejected(close)
        for connection in self:
            connection.drain()
        if self._open:
            try:
                await asyncio.wait_for(self._all_closed.wait(), DRAIN_SECONDS_MAX)
            except TimeoutError:
                log.info("%d connections were cut off", len(self._open))
                for connection in self:
                    connection.abort()

    # -- coming and going ---------------------------------------------------------------------------

    def admit(self, connection: ConnectionInfo) -> str | None:
        """Takes a connection in, or says why not."""
        refusal = self.limits.refusal(connection.host, connection.listener)
        if refusal is not None:
            self.metrics.connections_refused += 1
            return refusal
        if self._all_closed is not None:
            return "the broker is stopping"
        if self.limits.is_full:
            self._evict(connection.listener)
        self._open[connection] = None
        self.limits.opened(connection.host, connection.listener)
        self.metrics.connections = len(self._open)
        self.metrics.connections_created += 1
        return None

    def _evict(self, listener: str) -> None:
        """Makes room for a broker: closes the connection of another listener that was silent for longest (KIP-402)."""
        others = [connection for connection in self._open if connection.listener != listener]
        if others:
            silent = min(others, key=lambda connection: connection.last_tick)
            log.info("closing %s: max.connections are there, and a broker comes", silent.peer)
            silent.abort()
            self.forget(silent)

    def rejects(self, host: str, close: Callable[[], object]) -> bool:
        """Whether connections from there come too fast (KIP-612): then this one is closed in a while by `close`."""
        loop = asyncio.get_running_loop()
        wait_ms = self.address_rates.wait_ms(host, round(loop.time() * 1_000))
        if not wait_ms:
            return False
        self.metrics.connections_rejected += 1
        if self._all_closed is not None or len(self._rejected) >= REJECTED_MAX:
            close()
            return True
        self._rejected.add(close)
        loop.call_later(wait_ms / 1_000, self._close_rejected, close)
        return True

    def _close_rejected(self, close: Callable[[], object]) -> None:
        if close in self._rejected:
            self._rejected.remove(close)
            close()

    def delay_s(self, connection: ConnectionInfo) -> float:
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

    def record_unsent(self, connection: ConnectionInfo, size_bytes: int) -> None:
        """So much of a connection's answers lies here, and its client has yet to read what is before it."""
        self.unsent_bytes += size_bytes - self._unsent.pop(connection, 0)
        if size_bytes:
            self._unsent[connection] = size_bytes

    def forget(self, connection: ConnectionInfo) -> None:
        """A connection is gone; harmless when it is forgotten."""
        self.record_unsent(connection, 0)
        if connection not in self._open:
            return
        del self._open[connection]
        self.limits.closed(connection.host, connection.listener)
        self.metrics.connections = len(self._open)
        self.metrics.connections_closed += 1
        if not self._open and self._all_closed is not None:
            self._all_closed.set()

    def _look_at_slow_readers(self) -> None:
        for connection, before in tuple(self._unsent.items()):
            size_bytes = connection.unsent_bytes()
            if size_bytes < before:
                connection.last_tick = self.tick
            self.record_unsent(connection, size_bytes)

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
        self._look_at_slow_readers()
        ticks_max = max(-(-idle_ms // int(seconds * 1000)), 1)
        for connection in self:
            if self.tick - connection.last_tick > ticks_max:
                log.info(
                    "closed %s: silent for connections.max.idle.ms=%d", connection.peer, idle_ms
                )
                self.metrics.connections_idle += 1
                connection.abort()
