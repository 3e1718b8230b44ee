"""Shell: the SASL authenticator of a connection.

As in Apache Kafka only ApiVersions, SaslHandshake and SaslAuthenticate are answered before authentication. After a
failure the client gets the error, and any other request its own API's error, after
connection.failed.authentication.delay.ms; then the connection is closed. After the session's expiry (KIP-368) only
re-authentication is answered. A client has AUTHENTICATION_SECONDS_MAX in total; one that disconnects has not failed.
Without session expiry the connection drops the authenticator once it is done.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.principal import USER, Principal
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
    from collections.abc import Callable

    from broker.registry import ClientInformation, RequestContext
    from broker.server.connection import ServerConnection
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics

log = logging.getLogger(__name__)

AUTHENTICATION_SECONDS_MAX = 30.0
_API_VERSIONS = api_key_of(ApiVersionsRequest)
_AUTHENTICATE = api_key_of(SaslAuthenticateRequest)
_SASL = (api_key_of(SaslHandshakeRequest), _AUTHENTICATE)
_LENGTH = struct.Struct(">i")


class Authentication:
    """The authentication of one connection. `handle` has the signature of the dispatcher's and comes before it."""

    def __init__(
        self,
        connection: ServerConnection,
        machine: SaslServer,
        dispatcher: Dispatcher,
        metrics: NetMetrics,
        *,
        now_ms: Callable[[], int],
        delay_ms: int,
    ) -> None:
        self._connection = connection
        self.machine = machine
        self._dispatcher = dispatcher
        self._handle = dispatcher.handle
        self._metrics = metrics
        self._now_ms = now_ms
        self._delay_ms = delay_ms
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(AUTHENTICATION_SECONDS_MAX, self._on_timeout)

    def close(self) -> None:
        """The connection has closed."""
        self._deadline.cancel()

    def on_malformed(self) -> None:
        """The client sent a frame of an invalid size: authentication fails."""
        if self.machine.phase not in (SaslState.DONE, SaslState.FAILED):
            self._count_failure()
            self._connection.end_after(self._delay_ms / 1_000)

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
            if not machine.is_expired(self._now_ms()):
                return self._handle(frame, host, listener, arrived_s, principal, client)
            self._metrics.sessions_expired += 1
            raise Unanswerable("the SASL session expired and the client did not re-authenticate")
        if api_key != _API_VERSIONS or machine.phase is not SaslState.HANDSHAKE:
            is_answered = machine.phase is SaslState.AUTHENTICATE
            error = machine.refuse(api_key)
            return self._answer_later(frame, arrived_s, error) if is_answered else self._end(error)
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
            answer, lifetime_ms = self.machine.authenticate(request.auth_bytes, self._now_ms())
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
            answer, _ = self.machine.authenticate(bytes(frame), self._now_ms())
        except KafkaError as error:
            return self._end(error)
        self._end_if_authenticated()
        return [_LENGTH.pack(len(answer)), answer]

    def _end(self, error: KafkaError) -> ResponseParts:
        """Fail without a response."""
        self._fail(error)
        self._connection.end_after(self._delay_ms / 1_000)
        return None

    def _answer_later(
        self, frame: memoryview, arrived_s: float, error: KafkaError
    ) -> ResponseParts | Waiting:
        """Fail with the error in the response of the request's own API."""
        try:
            waiting = self._dispatcher.answer_later(frame, arrived_s, partial(self._later, error))
        except MalformedFrame:
            return self._end(error)
        self._fail(error)
        return waiting

    def _end_if_authenticated(self) -> None:
        """Pass on the principal if authentication is complete."""
        machine = self.machine
        if machine.phase is not SaslState.DONE:
            return
        self._deadline.cancel()
        if machine.is_reauthenticating:
            self._metrics.reauthentications += 1
            return
        self._metrics.authentications += 1
        self._connection.authenticated(
            Principal(USER, machine.user, machine.token_authenticated),
            None if machine.has_session else self._handle,
        )

    def _refuse(self, error: KafkaError, response: Any) -> Any:
        if self.machine.phase is not SaslState.FAILED:
            return response
        self._fail(error)
        return self._later(response)

    async def _later(self, outcome: Any) -> Any:
        self._connection.drain()  # Only once the response is pending, as it closes a connection without one.
        await asyncio.sleep(self._delay_ms / 1_000)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def _fail(self, error: KafkaError) -> None:
        self._count_failure()
        log.info("Failed authentication with %s (%s)", self._connection.peer, error.message)

    def _count_failure(self) -> None:
        if self.machine.is_reauthenticating:
            self._metrics.failed_reauthentications += 1
        else:
            self._metrics.failed_authentications += 1

    def _on_timeout(self) -> None:
        log.info(
            "closing %s: not authenticated within %d s",
            self._connection.peer,
            AUTHENTICATION_SECONDS_MAX,
        )
        self._connection.abort()
