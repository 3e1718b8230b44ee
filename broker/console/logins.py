"""Shell: who looks at the console: the principal that its listener would make of the same client.

Rules of this file: with SASL one logs in by name and password, which the listener's own PLAIN or SCRAM checks; nothing
of them is kept. What the browser then shows is a random cookie that scripts do not see and other sites do not send. It
holds until SESSION_MS, the listener's connections.max.reauth.ms, the broker's end or a logout. A wrong password is
answered after connection.failed.authentication.delay.ms, and counted, as on a connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from broker.principal import ANONYMOUS, USER, Principal
from broker.security.authentication.sasl import Offered, SaslServer, SaslState
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.security.jaas import JaasEntry
from kafka_ds.security.mechanisms import OAUTHBEARER, Refused, client_mechanism
from kafka_ds.security.scram import ScramError

if TYPE_CHECKING:
    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.http_server import HttpRequest
    from broker.server.metrics import NetMetrics

SESSION_MS = 8 * 3_600_000
SESSIONS_MAX = 1_000
_NONCE_BYTES = 24
_TOKEN_BYTES = 32


class LoginNeeded(Exception):
    """Nobody knows who asks."""


class LoginFailed(Exception):
    """The name or the password is wrong, or the certificate is nobody's."""


@dataclass(frozen=True, slots=True)
class _Session:
    principal: Principal
    ends_ms: int


class Logins:
    """The sessions of one broker's console."""

    def __init__(self, name: str, metrics: NetMetrics, now_ms: Callable[[], int], delay_ms: int):
        """`name`: the cookie's; consoles of one machine share its cookies."""
        self._name = name
        self._metrics = metrics
        self._now_ms = now_ms
        self._delay_ms = delay_ms
        self._sessions: dict[str, _Session] = {}

    def principal_of(self, request: HttpRequest, security: ListenerSecurity | None) -> Principal:
        """Who asks. Raises LoginNeeded, LoginFailed."""
        if security is None:
            return ANONYMOUS
        if not security.uses_sasl:
            found = security.principal_of(request.certificate)
            if found is None:
                raise LoginFailed("no rule of ssl.principal.mapping.rules names your certificate")
            return found
        session = self._sessions.get(self._token_of(request))
        if session is None or session.ends_ms <= self._now_ms():
            raise LoginNeeded
        return session.principal

    async def log_in(self, user: str, password: str, security: ListenerSecurity) -> str:
        """The header that sets the cookie. Raises LoginFailed."""
        now_ms = self._now_ms()
        checked = await asyncio.get_running_loop().run_in_executor(
            None, _checked, security.offered, user, password, now_ms
        )
        if checked is None:
            self._metrics.failed_authentications += 1
            await asyncio.sleep(self._delay_ms / 1_000)
            raise LoginFailed("The name or the password is wrong.")
        self._metrics.authentications += 1
        name, lifetime_ms = checked
        self._forget(now_ms)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        ends_ms = now_ms + min(lifetime_ms or SESSION_MS, SESSION_MS)
        self._sessions[token] = _Session(Principal(USER, name), ends_ms)
        return self._cookie(token, security)

    def log_out(self, request: HttpRequest, security: ListenerSecurity) -> str:
        """The header that takes the cookie away."""
        self._sessions.pop(self._token_of(request), None)
        return self._cookie("", security) + "; Max-Age=0"

    def _forget(self, now_ms: int) -> None:
        """Sessions that are over; of too many the oldest."""
        for token, session in list(self._sessions.items()):
            if session.ends_ms <= now_ms or len(self._sessions) >= SESSIONS_MAX:
                del self._sessions[token]

    def _token_of(self, request: HttpRequest) -> str:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _cookie(self, token: str, security: ListenerSecurity) -> str:
        secure = "; Secure" if security.uses_tls else ""
        return f"{self._name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _checked(
    offered: Mapping[str, Offered], user: str, password: str, now_ms: int
) -> tuple[str, int] | None:
    """The user's name and how long that holds (0: for good), by the first mechanism that knows this password."""
    entry = JaasEntry(module="", options={"username": user, "password": password})
    for mechanism in offered:
        if mechanism == OAUTHBEARER:
            continue
        machine = SaslServer(offered)
        client = client_mechanism(mechanism, entry, nonce=secrets.token_hex(_NONCE_BYTES))
        try:
            machine.handshake(mechanism, 1)
            message, lifetime_ms = client.first(), 0
            while machine.phase is not SaslState.DONE:
                answer, lifetime_ms = machine.authenticate(message, now_ms)
                message = client.respond(answer)
        except (KafkaError, Refused, ScramError):
            continue
        return machine.user, lifetime_ms
    return None
