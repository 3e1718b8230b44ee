"""Pure: the messages that look up offsets by timestamp and by leader epoch.

A negative timestamp is a question of its own kind (earliest, latest, tiered).
"""

from kafka_ds.protocol.types import (
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    v,
)

# Special timestamps of ListOffsets.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3  # KIP-734
EARLIEST_LOCAL = -4  # KIP-405
LATEST_TIERED = -5  # KIP-1005
EARLIEST_PENDING_UPLOAD = -6  # KIP-1023


@struct
class ListOffsetsPartition:
    partition_index: i32
    current_leader_epoch: i32 = v("4+", default=-1)
    timestamp: i64


@struct
class ListOffsetsTopic:
    name: string
    partitions: list[ListOffsetsPartition]


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """Look up the offsets of timestamps."""

    replica_id: i32
    isolation_level: i8 = v("2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: i32 = v("10+", default=0)


@struct
class ListOffsetsPartitionResponse:
    partition_index: i32
    error_code: i16 = v(default=0)
    timestamp: i64 = v(default=-1)
    offset: i64 = v(default=-1)
    leader_epoch: i32 = v("4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: string
    partitions: list[ListOffsetsPartitionResponse] = v(of="partitions")


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """The offset of each timestamp, and its leader epoch."""

    throttle_time_ms: i32 = v("2+", default=0)
    topics: list[ListOffsetsTopicResponse] = v(of="topics")


@struct
class OffsetForLeaderPartition:
    partition: i32
    current_leader_epoch: i32 = v(default=-1)
    leader_epoch: i32


@struct
class OffsetForLeaderTopic:
    topic: string
    partitions: list[OffsetForLeaderPartition]


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Look up the end offsets of leader epochs."""

    replica_id: i32 = v("3+", default=-2)
    topics: list[OffsetForLeaderTopic]


@struct
class OffsetForLeaderEpochEndOffset:
    error_code: i16 = v(default=0)
    partition: i32
    leader_epoch: i32 = v(default=-1)
    end_offset: i64 = v(default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: string
    partitions: list[OffsetForLeaderEpochEndOffset] = v(of="partitions")


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The end offset of each epoch, by which a follower detects divergence."""

    throttle_time_ms: i32 = v(default=0)
    topics: list[OffsetForLeaderTopicResult] = v(of="topics")
