"""Shell: EndTxn 0-5: commit or abort a transaction.

- The answer goes out when the decision is committed; markers are as a rule written by then, and are written whatever
  happens after.
- Asked again for what was decided, the answer is NONE once it is complete, CONCURRENT_TRANSACTIONS before; for the
  opposite it is INVALID_TXN_STATE.
- Since version 5 each end raises the producer's epoch and the answer says to what (KIP-890): a request of before that
  comes late is fenced. Abort is then allowed with nothing written.

Versions: 1 is 0; 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 the next producer id and epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.answers import answered
from broker.handlers.transactions.common import told
from broker.registry import RequestContext, serves
from broker.transactions.values import (
    TRANSACTION_VERSION_0,
    TRANSACTION_VERSION_2,
    ProducerIdAndEpoch,
)
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import EndTxnRequest, EndTxnResponse

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

    def refuse(code: ErrorCode) -> EndTxnResponse:
        knows = version >= FIRST_VERSION_WITH_FENCING
        return EndTxnResponse(error_code=told(code, knows_fencing=knows))

    return answered(
        lambda: context.node.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            committed=request.committed,
            client_version=TRANSACTION_VERSION_2 if bumps_epoch else TRANSACTION_VERSION_0,
        ),
        finish,
        refuse,
    )
