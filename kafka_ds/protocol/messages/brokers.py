"""Pure: the messages between brokers: a broker and its controller, forwarding, following the metadata.

Kafka's own are laid out as Kafka has them. Some are kafka-ds only, because in Kafka a quorum of controllers does what
the lake does here, or because Kafka has no tables: their keys begin at `OWN_KEYS_FROM`, and they are never advertised
to clients. So are the tagged fields from `OWN_TAGS_FROM` on, which others pass over.
"""

from kafka_ds.protocol.types import (
    NO_UUID,
    boolean,
    bytes_,
    i8,
    i16,
    i32,
    i64,
    message,
    string,
    struct,
    u16,
    uuid,
    v,
)

OWN_KEYS_FROM = 20_000
OWN_TAGS_FROM = 10_000

# -- AlterPartition -------------------------------------------------------------------------------


@struct
class AlterPartitionBrokerState:
    broker_id: i32
    broker_epoch: i64 = v(default=-1)


@struct
class AlterPartitionRequestPartition:
    partition_index: i32
    leader_epoch: i32
    new_isr: list[i32] = v("0-2", default=[])
    new_isr_with_epochs: list[AlterPartitionBrokerState] = v("3+", default=[])
    leader_recovery_state: i8 = v("1+", default=0)
    partition_epoch: i32


@struct
class AlterPartitionRequestTopic:
    topic_id: uuid
    partitions: list[AlterPartitionRequestPartition]


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    """A leader's proposal of new ISRs."""

    broker_id: i32
    broker_epoch: i64 = v(default=-1)
    topics: list[AlterPartitionRequestTopic]


@struct
class AlterPartitionResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)
    leader_id: i32
    leader_epoch: i32
    isr: list[i32]
    leader_recovery_state: i8 = v("1+", default=0)
    partition_epoch: i32


@struct
class AlterPartitionResponseTopic:
    topic_id: uuid
    partitions: list[AlterPartitionResponsePartition]


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    """The committed ISR of each partition, or an error."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    topics: list[AlterPartitionResponseTopic]


# -- forwarding -----------------------------------------------------------------------------------


@message(key=58, versions="0", flexible="0+")
class EnvelopeRequest:
    """A client's request with its header, forwarded to the controller (KIP-590)."""

    request_data: bytes_
    request_principal: bytes_ | None = v(nullable="0+")
    client_host_address: bytes_


@message(key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    """The response to the forwarded request, or an error."""

    response_data: bytes_ | None = v(nullable="0+", default=None)
    error_code: i16 = v(default=0)


# -- registration ---------------------------------------------------------------------------------


@struct
class BrokerRegistrationListener:
    name: string
    host: string
    port: u16
    security_protocol: i16


@struct
class BrokerRegistrationFeature:
    name: string
    min_supported_version: i16
    max_supported_version: i16


@message(key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest:
    """Register a broker at its start."""

    broker_id: i32
    cluster_id: string
    incarnation_id: uuid
    listeners: list[BrokerRegistrationListener]
    features: list[BrokerRegistrationFeature]
    rack: string | None = v(nullable="0+")
    is_migrating_zk_broker: boolean = v("1+", default=False)
    log_dirs: list[uuid] = v("2+", default=[])
    previous_broker_epoch: i64 = v("3+", default=-1)


@message(key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    """The broker epoch of this registration."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    broker_epoch: i64 = v(default=-1)


@message(key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest:
    """A broker's heartbeat, with its metadata offset."""

    broker_id: i32
    broker_epoch: i64 = v(default=-1)
    current_metadata_offset: i64
    want_fence: boolean
    want_shut_down: boolean
    offline_log_dirs: list[uuid] = v("1+", tag=0, default=[])
    cordoned_log_dirs: list[uuid] | None = v("2+", tag=1, nullable="2+", default=None)
    # Those of the offline ones that only are full.
    full_log_dirs: list[uuid] = v("1+", tag=OWN_TAGS_FROM, default=[])


@message(key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse:
    """The broker's state at the controller."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    is_caught_up: boolean = v(default=False)
    is_fenced: boolean = v(default=True)
    should_shut_down: boolean


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """Unregister a broker."""

    broker_id: i32


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Whether the broker was unregistered."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+")


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    """Request a block of producer ids (KIP-730)."""

    broker_id: i32
    broker_epoch: i64 = v(default=-1)


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    """A block of producer ids."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    producer_id_start: i64
    producer_id_len: i32


# -- log directories ------------------------------------------------------------------------------


@struct
class AssignReplicasRequestPartition:
    partition_index: i32


@struct
class AssignReplicasRequestTopic:
    topic_id: uuid
    partitions: list[AssignReplicasRequestPartition]


@struct
class AssignReplicasRequestDirectory:
    id: uuid
    topics: list[AssignReplicasRequestTopic]


@message(key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    """The log directories of a broker's replicas (KIP-858)."""

    broker_id: i32
    broker_epoch: i64 = v(default=-1)
    directories: list[AssignReplicasRequestDirectory]


@struct
class AssignReplicasResponsePartition:
    partition_index: i32
    error_code: i16 = v(default=0)


@struct
class AssignReplicasResponseTopic:
    topic_id: uuid
    partitions: list[AssignReplicasResponsePartition]


@struct
class AssignReplicasResponseDirectory:
    id: uuid
    topics: list[AssignReplicasResponseTopic]


@message(key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    """The result for each replica."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    directories: list[AssignReplicasResponseDirectory]


# -- kafka-ds' own -------------------------------------------------------------------------------


@message(key=20_000, versions="0", flexible="0+")
class ControllerLivenessRequest:
    """A pre-vote: can you reach this controller? Sent by a broker that cannot."""

    asking_id: i32
    controller_id: i32
    controller_epoch: i32


@message(key=20_000, versions="0", flexible="0+")
class ControllerLivenessResponse:
    """Milliseconds since that controller's last response to this broker (-1: none); its version, and who it is."""

    error_code: i16 = v(default=0)
    last_heard_ms: i64 = v(default=-1)
    metadata_version: i64 = v(default=-1)
    incarnation_id: uuid = v(default=NO_UUID)


@message(key=20_001, versions="0", flexible="0+")
class ReadMetadataRequest:
    """Fetch the metadata commits after a version; waits up to `max_wait_ms` if there are none."""

    broker_id: i32
    controller_epoch: i32
    after_version: i64
    max_wait_ms: i32
    max_bytes: i32


@struct
class MetadataEntry:
    """A commit: its records as the JSON array in the metadata log."""

    version: i64
    events: bytes_


@message(key=20_001, versions="0", flexible="0+")
class ReadMetadataResponse:
    """Durable commits in their order; `last_version` is the controller's newest."""

    error_code: i16 = v(default=0)
    controller_id: i32 = v(default=-1)
    controller_epoch: i32 = v(default=-1)
    last_version: i64 = v(default=-1)
    entries: list[MetadataEntry] = v(default=[])


@struct
class ValidatedSetting:
    name: string
    value: string


@struct
class ValidatedResource:
    """All dynamic settings of a broker, or (empty name) of all brokers, after a change."""

    name: string
    settings: list[ValidatedSetting]


@message(key=20_002, versions="0", flexible="0+")
class ValidateSettingsRequest:
    """Validate dynamic settings against the broker's own configuration file."""

    resources: list[ValidatedResource]


@message(key=20_002, versions="0", flexible="0+")
class ValidateSettingsResponse:
    """The error, if the settings are invalid."""

    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)


# -- MaintainTable ----------------------------------------------------------------------------------

OPTIMIZE, EXPIRE = 0, 1


@message(key=20_003, versions="0", flexible="0+")
class MaintainTableRequest:
    """Run OPTIMIZE for a partition's table, or expire records by retention, now."""

    topic: string
    partition: i32
    operation: i8


@message(key=20_003, versions="0", flexible="0+")
class MaintainTableResponse:
    """The result; fields of other operations are 0."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    files_before: i32 = v(default=0)
    files_after: i32 = v(default=0)
    bytes_before: i64 = v(default=0)
    bytes_after: i64 = v(default=0)
    rows: i64 = v(default=0)
    expired_rows: i64 = v(default=0)
    expired_segments: i32 = v(default=0)
    log_start_offset: i64 = v(default=-1)
