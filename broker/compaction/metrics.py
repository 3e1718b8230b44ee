"""Pure: the metrics of compaction, under Kafka's names.

Values of the last run are kept for each thread and the maximum is shown, as in Kafka; it reads state and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker.metrics.names import Sample, gauge

_CLEANER = "kafka.log:type=LogCleaner,name="
_MANAGER = "kafka.log:type=LogCleanerManager,name="

BUFFER_USED = gauge(
    f"{_CLEANER}max-buffer-utilization-percent",
    "How full log.cleaner.dedupe.buffer.size was in the last run.",
)
RECOPIED = gauge(
    f"{_CLEANER}cleaner-recopy-percent", "The share of bytes that the last runs wrote again."
)
CLEAN_TIME = gauge(f"{_CLEANER}max-clean-time-secs", "How long the last run took.")
DELAY = gauge(
    f"{_CLEANER}max-compaction-delay-secs",
    "For how long a log has exceeded max.compaction.lag.ms at most.",
)
DEAD_THREADS = gauge(f"{_CLEANER}DeadThreadCount", "Cleaners that have ended by a mistake.")
UNCLEANABLE = gauge(
    f"{_MANAGER}uncleanable-partitions-count",
    "Partitions that are not cleaned any more because that failed.",
    "logDirectory",
)
UNCLEANABLE_BYTES = gauge(
    f"{_MANAGER}uncleanable-bytes",
    "Cleanable bytes of partitions whose cleaning failed and has stopped.",
    "logDirectory",
)
DIRTIEST = gauge(f"{_MANAGER}max-dirty-percent", "The share of dirty bytes of the dirtiest log.")
SINCE_LAST_RUN = gauge(
    f"{_MANAGER}time-since-last-run-ms", "Milliseconds since logs were last checked for cleaning."
)


@dataclass(slots=True, kw_only=True)
class RunCounters:
    """The last run of one thread."""

    bytes_read: int = 0
    bytes_written: int = 0
    buffer_used: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class CleanerMetrics:
    """What was seen since the broker started."""

    runs: dict[int, RunCounters] = field(default_factory=dict)
    """By thread."""
    dirtiest_ratio: float = 0.0
    overdue_ms: int = 0
    last_look_ms: int = 0
    dead_threads: int = 0

    def samples(self, now_ms: int, uncleanable: Mapping[str, tuple[int, int]]) -> Iterator[Sample]:
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
