"""Pure: what Kafka keeps of a group of the consumer protocol (KIP-848) in `__consumer_offsets`.

One record for each fact that changes by itself, so that a large group writes what has changed and no more. How keys and
values lie in the log is `persisted`'s to say.
"""

from kafka_ds.protocol.types import bytes_, i8, i32, i64, message, string, struct, uuid, v


@message(key=None, versions="0", flexible=None)
class ConsumerGroupMetadataKey:
    """A group's epoch. A group without this record does not exist."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The group epoch, and a hash of the metadata of its topics (KIP-1101)."""

    epoch: i32
    metadata_hash: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class ConsumerGroupPartitionMetadataKey:
    """The key of a group's partition metadata (Kafka before 4.1)."""

    group_id: string


@struct
class PartitionMetadata:
    partition: i32
    racks: list[string]


@struct
class TopicMetadata:
    topic_id: uuid
    topic_name: string
    num_partitions: i32
    partition_metadata: list[PartitionMetadata]


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    """The topics that the group subscribes to; since Kafka 4.1 a hash stands for them."""

    topics: list[TopicMetadata]


@message(key=None, versions="0", flexible=None)
class ConsumerGroupMemberMetadataKey:
    """The key of a member's metadata."""

    group_id: string
    member_id: string


@struct
class ClassicProtocol:
    name: string
    metadata: bytes_


@struct
class ClassicMemberMetadata:
    session_timeout_ms: i32
    supported_protocols: list[ClassicProtocol]


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """A member's identity and subscription; with its classic protocols if it speaks that protocol."""

    instance_id: string | None = v(nullable="0+")
    rack_id: string | None = v(nullable="0+")
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = v(nullable="0+")
    rebalance_timeout_ms: i32 = v(default=-1)
    server_assignor: string | None = v(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = v(nullable="0+", tag=0, default=None)


@message(key=None, versions="0", flexible=None)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The key of a target assignment's epoch."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of the group for which the target was made, and when (KIP-1263)."""

    assignment_epoch: i32
    assignment_timestamp: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class ConsumerGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: string
    member_id: string


@struct
class TargetTopicPartition:
    topic_id: uuid
    partitions: list[i32]


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """A member's target assignment."""

    topic_partitions: list[TargetTopicPartition]


@message(key=None, versions="0", flexible=None)
class ConsumerGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: string
    member_id: string


@struct
class CurrentTopicPartitions:
    topic_id: uuid
    partitions: list[i32]
    assignment_epochs: list[i32] | None = v(nullable="0+", tag=0, default=[])


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """A member's current assignment, with the partitions that it has yet to revoke."""

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[CurrentTopicPartitions]
    partitions_pending_revocation: list[CurrentTopicPartitions]


@message(key=None, versions="0", flexible=None)
class ConsumerGroupRegularExpressionKey:
    """The key of a resolved regular expression."""

    group_id: string
    regular_expression: string


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics that match the expression, at a version of the metadata."""

    topics: list[string]
    version: i64
    timestamp: i64
