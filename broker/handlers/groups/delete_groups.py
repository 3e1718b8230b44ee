"""Shell: DeleteGroups 0-3: removes groups, with their offsets.

- Each group has its own result: NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND, or the coordinator's errors.
- The states of a share group go first; if the share coordinator cannot delete one, the group stays, with that error.

Versions: 2 flexible; 3 a message beside the error of a group (KIP-1331).
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.groups.common import client_of
from broker.handlers.responses import settled
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from kafka_ds.protocol.messages.group_admin import DeletableGroupResult


@serves(DeleteGroupsRequest, versions="0-3")
async def delete_groups(
    request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete the groups, each by itself."""
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(results=[await _delete(name, context) for name in names])


async def _delete(name: str, context: RequestContext) -> DeletableGroupResult:
    groups, client = context.broker.groups, client_of(context)
    request = DeleteGroupsRequest(groups_names=[name])
    answer = await settled(lambda: groups.share_states.delete_all(name, client))
    if not isinstance(answer, KafkaError):
        answer = await settled(lambda: groups.submit(name, request, client))
    if isinstance(answer, KafkaError):
        return DeletableGroupResult(
            group_id=name, error_code=answer.code, error_message=answer.message
        )
    result: DeletableGroupResult = answer.results[0]
    return result
