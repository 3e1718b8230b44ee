"""Shell: EndTxn 0-5: commits or aborts a transaction.

- The answer goes out when the decision is committed. As a rule the markers are written by then; otherwise they are
  written later in any case.
- Until a decided transaction is complete, the answer is CONCURRENT_TRANSACTIONS, also to a producer that already ends
  its next one. Then a request that repeats the decision gets NONE, one that asks for the opposite INVALID_TXN_STATE.
- From version 5 on each end raises the producer's epoch and the answer has the new one (KIP-890), so that late requests
  with the old epoch are fenced. A producer that has written nothing may then abort, too.

Versions: 1 is 0; 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 the next producer id and epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.transaction_metadata import (
    TRANSACTION_VERSION_0,
    TRANSACTION_VERSION_2,
)
from broker.handlers.responses import answered
from broker.handlers.transactions.common import code_for_client
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import EndTxnRequest, EndTxnResponse

FIRST_VERSION_WITH_FENCING = 2
FIRST_VERSION_WITH_EPOCH_BUMP = 5


@serves(EndTxnRequest, versions="0-5")
def end_txn(
    request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    """Decide the transaction."""
    version = context.header.api_version
    bumps_epoch = version >= FIRST_VERSION_WITH_EPOCH_BUMP

    def finish(producer: ProducerIdAndEpoch) -> EndTxnResponse:
        if not bumps_epoch:
            return EndTxnResponse()
        return EndTxnResponse(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        )

    knows = version >= FIRST_VERSION_WITH_FENCING
    return answered(
        lambda: context.broker.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            committed=request.committed,
            client_transaction_version=TRANSACTION_VERSION_2
            if bumps_epoch
            else TRANSACTION_VERSION_0,
        ),
        finish,
        lambda code: EndTxnResponse(error_code=code_for_client(code, knows_fencing=knows)),
    )
