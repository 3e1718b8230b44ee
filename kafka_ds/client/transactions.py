"""Shell: requests to a transaction coordinator: InitProducerId, AddPartitionsToTxn, EndTxn, ListTransactions.

It uses the first transaction protocol (KIP-98), in which partitions are added explicitly and EndTxn does not bump the
epoch. So any process that knows the transactional id, producer id and epoch can end a transaction, also repeatedly.
Retriable errors are retried; others are raised as KafkaError.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from kafka_ds.client.cluster import Cluster, CoordinatorType
from kafka_ds.client.connection import Connection
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka_ds.protocol.messages.transactions import AddPartitionsToTxnTopic
from kafka_ds.protocol.topic_partition import TopicPartition

__all__ = ["Identity", "Transactions"]

PATTERN_VERSION: Final = 2  # KIP-1152
# The last versions of the first protocol; in the second, partitions are added implicitly (KIP-890).
ADD_PARTITIONS_VERSION_MAX: Final = 3
END_VERSION_MAX: Final = 4
_OPEN_STATE: Final = "Ongoing"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A producer id and epoch."""

    producer_id: int
    epoch: int


class Transactions:
    """The coordinators of a cluster's transactions. Not for use by several threads at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(self, transactional_id: str | None, timeout_ms: int) -> Identity:
        """A producer id and epoch; fences the former producer of this transactional id and aborts its transaction.

        Without a transactional id: the id of an idempotent producer, which is never fenced.
        """

        def attempt(connection: Connection) -> Identity:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            answer = connection.call(request, InitProducerIdResponse)
            what = f"InitProducerId (kafka.transaction.timeout.ms={timeout_ms})"
            _check(answer.error_code, what, transactional_id)
            return Identity(producer_id=answer.producer_id, epoch=answer.producer_epoch)

        if transactional_id is None:
            return self._cluster.persist(
                "InitProducerId", lambda: attempt(self._cluster.any_broker())
            )
        return self._cluster.coordinated(
            CoordinatorType.TRANSACTION, transactional_id, "InitProducerId", attempt
        )

    def add(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions to the transaction; the first call begins it."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            by_topic.setdefault(topic, []).append(partition)

        def attempt(connection: Connection) -> None:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                    for topic, numbers in by_topic.items()
                ],
            )
            answer = connection.call(
                request, AddPartitionsToTxnResponse, ADD_PARTITIONS_VERSION_MAX
            )
            codes = [
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            # OPERATION_NOT_ATTEMPTED follows from another partition's error, which comes first here.
            codes.sort(key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)
            for code in codes:
                _check(code, "AddPartitionsToTxn", transactional_id)

        self._cluster.coordinated(
            CoordinatorType.TRANSACTION, transactional_id, "AddPartitionsToTxn", attempt
        )

    def end(self, transactional_id: str, identity: Identity, *, committed: bool) -> None:
        """Commit or abort the transaction; repeating it has no effect.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING if another producer has
                used the id or the transaction timed out; INVALID_TXN_STATE if it ended with the other result, or is
                empty.
        """

        def attempt(connection: Connection) -> None:
            request = EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=committed,
            )
            answer = connection.call(request, EndTxnResponse, END_VERSION_MAX)
            _check(answer.error_code, "EndTxn", transactional_id)

        self._cluster.coordinated(CoordinatorType.TRANSACTION, transactional_id, "EndTxn", attempt)

    def open_ids(self, prefix: str) -> set[str]:
        """The transactional ids with this prefix that have an open transaction (KIP-664).

        Raises:
            UnsupportedByBroker: a broker before Kafka 3.0.
        """

        def attempt() -> set[str]:
            found: set[str] = set()
            for address in self._cluster.addresses().values():
                connection = self._cluster.connection(address)
                request = ListTransactionsRequest(
                    state_filters=[_OPEN_STATE], producer_id_filters=[]
                )
                if connection.version_of(ListTransactionsRequest) >= PATTERN_VERSION:
                    request.transactional_id_pattern = re.escape(prefix) + ".*"
                answer = connection.call(request, ListTransactionsResponse)
                _check(answer.error_code, "ListTransactions", prefix)
                found.update(state.transactional_id for state in answer.transaction_states)
            return {name for name in found if name.startswith(prefix)}

        return self._cluster.persist("ListTransactions", attempt)


def _check(code: int, what: str, transactional_id: str | None) -> None:
    if code:
        raise KafkaError(ErrorCode(code), f"{what} of transactional id {transactional_id!r}")
