"""Pure: the messages of streams groups (KIP-1071) to their group coordinator: heartbeats and descriptions.

Null means "as before" in a heartbeat, and "nothing new" in its response. The full description of a topology (KIP-1331),
which version 1 can ask for, is kept by a plugin of Kafka's brokers; there is none here, and none in Kafka by default.
"""

from collections.abc import Iterator
from enum import IntEnum

from kafka_ds.protocol.types import (
    MIN_I32,
    boolean,
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    u16,
    v,
)


class StreamsGroupStatus(IntEnum):
    """What keeps a group from its tasks, or what its members should know."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class TopologyDescriptionStatus(IntEnum):
    """Why a description of a group has, or has not, the full one of its topology (KIP-1331)."""

    NOT_REQUESTED = 0
    NOT_STORED = 1
    ERROR = 2
    AVAILABLE = 3


@struct
class StreamsKeyValue:
    key: string
    value: string


@struct
class StreamsEndpoint:
    host: string
    port: u16


@struct
class StreamsTaskIds:
    subtopology_id: string
    partitions: list[i32]


@struct
class StreamsTaskOffset:
    subtopology_id: string
    partition: i32
    offset: i64


@struct
class StreamsTopicInfo:
    name: string
    partitions: i32
    replication_factor: i16
    topic_configs: list[StreamsKeyValue]


@struct
class HeartbeatCopartitionGroup:
    source_topics: list[i16]
    source_topic_regex: list[i16]
    repartition_source_topics: list[i16]


@struct
class HeartbeatSubtopology:
    subtopology_id: string
    source_topics: list[string]
    source_topic_regex: list[string]
    state_changelog_topics: list[StreamsTopicInfo]
    repartition_sink_topics: list[string]
    repartition_source_topics: list[StreamsTopicInfo]
    copartition_groups: list[HeartbeatCopartitionGroup]


@struct
class HeartbeatTopology:
    epoch: i32
    subtopologies: list[HeartbeatSubtopology]


def topics_of_topology(topology: HeartbeatTopology) -> Iterator[str]:
    """The names of all its topics, some perhaps more than once."""
    for each in topology.subtopologies:
        yield from each.source_topics
        yield from each.repartition_sink_topics
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            yield topic.name


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    """A member's heartbeat with its topology and tasks. It joins with epoch 0 and leaves with -1."""

    group_id: string
    member_id: string
    member_epoch: i32
    endpoint_information_epoch: i32
    instance_id: string | None = v(nullable="0+", default=None)
    rack_id: string | None = v(nullable="0+", default=None)
    rebalance_timeout_ms: i32 = v(default=-1)
    topology: HeartbeatTopology | None = v(nullable="0+", default=None)
    active_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    process_id: string | None = v(nullable="0+", default=None)
    user_endpoint: StreamsEndpoint | None = v(nullable="0+", default=None)
    client_tags: list[StreamsKeyValue] | None = v(nullable="0+", default=None)
    task_offsets: list[StreamsTaskOffset] | None = v(nullable="0+", default=None)
    task_end_offsets: list[StreamsTaskOffset] | None = v(nullable="0+", default=None)
    shutdown_application: boolean = v(default=False)


@struct
class HeartbeatStatus:
    status_code: i8
    status_detail: string


@struct
class HeartbeatTopicPartition:
    topic: string
    partitions: list[i32]


@struct
class EndpointToPartitions:
    user_endpoint: StreamsEndpoint
    active_partitions: list[HeartbeatTopicPartition]
    standby_partitions: list[HeartbeatTopicPartition]


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    """The member's epoch, its tasks if they have changed, and what keeps the group from them."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    member_id: string = v(default="")
    member_epoch: i32 = v(default=0)
    heartbeat_interval_ms: i32 = v(default=0)
    acceptable_recovery_lag_legacy: i32 = v("0", default=0)
    task_offset_interval_ms: i32 = v(default=0)
    acceptable_recovery_lag: i64 = v("1+", default=-1)
    status: list[HeartbeatStatus] | None = v(nullable="0+", default=[])
    active_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    standby_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    warmup_tasks: list[StreamsTaskIds] | None = v(nullable="0+", default=None)
    topology_description_required: boolean = v("1+", default=False)
    endpoint_information_epoch: i32 = v(default=0)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = v(nullable="0+", default=None)


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    """The states, topologies and members of these streams groups."""

    group_ids: list[string]
    include_authorized_operations: boolean = v(default=False)
    include_topology_description: boolean = v("1+", default=False)


@struct
class DescribedSubtopology:
    subtopology_id: string
    source_topics: list[string]
    repartition_sink_topics: list[string]
    state_changelog_topics: list[StreamsTopicInfo]
    repartition_source_topics: list[StreamsTopicInfo]


@struct
class DescribedTopology:
    epoch: i32
    subtopologies: list[DescribedSubtopology] | None = v(nullable="0+", default=None)


@struct
class DescribedTasks:
    active_tasks: list[StreamsTaskIds]
    standby_tasks: list[StreamsTaskIds]
    warmup_tasks: list[StreamsTaskIds]


@struct
class StreamsGroupDescribeResponseMember:
    member_id: string
    member_epoch: i32
    instance_id: string | None = v(nullable="0+", default=None)
    rack_id: string | None = v(nullable="0+", default=None)
    client_id: string
    client_host: string
    topology_epoch: i32
    process_id: string
    user_endpoint: StreamsEndpoint | None = v(nullable="0+", default=None)
    client_tags: list[StreamsKeyValue]
    task_offsets: list[StreamsTaskOffset]
    task_end_offsets: list[StreamsTaskOffset]
    assignment: DescribedTasks
    target_assignment: DescribedTasks
    is_classic: boolean = v(default=False)


@struct
class TopologyDescriptionNode:
    name: string
    node_type: i8
    source_topics: list[string]
    sink_topic: string | None = v(nullable="1+", default=None)
    stores: list[string]
    successors: list[string]


@struct
class TopologyDescriptionSubtopology:
    subtopology_id: string
    nodes: list[TopologyDescriptionNode]


@struct
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


@struct
class TopologyDescription:
    subtopologies: list[TopologyDescriptionSubtopology]
    global_stores: list[TopologyDescriptionGlobalStore]


@struct
class StreamsGroupDescribeResponseDescribedGroup:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    group_id: string
    group_state: string = v(default="")
    group_epoch: i32 = v(default=0)
    assignment_epoch: i32 = v(default=0)
    topology: DescribedTopology | None = v(nullable="0+", default=None)
    members: list[StreamsGroupDescribeResponseMember]
    authorized_operations: i32 = v(default=MIN_I32)
    topology_description: TopologyDescription | None = v("1+", nullable="1+", default=None)
    topology_description_status: i8 = v("1+", default=0)
    assignor_name: string | None = v("1+", nullable="1+", default=None)


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    """State, epochs, topology and members of each group, with their tasks."""

    throttle_time_ms: i32 = v(default=0)
    groups: list[StreamsGroupDescribeResponseDescribedGroup] = v(of="group_ids")
