"""Shell: renders all metrics, with those of the process, by prometheus-client.

- Each request has its own registry: prometheus-client's global one belongs to the embedding program.
- The event loop takes the samples, as they show its state, and yields after every SAMPLES_AT_ONCE, so that clients of a
  broker with thousands of partitions do not wait. A thread renders the text.
- Only this module imports prometheus-client (70 ms), and it is imported only if metrics are served.
- A broker of a unit labels its samples, and the unit joins the texts.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from broker.metrics.names import Metric, MetricKind, Source, Summary

SAMPLES_AT_ONCE = 500
_END = "# EOF"  # of OpenMetrics


class _Families(Collector):
    """Collected samples, for the registry."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


class _Labelled(Collector):
    """What a registry has, each sample with further labels."""

    def __init__(self, registry: Collector, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [
                each._replace(labels={**each.labels, **self._labels}) for each in family.samples
            ]
            yield family


def format_of(accept: str) -> str:
    """The content type that a request accepts."""
    return choose_encoder(accept)[1]


async def text_of(
    source: Source, accept: str, labels: Mapping[str, str] | None = None
) -> tuple[bytes, str]:
    """The text in the format that a request accepts, and its content type; `labels` are added to each sample."""
    families = await collect(source)

    def work() -> tuple[bytes, str]:
        registry = CollectorRegistry()
        registry.register(_Families(families))
        ProcessCollector(registry=registry)
        encode, content_type = choose_encoder(accept)
        return encode(_Labelled(registry, labels) if labels else registry), content_type

    return await asyncio.get_running_loop().run_in_executor(None, work)


def joined(texts: Iterable[bytes]) -> bytes:
    """Texts of one format as one text, with one head for each metric."""
    heads: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    name, end = "", ""
    for text in texts:
        # Not `splitlines`: a label may have a line separator of Unicode.
        for line in filter(None, text.decode().split("\n")):
            if line == _END:
                end = f"{_END}\n"
            elif line.startswith("# "):
                name = line.split(" ", 3)[2]
                heads.setdefault(name, {})[line] = None
            else:
                samples.setdefault(name, []).append(line)
    lines = (line for name, head in heads.items() for line in (*head, *samples.get(name, ())))
    return ("".join(f"{line}\n" for line in lines) + end).encode()


async def packed(text: bytes, accept_encoding: str) -> tuple[bytes, bool]:
    """The text, gzipped if the request accepts that, and whether it is."""
    if not gzip_accepted(accept_encoding):
        return text, False
    return await asyncio.get_running_loop().run_in_executor(None, gzip.compress, text, 1), True


async def collect(source: Source) -> list[Family]:
    """All current samples, by metric."""
    families: dict[Metric, Family] = {}
    for number, (metric, values, value) in enumerate(source(), 1):
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
