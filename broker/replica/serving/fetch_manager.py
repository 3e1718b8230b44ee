"""Pure: what all fetches of a broker share: sessions, the replica selector, the throttle, memory.

- It belongs to the broker, not to a request; only the sessions know the protocol.
- A response's records are in memory until the client has read them, unless they are sent from files. So the bytes in
  memory that wait for slow consumers are bounded: beyond the bound responses become smaller, but never smaller than a
  batch, so that every consumer makes progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.metrics.names import gauge, meter
from broker.rates import ByteRate
from broker.replica.serving.fetch_sessions import Draw, FetchSessionCache
from broker.replica.serving.selector import SELECTORS

if TYPE_CHECKING:
    from broker.config.dynamic import DynamicBrokerConfig
    from broker.metrics.names import MetricSample

# How many response bytes may wait for slow consumers before other responses become smaller, and how small.
WAITING_BYTES_MAX = 256 << 20
ANSWER_BYTES_MIN = 1 << 20
LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"

_SESSIONS_BEAN = "kafka.server:type=FetchSessionCache,name="
_SESSIONS = gauge(
    f"{_SESSIONS_BEAN}NumIncrementalFetchSessions", "Incremental fetch sessions that are kept."
)
_PARTITIONS = gauge(
    f"{_SESSIONS_BEAN}NumIncrementalFetchPartitionsCached",
    "Partitions in all incremental fetch sessions.",
)
_EVICTIONS = meter(
    f"{_SESSIONS_BEAN}IncrementalFetchSessionEvictionsPerSec",
    "Incremental fetch sessions evicted to make room for others.",
)


class FetchManager:
    """Sessions, replica selector, leader's throttle, and answers' memory of one broker."""

    def __init__(
        self, config: DynamicBrokerConfig, draw: Draw, *, unsent_bytes: Callable[[], int]
    ) -> None:
        """`draw` picks the numbers of sessions; `unsent_bytes` are the response bytes in memory that slow clients
        have yet to read.
        """
        self._unsent_bytes = unsent_bytes
        # The size of responses that are being read from the disk.
        self._being_read_bytes = 0
        given = config.current
        self.sessions = FetchSessionCache(given.max_incremental_fetch_session_cache_slots, draw)
        self.select_replica = SELECTORS[given.replica_selector_class]
        self.throttle = ByteRate(
            lambda: config.current.leader_replication_throttled_rate,
            samples_max=given.replication_quota_window_num,
            sample_ms=given.replication_quota_window_size_seconds * 1000,
        )

    @contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """Count response bytes that are being read from the disk."""
        self._being_read_bytes += size_bytes
        try:
            yield
        finally:
            self._being_read_bytes -= size_bytes

    def answer_bytes_max(self) -> int:
        """The largest response to a consumer now."""
        waiting_bytes = self._unsent_bytes() + self._being_read_bytes
        return max(WAITING_BYTES_MAX - waiting_bytes, ANSWER_BYTES_MIN)

    def samples(self) -> Iterator[MetricSample]:
        """The gauges of the sessions."""
        yield _SESSIONS, (), len(self.sessions)
        yield _PARTITIONS, (), self.sessions.partition_count
        yield _EVICTIONS, (), self.sessions.evictions
