"""Pure: a broker's byte rates of copies and of cold reads, over all partitions (KIP-956).

- The rate is Kafka's: `remote.log.manager.{copy,fetch}.max.bytes.per.second` over `….quota.window.num` samples of
  `….quota.window.size.seconds` each.
- Copies wait until the rate allows them: records stay on the local disk. Reads get nothing, and the consumer asks
  again; a read that waited would keep a slot from others.
- Throttle times are Kafka's sensors: average and maximum of the last minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.metrics.names import Metric, MetricSample, attribute
from broker.rates import ByteRate
from broker.worker.rpc import UNBOUNDED

_BEAN = "kafka.server:type=RemoteLogManager"
_WINDOW_MS = 30_000


def _declare(what: str, says: str) -> tuple[Metric, Metric]:
    name = f"remote-{what}-throttle-time"
    return (
        attribute(_BEAN, f"{name}-avg", f"{says}, in ms: the average of the last minute."),
        attribute(_BEAN, f"{name}-max", f"{says}, in ms: the longest of the last minute."),
    )


COPY_TIMES = _declare("copy", "How long copies are held back by their quota")
FETCH_TIMES = _declare("fetch", "How long cold reads are held back by their quota")


class _ThrottleTimes:
    """Average and maximum, which `metrics.times` does not keep, over one to two windows."""

    __slots__ = ("_before", "_began_ms", "_now")

    def __init__(self) -> None:
        self._began_ms = 0
        self._now = (0, 0, 0)
        self._before = (0, 0, 0)

    def add(self, time_ms: int, now_ms: int) -> None:
        self._turn(now_ms)
        count, total_ms, longest_ms = self._now
        self._now = (count + 1, total_ms + time_ms, max(longest_ms, time_ms))

    def read(self, now_ms: int) -> tuple[float, int]:
        self._turn(now_ms)
        count, total_ms = (self._now[at] + self._before[at] for at in (0, 1))
        return total_ms / count if count else 0.0, max(self._now[2], self._before[2])

    def _turn(self, now_ms: int) -> None:
        passed = (now_ms - self._began_ms) // _WINDOW_MS
        if passed > 0:
            self._before = self._now if passed == 1 else (0, 0, 0)
            self._now = (0, 0, 0)
            self._began_ms += passed * _WINDOW_MS


class RemoteQuota:
    """One of the two rates, and how long it throttled."""

    def __init__(
        self,
        rate: Callable[[], int],
        times: tuple[Metric, Metric],
        *,
        windows: int,
        window_seconds: int,
    ) -> None:
        """`rate` gives the bytes per second that are allowed now."""
        self._rate = rate
        self._throttle = ByteRate(rate, samples_max=windows, sample_ms=window_seconds * 1000)
        self._metrics = times
        self._times = _ThrottleTimes()

    @property
    def bytes_per_second(self) -> int:
        """The bytes per second that are allowed now."""
        return self._rate()

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were copied or read."""
        if self._rate() < UNBOUNDED:
            self._throttle.record(size_bytes, now_ms)

    def throttle_time_ms(self, now_ms: int) -> int:
        """How long nothing may pass, usually 0; counted, since the caller waits or answers nothing accordingly."""
        if self._rate() >= UNBOUNDED:
            return 0
        time_ms = self._throttle.throttle_time_ms(now_ms)
        if time_ms:
            self._times.add(time_ms, now_ms)
        return time_ms

    def samples(self, now_ms: int) -> Iterator[MetricSample]:
        """The throttle times."""
        for metric, value in zip(self._metrics, self._times.read(now_ms), strict=True):
            yield metric, (), value
