"""Pure: SASL/GSSAPI (RFC 4752), the client's side, and what both sides share: the login and the security layer.

- The client and the server make a GSSAPI context, then agree on a layer for what follows: as in Kafka always none; TLS
  is what protects a connection.
- A context is the library's (`kafka_ds.security.kerberos`); here are only its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafka_ds.security.jaas import JaasError

if TYPE_CHECKING:
    from kafka_ds.security.jaas import JaasEntry

# One bit for "no security layer", and a largest message of 0 bytes, as there is no layer (RFC 4752, section 3.3).
NO_LAYER = 1
LAYER_OFFER = bytes((NO_LAYER, 0, 0, 0))


class KerberosFailed(Exception):
    """A ticket, a key or a message is missing or not accepted; the text is mostly the library's and has no key.

    `is_transient`: a client of Kafka may try again (Kafka's KerberosError.retriable).
    """

    def __init__(self, text: str, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.is_transient = is_transient


class SecurityContext(Protocol):
    """One side of a GSSAPI context. All methods raise KerberosFailed."""

    def is_complete(self) -> bool:
        """Whether both sides know each other; `step` is not called any more."""
        ...

    def initiator(self) -> str:
        """The client's principal, once complete."""
        ...

    def step(self, token: bytes | None) -> bytes:
        """The answer to the other side's token, None for the client's first step; may be empty."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """A message with its checksum, not encrypted."""
        ...

    def unwrap(self, token: bytes) -> bytes:
        """The message in a token of the other side's `wrap`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosLogin:
    """Whose keys or tickets are used, by the options of Java's Krb5LoginModule.

    `keytab` None with `uses_keytab` is the system's own, `ticket_cache` None with `uses_ticket_cache` the user's.
    """

    principal: str | None
    uses_keytab: bool
    keytab: str | None
    uses_ticket_cache: bool
    ticket_cache: str | None
    service: str | None

    @classmethod
    def of(cls, entry: JaasEntry) -> KerberosLogin:
        """The options of an entry. Raises JaasError: there is neither a keytab nor a ticket cache."""
        options = entry.options
        found = cls(
            principal=options.get("principal"),
            uses_keytab=_is_true(options.get("useKeyTab")),
            keytab=options.get("keyTab"),
            uses_ticket_cache=_is_true(options.get("useTicketCache")),
            ticket_cache=options.get("ticketCache"),
            service=options.get("serviceName"),
        )
        if not found.uses_keytab and not found.uses_ticket_cache:
            raise JaasError('neither useKeyTab="true" nor useTicketCache="true" is given')
        if found.uses_keytab and not found.principal:
            raise JaasError("the option principal is missing")
        return found


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() == "true"


class GssapiClient:
    """The client's side of one exchange. `first_token` is that of `context`, for which the KDC was asked."""

    def __init__(self, context: SecurityContext, first_token: bytes) -> None:
        self._context = context
        self._first_token = first_token
        self._has_chosen = False
        self.is_done = False

    def first(self) -> bytes:
        return self._first_token

    def respond(self, message: bytes) -> bytes:
        """Raises KerberosFailed: the broker is not who it says, or offers no connection without a layer."""
        if not self._context.is_complete():
            return self._context.step(message)
        if self._has_chosen:
            self.is_done = True
            return b""
        offer = self._context.unwrap(message)
        if not offer or not offer[0] & NO_LAYER:
            raise KerberosFailed("the broker offers no connection without a security layer")
        self._has_chosen = True
        # Without an authorization id: as who has authenticated.
        return self._context.wrap(LAYER_OFFER)
