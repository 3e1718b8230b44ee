"""Shell: what it means that a leader lacks offsets of a plan: its log was compacted before, or since.

Rules of this file: a log that is a table's is compacted only where the table has it
(docs/decisions/0019-tables-of-compacted-topics.md). So records that are neither in the version of the table that was
planned with nor in the log were taken since, and a newer version has them. Where the table does not reach yet, they
went before it began, as they do from other compacted logs. What leaders serve from the lake has gaps for other
reasons: there nothing is compacted.
"""

from __future__ import annotations

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.fetch import Range
from kafka_ds.errors import PlanGone
from kafka_ds.protocol.messages.offsets import EARLIEST_LOCAL, LATEST_TIERED


def refuse_compacted(cluster: Cluster, span: Range, gap: int) -> None:
    """To be called once the range was read, with the first offset that was not there.

    Raises:
        PlanGone: compaction has taken records of the range since it was planned.
    """
    key = (span.topic, span.partition)

    def ask(question: int) -> int:
        return cluster.offsets({key: question}, read_committed=False)[key].offset

    if gap < span.end and ask(EARLIEST_LOCAL) <= gap <= ask(LATEST_TIERED):
        raise PlanGone(
            f"{span}: from offset {gap} on the log was compacted since the query was planned, and the table has what "
            "is missing; run the query again"
        )
