"""Shell: whether a transactional write belongs to an open transaction, asked before it is appended (KIP-890).

Rules of this file:
- Asked, answered and appended in one turn of the event loop: no decision can come in between, so no write can arrive
  behind the marker that ends its transaction and stay open for ever.
- A log in which the producer's transaction is open already needs no question.
- Newer clients join by writing. Where the record of that is not committed yet the write is NOT_ENOUGH_REPLICAS:
  it is sent again in a moment, and waiting here would let the producer's next batches overtake it.
- What the coordinator says is put in words that the client's version retries or gives up at.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum

from broker.replica.hosted import HostedPartition
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.values import (
    TRANSACTION_VERSION_2,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kafka_ds.wire.errors import ErrorCode, KafkaError


class Support(IntEnum):
    """What a client's version knows of KIP-890."""

    NOTHING = 0
    ABORTABLE = 1
    """The error TRANSACTION_ABORTABLE."""
    JOINS = 2
    """That a write joins the transaction."""


def support_of(version: int, first_that_joins: int) -> Support:
    """What a version knows; the one before the first that joins knows the error."""
    if version >= first_that_joins:
        return Support.JOINS
    return Support.ABORTABLE if version == first_that_joins - 1 else Support.NOTHING


# The coordinator cannot answer now: a write that is retried.
_NOT_NOW = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def join_transaction(
    transactions: TransactionCoordinator,
    partition: HostedPartition,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    support: Support,
) -> None:
    """Let a write pass that belongs to its producer's open transaction; raises KafkaError for others."""
    if partition.log.producers.is_in_transaction(producer.producer_id, producer.producer_epoch):
        return
    where = TopicPartition(partition.topic, partition.index)
    try:
        if support is not Support.JOINS:
            transactions.verify(transactional_id, producer, where)
            return
        answer = transactions.add_partitions(
            transactional_id, producer, [where], client_version=TRANSACTION_VERSION_2
        )
    except KafkaError as error:
        raise KafkaError(_told(error.code, support), error.message) from None
    if isinstance(answer, asyncio.Future):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "joining the transaction")


def _told(code: ErrorCode, support: Support) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is Support.NOTHING:
        return ErrorCode.INVALID_TXN_STATE
    if code in _NOT_NOW:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and support is not Support.JOINS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
