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
    """The epoch of the group, and what the topics that it subscribes to were like then (KIP-1101)."""

    epoch: i32
    metadata_hash: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class ConsumerGroupPartitionMetadataKey:
    """What Kafka before 4.1 knew of a group's topics is kept for each of these."""

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
    """What a member wants is kept for each of these."""

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
    """The epoch of a group's target assignment is kept for each of these."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of the group for which the target was made, and when (KIP-1263)."""

    assignment_epoch: i32
    assignment_timestamp: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class ConsumerGroupTargetAssignmentMemberKey:
    """What a member is to have is kept for each of these."""

    group_id: string
    member_id: string


@struct
class TargetTopicPartition:
    topic_id: uuid
    partitions: list[i32]


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """The partitions that a member is to have in the end."""

    topic_partitions: list[TargetTopicPartition]


@message(key=None, versions="0", flexible=None)
class ConsumerGroupCurrentMemberAssignmentKey:
    """What a member has is kept for each of these."""

    group_id: string
    member_id: string


@struct
class CurrentTopicPartitions:
    topic_id: uuid
    partitions: list[i32]
    assignment_epochs: list[i32] | None = v(nullable="0+", tag=0, default=[])


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """Where a member is on its way to its target: what it has, and what it has yet to give back."""

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[CurrentTopicPartitions]
    partitions_pending_revocation: list[CurrentTopicPartitions]


@message(key=None, versions="0", flexible=None)
class ConsumerGroupRegularExpressionKey:
    """The topics of a regular expression are kept for each of these."""

    group_id: string
    regular_expression: string


@message(key=None, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics that the expression matched, as of a version of the metadata."""

    topics: list[string]
    version: i64
    timestamp: i64
