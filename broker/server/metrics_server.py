"""Shell: the metrics for Prometheus, over the little of HTTP that it needs.

Rules of this file: one request a connection, answered and closed; anything but GET and HEAD of /metrics is refused, and
a request of more than REQUEST_BYTES_MAX is cut off. It lives in the broker's event loop, where alone its state may be
read (prometheus-client's own server reads from a thread); readings take turns, and what they cost
`broker.server.metrics_text` keeps away from clients. Text or OpenMetrics, plain or gzipped: what the headers ask for.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import cast

from broker.seams import BoundListener, Network
from broker.server.metrics import Metrics
from broker.server.server import bind

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 10.0
_PLAIN = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves GET /metrics on a port of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._listener: BoundListener | None = None
        self._turn = asyncio.Lock()

    def bind(self, network: Network, host: str, port: int) -> None:
        """Takes the port."""
        self._listener = bind(network, host, port, f"metrics.port={port}")

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._listener.address if self._listener is not None else None

    async def serve(self) -> None:
        """Begins to accept."""
        if self._listener is not None:
            await self._listener.serve(partial(_Exchange, self), backlog=16)
            log.info("metrics are at http://%s:%d/metrics", *self._listener.address)

    async def stop(self) -> None:
        """Accepts nobody any more."""
        if self._listener is not None:
            await self._listener.close()

    async def read(self, accept: str, accept_encoding: str) -> tuple[bytes, str, bool]:
        """The metrics as text, its content type, and whether it is gzipped."""
        from broker.server.metrics_text import text_of

        async with self._turn:
            return await text_of(self._metrics, accept, accept_encoding)


class _Exchange(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REQUEST_SECONDS_MAX, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
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
            self._reply("431 Request Header Fields Too Large")

    async def _answer(self) -> None:
        first, *rest = bytes(self._received).decode("latin-1").split("\n")
        method, _, target = first.partition(" ")
        path = target.split(" ")[0].split("?")[0].strip()
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest)
        }
        if method not in ("GET", "HEAD"):
            self._reply("405 Method Not Allowed")
        elif path != "/metrics":
            self._reply("404 Not Found", b"the metrics are at /metrics\n")
        else:
            try:
                body, kind, is_gzip = await self._server.read(
                    headers.get("accept", ""), headers.get("accept-encoding", "")
                )
            except Exception:  # a mistake of ours must not leave the scraper waiting
                log.exception("the metrics cannot be shown")
                self._reply("500 Internal Server Error")
                return
            encoding = "gzip" if is_gzip else None
            self._reply("200 OK", body, kind, encoding, with_body=method == "GET")

    def _reply(
        self,
        status: str,
        body: bytes = b"",
        content_type: str = _PLAIN,
        encoding: str | None = None,
        *,
        with_body: bool = True,
    ) -> None:
        encoded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{encoded}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()
