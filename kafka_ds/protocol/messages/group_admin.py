"""Pure: the messages that list, describe and delete groups.

None of these changes a group that has members.
"""

from kafka_ds.protocol.types import (
    MIN_I32,
    boolean,
    bytes_,
    i16,
    i32,
    message,
    string,
    struct,
    v,
)


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """The states and members of these groups."""

    groups: list[string]
    include_authorized_operations: boolean = v("3+", default=False)


@struct
class DescribedGroupMember:
    member_id: string
    group_instance_id: string | None = v("4+", nullable="0+", default=None)
    client_id: string
    client_host: string
    member_metadata: bytes_
    member_assignment: bytes_


@struct
class DescribedGroup:
    error_code: i16 = v(default=0)
    error_message: string | None = v("6+", nullable="0+", default=None)
    group_id: string
    group_state: string
    protocol_type: string
    protocol_data: string
    members: list[DescribedGroupMember]
    authorized_operations: i32 = v("3+", default=MIN_I32)


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """State, protocol and members of each group."""

    throttle_time_ms: i32 = v("1+", default=0)
    groups: list[DescribedGroup] = v(of="groups")


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """List the groups of this coordinator, by state and type."""

    states_filter: list[string] = v("4+", default=[])
    types_filter: list[string] = v("5+", default=[])


@struct
class ListedGroup:
    group_id: string
    protocol_type: string
    group_state: string = v("4+", default="")
    group_type: string = v("5+", default="")


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)
    groups: list[ListedGroup]


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    """Delete empty groups."""

    groups_names: list[string]


@struct
class DeletableGroupResult:
    group_id: string
    error_code: i16 = v(default=0)
    error_message: string | None = v("3+", nullable="3+", default=None)


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    """The result for each group."""

    throttle_time_ms: i32 = v(default=0)
    results: list[DeletableGroupResult] = v(of="groups_names")
