"""Pure: what the handlers of transactions share: errors for old clients, and which partitions are meant.

- No handler is registered here.
- Only newer versions have PRODUCER_FENCED (KIP-588); older ones get INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.transactions import AddPartitionsToTxnTopic
from kafka_ds.protocol.topic_partition import TopicPartition


def code_for_client(code: ErrorCode, *, knows_fencing: bool) -> ErrorCode:
    """The error in a form that the client's version knows."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_fencing:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def partitions_of(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """All partitions that a request names."""
    return [
        TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions
    ]
