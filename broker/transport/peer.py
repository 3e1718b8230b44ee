"""Shell: one connection from this broker to another.

`send` pipelines requests. Every request has a deadline by the event loop's clock; a late response closes the
connection. The first request late in a SASL session renews it (KIP-368), and others wait for that. Every failure
(refused, reset, late, malformed, unexpected) raises one error for all waiting callers: `PeerUnreachable`, or `PeerLate`
if the response did not arrive in time. Callers handle error codes in responses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, cast

from broker.transport.secure_network import SecureNetwork
from kafka_ds.client.session import SaslRefused, Session
from kafka_ds.errors import UnsupportedByBroker
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_ds.process.seams import Network

log = logging.getLogger(__name__)

# A broker stops reading a connection at so many requests (broker.server.connection).
UNANSWERED_MAX = 100


class PeerUnreachable(ConnectionError):
    """The other broker cannot be reached, has disconnected, is late or does not use the protocol."""


class PeerLate(PeerUnreachable):
    """The other broker does not answer in time; it may be alive."""


class PeerConnection(asyncio.BufferedProtocol):
    """A negotiated connection to another broker. `connect` makes it; the first error closes it."""

    def __init__(self, host: str, port: int, client_id: str, login: SecureNetwork | None) -> None:
        self.address = address = f"{host}:{port}"
        self._host = host
        self._login = login
        self._session = Session(address, client_id, asks_unadvertised=True)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._handshake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(UNANSWERED_MAX)
        self._renewing: asyncio.Task[None] | None = None
        self._why_closed: str | None = None
        self._is_late = False

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_ms: int,
        receive_buffer_bytes: int = -1,
    ) -> PeerConnection:
        """Connect, negotiate versions and authenticate within `timeout_ms`.

        `receive_buffer_bytes` is the socket's (replica.socket.receive.buffer.bytes), -1 the system's own.

        Raises:
            PeerUnreachable: no broker answers in time (`PeerLate`), or not in Kafka's protocol.
        """
        login = network if isinstance(network, SecureNetwork) and network.has_login else None
        connection = cls(host, port, client_id, login)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                transport, _ = await network.connect(lambda: connection, host, port)
                _set_receive_buffer(transport, receive_buffer_bytes)
                connection._session.negotiate(connection._loop.time(), timeout_ms)
                await connection._await_handshake()
                await connection._authenticate(timeout_ms)
        except TimeoutError:
            connection.close()
            raise PeerLate(f"{host}:{port} did not answer within {timeout_ms} ms") from None
        except SaslRefused as refused:
            connection.close()
            assert login is not None
            raise PeerUnreachable(
                f"{host}:{port}: {login.login_failed(host, port, refused)}"
            ) from None
        except UnsupportedByBroker as error:
            connection.close()
            raise PeerUnreachable(str(error)) from None
        except (OSError, asyncio.CancelledError) as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, PeerUnreachable):
                raise PeerUnreachable(f"{host}:{port}: {error}") from None
            raise
        if login is not None:
            login.login_succeeded(host, port)
        return connection

    # -- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        for asked, message in session.received(nbytes, self._loop.time()):
            future = self._waiting.pop(asked.correlation_id)
            self._room.release()
            if not future.done():
                future.set_result(message)
        if session.error is None or isinstance(session.error, SaslRefused | UnsupportedByBroker):
            self._go_on()
        else:
            self.fail(f"sent an invalid response: {session.error}")

    def eof_received(self) -> bool:
        self.fail("closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"ended the connection: {exc or 'closed'}")

    # -- requests -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent."""
        return self._why_closed is None

    def version_of(self, request: type) -> int:
        """The highest version of a request that both sides support.

        Inter-broker APIs need not be advertised; for those it is this broker's highest.

        Raises:
            KafkaError: UNSUPPORTED_VERSION, no version is common to both.
        """
        try:
            return self._session.version_of(request)
        except UnsupportedByBroker as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None

    async def send(self, request: Any, *, timeout_ms: int) -> Any:
        """The response to a request, within `timeout_ms`.

        If the caller is cancelled, the connection stays open and its response is dropped.

        Raises:
            PeerUnreachable: the connection is lost or the response late, which closes it.
            KafkaError: UNSUPPORTED_VERSION, no version of the request is common to both.
        """
        began_at = self._loop.time()
        try:
            async with asyncio.timeout_at(began_at + timeout_ms / 1_000):
                await self._room.acquire()
                while self._must_wait_for_renewal(timeout_ms):
                    assert self._renewing is not None
                    self._room.release()
                    await asyncio.shield(self._renewing)
                    await self._room.acquire()
        except TimeoutError:
            self.fail(
                f"accepted no request for {timeout_ms} ms: {UNANSWERED_MAX} are in flight, or re-authentication is"
            )
            raise self._unreachable() from None
        if self._why_closed is not None:
            self._room.release()
            raise self._unreachable()
        try:
            asked = self._session.send(request, self._loop.time(), timeout_ms, since=began_at)
        except UnsupportedByBroker as error:
            self._room.release()
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
        future = self._waiting[asked.correlation_id] = self._loop.create_future()
        self._go_on()
        return await future

    # -- authentication -------------------------------------------------------------------------

    async def _await_handshake(self) -> None:
        self._handshake = self._loop.create_future()
        self._go_on()
        await self._handshake

    async def _authenticate(self, timeout_ms: int) -> None:
        if self._login is None:
            return
        mechanism, exchange = await self._login.exchange(self._host)
        if self._why_closed is not None:
            raise self._unreachable()
        self._session.authenticate(mechanism, exchange, self._loop.time(), timeout_ms)
        await self._await_handshake()

    def _must_wait_for_renewal(self, timeout_ms: int) -> bool:
        """Whether the caller has to wait for re-authentication; starts it if it is due."""
        is_due = self._renewing is None and self._session.must_renew(self._loop.time())
        if is_due and self._why_closed is None:
            self._renewing = self._loop.create_task(self._renew(timeout_ms))
        return self._renewing is not None

    async def _renew(self, timeout_ms: int) -> None:
        try:
            await self._authenticate(timeout_ms)
        except (ConnectionError, SaslRefused, UnsupportedByBroker) as error:
            self.fail(f"failed re-authentication: {error}")
        finally:
            self._renewing = None

    # -- driving the session --------------------------------------------------------------------

    def _go_on(self) -> None:
        """Write what the session sends, complete a handshake, set the next deadline."""
        session, handshake = self._session, self._handshake
        assert self._transport is not None
        for frame in session.data_to_send():
            self._transport.write(frame)
        if session.is_ready and handshake is not None and not handshake.done():
            if session.error is None:
                handshake.set_result(None)
            else:
                handshake.set_exception(session.error)
        deadline = min((each.deadline for each in session.in_flight.values()), default=None)
        if self._timer is not None and self._timer.when() != deadline:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        late = self._session.late(self._loop.time())
        if late is None:
            self._go_on()
            return
        self._is_late = self._why_closed is None
        self.fail(f"did not answer {late.request.__name__} within {late.timeout_ms} ms")

    def close(self) -> None:
        """Close the connection; waiting callers fail. Idempotent."""
        self.fail("closed by this broker")

    def fail(self, why: str) -> None:
        """Close the connection once, with the reason for all waiting callers."""
        if self._why_closed is not None:
            return
        self._why_closed = why
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._session.close()
        waiting, self._waiting = list(self._waiting.values()), {}
        for future in (*waiting, self._handshake):
            if future is not None and not future.done():
                future.set_exception(self._unreachable())
        for _ in waiting:
            self._room.release()

    def _unreachable(self) -> PeerUnreachable:
        kind = PeerLate if self._is_late else PeerUnreachable
        return kind(f"{self.address} {self._why_closed}")


def _set_receive_buffer(transport: asyncio.Transport, size_bytes: int) -> None:
    connected = transport.get_extra_info("socket")
    if size_bytes > 0 and connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
