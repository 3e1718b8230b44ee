"""Pure: a client's side of one connection, without its socket: what is to be sent, and what an answer means.

Versions are agreed on once (ApiVersions). With SASL the client says who it is, and again where the broker limits the
session (KIP-368). An answer finds its request by the correlation id; every request has a deadline by the caller's
clock. After an `error` the session is of no more use: the bytes that follow are unknown.
Two shells hold a socket each: `Connection`, which blocks, and asyncio's `broker.transport.peer.PeerConnection`.
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
from kafka_ds.security.mechanisms import ClientMechanism, Refused
from kafka_ds.security.scram import ScramError
from kafka_ds.version import CLIENT_SOFTWARE, VERSION

# A frame's length is an int32. Memory is taken as bytes come, not as a length promises them.
RESPONSE_BYTES_MAX: Final = 2**31 - 1
ANY_VERSION: Final = 2**15
# After which part of its life a session is renewed (Kafka's clients: between 0.85 and 0.95).
RENEWED_AFTER: Final = 0.85
_NOTHING: Final = Versions(0, -1)

# The requests of a handshake with their versions; each gets its answer.
Steps: TypeAlias = Generator[tuple[Any, int], Any, None]


class SaslRefused(Exception):
    """The broker refuses the login; ``cause`` names the reason."""

    def __init__(self, cause: Literal["protocol", "mechanism", "credentials"], why: str) -> None:
        super().__init__(why)
        self.cause = cause


@dataclass(slots=True, eq=False)
class InFlight:
    """A request that waits for its answer, until ``deadline`` by the caller's clock."""

    correlation_id: int
    request: type
    version: int
    timeout_ms: int
    deadline: float
    is_step: bool


class Answer(NamedTuple):
    """What came for a request."""

    asked: InFlight
    message: Any


class Session:
    """One connection to the broker called ``peer``.

    Bytes go into `get_buffer`, and `received` gives the answers; what is to be written is in `data_to_send`.
    ``asks_unadvertised``: an API that the broker does not list is asked in our highest version, as between brokers.
    """

    def __init__(self, peer: str, client_id: str, *, asks_unadvertised: bool = False) -> None:
        self._peer = peer
        self._client_id = client_id
        self._asks_unadvertised = asks_unadvertised
        self._assembler = FrameAssembler(FrameBuffer(), BufferPool(), RESPONSE_BYTES_MAX)
        self._correlation_id = 0
        self._versions: dict[int, Versions] = {}
        self._steps: Steps | None = None
        self._step_timeout_ms = 0
        self._now = 0.0
        self.renew_at: float | None = None
        self._outgoing: list[bytes] = []
        self.in_flight: dict[int, InFlight] = {}
        self.used_at = 0.0
        self.is_let_in = False
        """Whether something beside its versions was answered."""
        self.error: Exception | None = None
        """MalformedFrame, UnsupportedByBroker or SaslRefused: why nothing may follow."""

    # -- handshakes -----------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether no handshake is under way."""
        return self._steps is None

    def negotiate(self, now: float, timeout_ms: int) -> None:
        """Ask for the broker's versions."""
        self._begin(self._negotiation(), now, timeout_ms)

    def authenticate(
        self, mechanism: str, exchange: ClientMechanism, now: float, timeout_ms: int
    ) -> None:
        """Authenticate, for the first time or again; each step has so much time."""
        self._begin(self._authentication(mechanism, exchange), now, timeout_ms)

    def must_renew(self, now: float) -> bool:
        """Whether it is time to re-authenticate."""
        return self.renew_at is not None and now >= self.renew_at

    def _begin(self, steps: Steps, now: float, timeout_ms: int) -> None:
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

    def _negotiation(self) -> Steps:
        """A broker that is older than the request answers so in version 0 (KIP-511)."""
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

    def _authentication(self, mechanism: str, exchange: ClientMechanism) -> Steps:
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
            except (ScramError, Refused) as problem:
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
        """Have a request sent, which has so much time from ``since`` on (now, if that is not given).

        Only a Produce with acks=0 is not ``answered``.

        Raises:
            UnsupportedByBroker: there is no version of it that both sides speak.
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
        """What is to be written now, in this order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    @property
    def oldest(self) -> InFlight:
        """The request that was sent first of those without an answer."""
        return next(iter(self.in_flight.values()))

    def late(self, now: float) -> InFlight | None:
        """A request whose answer should be here by now."""
        return next((each for each in self.in_flight.values() if each.deadline <= now), None)

    # -- answers --------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; to be followed by `received`, and to be let go before it."""
        return self._assembler.get_buffer()

    def received(self, count: int, now: float) -> list[Answer]:
        """The answers that are complete with ``count`` more bytes; an `error` comes after them."""
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
        self.is_let_in |= asked.request is not ApiVersionsRequest
        if asked.is_step:
            self._go_on(message)
        else:
            answers.append(Answer(asked, message))

    def close(self) -> None:
        """Forget what is under way."""
        self._assembler.close()
        self.in_flight.clear()
        self._outgoing.clear()


def _decode(asked: InFlight, frame: memoryview) -> Any:
    """The answer in a frame. An ApiVersions that is too new for the broker is answered in version 0."""
    answer = RESPONSES[cast(int, message_info(asked.request).key)]
    try:
        return decode_response(answer, frame, asked.version)[1]
    except MalformedFrame:
        if answer is not ApiVersionsResponse:
            raise
        return decode_response(answer, frame, 0)[1]
