"""Pure: the server's side of SASL/GSSAPI (RFC 4752), by Apache Kafka's rules.

- The context is made in as many messages as Kerberos needs. Then the broker offers connections without a security layer
  only, and the client chooses.
- The user is the client's principal by the rules of sasl.kerberos.principal.to.local.rules. As in Kafka the
  authorization id of the client's last message has no effect.
"""

from __future__ import annotations

from broker.config.kerberos_rules import KerberosRules, NoMatchingRule
from broker.security.authentication.failures import (
    InvalidCredentials,
    TryAgain,
)
from kafka_ds.security.gssapi_mechanism import (
    LAYER_OFFER,
    NO_LAYER,
    KerberosFailed,
    SecurityContext,
)


class GssapiServer:
    """One exchange."""

    token_authenticated = False

    def __init__(self, context: SecurityContext, rules: KerberosRules) -> None:
        self._context = context
        self._rules = rules
        self._has_offered = False
        self.user = ""
        self.is_done = False
        self.expires_ms: int | None = None  # As in Kafka a ticket's end is not the session's.

    def respond(self, token: bytes) -> bytes:
        """The server's answer to a client's message.

        Raises:
            InvalidCredentials: ticket, clock or checksum; the text, of the library, is for the log.
            TryAgain: it was replayed, or is not valid yet.
            AuthenticationFailed: no layer that the broker offers, or no rule applies.
        """
        try:
            return self._respond(token)
        except KerberosFailed as failure:
            kind = TryAgain if failure.is_transient else InvalidCredentials
            raise kind(f"GSSAPI: {failure}") from None

    def _respond(self, token: bytes) -> bytes:
        context = self._context
        if not context.is_complete():
            answer = context.step(token)
            return self._offer() if context.is_complete() and not answer else answer
        if not self._has_offered:
            if token:
                raise InvalidCredentials("GSSAPI: the message after the context must be empty")
            return self._offer()
        chosen = context.unwrap(token)
        if not chosen or chosen[0] != NO_LAYER:
            raise InvalidCredentials("GSSAPI: the client wants a security layer")
        try:
            self.user = self._rules.short_name(context.initiator())
        except NoMatchingRule as error:
            raise InvalidCredentials(f"sasl.kerberos.principal.to.local.rules: {error}") from None
        self.is_done = True
        return b""

    def _offer(self) -> bytes:
        self._has_offered = True
        return self._context.wrap(LAYER_OFFER)
