"""Pure: the metrics of this broker's write-ahead log of diskless topics."""

from __future__ import annotations

from collections.abc import Iterator

from broker.metrics.names import MetricSample, gauge, histogram, meter
from broker.metrics.times import RecentTimes

_WAL = "kafka.server:type=DisklessWal,name="

PUTS = meter(f"{_WAL}PutsPerSec", "Objects put into the write-ahead log.", ours=True)
BYTES = meter(f"{_WAL}BytesPerSec", "Bytes of these objects.", ours=True)
ERRORS = meter(
    f"{_WAL}PutErrorsPerSec", "Puts that the store did not answer; they are tried again.", ours=True
)
PUT_TIME = histogram(
    f"{_WAL}PutTimeMs", "How long a put takes, failed attempts included.", ours=True
)
BUFFERED = gauge(f"{_WAL}BufferedBytes", "Bytes appended that are not in the store yet.", ours=True)
AWAY = gauge(
    f"{_WAL}StoreAwayMs",
    "For how long puts are under way and none has succeeded; 0 below a second.",
    ours=True,
)
OBJECTS = gauge(f"{_WAL}ObjectCount", "Objects of the write-ahead log that are needed.", ours=True)
ERASED = meter(f"{_WAL}ErasedPerSec", "Objects erased because nobody needs them.", ours=True)
FENCED = meter(
    f"{_WAL}FencedPerSec",
    "Partitions whose leader here met the fence of another broker in the write-ahead log.",
    ours=True,
)
TAKE_OVERS = meter(
    f"{_WAL}TakeOversPerSec", "Diskless partitions that this broker has taken over.", ours=True
)
DATA_MISSING = gauge(
    f"{_WAL}DataMissingPartitionCount",
    "Diskless partitions that this broker does not lead, because acknowledged records are neither in the table nor in "
    "write-ahead logs.",
    ours=True,
)


class WalMetrics:
    """What is counted."""

    def __init__(self) -> None:
        self._incomplete = 0
        self.puts = self.bytes = self.errors = self.erased = self.fenced = self.take_overs = 0
        self.put_times = RecentTimes()

    def found_incomplete(self, partitions: int) -> None:
        """So many partitions are not led now because records are missing."""
        self._incomplete = partitions

    def samples(
        self, *, buffered_bytes: int, away_ms: int, object_count: int
    ) -> Iterator[MetricSample]:
        """The metrics of a write-ahead log in this state."""
        yield PUTS, (), self.puts
        yield BYTES, (), self.bytes
        yield ERRORS, (), self.errors
        yield PUT_TIME, (), self.put_times.in_ms()
        yield BUFFERED, (), buffered_bytes
        yield AWAY, (), away_ms
        yield OBJECTS, (), object_count
        yield ERASED, (), self.erased
        yield FENCED, (), self.fenced
        yield TAKE_OVERS, (), self.take_overs
        yield DATA_MISSING, (), self._incomplete
