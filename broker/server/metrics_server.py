"""Shell: serves Prometheus metrics at /metrics on a port of its own.

Requests for the same format share a text that is being made. `broker.server.metrics_text` keeps its cost away from
clients, which prometheus-client's own server, a thread, cannot. The headers choose text or OpenMetrics, plain or gzip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from broker.metrics.names import Source
from broker.server.http_server import HttpRequest, HttpResponse, HttpServer
from kafka_ds.process.seams import BoundListener

log = logging.getLogger(__name__)

# Text and content type, by what the request accepts.
MetricsText: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]


def text_source(source: Source) -> MetricsText:
    """The text of these samples."""

    def text(accept: str) -> Awaitable[tuple[bytes, str]]:
        from broker.server.metrics_text import text_of

        return text_of(source, accept)

    return text


class MetricsServer:
    """Serves GET /metrics on a port of its own."""

    def __init__(self, text: MetricsText, listener: BoundListener) -> None:
        self._text = text
        self._server = HttpServer(self.answer, listener)
        self._making: dict[str, asyncio.Task[tuple[bytes, str]]] = {}
        """By content type."""

    @property
    def address(self) -> tuple[str, int]:
        """The bound address."""
        return self._server.address

    async def serve(self) -> None:
        """Start accepting."""
        await self._server.serve()
        log.info("serving metrics at http://%s:%d/metrics", *self.address)

    async def stop(self) -> None:
        """Stop accepting connections."""
        await self._server.stop()

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        from broker.server.metrics_text import packed

        if request.path != "/metrics":
            return HttpResponse(status="404 Not Found", body=b"the metrics are at /metrics\n")
        text, content_type = await self._shared(request.headers.get("accept", ""))
        body, is_gzip = await packed(text, request.headers.get("accept-encoding", ""))
        headers = {"Content-Encoding": "gzip"} if is_gzip else {}
        return HttpResponse(body=body, content_type=content_type, headers=headers)

    async def _shared(self, accept: str) -> tuple[bytes, str]:
        from broker.server.metrics_text import format_of

        content_type = format_of(accept)
        making = self._making.get(content_type)
        if making is None:

            async def make() -> tuple[bytes, str]:
                try:
                    return await self._text(accept)
                finally:
                    del self._making[content_type]

            making = self._making[content_type] = asyncio.get_running_loop().create_task(make())
        return await asyncio.shield(making)  # Others may wait for it.
