"""Pure: client quotas, and how long a client that exceeds one has to wait (KIP-13, KIP-124, KIP-219).

The most specific of Kafka's eight entity kinds applies; all clients that share it share the quota. A rate is measured
over quota.window.num samples. A client above it waits until the rate has fallen to the quota; for request time at most
one sample. Topic changes take tokens from a bucket that fills at the quota's rate (KIP-599): they are reserved when
requested, and only granted changes count in the end. Clients choose their names, so NAME_LENGTH_MAX characters of them
count, and at most SENSORS_MAX sensors are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.metadata.quota_names import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from broker.rates import WindowedRate

if TYPE_CHECKING:
    from broker.metadata.security_image import QuotaEntity

SENSORS_MAX = 10_000
NAME_LENGTH_MAX = 249
THROTTLE_MS_MAX = BYTES_MAX = 2**31 - 1
# Kafka's `<default>`: users, or client ids, without a quota of their own; no real name is empty.
_DEFAULT = ""
_MS = 1_000


class Shared(NamedTuple):
    """The clients that share a quota; None: any."""

    user: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The quota that applies to a client, and the clients that share it."""

    value: float
    shared: Shared


class TokenBucket:
    """The token bucket of a mutation quota (KIP-599)."""

    __slots__ = ("_filled_ms", "_tokens")

    def __init__(self, burst: float, now_ms: int) -> None:
        self._tokens = burst
        self._filled_ms = now_ms

    def fill(self, rate: float, burst: float, now_ms: int) -> float:
        """Add the tokens of the time passed; returns the tokens in the bucket."""
        passed_s = max(now_ms - self._filled_ms, 0) / _MS
        self._tokens = min(self._tokens + passed_s * rate, burst)
        self._filled_ms = max(now_ms, self._filled_ms)
        return self._tokens

    def consume(self, count: float) -> None:
        """Take tokens; the bucket may go below zero."""
        self._tokens -= count


class Quotas:
    """All quotas; the most specific one applies."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str | None, str | None], float]] = {}
        self._found: dict[tuple[str, str, str], Limit | None] = {}

    def replace(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace all quotas."""
        self._values = {}
        self._found = {}
        for entity, values in quotas.items():
            names = {
                each.entity_type: (each.entity_name or _DEFAULT)[:NAME_LENGTH_MAX]
                for each in entity
            }
            if names.keys() <= {USER, CLIENT_ID}:
                for name, value in values.items():
                    place = names.get(USER), names.get(CLIENT_ID)
                    self._values.setdefault(name, {})[place] = value

    @property
    def is_limiting(self) -> bool:
        """Whether there is any quota at all."""
        return bool(self._values)

    def of(self, name: str, user: str, client_id: str) -> Limit | None:
        """The quota of this kind that applies to a client, or None."""
        if name not in self._values:
            return None
        key = (name, user[:NAME_LENGTH_MAX], client_id[:NAME_LENGTH_MAX])
        if key not in self._found:
            if len(self._found) >= SENSORS_MAX:
                self._found.clear()
            self._found[key] = self._nearest(*key)
        return self._found[key]

    def _nearest(self, name: str, user: str, client_id: str) -> Limit | None:
        values = self._values[name]
        both, whole, alone = Shared(user, client_id), Shared(user, None), Shared(None, client_id)
        for place, shared in (
            ((user, client_id), both),
            ((user, _DEFAULT), both),
            ((user, None), whole),
            ((_DEFAULT, client_id), both),
            ((_DEFAULT, _DEFAULT), both),
            ((_DEFAULT, None), whole),
            ((None, client_id), alone),
            ((None, _DEFAULT), alone),
        ):
            if place in values:
                return Limit(values[place], shared)
        return None


@dataclass(slots=True)
class Sensor:
    """The state of a quota and the clients that share it."""

    rate: WindowedRate
    bucket: TokenBucket | None = None
    throttled_ms: int = 0


class ClientQuotas:
    """Measures the usage of clients and computes their throttle times."""

    def __init__(
        self,
        *,
        samples: int,
        window_ms: int,
        mutation_samples: int,
        mutation_window_ms: int,
    ) -> None:
        self.quotas = Quotas()
        self._samples = samples
        self._window_ms = window_ms
        self._mutation_samples = mutation_samples
        self._mutation_window_ms = mutation_window_ms
        self._sensors: OrderedDict[tuple[str, Shared], Sensor] = OrderedDict()

    @property
    def is_limiting(self) -> bool:
        """Whether there is any quota at all."""
        return self.quotas.is_limiting

    def sensors(self) -> Iterator[tuple[str, Shared, Sensor]]:
        """All quotas in use, for the metrics: name, clients that share it, sensor."""
        for (name, shared), sensor in tuple(self._sensors.items()):
            yield name, shared, sensor

    def produced(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> int:
        """Count produced bytes; returns the throttle time in ms."""
        return self._record(PRODUCER_BYTE_RATE, user, client_id, size_bytes, now_ms)

    def fetched(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> int:
        """Count fetched bytes; returns the throttle time in ms."""
        return self._record(CONSUMER_BYTE_RATE, user, client_id, size_bytes, now_ms)

    def unfetched(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> None:
        """Uncount bytes that are not sent after all."""
        self._count(CONSUMER_BYTE_RATE, user, client_id, -size_bytes, now_ms)

    def worked(self, user: str, client_id: str, seconds: float, now_ms: int) -> int:
        """Count the broker's time spent on a client's request; returns the throttle time in ms."""
        percent = seconds * 100
        throttle_ms = self._record(REQUEST_PERCENTAGE, user, client_id, percent, now_ms)
        return min(throttle_ms, self._window_ms)

    def fetch_bytes_max(self, user: str, client_id: str) -> int:
        """The largest fetch that fits into a quota window (KAFKA-9677)."""
        limit = self.quotas.of(CONSUMER_BYTE_RATE, user, client_id)
        if limit is None:
            return BYTES_MAX
        seconds = max(self._samples - 1, 1) * self._window_ms / _MS
        return int(min(limit.value * seconds, BYTES_MAX))

    def mutation_wait_ms(self, user: str, client_id: str, now_ms: int) -> int:
        """The time in ms until a client may change more partitions."""
        found = self._filled(user, client_id, now_ms)
        if found is None:
            return 0
        limit, tokens, _ = found
        return max(_wait_ms(-tokens / limit.value), 1) if tokens < 0 else 0

    def reserve_mutations(self, user: str, client_id: str, count: int, now_ms: int) -> float:
        """Reserve tokens for partitions that a client asks to change; returns how many were taken.

        The change is not granted yet, so at most the whole bucket is reserved.
        """
        found = self._filled(user, client_id, now_ms)
        if found is None:
            return 0.0
        limit, _, burst = found
        consumed = min(count, burst + 1)
        self._bucket(limit).consume(consumed)
        return consumed

    def give_back_mutations(self, user: str, client_id: str, consumed: float, now_ms: int) -> None:
        """Return reserved tokens; `mutated` counts what was really changed."""
        found = self._filled(user, client_id, now_ms)
        if found is not None:
            self._bucket(found[0]).consume(-consumed)

    def mutated(self, user: str, client_id: str, count: int, now_ms: int) -> int:
        """Count changed partitions; returns the throttle time in ms."""
        found = self._filled(user, client_id, now_ms)
        if found is None:
            return 0
        limit, tokens, _ = found
        self._bucket(limit).consume(count)
        self._sensor(CONTROLLER_MUTATION_RATE, limit.shared).rate.record(count, now_ms)
        return _wait_ms((count - tokens) / limit.value)

    def _filled(self, user: str, client_id: str, now_ms: int) -> tuple[Limit, float, float] | None:
        """The quota, the tokens in its bucket and the bucket's size; None without a quota."""
        limit = self.quotas.of(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        burst = limit.value * self._mutation_samples * self._mutation_window_ms / _MS
        sensor = self._sensor(CONTROLLER_MUTATION_RATE, limit.shared)
        if sensor.bucket is None:
            sensor.bucket = TokenBucket(burst, now_ms)
        return limit, sensor.bucket.fill(limit.value, burst, now_ms), burst

    def _bucket(self, limit: Limit) -> TokenBucket:
        bucket = self._sensor(CONTROLLER_MUTATION_RATE, limit.shared).bucket
        assert bucket is not None, "the caller has filled the bucket"
        return bucket

    def throttled(self, name: str, user: str, client_id: str, throttle_ms: int) -> None:
        """Record a client's throttle time for the metric."""
        limit = self.quotas.of(name, user, client_id)
        if limit is not None:
            self._sensor(name, limit.shared).throttled_ms = throttle_ms

    def _record(self, name: str, user: str, client_id: str, value: float, now_ms: int) -> int:
        found = self._count(name, user, client_id, value, now_ms)
        if found is None:
            return 0
        limit, sensor = found
        rate = sensor.rate.rate(now_ms)
        if rate <= limit.value:
            return 0
        return _wait_ms((rate - limit.value) / limit.value * sensor.rate.span_ms(now_ms) / _MS)

    def _count(
        self, name: str, user: str, client_id: str, value: float, now_ms: int
    ) -> tuple[Limit, Sensor] | None:
        limit = self.quotas.of(name, user, client_id)
        if limit is None:
            return None
        sensor = self._sensor(name, limit.shared)
        sensor.rate.record(value, now_ms)
        return limit, sensor

    def _sensor(self, name: str, shared: Shared) -> Sensor:
        key = (name, shared)
        sensor = self._sensors.get(key)
        if sensor is None:
            if len(self._sensors) >= SENSORS_MAX:
                self._sensors.popitem(last=False)
            if name == CONTROLLER_MUTATION_RATE:
                rate = WindowedRate(self._mutation_samples, self._mutation_window_ms)
            else:
                rate = WindowedRate(self._samples, self._window_ms)
            sensor = self._sensors[key] = Sensor(rate)
        self._sensors.move_to_end(key)
        return sensor


def _wait_ms(seconds: float) -> int:
    return round(max(min(seconds * _MS, THROTTLE_MS_MAX), 0))
