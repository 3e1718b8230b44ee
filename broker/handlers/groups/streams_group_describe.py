"""Shell: StreamsGroupDescribe 0-1: what state are these streams groups in, who is in them, with which tasks (KIP-1071)?

- A group that does not exist, or is of another kind: GROUP_ID_NOT_FOUND.
- A client that may not DESCRIBE all topics of a group's topology gets TOPIC_AUTHORIZATION_FAILED in its place.
- On request the answer has the operations that the client may do, as in DescribeGroups.
- The coordinator's errors, for each group by itself.
- While streams.version is 0, or group.coordinator.rebalance.protocols lacks streams: UNSUPPORTED_VERSION.

Versions: 1 the assignor's name (KIP-1357), and the full description of the topology (KIP-1331), which is not stored.
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_streams_groups
from broker.handlers.groups.modern_groups import described_groups
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from kafka_ds.protocol.messages.streams_groups import StreamsGroupDescribeResponseDescribedGroup


@serves(StreamsGroupDescribeRequest, versions="0-1")
async def streams_group_describe(
    request: StreamsGroupDescribeRequest, context: RequestContext
) -> StreamsGroupDescribeResponse:
    """Describe the groups, each by itself."""
    check_streams_groups(context.broker)
    groups = await described_groups(request, StreamsGroupDescribeResponseDescribedGroup, context)
    return StreamsGroupDescribeResponse(groups=groups)
