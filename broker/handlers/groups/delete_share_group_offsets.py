"""Shell: DeleteShareGroupOffsets 0: deletes the state of topics of a share group without members (KIP-932).

- A group with members: NON_EMPTY_GROUP; one that does not exist or is of another kind: GROUP_ID_NOT_FOUND.
- Topics that do not exist, or of which the group has no state: UNKNOWN_TOPIC_OR_PARTITION.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: one.
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_share_groups
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)


@serves(DeleteShareGroupOffsetsRequest, versions="0")
async def delete_share_group_offsets(
    request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    """Delete the states."""
    try:
        check_share_groups(context.broker.metadata)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return await context.broker.groups.share_states.delete_offsets(request, client_of(context))
    except KafkaError as error:
        # As in Kafka, without an element for each topic.
        return DeleteShareGroupOffsetsResponse(
            error_code=error.code, error_message=error.message or None, responses=[]
        )
