"""Shell: ListGroups 0-5: which groups does this broker coordinate?

- Filters by state (v4+) and type (v5+) ignore case; an empty filter means any. Types are "classic", "consumer", "share"
  and "streams". Groups that consist of offsets alone have no protocol type and are Empty.
- COORDINATOR_LOAD_IN_PROGRESS while a partition is still being read, because an incomplete list would look complete.

Versions: 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import ListGroupsRequest, ListGroupsResponse


@serves(ListGroupsRequest, versions="0-5")
async def list_groups(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List the groups of all partitions that are led here."""
    groups = []
    for answer in context.broker.groups.submit_to_all(request, client_of(context)):
        response = await answer if isinstance(answer, Awaitable) else answer
        groups.extend(response.groups)
    return ListGroupsResponse(groups=groups)
