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
    """Let me into this group, or let me stay through its rebalance."""

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
    """The generation that the group has now; for its leader also the members."""

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
    """Hand me my assignment; from the leader: here is everybody's."""

    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string | None = v("3+", nullable="0+", default=None)
    protocol_type: string | None = v("5+", nullable="0+", default=None)
    protocol_name: string | None = v("5+", nullable="0+", default=None)
    assignments: list[SyncGroupRequestAssignment]


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The assignment of one member."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)
    protocol_type: string | None = v("5+", nullable="0+", default=None)
    protocol_name: string | None = v("5+", nullable="0+", default=None)
    assignment: bytes_


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """I am still here."""

    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string | None = v("3+", nullable="0+", default=None)


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Whether the group goes on as it is or rebalances."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)


@struct
class MemberIdentity:
    member_id: string
    group_instance_id: string | None = v(nullable="0+", default=None)
    reason: string | None = v("5+", nullable="0+", default=None)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Take these members out of the group."""

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
    """What became of each member that wanted to leave."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v(default=0)
    members: list[MemberResponse] = v("3+", default=[])
