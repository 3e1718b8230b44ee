"""Shell: one connection from this broker to another: requests out, answers in.

Rules of this file:
- Requests are pipelined: `ask` may be called while others wait, and an answer finds its question by the correlation
  id. Versions are agreed on once a connection, by ApiVersions.
- A session that expires (KIP-368) is renewed by the first request late in its life. Requests in flight are answered
  first, and no other request is sent until the session is renewed.
- Every question has a deadline, by the event loop's own time. An answer that is late closes the connection: the peer
  may be stuck in the middle of it, and whoever else waits there is better off with a new one.
- Whatever is wrong (refused, reset, late, malformed, not asked for) is one error, `PeerUnreachable`, to all who wait
  (`PeerLate` if nothing came in time), and the connection is of no more use. What a peer answers properly, error codes
  among it, is the caller's matter.
- An answer may look into the connection's own memory: the buffer is used again only when nobody looks into it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kafka_ds.protocol.buffer_pool import BufferPool
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.frame_assembler import FrameAssembler, Scratch
from kafka_ds.protocol.messages import RESPONSES, ApiVersionsRequest, ApiVersionsResponse
from kafka_ds.protocol.types import Versions, message_info
from kafka_ds.version import CLIENT_SOFTWARE, VERSION

if TYPE_CHECKING:
    from broker.seams import Network
    from broker.transport.secure_network import Session

log = logging.getLogger(__name__)

# More requests than a broker serves of one connection before it stops reading (broker.server.connection).
UNANSWERED_MAX = 100
# A frame's length is an int32. Memory is taken as bytes come, not as a length promises them.
RESPONSE_BYTES_MAX = 2**31 - 1


class PeerUnreachable(ConnectionError):
    """The other broker cannot be reached, has gone, is late, or does not speak our protocol."""


class PeerLate(PeerUnreachable):
    """The other broker does not answer in time: it may live."""


class _Question:
    """A request that waits for its answer."""

    __slots__ = ("deadline", "future", "request", "version")

    def __init__(self, request: type, version: int, future: asyncio.Future[Any]) -> None:
        self.request = request
        self.version = version
        self.future = future
        self.deadline: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()


class _Wire(asyncio.BufferedProtocol):
    """The protocol that the event loop calls; it cuts frames and hands them on."""

    def __init__(self) -> None:
        self._pool = BufferPool()
        self._assembler = FrameAssembler(Scratch(), self._pool, RESPONSE_BYTES_MAX)
        self.connection: PeerConnection | None = None
        # Set by a network on which one has to authenticate.
        self.session: Session | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._assembler.received(nbytes)
        error = self._assembler.error
        connection = self.connection
        if connection is None:
            return
        for frame in frames:
            connection.answered(frame)
            self._assembler.recycle(frame)
        if error is not None:
            connection.fail(f"sent what is no answer: {error}")

    def eof_received(self) -> bool:
        if self.connection is not None:
            self.connection.fail("closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._assembler.close()
        if self.connection is not None:
            self.connection.fail(f"ended the connection: {exc or 'closed'}")


class PeerConnection:
    """A negotiated connection to another broker. Made by `connect`; of no use after its first error."""

    def __init__(
        self, wire: _Wire, transport: asyncio.Transport, address: str, client_id: str
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._questions: dict[int, _Question] = {}
        self._correlation_id = 0
        self._room = asyncio.Semaphore(UNANSWERED_MAX)
        self._versions: dict[int, Versions] = {}
        self._why_closed: str | None = None
        self._is_late = False
        self._session = wire.session
        self._renewing: asyncio.Task[None] | None = None
        wire.connection = self

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
        """Connects and agrees on versions, both within `timeout_ms`.

        `receive_buffer_bytes` is the socket's (replica.socket.receive.buffer.bytes), -1 the system's own.

        Raises:
            PeerUnreachable: nobody answers there in time (`PeerLate`), or not in Kafka's protocol.
        """
        address = f"{host}:{port}"
        connection = None
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                transport, wire = await network.connect(_Wire, host, port)
                connection = cls(wire, transport, address, client_id)
                _set_receive_buffer(transport, receive_buffer_bytes)
                await connection._negotiate(timeout_ms)
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise PeerLate(f"{address} did not answer within {timeout_ms} ms") from None
        except (OSError, asyncio.CancelledError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, OSError) and not isinstance(error, PeerUnreachable):
                raise PeerUnreachable(f"{address}: {error}") from None
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether a question may be asked."""
        return self._why_closed is None

    def version_of(self, request: type) -> int:
        """The highest version of a request that both sides speak.

        APIs between brokers need not be advertised, as ApiVersions is for clients: for these it is our highest.

        Raises:
            KafkaError: UNSUPPORTED_VERSION, there is none.
        """
        info = message_info(request)
        assert info.key is not None
        theirs = self._versions.get(info.key, info.versions)
        version = min(info.versions.last, theirs.last)
        if version < max(info.versions.first, theirs.first):
            what = f"{self.address} speaks {request.__name__} {theirs}, we {info.versions}"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, what)
        return version

    async def ask(self, request: Any, *, timeout_ms: int) -> Any:
        """The answer to a request, within `timeout_ms`.

        If the caller is cancelled the connection stays as it is: the answer is read and dropped.

        Raises:
            PeerUnreachable: the connection is lost, or the answer late; the connection is closed then.
            KafkaError: UNSUPPORTED_VERSION, there is no version of the request that both sides speak.
        """
        deadline = self._loop.time() + timeout_ms / 1_000
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
                while self._session is not None and self._must_renew(self._session, timeout_ms):
                    assert self._renewing is not None
                    self._room.release()  # The renewal wants some, too.
                    await asyncio.shield(self._renewing)
                    await self._room.acquire()
        except TimeoutError:
            self.fail(f"took no request for {timeout_ms} ms: {UNANSWERED_MAX} wait, or a renewal")
            raise self._unreachable() from None
        if self._why_closed is not None:
            self._room.release()
            raise self._unreachable()
        try:
            version = self.version_of(type(request))
        except KafkaError:
            self._room.release()
            raise
        return await self._send(request, version, timeout_ms, deadline)

    def _must_renew(self, session: Session, timeout_ms: int) -> bool:
        """Whether a renewal has to be waited for; begins one when it is time."""
        if self._renewing is None and self._why_closed is None:
            at_s = session.renew_at_s
            if at_s is not None and self._loop.time() >= at_s:
                self._renewing = self._loop.create_task(self._renew(session, timeout_ms))
        return self._renewing is not None

    async def _renew(self, session: Session, timeout_ms: int) -> None:
        async def step(request: Any, version: int) -> Any:
            await self._room.acquire()
            if self._why_closed is not None:
                self._room.release()
                raise self._unreachable()
            deadline = self._loop.time() + timeout_ms / 1_000
            return await self._send(request, version, timeout_ms, deadline)

        try:
            session.renew_at_s = await session.authenticate(step)
        except (ConnectionError, MalformedFrame) as error:
            self.fail(f"could not be authenticated with anew: {error}")
        finally:
            self._renewing = None

    def _send(
        self, request: Any, version: int, timeout_ms: int, deadline: float
    ) -> asyncio.Future[Any]:
        """Writes a request, for which there is room, and gives what its answer will arrive in."""
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        question = _Question(type(request), version, self._loop.create_future())
        self._questions[correlation_id] = question
        question.deadline = self._loop.call_at(
            deadline, partial(self._late, question.request, timeout_ms)
        )
        self._transport.write(encode_request(request, version, correlation_id, self._client_id))
        return question.future

    async def _negotiate(self, timeout_ms: int) -> None:
        """Learns what the peer speaks; one that is older than our question says so in version 0 (KIP-511)."""
        question = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE, client_software_version=VERSION
        )
        for version in (message_info(ApiVersionsRequest).versions.last, 0):
            await self._room.acquire()
            deadline = self._loop.time() + timeout_ms / 1_000
            answer = await self._send(question, version, timeout_ms, deadline)
            if answer.error_code == ErrorCode.NONE:
                self._versions = {
                    api.api_key: Versions(api.min_version, api.max_version)
                    for api in cast("ApiVersionsResponse", answer).api_keys
                }
                return
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        raise PeerUnreachable(f"{self.address} refused ApiVersions: {answer.error_code}")

    def answered(self, frame: memoryview) -> None:
        """Takes a frame that came: gives the answer to who asked for it."""
        question = self._questions.pop(int.from_bytes(frame[:4], "big"), None)
        if self._why_closed is not None:
            return
        if question is None:
            self.fail("answered what was not asked")
            return
        question.drop()
        self._room.release()
        try:
            answer = _decode(question, frame)
        except MalformedFrame as error:
            self._resolve(question, PeerUnreachable(f"{self.address} answered with {error}"))
            self.fail(f"answered {question.request.__name__} with {error}")
            return
        if not question.future.done():
            question.future.set_result(answer)

    def close(self) -> None:
        """Ends the connection, and whoever waits for an answer; harmless when ended."""
        self.fail("closed by us")

    def fail(self, why: str) -> None:
        """Ends the connection, once, with the reason that all who wait are told."""
        if self._why_closed is not None:
            return
        self._why_closed = why
        self._transport.abort()
        questions, self._questions = list(self._questions.values()), {}
        for question in questions:
            question.drop()
            self._room.release()
            self._resolve(question, self._unreachable())

    def _late(self, request: type, timeout_ms: int) -> None:
        self._is_late = self._why_closed is None
        self.fail(f"did not answer {request.__name__} within {timeout_ms} ms")

    def _resolve(self, question: _Question, error: PeerUnreachable) -> None:
        if not question.future.done():
            question.future.set_exception(error)

    def _unreachable(self) -> PeerUnreachable:
        kind = PeerLate if self._is_late else PeerUnreachable
        return kind(f"{self.address} {self._why_closed}")


def _decode(question: _Question, frame: memoryview) -> Any:
    """The answer in a frame. An ApiVersions that is too new for the peer is answered in version 0."""
    answer_class = RESPONSES[cast(int, message_info(question.request).key)]
    try:
        return decode_response(answer_class, frame, question.version)[1]
    except MalformedFrame:
        if answer_class is not ApiVersionsResponse:
            raise
        return decode_response(answer_class, frame, 0)[1]


def _set_receive_buffer(transport: asyncio.Transport, size_bytes: int) -> None:
    connected = transport.get_extra_info("socket")
    if size_bytes > 0 and connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
