"""Pure: rates over a window of samples, as Kafka measures what clients, replicas, copies and cold reads are allowed.

How many samples there are, and how long one is, is the user's to say (`….quota.window.num`, `….size.seconds`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class WindowedRate:
    """A rate per second over the latest samples.

    Measured over a full window at least (Kafka's `Rate`), or, if it is simple, over the time since the oldest sample,
    and one sample's at least (its `SimpleRate`).
    """

    __slots__ = ("_is_simple", "_sample_ms", "_samples", "_samples_max")

    def __init__(self, samples: int, sample_ms: int, *, is_simple: bool = False) -> None:
        self._samples_max = samples
        self._sample_ms = sample_ms
        self._is_simple = is_simple
        # Start time and count of each sample.
        self._samples: deque[list[float]] = deque()

    def record(self, value: float, now_ms: int) -> None:
        """Add `value` to the current sample."""
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._sample_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += value

    def span_ms(self, now_ms: int) -> float:
        """The time that the rate is measured over, in ms."""
        elapsed = self._elapsed_ms(now_ms)
        missing = 0
        if not self._is_simple:
            missing = max(self._samples_max - 1 - int(elapsed // self._sample_ms), 0)
        return max(elapsed + missing * self._sample_ms, self._sample_ms)

    def left_ms(self, now_ms: int) -> float:
        """How long the oldest sample still counts."""
        return self._samples_max * self._sample_ms - self._elapsed_ms(now_ms)

    def rate(self, now_ms: int) -> float:
        """The rate per second."""
        self._forget(now_ms)
        return sum(value for _, value in self._samples) * 1000 / self.span_ms(now_ms)

    def _elapsed_ms(self, now_ms: int) -> float:
        return now_ms - self._samples[0][0] if self._samples else 0.0

    def _forget(self, now_ms: int) -> None:
        while self._samples and self.left_ms(now_ms) <= 0:
            self._samples.popleft()


class ByteRate:
    """The bytes that have passed lately, against the rate that is allowed (KIP-73, KIP-956).

    While it is exceeded, a user of the rate sends and asks for nothing.
    """

    __slots__ = ("_allowed", "_rate")

    def __init__(
        self, allowed: Callable[[], int], *, samples_max: int = 11, sample_ms: int = 1000
    ) -> None:
        """`allowed` gives the bytes a second that are allowed at the moment."""
        self._allowed = allowed
        self._rate = WindowedRate(samples_max, sample_ms, is_simple=True)

    def record(self, size_bytes: int, now_ms: int) -> None:
        """These bytes have passed."""
        self._rate.record(size_bytes, now_ms)

    def rate(self, now_ms: int) -> float:
        """Bytes a second over the window."""
        return self._rate.rate(now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether nothing more may pass now."""
        return self.rate(now_ms) > self._allowed()

    def throttle_time_ms(self, now_ms: int) -> int:
        """How long nothing more may pass: until the window's bytes are those of a longer one (Kafka's QuotaUtils)."""
        if not self.is_exceeded(now_ms):
            return 0
        bound = max(self._allowed(), 1)
        wait_ms = round((self.rate(now_ms) - bound) / bound * self._rate.span_ms(now_ms))
        # Never longer than the window: what is behind it counts no more.
        return max(1, min(wait_ms, round(self._rate.left_ms(now_ms))))
