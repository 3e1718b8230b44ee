"""What clients push becomes points, and points become rows."""

from __future__ import annotations

import json

import pytest

from broker.telemetry import otlp
from broker.telemetry.otlp import InvalidMetrics, MetricPoint, points_of
from broker.telemetry.rows import POINTS_PER_BATCH, batches_of
from kafka_ds.records.batch import read_header, read_records
from kafka_ds.records.compression import Codec, compress
from tests.unit.telemetry.otlp_bytes import field, metric, metrics_data

TIME_MS = 1_700_000_000_123


def test_gauges_and_sums_are_points() -> None:
    data = metrics_data(
        metric("rate", 0.5, topic="t"),
        metric("total", 7, kind=7, monotonic=True),
        metric("size", 0.0, kind=7),
        metric("nothing", float("nan")),
        metric("histogram", 1, kind=9),
        group_id="g",
    )
    for codec in Codec:
        assert points_of(codec, compress(codec, data)) == [
            MetricPoint("rate", 0.5, False, TIME_MS, (("group_id", "g"), ("topic", "t"))),
            MetricPoint("total", 7, True, TIME_MS, (("group_id", "g"),)),
            MetricPoint("size", 0.0, False, TIME_MS, (("group_id", "g"),)),
        ]
    assert points_of(Codec.NONE, b"") == []


def test_bytes_that_are_no_metrics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = metrics_data(metric("rate", 0.5))
    monkeypatch.setattr(otlp, "UNPACKED_BYTES_MAX", len(data) - 1)
    for codec, wrong in (
        (Codec.NONE, data[:-1]),
        (Codec.NONE, b"\xff" * 20),
        (Codec.NONE, metrics_data(field(1, b"\xff\xfe"))),
        (Codec.ZSTD, b"no frame"),
        (Codec.LZ4, compress(Codec.LZ4, data)),
    ):
        with pytest.raises(InvalidMetrics):
            points_of(codec, wrong)


def test_of_too_many_points_the_first_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS_MAX", 2)
    data = metrics_data(*(metric(f"m{number}", number) for number in range(3)))
    assert [point.name for point in points_of(Codec.NONE, data)] == ["m0", "m1"]


def test_each_point_is_a_record() -> None:
    points = [MetricPoint("rate", 0.5, False, TIME_MS, (("topic", "größe"),))] * (
        POINTS_PER_BATCH + 1
    )
    batches = list(batches_of(points, b"\1" * 16, {"client_id": "me"}, TIME_MS + 9))
    assert [read_header(batch).record_count for batch in batches] == [POINTS_PER_BATCH, 1]
    (record,) = read_records(batches[1])
    assert (record.key, record.timestamp) == (b"AQEBAQEBAQEBAQEBAQEBAQ", TIME_MS + 9)
    assert record.value is not None
    assert json.loads(record.value) == {
        "name": "rate",
        "value": 0.5,
        "timestamp": TIME_MS,
        "monotonic": False,
        "client_id": "me",
        "attributes": {"topic": "größe"},
    }
