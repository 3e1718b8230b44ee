"""Shell: authenticates the console's users as its listener would.

With SASL one logs in with user and password or a token, which the listener's mechanisms verify and nobody stores. The
browser gets a random cookie (HttpOnly, SameSite). A session ends after SESSION_MS, connections.max.reauth.ms, the
token's expiry, a restart of the broker, a logout or a change of the password. A failed login is logged, counted and
answered after connection.failed.authentication.delay.ms; until then no other login from that address is tried.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from broker.console.threads import SingleThread
from broker.principal import ANONYMOUS, USER, Principal
from broker.security.authentication.sasl import SaslServer, SaslState
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.security.jaas import JaasEntry
from kafka_ds.security.mechanisms import GSSAPI, OAUTHBEARER, CredentialsRefused, client_mechanism
from kafka_ds.security.scram import ScramError

if TYPE_CHECKING:
    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.http_server import HttpRequest
    from broker.server.metrics import NetMetrics
    from kafka_ds.process.seams import Clock

log = logging.getLogger(__name__)

SESSION_MS = 8 * 3_600_000
SESSIONS_MAX = 1_000
TRIES_MAX = 64
"""The most logins in progress."""
_NONCE_BYTES = 24
_TOKEN_BYTES = 32


class LoginNeeded(Exception):
    """The request has no valid session."""


class LoginFailed(Exception):
    """A wrong name or password, an invalid token, or a certificate without a user."""


@dataclass(frozen=True, slots=True)
class _Login:
    """A successful login, and its mechanism."""

    user: str
    mechanism: str
    known: object = field(repr=False)
    ends_ms: int | None
    """None: no limit."""

    def is_valid(self, security: ListenerSecurity) -> bool:
        """Whether the user's credential is unchanged."""
        offered = security.offered.get(self.mechanism)
        return offered is not None and offered.known(self.user) == self.known


@dataclass(frozen=True, slots=True)
class _LoginSession:
    principal: Principal
    login: _Login
    ends_ms: int


class Logins:
    """The sessions of one broker's console."""

    def __init__(
        self,
        name: str,
        metrics: NetMetrics,
        clock: Clock,
        delay_ms: int,
    ) -> None:
        """`name` is the cookie's; consoles on one host share cookies."""
        self.metrics = metrics
        self._name = name
        self._clock = clock
        self._delay_ms = delay_ms
        self._sessions: dict[str, _LoginSession] = {}
        self._thread = SingleThread("passwords")
        # One login at a time per address.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._attempts: set[asyncio.Task[_Login | None]] = set()

    def stop(self) -> None:
        """Accept no more logins."""
        self._thread.stop()
        for each in self._attempts:
            each.cancel()

    def principal_of(self, request: HttpRequest, security: ListenerSecurity | None) -> Principal:
        """The principal of a request. Raises LoginNeeded, LoginFailed."""
        if security is None:
            return ANONYMOUS
        if not security.uses_sasl:
            found = security.principal_of(request.certificate)
            if found is None:
                raise LoginFailed("no rule of ssl.principal.mapping.rules matches your certificate")
            return found
        for token in self._tokens_of(request):
            session = self._sessions.get(token)
            if session is None:
                continue
            if session.ends_ms > self._clock.now_ms() and session.login.is_valid(security):
                return session.principal
        raise LoginNeeded

    async def log_in(self, shown: JaasEntry, security: ListenerSecurity, host: str) -> str:
        """Returns the value of the Set-Cookie header. Raises LoginFailed.

        `shown` has username and password, or a token, like a client's sasl.jaas.config.
        """
        lock = self._locks.setdefault(host, asyncio.Lock())
        await lock.acquire()
        if len(self._attempts) >= TRIES_MAX:
            lock.release()
            raise LoginFailed("Too many login attempts: try again.")
        attempt = asyncio.ensure_future(self._try(lock, host, security, shown))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        login = await asyncio.shield(attempt)
        if login is None:
            is_token = "token" in shown.options
            what = "token is not accepted" if is_token else "name or the password is wrong"
            raise LoginFailed(f"The {what}.")
        now_ms = self._clock.now_ms()
        self._remove_sessions(now_ms)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        ends_ms = now_ms + SESSION_MS
        if login.ends_ms is not None:
            ends_ms = min(ends_ms, login.ends_ms)
        self._sessions[token] = _LoginSession(Principal(USER, login.user), login, ends_ms)
        return self._cookie(token, security)

    async def _try(
        self, lock: asyncio.Lock, host: str, security: ListenerSecurity, shown: JaasEntry
    ) -> _Login | None:
        try:
            login = await self._thread.run(_log_in, security, shown, self._clock.now_ms())
            if login is not None:
                self.metrics.authentications += 1
                return login
            self.metrics.failed_authentications += 1
            log.info("Failed authentication with %s (console login)", host)
            await asyncio.sleep(self._delay_ms / 1_000)
            return None
        finally:
            lock.release()

    def log_out(self, request: HttpRequest, security: ListenerSecurity) -> str:
        """Returns the value of the Set-Cookie header that deletes the cookie."""
        for token in self._tokens_of(request):
            self._sessions.pop(token, None)
        return self._cookie("", security) + "; Max-Age=0"

    def _remove_sessions(self, now_ms: int) -> None:
        """Remove expired sessions and, if there are too many, the oldest of the user with the most."""
        for token, session in list(self._sessions.items()):
            if session.ends_ms <= now_ms:
                del self._sessions[token]
        if len(self._sessions) >= SESSIONS_MAX:
            owners = Counter(each.principal for each in self._sessions.values())
            ((owner, _),) = owners.most_common(1)
            oldest = next(
                token for token, each in self._sessions.items() if each.principal == owner
            )
            del self._sessions[oldest]

    def _tokens_of(self, request: HttpRequest) -> Iterator[str]:
        for cookie in request.headers.get("cookie", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._name:
                yield value

    def _cookie(self, token: str, security: ListenerSecurity) -> str:
        secure = "; Secure" if security.uses_tls else ""
        return f"{self._name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _log_in(security: ListenerSecurity, shown: JaasEntry, now_ms: int) -> _Login | None:
    """Log in by the first mechanism that accepts this password or token."""
    offered = security.offered
    for mechanism, each in offered.items():
        if mechanism == GSSAPI or (mechanism == OAUTHBEARER) != ("token" in shown.options):
            continue
        machine = SaslServer(offered)
        client = client_mechanism(mechanism, shown, nonce=secrets.token_hex(_NONCE_BYTES))
        # A token's user has no credential here: the login lasts until the token expires.
        known = each.known(shown.options.get("username", ""))
        try:
            machine.handshake(mechanism, 1)
            message = client.first()
            while machine.phase is not SaslState.DONE:
                answer, _ = machine.authenticate(message, now_ms)
                message = client.respond(answer)
        except (KafkaError, CredentialsRefused, ScramError):
            continue
        return _Login(machine.user, mechanism, known, machine.ends_ms)
    return None
