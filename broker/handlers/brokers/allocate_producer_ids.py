"""Shell: AllocateProducerIds 0: a block of producer ids for a broker to give to its clients (KIP-730).

- Answered by the active controller, once the block is durable: NOT_CONTROLLER elsewhere. A lost answer wastes a
  block; there are 2**53.
- BROKER_ID_NOT_REGISTERED: no broker of this cluster. STALE_BROKER_EPOCH: not the broker's last registration.

Versions: 0.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


@serves(AllocateProducerIdsRequest, versions="0", internal=True, pipelined=True)
async def allocate_producer_ids(
    request: AllocateProducerIdsRequest, context: RequestContext
) -> AllocateProducerIdsResponse:
    """Give the next block."""
    driver = context.broker.metadata_driver
    if driver.is_active:
        registered = driver.image.brokers.get(request.broker_id)
        if registered is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if registered.broker_epoch != request.broker_epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
    block = await driver.decide(lambda c: c.allocate_producer_ids(request.broker_id))
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
