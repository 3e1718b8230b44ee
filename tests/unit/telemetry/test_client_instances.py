"""What clients are to push, when, and how long they are known."""

from __future__ import annotations

from typing import Any

import pytest

from broker.metadata.events import ConfigChanged
from broker.metadata.image import MetadataImage
from broker.telemetry import client_instances
from broker.telemetry.client_instances import ClientInstance, ClientInstances
from broker.telemetry.otlp import MetricPoint
from broker.telemetry.series import telemetry_samples
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import PushTelemetryRequest
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.telemetry import NothingExported

ONE, TWO, THREE = (bytes([number] * 16) for number in (1, 2, 3))
MINUTE_MS = 60_000


class TelemetryDesk:
    """One broker's clients, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.instances = ClientInstances(self.image)
        self.now_ms = 0

    def subscribe(self, name: str, **settings: str | None) -> None:
        events = [
            ConfigChanged(
                resource_type=16, resource_name=name, name=key.replace("_", "."), value=value
            )
            for key, value in settings.items()
        ]
        for sequence, event in enumerate(events):
            self.image.replay(event, MetadataPosition(1, sequence))
        self.instances.apply(events)

    def ask(self, instance_id: bytes = ONE, client_id: str = "c", **more: str) -> ClientInstance:
        return self.instances.ask(instance_id, self._attributes(client_id, **more), self.now_ms)

    def push(self, instance_id: bytes, subscription_id: int, **more: Any) -> ClientInstance:
        values = {"terminating": False, "compression_type": 0, "metrics": b"", **more}
        request = PushTelemetryRequest(
            client_instance_id=instance_id, subscription_id=subscription_id, **values
        )
        attributes = self._attributes("c")
        return self.instances.push(request, attributes, self.now_ms, bytes_max=10)

    def refusal(self, ask: Any, *arguments: Any, **more: Any) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            ask(*arguments, **more)
        return refused.value.code

    def series(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        samples = telemetry_samples(self.instances, NothingExported(), self.now_ms)
        for metric, labels, value in samples:
            named = dict(zip(metric.labels, labels, strict=True)) if labels else {}
            assert isinstance(value, int | float)
            found.setdefault(metric.name, []).append((named, value))
        return found

    def _attributes(self, client_id: str, **more: str) -> dict[str, str]:
        return {
            "client_instance_id": "i", "client_id": client_id, "client_software_name": "java",
            "client_software_version": "4.3.1", "client_source_address": "::1", "client_source_port": "9", **more,
        }  # fmt: skip


@pytest.fixture
def desk() -> TelemetryDesk:
    return TelemetryDesk()


def test_a_client_pushes_what_the_subscriptions_that_match_it_ask_for(desk: TelemetryDesk) -> None:
    unasked = desk.ask()
    assert (unasked.metrics, unasked.interval_ms) == ((), 300_000)
    desk.subscribe("a", metrics="x.,y.", interval_ms="2000", match="client_id=c.*")
    desk.subscribe("b", metrics="z.", interval_ms="1000", match="client_id=d,client_source_port=9")
    desk.subscribe("c", interval_ms="3600000")
    assert (desk.ask().metrics, desk.ask(TWO, "d").metrics) == (("x.", "y."), ("z.",))
    assert desk.ask(THREE, "d", client_source_port="8").metrics == ()
    desk.subscribe("c", metrics="*")
    found = desk.ask()
    assert (found.metrics, found.interval_ms) == (("*",), 2_000)
    desk.subscribe("a", metrics=None, interval_ms=None, match=None)
    assert desk.ask().interval_ms == 300_000, "as in Kafka a longer one does not count"


def test_the_number_of_a_subscription_is_kafkas(desk: TelemetryDesk) -> None:
    """Of Apache Kafka 4.3.1, as tests/peer/telemetry_talks.py asks it."""
    desk.subscribe("s", metrics="b.", interval_ms="500")
    assert desk.ask().subscription_id == 2098974862


def test_who_comes_too_early_is_throttled(desk: TelemetryDesk) -> None:
    desk.subscribe("s", metrics="*", interval_ms="1000")
    number = desk.ask().subscription_id
    assert desk.refusal(desk.ask) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    desk.now_ms = 1
    desk.push(ONE, number)
    assert desk.refusal(desk.push, ONE, number) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    desk.now_ms = 1_001
    desk.push(ONE, number)
    assert desk.refusal(desk.ask) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert desk.instances.throttled == 3


def test_what_is_pushed_wrongly_is_refused(desk: TelemetryDesk) -> None:
    desk.subscribe("s", metrics="*", interval_ms="1000")
    number = desk.ask().subscription_id
    for more, code in (
        ({"subscription_id": number + 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression_type": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": b"x" * 11}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"instance_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
    ):
        desk.now_ms += 1_000
        wanted = {"instance_id": ONE, "subscription_id": number, **more}
        assert desk.refusal(desk.push, **wanted) == code


def test_a_change_is_known_by_the_next_push_and_asked_for_at_once(desk: TelemetryDesk) -> None:
    desk.subscribe("s", metrics="*", interval_ms="1000")
    number = desk.ask().subscription_id
    desk.subscribe("s", metrics="x.")
    desk.now_ms = 700
    assert desk.refusal(desk.push, ONE, number) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert desk.ask().subscription_id != number
    assert desk.refusal(desk.ask) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_the_last_push_comes_at_any_time_and_nothing_after_it(desk: TelemetryDesk) -> None:
    desk.subscribe("s", metrics="*", interval_ms="1000")
    number = desk.ask().subscription_id
    desk.now_ms = 1
    desk.push(ONE, number)
    desk.push(ONE, number, terminating=True)
    desk.now_ms = 5_000
    assert desk.refusal(desk.push, ONE, number) == ErrorCode.INVALID_REQUEST


def test_another_broker_takes_the_next_push(desk: TelemetryDesk) -> None:
    desk.subscribe("s", metrics="*", interval_ms="1000")
    other = TelemetryDesk()
    other.subscribe("s", metrics="*", interval_ms="1000")
    other.push(ONE, desk.ask().subscription_id)


def test_silent_clients_are_forgotten(desk: TelemetryDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "INSTANCES_MAX", 2)
    desk.subscribe("s", metrics="*", interval_ms="1000")
    for instance_id in (ONE, TWO, THREE):
        desk.ask(instance_id)
        desk.now_ms += 1
    assert [each.instance_id for each in desk.instances.live(desk.now_ms)] == [TWO, THREE]
    desk.now_ms = MINUTE_MS + 2
    assert [each.instance_id for each in desk.instances.live(desk.now_ms)] == [THREE]
    desk.now_ms += 1
    assert desk.instances.live(desk.now_ms) == []


def test_what_clients_pushed_last_are_series(
    desk: TelemetryDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_instances, "SERIES_MAX", 4)
    one, two = desk.ask(), desk.ask(TWO)
    name = "org.apache.kafka.producer.record.total"
    points = (
        MetricPoint(name, 5, True, 0, (("topic", "t"), ("client_id", "forged"), ("__name__", "x"))),
        MetricPoint("my.rate", 0.5, True, 0, ()),
    )
    desk.instances.keep(one, points)
    desk.instances.keep(one, points)
    desk.instances.keep(two, (MetricPoint(name, 6, True, 0, (("a.b", "c"),)), points[1], points[1]))
    found = desk.series()
    first, second = ({"client_id": "c", "client_instance_id": text} for text in (
        "AQEBAQEBAQEBAQEBAQEBAQ", "AgICAgICAgICAgICAgICAg",
    ))  # fmt: skip
    assert found["kafka_client_producer_record_total"] == [
        ({**first, "topic": "t", "a_b": ""}, 5),
        ({**second, "topic": "", "a_b": "c"}, 6),
    ]
    assert found["kafka_client_my_rate"] == [(first, 0.5), (second, 0.5)]
    assert found["kafka_server_client_metrics_dropped_series_count"] == [({}, 1)]
    desk.now_ms = 1_000_000
    assert "kafka_client_my_rate" not in desk.series()
    again = desk.ask()
    desk.instances.keep(again, points * 2)
    assert len(again.points) == 4, "there is room again"
