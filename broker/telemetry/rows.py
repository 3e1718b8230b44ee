"""Pure: what clients push as records of the topic `__client_metrics`: one JSON object a point, by the client's id."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from broker.telemetry.otlp import MetricPoint
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.records.compression import Codec

POINTS_PER_BATCH = 1_000


def batches_of(
    points: Sequence[MetricPoint], instance_id: bytes, client: Mapping[str, str], now_ms: int
) -> Iterator[bytes]:
    """Record batches with all points; `client` are its attributes, `now_ms` the time of the push."""
    key = uuid_text(instance_id).encode()
    for first in range(0, len(points), POINTS_PER_BATCH):
        records = [
            Record(offset, now_ms, key, _value(point, client), ())
            for offset, point in enumerate(points[first : first + POINTS_PER_BATCH])
        ]
        yield build_batch(records, codec=Codec.ZSTD)


def _value(point: MetricPoint, client: Mapping[str, str]) -> bytes:
    row = {
        "name": point.name,
        "value": point.value,
        "timestamp": point.time_ms,
        "monotonic": point.is_monotonic,
        **client,
        "attributes": dict(point.attributes),
    }
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
