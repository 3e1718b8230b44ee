"""Shell: InitProducerId 0-5 for idempotent producers.

- A producer without a transactional id gets an id that nobody ever had, with epoch 0, whatever it had before:
  in Kafka, too, only transactional producers keep theirs.
- Id and epoch of before (v3+) come together or not at all, else INVALID_REQUEST.
- Ids come from durable blocks of 1000 (KIP-730): a restart or a crash never hands one out twice. While no block can
  be made durable the answer is COORDINATOR_NOT_AVAILABLE, which clients retry.

Versions: 1 is 0; 2 flexible; 3 the id and epoch of before (KIP-360); 4 PRODUCER_FENCED; 5 TRANSACTION_ABORTABLE.
Left out: transactional ids. They are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the one error at which every
client gives up and says so; COORDINATOR_NOT_AVAILABLE would be retried for ever, and the clients do not agree on
what UNSUPPORTED_VERSION here means.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.cluster.producer_ids import ProducerIds
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import InitProducerIdRequest, InitProducerIdResponse

NONE = -1


@serves(InitProducerIdRequest, versions="0-5")
def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Give the producer an id."""
    if request.transactional_id is not None:
        return refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return refuse(ErrorCode.INVALID_REQUEST)
    producer_ids = context.node.producer_ids
    taken = producer_ids.take()
    if taken is None:
        return _wait(producer_ids)
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


def refuse(code: ErrorCode) -> InitProducerIdResponse:
    """No id, and why."""
    return InitProducerIdResponse(error_code=code, producer_epoch=NONE)


async def _wait(producer_ids: ProducerIds) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=await producer_ids.next(), producer_epoch=0)
    except KafkaError:
        return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
