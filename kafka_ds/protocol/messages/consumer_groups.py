"""Pure: the messages of the consumer group protocol (KIP-848): one heartbeat for everything, and the description.

Null means "as before" in a request, and "nothing new" in a response.
"""

from kafka_ds.protocol.types import (
    MIN_I32,
    boolean,
    i8,
    i16,
    i32,
    message,
    string,
    struct,
    uuid,
    v,
)


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions:
    topic_id: uuid
    partitions: list[i32]


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """A member's heartbeat: subscription and owned partitions. It joins with epoch 0 and leaves with -1 or -2."""

    group_id: string
    member_id: string
    member_epoch: i32
    instance_id: string | None = v(nullable="0+", default=None)
    rack_id: string | None = v(nullable="0+", default=None)
    rebalance_timeout_ms: i32 = v(default=-1)
    subscribed_topic_names: list[string] | None = v(nullable="0+", default=None)
    subscribed_topic_regex: string | None = v("1+", nullable="1+", default=None)
    server_assignor: string | None = v(nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = v(
        nullable="0+", default=None
    )


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions:
    topic_id: uuid
    partitions: list[i32]


@struct
class ConsumerGroupHeartbeatResponseAssignment:
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions]


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    member_id: string | None = v(nullable="0+", default=None)
    member_epoch: i32 = v(default=0)
    heartbeat_interval_ms: i32 = v(default=0)
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = v(nullable="0+", default=None)


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """The states and members of these groups of the consumer protocol."""

    group_ids: list[string]
    include_authorized_operations: boolean = v(default=False)


@struct
class ConsumerGroupDescribeResponseTopicPartitions:
    topic_id: uuid
    topic_name: string
    partitions: list[i32]


@struct
class ConsumerGroupDescribeResponseAssignment:
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions]


@struct
class ConsumerGroupDescribeResponseMember:
    member_id: string
    instance_id: string | None = v(nullable="0+", default=None)
    rack_id: string | None = v(nullable="0+", default=None)
    member_epoch: i32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = v(nullable="0+", default=None)
    assignment: ConsumerGroupDescribeResponseAssignment
    target_assignment: ConsumerGroupDescribeResponseAssignment
    member_type: i8 = v("1+", default=-1)


@struct
class ConsumerGroupDescribeResponseDescribedGroup:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    group_id: string
    group_state: string
    group_epoch: i32 = v(default=0)
    assignment_epoch: i32 = v(default=0)
    assignor_name: string
    members: list[ConsumerGroupDescribeResponseMember]
    authorized_operations: i32 = v(default=MIN_I32)


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """State, epochs and members of each group, with their present and target assignments."""

    throttle_time_ms: i32 = v(default=0)
    groups: list[ConsumerGroupDescribeResponseDescribedGroup] = v(of="group_ids")
