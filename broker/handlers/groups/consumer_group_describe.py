"""Shell: ConsumerGroupDescribe 0-1: what state are these groups of the consumer protocol in (KIP-848)?

- A group that does not exist, or is of another kind: GROUP_ID_NOT_FOUND; clients then send DescribeGroups.
- On request the answer has the operations that the client may do, as in DescribeGroups.
- The coordinator's errors, for each group by itself.
- While group.version is 0, or group.coordinator.rebalance.protocols lacks the protocol: UNSUPPORTED_VERSION.

Versions: 1 which protocol each member speaks (KIP-1099).
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_consumer_groups
from broker.handlers.groups.modern_groups import described_groups
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupDescribeResponseDescribedGroup


@serves(ConsumerGroupDescribeRequest, versions="0-1")
async def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe the groups, each by itself."""
    check_consumer_groups(context.broker)
    groups = await described_groups(request, ConsumerGroupDescribeResponseDescribedGroup, context)
    return ConsumerGroupDescribeResponse(groups=groups)
