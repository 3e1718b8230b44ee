"""Pure: the metrics of client quotas, under Kafka's names.

The labels are those of the quota's entity: user, client id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metadata.quota_names import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from broker.metrics.names import MetricSample, attribute

if TYPE_CHECKING:
    from broker.security.quotas.quotas import ClientQuotas

_LABELS = ("user", "client_id")
_KINDS = {
    PRODUCER_BYTE_RATE: ("Produce", "byte-rate", "Bytes per second produced by clients with a quota."),
    CONSUMER_BYTE_RATE: ("Fetch", "byte-rate", "Bytes per second fetched by clients with a quota."),
    REQUEST_PERCENTAGE: ("Request", "request-time", "Percent of a core that requests of clients with a quota took."),
    CONTROLLER_MUTATION_RATE: (
        "ControllerMutation", "mutation-rate", "Partitions per second created or deleted by clients with a quota.",
    ),
}  # fmt: skip
_RATES = {
    name: attribute(f"kafka.server:type={kind}", what, says, *_LABELS)
    for name, (kind, what, says) in _KINDS.items()
}
_WAITS = {
    name: attribute(
        f"kafka.server:type={kind}",
        "throttle-time",
        "The last throttle time given to a client above this quota, in ms.",
        *_LABELS,
    )
    for name, (kind, _, _) in _KINDS.items()
}


def quota_samples(quotas: ClientQuotas, now_ms: int) -> Iterator[MetricSample]:
    """The samples of all quotas in use; `now_ms` is a monotonic clock's."""
    for name, shared, sensor in quotas.sensors():
        labels = (shared.user or "", shared.client_id or "")
        yield _RATES[name], labels, sensor.rate.rate(now_ms)
        yield _WAITS[name], labels, sensor.throttled_ms
