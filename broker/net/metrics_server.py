"""Shell: the metrics for Prometheus, over the little of HTTP that it needs.

Rules of this file: one request a connection, answered and closed; anything but GET /metrics is refused, and a
request of more than REQUEST_BYTES_MAX is cut off. Nothing here can slow the broker down: the text is made when it
is asked for.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from broker.listeners import Endpoint
from broker.net.metrics import Metrics
from broker.net.server import bind
from broker.seams import Listener, Network

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 10.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """Serves GET /metrics on a port of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._listener: Listener | None = None

    def bind(self, network: Network, host: str, port: int) -> None:
        """Takes the port."""
        self._listener = bind(network, Endpoint("metrics.port", host, port))

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._listener.address if self._listener is not None else None

    async def serve(self) -> None:
        """Begins to accept."""
        if self._listener is not None:
            await self._listener.serve(partial(_Exchange, self._metrics), backlog=16)

    async def stop(self) -> None:
        """Accepts nobody any more."""
        if self._listener is not None:
            await self._listener.close()


class _Exchange(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS_MAX, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received or b"\n\n" in self._received:
            self._answer()
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._reply("431 Request Header Fields Too Large", "")

    def _answer(self) -> None:
        method, _, rest = bytes(self._received).partition(b"\n")[0].partition(b" ")
        path = rest.split(b" ")[0].split(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            self._reply("405 Method Not Allowed", "")
        elif path != b"/metrics":
            self._reply("404 Not Found", "the metrics are at /metrics\n")
        else:
            self._reply("200 OK", self._metrics.render(), with_body=method == b"GET")

    def _reply(self, status: str, body: str, *, with_body: bool = True) -> None:
        content = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (content if with_body else b""))
        self._transport.close()
