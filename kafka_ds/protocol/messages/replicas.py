"""Pure: the messages about where replicas are: log directories, elections, reassignments.

Null in place of a list of topics means all of them.
"""

from kafka_ds.protocol.types import (
    boolean,
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    v,
)


@struct
class AlterReplicaLogDirTopic:
    name: string
    partitions: list[i32]


@struct
class AlterReplicaLogDir:
    path: string
    topics: list[AlterReplicaLogDirTopic]


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Move replicas of this broker to log directories."""

    dirs: list[AlterReplicaLogDir]


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: string = v(of="name")
    partitions: list[AlterReplicaLogDirPartitionResult] = v(of="partitions")


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """The result for each replica."""

    throttle_time_ms: i32 = v(default=0)
    results: list[AlterReplicaLogDirTopicResult] = v(of="dirs.topics")


@struct
class DescribableLogDirTopic:
    topic: string
    partitions: list[i32]


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """Describe this broker's log directories."""

    topics: list[DescribableLogDirTopic] | None = v(nullable="0+")


@struct
class DescribeLogDirsPartition:
    partition_index: i32
    partition_size: i64
    offset_lag: i64
    is_future_key: boolean


@struct
class DescribeLogDirsTopic:
    name: string
    partitions: list[DescribeLogDirsPartition]


@struct
class DescribeLogDirsResult:
    error_code: i16 = v(default=0)
    log_dir: string
    topics: list[DescribeLogDirsTopic]
    total_bytes: i64 = v("4+", default=-1)
    usable_bytes: i64 = v("4+", default=-1)
    is_cordoned: boolean = v("5+", default=False)


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """Size and lag of the replicas in each log directory."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v("3+", default=0)
    results: list[DescribeLogDirsResult]


@struct
class TopicPartitions:
    topic: string
    partitions: list[i32]


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Elect the preferred leader, or any live one, for these partitions."""

    election_type: i8 = v("1+", default=0)
    topic_partitions: list[TopicPartitions] | None = v(nullable="0+")
    timeout_ms: i32 = v(default=60000)


@struct
class PartitionResult:
    partition_id: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@struct
class ReplicaElectionResult:
    topic: string
    partition_result: list[PartitionResult] = v(of="partitions")


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v("1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = v(of="topic_partitions")


@struct
class ReassignablePartition:
    partition_index: i32
    replicas: list[i32] | None = v(nullable="0+", default=None)


@struct
class ReassignableTopic:
    name: string
    partitions: list[ReassignablePartition]


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Reassign partitions to replicas, or cancel reassignments."""

    timeout_ms: i32 = v(default=60000)
    allow_replication_factor_change: boolean = v("1+", default=True)
    topics: list[ReassignableTopic]


@struct
class ReassignablePartitionResponse:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@struct
class ReassignableTopicResponse:
    name: string
    partitions: list[ReassignablePartitionResponse]


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v(default=0)
    allow_replication_factor_change: boolean = v("1+", default=True)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    responses: list[ReassignableTopicResponse]


@struct
class ListPartitionReassignmentsTopics:
    name: string
    partition_indexes: list[i32]


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """List ongoing reassignments."""

    timeout_ms: i32 = v(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = v(nullable="0+", default=None)


@struct
class OngoingPartitionReassignment:
    partition_index: i32
    replicas: list[i32]
    adding_replicas: list[i32]
    removing_replicas: list[i32]


@struct
class OngoingTopicReassignment:
    name: string
    partitions: list[OngoingPartitionReassignment]


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The replicas of each partition that is being reassigned, with those added and removed."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    topics: list[OngoingTopicReassignment]
