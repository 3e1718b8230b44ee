"""What a client of client metrics asks one broker, and what it is told (KIP-714)."""

from __future__ import annotations

import time
from typing import Any

from kafka_ds.protocol.messages import (
    DescribeConfigsRequest,
    GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    PushTelemetryRequest,
)
from kafka_ds.protocol.messages.configs import (
    CLIENT_METRICS_RESOURCE,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
)
from tests.integration.raw_client import RawClient
from tests.requests import build

SET, DELETE = 0, 1
INTERVAL_S = 1.0
# After which Kafka's broker knows what its controller has decided.
KNOWN_S = 0.5
IDS = tuple(bytes([number] * 16) for number in range(1, 9))


class TelemetryTalk:
    """One broker, and what it said."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.said: list[Any] = []

    def run(self) -> None:
        with RawClient(self._bootstrap) as client:
            self._client = client
            self._configs()
            for ask in (self._pushes, self._endings, self._changes):
                ask()
            self._set(("metrics", None), ("interval.ms", None), ("match", None))

    def _set(self, *pairs: tuple[str, str | None], name: str = "s") -> None:
        request = build(
            IncrementalAlterConfigsRequest,
            resource_type=CLIENT_METRICS_RESOURCE,
            resource_name=name,
            configs=[
                IncrementalAlterableConfig(
                    name=key, config_operation=DELETE if value is None else SET, value=value
                )
                for key, value in pairs
            ],
            validate_only=False,
        )
        (answer,) = self._client.ask(request, 1).responses
        self.said.append((pairs, answer.error_code))

    def _configs(self) -> None:
        for name, value in (
            ("interval.ms", "99"),
            ("interval.ms", "x"),
            ("metrics", "a,a"),
            ("match", "client_id"),
            ("match", "client_id="),
            ("match", "client_id=a=b"),
            ("match", "client_id=a="),
            ("match", "host=a"),
            ("match", "client_id=("),
            ("push", "1"),
            ("metrics", ""),
            ("metrics", "org.apache.kafka.producer."),
            ("match", "client_id=.*,client_source_address=127.*,client_software_name=unknown"),
            ("match", None),
        ):
            self._set((name, value))
        self._set(("metrics", "*"), name="")
        self._set(("interval.ms", str(int(INTERVAL_S * 1_000))), ("metrics", "b."))
        time.sleep(KNOWN_S)
        for name in ("s", "none", ""):
            resource = DescribeConfigsResource(
                resource_type=CLIENT_METRICS_RESOURCE, resource_name=name, configuration_keys=None
            )
            request = DescribeConfigsRequest(
                resources=[resource], include_synonyms=True, include_documentation=True
            )
            (result,) = self._client.ask(request, 4).results
            entries = [
                (e.name, e.value, e.read_only, e.config_source, e.is_sensitive, e.config_type)
                + tuple((s.name, s.value, s.source) for s in e.synonyms)
                for e in result.configs
            ]
            self.said.append((name, result.error_code, sorted(entries)))
        self.said.append(self._client.ask(ListConfigResourcesRequest(), 0))

    def _get(self, instance_id: bytes) -> int:
        """What it is to push: the subscription's number."""
        request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        answer = self._client.ask(request, 0)
        answer.delta_temporality = None  # Ours alone are no deltas.
        number: int = answer.subscription_id
        if answer.error_code:
            answer.client_instance_id = None  # Kafka names no client with an error.
        self.said.append(answer)
        return number

    def _push(self, instance_id: bytes, subscription_id: int, **more: Any) -> None:
        values = {"terminating": False, "compression_type": 0, "metrics": b"", **more}
        request = PushTelemetryRequest(
            client_instance_id=instance_id, subscription_id=subscription_id, **values
        )
        self.said.append((more, self._client.ask(request, 0)))

    def _pushes(self) -> None:
        """Early, by a wrong number, compressed by something unknown, too large."""
        one, two, three, four, *_ = IDS
        number = self._get(one)
        self._get(one)
        self._push(one, number)
        self._push(one, number)
        self._get(one)
        time.sleep(INTERVAL_S)
        self._push(one, number)
        for reserved in (bytes(16), bytes(15) + b"\1"):
            self._push(reserved, number)
        self._push(two, self._get(two) + 1)
        self._push(three, self._get(three), compression_type=9)
        self._push(four, self._get(four), metrics=bytes((1 << 20) + 1))

    def _endings(self) -> None:
        """The last push comes at any time, and nothing after it."""
        five = IDS[4]
        number = self._get(five)
        self._push(five, number)
        self._push(five, number, terminating=True)
        time.sleep(INTERVAL_S)
        self._push(five, number)
        self._push(five, number)

    def _changes(self) -> None:
        """A change of subscriptions is told at once."""
        six = IDS[5]
        number = self._get(six)
        self._set(("metrics", "*"))
        time.sleep(KNOWN_S)
        self._get(six)
        self._push(six, number)
        for match in ("client_id=other", "client_id=.+"):
            self._set(("match", match))
            time.sleep(KNOWN_S)
            self._get(six)
