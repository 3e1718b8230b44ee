"""Shell: CreateAcls 1-3, DescribeAcls 1-3, DeleteAcls 1-3: access control lists.

- Without authorizer.class.name: SECURITY_DISABLED, as in Kafka: ACLs without effect would deceive.
- Create: each ACL has its own result. INVALID_REQUEST with a text for unknown numbers of a resource type, pattern type,
  operation or permission, for an empty name, a principal without a type, or a cluster that is not called
  kafka-cluster. An ACL that exists already is no error. All ACLs of a request are in one commit.
- Describe and delete by filters: null and ANY match everything; MATCH finds the ACLs that concern a resource of that
  name: its own, prefixes of it, and `*` (KIP-290). INVALID_REQUEST for unknown numbers.
- Any broker answers DescribeAcls, from the metadata that it has read so far.

Versions: 1 patterns (KIP-290); 2 flexible; 3 users as resources (KIP-373).
"""

from __future__ import annotations

from broker.metadata.acls import Acl, AclFilter
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kafka_ds.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DescribeAclsResource,
)


@serves(CreateAclsRequest, versions="1-3", forwarded=True)
async def create_acls(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create the ACLs, or refuse with the reason."""
    _check_enabled(context)
    wanted = [_acl(each) for each in request.creations]
    refusals = await context.broker.metadata_driver.decide(lambda c: c.create_acls(wanted))
    return CreateAclsResponse(
        results=[
            AclCreationResult()
            if refusal is None
            else AclCreationResult(error_code=refusal.code, error_message=refusal.message)
            for refusal in refusals
        ]
    )


@serves(DeleteAclsRequest, versions="1-3", forwarded=True)
async def delete_acls(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Delete the ACLs that match the filters; the answer lists them."""
    _check_enabled(context)
    filters = [_filter(each) for each in request.filters]
    outcomes = await context.broker.metadata_driver.decide(lambda c: c.delete_acls(filters))
    return DeleteAclsResponse(filter_results=[_deleted(each) for each in outcomes])


@serves(DescribeAclsRequest, versions="1-3")
def describe_acls(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """List the ACLs that match the filter."""
    _check_enabled(context)
    wanted = _filter(request)
    reason = wanted.why_invalid()
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in filter(wanted.matches, context.broker.metadata.security.acls.values()):
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=key[0], resource_name=key[1], pattern_type=key[2], acls=[]
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(resources=list(resources.values()))


def _check_enabled(context: RequestContext) -> None:
    if context.broker.security.authorizer is None:
        message = "No Authorizer is configured on the broker"
        raise KafkaError(ErrorCode.SECURITY_DISABLED, message)


def _acl(wanted: AclCreation) -> Acl:
    return Acl(
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        pattern_type=wanted.resource_pattern_type,
        principal=wanted.principal,
        host=wanted.host,
        operation=wanted.operation,
        permission=wanted.permission_type,
    )


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        resource_type=wanted.resource_type_filter,
        resource_name=wanted.resource_name_filter,
        pattern_type=wanted.pattern_type_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=wanted.operation,
        permission=wanted.permission_type,
    )


def _deleted(outcome: list[Acl] | KafkaError) -> DeleteAclsFilterResult:
    if isinstance(outcome, KafkaError):
        return DeleteAclsFilterResult(
            error_code=outcome.code, error_message=outcome.message, matching_acls=[]
        )
    matching = [
        DeleteAclsMatchingAcl(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in outcome
    ]
    return DeleteAclsFilterResult(matching_acls=matching)
