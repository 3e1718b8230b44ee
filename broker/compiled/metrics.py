"""Shell: shows whether a broker has compiled modules."""

from __future__ import annotations

from collections.abc import Iterator

from broker.compiled.finder import use_build
from broker.metrics.names import MetricSample, gauge

COMPILED = gauge(
    "kafka.server:type=KafkaServer,name=CompiledModules",
    "How many modules are compiled (`kafka-ds compile`); 0 if the broker runs interpreted.",
    ours=True,
)


def compiled_samples() -> Iterator[MetricSample]:
    """The number of compiled modules."""
    yield COMPILED, (), use_build().modules
