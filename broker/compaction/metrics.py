"""Pure: the metrics of log compaction, under Kafka's names.

As in Kafka the values of each thread's last run are kept and their maximum is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker.metrics.names import MetricSample, gauge

_CLEANER = "kafka.log:type=LogCleaner,name="
_MANAGER = "kafka.log:type=LogCleanerManager,name="

BUFFER_USED = gauge(
    f"{_CLEANER}max-buffer-utilization-percent",
    "The used share of log.cleaner.dedupe.buffer.size in the last run.",
)
RECOPIED = gauge(
    f"{_CLEANER}cleaner-recopy-percent", "The share of bytes that the last runs rewrote."
)
CLEAN_TIME = gauge(f"{_CLEANER}max-clean-time-secs", "The duration of the last run, in seconds.")
DELAY = gauge(
    f"{_CLEANER}max-compaction-delay-secs",
    "The longest time by which a log exceeds max.compaction.lag.ms, in seconds.",
)
DEAD_THREADS = gauge(f"{_CLEANER}DeadThreadCount", "Cleaner threads that ended with an error.")
UNCLEANABLE = gauge(
    f"{_MANAGER}uncleanable-partitions-count",
    "Partitions that are no longer cleaned because cleaning failed.",
    "logDirectory",
)
UNCLEANABLE_BYTES = gauge(
    f"{_MANAGER}uncleanable-bytes",
    "Cleanable bytes of partitions that are no longer cleaned because cleaning failed.",
    "logDirectory",
)
DIRTIEST = gauge(f"{_MANAGER}max-dirty-percent", "The share of dirty bytes of the dirtiest log.")
SINCE_LAST_RUN = gauge(
    f"{_MANAGER}time-since-last-run-ms", "Milliseconds since logs were last checked for cleaning."
)


@dataclass(slots=True, kw_only=True)
class RunCounters:
    """The counters of a thread's last run."""

    bytes_read: int = 0
    bytes_written: int = 0
    buffer_used: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class CleanerMetrics:
    """The state behind the metrics, since the broker started."""

    runs: dict[int, RunCounters] = field(default_factory=dict)
    """By thread."""
    dirtiest_ratio: float = 0.0
    overdue_ms: int = 0
    last_look_ms: int = 0
    dead_threads: int = 0

    def samples(
        self, now_ms: int, uncleanable: Mapping[str, tuple[int, int]]
    ) -> Iterator[MetricSample]:
        """`uncleanable`: the number of such partitions and their bytes, by log directory."""
        runs = list(self.runs.values())
        read = sum(run.bytes_read for run in runs)
        written = sum(run.bytes_written for run in runs)
        used = max((run.buffer_used for run in runs), default=0.0)
        yield BUFFER_USED, (), int(100 * used)
        yield RECOPIED, (), int(100 * written / read) if read else 0
        yield CLEAN_TIME, (), int(max((run.seconds for run in runs), default=0.0))
        yield DELAY, (), self.overdue_ms // 1000
        yield DEAD_THREADS, (), self.dead_threads
        yield DIRTIEST, (), int(100 * self.dirtiest_ratio)
        yield SINCE_LAST_RUN, (), now_ms - self.last_look_ms
        for directory, (count, size) in uncleanable.items():
            yield UNCLEANABLE, (directory,), count
            yield UNCLEANABLE_BYTES, (directory,), size
