"""Pure: the messages that describe producers and transactions.

Nothing here changes anything.
"""

from kafka_ds.protocol.types import (
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    v,
)


@struct
class DescribeProducersTopicRequest:
    name: string
    partition_indexes: list[i32]


@message(key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """The producers of these partitions."""

    topics: list[DescribeProducersTopicRequest]


@struct
class ProducerState:
    producer_id: i64
    producer_epoch: i32
    last_sequence: i32 = v(default=-1)
    last_timestamp: i64 = v(default=-1)
    coordinator_epoch: i32
    current_txn_start_offset: i64 = v(default=-1)


@struct
class PartitionResponse:
    partition_index: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    active_producers: list[ProducerState]


@struct
class TopicResponse:
    name: string
    partitions: list[PartitionResponse] = v(of="partition_indexes")


@message(key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The producer state of each partition."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[TopicResponse] = v(of="topics")


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Describe the transactions of transactional ids."""

    transactional_ids: list[string]


@struct
class DescribeTransactionsTopicData:
    topic: string
    partitions: list[i32]


@struct
class DescribeTransactionsTransactionState:
    error_code: i16 = v(default=0)
    transactional_id: string
    transaction_state: string
    transaction_timeout_ms: i32
    transaction_start_time_ms: i64
    producer_id: i64
    producer_epoch: i16
    topics: list[DescribeTransactionsTopicData]


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """State, producer and partitions of each transaction."""

    throttle_time_ms: i32 = v(default=0)
    transaction_states: list[DescribeTransactionsTransactionState] = v(of="transactional_ids")


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """List the transactional ids of this coordinator, by state, producer, age or name."""

    state_filters: list[string]
    producer_id_filters: list[i64]
    duration_filter: i64 = v("1+", default=-1)
    transactional_id_pattern: string | None = v("2+", nullable="0+", default=None)


@struct
class ListTransactionsTransactionState:
    transactional_id: string
    producer_id: i64
    transaction_state: string


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactional ids that this broker coordinates."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    unknown_state_filters: list[string]
    transaction_states: list[ListTransactionsTransactionState]
