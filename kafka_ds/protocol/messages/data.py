"""Pure: the messages that carry records: Produce and Fetch.

`records` is one opaque run of batches, never looked into here; topics have names in the older versions and ids in the
newer ones (KIP-516), never both.
"""

from kafka_ds.protocol.types import (
    MAX_I32,
    MAX_I64,
    NO_UUID,
    i8,
    i16,
    i32,
    i64,
    message,
    records_,
    string,
    struct,
    uuid,
    v,
)

# Of Produce and of Fetch (KIP-516).
FIRST_VERSION_WITH_TOPIC_IDS = 13
# The replica id of a consumer, here and in ListOffsets.
CONSUMER = -1


@struct
class PartitionProduceData:
    index: i32
    records: records_ = v(nullable="0+")


@struct
class TopicProduceData:
    name: string = v("3-12", default="")
    topic_id: uuid = v("13+", default=NO_UUID)
    partition_data: list[PartitionProduceData]


@message(key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    """Append these batches to these partitions."""

    transactional_id: string | None = v(nullable="0+", default=None)
    acks: i16
    timeout_ms: i32
    topic_data: list[TopicProduceData]

    @property
    def is_answered(self) -> bool:
        """Whether a response is awaited."""
        return self.acks != 0


@struct
class BatchIndexAndErrorMessage:
    batch_index: i32
    batch_index_error_message: string | None = v(nullable="0+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: i32 = v(default=-1)
    leader_epoch: i32 = v(default=-1)


@struct
class PartitionProduceResponse:
    index: i32
    error_code: i16 = v(default=0)
    base_offset: i64
    log_append_time_ms: i64 = v(default=-1)
    log_start_offset: i64 = v("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = v("8+", default=[])
    error_message: string | None = v("8+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch | None = v("10+", tag=0, default=None)


@struct
class TopicProduceResponse:
    name: string = v("3-12", default="")
    topic_id: uuid = v("13+", default=NO_UUID)
    partition_responses: list[PartitionProduceResponse] = v(of="partition_data")


@struct
class NodeEndpoint:
    node_id: i32
    host: string
    port: i32
    rack: string | None = v(nullable="0+", default=None)


@message(key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """The base offsets of the batches, or errors."""

    responses: list[TopicProduceResponse] = v(of="topic_data")
    throttle_time_ms: i32 = v(default=0)
    node_endpoints: list[NodeEndpoint] = v("10+", tag=0, default=[])


@struct
class FetchReplicaState:
    replica_id: i32 = v(default=-1)
    replica_epoch: i64 = v(default=-1)


@struct
class FetchPartition:
    partition: i32
    current_leader_epoch: i32 = v("9+", default=-1)
    fetch_offset: i64
    last_fetched_epoch: i32 = v("12+", default=-1)
    log_start_offset: i64 = v("5+", default=-1)
    partition_max_bytes: i32
    replica_directory_id: uuid = v("17+", tag=0, default=NO_UUID)
    high_watermark: i64 = v("18+", tag=1, default=MAX_I64)


@struct
class FetchTopic:
    topic: string = v("4-12", default="")
    topic_id: uuid = v("13+", default=NO_UUID)
    partitions: list[FetchPartition]


@struct
class ForgottenTopic:
    topic: string = v("7-12", default="")
    topic_id: uuid = v("13+", default=NO_UUID)
    partitions: list[i32]


@message(key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """Fetch records, waiting up to `max_wait_ms` for `min_bytes`."""

    cluster_id: string | None = v("12+", nullable="0+", tag=0, default=None)
    replica_id: i32 = v("4-14", default=-1)
    replica_state: FetchReplicaState | None = v("15+", tag=1, default=None)
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = v(default=MAX_I32)
    isolation_level: i8 = v(default=0)
    session_id: i32 = v("7+", default=0)
    session_epoch: i32 = v("7+", default=-1)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = v("7+", default=[])
    rack_id: string = v("11+", default="")


@struct
class FetchEpochEndOffset:
    epoch: i32 = v(default=-1)
    end_offset: i64 = v(default=-1)


@struct
class SnapshotId:
    end_offset: i64 = v(default=-1)
    epoch: i32 = v(default=-1)


@struct
class AbortedTransaction:
    producer_id: i64
    first_offset: i64


@struct
class FetchPartitionData:
    partition_index: i32 = v(of="partition")
    error_code: i16 = v(default=0)
    high_watermark: i64
    last_stable_offset: i64 = v(default=-1)
    log_start_offset: i64 = v("5+", default=-1)
    diverging_epoch: FetchEpochEndOffset | None = v("12+", tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = v("12+", tag=1, default=None)
    snapshot_id: SnapshotId | None = v("12+", tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = v(nullable="0+", default=None)
    preferred_read_replica: i32 = v("11+", default=-1)
    records: records_ = v(nullable="0+")


@struct
class FetchableTopicResponse:
    topic: string = v("4-12", default="")
    topic_id: uuid = v("13+", default=NO_UUID)
    partitions: list[FetchPartitionData] = v(of="partitions")


@message(key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """The batches from each fetch offset, high watermarks and last stable offsets."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v("7+", default=0)
    session_id: i32 = v("7+", default=0)
    responses: list[FetchableTopicResponse] = v(of="topics")
    node_endpoints: list[NodeEndpoint] = v("16+", tag=0, default=[])
