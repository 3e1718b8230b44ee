"""Shell: AlterShareGroupOffsets 0: moves the start offsets of a share group without members (KIP-932).

- A group that does not exist is created. One with members: NON_EMPTY_GROUP; one of another kind: GROUP_ID_NOT_FOUND.
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION. Each partition has the share coordinator's result.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: one.
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_share_groups
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse


@serves(AlterShareGroupOffsetsRequest, versions="0")
async def alter_share_group_offsets(
    request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    """Move the start offsets."""
    try:
        check_share_groups(context.broker.metadata)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return await context.broker.groups.share_states.alter(request, client_of(context))
    except KafkaError as error:
        # As in Kafka, without an element for each topic.
        return AlterShareGroupOffsetsResponse(
            error_code=error.code, error_message=error.message or None, responses=[]
        )
