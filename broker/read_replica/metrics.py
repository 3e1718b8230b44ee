"""Pure: what a read-only broker shows of how far it is behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker.metrics.names import MetricSample, gauge, meter
from kafka_ds.delta.arrivals import Arrival

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
OFFSETS_BEHIND = gauge(
    f"{_BEAN}OffsetsBehind",
    "Offsets of a topic that its leaders have published (lake.offsets.interval.ms) and a broker with lake.read.only "
    "does not serve yet.",
    "topic",
    ours=True,
)
VERSIONS_BEHIND = gauge(
    f"{_BEAN}VersionsBehind",
    "With lake.read.only.replicated: versions of a table of which something has arrived, but not all that they need.",
    "table",
    ours=True,
)
MS_BEHIND = gauge(
    f"{_BEAN}MsBehind",
    "With lake.read.only.replicated: the age of the oldest of these versions; 0 if there is none. What has not arrived "
    "at all is not known.",
    "table",
    ours=True,
)


@dataclass(slots=True)
class FollowerMetrics:
    """The counters of one follower."""

    version: int = -1
    looked_ms: int = 0
    unreadable: int = 0
    failed_looks: int = 0
    offsets_behind: Mapping[str, int] = field(default_factory=dict)
    arrivals: Sequence[Arrival] = ()

    def samples(self, monotonic_ms: int, now_ms: int) -> Iterator[MetricSample]:
        """The samples; `now_ms` is the time of day."""
        yield FOLLOWED_VERSION, (), self.version
        yield SINCE_LOOK, (), monotonic_ms - self.looked_ms
        yield UNREADABLE, (), self.unreadable
        yield FAILED_LOOKS, (), self.failed_looks
        for topic, offsets in self.offsets_behind.items():
            yield OFFSETS_BEHIND, (topic,), offsets
        for each in self.arrivals:
            yield VERSIONS_BEHIND, (each.table,), each.newest - each.version
            waits_ms = max(0, now_ms - each.since_ms) if each.since_ms else 0
            yield MS_BEHIND, (each.table,), waits_ms
