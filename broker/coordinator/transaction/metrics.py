"""Pure: the metrics of transactions, under Kafka's names.

It reads state and changes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.coordinator.loads import LoadMetrics
from broker.coordinator.transaction.transaction_metadata import TransactionState
from broker.metrics.names import MetricSample, gauge

if TYPE_CHECKING:
    from broker.coordinator.transaction.coordinator import TransactionCoordinator
    from broker.replica.leader.partition import LeaderPartition

LOADS = LoadMetrics(
    "kafka.server:type=transaction-coordinator-metrics", "transactions", states_are_ours=True
)
_MARKERS = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name="
MARKERS_LEFT = gauge(
    f"{_MARKERS}UnknownDestinationQueueSize",
    "Markers of PrepareCommit and PrepareAbort transactions that could not be written to their partitions yet.",
)
ENDS_LEFT = gauge(
    f"{_MARKERS}LogAppendRetryQueueSize",
    "Transactions with all markers written whose completion could not be written yet.",
)
TRANSACTIONS = gauge(
    "kafka.coordinator.transaction:type=TransactionMetadataManager,name=NumTransactions",
    "Transactional ids that this broker coordinates, by state.",
    "state",
    ours=True,
)
LATE = gauge(
    "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount",
    "Led partitions with a transaction that is idle for more than transaction.max.timeout.ms plus five minutes.",
)
LATE_AFTER_MS = 5 * 60_000


def transaction_samples(transactions: TransactionCoordinator) -> Iterator[MetricSample]:
    """Transactional ids by state, and the pending work of decided transactions."""
    states: Counter[TransactionState] = Counter()
    for context in transactions.runtime.begun():
        states.update(each.state for each in context.shard)
    yield MARKERS_LEFT, (), transactions.marker_channel.markers_left
    yield ENDS_LEFT, (), transactions.marker_channel.ends_left
    for state in TransactionState:
        if state.is_in_log:
            yield TRANSACTIONS, (state.shown,), states[state]


def late_samples(
    partitions: Iterable[LeaderPartition], *, now_ms: int, max_timeout_ms: int
) -> Iterator[MetricSample]:
    """Partitions whose last stable offset hangs (KIP-664)."""
    since_ms = now_ms - max_timeout_ms - LATE_AFTER_MS
    late = sum(
        any(
            producer.transaction_start >= 0 and producer.last_timestamp_ms < since_ms
            for _, producer in partition.log.producers
        )
        for partition in partitions
    )
    yield LATE, (), late
