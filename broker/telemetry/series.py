"""Pure: the metrics of client metrics under Kafka's names, and what clients have pushed as series of this broker.

A pushed metric's name is made as by OpenTelemetry's exporters, `kafka_client_` in place of `org.apache.kafka.`; its
labels are the client's id and instance id, and the metric's attributes. Which there are, clients decide: they are no
declared metrics, and SERIES_MAX bounds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import Metric, MetricKind, MetricSample, attribute
from kafka_ds.protocol.types import uuid_text

if TYPE_CHECKING:
    from broker.telemetry.client_instances import ClientInstances
    from broker.telemetry.exporter import TelemetryExporter
    from broker.telemetry.otlp import MetricPoint

_BEAN = "kafka.server:type=client-metrics"
INSTANCES = attribute(_BEAN, "instance-count", "Clients that have asked what metrics to push.")
UNKNOWN_SUBSCRIPTIONS = attribute(
    _BEAN,
    "unknown-subscription-request-count",
    "Pushes by a subscription that has changed meanwhile.",
)
THROTTLED = attribute(
    _BEAN, "throttle-count", "Questions and pushes of client metrics that came too early."
)
EXPORTED = attribute(_BEAN, "plugin-export-count", "Pushes that were written to __client_metrics.")
FAILED = attribute(
    _BEAN, "plugin-error-count", "Pushes that could not be read, or not be written to the topic."
)
DROPPED = attribute(
    _BEAN,
    "dropped-series-count",
    "Pushed values that are no series of this broker: there were too many.",
    ours=True,
)
_OF_CLIENT = ("client_id", "client_instance_id")
_KAFKA = "org.apache.kafka."
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]")


def telemetry_samples(
    instances: ClientInstances, exporter: TelemetryExporter, now_ms: int
) -> Iterator[MetricSample]:
    """All series, as samples."""
    live = instances.live(now_ms)
    yield INSTANCES, (), len(live)
    yield UNKNOWN_SUBSCRIPTIONS, (), instances.unknown_subscriptions
    yield THROTTLED, (), instances.throttled
    yield EXPORTED, (), exporter.exported
    yield FAILED, (), exporter.failed
    yield DROPPED, (), instances.dropped_points
    pushed = [
        (each.attributes["client_id"], uuid_text(each.instance_id), point, _labels(point))
        for each in live
        for point in each.points
    ]
    metrics = _metrics((point, labels) for _, _, point, labels in pushed)
    for client_id, instance_id, point, labels in pushed:
        metric = metrics[_name(point)]
        labels |= dict(zip(_OF_CLIENT, (client_id, instance_id), strict=True))
        yield metric, tuple(labels.get(name, "") for name in metric.labels), point.value


def _metrics(points: Iterator[tuple[MetricPoint, dict[str, str]]]) -> dict[str, Metric]:
    """The metric of each name, with every label that one of its points has."""
    labels: dict[str, dict[str, None]] = {}
    kinds: dict[str, MetricKind] = {}
    for point, own in points:
        name = _name(point)
        labels.setdefault(name, dict.fromkeys(_OF_CLIENT)).update(dict.fromkeys(own))
        is_counter = point.is_monotonic and name.endswith("_total")
        kinds.setdefault(name, MetricKind.COUNTER if is_counter else MetricKind.GAUGE)
    return {
        name: Metric(
            bean=_BEAN,
            name=name,
            kind=kinds[name],
            labels=tuple(names),
            says="Pushed by clients (KIP-714).",
            ours=True,
        )
        for name, names in labels.items()
    }


def _name(point: MetricPoint) -> str:
    return _NOT_ALLOWED.sub("_", f"kafka_client_{point.name.removeprefix(_KAFKA)}")


def _labels(point: MetricPoint) -> dict[str, str]:
    """Prometheus keeps names that begin with two underscores to itself."""
    found = {_NOT_ALLOWED.sub("_", name): text for name, text in point.attributes}
    return {
        name: text
        for name, text in found.items()
        if name and not name[0].isdigit() and not name.startswith("__")
    }
