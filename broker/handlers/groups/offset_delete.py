"""Shell: OffsetDelete 0: deletes a group's offsets for some partitions.

- Topics that the group's members subscribe to: GROUP_SUBSCRIBED_TO_TOPIC. If a consumer group's subscriptions are not
  known, every topic counts as subscribed to.
- The whole request: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (a group whose members are not consumers).
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION. One without an offset is no error.

Versions: one (KIP-496).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.handlers.groups.known_partitions import merge, remove_unknown
from broker.handlers.responses import then
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse


@serves(OffsetDeleteRequest, versions="0")
def offset_delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Delete the offsets of partitions that exist."""
    refused = remove_unknown(request, context.header.api_version, context.broker.metadata)
    answer = context.broker.groups.submit(request.group_id, request, client_of(context))

    def finish(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            merge(response, refused)
        return response

    return then(answer, finish)
