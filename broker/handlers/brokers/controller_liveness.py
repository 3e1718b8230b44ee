"""Shell: ControllerLiveness 0 (ours): whether a controller answers this broker: the pre-vote of one that hears nothing.

- Answered by every broker, from what it knows: how long ago the named controller answered it; 0 where it is that
  controller itself, -1 where it never did or another one decides.

Versions: 0. Key 20000, which no release of Apache Kafka has, and which clients are not told of.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.wire.messages import ControllerLivenessRequest, ControllerLivenessResponse


@serves(ControllerLivenessRequest, versions="0", internal=True, pipelined=True)
def controller_liveness(
    request: ControllerLivenessRequest, context: RequestContext
) -> ControllerLivenessResponse:
    """Tell when that controller was heard of."""
    node = context.node
    return ControllerLivenessResponse(
        last_heard_ms=node.member.candidacy.last_heard_ms(
            request.controller_id, request.controller_epoch
        ),
        metadata_version=node.metadata.version,
    )
