"""Pure: the messages that commit, fetch and delete the offsets of groups.

OffsetFetch asks for one group before version 8 and for many since (KIP-709), in different fields.
"""

from kafka_ds.protocol.types import (
    NO_UUID,
    boolean,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    uuid,
    v,
)

# Of OffsetCommit and of OffsetFetch (KIP-848).
FIRST_VERSION_WITH_TOPIC_IDS = 10


@struct
class OffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = v("6+", default=-1)
    committed_metadata: string | None = v(nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: string = v("2-9", default="")
    topic_id: uuid = v("10+", default=NO_UUID)
    partitions: list[OffsetCommitRequestPartition]


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """Commit offsets of a group."""

    group_id: string
    generation_id_or_member_epoch: i32 = v(default=-1)
    member_id: string
    group_instance_id: string | None = v("7+", nullable="0+", default=None)
    retention_time_ms: i64 = v("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic]


@struct
class OffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class OffsetCommitResponseTopic:
    name: string = v("2-9", default="")
    topic_id: uuid = v("10+", default=NO_UUID)
    partitions: list[OffsetCommitResponsePartition] = v(of="partitions")


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = v("3+", default=0)
    topics: list[OffsetCommitResponseTopic] = v(of="topics")


@struct
class OffsetFetchRequestTopic:
    name: string
    partition_indexes: list[i32]


@struct
class OffsetFetchRequestTopics:
    name: string = v("8-9", default="")
    topic_id: uuid = v("10+", default=NO_UUID)
    partition_indexes: list[i32]


@struct
class OffsetFetchRequestGroup:
    group_id: string
    member_id: string | None = v("9+", nullable="0+", default=None)
    member_epoch: i32 = v("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = v(nullable="0+")


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Fetch the committed offsets of groups."""

    group_id: string = v("1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = v("1-7", nullable="2-7", default=[])
    groups: list[OffsetFetchRequestGroup] = v("8+", default=[])
    require_stable: boolean = v("7+", default=False)


@struct
class OffsetFetchResponsePartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = v("5-7", default=-1)
    metadata: string | None = v(nullable="0+")
    error_code: i16 = v(default=0)


@struct
class OffsetFetchResponseTopic:
    name: string
    partitions: list[OffsetFetchResponsePartition] = v(of="partition_indexes")


@struct
class OffsetFetchResponsePartitions:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = v(default=-1)
    metadata: string | None = v(nullable="0+")
    error_code: i16 = v(default=0)


@struct
class OffsetFetchResponseTopics:
    name: string = v("8-9", default="")
    topic_id: uuid = v("10+", default=NO_UUID)
    partitions: list[OffsetFetchResponsePartitions] = v(of="partition_indexes")


@struct
class OffsetFetchResponseGroup:
    group_id: string
    topics: list[OffsetFetchResponseTopics]
    error_code: i16 = v(default=0)


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The committed offsets."""

    throttle_time_ms: i32 = v("3+", default=0)
    topics: list[OffsetFetchResponseTopic] = v("1-7", default=[], of="topics")
    error_code: i16 = v("2-7", default=0)
    groups: list[OffsetFetchResponseGroup] = v("8+", default=[], of="groups")


@struct
class OffsetDeleteRequestPartition:
    partition_index: i32


@struct
class OffsetDeleteRequestTopic:
    name: string
    partitions: list[OffsetDeleteRequestPartition]


@message(key=47, versions="0", flexible=None)
class OffsetDeleteRequest:
    """Delete committed offsets of a group."""

    group_id: string
    topics: list[OffsetDeleteRequestTopic]


@struct
class OffsetDeleteResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class OffsetDeleteResponseTopic:
    name: string
    partitions: list[OffsetDeleteResponsePartition] = v(of="partitions")


@message(key=47, versions="0", flexible=None)
class OffsetDeleteResponse:
    """The result for each partition."""

    error_code: i16 = v(default=0)
    throttle_time_ms: i32 = v(default=0)
    topics: list[OffsetDeleteResponseTopic] = v(of="topics")
