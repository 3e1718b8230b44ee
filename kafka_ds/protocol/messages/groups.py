"""Pure: the messages of the classic group protocol: join, sync, heartbeat, leave.

Protocol metadata and assignments are bytes that only the members understand.
"""

from kafka_ds.protocol.types import (
    boolean,
    bytes_,
    i16,
    i32,
    message,
    string,
    struct,
    v,
)


@struct
class JoinGroupRequestProtocol:
    name: string
    metadata: bytes_


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """Join a group, or rejoin it in a rebalance."""

    group_id: string
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 = v("1+", default=-1)
    member_id: string
    group_instance_id: string | None = v("5+", nullable="0+", default=None)
    protocol_type: string
    protocols: list[JoinGroupRequestProtocol]
    reason: string | None = v("8+", nullable="0+", default=None)


@struct
class JoinGroupResponseMember:
    member_id: string
    group_instance_id: string | None = v("5+", nullable="0+", default=None)
    metadata: bytes_


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The group's generation; for the group leader also the members."""

    throttle_time_ms: i32 = v("2+", default=0)
    error_code: i16 = v(default=0)
    generation_id: i32 = v(default=-1)
    protocol_type: string | None = v("7+", nullable="0+", default=None)
    protocol_name: string | None = v(nullable="7+")
    leader: string
    skip_assignment: boolean = v("9+", default=False)
    member_id: string
    members: list[JoinGroupResponseMember]


@struct
class SyncGroupRequestAssignment:
    member_id: string
    assignment: bytes_


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """Request the member's assignment; the group leader sends all assignments."""

    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string | None = v("3+", nullable="0+", default=None)
    protocol_type: string | None = v("5+", nullable="0+", default=None)
    protocol_name: string | None = v("5+", nullable="0+", default=None)
    assignments: list[SyncGroupRequestAssignment]


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The member's assignment."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)
    protocol_type: string | None = v("5+", nullable="0+", default=None)
    protocol_name: string | None = v("5+", nullable="0+", default=None)
    assignment: bytes_


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """A member's heartbeat."""

    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string | None = v("3+", nullable="0+", default=None)


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Whether the group is rebalancing."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)


@struct
class MemberIdentity:
    member_id: string
    group_instance_id: string | None = v(nullable="0+", default=None)
    reason: string | None = v("5+", nullable="0+", default=None)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Remove members from a group."""

    group_id: string
    member_id: string = v("0-2", default="")
    members: list[MemberIdentity] = v("3+", default=[])


@struct
class MemberResponse:
    member_id: string
    group_instance_id: string | None = v(nullable="0+")
    error_code: i16 = v(default=0)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """The result for each member."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)
    members: list[MemberResponse] = v("3+", default=[])
