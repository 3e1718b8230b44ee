"""Connections that were not used for long: what lies between may have forgotten them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ds.client import connection
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import OutgoingBatch, Producer
from kafka_ds.client.producer_settings import parse_producer_settings
from kafka_ds.client.settings import ClientSettings, parse_settings
from kafka_ds.protocol.messages import ApiVersionsRequest, ProduceRequest, ProduceResponse
from kafka_ds.records.batch import Record, build_batch
from tests.fakes.scripted_broker import ScriptedBroker, scripted
from tests.requests import build

MINUTE_S = 60.0


def connections(broker: ScriptedBroker) -> int:
    return sum(isinstance(each, ApiVersionsRequest) for each in broker.seen)


def settings(broker: ScriptedBroker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", **more}


def parsed(broker: ScriptedBroker, **more: str) -> ClientSettings:
    return parse_settings(settings(broker, **more))


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let so much time pass for connections."""
    monkeypatch.setattr(
        connection, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    )


@pytest.mark.parametrize(
    ("given", "minutes", "wanted"),
    [({}, 8, 1), ({}, 10, 2), ({"kafka.connections.max.idle.ms": "120000"}, 3, 2),
     ({"kafka.connections.max.idle.ms": "-1"}, 600, 1), ({"kafka.connections.max.idle.ms": "0"}, 0, 1)],
)  # fmt: skip
def test_a_connection_that_was_not_used_for_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], minutes: float, wanted: int
) -> None:
    """As Java's client does it (540 s), before brokers or whatever lies between end it, some without a word."""
    with (
        scripted(lambda request: None) as broker,
        Cluster(parsed(broker, **given)) as cluster,
    ):
        cluster.topics(["t"])
        later(monkeypatch, minutes * MINUTE_S)
        cluster.topics(["t"])
        cluster.topics(["t"])
    assert connections(broker) == wanted


def test_nor_is_a_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(request: Any) -> Any:
        if not isinstance(request, ProduceRequest):
            return None
        return build(ProduceResponse, name="t", index=0, error_code=0, base_offset=0)

    with scripted(script) as broker:
        given = parse_producer_settings(settings(broker))
        with Cluster(given.client) as cluster:
            producer = Producer(cluster, given)

            def send() -> None:
                data = build_batch([Record(0, 0, None, b"v")])
                producer.send(
                    OutgoingBatch(
                        topic="t",
                        partition=0,
                        data=data,
                        record_count=1,
                        describe=lambda _: "a row",
                    )
                )
                producer.flush()

            send()
            before = connections(broker)
            send()
            assert connections(broker) == before
            later(monkeypatch, 10 * MINUTE_S)
            send()
            assert connections(broker) == before + 1
            producer.close()
