"""Pure: the server side of PLAIN and OAUTHBEARER, and the interface of all mechanisms.

Secrets are compared in constant time. An error contains nothing that the client has sent.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker.security.authentication.failures import AuthenticationFailed, InvalidCredentials
from kafka_ds.security.secret import Secret

_END = b"\x01"


class ServerMechanism(Protocol):
    """One exchange. Once `is_done`, `user` is authenticated until `expires_ms` (None: no limit).

    `token_authenticated`: by a delegation token.
    """

    token_authenticated: bool
    is_done: bool
    user: str
    expires_ms: int | None

    def respond(self, token: bytes) -> bytes:
        """The server's answer to a client's token. Raises AuthenticationFailed, which ends the exchange."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """A verified bearer token: its user and when it expires (milliseconds since 1970)."""

    subject: str
    expires_ms: int


class PlainServer:
    """RFC 4616: users and passwords come from the listener's JAAS entry, as in Kafka."""

    token_authenticated = False

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users
        self.user = ""
        self.is_done = False
        self.expires_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed("Invalid SASL/PLAIN response: expected 3 tokens")
        try:
            acting, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise AuthenticationFailed("Invalid SASL/PLAIN response: not UTF-8") from None
        if not user or not password:
            raise AuthenticationFailed("Authentication failed: no user or no password was given")
        known = self._users.get(user)
        expected = known.reveal() if known is not None else ""
        if not hmac.compare_digest(expected.encode(), password.encode()) or known is None:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if acting and acting != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user, self.is_done = user, True
        return b""


class OauthBearerServer:
    """RFC 7628: an invalid token is answered with a JSON error; the client acknowledges it, and the exchange fails."""

    token_authenticated = False

    def __init__(self, verify: Callable[[str], Token]) -> None:
        """`verify` raises InvalidCredentials for an invalid token."""
        self._verify = verify
        self._refusal = ""
        self.user = ""
        self.is_done = False
        self.expires_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        if self._refusal:
            raise InvalidCredentials(self._refusal)
        acting, bearer = _bearer_of(token)
        try:
            shown = self._verify(bearer)
        except InvalidCredentials as refusal:
            self._refusal = str(refusal)
            return json.dumps({"status": "invalid_token"}).encode()
        if acting and acting != shown.subject:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        self.user, self.expires_ms, self.is_done = shown.subject, shown.expires_ms, True
        return b""


def _bearer_of(message: bytes) -> tuple[str, str]:
    """The authorization id, if any, and the token of a client's first message."""
    header, *pairs = message.split(_END)
    gs2 = header.split(b",")
    wrong = AuthenticationFailed("Invalid OAUTHBEARER response")
    if len(gs2) != 3 or gs2[0] not in (b"n", b"y") or gs2[2] or pairs[-2:] != [b"", b""]:
        raise wrong
    try:
        acting = gs2[1].removeprefix(b"a=").decode()
        values = dict(pair.decode().split("=", 1) for pair in pairs[:-2])
    except ValueError:
        raise wrong from None
    scheme, _, bearer = values.get("auth", "").strip().partition(" ")
    if scheme.lower() != "bearer" or not bearer.strip():
        raise wrong
    return acting, bearer.strip()
