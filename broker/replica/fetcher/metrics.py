"""Pure: the metrics of fetchers, under Kafka's names.

It reads state and changes none. Kafka's words for a follower are those of a consumer: its lag is `ConsumerLag`, its
fetcher is the `clientId`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import MetricSample, gauge, meter

if TYPE_CHECKING:
    from broker.replica.fetcher.fetchers import Fetchers
    from broker.replica.follower.partition import FollowerPartition
    from broker.replica.moves import LogMoves

_MANAGER = "kafka.server:type=ReplicaFetcherManager,name="
_STATS = "kafka.server:type=FetcherStats,name="
_MOVES = "kafka.server:type=ReplicaAlterLogDirsManager,name="
CLIENT = "Replica"
MOVES_CLIENT = "ReplicaAlterLogDirs"

LAG = gauge(
    "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
    "How many committed offsets a followed partition is behind its leader.",
    "clientId",
    "topic",
    "partition",
)
MAX_LAG = gauge(
    f"{_MANAGER}MaxLag", "The largest lag of a followed partition, in offsets.", "clientId"
)
MIN_FETCH_RATE = gauge(
    f"{_MANAGER}MinFetchRate",
    "Fetches per second of the slowest fetcher, over about a minute.",
    "clientId",
)
FAILED_PARTITIONS = gauge(
    f"{_MANAGER}FailedPartitionsCount",
    "Partitions not followed until their metadata changes: the disk failed, or the leader refused.",
    "clientId",
)
DEAD_THREADS = gauge(
    f"{_MANAGER}DeadThreadCount", "Fetchers that ended by an unexpected error.", "clientId"
)
MOVES_MAX_LAG = gauge(
    f"{_MOVES}MaxLag",
    "The most offsets that a replica being moved to another log directory still lacks.",
    "clientId",
)
FAILED_MOVES = gauge(
    f"{_MOVES}FailedPartitionsCount",
    "Replicas whose move stopped because the target directory failed.",
    "clientId",
)
REQUESTS = meter(f"{_STATS}RequestsPerSec", "Fetches sent to leaders.", "clientId")
BYTES = meter(f"{_STATS}BytesPerSec", "Bytes of batches fetched from leaders.", "clientId")


def move_samples(moves: LogMoves) -> Iterator[MetricSample]:
    """The metrics of moves between log directories."""
    yield MOVES_MAX_LAG, (MOVES_CLIENT,), moves.lag_max
    yield FAILED_MOVES, (MOVES_CLIENT,), moves.failed_count


def fetcher_samples(
    fetchers: Fetchers, followed: Iterable[FollowerPartition], now_ms: int
) -> Iterator[MetricSample]:
    """The metrics of fetchers; `now_ms` is a monotonic clock's."""
    lags = []
    names = fetchers.names()
    for partition in followed:
        lag, name = partition.follower.lag, names.get(partition)
        if lag is not None and name is not None:
            lags.append(lag)
            yield LAG, (name, partition.topic, str(partition.partition)), lag
    active = list(fetchers)
    yield MAX_LAG, (CLIENT,), max(lags, default=0)
    yield MIN_FETCH_RATE, (CLIENT,), min((f.rate(now_ms) for f in active), default=0.0)
    yield FAILED_PARTITIONS, (CLIENT,), fetchers.failed_partitions
    yield DEAD_THREADS, (CLIENT,), sum(fetcher.is_dead for fetcher in active)
    for fetcher in active:
        yield REQUESTS, (fetcher.name,), fetcher.requests
        yield BYTES, (fetcher.name,), fetcher.bytes_in
