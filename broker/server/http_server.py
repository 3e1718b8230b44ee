"""Shell: the little of HTTP that metrics and console need.

Rules of this file: one request a connection, answered and closed; anything but GET and HEAD is refused, a request of
more than REQUEST_BYTES_MAX is cut off, and so is a connection above EXCHANGES_MAX. It lives in the broker's event
loop, where alone its state may be read; an answer that takes long gives way to clients by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from broker.seams import BoundListener, Network
from broker.server.server import bind

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 10.0
EXCHANGES_MAX = 64
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is asked: the path and the query behind it as they were sent, headers by their names in lower case."""

    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What is answered."""

    status: str = "200 OK"
    body: bytes = b""
    content_type: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Serves GET on a port of its own."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.exchanges = 0
        self._listener: BoundListener | None = None

    def bind(self, network: Network, host: str, port: int, setting: str) -> None:
        """Takes the port, which `setting` asks for."""
        self._listener = bind(network, host, port, setting)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._listener.address if self._listener is not None else None

    async def serve(self) -> None:
        """Begins to accept, if it has a port."""
        if self._listener is not None:
            await self._listener.serve(partial(_Exchange, self), backlog=16)

    async def stop(self) -> None:
        """Accepts nobody any more."""
        if self._listener is not None:
            await self._listener.close()


class _Exchange(asyncio.Protocol):
    """One request and its answer."""

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
        if b"\r\n\r\n" in self._received or b"\n\n" in self._received:
            self._answering = asyncio.get_running_loop().create_task(self._answer())
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._reply(HttpResponse(status="431 Request Header Fields Too Large"))

    async def _answer(self) -> None:
        first, *rest = bytes(self._received).decode("latin-1").split("\n")
        method, _, target = first.partition(" ")
        path, _, query = target.split(" ")[0].strip().partition("?")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest)
        }
        if method not in ("GET", "HEAD"):
            self._reply(HttpResponse(status="405 Method Not Allowed"))
            return
        try:
            response = await self._server.answer(
                HttpRequest(path=path, query=query, headers=headers)
            )
        except Exception:  # a mistake of ours must not leave who asks waiting
            log.exception("%s cannot be shown", path)
            response = HttpResponse(status="500 Internal Server Error")
        self._reply(response, with_body=method == "GET")

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
