"""Pure: what Kafka keeps of a share group (KIP-932) in `__consumer_offsets`.

As for the consumer protocol there is a record for each fact that changes by itself; one more tells of which partitions
the share coordinator has a state. How keys and values lie in the log is `persisted`'s to say.
"""

from kafka_ds.protocol.types import i8, i32, i64, message, string, struct, uuid, v


@message(key=None, versions="0", flexible=None)
class ShareGroupMemberMetadataKey:
    """The key of a member's metadata."""

    group_id: string
    member_id: string


@message(key=None, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    """A member's identity and subscription."""

    rack_id: string | None = v(nullable="0+")
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]


@message(key=None, versions="0", flexible=None)
class ShareGroupMetadataKey:
    """The key of a group's epoch."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class ShareGroupMetadataValue:
    """The group epoch, and a hash of the metadata of its topics."""

    epoch: i32
    metadata_hash: i64


@message(key=None, versions="0", flexible=None)
class ShareGroupTargetAssignmentMetadataKey:
    """The key of a target assignment's epoch."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    """The epoch of the group for which the target was made, and when (KIP-1263)."""

    assignment_epoch: i32
    assignment_timestamp: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class ShareGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: string
    member_id: string


@struct
class ShareTargetTopicPartition:
    topic_id: uuid
    partitions: list[i32]


@message(key=None, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    """A member's target assignment."""

    topic_partitions: list[ShareTargetTopicPartition]


@message(key=None, versions="0", flexible=None)
class ShareGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: string
    member_id: string


@struct
class ShareCurrentTopicPartitions:
    topic_id: uuid
    partitions: list[i32]


@message(key=None, versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    """A member's current assignment."""

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[ShareCurrentTopicPartitions]


@message(key=None, versions="0", flexible=None)
class ShareGroupStatePartitionMetadataKey:
    """The key of which partitions have a share state."""

    group_id: string


@struct
class TopicPartitionsInfo:
    topic_id: uuid
    topic_name: string
    partitions: list[i32]


@struct
class TopicInfo:
    topic_id: uuid
    topic_name: string


@message(key=None, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    """The partitions whose state is being initialized, those where it is, and the topics where it is being deleted."""

    initializing_topics: list[TopicPartitionsInfo]
    initialized_topics: list[TopicPartitionsInfo]
    deleting_topics: list[TopicInfo]
