"""Pure: the clients that push their metrics, each with what it is to push and when it was heard last (KIP-714).

- What a client is to push follows from the subscriptions and its attributes alone, so any broker takes its next push.
- After a change of subscriptions every client begins again, as in Kafka: its next push has an unknown subscription id,
  upon which it asks again.
- Clients that have not been heard for three intervals, and the longest silent ones above INSTANCES_MAX, are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.config.client_metrics import (
    ALL_METRICS,
    ClientMetricsConfig,
    client_metrics_config,
    matchers,
)
from broker.metadata.events import ConfigChanged, Event
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import CLIENT_METRICS_RESOURCE
from kafka_ds.records.compression import Codec
from kafka_ds.records.crc import crc32c

if TYPE_CHECKING:
    from broker.metadata.image import MetadataImage
    from broker.telemetry.otlp import MetricPoint
    from kafka_ds.protocol.messages import PushTelemetryRequest

INSTANCES_MAX = 16_384
# Series that all clients together may have.
SERIES_MAX = 20_000
KEPT_MS_MIN = 60_000
SWEEP_MS = 1_000
# Of Kafka's own objects: no client has them.
RESERVED_IDS = (bytes(16), bytes(15) + b"\x01")
_NEVER = -(2**62)
# After these a client asks at once what it is to push.
_ASKS_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class _MetricsSubscription(NamedTuple):
    """One subscription, and which attributes of a client must match."""

    config: ClientMetricsConfig
    matchers: Mapping[str, Callable[[str], bool]]

    def matches(self, attributes: Mapping[str, str]) -> bool:
        return all(matches(attributes[name]) for name, matches in self.matchers.items())


@dataclass(slots=True, kw_only=True)
class ClientInstance:
    """One client: what it is to push, when it came, and what it pushed last."""

    instance_id: bytes
    attributes: Mapping[str, str]
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    version: int
    got_ms: int = _NEVER
    pushed_ms: int = _NEVER
    expires_ms: int = 0
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    points: tuple[MetricPoint, ...] = ()


class ClientInstances:
    """The clients that this broker has heard. Times are monotonic milliseconds."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._subscriptions: list[_MetricsSubscription] | None = None
        self._version = 0
        # By id, the one that was heard last at the end.
        self._instances: dict[bytes, ClientInstance] = {}
        self._swept_ms = _NEVER
        self._series_count = 0
        self.throttled = 0
        self.unknown_subscriptions = 0
        self.dropped_points = 0

    def apply(self, events: Iterable[Event]) -> None:
        """These events have been taken into the image."""
        if any(
            isinstance(event, ConfigChanged) and event.resource_type == CLIENT_METRICS_RESOURCE
            for event in events
        ):
            self._subscriptions = None
            self._version += 1

    def ask(self, instance_id: bytes, attributes: Mapping[str, str], now_ms: int) -> ClientInstance:
        """A client asks what it is to push. Raises THROTTLING_QUOTA_EXCEEDED if it comes too early."""
        instance = self._heard(instance_id, attributes, now_ms)
        is_early = now_ms - max(instance.got_ms, instance.pushed_ms) < instance.interval_ms
        # Kafka means to, but always throttles: the client then waits for an interval (KIP-714 says "immediately").
        if is_early and instance.last_error not in _ASKS_AGAIN:
            self.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.got_ms = now_ms
        instance.last_error = ErrorCode.NONE
        return instance

    def push(
        self,
        request: PushTelemetryRequest,
        attributes: Mapping[str, str],
        now_ms: int,
        *,
        bytes_max: int,
    ) -> ClientInstance:
        """A client pushes its metrics; raises KafkaError if they are not to be taken."""
        if request.client_instance_id in RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        instance = self._heard(request.client_instance_id, attributes, now_ms)
        instance.last_error = self._check(instance, request, now_ms, bytes_max)
        instance.is_terminating = request.terminating
        if instance.last_error:
            raise KafkaError(instance.last_error)
        return instance

    def _check(
        self,
        instance: ClientInstance,
        request: PushTelemetryRequest,
        now_ms: int,
        bytes_max: int,
    ) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.INVALID_REQUEST
        # The first push after a question comes after half an interval to one and a half.
        is_early = (
            instance.got_ms <= instance.pushed_ms
            and now_ms - instance.pushed_ms < instance.interval_ms
        )
        if not is_early:
            instance.pushed_ms = now_ms
        elif not request.terminating:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != instance.subscription_id:
            self.unknown_subscriptions += 1
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in list(Codec):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def refuse(self, instance: ClientInstance, code: ErrorCode) -> None:
        """What it pushed could not be read: after some errors it may ask again at once."""
        instance.last_error = code

    def keep(self, instance: ClientInstance, points: tuple[MetricPoint, ...]) -> None:
        """These are the client's series from now on, as many as there is room for."""
        if self._instances.get(instance.instance_id) is not instance:
            return
        room = SERIES_MAX - self._series_count + len(instance.points)
        self.dropped_points += max(len(points) - room, 0)
        self._series_count -= len(instance.points)
        instance.points = points[:room]
        self._series_count += len(instance.points)

    def live(self, now_ms: int) -> list[ClientInstance]:
        """The clients that are known now."""
        self._swept_ms = _NEVER
        self._sweep(now_ms)
        return list(self._instances.values())

    def _heard(
        self, instance_id: bytes, attributes: Mapping[str, str], now_ms: int
    ) -> ClientInstance:
        self._sweep(now_ms)
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            instance = self._new(instance_id, attributes)
        elif instance.version < self._version:
            points = instance.points
            instance = self._new(instance_id, instance.attributes)
            instance.points = points
        self._instances[instance_id] = instance
        instance.expires_ms = now_ms + max(KEPT_MS_MIN, instance.interval_ms * 3)
        if len(self._instances) > INSTANCES_MAX:
            self._forget(next(iter(self._instances)))
        return instance

    def _sweep(self, now_ms: int) -> None:
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms = now_ms
        for instance_id, instance in list(self._instances.items()):
            if instance.expires_ms < now_ms:
                self._forget(instance_id)

    def _forget(self, instance_id: bytes) -> None:
        self._series_count -= len(self._instances.pop(instance_id).points)

    def _new(self, instance_id: bytes, attributes: Mapping[str, str]) -> ClientInstance:
        matching = [each.config for each in self._parsed() if each.matches(attributes)]
        # As in Kafka an interval above the default is none.
        interval_ms = min((each.interval_ms for each in matching), default=_DEFAULT.interval_ms)
        interval_ms = min(interval_ms, _DEFAULT.interval_ms)
        metrics = {name for each in matching for name in each.metrics}
        wanted = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        return ClientInstance(
            instance_id=instance_id,
            attributes=attributes,
            metrics=wanted,
            interval_ms=interval_ms,
            subscription_id=subscription_id(wanted, interval_ms, instance_id),
            version=self._version,
        )

    def _parsed(self) -> list[_MetricsSubscription]:
        if self._subscriptions is None:
            self._subscriptions = []
            for name, own in self._image.client_metrics_configs.items():
                config = client_metrics_config(name, own)
                self._subscriptions.append(_MetricsSubscription(config, matchers(config)))
        return self._subscriptions


_DEFAULT = ClientMetricsConfig()


def subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: bytes) -> int:
    """Kafka's number: CRC-32C of the metrics, as Java prints a set, and the interval; by exclusive or, Java's hash of
    the client's id. With several metrics Java's order is that of their hashes, here the alphabet's.
    """
    text = f"[{', '.join(metrics)}]{interval_ms}"
    high, low = (int.from_bytes(part, "big") for part in (instance_id[:8], instance_id[8:]))
    mixed = high ^ low
    number = crc32c(text.encode()) ^ (mixed >> 32) ^ (mixed & 0xFFFFFFFF)
    return number - (1 << 32) if number >= 1 << 31 else number
