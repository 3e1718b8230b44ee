"""Pure: the metrics of tiered storage, under Kafka's names where Kafka has one (KIP-405, KIP-963).

Totals only grow; monitoring turns them into rates. What concerns one topic is counted by topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from broker.metrics.names import MetricSample, gauge, histogram, meter
from broker.metrics.times import RecentTimes
from broker.metrics.topics import PerTopic
from broker.worker.rpc import CacheCounts
from kafka_ds.protocol.topic_partition import TopicPartition

_TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
_MANAGER = "kafka.log.remote:type=RemoteLogManager,name="
_READERS = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="


@dataclass(slots=True)
class TierCounters:
    """The totals of one topic."""

    copy_requests: int = 0
    copy_bytes: int = 0
    copy_errors: int = 0
    copy_invalid_bytes: int = 0
    lake_bytes: int = 0
    fetch_requests: int = 0
    fetch_bytes: int = 0
    fetch_errors: int = 0
    delete_requests: int = 0
    delete_errors: int = 0
    build_requests: int = 0
    build_errors: int = 0
    optimize_requests: int = 0
    optimize_files: int = 0
    optimize_bytes: int = 0
    optimize_errors: int = 0


_METRICS = {
    "copy_requests": meter(
        f"{_TOPICS}RemoteCopyRequestsPerSec", "Ranges copied to the lake.", "topic"
    ),
    "copy_bytes": meter(
        f"{_TOPICS}RemoteCopyBytesPerSec", "Bytes of log copied to the lake.", "topic"
    ),
    "copy_errors": meter(
        f"{_TOPICS}RemoteCopyErrorsPerSec", "Copies to the lake that failed.", "topic"
    ),
    "copy_invalid_bytes": meter(
        f"{_TOPICS}RemoteCopyInvalidMessageBytesPerSec",
        "Bytes of log that were copied to the lake though they are no messages, for the disk has damaged them: no "
        "reader gets them from there.",
        "topic",
        ours=True,
    ),
    "lake_bytes": meter(
        f"{_TOPICS}RemoteLakeBytesPerSec",
        "Bytes of the files that copies wrote to the lake.",
        "topic",
        ours=True,
    ),
    "fetch_requests": meter(
        f"{_TOPICS}RemoteFetchRequestsPerSec", "Reads of consumers from the lake.", "topic"
    ),
    "fetch_bytes": meter(
        f"{_TOPICS}RemoteFetchBytesPerSec", "Bytes that consumers read from the lake.", "topic"
    ),
    "fetch_errors": meter(
        f"{_TOPICS}RemoteFetchErrorsPerSec", "Requests to the lake that failed.", "topic"
    ),
    "delete_requests": meter(
        f"{_TOPICS}RemoteDeleteRequestsPerSec",
        "Ranges that retention removed from the lake.",
        "topic",
    ),
    "delete_errors": meter(
        f"{_TOPICS}RemoteDeleteErrorsPerSec", "Steps of retention in the lake that failed.", "topic"
    ),
    "build_requests": meter(
        f"{_TOPICS}BuildRemoteLogAuxStateRequestsPerSec",
        "Requests of replicas to the lake for leader epochs and producer state.",
        "topic",
    ),
    "build_errors": meter(
        f"{_TOPICS}BuildRemoteLogAuxStateErrorsPerSec",
        "Requests of replicas for leader epochs and producer state that failed.",
        "topic",
    ),
    "optimize_requests": meter(
        f"{_TOPICS}RemoteLayoutRequestsPerSec",
        "Rewrites of table files (merged, sorted, or without expired rows).",
        "topic",
        ours=True,
    ),
    "optimize_files": meter(
        f"{_TOPICS}RemoteLayoutFilesPerSec",
        "Table files that were replaced by rewrites.",
        "topic",
        ours=True,
    ),
    "optimize_bytes": meter(
        f"{_TOPICS}RemoteLayoutBytesPerSec",
        "Bytes of the table files that were replaced by rewrites.",
        "topic",
        ours=True,
    ),
    "optimize_errors": meter(
        f"{_TOPICS}RemoteLayoutErrorsPerSec",
        "Rewrites of table files that failed.",
        "topic",
        ours=True,
    ),
}
assert tuple(_METRICS) == tuple(each.name for each in fields(TierCounters)), "each is shown"

LAG_BYTES = gauge(
    f"{_TOPICS}RemoteCopyLagBytes", "Bytes of rolled segments that are not in the lake.", "topic"
)
LAG_SEGMENTS = gauge(
    f"{_TOPICS}RemoteCopyLagSegments", "Rolled segments that are not in the lake.", "topic"
)
COPIES_PAUSED = gauge(
    f"{_TOPICS}RemoteCopyPausedPartitions",
    "Partitions of which nothing is copied to the lake until an operator undoes what the broker's log names.",
    "topic",
    ours=True,
)
DATA_MISSING = gauge(
    f"{_TOPICS}RemoteDataMissingPartitions",
    "Partitions whose table names data that the store lacks; local segments stay, and the broker's log says which.",
    "topic",
    ours=True,
)
OFFSETS_MISSING = gauge(
    f"{_TOPICS}RemoteDataMissingOffsets",
    "Offsets whose data in the table the store lacks, and that could not be written again.",
    "topic",
    ours=True,
)
REMOTE_SIZES = {
    "segments": gauge(
        f"{_TOPICS}RemoteLogMetadataCount", "Segments in the lake, by its metadata.", "topic"
    ),
    "size_bytes": gauge(
        f"{_TOPICS}RemoteLogSizeBytes", "Bytes of log that are in the lake.", "topic"
    ),
    "computation_ms": gauge(
        f"{_TOPICS}RemoteLogSizeComputationTime",
        "How long it took to count segments and bytes in the lake, in ms.",
        "topic",
    ),
    "delete_lag_bytes": gauge(
        f"{_TOPICS}RemoteDeleteLagBytes",
        "Bytes of log below the log start that are still in the lake.",
        "topic",
    ),
    "delete_lag_segments": gauge(
        f"{_TOPICS}RemoteDeleteLagSegments",
        "Segments below the log start that are still in the lake.",
        "topic",
    ),
}
READS_WAITING = gauge(
    f"{_READERS}RemoteLogReaderTaskQueueSize", "Requests to the lake that wait for a reader thread."
)
READERS_IDLE = gauge(
    f"{_READERS}RemoteLogReaderAvgIdlePercent",
    "The idle share of remote.log.reader.threads in the last minute, 0 to 1.",
)
READER_TIMES = histogram(
    f"{_MANAGER}RemoteLogReaderFetchRateAndTimeMs", "How long requests to the lake took, in ms."
)
TASKS_IDLE = gauge(
    f"{_MANAGER}RemoteLogManagerTasksAvgIdlePercent",
    "The share of the last minute in which nothing was copied, 0 to 1.",
)
FETCHES_EXPIRED = meter(
    "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
    "Reads from the lake that took longer than remote.fetch.max.wait.ms.",
)
LISTINGS_EXPIRED = meter(
    "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
    "Look-ups of offsets in the lake that took longer than remote.list.offsets.request.timeout.ms.",
)
CACHE = {
    "hits": meter(
        f"{_MANAGER}RemoteReadCacheHitsPerSec",
        "Cold reads that the disk cache served.",
        ours=True,
    ),
    "misses": meter(
        f"{_MANAGER}RemoteReadCacheMissesPerSec",
        "Cold reads that were not in the disk cache.",
        ours=True,
    ),
    "size_bytes": gauge(
        f"{_MANAGER}RemoteReadCacheSizeBytes",
        "Bytes in the disk cache of records from the lake.",
        ours=True,
    ),
    "is_off": gauge(
        f"{_MANAGER}RemoteReadCacheOff",
        "1 if the disk cache is off because its disk has failed.",
        ours=True,
    ),
}
_CACHE_TOTALS = ("hits", "misses")
WORKER_STARTS = meter(
    "kafka.server:type=TierWorker,name=StartsPerSec", "Starts of the worker process.", ours=True
)
WORKER_DEATHS = meter(
    "kafka.server:type=TierWorker,name=DeathsPerSec",
    "Deaths of the worker process: ends that the broker did not ask for.",
    ours=True,
)
MISSING = gauge(
    f"{_TOPICS}RemoteMissingOffsets",
    "Tiered offsets of partitions led here that a RESTORE removed from the topic's table.",
    "topic",
    ours=True,
)
FOREIGN_COMMITS = meter(
    f"{_TOPICS}RemoteForeignCommitsPerSec",
    "Commits by other engines that added rows to topics' tables.",
    ours=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSize:
    """What the lake holds of one partition, at the last count."""

    segments: int = 0
    size_bytes: int = 0
    computation_ms: int = 0
    delete_lag_bytes: int = 0
    delete_lag_segments: int = 0


assert tuple(REMOTE_SIZES) == tuple(each.name for each in fields(RemoteSize)), "each is shown"


class ThreadIdleRatio:
    """The idle fraction of a pool of turns: an average over one to two windows."""

    __slots__ = ("_at_s", "_before", "_began_s", "_busy", "_busy_s", "threads")

    WINDOW_SECONDS = 30.0

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._busy = 0
        self._busy_s = 0.0
        self._began_s = self._at_s = 0.0
        self._before: tuple[float, float] = (0.0, 0.0)
        """Of the window before: busy and all seconds."""

    def resize(self, threads: int) -> None:
        """The pool has so many turns from now on."""
        self.threads = threads

    def begin(self, at_s: float) -> None:
        """A turn begins, at `at_s` of a clock that never goes back."""
        self._pass(at_s)
        self._busy += 1

    def end(self, at_s: float) -> None:
        """A turn ends."""
        self._pass(at_s)
        self._busy -= 1

    def idle(self, at_s: float) -> float:
        """The idle fraction, 0 to 1."""
        self._pass(at_s)
        all_s = self._before[1] + self._at_s - self._began_s
        if all_s <= 0:
            return 1.0
        return max(0.0, 1.0 - (self._before[0] + self._busy_s) / (all_s * self.threads))

    def _pass(self, at_s: float) -> None:
        if at_s - self._began_s >= 2 * self.WINDOW_SECONDS:
            # Nothing began or ended for a whole window.
            self._before = (self._busy * self.WINDOW_SECONDS, self.WINDOW_SECONDS)
            self._began_s = self._at_s = at_s
            self._busy_s = 0.0
            return
        self._busy_s += self._busy * (at_s - self._at_s)
        self._at_s = at_s
        if at_s - self._began_s >= self.WINDOW_SECONDS:
            self._before = (self._busy_s, at_s - self._began_s)
            self._began_s, self._busy_s = at_s, 0.0


@dataclass(slots=True, kw_only=True)
class TierMetrics:
    """The totals since the broker started."""

    topics: PerTopic[TierCounters] = field(default_factory=lambda: PerTopic(TierCounters, _METRICS))
    reads_waiting: int = 0
    readers: ThreadIdleRatio = field(default_factory=ThreadIdleRatio)
    copiers: ThreadIdleRatio = field(default_factory=ThreadIdleRatio)
    reader_times: RecentTimes = field(default_factory=RecentTimes)
    fetches_expired: int = 0
    listings_expired: int = 0
    worker_starts: int = 0
    worker_deaths: int = 0
    foreign_commits: int = 0
    cache: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CACHE, 0))
    cache_seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CACHE, 0))
    """What the running worker reported last."""
    remote_sizes: dict[TopicPartition, RemoteSize] = field(default_factory=dict)
    """By topic and partition; only those that were counted."""
    missing: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets by topic and partition, as the last OPTIMIZE saw them."""

    def copied(
        self,
        partition: TopicPartition,
        log_bytes: int,
        lake_bytes: int,
        ranges: int,
        *,
        invalid_bytes: int = 0,
    ) -> None:
        """Ranges of one partition are FINISHED. Its totals are known once it was counted."""
        before = self.remote_sizes.get(partition)
        if before is not None:
            self.remote_sizes[partition] = replace(
                before,
                segments=before.segments + ranges,
                size_bytes=before.size_bytes + log_bytes,
            )
        counters = self.topics.of(partition.topic)
        counters.copy_requests += ranges
        counters.copy_bytes += log_bytes
        counters.lake_bytes += lake_bytes
        counters.copy_invalid_bytes += invalid_bytes

    def copy_failed(self, topic: str | None) -> None:
        """A copy failed, of this topic or as a whole."""
        self._of(topic).copy_errors += 1

    def fetched(self, topic: str, size_bytes: int) -> None:
        """A cold read was answered."""
        counters = self.topics.of(topic)
        counters.fetch_requests += 1
        counters.fetch_bytes += size_bytes

    def cached(self, of_worker: CacheCounts) -> None:
        """Take the worker's counts of its cache since its start."""
        counts = asdict(of_worker)
        is_new = counts["hits"] + counts["misses"] < sum(self.cache_seen[n] for n in _CACHE_TOTALS)
        for name in _CACHE_TOTALS:
            self.cache[name] += counts[name] - (0 if is_new else self.cache_seen[name])
        self.cache["size_bytes"], self.cache["is_off"] = counts["size_bytes"], counts["is_off"]
        self.cache_seen = counts

    def fetch_failed(self, topic: str | None) -> None:
        """A request to the lake failed, perhaps for one topic."""
        self._of(topic).fetch_errors += 1

    def deleted(self, topic: str, segments: int) -> None:
        """Retention removed ranges."""
        self.topics.of(topic).delete_requests += segments

    def delete_failed(self, topic: str) -> None:
        """A step of retention failed."""
        self.topics.of(topic).delete_errors += 1

    def optimized(self, topic: str, requests: int, files: int, size_bytes: int) -> None:
        """Files were replaced by others with the same rows."""
        counters = self.topics.of(topic)
        counters.optimize_requests += requests
        counters.optimize_files += files
        counters.optimize_bytes += size_bytes

    def optimize_failed(self, topic: str) -> None:
        """Files could not be replaced."""
        self.topics.of(topic).optimize_errors += 1

    def _of(self, topic: str | None) -> TierCounters:
        return self.topics.of_none if topic is None else self.topics.of(topic)


def tier_samples(
    metrics: TierMetrics,
    lags: Mapping[str, tuple[int, int, int]],
    missing: Mapping[str, tuple[int, int]],
    now_s: float,
) -> Iterator[MetricSample]:
    """All samples; `lags`: what is not copied yet, by topic; `now_s`: by the clock of `ThreadIdleRatio`."""
    yield from metrics.topics.samples()
    for place, metric in enumerate((LAG_BYTES, LAG_SEGMENTS, COPIES_PAUSED)):
        yield metric, (), sum(lag[place] for lag in lags.values())
        for topic, lag in sorted(lags.items()):
            yield metric, (topic,), lag[place]
    for place, metric in enumerate((DATA_MISSING, OFFSETS_MISSING)):
        yield metric, (), sum(each[place] for each in missing.values())
        for topic, each in sorted(missing.items()):
            yield metric, (topic,), each[place]
    yield from _holding_samples(metrics.remote_sizes)
    yield MISSING, (), sum(metrics.missing.values())
    for topic in sorted({topic for topic, _ in metrics.missing}):
        of_topic = (count for (name, _), count in metrics.missing.items() if name == topic)
        yield MISSING, (topic,), sum(of_topic)
    yield READS_WAITING, (), metrics.reads_waiting
    yield READERS_IDLE, (), metrics.readers.idle(now_s)
    yield TASKS_IDLE, (), metrics.copiers.idle(now_s)
    yield READER_TIMES, (), metrics.reader_times.in_ms()
    yield FETCHES_EXPIRED, (), metrics.fetches_expired
    yield LISTINGS_EXPIRED, (), metrics.listings_expired
    for name, metric in CACHE.items():
        yield metric, (), int(metrics.cache[name])
    yield WORKER_STARTS, (), metrics.worker_starts
    yield WORKER_DEATHS, (), metrics.worker_deaths
    yield FOREIGN_COMMITS, (), metrics.foreign_commits


def _holding_samples(remote_sizes: Mapping[TopicPartition, RemoteSize]) -> Iterator[MetricSample]:
    """The samples of each topic, and of all together."""
    topics = sorted({topic for topic, _ in remote_sizes})
    for name, metric in REMOTE_SIZES.items():
        sums = dict.fromkeys(topics, 0)
        for (topic, _), size in remote_sizes.items():
            sums[topic] += getattr(size, name)
        yield metric, (), sum(sums.values())
        for topic, total in sums.items():
            yield metric, (topic,), total
