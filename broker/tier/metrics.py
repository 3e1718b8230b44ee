"""Pure: what the tier counts, under Kafka's names where Kafka has one (KIP-405, KIP-963).

Rules of this file: totals only grow; who shows them makes rates of them. What concerns one topic is counted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from broker.net.metrics_names import Sample, gauge, meter
from broker.net.metrics_topics import PerTopic

_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_READERS = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="


@dataclass(slots=True)
class TierCounters:
    """What was counted of one topic."""

    copy_requests: int = 0
    copy_bytes: int = 0
    copy_errors: int = 0
    lake_bytes: int = 0
    fetch_requests: int = 0
    fetch_bytes: int = 0
    fetch_errors: int = 0
    delete_requests: int = 0
    delete_errors: int = 0


_METRICS = {
    "copy_requests": meter(f"{_TOPICS}RemoteCopyRequestsPerSec", "Ranges copied.", "topic"),
    "copy_bytes": meter(f"{_TOPICS}RemoteCopyBytesPerSec", "Bytes of log copied.", "topic"),
    "copy_errors": meter(f"{_TOPICS}RemoteCopyErrorsPerSec", "Copies that failed.", "topic"),
    "lake_bytes": meter(
        f"{_TOPICS}RemoteLakeBytesPerSec", "Bytes that copies have become.", "topic", ours=True
    ),
    "fetch_requests": meter(f"{_TOPICS}RemoteFetchRequestsPerSec", "Cold reads.", "topic"),
    "fetch_bytes": meter(f"{_TOPICS}RemoteFetchBytesPerSec", "Bytes of cold reads.", "topic"),
    "fetch_errors": meter(
        f"{_TOPICS}RemoteFetchErrorsPerSec", "Questions to the lake that failed.", "topic"
    ),
    "delete_requests": meter(
        f"{_TOPICS}RemoteDeleteRequestsPerSec", "Ranges that retention took out.", "topic"
    ),
    "delete_errors": meter(
        f"{_TOPICS}RemoteDeleteErrorsPerSec", "Steps of retention in the lake that failed.", "topic"
    ),
}
assert tuple(_METRICS) == tuple(each.name for each in fields(TierCounters)), "each is shown"

LAG_BYTES = gauge(
    f"{_TOPICS}RemoteCopyLagBytes", "Bytes of closed segments that are not in the lake.", "topic"
)
LAG_SEGMENTS = gauge(
    f"{_TOPICS}RemoteCopyLagSegments", "Closed segments that are not in the lake.", "topic"
)
HOLDINGS = {
    "segments": gauge(
        f"{_TOPICS}RemoteLogMetadataCount", "Segments that the metadata know of.", "topic"
    ),
    "size_bytes": gauge(
        f"{_TOPICS}RemoteLogSizeBytes", "Bytes of log that are in the lake.", "topic"
    ),
    "computation_ms": gauge(
        f"{_TOPICS}RemoteLogSizeComputationTime", "How long counting them took, in ms.", "topic"
    ),
    "delete_lag_bytes": gauge(
        f"{_TOPICS}RemoteDeleteLagBytes", "Bytes of log below the log start, not out yet.", "topic"
    ),
    "delete_lag_segments": gauge(
        f"{_TOPICS}RemoteDeleteLagSegments", "Segments below the log start, not out yet.", "topic"
    ),
}
READS_WAITING = gauge(
    f"{_READERS}RemoteLogReaderTaskQueueSize", "Cold reads that are asked for and not answered."
)
WORKER_STARTS = meter(
    "kafka.server:type=TierWorker,name=StartsPerSec", "Starts of the worker process.", ours=True
)
FOREIGN_COMMITS = meter(
    f"{_TOPICS}RemoteForeignCommitsPerSec",
    "Commits of other engines that put rows into topics' tables.",
    ours=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the lake holds of one partition, as it was counted last."""

    segments: int = 0
    size_bytes: int = 0
    computation_ms: int = 0
    delete_lag_bytes: int = 0
    delete_lag_segments: int = 0


assert tuple(HOLDINGS) == tuple(each.name for each in fields(Holding)), "each is shown"


@dataclass(slots=True, kw_only=True)
class TierMetrics:
    """What was counted since the broker started."""

    topics: PerTopic[TierCounters] = field(default_factory=lambda: PerTopic(TierCounters, _METRICS))
    reads_waiting: int = 0
    worker_starts: int = 0
    foreign_commits: int = 0
    holdings: dict[tuple[str, int], Holding] = field(default_factory=dict)
    """By topic and partition; only those that were counted."""

    def copied(self, topic: str, log_bytes: int, lake_bytes: int, ranges: int) -> None:
        """Ranges of one partition are FINISHED."""
        counters = self.topics.of(topic)
        counters.copy_requests += ranges
        counters.copy_bytes += log_bytes
        counters.lake_bytes += lake_bytes

    def copy_failed(self, topic: str | None) -> None:
        """A copy has failed, of this topic or of all that there was to do."""
        self._of(topic).copy_errors += 1

    def fetched(self, topic: str, size_bytes: int) -> None:
        """A cold read was answered."""
        counters = self.topics.of(topic)
        counters.fetch_requests += 1
        counters.fetch_bytes += size_bytes

    def fetch_failed(self, topic: str | None) -> None:
        """The lake did not answer a question, which may concern one topic."""
        self._of(topic).fetch_errors += 1

    def deleted(self, topic: str, segments: int) -> None:
        """Retention has taken ranges out."""
        self.topics.of(topic).delete_requests += segments

    def delete_failed(self, topic: str) -> None:
        """A step of retention failed."""
        self.topics.of(topic).delete_errors += 1

    def _of(self, topic: str | None) -> TierCounters:
        return self.topics.of_none if topic is None else self.topics.of(topic)


def tier_samples(metrics: TierMetrics, lags: Mapping[str, tuple[int, int]]) -> Iterator[Sample]:
    """All of it; `lags` are bytes and segments not copied yet, by topic."""
    yield from metrics.topics.samples()
    for place, metric in enumerate((LAG_BYTES, LAG_SEGMENTS)):
        yield metric, (), sum(lag[place] for lag in lags.values())
        for topic, lag in sorted(lags.items()):
            yield metric, (topic,), lag[place]
    yield from _holding_samples(metrics.holdings)
    yield READS_WAITING, (), metrics.reads_waiting
    yield WORKER_STARTS, (), metrics.worker_starts
    yield FOREIGN_COMMITS, (), metrics.foreign_commits


def _holding_samples(holdings: Mapping[tuple[str, int], Holding]) -> Iterator[Sample]:
    """By topic, and of all of them."""
    topics = sorted({topic for topic, _ in holdings})
    for name, metric in HOLDINGS.items():
        sums = dict.fromkeys(topics, 0)
        for (topic, _), holding in holdings.items():
            sums[topic] += getattr(holding, name)
        yield metric, (), sum(sums.values())
        for topic, total in sums.items():
            yield metric, (topic,), total
