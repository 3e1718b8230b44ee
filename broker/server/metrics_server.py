"""Shell: the metrics for Prometheus, at /metrics of a port of their own.

Readings take turns, and what they cost `broker.server.metrics_text` keeps away from clients (prometheus-client's own
server would read from a thread). Text or OpenMetrics, plain or gzipped: what the headers ask.
"""

from __future__ import annotations

import asyncio
import logging

from broker.server.http_server import HttpRequest, HttpResponse, HttpServer
from broker.server.metrics import Metrics
from kafka_ds.process.seams import Network

log = logging.getLogger(__name__)


class MetricsServer:
    """Serves GET /metrics on a port of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._server = HttpServer(self._answer)
        self._turn = asyncio.Lock()

    def bind(self, network: Network, host: str, port: int) -> None:
        """Takes the port."""
        self._server.bind(network, host, port, f"metrics.port={port}")

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._server.address

    async def serve(self) -> None:
        """Begins to accept."""
        await self._server.serve()
        if self.address is not None:
            log.info("metrics are at http://%s:%d/metrics", *self.address)

    async def stop(self) -> None:
        """Accepts no more connections."""
        await self._server.stop()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        from broker.server.metrics_text import text_of

        if request.path != "/metrics":
            return HttpResponse(status="404 Not Found", body=b"the metrics are at /metrics\n")
        accepted = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        async with self._turn:
            body, content_type, is_gzip = await text_of(self._metrics, *accepted)
        headers = {"Content-Encoding": "gzip"} if is_gzip else {}
        return HttpResponse(body=body, content_type=content_type, headers=headers)
