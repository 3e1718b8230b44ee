"""Pure: what Kafka keeps of a streams group (KIP-1071) in `__consumer_offsets`.

As for the consumer protocol there is a record for each fact that changes by itself; one more has the topology, as the
members have sent it. How keys and values lie in the log is `persisted`'s to say.
"""

from kafka_ds.protocol.types import i8, i16, i32, i64, message, string, struct, u16, v


@message(key=None, versions="0", flexible=None)
class StreamsGroupMetadataKey:
    """The key of a group's epoch."""

    group_id: string


@struct
class LastAssignmentConfig:
    key: string
    value: string


@message(key=None, versions="0", flexible="0+")
class StreamsGroupMetadataValue:
    """The group epoch, a hash of its topics, and which topology and settings it is for."""

    epoch: i32
    metadata_hash: i64
    validated_topology_epoch: i32 = v(tag=0, default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = v(tag=1, nullable="0+", default=[])
    # Of Kafka 4.4's plugin that keeps descriptions of topologies, which is not here.
    stored_description_topology_epoch: i32 = v(tag=2, default=-1)
    failed_description_topology_epoch: i32 = v(tag=3, default=-1)


@message(key=None, versions="0", flexible=None)
class StreamsGroupMemberMetadataKey:
    """The key of a member's metadata."""

    group_id: string
    member_id: string


@struct
class MemberEndpoint:
    host: string
    port: u16


@struct
class MemberClientTag:
    key: string
    value: string


@message(key=None, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    """A member's identity, its process, and the topology that it has."""

    instance_id: string | None = v(nullable="0+")
    rack_id: string | None = v(nullable="0+")
    client_id: string
    client_host: string
    rebalance_timeout_ms: i32 = v(default=-1)
    topology_epoch: i32
    process_id: string
    user_endpoint: MemberEndpoint | None = v(nullable="0+", default=None)
    client_tags: list[MemberClientTag]


@message(key=None, versions="0", flexible=None)
class StreamsGroupTargetAssignmentMetadataKey:
    """The key of a target assignment's epoch."""

    group_id: string


@message(key=None, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    """The epoch of the group for which the target was made, and when (KIP-1263)."""

    assignment_epoch: i32
    assignment_timestamp: i64 = v(tag=0, default=0)


@message(key=None, versions="0", flexible=None)
class StreamsGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: string
    member_id: string


@struct
class TargetTaskIds:
    subtopology_id: string
    partitions: list[i32]


@message(key=None, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    """A member's target assignment."""

    active_tasks: list[TargetTaskIds]
    standby_tasks: list[TargetTaskIds]
    warmup_tasks: list[TargetTaskIds]


@message(key=None, versions="0", flexible=None)
class StreamsGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: string
    member_id: string


@struct
class CurrentTaskIds:
    subtopology_id: string
    partitions: list[i32]
    assignment_epochs: list[i32] | None = v(tag=0, nullable="0+", default=[])


@message(key=None, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    """A member's current assignment, and the tasks that it has yet to give up."""

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    active_tasks: list[CurrentTaskIds]
    standby_tasks: list[CurrentTaskIds]
    warmup_tasks: list[CurrentTaskIds]
    active_tasks_pending_revocation: list[CurrentTaskIds]
    standby_tasks_pending_revocation: list[CurrentTaskIds]
    warmup_tasks_pending_revocation: list[CurrentTaskIds]


@message(key=None, versions="0", flexible=None)
class StreamsGroupTopologyKey:
    """The key of a group's topology."""

    group_id: string


@struct
class TopologyTopicConfig:
    key: string
    value: string


@struct
class TopologyTopicInfo:
    name: string
    partitions: i32
    replication_factor: i16
    topic_configs: list[TopologyTopicConfig]


@struct
class TopologyCopartitionGroup:
    source_topics: list[i16]
    source_topic_regex: list[i16]
    repartition_source_topics: list[i16]


@struct
class TopologySubtopology:
    subtopology_id: string
    source_topics: list[string]
    source_topic_regex: list[string]
    state_changelog_topics: list[TopologyTopicInfo]
    repartition_sink_topics: list[string]
    repartition_source_topics: list[TopologyTopicInfo]
    copartition_groups: list[TopologyCopartitionGroup]


@message(key=None, versions="0", flexible="0+")
class StreamsGroupTopologyValue:
    """The topology of a group's members."""

    epoch: i32
    subtopologies: list[TopologySubtopology]
