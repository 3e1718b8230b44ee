"""Pure: the metrics of share groups' partitions and sessions, under Kafka's names.

It reads state and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import MetricSample, gauge, meter
from broker.share.share_partition import AcknowledgeType

if TYPE_CHECKING:
    from broker.share.share_partition_manager import SharePartitionManager

_PARTITION = "kafka.server:type=SharePartitionMetrics,name="
_SESSIONS = "kafka.server:type=ShareSessionCache,name="
_LABELS = ("group", "topic", "partition")

IN_FLIGHT = gauge(
    f"{_PARTITION}InFlightMessageCount",
    "Records of a share partition from its start offset to the last one that was delivered.",
    *_LABELS,
)
BATCHES = gauge(
    f"{_PARTITION}InFlightBatchCount", "Runs of these records that are in one state.", *_LABELS
)
EXPIRED = meter(
    f"{_PARTITION}AcquisitionLockTimeoutPerSec", "Records whose acquisition lock has expired."
)
ACKNOWLEDGED = meter(
    "kafka.server:type=ShareGroupMetrics,name=RecordAcknowledgementsPerSec",
    "Records that members of share groups have acknowledged, by type.",
    "ackType",
)
SESSIONS = gauge(f"{_SESSIONS}ShareSessionsCount", "Share sessions of this broker.")
PARTITIONS = gauge(f"{_SESSIONS}SharePartitionsCount", "Partitions in these sessions.")
EVICTIONS = meter(
    f"{_SESSIONS}ShareSessionEvictionsPerSec", "Share sessions that made room for others."
)


def share_partition_samples(shares: SharePartitionManager) -> Iterator[MetricSample]:
    """Records in flight of each share partition, acknowledgements, expired locks, and sessions."""
    for led in shares:
        labels = led.group_id, led.leader.topic, str(led.leader.partition)
        yield IN_FLIGHT, labels, led.machine.in_flight
        yield BATCHES, labels, sum(1 for _ in led.machine)
    yield EXPIRED, (), shares.expired_locks
    for kind in AcknowledgeType:
        if kind is not AcknowledgeType.GAP:
            yield ACKNOWLEDGED, (kind.name.capitalize(),), shares.acknowledged[kind]
    yield SESSIONS, (), len(shares.sessions)
    yield PARTITIONS, (), sum(len(each.partitions) for each in shares.sessions)
    yield EVICTIONS, (), shares.sessions.evictions
