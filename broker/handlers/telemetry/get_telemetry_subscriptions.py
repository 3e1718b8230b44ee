"""Shell: GetTelemetrySubscriptions 0: which metrics a client is to push, and how often (KIP-714).

- A client without an id gets one. No subscription that matches the client: no metrics, and it asks again later.
- Earlier than the interval after its last question or push: THROTTLING_QUOTA_EXCEEDED, unless the subscriptions have
  changed, or its push was refused because of them.
- Counters are asked for as totals, so that they are series and rows as they come; Kafka asks for deltas, which a plugin
  adds up (docs/decisions/0029-pushed-metrics.md).

Versions: 0.
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.telemetry.attributes import attributes_of
from broker.registry import RequestContext, serves
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.compression import Codec

# In the order of Kafka's answers.
ACCEPTED = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]


@serves(GetTelemetrySubscriptionsRequest, versions="0")
def get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    """Answer what this client is to push."""
    broker = context.broker
    instance_id = request.client_instance_id
    if instance_id == NO_UUID:
        instance_id = new_uuid()
    instance = broker.client_instances.ask(
        instance_id, attributes_of(instance_id, context), broker.clock.monotonic_ms()
    )
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=broker.config.telemetry_max_bytes,
        delta_temporality=False,
        requested_metrics=list(instance.metrics),
    )
