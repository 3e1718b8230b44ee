"""Shell: InitProducerId 0-6: a producer id, for idempotent and for transactional producers.

- A producer without a transactional id always gets a new producer id with epoch 0: in Kafka, too, only transactional
  producers keep theirs.
- A transactional id keeps its producer id, and each InitProducerId raises the epoch, which fences earlier producers. An
  open transaction is aborted first: CONCURRENT_TRANSACTIONS, until the markers are written.
- A producer may send its present id and epoch (v3+), both or none, else INVALID_REQUEST. If they are neither the
  present nor the last ones, it is fenced (PRODUCER_FENCED).
- Ids come from durable blocks of 1000 (KIP-730), so that no id is given twice after a restart or a crash. While no
  block can be made durable the answer is COORDINATOR_NOT_AVAILABLE, which clients retry.

Versions: 1 is 0; 2 flexible; 3 the present id and epoch (KIP-360); 4 PRODUCER_FENCED; 5 TRANSACTION_ABORTABLE; 6,
which Kafka 4.4 calls unstable: two-phase commit (KIP-939), of which Kafka refuses to keep a prepared transaction, too.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.coordinator.result import ProducerIdAndEpoch
from broker.handlers.responses import answered
from broker.handlers.transactions.common import code_for_client
from broker.membership.producer_ids import ProducerIds
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

NONE = -1
FIRST_VERSION_WITH_FENCING = 4


@serves(InitProducerIdRequest, versions="0-6", unstable=True)
def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Give the producer an id."""
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _transactional(request, request.transactional_id, context)
    producer_ids = context.broker.producer_ids
    producer_id = producer_ids.claim_next()
    if producer_id is None:
        return _wait(producer_ids)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _transactional(
    request: InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    expected = None
    if request.producer_id != NONE:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    knows = context.header.api_version >= FIRST_VERSION_WITH_FENCING
    return answered(
        lambda: context.broker.transactions.init_producer_id(
            transactional_id,
            request.transaction_timeout_ms,
            expected,
            two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        ),
        lambda producer: InitProducerIdResponse(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        ),
        lambda code: InitProducerIdResponse(
            error_code=code_for_client(code, knows_fencing=knows), producer_epoch=NONE
        ),
    )


async def _wait(producer_ids: ProducerIds) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=await producer_ids.next(), producer_epoch=0)
    except KafkaError:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
