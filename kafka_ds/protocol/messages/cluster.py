"""Pure: the messages about brokers, leaders, coordinators and API versions.

An ApiVersions response is the first thing that a client of any age reads, so its header is never flexible (KIP-511),
and a version that is not served is answered in the form of version 0.
"""

from kafka_ds.protocol.types import (
    MIN_I32,
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


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """Request the broker's APIs and their versions."""

    client_software_name: string = v("3+", default="")
    client_software_version: string = v("3+", default="")
    cluster_id: string | None = v("5+", nullable="5+", default=None)
    node_id: i32 = v("5+", default=-1)


@struct
class ApiVersion:
    api_key: i16
    min_version: i16
    max_version: i16


@struct
class SupportedFeatureKey:
    name: string
    min_version: i16
    max_version: i16


@struct
class FinalizedFeatureKey:
    name: string
    max_version_level: i16
    min_version_level: i16


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """The APIs and features of this broker."""

    error_code: i16 = v(default=0)
    api_keys: list[ApiVersion]
    throttle_time_ms: i32 = v("1+", default=0)
    supported_features: list[SupportedFeatureKey] = v("3+", tag=0, default=[])
    finalized_features_epoch: i64 = v("3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = v("3+", tag=2, default=[])
    zk_migration_ready: boolean = v("3+", tag=3, default=False)


@struct
class MetadataRequestTopic:
    topic_id: uuid = v("10+", default=NO_UUID)
    name: string | None = v(nullable="10+")


@message(key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Request the metadata of topics; null means all."""

    topics: list[MetadataRequestTopic] | None = v(nullable="1+")
    allow_auto_topic_creation: boolean = v("4+", default=True)
    include_cluster_authorized_operations: boolean = v("8-10", default=False)
    include_topic_authorized_operations: boolean = v("8+", default=False)


@struct
class MetadataResponseBroker:
    node_id: i32
    host: string
    port: i32
    rack: string | None = v("1+", nullable="0+", default=None)


@struct
class MetadataResponsePartition:
    error_code: i16 = v(default=0)
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = v("7+", default=-1)
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    offline_replicas: list[i32] = v("5+", default=[])


@struct
class MetadataResponseTopic:
    error_code: i16 = v(default=0)
    name: string | None = v(nullable="12+")
    topic_id: uuid = v("10+", default=NO_UUID)
    is_internal: boolean = v("1+", default=False)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: i32 = v("8+", default=MIN_I32)


@message(key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The brokers, and for each topic its partitions with leader, replicas and ISR."""

    throttle_time_ms: i32 = v("3+", default=0)
    brokers: list[MetadataResponseBroker]
    cluster_id: string | None = v("2+", nullable="0+", default=None)
    controller_id: i32 = v("1+", default=-1)
    topics: list[MetadataResponseTopic] = v(of="topics")
    cluster_authorized_operations: i32 = v("8-10", default=MIN_I32)
    error_code: i16 = v("13+", default=0)


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """The cluster's brokers and its controller."""

    include_cluster_authorized_operations: boolean
    endpoint_type: i8 = v("1+", default=1)
    include_fenced_brokers: boolean = v("2+", default=False)


@struct
class DescribeClusterBroker:
    broker_id: i32
    host: string
    port: i32
    rack: string | None = v(nullable="0+", default=None)
    is_fenced: boolean = v("2+", default=False)


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The brokers of the cluster and its controller."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    endpoint_type: i8 = v("1+", default=1)
    cluster_id: string
    controller_id: i32 = v(default=-1)
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: i32 = v(default=MIN_I32)


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Find the coordinator of a group or transactional id."""

    key: string = v("0-3", default="")
    key_type: i8 = v("1+", default=0)
    coordinator_keys: list[string] = v("4+", default=[])


@struct
class Coordinator:
    key: string
    node_id: i32
    host: string
    port: i32
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinator: one before version 4, one for each key since."""

    throttle_time_ms: i32 = v("1+", default=0)
    error_code: i16 = v("0-3", default=0)
    error_message: string | None = v("1-3", nullable="0+", default=None)
    node_id: i32 = v("0-3", default=0)
    host: string = v("0-3", default="")
    port: i32 = v("0-3", default=0)
    coordinators: list[Coordinator] = v("4+", default=[], of="coordinator_keys")
