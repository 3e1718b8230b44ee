"""Shell: BrokerHeartbeat 0-2: a broker is alive, has caught up, or wants to stop (KIP-631).

- Answered by the active controller: NOT_CONTROLLER elsewhere. If a heartbeat changes something (fencing, moved
  leaders), the change is durable before the answer; otherwise the answer does not wait for the store.
- STALE_BROKER_EPOCH: not the broker's last registration.

Versions: 1 failed log directories (KIP-858), of which some only are full (kafka-ds only); 2 cordoned ones (KIP-1066).
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse


@serves(BrokerHeartbeatRequest, versions="0-2", internal=True, pipelined=True)
async def broker_heartbeat(
    request: BrokerHeartbeatRequest, context: RequestContext
) -> BrokerHeartbeatResponse:
    """Receive a broker's heartbeat, and answer its state."""
    broker = context.broker
    now_ms = broker.clock.monotonic_ms()
    reply = await broker.metadata_driver.decide(
        lambda c: c.heartbeat(
            request.broker_id,
            request.broker_epoch,
            metadata_version=request.current_metadata_offset,
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            offline_log_dirs=request.offline_log_dirs,
            full_log_dirs=request.full_log_dirs,
            cordoned_log_dirs=request.cordoned_log_dirs,
            now_ms=now_ms,
        ),
        at_once=True,
    )
    return BrokerHeartbeatResponse(
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )
