"""Pure: the SASL state of one connection (KIP-43, KIP-152) with re-authentication (KIP-368), by Apache Kafka's rules.

- SaslHandshake names the mechanism. The mechanism's tokens follow in SaslAuthenticate requests or, after a handshake of
  version 0, without Kafka headers. After any failure the caller answers with a delay
  (connection.failed.authentication.delay.ms) and closes the connection.
- A session expires if connections.max.reauth.ms is set or the credential expires. The client may re-authenticate at any
  time, as the same user with the same mechanism; after the expiry nothing else is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from broker.security.authentication.failures import (
    AuthenticationFailed,
    InvalidCredentials,
    TryAgain,
)
from broker.security.authentication.mechanisms import ServerMechanism
from kafka_ds.protocol.errors import ErrorCode, KafkaError


class SaslState(Enum):
    """What the client has to do next."""

    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedMechanism:
    """A mechanism of a listener: `new` starts an exchange, a session lasts `reauthentication_ms_max` (0: no limit).

    `known` returns a user's current password or credential.
    """

    new: Callable[[], ServerMechanism]
    known: Callable[[str], object | None] = field(default=lambda user: None, repr=False)
    reauthentication_ms_max: int = 0


class SaslServer:
    """The authentication of one connection. After a KafkaError `phase` tells whether the connection has failed."""

    def __init__(self, offered: Mapping[str, OfferedMechanism]) -> None:
        self._offered = offered
        self._mechanism = ""
        self._exchange: ServerMechanism | None = None
        self.ends_ms: int | None = None  # when the session expires, by the wall clock
        self.phase = SaslState.HANDSHAKE
        self.expects_raw_tokens = False
        self.user = ""
        self.token_authenticated = False
        self.is_reauthenticating = False

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the listener offers."""
        return list(self._offered)

    @property
    def has_session(self) -> bool:
        """Whether the session expires, so that the client has to re-authenticate."""
        return self.ends_ms is not None

    def is_expired(self, now_ms: int) -> bool:
        """Whether the session has expired, so that only re-authentication is accepted."""
        return self.ends_ms is not None and now_ms >= self.ends_ms

    def handshake(self, mechanism: str, version: int) -> None:
        """The client chooses a mechanism.

        Raises:
            KafkaError: ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM.
        """
        if self.phase is SaslState.DONE and self.has_session and version > 0:
            if mechanism != self._mechanism:
                raise self._failed(
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    "the mechanism must not change on re-authentication",
                )
            self.is_reauthenticating = True
        elif self.phase is not SaslState.HANDSHAKE:
            over = "SaslHandshake request received after " + (
                "successful authentication" if self.phase is SaslState.DONE else "another one"
            )
            if self.phase is SaslState.DONE:
                raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, over)
            raise self._failed(ErrorCode.ILLEGAL_SASL_STATE, over)
        offered = self._offered.get(mechanism)
        if offered is None:
            raise self._failed(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"this listener supports {', '.join(self._offered)}",
            )
        self._mechanism, self._exchange = mechanism, offered.new()
        self.expects_raw_tokens = version == 0
        self.phase = SaslState.AUTHENTICATE

    def authenticate(self, token: bytes, now_ms: int) -> tuple[bytes, int]:
        """The mechanism's answer, and the session lifetime in ms (0: no limit, or not authenticated yet).

        Raises:
            KafkaError: ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED; its cause, if any, is for the log only.
            TryAgain: the connection is to be closed.
        """
        if self.phase is SaslState.DONE:
            message = "SaslAuthenticate request received after successful authentication"
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, message)
        if self.phase is not SaslState.AUTHENTICATE or self._exchange is None:
            raise self._failed(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received before SaslHandshake",
            )
        exchange = self._exchange
        try:
            answer = exchange.respond(token)
            if exchange.is_done and self.is_reauthenticating and exchange.user != self.user:
                raise AuthenticationFailed("the user must not change on re-authentication")
        except TryAgain:
            self.phase, self._exchange = SaslState.FAILED, None
            raise
        except InvalidCredentials as failure:
            message = (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, message) from failure
        except AuthenticationFailed as failure:
            raise self._failed(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from None
        if not exchange.is_done:
            return answer, 0
        self.user, self._exchange = exchange.user, None
        self.token_authenticated = exchange.token_authenticated
        self.phase, self.expects_raw_tokens = SaslState.DONE, False
        return answer, self._begin_session(exchange.expires_ms, now_ms)

    def refuse(self, api_key: int) -> KafkaError:
        """The error for a request that is not allowed in this state; authentication has failed."""
        step = "handshake" if self.phase is SaslState.HANDSHAKE else "authentication"
        message = f"Unexpected Kafka request with API key {api_key} during SASL {step}"
        return self._failed(ErrorCode.ILLEGAL_SASL_STATE, message)

    def _begin_session(self, expires_ms: int | None, now_ms: int) -> int:
        longest_ms = self._offered[self._mechanism].reauthentication_ms_max
        ends = [now_ms + longest_ms] if longest_ms > 0 else []
        if expires_ms is not None:
            ends.append(max(expires_ms, now_ms))
        self.ends_ms = min(ends, default=None)
        return 0 if self.ends_ms is None else self.ends_ms - now_ms

    def _failed(self, code: ErrorCode, message: str) -> KafkaError:
        self.phase, self._exchange = SaslState.FAILED, None
        return KafkaError(code, message)
