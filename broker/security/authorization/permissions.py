"""Pure: what a handler asks about whom it serves.

Without an authorizer everybody may do all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker.security.authorization.authorizer import OPERATIONS, operations_bits

if TYPE_CHECKING:
    from broker.registry import RequestContext
    from broker.security.authorization.authorizer import Authorizer


def authorizer_of(context: RequestContext) -> Authorizer | None:
    """The authorizer, if there is one."""
    security = getattr(context.node, "security", None)
    return security.authorizer if security is not None else None


def may(
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType = ResourceType.CLUSTER,
    name: str = CLUSTER_NAME,
    *,
    log_if_denied: bool = True,
) -> bool:
    """Whether the client may do this; `log_if_denied` False: a refusal is not logged."""
    decides = authorizer_of(context)
    return decides is None or decides.allows(
        context.principal,
        context.client_host,
        operation,
        resource_type,
        name,
        log_if_denied=log_if_denied,
    )


def sees(context: RequestContext, topic: str) -> bool:
    """Whether an answer shows the client this topic, which it has not named: what is left out is no refusal."""
    return may(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic, log_if_denied=False)


def operations_for(context: RequestContext, resource_type: ResourceType, name: str) -> int:
    """What the asking client may do to a resource, as bits by the operations' numbers (KIP-430)."""
    decides = authorizer_of(context)
    if decides is None:
        return operations_bits(OPERATIONS[resource_type])
    return operations_bits(
        decides.operations(context.principal, context.client_host, resource_type, name)
    )
