"""Shell: the SASL authenticator of a connection.

As in Apache Kafka only ApiVersions, SaslHandshake and SaslAuthenticate are answered before authentication. After a
failure the client gets the error, and any other request its own API's error, after
connection.failed.authentication.delay.ms; then the connection is closed. After the session's expiry (KIP-368) only
re-authentication is answered. A client that disconnects has not failed. The connection looks at `failure` and
`principal` after each request, and without session expiry drops the authenticator once there is a principal.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.principal import USER, Principal
from broker.security.authentication.failures import TryAgain
from broker.security.authentication.sasl import SaslServer, SaslState
from broker.server.dispatch import ResponseParts, Unanswerable, Waiting
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_ds.protocol.types import api_key_of

if TYPE_CHECKING:
    from broker.registry import ClientInformation, RequestContext
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics
    from kafka_ds.process.seams import Clock

_API_VERSIONS = api_key_of(ApiVersionsRequest)
_AUTHENTICATE = api_key_of(SaslAuthenticateRequest)
_SASL = (api_key_of(SaslHandshakeRequest), _AUTHENTICATE)
_LENGTH = struct.Struct(">i")


class Authentication:
    """The authentication of one connection. `handle` has the signature of the dispatcher's and comes before it."""

    def __init__(
        self,
        machine: SaslServer,
        dispatcher: Dispatcher,
        metrics: NetMetrics,
        *,
        clock: Clock,
        delay_ms: int,
    ) -> None:
        self.machine = machine
        self._dispatcher = dispatcher
        self._handle = dispatcher.handle
        self._metrics = metrics
        self._clock = clock
        self.delay_s = delay_ms / 1_000  # between a failure and the end of the connection
        self.failure: KafkaError | None = None
        # Who the client is, once it has authenticated; re-authentication does not change that.
        self.principal: Principal | None = None

    @property
    def has_session(self) -> bool:
        """Whether the client has to re-authenticate."""
        return self.machine.has_session

    def fails_by_malformed_frame(self) -> bool:
        """The client sent a frame of an invalid size; returns whether authentication fails by it."""
        if self.machine.phase in (SaslState.DONE, SaslState.FAILED):
            return False
        self._count_failure()
        return True

    def handle(
        self,
        frame: memoryview,
        host: str,
        listener: str,
        arrived_s: float,
        principal: Principal,
        client: ClientInformation,
    ) -> ResponseParts | Waiting:
        """Pass a request on to the dispatcher, or reject it. Unanswerable closes the connection."""
        machine = self.machine
        if machine.phase is SaslState.FAILED:
            return None
        if machine.expects_raw_tokens:
            return self._authenticate_raw(frame)
        api_key = int.from_bytes(frame[:2], "big")
        if api_key == _AUTHENTICATE and machine.phase is SaslState.HANDSHAKE:
            # It fails whatever its content, as no mechanism is chosen.
            return self._authenticate_raw(frame)
        if api_key in _SASL:
            return self._handle(frame, host, listener, arrived_s, principal, client, self.answer)
        if machine.phase is SaslState.DONE:
            if not machine.is_expired(self._clock.now_ms()):
                return self._handle(frame, host, listener, arrived_s, principal, client)
            self._metrics.sessions_expired += 1
            raise Unanswerable("the SASL session expired and the client did not re-authenticate")
        if api_key != _API_VERSIONS or machine.phase is not SaslState.HANDSHAKE:
            is_answered = machine.phase is SaslState.AUTHENTICATE
            error = machine.refuse(api_key)
            return self._answer_later(frame, arrived_s, error) if is_answered else self._fail(error)
        return self._handle(frame, host, listener, arrived_s, principal, client)

    def answer(self, request: Any, context: RequestContext) -> Any:
        """Handle a SaslHandshake or SaslAuthenticate request; a failure is answered with a delay."""
        if isinstance(request, SaslHandshakeRequest):
            return self._handshake(request, context.header.api_version)
        return self._authenticate(request)

    def _handshake(self, request: SaslHandshakeRequest, version: int) -> Any:
        try:
            self.machine.handshake(request.mechanism, version)
        except KafkaError as error:
            # As in Kafka only UNSUPPORTED_SASL_MECHANISM lists the mechanisms.
            is_other = error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            mechanisms = self.machine.mechanisms if is_other else []
            return self._refuse(
                error, SaslHandshakeResponse(error_code=error.code, mechanisms=mechanisms)
            )
        return SaslHandshakeResponse(mechanisms=self.machine.mechanisms)

    def _authenticate(self, request: SaslAuthenticateRequest) -> Any:
        try:
            answer, lifetime_ms = self.machine.authenticate(
                request.auth_bytes, self._clock.now_ms()
            )
        except TryAgain as failure:
            return self._disconnect(failure)
        except KafkaError as error:
            response = SaslAuthenticateResponse(
                error_code=error.code, error_message=error.message, auth_bytes=b""
            )
            return self._refuse(error, response)
        self._end_if_authenticated()
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    def _authenticate_raw(self, frame: memoryview) -> ResponseParts:
        """A token without a Kafka header (handshake version 0); its failure has no response."""
        try:
            answer, _ = self.machine.authenticate(bytes(frame), self._clock.now_ms())
        except TryAgain as failure:
            return self._disconnect(failure)
        except KafkaError as error:
            return self._fail(error)
        self._end_if_authenticated()
        return [_LENGTH.pack(len(answer)), answer]

    def _answer_later(
        self, frame: memoryview, arrived_s: float, error: KafkaError
    ) -> ResponseParts | Waiting:
        """Fail with the error in the response of the request's own API."""
        try:
            waiting = self._dispatcher.answer_later(frame, arrived_s, partial(self._later, error))
        except MalformedFrame:
            return self._fail(error)
        self._fail(error)
        return waiting

    def _end_if_authenticated(self) -> None:
        """Name the principal if authentication is complete."""
        machine = self.machine
        if machine.phase is not SaslState.DONE:
            return
        if machine.is_reauthenticating:
            self._metrics.reauthentications += 1
            return
        self._metrics.authentications += 1
        self.principal = Principal(USER, machine.user, machine.token_authenticated)

    def _refuse(self, error: KafkaError, response: Any) -> Any:
        if self.machine.phase is not SaslState.FAILED:
            return response
        self._fail(error)
        return self._later(response)

    async def _later(self, outcome: Any) -> Any:
        await asyncio.sleep(self.delay_s)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def _fail(self, error: KafkaError) -> ResponseParts:
        """Authentication fails; without a response, if the caller has none."""
        self._count_failure()
        self.failure = error
        return None

    def _disconnect(self, failure: TryAgain) -> ResponseParts:
        """As in Kafka neither answered nor counted."""
        self.failure = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(failure))
        return None

    def _count_failure(self) -> None:
        if self.machine.is_reauthenticating:
            self._metrics.failed_reauthentications += 1
        else:
            self._metrics.failed_authentications += 1
