"""Shell: ListTransactions 0-2: the transactional ids that this broker coordinates (KIP-664).

- All filters must match: state, producer id, a minimum time for which the transaction has been open (v1), and an
  expression for the whole transactional id (v2; null or empty matches all). The answer names unknown states; a wrong
  expression is INVALID_REGULAR_EXPRESSION.
- While a partition of `__transaction_state` is being read: COORDINATOR_LOAD_IN_PROGRESS, because the list would be
  incomplete.

Versions: 1 the duration (KIP-994); 2 the expression (KIP-1152), in RE2's syntax as in Kafka.
"""

from __future__ import annotations

from broker.coordinator.transaction.transaction_metadata import BY_NAME
from broker.patterns import matcher
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import ListTransactionsRequest, ListTransactionsResponse
from kafka_ds.protocol.messages.transaction_admin import ListTransactionsTransactionState
from kafka_ds.protocol.refusal import refusal


@serves(ListTransactionsRequest, versions="0-2")
def list_transactions(
    request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List the transactions that this broker coordinates."""
    states = {BY_NAME[name] for name in request.state_filters if name in BY_NAME}
    unknown = [name for name in request.state_filters if name not in BY_NAME]
    producer_ids = set(request.producer_id_filters)
    now_ms = context.broker.clock.now_ms()
    try:
        is_wanted = matcher(request.transactional_id_pattern or ".*")
        found = [
            each
            for each in context.broker.transactions.all()
            if (not request.state_filters or each.state in states)
            and (not producer_ids or each.producer_id in producer_ids)
            and is_wanted(each.transactional_id)
            and (request.duration_filter < 0 or now_ms - each.started_ms > request.duration_filter)
        ]
    except KafkaError as error:
        response = refusal(ListTransactionsResponse, request, error.code)
        response.unknown_state_filters = unknown
        return response
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            ListTransactionsTransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.shown,
            )
            for each in sorted(found, key=lambda each: each.transactional_id)
        ],
    )
