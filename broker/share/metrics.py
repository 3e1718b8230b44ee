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
_GROUP = "kafka.server:type=ShareGroupMetrics,name="
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
    f"{_GROUP}RecordAcknowledgementsPerSec",
    "Records that members of share groups have acknowledged, by type.",
    "ackType",
)
DEAD_LETTERS = meter(
    f"{_GROUP}DeadLetterQueueRecordCount",
    "Dead letters of a share group that were written.",
    "group",
)
DEAD_LETTER_REQUESTS = meter(
    f"{_GROUP}DeadLetterQueueTotalProduceRequestsPerSec",
    "Produce requests with dead letters of a share group.",
    "group",
)
DEAD_LETTERS_FAILED = meter(
    f"{_GROUP}DeadLetterQueueFailedProduceRequestsPerSec",
    "Times that dead letters of a share group could not be written, or to a topic that may not be used.",
    "group",
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
    queue = shares.dead_letters
    for metric, counted in (
        (DEAD_LETTERS, queue.records),
        (DEAD_LETTER_REQUESTS, queue.requests),
        (DEAD_LETTERS_FAILED, queue.failed),
    ):
        for group_id, number in counted.items():
            yield metric, (group_id,), number
    yield SESSIONS, (), len(shares.sessions)
    yield PARTITIONS, (), sum(len(each.partitions) for each in shares.sessions)
    yield EVICTIONS, (), shares.sessions.evictions
