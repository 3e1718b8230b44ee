"""Pure: what a metric is: declared once beside the code that counts it, by Kafka's MBean; its Prometheus name follows.

The name is what the JMX exporter makes of the MBean by its example for Kafka (`kafka-kraft-3_0_0.yml`, lower case):
domain, type and name joined by `_`; a rate (`MessagesInPerSec`) as its count, `_total`; a histogram with `_count`,
quantiles and, unlike the exporter, `_sum`; other keys as labels; an attribute of a client-side MBean ends the name.
What Kafka does not have is declared as `ours`. docs/reference/metrics.md is generated: what is not declared cannot be
shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]")
_RATE = "PerSec"


class MetricKind(Enum):
    """What Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric; `labels` are those that a sample may have, in the order of a sample's values."""

    bean: str
    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    says: str
    ours: bool


class Summary(NamedTuple):
    """The value of a histogram's sample: how many, how much together, and quantiles of the last minutes."""

    number: int
    total: float
    quantiles: tuple[tuple[str, float], ...] = ()


# Metric, values of its labels (an empty one leaves the label out), value.
MetricSample: TypeAlias = tuple[Metric, tuple[str, ...], "float | Summary"]
# Read each time. Reading is done in parts, between which the broker goes on: it iterates over copies.
Source: TypeAlias = Callable[[], Iterable[MetricSample]]

_DECLARED: dict[str, Metric] = {}


def declared() -> Iterator[Metric]:
    """All metrics that were declared, by name."""
    return iter(sorted(_DECLARED.values(), key=lambda metric: metric.name))


def meter(bean: str, says: str, *labels: str, ours: bool = False) -> Metric:
    """Declares one of Kafka's rates, `…PerSec` or `…RecordCount`: a counter of what it is the rate of."""
    assert bean.endswith((_RATE, "RecordCount")), f"{bean} is no rate"
    return _declare(
        bean, bean.removesuffix(_RATE), "_total", MetricKind.COUNTER, says, labels, ours
    )


def gauge(bean: str, says: str, *labels: str, ours: bool = False) -> Metric:
    """Declares a value that goes up and down."""
    return _declare(bean, bean, "", MetricKind.GAUGE, says, labels, ours)


def histogram(bean: str, says: str, *labels: str, ours: bool = False) -> Metric:
    """Declares a distribution; values are `Summary`."""
    return _declare(bean, bean, "", MetricKind.SUMMARY, says, labels, ours)


def attribute(bean: str, name: str, says: str, *labels: str, ours: bool = False) -> Metric:
    """Declares an attribute of an MBean of Kafka's second kind; `…-total` is a counter, all else a gauge."""
    kind = MetricKind.COUNTER if name.endswith("-total") else MetricKind.GAUGE
    return _declare(f"{bean}:{name}", f"{bean},={name}", "", kind, says, labels, ours)


def _declare(
    bean: str,
    of: str,
    suffix: str,
    kind: MetricKind,
    says: str,
    labels: tuple[str, ...],
    ours: bool,
) -> Metric:
    domain, _, keys = of.partition(":")
    words = [domain, *(key.partition("=")[2] for key in keys.split(","))]
    name = _NOT_ALLOWED.sub("_", "_".join(words)).lower() + suffix
    metric = Metric(bean=bean, name=name, kind=kind, labels=labels, says=says, ours=ours)
    known = _DECLARED.setdefault(name, metric)
    assert known is metric, f"{name} is declared twice"
    return metric
