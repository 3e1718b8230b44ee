"""Shell: why rows of a plan are not where it expected them: lost, or elsewhere by now.

The brokers are asked. Of a removed file, rows of a deleted topic are lost, and those below a partition's log start; all
others may be in other files, as after OPTIMIZE: to leave them out would hide them. A tiered log is compacted only where
the table has it (docs/decisions/0019-tables-of-compacted-topics.md): so records that are neither in the planned version
of the table nor in the log were removed since, and a newer version has them. Gaps in what leaders serve from the lake
have other reasons: nothing is compacted there.
"""

from __future__ import annotations

from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.cluster_pool import pooled_cluster
from kafka_ds.client.fetch import Range
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import ClientError, PlanGone, TopicGone
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages.offsets import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import same_topic
from kafka_ds.source.filters.intervals import HIGHEST, LOWEST

__all__ = ["lost_below", "refuse_compacted"]

ALL_LOST: Final = HIGHEST
NONE_KNOWN: Final = LOWEST


def lost_below(client: ClientSettings, tp: TopicPartition, topic_id: bytes) -> int:
    """Below which offset a partition's rows are lost, as far as brokers know."""
    try:
        with pooled_cluster(client) as cluster:
            known = cluster.topics([tp.topic]).get(tp.topic)
            if known is None or not same_topic(known.topic_id, topic_id):
                return ALL_LOST
            return cluster.offsets({tp: EARLIEST}, read_committed=False)[tp].offset
    except TopicGone:
        return ALL_LOST
    except (ClientError, KafkaError):
        return NONE_KNOWN


def refuse_compacted(cluster: Cluster, span: Range, gap: int) -> None:
    """To be called once the range was read, with the first offset that was not there.

    Raises:
        PlanGone: compaction has taken records of the range since it was planned.
    """
    tp = span.topic_partition

    def offset_of(question: int) -> int:
        return cluster.offsets({tp: question}, read_committed=False)[tp].offset

    if gap < span.end and offset_of(EARLIEST_LOCAL) <= gap <= offset_of(LATEST_TIERED):
        raise PlanGone(
            f"{span}: from offset {gap} on the log was compacted since the query was planned, and the table has what "
            "is missing; run the query again"
        )
