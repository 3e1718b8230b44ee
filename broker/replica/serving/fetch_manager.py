"""Pure: what all fetches of a broker share: sessions, who chooses replicas for consumers, the throttle, memory.

- It belongs to the broker, not to a request; nothing here knows the protocol but the sessions.
- An answer's records are in memory until its consumer has read them, which in Kafka they are not (it sends from the
  files). So what lies here for slow consumers is bounded: beyond that the answers to others become smaller, which no
  consumer minds, but never smaller than a batch, so that nobody is kept from its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.byte_rate import ByteRate
from broker.metrics.names import gauge, meter
from broker.replica.serving.fetch_sessions import Draw, FetchSessionCache
from broker.replica.serving.selector import SELECTORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.config.broker import BrokerConfig
    from broker.metrics.names import Sample

# How much of answers may wait for slow consumers before those to others become smaller, and how small.
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
        self, config: Callable[[], BrokerConfig], draw: Draw, *, unsent_bytes: Callable[[], int]
    ) -> None:
        """`config` is asked for what may change while the broker runs; `draw` picks the numbers of sessions;
        `unsent_bytes` is what lies here of answers that slow clients have yet to read.
        """
        self._unsent_bytes = unsent_bytes
        # What answers will have that are being read from the disk.
        self.being_read_bytes = 0
        given = config()
        self.sessions = FetchSessionCache(given.max_incremental_fetch_session_cache_slots, draw)
        self.select_replica = SELECTORS[given.replica_selector_class]
        self.throttle = ByteRate(
            lambda: config().leader_replication_throttled_rate,
            samples_max=given.replication_quota_window_num,
            sample_ms=given.replication_quota_window_size_seconds * 1000,
        )

    def answer_bytes_max(self) -> int:
        """How much may be in an answer to a consumer now."""
        waiting_bytes = self._unsent_bytes() + self.being_read_bytes
        return max(WAITING_BYTES_MAX - waiting_bytes, ANSWER_BYTES_MIN)

    def samples(self) -> Iterator[Sample]:
        """The gauges of the sessions."""
        yield _SESSIONS, (), len(self.sessions)
        yield _PARTITIONS, (), self.sessions.partition_count
        yield _EVICTIONS, (), self.sessions.evictions
