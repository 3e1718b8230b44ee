"""Pure: the messages about the cluster as a whole: features, quorum, long topic listings.

Long listings come in pages, and the cursor of the next one is null at the end.
"""

from kafka_ds.protocol.types import (
    MIN_I32,
    NO_UUID,
    boolean,
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    u16,
    uuid,
    v,
)


@struct
class FeatureUpdateKey:
    feature: string
    max_version_level: i16
    allow_downgrade: boolean = v("0", default=False)
    upgrade_type: i8 = v("1+", default=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Raise or lower the finalized level of these features."""

    timeout_ms: i32 = v(default=60000)
    feature_updates: list[FeatureUpdateKey]
    validate_only: boolean = v("1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: string
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """The result for each feature."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = v("0-1", default=[])


@struct
class DescribeQuorumRequestPartitionData:
    partition_index: i32


@struct
class DescribeQuorumRequestTopicData:
    topic_name: string
    partitions: list[DescribeQuorumRequestPartitionData]


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """The voters of the metadata quorum, and how far each replica is."""

    topics: list[DescribeQuorumRequestTopicData]


@struct
class DescribeQuorumReplicaState:
    replica_id: i32
    replica_directory_id: uuid = v("2+", default=NO_UUID)
    log_end_offset: i64
    last_fetch_timestamp: i64 = v("1+", default=-1)
    last_caught_up_timestamp: i64 = v("1+", default=-1)


@struct
class DescribeQuorumResponsePartitionData:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v("2+", nullable="0+", default=None)
    leader_id: i32
    leader_epoch: i32
    high_watermark: i64
    current_voters: list[DescribeQuorumReplicaState]
    observers: list[DescribeQuorumReplicaState]


@struct
class DescribeQuorumResponseTopicData:
    topic_name: string
    partitions: list[DescribeQuorumResponsePartitionData]


@struct
class Listener:
    name: string
    host: string
    port: u16


@struct
class QuorumNode:
    node_id: i32
    listeners: list[Listener]


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """Leader, epoch, high watermark and replicas of the metadata log."""

    error_code: i16 = v(default=0)
    error_message: string | None = v("2+", nullable="0+", default=None)
    topics: list[DescribeQuorumResponseTopicData]
    nodes: list[QuorumNode] = v("2+", default=[])


@struct
class DescribeTopicPartitionsTopicRequest:
    name: string


@struct
class Cursor:
    topic_name: string
    partition_index: i32


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Describe the partitions of these topics, a page at a time from the cursor on."""

    topics: list[DescribeTopicPartitionsTopicRequest]
    response_partition_limit: i32 = v(default=2000)
    cursor: Cursor | None = v(nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: i16 = v(default=0)
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = v(default=-1)
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    eligible_leader_replicas: list[i32] | None = v(nullable="0+", default=None)
    last_known_elr: list[i32] | None = v(nullable="0+", default=None)
    offline_replicas: list[i32]


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: i16 = v(default=0)
    name: string | None = v(nullable="0+")
    topic_id: uuid
    is_internal: boolean = v(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: i32 = v(default=MIN_I32)


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """One page of partitions, and where the next one begins."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = v(of="topics")
    next_cursor: Cursor | None = v(nullable="0+", default=None)
