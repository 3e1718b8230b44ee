"""Pure: what a read-only broker shows of how far it is behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.metrics.names import MetricSample, gauge, meter

_BEAN = "kafka.server:type=ReadReplica,name="

FOLLOWED_VERSION = gauge(
    f"{_BEAN}MetadataVersion",
    "The last version of __cluster_metadata that a broker with lake.read.only follows.",
    ours=True,
)
SINCE_LOOK = gauge(
    f"{_BEAN}MsSinceLastLook",
    "Milliseconds since a broker with lake.read.only has last looked through the whole lake; it grows while the store "
    "does not answer.",
    ours=True,
)
UNREADABLE = gauge(
    f"{_BEAN}UnreadablePartitionCount",
    "Partitions whose tables a broker with lake.read.only could not read when it last looked.",
    ours=True,
)
FAILED_LOOKS = meter(
    f"{_BEAN}FailedLooksPerSec",
    "Looks at the lake of a broker with lake.read.only that failed.",
    ours=True,
)


@dataclass(slots=True)
class FollowerMetrics:
    """The counters of one follower."""

    version: int = -1
    looked_ms: int = 0
    unreadable: int = 0
    failed_looks: int = 0

    def samples(self, now_ms: int) -> Iterator[MetricSample]:
        """The samples; `now_ms` is the monotonic clock's."""
        yield FOLLOWED_VERSION, (), self.version
        yield SINCE_LOOK, (), now_ms - self.looked_ms
        yield UNREADABLE, (), self.unreadable
        yield FAILED_LOOKS, (), self.failed_looks
