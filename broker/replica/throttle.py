"""Pure: holding replication back to a rate, so that moving replicas leaves room for clients (KIP-73).

Rules of this file:
- What is throttled is named by the topics: `leader.replication.throttled.replicas` and `follower.…` list
  partition:broker, or `*` for all. At the leader the broker is the one that leads, at the follower the one that
  follows.
- A replica that is in sync is never throttled, whatever the lists say: it would fall out of sync for it.
- The rate is Kafka's: bytes over the samples of the window, `replication.quota.window.num` of them, each of
  `replication.quota.window.size.seconds`, divided by the time since the oldest of them began, and by one sample's at
  least. It is measured of throttled partitions alone. Whoever finds it exceeded sends or asks for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

ALL_REPLICAS = "*"


def is_listed(listed: str | None, partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names this one."""
    if not listed:
        return False
    if listed.strip() == ALL_REPLICAS:
        return True
    wanted = f"{partition}:{broker_id}"
    return any(entry.strip() == wanted for entry in listed.split(","))


class ReplicationThrottle:
    """The bytes of throttled replicas that have passed lately, against the rate that is allowed."""

    __slots__ = ("_rate", "_sample_ms", "_samples", "_samples_max")

    def __init__(
        self, rate: Callable[[], int], *, samples_max: int = 11, sample_ms: int = 1000
    ) -> None:
        """`rate` tells the bytes a second that are allowed at the moment."""
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
