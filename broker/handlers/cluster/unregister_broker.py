"""Shell: UnregisterBroker 0: a broker that will not come back is forgotten (KIP-631).

- Answered by the active controller, once it is durable; other brokers send it on.
- BROKER_ID_NOT_REGISTERED: there is none of this number. One that lives registers again by itself.
- Its partitions keep it among their replicas until they are reassigned; it is in no ISR and no ELR any more.

Versions: 0.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


@serves(UnregisterBrokerRequest, versions="0", forwarded=True)
async def unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """Forget the broker."""
    await context.node.controller.decide(lambda c: c.unregister_broker(request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
