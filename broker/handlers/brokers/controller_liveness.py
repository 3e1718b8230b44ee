"""Shell: ControllerLiveness 0: how long ago the controller answered this broker; a pre-vote (kafka-ds only).

- Every broker answers from its own knowledge: how long ago the named controller answered it; 0 if it is that
  controller itself, -1 if that controller never answered or is not the controller. The answer names the process, by
  its incarnation id: a broker that starts finds out whether another one has its node.id.

Versions: 0. Key 20000, which no release of Apache Kafka has, and which is not advertised to clients.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import ControllerLivenessRequest, ControllerLivenessResponse


@serves(ControllerLivenessRequest, versions="0", internal=True, pipelined=True)
def controller_liveness(
    request: ControllerLivenessRequest, context: RequestContext
) -> ControllerLivenessResponse:
    """Answer when that controller was last heard from."""
    broker = context.broker
    return ControllerLivenessResponse(
        last_heard_ms=broker.member.candidacy.last_heard_ms(
            request.controller_id, request.controller_epoch
        ),
        metadata_version=broker.metadata.version,
        incarnation_id=broker.member.lifecycle.identity.incarnation_id,
    )
