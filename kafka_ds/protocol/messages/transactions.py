"""Pure: the messages of idempotent and transactional producers.

Before version 4 AddPartitionsToTxn speaks of one transaction, since then of many (KIP-890), in different fields.
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

# Of TxnOffsetCommit (KIP-1319).
FIRST_VERSION_WITH_TOPIC_IDS = 6


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    """Request a producer id, and fence earlier producers with the transactional id."""

    transactional_id: string | None = v(nullable="0+")
    transaction_timeout_ms: i32
    producer_id: i64 = v("3+", default=-1)
    producer_epoch: i16 = v("3+", default=-1)
    enable2_pc: boolean = v("6+", default=False)
    keep_prepared_txn: boolean = v("6+", default=False)


@message(key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The producer id and its epoch."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    producer_id: i64 = v(default=-1)
    producer_epoch: i16
    ongoing_txn_producer_id: i64 = v("6+", default=-1)
    ongoing_txn_producer_epoch: i16 = v("6+", default=-1)


@struct
class AddPartitionsToTxnTopic:
    name: string
    partitions: list[i32]


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    verify_only: boolean = v(default=False)
    topics: list[AddPartitionsToTxnTopic]


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction."""

    transactions: list[AddPartitionsToTxnTransaction] = v("4+", default=[])
    v3_and_below_transactional_id: string = v("0-3", default="")
    v3_and_below_producer_id: i64 = v("0-3", default=0)
    v3_and_below_producer_epoch: i16 = v("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = v("0-3", default=[])


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: i32
    partition_error_code: i16


@struct
class AddPartitionsToTxnTopicResult:
    name: string
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = v(of="partitions")


@struct
class AddPartitionsToTxnResult:
    transactional_id: string
    topic_results: list[AddPartitionsToTxnTopicResult]


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v("4+", default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = v("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = v(
        "0-3", default=[], of="v3_and_below_topics"
    )


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Add a group's offsets to a transaction."""

    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    group_id: string


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """The result."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = v("2+", default=-1)
    committed_metadata: string | None = v(nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: string = v("0-5", default="")
    topic_id: uuid = v("6+", default=NO_UUID)
    partitions: list[TxnOffsetCommitRequestPartition]


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    """Commit offsets of a group as part of a transaction."""

    transactional_id: string
    group_id: string
    producer_id: i64
    producer_epoch: i16
    generation_id_or_member_epoch: i32 = v("3+", default=-1)
    member_id: string = v("3+", default="")
    group_instance_id: string | None = v("3+", nullable="0+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class TxnOffsetCommitResponseTopic:
    name: string = v("0-5", default="")
    topic_id: uuid = v("6+", default=NO_UUID)
    partitions: list[TxnOffsetCommitResponsePartition] = v(of="partitions")


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = v(of="topics")


@message(key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commit or abort a transaction."""

    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    committed: boolean


@message(key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """The result, with the producer id and epoch of the next transaction."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    producer_id: i64 = v("5+", default=-1)
    producer_epoch: i16 = v("5+", default=-1)


@struct
class WritableTxnMarkerTopic:
    name: string
    partition_indexes: list[i32]


@struct
class WritableTxnMarker:
    producer_id: i64
    producer_epoch: i16
    transaction_result: boolean
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: i32
    transaction_version: i8 = v("2+", default=0)


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """Write transaction markers to partitions."""

    markers: list[WritableTxnMarker]


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class WritableTxnMarkerTopicResult:
    name: string
    partitions: list[WritableTxnMarkerPartitionResult] = v(of="partition_indexes")


@struct
class WritableTxnMarkerResult:
    producer_id: i64
    topics: list[WritableTxnMarkerTopicResult] = v(of="topics")


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """The result for each partition of each transaction."""

    markers: list[WritableTxnMarkerResult] = v(of="markers")
