"""Pure: what all fetches of a broker share: the sessions, who chooses replicas for consumers, the throttle.

Rules of this file: it belongs to the broker, not to a request; nothing here knows the protocol but the sessions.
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

LEADER_THROTTLED_RATE = "leader.replication.throttled.rate"
LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"

_SESSIONS_BEAN = "kafka.server:type=FetchSessionCache,name="
_SESSIONS = gauge(
    f"{_SESSIONS_BEAN}NumIncrementalFetchSessions", "Incremental fetch sessions that are kept."
)
_PARTITIONS = gauge(
    f"{_SESSIONS_BEAN}NumIncrementalFetchPartitionsCached", "Partitions in all these sessions."
)
_EVICTIONS = meter(
    f"{_SESSIONS_BEAN}IncrementalFetchSessionEvictionsPerSec",
    "Sessions that were closed to make room for others.",
)


class Fetching:
    """Sessions, replica selector and leader's throttle of one broker."""

    def __init__(self, config: Callable[[], BrokerConfig], draw: Draw) -> None:
        """`config` is asked for what may change while the broker runs; `draw` picks the numbers of sessions."""
        given = config()
        self.sessions = FetchSessionCache(given.max_incremental_fetch_session_cache_slots, draw)
        self.select_replica = SELECTORS[given.replica_selector_class]
        self.throttle = ByteRate(
            lambda: _rate(config()),
            samples_max=given.replication_quota_window_num,
            sample_ms=given.replication_quota_window_size_seconds * 1000,
        )

    def samples(self) -> Iterator[Sample]:
        """The gauges of the sessions."""
        yield _SESSIONS, (), len(self.sessions)
        yield _PARTITIONS, (), self.sessions.partition_count
        yield _EVICTIONS, (), self.sessions.evictions


def _rate(config: BrokerConfig) -> int:
    value = config.in_force(LEADER_THROTTLED_RATE)
    assert isinstance(value, int)
    return value
