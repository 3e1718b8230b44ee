"""Pure: the metrics of share groups' partitions and sessions, under Kafka's names.

It reads state and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.metrics.names import MetricSample, gauge, histogram, meter
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
BATCH_RECORDS = histogram(
    f"{_PARTITION}InFlightBatchMessageCount",
    "Records of the batches that members acquired for the first time.",
    *_LABELS,
)
LOCK_TIMES = histogram(
    f"{_PARTITION}FetchLockTimeMs",
    "How long fetches read for a share partition, in ms: no other fetch can meanwhile.",
    *_LABELS,
)
LOCK_RATIO = histogram(
    f"{_PARTITION}FetchLockRatio",
    "This time, in percent of the time since the fetch before it had ended.",
    *_LABELS,
)
EXPIRED = meter(
    f"{_PARTITION}AcquisitionLockTimeoutPerSec", "Records whose acquisition lock has expired."
)
ACKNOWLEDGED = meter(
    f"{_GROUP}RecordAcknowledgementsPerSec",
    "Records that members of share groups have acknowledged, by type.",
    "ackType",
)
LOAD_TIMES = histogram(
    f"{_GROUP}PartitionLoadTimeMs",
    "How long it took to load share partitions from their coordinator, in ms.",
)
FETCH_RATIO = histogram(
    f"{_GROUP}RequestTopicPartitionsFetchRatio",
    "Partitions that a ShareFetch could read, in percent of those that it asked for.",
    "group",
)
ACQUIRE_TIMES = histogram(
    f"{_GROUP}TopicPartitionsAcquireTimeMs",
    "How long ShareFetches waited until they could read partitions, in ms.",
    "group",
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
        yield BATCH_RECORDS, labels, led.times.batch_records.in_ms()
        yield LOCK_TIMES, labels, led.times.lock_times.in_ms()
        yield LOCK_RATIO, labels, led.times.lock_ratio.in_ms()
    yield LOAD_TIMES, (), shares.load_times.in_ms()
    for group_id, times in tuple(shares.fetch_times.items()):
        yield ACQUIRE_TIMES, (group_id,), times.acquire_times.in_ms()
        yield FETCH_RATIO, (group_id,), times.fetch_ratio.in_ms()
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
