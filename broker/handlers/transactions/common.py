"""Pure: what the handlers of transactions have in common: what old clients are told, which partitions are meant.

Rules of this file:
- No handler is registered here.
- PRODUCER_FENCED (KIP-588) is known to newer versions only; older ones hear INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.transactions.values import TopicPartition
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages.transactions import AddPartitionsToTxnTopic


def told(code: ErrorCode, *, knows_fencing: bool) -> ErrorCode:
    """The error in a form that the client's version knows."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_fencing:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def partitions_of(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """All partitions that a request names."""
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
