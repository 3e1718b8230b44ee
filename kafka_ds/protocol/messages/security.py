"""Pure: the messages that read and change ACLs, quotas and SCRAM users.

What a SCRAM password was salted to is in one request alone, and in no answer.
"""

from kafka_ds.protocol.types import (
    boolean,
    bytes_,
    f64,
    i8,
    i16,
    i32,
    message,
    string,
    struct,
    v,
)

LITERAL = 3


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """List the ACLs that match a filter."""

    resource_type_filter: i8
    resource_name_filter: string | None = v(nullable="0+")
    pattern_type_filter: i8 = v("1+", default=LITERAL)
    principal_filter: string | None = v(nullable="0+")
    host_filter: string | None = v(nullable="0+")
    operation: i8
    permission_type: i8


@struct
class AclDescription:
    principal: string
    host: string
    operation: i8
    permission_type: i8


@struct
class DescribeAclsResource:
    resource_type: i8
    resource_name: string
    pattern_type: i8 = v("1+", default=LITERAL)
    acls: list[AclDescription]


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The ACLs by resource."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    resources: list[DescribeAclsResource]


@struct
class AclCreation:
    resource_type: i8
    resource_name: string
    resource_pattern_type: i8 = v("1+", default=LITERAL)
    principal: string
    host: string
    operation: i8
    permission_type: i8


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    """Create ACLs."""

    creations: list[AclCreation]


@struct
class AclCreationResult:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """The result for each ACL, in the request's order."""

    throttle_time_ms: i32 = v(default=0)
    results: list[AclCreationResult] = v(of="creations")


@struct
class DeleteAclsFilter:
    resource_type_filter: i8
    resource_name_filter: string | None = v(nullable="0+")
    pattern_type_filter: i8 = v("1+", default=LITERAL)
    principal_filter: string | None = v(nullable="0+")
    host_filter: string | None = v(nullable="0+")
    operation: i8
    permission_type: i8


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """Delete the ACLs that these filters match."""

    filters: list[DeleteAclsFilter]


@struct
class DeleteAclsMatchingAcl:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    resource_type: i8
    resource_name: string
    pattern_type: i8 = v("1+", default=LITERAL)
    principal: string
    host: string
    operation: i8
    permission_type: i8


@struct
class DeleteAclsFilterResult:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    matching_acls: list[DeleteAclsMatchingAcl]


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """The deleted ACLs for each filter, in the request's order."""

    throttle_time_ms: i32 = v(default=0)
    filter_results: list[DeleteAclsFilterResult] = v(of="filters")


@struct
class ComponentData:
    entity_type: string
    match_type: i8
    match: string | None = v(nullable="0+")


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """List the quotas of entities that match all components (KIP-546)."""

    components: list[ComponentData]
    strict: boolean


@struct
class QuotaEntityData:
    """A null name is the default of its type."""

    entity_type: string
    entity_name: string | None = v(nullable="0+")


@struct
class QuotaValueData:
    key: string
    value: f64


@struct
class QuotaEntryData:
    entity: list[QuotaEntityData]
    values: list[QuotaValueData]


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The quotas by entity."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    entries: list[QuotaEntryData] | None = v(nullable="0+")


@struct
class QuotaOpData:
    key: string
    value: f64
    remove: boolean


@struct
class AlterQuotaEntryData:
    entity: list[QuotaEntityData]
    ops: list[QuotaOpData]


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Set or remove quotas of these entities (KIP-546)."""

    entries: list[AlterQuotaEntryData]
    validate_only: boolean


@struct
class AlterQuotaEntryResult:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    entity: list[QuotaEntityData] = v(of="entity")


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """The result for each entity."""

    throttle_time_ms: i32 = v(default=0)
    entries: list[AlterQuotaEntryResult] = v(of="entries")


@struct
class UserName:
    name: string


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """List the SCRAM credentials of users; null or an empty list means all (KIP-554)."""

    users: list[UserName] | None = v(nullable="0+")


@struct
class CredentialInfo:
    mechanism: i8
    iterations: i32


@struct
class DescribeUserScramCredentialsResult:
    user: string
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    credential_infos: list[CredentialInfo]


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of each user, without secrets."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    results: list[DescribeUserScramCredentialsResult]


@struct
class ScramCredentialDeletion:
    name: string
    mechanism: i8


@struct
class ScramCredentialUpsertion:
    name: string
    mechanism: i8
    iterations: i32
    salt: bytes_
    salted_password: bytes_


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Delete and set SCRAM credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


@struct
class AlterUserScramCredentialsResult:
    user: string = v(of="name")
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """The result for each user."""

    throttle_time_ms: i32 = v(default=0)
    results: list[AlterUserScramCredentialsResult] = v(of=("deletions", "upsertions"), unique=True)
