"""Shell: UnregisterBroker 0: removes a broker that will not come back (KIP-631).

- Answered by the active controller, once it is durable; other brokers forward it.
- BROKER_ID_NOT_REGISTERED: there is no broker with this id. A broker that is alive registers again by itself.
- The broker leaves every ISR and ELR, but stays among the replicas of its partitions until they are reassigned.

Versions: 0.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


@serves(UnregisterBrokerRequest, versions="0", forwarded=True)
async def unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """Unregister the broker."""
    await context.broker.metadata_driver.decide(lambda c: c.unregister_broker(request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
