"""Shell: the web console: one page, its style and script, and what they ask for as JSON below /api/.

Rules of this file: it reads and changes nothing (GET alone gets this far). The Host header must name this machine as
an operator would, so that no foreign page reaches it by a name of its own (DNS rebinding); the Content-Security-Policy
lets the page load nothing but its own files, as what it shows, records above all, may be written by an enemy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from broker.console.views import NotShown, Views
from broker.server.http_server import HttpRequest, HttpResponse, HttpServer
from broker.server.server import own_host

if TYPE_CHECKING:
    from broker.parts import Parts
    from broker.registry import Dispatching
    from broker.seams import Network
    from broker.server.metrics import NetMetrics

log = logging.getLogger(__name__)

QUERY_FIELDS_MAX = 16
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

    def __init__(self, node: Parts, dispatcher: Dispatching, net: NetMetrics, host: str) -> None:
        self._views = Views(node, dispatcher, net)
        self._host = host
        self._names = {"localhost", host.lower(), own_host().lower()} - {""}
        self._server = HttpServer(self._answer)
        self._files: dict[str, HttpResponse] = {}

    def bind(self, network: Network, port: int) -> None:
        """Takes the port; nobody is served before `serve`."""
        self._server.bind(network, self._host, port, f"console.port={port}")
        folder = Path(__file__).parent
        for path, (name, content_type) in _FILES.items():
            body = (folder / name).read_bytes()
            self._files[path] = HttpResponse(body=body, content_type=content_type, headers=_HEADERS)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._server.address

    async def serve(self) -> None:
        """Begins to accept."""
        await self._server.serve()
        if self.address is not None:
            log.info("the console is at http://%s:%d/", *self.address)

    async def stop(self) -> None:
        """Accepts nobody any more."""
        await self._server.stop()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if not self._is_meant(request.headers.get("host", "")):
            told = "this name is not the console's: use console.host, localhost or an address"
            return await _json({"error": told}, "421 Misdirected Request")
        found = self._files.get(request.path)
        if found is not None:
            return found
        view = self._views.by_path.get(request.path.removeprefix("/api/"))
        if view is None or not request.path.startswith("/api/"):
            return await _json({"error": f"{request.path} is not here"}, "404 Not Found")
        try:
            pairs = parse_qsl(request.query, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError as error:
            return await _json(
                {"error": f"the query is not understood: {error}"}, "400 Bad Request"
            )
        try:
            return await _json(await view(dict(pairs)))
        except NotShown as error:
            return await _json({"error": str(error)}, error.status)

    def _is_meant(self, host: str) -> bool:
        """Whether a browser asks for this machine by an address or by its own name."""
        name, _, end = host.lower().rpartition(":")
        if not name or not end.isdigit():
            name = host.lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


async def _json(content: Any, status: str = "200 OK") -> HttpResponse:
    """In a thread: a cluster may have many thousands of partitions."""

    def work() -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()

    body = await asyncio.get_running_loop().run_in_executor(None, work)
    return HttpResponse(status=status, body=body, content_type="application/json", headers=_HEADERS)
