"""Pure: the messages of share groups (KIP-932) to their group coordinator: heartbeats, descriptions, start offsets.

Null means "as before" in a heartbeat, "nothing new" in its response, and "all" in a list of topics. Version 0 of the
heartbeat and the description was Kafka 4.0's preview.
"""

from kafka_ds.protocol.types import (
    MIN_I32,
    NO_UUID,
    boolean,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    uuid,
    v,
)


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """A member's heartbeat with its subscription. It joins with epoch 0 and leaves with -1."""

    group_id: string
    member_id: string
    member_epoch: i32
    rack_id: string | None = v(nullable="0+", default=None)
    subscribed_topic_names: list[string] | None = v(nullable="0+", default=None)


@struct
class ShareGroupHeartbeatResponseTopicPartitions:
    topic_id: uuid
    partitions: list[i32]


@struct
class ShareGroupHeartbeatResponseAssignment:
    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions]


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    member_id: string | None = v(nullable="0+", default=None)
    member_epoch: i32 = v(default=0)
    heartbeat_interval_ms: i32 = v(default=0)
    assignment: ShareGroupHeartbeatResponseAssignment | None = v(nullable="0+", default=None)


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """The states and members of these share groups."""

    group_ids: list[string]
    include_authorized_operations: boolean = v(default=False)


@struct
class ShareGroupDescribeResponseTopicPartitions:
    topic_id: uuid
    topic_name: string
    partitions: list[i32]


@struct
class ShareGroupDescribeResponseAssignment:
    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions]


@struct
class ShareGroupDescribeResponseMember:
    member_id: string
    rack_id: string | None = v(nullable="0+", default=None)
    member_epoch: i32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    assignment: ShareGroupDescribeResponseAssignment


@struct
class ShareGroupDescribeResponseDescribedGroup:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    group_id: string
    group_state: string
    group_epoch: i32 = v(default=0)
    assignment_epoch: i32 = v(default=0)
    assignor_name: string
    members: list[ShareGroupDescribeResponseMember]
    authorized_operations: i32 = v(default=MIN_I32)


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """State, epochs and members of each group, with their assignments."""

    throttle_time_ms: i32 = v(default=0)
    groups: list[ShareGroupDescribeResponseDescribedGroup] = v(of="group_ids")


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: string
    partitions: list[i32]


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: string
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = v(nullable="0+")


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    """From where on the groups have records of these partitions to deliver."""

    groups: list[DescribeShareGroupOffsetsRequestGroup]


@struct
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: i32
    start_offset: i64
    leader_epoch: i32
    lag: i64 = v("1+", default=-1)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: string
    topic_id: uuid = v(default=NO_UUID)
    partitions: list[DescribeShareGroupOffsetsResponsePartition]


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: string
    topics: list[DescribeShareGroupOffsetsResponseTopic]
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    """Start offset, its leader epoch, and lag of each partition."""

    throttle_time_ms: i32 = v(default=0)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = v(of="groups")


@struct
class AlterShareGroupOffsetsRequestPartition:
    partition_index: i32
    start_offset: i64


@struct
class AlterShareGroupOffsetsRequestTopic:
    topic_name: string
    partitions: list[AlterShareGroupOffsetsRequestPartition]


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    """Move the start offsets of a group without members."""

    group_id: string
    topics: list[AlterShareGroupOffsetsRequestTopic]


@struct
class AlterShareGroupOffsetsResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    topic_name: string
    topic_id: uuid = v(default=NO_UUID)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = v(of="partitions")


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = v(of="topics", unique=True)


@struct
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: string


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    """Delete the state of topics of a group without members."""

    group_id: string
    topics: list[DeleteShareGroupOffsetsRequestTopic]


@struct
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: string
    topic_id: uuid = v(default=NO_UUID)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    """The result for each topic."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = v(of="topics")
