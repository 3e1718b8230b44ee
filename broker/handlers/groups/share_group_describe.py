"""Shell: ShareGroupDescribe 1: what state are these share groups in, and who is in them (KIP-932)?

- A group that does not exist, or is of another kind: GROUP_ID_NOT_FOUND.
- On request the answer has the operations that the client may do, as in DescribeGroups.
- The coordinator's errors, for each group by itself.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: one; version 0 was a preview.
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_share_groups
from broker.handlers.groups.modern_groups import described_groups
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kafka_ds.protocol.messages.share_groups import ShareGroupDescribeResponseDescribedGroup


@serves(ShareGroupDescribeRequest, versions="1")
async def share_group_describe(
    request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    """Describe the groups, each by itself."""
    check_share_groups(context.broker.metadata)
    groups = await described_groups(request, ShareGroupDescribeResponseDescribedGroup, context)
    return ShareGroupDescribeResponse(groups=groups)
