"""A network in memory: streams with latency between hosts, which can be cut in one or both directions.

It behaves as TCP does: bytes arrive in order and once, or the connection breaks. Bytes that are sent into a cut wait
until it heals, as with retransmission, and break the connection after RETRANSMIT_SECONDS. A killed process resets its
connections; a machine without power sends nothing until it is back.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, cast

from tests.sim.loop import PROCESS, Process, SimLoop

RETRANSMIT_SECONDS = 20.0
CONNECT_SECONDS = 5.0
FIRST_PORT = 30_000
CLIENT = "client-"


class Fabric:
    """All hosts and the links between them, one per direction."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.latency_seconds = 0.0005
        # Added to the latency of a link, by source and target.
        self.slow_seconds: dict[tuple[str, str], float] = {}
        # The same for everything that clients send to a host.
        self.slow_for_clients: dict[str, float] = {}
        # Called with each packet that arrives: source, target, data.
        self.tap: Callable[[str, str, bytes], None] = lambda source, target, data: None
        self._cuts: set[tuple[str, str]] = set()
        self._transports: dict[SimTransport, None] = {}
        self._next_port = FIRST_PORT

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing that the source sends reaches the target."""
        self._cuts.add((source, target))

    def heal(self) -> None:
        """Open all links again and send what waited."""
        self._cuts.clear()
        self.slow_seconds.clear()
        self.slow_for_clients.clear()
        for transport in tuple(self._transports):
            transport.pump()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether the link from the source to the target is cut."""
        return (source, target) in self._cuts

    def reset(self, process: Process, *, silently: bool = False) -> None:
        """Close the sockets of a process that is gone."""
        for address, listener in tuple(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for transport in tuple(self._transports):
            if transport.process is process:
                transport.vanish(silently=silently)

    # -- ways --------------------------------------------------------------------------------------

    def delay(self, source: str, target: str) -> float:
        """How long the next packet takes, in seconds."""
        extra = self.slow_seconds.get((source, target), 0.0)
        if self.slow_for_clients and source.startswith(CLIENT):
            extra += self.slow_for_clients.get(target, 0.0)
        return self.latency_seconds * (0.5 + self.random.random()) + extra * self.random.random()

    def port(self) -> int:
        """A port that was never used."""
        self._next_port += 1
        return self._next_port

    def add(self, transport: SimTransport) -> None:
        """Add one end of a new connection."""
        self._transports[transport] = None

    def forget(self, transport: SimTransport) -> None:
        """Remove an end that is closed."""
        self._transports.pop(transport, None)


class SimNetwork:
    """The network as one host sees it: `kafka_ds.process.seams.Network`."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric = fabric
        self.host = host

    def bind(self, host: str, port: int) -> SimListener:
        port = port or self._fabric.port()
        if (self.host, port) in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, "in use")
        listener = SimListener(self._fabric, self.host, port)
        self._fabric.listeners[(self.host, port)] = listener
        return listener

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        fabric, process = self._fabric, PROCESS.get()
        assert process is not None
        there_and_back = fabric.delay(self.host, host) + fabric.delay(host, self.host)
        if fabric.is_cut(self.host, host) or fabric.is_cut(host, self.host):
            await asyncio.sleep(CONNECT_SECONDS)
            raise TimeoutError(errno.ETIMEDOUT, "no answer")
        await asyncio.sleep(there_and_back)
        listener = fabric.listeners.get((host, port))
        if listener is None or listener.factory is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        protocol = protocol_factory()
        here = SimTransport(fabric, self.host, process, process.context(), protocol)
        there = SimTransport(
            fabric, host, listener.process, listener.process.context(), listener.factory()
        )
        here.peer, there.peer = there, here
        here.extra = {"peername": (host, port), "sockname": (self.host, fabric.port())}
        there.extra = {"peername": here.extra["sockname"], "sockname": (host, port)}
        there.call(there.protocol.connection_made, there)
        protocol.connection_made(here)
        return cast("asyncio.Transport", here), protocol


class SimListener:
    """A bound port."""

    def __init__(self, fabric: Fabric, host: str, port: int) -> None:
        process = PROCESS.get()
        assert process is not None
        self.address = (host, port)
        self.process = process
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None
        self._fabric = fabric

    async def serve(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, backlog: int = 50
    ) -> None:
        self.factory = protocol_factory

    async def close(self) -> None:
        if self._fabric.listeners.get(self.address) is self:
            del self._fabric.listeners[self.address]


class SimTransport:
    """One end of a connection, with the bytes that the other end has not received yet."""

    peer: SimTransport

    def __init__(
        self,
        fabric: Fabric,
        host: str,
        process: Process,
        context: Context,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        self.host = host
        self.process = process
        self.protocol: Any = protocol
        self.extra: dict[str, Any] = {}
        self._fabric = fabric
        self._context = context
        self._sending: deque[bytes] = deque()
        self._under_way = False
        self._received: deque[bytes] = deque()
        self._is_reading = True
        self._is_closing = False
        self._is_gone = False
        self._stuck_since: float | None = None
        fabric.add(self)

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call back in the process that this end belongs to."""
        self._fabric.loop.call_soon(callback, *args, context=self._context)

    # -- asyncio.Transport -------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_gone or self._is_closing or not len(data):
            return
        self._sending.append(bytes(data))
        self.pump()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if self._is_closing or self._is_gone:
            return
        self._is_closing = True
        self.pump()

    def abort(self) -> None:
        if not self._is_gone:
            self._end(None)
            self._later(self.peer._lose, ConnectionResetError(errno.ECONNRESET, "reset"))

    def is_closing(self) -> bool:
        return self._is_closing or self._is_gone

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: buffers have no limit here."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._sending))

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._received:
            self.call(self._give)

    def is_reading(self) -> bool:
        return self._is_reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self.protocol)

    # -- what the network does ---------------------------------------------------------------------

    def pump(self) -> None:
        """Send the buffered bytes, if the link is open."""
        if self._under_way or self._is_gone:
            return
        if not self._sending:
            if self._is_closing:
                self._end(None)
                self._later(self.peer._receive_end)
            return
        loop = self._fabric.loop
        if self._fabric.is_cut(self.host, self.peer.host):
            if self._stuck_since is None:
                self._stuck_since = loop.time()
                loop.call_later(RETRANSMIT_SECONDS, self._give_up, loop.time(), context=Context())
            return
        self._stuck_since = None
        data, self._under_way = b"".join(self._sending), True
        self._sending.clear()
        self._later(self._arrive, data)

    def _later(self, action: Callable[..., None], *args: Any) -> None:
        # In no process's context: a packet on its way arrives even if its sender has died.
        delay = self._fabric.delay(self.host, self.peer.host)
        self._fabric.loop.call_later(delay, action, *args, context=Context())

    def _give_up(self, since: float) -> None:
        if self._stuck_since == since and not self._is_gone:
            self._lose(TimeoutError(errno.ETIMEDOUT, "no acknowledgement"))

    def _arrive(self, data: bytes) -> None:
        self._under_way = False
        if self._fabric.is_cut(self.host, self.peer.host):
            self._sending.appendleft(data)
            self.pump()
            return
        peer = self.peer
        if not peer.process.is_alive or peer._is_gone:
            self._lose(ConnectionResetError(errno.ECONNRESET, "reset"))
            return
        self._fabric.tap(self.host, peer.host, data)
        peer._received.append(data)
        peer.call(peer._give)
        self.pump()

    def _give(self) -> None:
        """Give the received bytes to the protocol."""
        protocol = self.protocol
        while self._received and self._is_reading and not self._is_gone:
            data = self._received.popleft()
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)
                continue
            while data and not self._is_gone:
                buffer = protocol.get_buffer(len(data))
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                protocol.buffer_updated(size)
                data = data[size:]

    def _receive_end(self) -> None:
        if not self._is_gone:
            self.call(self._ended)

    def _ended(self) -> None:
        if self._is_gone:
            return
        if self._received:
            # The end of the stream comes after the bytes that were sent before it.
            self._fabric.loop.call_later(0.001, self._ended, context=self._context)
        elif not self.protocol.eof_received():
            self._end(None)

    def _lose(self, error: Exception) -> None:
        if not self._is_gone:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._is_gone = True
        self._fabric.forget(self)
        self.call(self.protocol.connection_lost, error)

    def vanish(self, *, silently: bool) -> None:
        """The process at this end is dead."""
        self._is_gone = True
        self._fabric.forget(self)
        if not silently:
            self._later(self.peer._lose, ConnectionResetError(errno.ECONNRESET, "reset"))
        else:
            loop = self._fabric.loop
            error = TimeoutError(errno.ETIMEDOUT, "no acknowledgement")
            loop.call_later(RETRANSMIT_SECONDS, self.peer._lose, error, context=Context())
