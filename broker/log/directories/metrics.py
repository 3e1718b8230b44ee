"""Pure: the metrics of a broker's log directories, under Kafka's names.

It reads state and changes none; it is also asked while logs are still being opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import MetricSample, gauge, histogram

if TYPE_CHECKING:
    from broker.log.directories.log_manager import LogManager

_MANAGER = "kafka.log:type=LogManager,name="

OFFLINE_DIRECTORIES = gauge(
    f"{_MANAGER}OfflineLogDirectoryCount", "Log directories that have failed."
)
DIRECTORY_OFFLINE = gauge(
    f"{_MANAGER}LogDirectoryOffline", "1 where the directory has failed.", "logDirectory"
)
CORDONED_DIRECTORIES = gauge(
    f"{_MANAGER}CordonedLogDirectoryCount", "Log directories that are cordoned."
)
DIRECTORY_CORDONED = gauge(
    f"{_MANAGER}LogDirectoryCordoned", "1 where the directory is cordoned.", "logDirectory"
)
REMAINING = gauge(
    f"{_MANAGER}remainingLogsToRecover", "Logs that are still to be opened at a start.", "dir"
)
LOG_FLUSHES = histogram(
    "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    "How long it took to write a log to the disk (fsync), in ms.",
)
DROPPED_BYTES = gauge(
    f"{_MANAGER}RecoveryDroppedBytes",
    "Bytes that the recovery at the last start has dropped of a damaged log, until the next start.",
    "topic",
    "partition",
    ours=True,
)
DROPPED_OFFSETS = gauge(
    f"{_MANAGER}RecoveryDroppedOffsets",
    "Offsets that the log is known to have held before the last start, and did not hold after its recovery: by the "
    "batches that were dropped, the recovery point and the checkpointed high watermark.",
    "topic",
    "partition",
    ours=True,
)
INVALID_MESSAGE_BYTES = gauge(
    "kafka.log:type=Log,name=InvalidMessageBytes",
    "Bytes of the log that cannot be read, for what is before them is no message, as far as a reader has tried since "
    "the start.",
    "topic",
    "partition",
    ours=True,
)


def log_samples(manager: LogManager) -> Iterator[MetricSample]:
    """Gauges of the log directories, and the times of flushes."""
    yield LOG_FLUSHES, (), manager.flush_times.in_ms()
    failures = manager.failures
    yield OFFLINE_DIRECTORIES, (), sum(error is not None for error in failures.values())
    yield CORDONED_DIRECTORIES, (), len(manager.cordoned_log_dirs)
    for path, error in failures.items():
        yield DIRECTORY_OFFLINE, (path,), int(error is not None)
        yield DIRECTORY_CORDONED, (path,), int(path in manager.cordoned_log_dirs)
    for path, count in manager.remaining_to_load.items():
        yield REMAINING, (path,), count
    for (topic, partition), (size_bytes, offsets) in manager.recovery_losses.items():
        yield DROPPED_BYTES, (topic, str(partition)), size_bytes
        yield DROPPED_OFFSETS, (topic, str(partition)), offsets
    for log in manager.logs():
        if size_bytes := log.invalid_message_bytes:
            yield INVALID_MESSAGE_BYTES, (log.topic, str(log.partition)), size_bytes
