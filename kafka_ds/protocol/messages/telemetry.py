"""Pure: the messages by which clients push their metrics (KIP-714).

The metrics are OpenTelemetry's MetricsData of version 1, in Protobuf (`broker.telemetry.otlp`).
"""

from kafka_ds.protocol.types import boolean, bytes_, i8, i16, i32, message, string, uuid, v


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    """Request what this client is to push; the first time without an id."""

    client_instance_id: uuid


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    """Which metrics this client is to push, and how often."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    client_instance_id: uuid = v(default=bytes(16))
    subscription_id: i32 = v(default=0)
    accepted_compression_types: list[i8]
    push_interval_ms: i32 = v(default=0)
    telemetry_max_bytes: i32 = v(default=0)
    delta_temporality: boolean = v(default=False)
    requested_metrics: list[string]


@message(key=72, versions="0", flexible="0+")
class PushTelemetryRequest:
    """Push the metrics of a client."""

    client_instance_id: uuid
    subscription_id: i32
    terminating: boolean
    compression_type: i8
    metrics: bytes_


@message(key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    """Whether they were taken."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
