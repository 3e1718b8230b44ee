"""Shell: DescribeTransactions 0: the states of transactions, by transactional id (KIP-664).

- An unknown id is TRANSACTIONAL_ID_NOT_FOUND, one that is coordinated elsewhere NOT_COORDINATOR.
- Partitions are those of the open transaction; a complete one has none. Topics that the client may not describe are
  left out.
"""

from __future__ import annotations

from broker.coordinator.transaction.transaction_metadata import by_topic
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import sees
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from kafka_ds.protocol.messages.transaction_admin import (
    DescribeTransactionsTopicData,
    DescribeTransactionsTransactionState,
)


@serves(DescribeTransactionsRequest, versions="0")
def describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """Tell of each transactional id."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(each, context) for each in request.transactional_ids]
    )


def _describe(
    transactional_id: str, context: RequestContext
) -> DescribeTransactionsTransactionState:
    if not transactional_id:
        return _refused(transactional_id, ErrorCode.INVALID_REQUEST)
    try:
        found = context.broker.transactions.find(transactional_id)
    except KafkaError as error:
        return _refused(transactional_id, error.code)
    if found is None:
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribeTransactionsTransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.shown,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            DescribeTransactionsTopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(found.partitions).items()
            if sees(context, topic)
        ],
    )


def _refused(transactional_id: str, code: ErrorCode) -> DescribeTransactionsTransactionState:
    """Not derived: where others say -1, Kafka has 0 here."""
    return DescribeTransactionsTransactionState(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
