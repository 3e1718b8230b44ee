"""Shell: PushTelemetry 0: a client's metrics, in OpenTelemetry's format (KIP-714).

- They become series of this broker's metrics and records of the topic `__client_metrics`. The answer does not wait for
  the topic.
- Without an id, or after a push that said that it was the last one: INVALID_REQUEST. Earlier than the interval, unless
  it is the last one: THROTTLING_QUOTA_EXCEEDED. By an outdated subscription: UNKNOWN_SUBSCRIPTION_ID. Compressed by
  something unknown: UNSUPPORTED_COMPRESSION_TYPE. More than telemetry.max.bytes: TELEMETRY_TOO_LARGE. Bytes that are no
  metrics, or more than 16 MiB uncompressed: INVALID_RECORD.

Versions: 0.
Left out: histograms, which no client pushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from broker.handlers.telemetry.attributes import attributes_of
from broker.registry import RequestContext, serves
from broker.telemetry.client_instances import ClientInstance
from broker.telemetry.otlp import InvalidMetrics, MetricPoint, points_of
from broker.telemetry.rows import batches_of
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import PushTelemetryRequest, PushTelemetryResponse


@serves(PushTelemetryRequest, versions="0", pipelined=True)
def push_telemetry(
    request: PushTelemetryRequest, context: RequestContext
) -> PushTelemetryResponse | Awaitable[PushTelemetryResponse]:
    """Take the metrics, or say why not."""
    broker = context.broker
    instance = broker.client_instances.push(
        request,
        attributes_of(request.client_instance_id, context),
        broker.clock.monotonic_ms(),
        bytes_max=broker.config.telemetry_max_bytes,
    )
    if not request.metrics:
        return PushTelemetryResponse()
    return _taken(request, instance, context)


async def _taken(
    request: PushTelemetryRequest, instance: ClientInstance, context: RequestContext
) -> PushTelemetryResponse:
    broker = context.broker
    client = instance.attributes
    now_ms = broker.clock.now_ms()

    def read() -> tuple[list[MetricPoint], list[bytes]]:
        points = points_of(request.compression_type, bytes(request.metrics))
        return points, list(batches_of(points, instance.instance_id, client, now_ms))

    try:
        points, batches = await asyncio.get_running_loop().run_in_executor(
            broker.preparer.threads, read
        )
    except InvalidMetrics as error:
        broker.telemetry_exporter.count_unreadable()
        broker.client_instances.refuse(instance, ErrorCode.INVALID_RECORD)
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    broker.client_instances.keep(instance, tuple(points))
    if batches:
        broker.telemetry_exporter.export(instance.instance_id, batches)
    return PushTelemetryResponse()
