"""Shell: one client connection: requests in, responses out in the same order.

Requests run one at a time, as Kafka guarantees; the next may start before the last is answered only if both handlers
are `pipelined`. A request behind a waiting one calls `force_complete` on it, so that it may answer early. The
connection stops reading at UNANSWERED_REQUESTS_MAX requests, UNANSWERED_BYTES_MAX bytes or if the client does not read.
Responses are written once per turn of the event loop, which serves at most REQUESTS_PER_TURN_MAX requests of a
connection. Malformed bytes close this connection, with one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from broker.principal import ANONYMOUS
from broker.registry import ClientInformation
from broker.security.quotas.address_rates import AddressRates
from broker.security.quotas.throttle import Throttled
from broker.server.connection_limits import ConnectionLimits, LimitSettings
from broker.server.dispatch import ResponseParts, Unanswerable, Waiting
from broker.server.refusal_log import RefusalLog
from broker.transport.addresses import one_text
from broker.transport.writes import write
from kafka_ds.process.amounts import counted
from kafka_ds.process.socket_transport import SocketTransport
from kafka_ds.protocol.buffer_pool import BufferPool
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.frame_assembler import FrameAssembler, FrameBuffer
from kafka_ds.protocol.request_memory import RequestMemory

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig
    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.authentication import Authentication
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics

log = logging.getLogger(__name__)

UNANSWERED_REQUESTS_MAX = 100
UNANSWERED_BYTES_MAX = 16 << 20
REQUESTS_PER_TURN_MAX = 64
FLUSH_BYTES = 64 << 10
# The transport calls `pause_writing` above this many unsent bytes and `resume_writing` below a quarter of them.
UNSENT_BYTES_MAX = 1 << 20
# An idle connection is closed at most 1/8 of the idle time late.
TICKS_PER_IDLE_TIME = 8
TICK_SECONDS_MIN = 0.05
# How long a client may take to authenticate by SASL.
AUTHENTICATION_SECONDS_MAX = 30.0
# How long the broker waits for pending responses when it stops.
DRAIN_SECONDS_MAX = 2.0
# At most so many rejected connections are delayed; further ones are closed at once.
REJECTED_MAX = 1_000


class _Slot:
    """The place of one response in the order of responses."""

    __slots__ = ("answer", "frame", "future", "is_pipelined", "waiting")

    def __init__(
        self,
        waiting: Waiting | None,
        future: asyncio.Future[Any] | None,
        frame: memoryview,
        answer: ResponseParts = None,
    ) -> None:
        self.waiting = waiting  # None once `answer` is set
        self.future = future
        self.frame = frame
        self.is_pipelined = waiting is None or waiting.served.pipelined
        self.answer = answer


class Connections:
    """All open connections of a broker, their limits and shared buffers; closes idle ones.

    Idle time is counted in ticks of one timer. A connection keeps the tick of its last byte, so that a request costs
    neither a timer nor a clock reading. As in Kafka, a client that slowly reads a large response is not idle.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metrics: NetMetrics,
        limits: LimitSettings,
    ) -> None:
        self._config = config
        self.metrics = metrics
        self.scratch = FrameBuffer()
        self.pool = BufferPool()
        self.request_bytes_max = config.socket_request_max_bytes
        # For connections that have not authenticated yet.
        self.unauthenticated_bytes_max = min(
            config.sasl_server_max_receive_size, self.request_bytes_max
        )
        most = config.queued_max_request_bytes
        self.memory = metrics.memory = RequestMemory(most) if most > 0 else None
        self.limits = ConnectionLimits(limits)
        self.address_rates = AddressRates(
            samples=config.quota_window_num, window_ms=config.quota_window_size_seconds * 1_000
        )
        self.refusals = RefusalLog()
        self.tick = 0
        self._open: dict[ServerConnection, None] = {}  # in order of acceptance
        # Unsent response bytes of clients that read slowly: all, and those in memory, of which this is the total.
        self._unsent: dict[ServerConnection, tuple[int, int]] = {}
        self.unsent_bytes = 0
        # Connections rejected by their address's quota: the function that closes each.
        self._rejected: set[Callable[[], object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._bytes_at_last_tick = 0
        self._all_closed: asyncio.Event | None = None

    def __iter__(self) -> Iterator[ServerConnection]:
        """The open connections."""
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    # -- start and stop -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the timer of the ticks."""
        self.on_tick()

    @property
    def is_stopping(self) -> bool:
        """Whether the broker no longer accepts connections."""
        return self._all_closed is not None

    def stop_accepting(self) -> None:
        """Accept no more connections; open ones are still served."""
        if self._timer is not None:
            self._timer.cancel()
        self._all_closed = asyncio.Event()

    async def end(self) -> None:
        """Answer requests in progress, then close all connections."""
        assert self._all_closed is not None, "stop_accepting comes first"
        for close in list(self._rejected):
            self._close_rejected(close)
        for connection in self:
            connection.drain()
        if self._open:
            try:
                await asyncio.wait_for(self._all_closed.wait(), DRAIN_SECONDS_MAX)
            except TimeoutError:
                log.info(
                    "aborted %s that did not close in time", counted(len(self._open), "connection")
                )
                for connection in self:
                    connection.abort()

    # -- accepting and closing ----------------------------------------------------------------------

    def admit(self, connection: ServerConnection) -> str | None:
        """Accept a connection, or return why it is refused."""
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
        """Close the longest idle connection of another listener, for one on the protected listener (KIP-402)."""
        others = [connection for connection in self._open if connection.listener != listener]
        if others:
            victim = min(others, key=lambda connection: connection.last_tick)
            log.info("closing %s: max.connections is reached and a broker connects", victim.peer)
            victim.abort()
            self.forget(victim)

    def rejects(self, host: str, close: Callable[[], object]) -> bool:
        """Whether a host exceeds its connection creation rate (KIP-612); if so, `close` is called after a delay."""
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

    def delay_s(self, connection: ServerConnection) -> float:
        """The delay in seconds before an accepted connection is served (max.connection.creation.rate)."""
        return self.limits.delay_s(connection.listener, asyncio.get_running_loop().time())

    def set_options(self, connected: socket.socket | None) -> None:
        """Set Kafka's options on a client's socket."""
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

    def record_unsent(self, connection: ServerConnection, size_bytes: int, in_memory: int) -> None:
        """Record how many response bytes of a connection are unsent, and how many of them are in memory."""
        self.unsent_bytes += in_memory - self._unsent.pop(connection, (0, 0))[1]
        if size_bytes:
            self._unsent[connection] = (size_bytes, in_memory)

    def forget(self, connection: ServerConnection) -> None:
        """Remove a closed connection; idempotent."""
        self.record_unsent(connection, 0, 0)
        if connection not in self._open:
            return
        del self._open[connection]
        self.limits.closed(connection.host, connection.listener)
        self.metrics.connections = len(self._open)
        self.metrics.connections_closed += 1
        if not self._open and self._all_closed is not None:
            self._all_closed.set()

    def _check_slow_readers(self) -> None:
        for connection, (before, _) in tuple(self._unsent.items()):
            size_bytes, in_memory = connection.unsent_bytes()
            if size_bytes < before:
                connection.last_tick = self.tick
            self.record_unsent(connection, size_bytes, in_memory)

    def on_tick(self) -> None:
        """Periodic work: closes idle connections, frees unused memory."""
        idle_ms = self._config.connections_max_idle_ms
        seconds = (
            max(idle_ms / 1000 / TICKS_PER_IDLE_TIME, TICK_SECONDS_MIN) if idle_ms >= 0 else 60.0
        )
        self._timer = asyncio.get_running_loop().call_later(seconds, self.on_tick)
        self.tick += 1
        if self.metrics.bytes_in == self._bytes_at_last_tick:
            self.pool.clear()
        self._bytes_at_last_tick = self.metrics.bytes_in
        if idle_ms < 0:
            return
        self._check_slow_readers()
        ticks_max = max(-(-idle_ms // int(seconds * 1000)), 1)
        for connection in self:
            if self.tick - connection.last_tick > ticks_max:
                log.info(
                    "About to close the idle connection from %s due to being idle for %d ms",
                    connection.peer,
                    (self.tick - connection.last_tick) * seconds * 1000,
                )
                self.metrics.connections_idle += 1
                connection.abort()


class _ClosedTransport(asyncio.Transport):
    """Replaces the transport of a closed connection."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        pass

    abort = close


_GONE = _ClosedTransport()


class ServerConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of one client."""

    __slots__ = (
        "_all",
        "_assembler",
        "_came_by_tls",
        "authenticator",
        "client",
        "_deadline",
        "_dispatcher",
        "_frames",
        "_handle",
        "_is_closed",
        "_is_held",
        "_is_muted",
        "_is_reading",
        "_is_scheduled",
        "_is_writable",
        "_muted_until_s",
        "_out",
        "_out_bytes",
        "_reached_end",
        "_security",
        "_slots",
        "_transport",
        "unanswered_bytes",
        "_waits_for_room",
        "host",
        "last_tick",
        "listener",
        "peer",
        "principal",
    )

    def __init__(
        self,
        connections: Connections,
        dispatcher: Dispatcher,
        listener: str,
        security: ListenerSecurity | None = None,
        authenticator: Authentication | None = None,
    ) -> None:
        """`security` is the listener's, None for PLAINTEXT; `authenticator` handles requests before SASL is done."""
        self._all = connections
        self._dispatcher = dispatcher
        self._assembler = FrameAssembler(
            connections.scratch, connections.pool, connections.request_bytes_max, connections.memory
        )
        self.authenticator = authenticator
        self._handle: Callable[..., ResponseParts | Waiting] = dispatcher.handle
        self._deadline: asyncio.TimerHandle | None = None  # of the authentication
        if authenticator is not None:
            self._handle = authenticator.handle
            self._assembler.limit(connections.unauthenticated_bytes_max, is_exempt=True)
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(AUTHENTICATION_SECONDS_MAX, self._on_timeout)
        self._security = security
        self._came_by_tls = security is not None and security.uses_tls
        self._transport: asyncio.Transport
        self.listener = listener
        self.host = ""
        self.peer = ""
        self.client = ClientInformation()
        self.principal = ANONYMOUS
        self.last_tick = connections.tick
        # Requests not started: arrival (perf_counter's seconds) and frame.
        self._frames: deque[tuple[float, memoryview]] = deque()
        self._slots: deque[_Slot] = deque()  # started, not answered
        self.unanswered_bytes = 0  # of both: a started request keeps its bytes
        self._out: list[Any] = []  # answered, not written
        self._out_bytes = 0
        self._is_reading = True
        self._is_writable = True
        self._is_scheduled = False
        self._is_closed = False
        self._is_held = False  # during the delay of `_end_after`
        self._reached_end = False
        self._is_muted = False
        self._muted_until_s = 0.0
        self._waits_for_room = False

    # -- called by the event loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self.client.sends_files = isinstance(transport, SocketTransport)
        self.set_peer(self._transport, transport.get_extra_info("peername") or ("", 0))
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        came_by_tls = self._came_by_tls
        if not came_by_tls and self._all.rejects(self.host, self._transport.abort):
            log.info("refused %s: connection_creation_rate of its address is exceeded", self.peer)
            self._is_closed = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            return
        refusal = (
            self._authenticate_by_certificate(self._security)
            if came_by_tls
            else self._all.admit(self)
        )
        if refusal is not None:
            log.info("refused %s: %s", self.peer, refusal)
            self._is_closed = True
            self._transport.abort()
            return
        self._all.set_options(transport.get_extra_info("socket"))
        delay_s = 0.0 if came_by_tls else self._all.delay_s(self)
        if delay_s > 0:
            self._is_reading = False
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(delay_s, self._regulate)

    def set_peer(self, transport: Any, name: Sequence[Any]) -> None:
        """Set the transport and the client's address."""
        self._transport = transport
        self.host = one_text(str(name[0]))
        self.client.port = name[1]
        self.peer = f"{self.host}:{name[1]}"

    def _authenticate_by_certificate(self, security: ListenerSecurity | None) -> str | None:
        """Without SASL the principal is that of the certificate; returns why that fails."""
        if security is None or security.uses_sasl:
            return None
        principal = security.principal_of(self._transport.get_extra_info("peercert"))
        if principal is None:
            self._all.metrics.failed_authentications += 1
            return "no rule of ssl.principal.mapping.rules matches its certificate"
        self._all.metrics.authentications += 1
        self.principal = principal
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError) and exc.filename:
            log.info("closing %s: %s", self.peer, exc)
        self._is_closed = True
        self._assembler.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self._frames.clear()
        self._out.clear()
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()
        self._slots.clear()
        self._dispatcher.disconnected(self.client)
        self._all.forget(self)
        # Break reference cycles: TLS holds tens of KiB per connection until the garbage collector runs.
        self._transport, self.authenticator = _GONE, None
        self._handle = self._dispatcher.handle

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_tick = self._all.tick
        self._all.metrics.bytes_in += nbytes
        if self._is_closed or self._reached_end:
            return
        frames = self._assembler.received(nbytes)
        error = self._assembler.error
        if frames:
            arrived_s = perf_counter()
            for frame in frames:
                self.unanswered_bytes += len(frame)
                self._frames.append((arrived_s, frame))
            del frames, frame
            self._serve()
        elif self._assembler.needs_room:
            self._regulate()
        # The requests before the malformed bytes may have closed the connection.
        if error is not None and not self._is_closed and not self._reached_end:
            authenticator = self.authenticator
            if authenticator is not None and authenticator.fails_by_malformed_frame():
                self._end_after(authenticator.delay_s)
            self._end_malformed(error)
            self._close_if_done()

    def eof_received(self) -> bool:
        """Keeps the sending side open while responses are pending."""
        self._reached_end = True
        if not self._assembler.is_between_frames:
            log.debug("%s disconnected in the middle of a request", self.peer)
        # asyncio's TLS cannot be half-closed.
        return bool(self._slots or self._frames or self._is_held) and not self._came_by_tls

    def pause_writing(self) -> None:
        self._is_writable = False
        self._all.record_unsent(self, *self.unsent_bytes())

    def resume_writing(self) -> None:
        self._is_writable = True
        self._all.record_unsent(self, 0, 0)
        self.last_tick = self._all.tick
        self._serve()

    # -- called by the server -----------------------------------------------------------------------

    def unsent_bytes(self) -> tuple[int, int]:
        """The size of unsent responses, and how much of it is in memory."""
        transport = self._transport
        size_bytes = transport.get_write_buffer_size()
        in_files = transport.unsent_file_bytes if isinstance(transport, SocketTransport) else 0
        return size_bytes, size_bytes - in_files

    def drain(self) -> None:
        """Take no more requests; close once those in progress are answered."""
        if not self._is_closed:
            self._frames.clear()
            self._reached_end = True
            self._regulate()
            self._close_if_done()

    def close(self) -> None:
        """Close once the written bytes are sent."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        self._is_closed = True
        self._transport.abort()

    # -- requests and responses ---------------------------------------------------------------------

    def _serve(self) -> None:
        """Start as many requests as allowed and write the responses."""
        frames = self._frames
        left = REQUESTS_PER_TURN_MAX
        try:
            while frames and self._may_begin():
                if not left:
                    self._serve_soon()
                    break
                left -= 1
                self._begin(*frames.popleft())
        except (MalformedFrame, Unanswerable) as error:
            self._end_malformed(error)
            frames.clear()
        self._flush()
        self._regulate()
        if frames and self._slots:
            force_complete = getattr(self._slots[-1].future, "force_complete", None)
            if force_complete is not None:
                force_complete()
        if self._reached_end:
            self._close_if_done()

    def _may_begin(self) -> bool:
        if not self._is_writable or self._is_closed or self._is_muted:
            return False
        slots = self._slots
        if not slots:
            return True
        return slots[-1].is_pipelined and self._dispatcher.is_pipelined(self._frames[0][1])

    def _begin(self, arrived_s: float, frame: memoryview) -> None:
        outcome = self._handle(
            frame, self.host, self.listener, arrived_s, self.principal, self.client
        )
        if isinstance(outcome, Waiting):
            future = asyncio.ensure_future(outcome.result)
            slot = _Slot(outcome, future, frame)
            self._slots.append(slot)
            future.add_done_callback(partial(self._completed, slot))
        else:
            self.unanswered_bytes -= len(frame)
            self._assembler.recycle(frame)
            if self._slots:
                self._slots.append(_Slot(None, None, frame, answer=outcome))
            elif outcome is not None:
                self._write(outcome)
        if self.authenticator is not None:
            self._check_authentication(self.authenticator, is_answered=outcome is not None)

    def _completed(self, slot: _Slot, future: asyncio.Future[Any]) -> None:
        """A waiting request is done; its response follows those before it."""
        cancelled = future.cancelled()
        error = None if cancelled else future.exception()
        if self._is_closed:
            return
        assert slot.waiting is not None
        try:
            if cancelled:
                raise Unanswerable(f"{slot.waiting.served.name} was cancelled")
            result = None if error else future.result()
            slot.answer = self._dispatcher.finish(slot.waiting, result, error)
        except Unanswerable as failure:
            self._end_malformed(failure)
            self._frames.clear()
        slot.waiting = slot.future = None
        self.unanswered_bytes -= len(slot.frame)
        self._assembler.recycle(slot.frame)
        slots = self._slots
        while slots and slots[0].waiting is None:
            answer = slots.popleft().answer
            if answer is not None:
                self._write(answer)
        self._serve()

    def _write(self, answer: list[Any]) -> None:
        if type(answer) is Throttled:
            self.mute(answer.throttle_ms)
        out = self._out
        for part in answer:
            out.append(part)
            self._out_bytes += len(part)
        if self._out_bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._is_closed:
            return
        size = self._out_bytes
        self._out, self._out_bytes = [], 0
        self._all.metrics.bytes_out += size
        self.last_tick = self._all.tick
        write(self._transport, out, size, by_tls=self._came_by_tls)
        if not self._is_writable:
            self._all.record_unsent(self, *self.unsent_bytes())

    # -- authentication by SASL ---------------------------------------------------------------------

    def _check_authentication(self, authenticator: Authentication, *, is_answered: bool) -> None:
        """After a request: has the client authenticated, or failed to? A failure's response, if any, is pending."""
        if authenticator.failure is not None:
            failure = authenticator.failure
            log.info(
                "Failed authentication with %s (%s)",
                self.peer,
                failure.__cause__ or failure.message,
            )
            if is_answered:
                self.drain()
            else:
                self._end_after(authenticator.delay_s)
        elif self._deadline is not None and authenticator.principal is not None:
            self._deadline.cancel()
            self._deadline = None
            self.principal = authenticator.principal
            self._assembler.limit(self._all.request_bytes_max, is_exempt=False)
            if not authenticator.has_session:
                self.authenticator, self._handle = None, self._dispatcher.handle

    def _on_timeout(self) -> None:
        log.info("closing %s: not authenticated within %d s", self.peer, AUTHENTICATION_SECONDS_MAX)
        self.abort()

    # -- back-pressure and closing ------------------------------------------------------------------

    def _regulate(self) -> None:
        """Pause or resume reading."""
        if self._is_closed:
            return
        wants = (
            self._is_writable
            and not self._is_muted
            and not self._reached_end
            and len(self._frames) + len(self._slots) < UNANSWERED_REQUESTS_MAX
            and self.unanswered_bytes < UNANSWERED_BYTES_MAX
            and (self._all.memory is None or self._has_room(self._all.memory))
        )
        if wants is not self._is_reading and not self._transport.is_closing():
            self._is_reading = wants
            if wants:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _has_room(self, memory: RequestMemory) -> bool:
        """Whether queued.max.request.bytes has room for this connection; if not, waits for it."""
        assembler = self._assembler
        if assembler.is_exempt:
            return True
        if not assembler.needs_room and not (assembler.is_between_frames and not memory.has_room):
            return True
        if memory.has_room:
            assembler.allocate_waiting()
            return True
        if not self._waits_for_room:
            self._waits_for_room = True
            memory.wait(self._on_room)
        return False

    def _on_room(self) -> None:
        self._waits_for_room = False
        if not self._is_closed:
            self._regulate()

    def mute(self, throttle_ms: int) -> None:
        """Stop reading for the throttle time of a client above its quota (KIP-219)."""
        loop = asyncio.get_running_loop()
        self._muted_until_s = max(self._muted_until_s, loop.time() + throttle_ms / 1_000)
        if not self._is_muted:
            self._is_muted = True
            loop.call_at(self._muted_until_s, self._unmute)

    def _unmute(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._muted_until_s and not self._is_closed:
            # `mute` has extended the time, or the timer is slightly early.
            loop.call_at(self._muted_until_s, self._unmute)
            return
        self._is_muted = False
        self.last_tick = self._all.tick
        if not self._is_closed:
            self._serve()

    def _serve_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_scheduled)

    def _serve_scheduled(self) -> None:
        self._is_scheduled = False
        if not self._is_closed:
            self._serve()

    def _end_after(self, delay_s: float) -> None:
        """Take no more requests; close after this delay, whatever the client does."""
        self._is_held = True
        self.drain()
        asyncio.get_running_loop().call_later(delay_s, self._end_now)

    def _end_now(self) -> None:
        self._is_held = False
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._slots and not self._frames and not self._is_held:
            self.close()

    def _end_malformed(self, error: Exception) -> None:
        """Stop reading; answer earlier requests, then close."""
        self._all.metrics.malformed += 1
        self._all.refusals.closing(self.host, self.peer, str(error))
        self._reached_end = True
        self._regulate()
