"""Pure: the metrics of share coordinators, under Kafka's names.

It reads state and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.coordinator.loads import LoadMetrics
from broker.metrics.names import MetricSample, attribute

if TYPE_CHECKING:
    from broker.coordinator.share.coordinator import ShareCoordinator

_GROUP = "kafka.server:type=share-coordinator-metrics"

LOADS = LoadMetrics(_GROUP, "share partitions", states_are_ours=False)
WRITES = attribute(_GROUP, "write-total", "Writes of the state of share partitions.")
PRUNED = attribute(
    _GROUP,
    "last-pruned-offset",
    "The offset up to which a partition of __share_group_state was last pruned.",
    "topic",
    "partition",
)


def share_coordinator_samples(shares: ShareCoordinator) -> Iterator[MetricSample]:
    """Writes since the broker started, and how far each led partition was pruned."""
    yield WRITES, (), shares.writes
    for context in shares.runtime.begun():
        partition = context.partition
        if context.is_active and context.shard.pruned_to:
            yield (
                PRUNED,
                (partition.topic, str(partition.partition)),
                context.shard.pruned_to,
            )
