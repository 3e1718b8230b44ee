"""Pure: a rate of bytes as Kafka measures it to throttle moved replicas (KIP-73), copies and cold reads (KIP-956).

- The rate is bytes over the samples of a window, divided by the time since the oldest of them began, and by one
  sample's at least. How many there are, and how long, is the user's to say (`….quota.window.num`, `….size.seconds`).
- While it is exceeded, a user of the rate sends and asks for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteRate:
    """The bytes that have passed lately, against the rate that is allowed."""

    __slots__ = ("_rate", "_sample_ms", "_samples", "_samples_max")

    def __init__(
        self, rate: Callable[[], int], *, samples_max: int = 11, sample_ms: int = 1000
    ) -> None:
        """`rate` gives the bytes a second that are allowed at the moment."""
        self._rate = rate
        self._samples_max = samples_max
        self._sample_ms = sample_ms
        # When each sample began, and its bytes.
        self._samples: deque[tuple[int, int]] = deque()

    def record(self, size_bytes: int, now_ms: int) -> None:
        """These bytes have passed."""
        samples = self._samples
        self._forget(now_ms)
        if samples and now_ms - samples[-1][0] < self._sample_ms:
            began_ms, sum_bytes = samples[-1]
            samples[-1] = (began_ms, sum_bytes + size_bytes)
        else:
            samples.append((now_ms, size_bytes))

    def rate(self, now_ms: int) -> float:
        """Bytes a second over the window."""
        self._forget(now_ms)
        if not self._samples:
            return 0.0
        passed_ms = max(now_ms - self._samples[0][0], self._sample_ms)
        return sum(size for _, size in self._samples) * 1000 / passed_ms

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether nothing more may pass now."""
        return bool(self._samples) and self.rate(now_ms) > self._rate()

    def throttle_time_ms(self, now_ms: int) -> int:
        """How long nothing more may pass: until the window's bytes are those of a longer one (Kafka's QuotaUtils)."""
        if not self.is_exceeded(now_ms):
            return 0
        bound = max(self._rate(), 1)
        passed_ms = max(now_ms - self._samples[0][0], self._sample_ms)
        # Never longer than the window: what is behind it counts no more.
        longest_ms = self._samples[0][0] + self._samples_max * self._sample_ms - now_ms
        return max(1, min(round((self.rate(now_ms) - bound) / bound * passed_ms), longest_ms))

    def _forget(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._samples_max * self._sample_ms
        while self._samples and self._samples[0][0] <= oldest_ms:
            self._samples.popleft()
