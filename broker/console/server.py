"""Shell: the web console: one page with its style and script, and JSON below /api/.

It is read-only; only login and logout use POST, with JSON, which no form of another site can send. The Host header
must be an own name or an address of this machine, against DNS rebinding. The Content-Security-Policy allows only the
console's own files, as shown records may be malicious.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from broker.console.logins import LoginFailed, LoginNeeded, Logins
from broker.console.views import Views, ViewUnavailable
from broker.registry import ClientInformation, RequestContext
from broker.server.http_server import HttpRequest, HttpResponse, HttpServer
from broker.server.server import own_host
from kafka_ds.protocol.frame import RequestHeader
from kafka_ds.security.jaas import JaasEntry

if TYPE_CHECKING:
    from broker.security.authentication.listener_security import ListenerSecurity
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics
    from kafka_ds.process.seams import BoundListener

log = logging.getLogger(__name__)

QUERY_FIELDS_MAX = 16
ROWS_AT_ONCE = 20
CLIENT_ID = "console"
_POSTS = frozenset({"/api/login", "/api/logout"})
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Console:
    """Serves the console of one broker."""

    def __init__(self, dispatcher: Dispatcher, net: NetMetrics, listener: BoundListener) -> None:
        self._broker = broker = dispatcher.broker
        config = broker.config
        self._views = Views(dispatcher, net)
        self._listener = config.console_listener
        advertised = {each.host.lower() for each in config.advertised_endpoints}
        host = config.console_host.lower()
        self._names = {"localhost", host, own_host().lower(), *advertised} - {""}
        self._logins = Logins(
            f"kafka-ds-{broker.metadata.cluster_id}-{config.node_id}",
            net,
            broker.clock,
            config.connection_failed_authentication_delay_ms,
        )
        self._server = HttpServer(self._answer, listener, serves_posts=True)
        folder = Path(__file__).parent
        self._files = {
            path: HttpResponse(
                body=(folder / name).read_bytes(), content_type=content_type, headers=_HEADERS
            )
            for path, (name, content_type) in _FILES.items()
        }

    @property
    def address(self) -> tuple[str, int]:
        """The bound address."""
        return self._server.address

    @property
    def _security(self) -> ListenerSecurity | None:
        return self._broker.keys.of(self._listener)

    async def serve(self) -> None:
        """Start accepting."""
        security = self._security
        uses_tls = security is not None and security.uses_tls
        await self._server.serve((lambda: self._security.context) if uses_tls else None)  # type: ignore[union-attr]
        scheme = "https" if uses_tls else "http"
        log.info("serving the console at %s://%s:%d/", scheme, *self.address)

    async def stop(self) -> None:
        """Stop accepting connections."""
        await self._server.stop()
        self._logins.stop()
        self._views.stop()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if not self._is_own_host(request.headers.get("host", "")):
            message = "invalid Host header: use console.host, localhost or an address"
            return await _json({"error": message}, "421 Misdirected Request")
        if request.method == "POST":
            return await self._post(request)
        found = self._files.get(request.path)
        if found is not None:
            return found
        try:
            return await _json(await self._view(request))
        except ViewUnavailable as error:
            return await _json({"error": str(error)}, error.status)
        except LoginNeeded:
            mechanisms = [] if self._security is None else list(self._security.offered)
            needed = {"error": "log in", "mechanisms": mechanisms}
            return await _json(needed, "401 Unauthorized")
        except LoginFailed as error:
            return await _json({"error": str(error)}, "403 Forbidden")

    async def _view(self, request: HttpRequest) -> Any:
        """Raises ViewUnavailable, LoginNeeded, LoginFailed."""
        view = self._views.by_path.get(request.path.removeprefix("/api/"))
        if view is None or not request.path.startswith("/api/"):
            raise ViewUnavailable(f"{request.path} does not exist")
        try:
            pairs = parse_qsl(request.query, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError as error:
            raise ViewUnavailable(f"bad query: {error}", "400 Bad Request") from None
        principal = self._logins.principal_of(request, self._security)
        context = RequestContext(
            RequestHeader(0, 0, 0, CLIENT_ID),
            request.client_host,
            self._listener,
            self._broker,
            ClientInformation(),
            principal,
        )
        return await view(dict(pairs), context)

    async def _post(self, request: HttpRequest) -> HttpResponse:
        """Handle a login or logout."""
        security, headers = self._security, request.headers
        if security is None or not security.uses_sasl or request.path not in _POSTS:
            return await _json(
                {"error": f"{request.path} does not accept POST"}, "405 Method Not Allowed"
            )
        origin = headers.get("origin", "")
        is_own = not origin or origin.partition("://")[2] == headers["host"]
        if not is_own or headers.get("content-type") != "application/json":
            return await _json(
                {"error": "only the console's own page may send this request"}, "403 Forbidden"
            )
        if request.path == "/api/logout":
            cookie = self._logins.log_out(request, security)
            return await _json({}, cookie=cookie)
        try:
            given = json.loads(request.body)
            if "token" in given:
                shown = {"token": str(given["token"])}
            else:
                shown = {"username": str(given["user"]), "password": str(given["password"])}
            "".join(shown.values()).encode()  # JSON may contain lone surrogates
        except (ValueError, KeyError, TypeError, RecursionError):
            needed = "user and password, or token, are needed"
            return await _json({"error": needed}, "400 Bad Request")
        try:
            cookie = await self._logins.log_in(
                JaasEntry(module="", options=shown), security, request.client_host
            )
        except LoginFailed as error:
            return await _json({"error": str(error)}, "403 Forbidden")
        return await _json({}, cookie=cookie)

    def _is_own_host(self, host: str) -> bool:
        """Whether a Host header is an address or an own name of this machine."""
        name, _, end = host.lower().rpartition(":")
        if not name or not (end.isascii() and end.isdigit()):
            name = host.lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


async def _json(content: Any, status: str = "200 OK", *, cookie: str | None = None) -> HttpResponse:
    body = (await encoded_json(content)).encode()
    headers = _HEADERS if cookie is None else {**_HEADERS, "Set-Cookie": cookie}
    return HttpResponse(status=status, body=body, content_type="application/json", headers=headers)


async def encoded_json(content: Any) -> str:
    """Encode a few rows at a time: the encoder holds the GIL, and there may be many topics."""
    if isinstance(content, dict):
        fields = [f"{_dumps(name)}:{await encoded_json(value)}" for name, value in content.items()]
        return "{" + ",".join(fields) + "}"
    if not isinstance(content, list) or len(content) <= ROWS_AT_ONCE:
        return _dumps(content)
    parts = []
    for start in range(0, len(content), ROWS_AT_ONCE):
        parts.append(_dumps(content[start : start + ROWS_AT_ONCE])[1:-1])
        await asyncio.sleep(0)
    return "[" + ",".join(parts) + "]"


_dumps = json.JSONEncoder(separators=(",", ":")).encode
