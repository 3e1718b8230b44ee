"""Pure: the messages that carry the records of share groups (KIP-932): ShareFetch and ShareAcknowledge.

Version 0 was Kafka 4.0's early access, which no later broker serves.
"""

from kafka_ds.protocol.messages.data import NodeEndpoint
from kafka_ds.protocol.types import (
    MAX_I32,
    boolean,
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


@struct
class AcknowledgementBatch:
    first_offset: i64
    last_offset: i64
    acknowledge_types: list[i8]


@struct
class ShareFetchPartition:
    partition_index: i32
    acknowledgement_batches: list[AcknowledgementBatch] = v(default=[])


@struct
class ShareFetchTopic:
    topic_id: uuid
    partitions: list[ShareFetchPartition]


@struct
class ShareForgottenTopic:
    topic_id: uuid
    partitions: list[i32]


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    """Acknowledge records, and acquire others, waiting up to `max_wait_ms` for them.

    A share session begins with epoch 0 and ends with -1; its partitions are those of the requests before, too.
    """

    group_id: string | None = v(nullable="0+", default=None)
    member_id: string | None = v(nullable="0+")
    share_session_epoch: i32
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = v(default=MAX_I32)
    max_records: i32
    batch_size: i32
    share_acquire_mode: i8 = v("2+", default=0)
    is_renew_ack: boolean = v("2+", default=False)
    topics: list[ShareFetchTopic]
    forgotten_topics_data: list[ShareForgottenTopic] = v(default=[])


@struct
class ShareLeaderIdAndEpoch:
    leader_id: i32 = v(default=0)
    leader_epoch: i32 = v(default=0)


@struct
class AcquiredRecords:
    first_offset: i64
    last_offset: i64
    delivery_count: i16


@struct
class ShareFetchPartitionData:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    acknowledge_error_code: i16 = v(default=0)
    acknowledge_error_message: string | None = v(nullable="0+", default=None)
    current_leader: ShareLeaderIdAndEpoch
    records: records_ = v(nullable="0")
    acquired_records: list[AcquiredRecords] = v(default=[])


@struct
class ShareFetchableTopicResponse:
    topic_id: uuid
    partitions: list[ShareFetchPartitionData] = v(of="partitions")


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    """The outcome of the acknowledgements, and the acquired records within whole batches."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    acquisition_lock_timeout_ms: i32 = v(default=0)
    responses: list[ShareFetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = v(default=[])


@struct
class ShareAcknowledgePartition:
    partition_index: i32
    acknowledgement_batches: list[AcknowledgementBatch]


@struct
class ShareAcknowledgeTopic:
    topic_id: uuid
    partitions: list[ShareAcknowledgePartition]


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """Acknowledge records of a share session that has begun."""

    group_id: string | None = v(nullable="0+", default=None)
    member_id: string | None = v(nullable="0+")
    share_session_epoch: i32
    is_renew_ack: boolean = v("2+", default=False)
    topics: list[ShareAcknowledgeTopic]


@struct
class ShareAcknowledgePartitionData:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    current_leader: ShareLeaderIdAndEpoch


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: uuid
    partitions: list[ShareAcknowledgePartitionData] = v(of="partitions")


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """The outcome of each partition's acknowledgements."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    acquisition_lock_timeout_ms: i32 = v("2+", default=0)
    responses: list[ShareAcknowledgeTopicResponse]
    node_endpoints: list[NodeEndpoint] = v(default=[])
