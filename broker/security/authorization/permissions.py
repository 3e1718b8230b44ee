"""Pure: the permission checks of handlers. Without an authorizer everything is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker.security.authorization.authorizer import OPERATIONS, operations_bits

if TYPE_CHECKING:
    from broker.registry import RequestContext
    from broker.security.authorization.authorizer import Authorizer


def authorizer_of(context: RequestContext) -> Authorizer | None:
    """The authorizer, if one is set up."""
    return context.broker.security.authorizer


def may(
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType = ResourceType.CLUSTER,
    name: str = CLUSTER_NAME,
    *,
    log_if_denied: bool = True,
) -> bool:
    """Whether the client may do this; `log_if_denied` False: a refusal is not logged."""
    authorizer = authorizer_of(context)
    return authorizer is None or authorizer.allows(
        context.principal,
        context.client_host,
        operation,
        resource_type,
        name,
        log_if_denied=log_if_denied,
    )


def sees(context: RequestContext, topic: str) -> bool:
    """Whether a response may include a topic that the client did not name; a denial is not logged."""
    return may(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic, log_if_denied=False)


def operations_for(context: RequestContext, resource_type: ResourceType, name: str) -> int:
    """The client's authorized operations on a resource, as a bit field (KIP-430)."""
    authorizer = authorizer_of(context)
    if authorizer is None:
        return operations_bits(OPERATIONS[resource_type])
    return operations_bits(
        authorizer.operations(context.principal, context.client_host, resource_type, name)
    )
