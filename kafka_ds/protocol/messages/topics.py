"""Pure: the messages that create, extend and delete topics.

Results stand in the order of the request, one for each topic.
"""

from kafka_ds.protocol.types import (
    NO_UUID,
    boolean,
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    uuid,
    v,
)


@struct
class CreatableReplicaAssignment:
    partition_index: i32
    broker_ids: list[i32]


@struct
class CreatableTopicConfig:
    name: string
    value: string | None = v(nullable="0+")


@struct
class CreatableTopic:
    name: string
    num_partitions: i32
    replication_factor: i16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Create these topics, or only check whether that is possible."""

    topics: list[CreatableTopic]
    timeout_ms: i32 = v(default=60000)
    validate_only: boolean = v(default=False)


@struct
class CreatableTopicConfigs:
    name: string
    value: string | None = v(nullable="0+")
    read_only: boolean
    config_source: i8 = v(default=-1)
    is_sensitive: boolean


@struct
class CreatableTopicResult:
    name: string
    topic_id: uuid = v("7+", default=NO_UUID)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    topic_config_error_code: i16 = v("5+", tag=0, default=0)
    num_partitions: i32 = v("5+", default=-1)
    replication_factor: i16 = v("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = v("5+", nullable="0+", default=[])


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """The result for each topic, with its settings."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[CreatableTopicResult] = v(of="topics", unique=True)


@struct
class DeleteTopicState:
    name: string | None = v(nullable="0+", default=None)
    topic_id: uuid


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Delete these topics, by name or by id."""

    topics: list[DeleteTopicState] = v("6+", default=[])
    topic_names: list[string] = v("1-5", default=[])
    timeout_ms: i32


@struct
class DeletableTopicResult:
    name: string | None = v(nullable="6+")
    topic_id: uuid = v("6+", default=NO_UUID)
    error_code: i16 = v(default=0)
    error_message: string | None = v("5+", nullable="0+", default=None)


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """The result for each topic."""

    throttle_time_ms: i32 = v(default=0)
    responses: list[DeletableTopicResult] = v(of=("topics", "topic_names"))


@struct
class CreatePartitionsAssignment:
    broker_ids: list[i32]


@struct
class CreatePartitionsTopic:
    name: string
    count: i32
    assignments: list[CreatePartitionsAssignment] | None = v(nullable="0+")


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Increase the partition count of topics."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: i32
    validate_only: boolean


@struct
class CreatePartitionsTopicResult:
    name: string
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """The result for each topic."""

    throttle_time_ms: i32 = v(default=0)
    results: list[CreatePartitionsTopicResult] = v(of="topics", unique=True)


@struct
class DeleteRecordsPartition:
    partition_index: i32
    offset: i64


@struct
class DeleteRecordsTopic:
    name: string
    partitions: list[DeleteRecordsPartition]


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Increase the log start offsets of partitions."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: i32


@struct
class DeleteRecordsPartitionResult:
    partition_index: i32
    low_watermark: i64
    error_code: i16 = v(default=0)


@struct
class DeleteRecordsTopicResult:
    name: string
    partitions: list[DeleteRecordsPartitionResult] = v(of="partitions")


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The new log start offset of each partition."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[DeleteRecordsTopicResult] = v(of="topics")
