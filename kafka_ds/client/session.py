"""Pure: the client's side of a connection, without its socket: requests to bytes, and bytes to responses.

Versions are negotiated once (ApiVersions). With SASL the client authenticates, and re-authenticates if the broker
limits the session (KIP-368). Responses are matched to requests by correlation id; every request has a deadline by the
caller's clock. After an `error` the session cannot be used, because the position in the stream is unknown.
Two shells use it: `Connection`, which blocks, and asyncio's `broker.transport.peer.PeerConnection`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from kafka_ds.errors import UnsupportedByBroker
from kafka_ds.protocol.buffer_pool import BufferPool
from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.frame_assembler import FrameAssembler, FrameBuffer
from kafka_ds.protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kafka_ds.protocol.messages.brokers import OWN_KEYS_FROM
from kafka_ds.protocol.types import Versions, message_info
from kafka_ds.security.gssapi_mechanism import KerberosFailed
from kafka_ds.security.mechanisms import ClientMechanism, CredentialsRefused
from kafka_ds.security.scram import ScramError
from kafka_ds.version import CLIENT_SOFTWARE, VERSION

# A frame's length is an int32. Memory is allocated as bytes arrive.
RESPONSE_BYTES_MAX: Final = 2**31 - 1
ANY_VERSION: Final = 2**15
# The part of a session's lifetime after which the client re-authenticates (Kafka's clients: 0.85 to 0.95).
RENEWED_AFTER: Final = 0.85
_NOTHING: Final = Versions(0, -1)

# Yields the requests of a handshake with their versions, and is sent the responses.
SessionSteps: TypeAlias = Generator[tuple[Any, int], Any, None]


class SaslRefused(Exception):
    """Authentication failed; ``cause`` names the reason."""

    def __init__(self, cause: Literal["protocol", "mechanism", "credentials"], why: str) -> None:
        super().__init__(why)
        self.cause = cause


@dataclass(slots=True, eq=False)
class InFlight:
    """A request without a response yet; ``deadline`` is by the caller's clock."""

    correlation_id: int
    request: type
    version: int
    timeout_ms: int
    deadline: float
    is_step: bool


class Answer(NamedTuple):
    """A response and its request."""

    asked: InFlight
    message: Any


class Session:
    """A connection to the broker called ``peer``.

    Bytes are read into `get_buffer`, and `received` returns the responses; `data_to_send` returns what to write.
    ``asks_unadvertised``: an API that the broker does not list is called in our highest version, as between brokers.
    """

    def __init__(self, peer: str, client_id: str, *, asks_unadvertised: bool = False) -> None:
        self._peer = peer
        self._client_id = client_id
        self._asks_unadvertised = asks_unadvertised
        self._assembler = FrameAssembler(FrameBuffer(), BufferPool(), RESPONSE_BYTES_MAX)
        self._correlation_id = 0
        self._versions: dict[int, Versions] = {}
        self._steps: SessionSteps | None = None
        self._step_timeout_ms = 0
        self._now = 0.0
        self.renew_at: float | None = None
        self._outgoing: list[bytes] = []
        self.in_flight: dict[int, InFlight] = {}
        self.used_at = 0.0
        self.is_accepted = False
        """Whether a response other than ApiVersions has been received."""
        self.error: Exception | None = None
        """MalformedFrame, UnsupportedByBroker or SaslRefused."""

    # -- handshakes -----------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether no handshake is in progress."""
        return self._steps is None

    def negotiate(self, now: float, timeout_ms: int) -> None:
        """Request the broker's API versions."""
        self._begin(self._negotiation(), now, timeout_ms)

    def authenticate(
        self, mechanism: str, exchange: ClientMechanism, now: float, timeout_ms: int
    ) -> None:
        """Authenticate or re-authenticate; each step has the timeout."""
        self._begin(self._authentication(mechanism, exchange), now, timeout_ms)

    def must_renew(self, now: float) -> bool:
        """Whether it is time to re-authenticate."""
        return self.renew_at is not None and now >= self.renew_at

    def _begin(self, steps: SessionSteps, now: float, timeout_ms: int) -> None:
        assert self._steps is None, "one handshake at a time"
        self._steps, self._step_timeout_ms, self._now = steps, timeout_ms, now
        self._go_on(None)

    def _go_on(self, answer: Any) -> None:
        assert self._steps is not None
        try:
            request, version = self._steps.send(answer)
        except StopIteration:
            self._steps = None
            return
        except (UnsupportedByBroker, SaslRefused) as error:
            self._steps, self.error = None, error
            return
        self._send(request, version, self._step_timeout_ms, self._now, is_step=True)

    def _negotiation(self) -> SessionSteps:
        """A broker that does not know the request's version answers in version 0 (KIP-511)."""
        question = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE, client_software_version=VERSION
        )
        code = ErrorCode.NONE
        for version in (message_info(ApiVersionsRequest).versions.last, 0):
            answer: ApiVersionsResponse = yield question, version
            code = ErrorCode(answer.error_code)
            if code == ErrorCode.NONE:
                self._versions = {
                    api.api_key: Versions(api.min_version, api.max_version)
                    for api in answer.api_keys
                }
                return
        raise UnsupportedByBroker(f"{self._peer} does not answer ApiVersions: {code.name}")

    def _authentication(self, mechanism: str, exchange: ClientMechanism) -> SessionSteps:
        handshake = SaslHandshakeRequest(mechanism=mechanism)
        answer = yield handshake, self.version_of(SaslHandshakeRequest)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            if code != ErrorCode.UNSUPPORTED_SASL_MECHANISM or not answer.mechanisms:
                raise SaslRefused("protocol", code.name)
            raise SaslRefused("mechanism", f"it offers {', '.join(answer.mechanisms)}")
        message, began_at = exchange.first(), self._now
        while not exchange.is_done:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = yield request, self.version_of(SaslAuthenticateRequest)
            if answer.error_code:
                why = answer.error_message or ErrorCode(answer.error_code).name
                raise SaslRefused("credentials", why)
            try:
                message = exchange.respond(bytes(answer.auth_bytes))
            except (ScramError, CredentialsRefused, KerberosFailed) as problem:
                raise SaslRefused("credentials", str(problem)) from None
        lifetime_s = answer.session_lifetime_ms / 1_000
        self.renew_at = began_at + RENEWED_AFTER * lifetime_s if lifetime_s > 0 else None

    # -- requests -------------------------------------------------------------------------------

    def version_of(self, request: type, ceiling: int = ANY_VERSION) -> int:
        """The highest version of a request that both sides support, at most ``ceiling``.

        Raises:
            UnsupportedByBroker: there is none.
        """
        info = message_info(request)
        assert info.key is not None
        is_own = info.key >= OWN_KEYS_FROM  # never advertised
        unknown = info.versions if self._asks_unadvertised or is_own else _NOTHING
        theirs = self._versions.get(info.key, unknown)
        version = min(info.versions.last, theirs.last, ceiling)
        if version < max(info.versions.first, theirs.first):
            raise UnsupportedByBroker(
                f"{self._peer} speaks {request.__name__} {theirs.first} to {theirs.last}, "
                f"this client speaks {info.versions}"
            )
        return version

    def send(
        self,
        request: Any,
        now: float,
        timeout_ms: int,
        *,
        since: float | None = None,
        ceiling: int = ANY_VERSION,
        answered: bool = True,
    ) -> InFlight:
        """Queue a request; its timeout counts from ``since`` (default: now).

        Only Produce with acks=0 has no response (``answered``).

        Raises:
            UnsupportedByBroker: both sides have no common version of it.
        """
        self._now = now
        version = self.version_of(type(request), ceiling)
        began_at = now if since is None else since
        return self._send(request, version, timeout_ms, began_at, answered=answered)

    def _send(
        self,
        request: Any,
        version: int,
        timeout_ms: int,
        began_at: float,
        *,
        answered: bool = True,
        is_step: bool = False,
    ) -> InFlight:
        self.used_at = self._now
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        deadline = began_at + timeout_ms / 1_000
        asked = InFlight(
            self._correlation_id, type(request), version, timeout_ms, deadline, is_step
        )
        if answered:
            self.in_flight[asked.correlation_id] = asked
        self._outgoing.append(
            encode_request(request, version, asked.correlation_id, self._client_id)
        )
        return asked

    def data_to_send(self) -> list[bytes]:
        """The buffers to write, in their order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    @property
    def oldest(self) -> InFlight:
        """The oldest request without a response."""
        return next(iter(self.in_flight.values()))

    def wait_until(self, deadline: float) -> None:
        """Give the oldest request without a response this deadline."""
        self.oldest.deadline = deadline

    def late(self, now: float) -> InFlight | None:
        """A request past its deadline."""
        return next((each for each in self.in_flight.values() if each.deadline <= now), None)

    # -- responses ------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes; release it before `received`."""
        return self._assembler.get_buffer()

    def received(self, count: int, now: float) -> list[Answer]:
        """The responses that are complete with ``count`` more bytes; `error` may be set as well."""
        self._now = now
        answers: list[Answer] = []
        for frame in self._assembler.received(count):
            if self.error is None:
                self._receive_frame(frame, answers)
            self._assembler.recycle(frame)
        if self.error is None:
            self.error = self._assembler.error
        return answers

    def _receive_frame(self, frame: memoryview, answers: list[Answer]) -> None:
        asked = self.in_flight.pop(int.from_bytes(frame[:4], "big"), None)
        if asked is None:
            self.error = MalformedFrame("a response without a request")
            return
        try:
            message = _decode(asked, frame)
        except MalformedFrame as error:
            self.error = MalformedFrame(f"answered {asked.request.__name__} with {error}")
            return
        self.is_accepted |= asked.request is not ApiVersionsRequest
        if asked.is_step:
            self._go_on(message)
        else:
            answers.append(Answer(asked, message))

    def close(self) -> None:
        """Drop the requests in flight."""
        self._assembler.close()
        self.in_flight.clear()
        self._outgoing.clear()


def _decode(asked: InFlight, frame: memoryview) -> Any:
    """The response in a frame. A broker answers an ApiVersions version that it does not know in version 0."""
    answer = RESPONSES[cast(int, message_info(asked.request).key)]
    try:
        return decode_response(answer, frame, asked.version)[1]
    except MalformedFrame:
        if answer is not ApiVersionsResponse:
            raise
        return decode_response(answer, frame, 0)[1]
