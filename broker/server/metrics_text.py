"""Shell: renders all metrics, with those of the process, by prometheus-client.

- Each request has its own registry: prometheus-client's global one belongs to the embedding program.
- The event loop takes the samples, as they show its state, and yields after every SAMPLES_AT_ONCE, so that clients of a
  broker with thousands of partitions do not wait. A thread renders the text.
- Only this module imports prometheus-client (70 ms), and it is imported only if metrics are served.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from broker.metrics.names import Metric, MetricKind, Summary
from broker.server.metrics import Metrics

SAMPLES_AT_ONCE = 500


class _Families(Collector):
    """Collected samples, for the registry."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


async def text_of(metrics: Metrics, accept: str, accept_encoding: str) -> tuple[bytes, str, bool]:
    """The text, its content type and whether it is gzipped, by the request's two headers."""
    families = await collect(metrics)

    def work() -> tuple[bytes, str, bool]:
        registry = CollectorRegistry()
        registry.register(_Families(families))
        ProcessCollector(registry=registry)
        encode, content_type = choose_encoder(accept)
        text = encode(registry)
        if gzip_accepted(accept_encoding):
            return gzip.compress(text, 1), content_type, True
        return text, content_type, False

    return await asyncio.get_running_loop().run_in_executor(None, work)


async def collect(metrics: Metrics) -> list[Family]:
    """All current samples, by metric."""
    families: dict[Metric, Family] = {}
    for number, (metric, values, value) in enumerate(metrics.samples(), 1):
        family = families.get(metric)
        if family is None:
            # prometheus-client adds a counter's suffix to the family's name.
            name = (
                metric.name.removesuffix("_total")
                if metric.kind is MetricKind.COUNTER
                else metric.name
            )
            family = families[metric] = Family(name, metric.says, metric.kind.value)
        labels = {name: text for name, text in zip(metric.labels, values, strict=False) if text}
        if isinstance(value, Summary):
            _add_summary(family, metric.name, labels, value)
        else:
            family.add_sample(metric.name, labels, value)
        if number % SAMPLES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return list(families.values())


def _add_summary(family: Family, name: str, labels: dict[str, str], value: Summary) -> None:
    for quantile, limit in value.quantiles:
        family.add_sample(name, {**labels, "quantile": quantile}, limit)
    family.add_sample(f"{name}_count", labels, value.number)
    family.add_sample(f"{name}_sum", labels, value.total)
