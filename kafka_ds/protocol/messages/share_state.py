"""Pure: the messages between brokers and share coordinators (KIP-932), which keep the state of share partitions.

A start offset of -1 means none: the partition's leader decides where the group begins, or the offset stays as it is.
"""

from kafka_ds.protocol.types import i8, i16, i32, i64, message, string, struct, uuid, v


@struct
class InitializeStatePartition:
    partition: i32
    state_epoch: i32
    start_offset: i64


@struct
class InitializeStateData:
    topic_id: uuid
    partitions: list[InitializeStatePartition]


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    """Begin the state of share partitions, also of known ones, with a higher state epoch."""

    group_id: string
    topics: list[InitializeStateData]


@struct
class StatePartitionResult:
    partition: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@struct
class StateResult:
    topic_id: uuid
    partitions: list[StatePartitionResult] = v(of="partitions")


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    """The outcome for each share partition."""

    results: list[StateResult] = v(of="topics")


@struct
class ReadStatePartition:
    partition: i32
    leader_epoch: i32


@struct
class ReadStateData:
    topic_id: uuid
    partitions: list[ReadStatePartition]


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    """Read the whole state of share partitions. The leader epoch fences the leaders before."""

    group_id: string
    topics: list[ReadStateData]


@struct
class StateBatch:
    """Records in one delivery state: 0 available, 2 acknowledged, 4 archived; both offsets belong to it."""

    first_offset: i64
    last_offset: i64
    delivery_state: i8
    delivery_count: i16


@struct
class ReadStatePartitionResult:
    partition: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    state_epoch: i32 = v(default=0)
    start_offset: i64 = v(default=0)
    state_batches: list[StateBatch] = v(default=[])


@struct
class ReadStateResult:
    topic_id: uuid
    partitions: list[ReadStatePartitionResult] = v(of="partitions")


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    """State epoch, start offset and batches of each share partition."""

    results: list[ReadStateResult] = v(of="topics")


@struct
class WriteStatePartition:
    partition: i32
    state_epoch: i32
    leader_epoch: i32
    start_offset: i64
    delivery_complete_count: i32 = v("1+", default=-1)
    state_batches: list[StateBatch]


@struct
class WriteStateData:
    topic_id: uuid
    partitions: list[WriteStatePartition]


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    """Write what has changed in the state of share partitions."""

    group_id: string
    topics: list[WriteStateData]


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    """The outcome for each share partition."""

    results: list[StateResult] = v(of="topics")


@struct
class DeleteStatePartition:
    partition: i32


@struct
class DeleteStateData:
    topic_id: uuid
    partitions: list[DeleteStatePartition]


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Forget the state of share partitions."""

    group_id: string
    topics: list[DeleteStateData]


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    """The outcome for each share partition."""

    results: list[StateResult] = v(of="topics")


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    """Read the start offsets of share partitions, for their descriptions."""

    group_id: string
    topics: list[ReadStateData]


@struct
class ReadStateSummaryPartitionResult:
    partition: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    state_epoch: i32 = v(default=0)
    leader_epoch: i32 = v(default=0)
    start_offset: i64 = v(default=0)
    delivery_complete_count: i32 = v("1+", default=-1)


@struct
class ReadStateSummaryResult:
    topic_id: uuid
    partitions: list[ReadStateSummaryPartitionResult] = v(of="partitions")


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    """Epochs, start offset and number of delivered records of each share partition."""

    results: list[ReadStateSummaryResult] = v(of="topics")
