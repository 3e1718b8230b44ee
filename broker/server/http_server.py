"""Shell: a minimal HTTP server for metrics and console.

One request per connection; only GET and HEAD, and POST if enabled. Requests with a head above HEAD_BYTES_MAX or a body
above BODY_BYTES_MAX are rejected, as are connections beyond EXCHANGES_MAX. TLS and the request each have
REQUEST_SECONDS_MAX. The server runs in the broker's event loop, as only that may read the broker's state; long answers
yield to clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

from broker.transport.addresses import one_text
from kafka_ds.process.seams import BoundListener

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
# A login may POST a long token (Kafka's sasl.server.max.receive.size is 512 KiB).
BODY_BYTES_MAX = 64 << 10
REQUEST_SECONDS_MAX = 10.0
EXCHANGES_MAX = 64
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request: path and query as sent, header names in lower case."""

    path: str
    query: str
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""
    client_host: str = ""
    certificate: Mapping[str, Any] | None = None
    """The client's verified TLS certificate, if it sent one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response."""

    status: str = "200 OK"
    body: bytes = b""
    content_type: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


HttpHandler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Serves GET on a bound port of its own, and POST if it `serves_posts`."""

    def __init__(
        self, answer: HttpHandler, listener: BoundListener, *, serves_posts: bool = False
    ) -> None:
        self.answer = answer
        self.methods = ("GET", "HEAD", "POST") if serves_posts else ("GET", "HEAD")
        self.exchanges = 0
        self._listener = listener
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        """The bound address."""
        return self._listener.address

    async def serve(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Start accepting; `tls` returns the context for new connections."""
        if tls is None:
            await self._listener.serve(partial(_Exchange, self), backlog=16)
        else:
            await self._listener.accept(partial(self._begin_tls, tls), backlog=16)

    def _begin_tls(self, tls: Callable[[], ssl.SSLContext], accepted: socket.socket) -> None:
        if self.exchanges + len(self._handshakes) >= EXCHANGES_MAX:
            accepted.close()
            return
        task = asyncio.get_running_loop().create_task(self._handshake(tls(), accepted))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, context: ssl.SSLContext, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(_Exchange, self),
                accepted,
                ssl=context,
                ssl_handshake_timeout=REQUEST_SECONDS_MAX,
            )
        except OSError as error:  # Browsers disconnect on unknown certificates.
            log.debug("TLS handshake with a browser failed: %s", error)

    async def stop(self) -> None:
        """Stop accepting connections."""
        await self._listener.close()
        for task in self._handshakes:
            task.cancel()


class _Exchange(asyncio.Protocol):
    """One request and its response."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.exchanges += 1
        if self._server.exchanges > EXCHANGES_MAX:
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REQUEST_SECONDS_MAX, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.exchanges -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answering is not None:
            return
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            head, end, body = self._received.partition(b"\n\n")
        if len(head) > HEAD_BYTES_MAX:
            self._reply(HttpResponse(status="431 Request Header Fields Too Large"))
            return
        if not end:
            return
        request = self._parsed(bytes(head), bytes(body))
        if request.method not in self._server.methods:
            self._reply(HttpResponse(status="405 Method Not Allowed"))
            return
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) <= 6):
            self._reply(HttpResponse(status="400 Bad Request"))
        elif int(length) > BODY_BYTES_MAX:
            self._reply(HttpResponse(status="413 Content Too Large"))
        elif len(body) >= int(length):
            self._answering = asyncio.get_running_loop().create_task(self._answer(request))

    def _parsed(self, head: bytes, body: bytes) -> HttpRequest:
        first, *rest = head.decode("latin-1").split("\n")
        method, _, target = first.partition(" ")
        path, _, query = target.split(" ")[0].strip().partition("?")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest)
        }
        peer = self._transport.get_extra_info("peername") or ("",)
        return HttpRequest(
            path=path,
            query=query,
            headers=headers,
            method=method,
            body=body,
            client_host=one_text(str(peer[0])) if peer[0] else "",
            certificate=self._transport.get_extra_info("peercert"),
        )

    async def _answer(self, request: HttpRequest) -> None:
        try:
            response = await self._server.answer(request)
        except Exception:  # A bug must not leave the client waiting.
            log.exception("unexpected error while serving %s", request.path)
            response = HttpResponse(status="500 Internal Server Error")
        self._reply(response, with_body=request.method != "HEAD")

    def _reply(self, response: HttpResponse, *, with_body: bool = True) -> None:
        lines = [
            f"HTTP/1.1 {response.status}",
            f"Content-Type: {response.content_type}",
            *(f"{name}: {value}" for name, value in response.headers.items()),
            f"Content-Length: {len(response.body)}",
            "Connection: close",
        ]
        head = "\r\n".join(lines) + "\r\n\r\n"
        self._transport.write(head.encode() + (response.body if with_body else b""))
        self._transport.close()
