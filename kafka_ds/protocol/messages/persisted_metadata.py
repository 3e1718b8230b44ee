"""Pure: what Apache Kafka keeps in its own metadata log (KRaft): records, as messages, and how they are framed.

- Read only, and only what says which topics there are, how they are set, and who may do what: for who takes over a
  data directory of Kafka's (`broker.adoption`). This cluster's own decisions lie in the lake.
- A value begins with the version of the frame, the key of the record's type and the version of its schema, unsigned
  varints each (KIP-631). A type that is not declared here gives its number.
- A known type in a version that is not known is refused: half of it would be a guess.
"""

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.types import (
    boolean,
    f64,
    i8,
    i16,
    i32,
    i64,
    message,
    message_info,
    string,
    struct,
    u16,
    uuid,
    v,
)
from kafka_ds.protocol.varint import read_unsigned_varint

FRAME_VERSION = 1
NO_LEADER_CHANGE = -2


@struct
class MetadataEndpoint:
    name: string
    host: string
    port: u16
    security_protocol: i16


@struct
class MetadataFeature:
    name: string
    min_supported_version: i16
    max_supported_version: i16


@message(key=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord:
    """A broker's process has started."""

    broker_id: i32
    is_migrating_zk_broker: boolean = v("2+", default=False)
    incarnation_id: uuid
    broker_epoch: i64
    end_points: list[MetadataEndpoint]
    features: list[MetadataFeature]
    rack: string | None = v(nullable="0+")
    fenced: boolean = v(default=True)
    in_controlled_shutdown: boolean = v("1+", default=False)
    log_dirs: list[uuid] = v("3+", tag=0, default=[])
    cordoned_log_dirs: list[uuid] | None = v("4+", nullable="4+", tag=1, default=None)


@message(key=1, versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker was unregistered."""

    broker_id: i32
    broker_epoch: i64


@message(key=2, versions="0", flexible="0+")
class TopicRecord:
    """A topic was created."""

    name: string
    topic_id: uuid


@message(key=3, versions="0-2", flexible="0+")
class PartitionRecord:
    """The whole state of a partition."""

    partition_id: i32 = v(default=-1)
    topic_id: uuid
    replicas: list[i32]
    isr: list[i32]
    removing_replicas: list[i32]
    adding_replicas: list[i32]
    leader: i32 = v(default=-1)
    leader_recovery_state: i8 = v(tag=0, default=0)
    leader_epoch: i32 = v(default=-1)
    partition_epoch: i32 = v(default=-1)
    directories: list[uuid] = v("1+", default=[])
    eligible_leader_replicas: list[i32] | None = v("2+", nullable="2+", tag=1, default=None)
    last_known_elr: list[i32] | None = v("2+", nullable="2+", tag=2, default=None)


@message(key=4, versions="0", flexible="0+")
class ConfigRecord:
    """A setting of a resource; null removes it."""

    resource_type: i8
    resource_name: string
    name: string
    value: string | None = v(nullable="0+")


@message(key=5, versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """A change of a partition; fields without a change are null, -1 or -2."""

    partition_id: i32 = v(default=-1)
    topic_id: uuid
    isr: list[i32] | None = v(nullable="0+", tag=0, default=None)
    leader: i32 = v(tag=1, default=NO_LEADER_CHANGE)
    replicas: list[i32] | None = v(nullable="0+", tag=2, default=None)
    removing_replicas: list[i32] | None = v(nullable="0+", tag=3, default=None)
    adding_replicas: list[i32] | None = v(nullable="0+", tag=4, default=None)
    leader_recovery_state: i8 = v(tag=5, default=-1)
    directories: list[uuid] | None = v("1+", nullable="1+", tag=8, default=None)
    eligible_leader_replicas: list[i32] | None = v("2+", nullable="2+", tag=6, default=None)
    last_known_elr: list[i32] | None = v("2+", nullable="2+", tag=7, default=None)


@message(key=9, versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic was deleted."""

    topic_id: uuid


@struct
class MetadataQuotaEntity:
    entity_type: string
    entity_name: string | None = v(nullable="0+")


@message(key=14, versions="0", flexible="0+")
class ClientQuotaRecord:
    """A quota was set or removed."""

    entity: list[MetadataQuotaEntity]
    key: string
    value: f64
    remove: boolean


@message(key=15, versions="0", flexible="0+")
class ProducerIdsRecord:
    """All producer ids below this one are given to brokers."""

    broker_id: i32
    broker_epoch: i64 = v(default=-1)
    next_producer_id: i64


@message(key=18, versions="0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL was created."""

    id: uuid
    resource_type: i8
    resource_name: string
    pattern_type: i8
    principal: string
    host: string
    operation: i8
    permission_type: i8


@message(key=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """An ACL was deleted."""

    id: uuid


@message(key=23, versions="0", flexible="0+")
class BeginTransactionRecord:
    """A metadata transaction begins (KIP-868)."""

    name: string | None = v(nullable="0+", tag=0, default=None)


@message(key=24, versions="0", flexible="0+")
class EndTransactionRecord:
    """The metadata transaction is committed."""


@message(key=25, versions="0", flexible="0+")
class AbortTransactionRecord:
    """The metadata transaction is aborted."""

    reason: string | None = v(nullable="0+", tag=0, default=None)


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)
RECORDS: dict[int | None, type[MetadataRecord]] = {
    message_info(each).key: each for each in MetadataRecord.__args__
}


def decode_record(data: Buffer) -> MetadataRecord | int:
    """The record of a value, or the number of its type where that is not declared here. Raises MalformedFrame."""
    try:
        frame, position = read_unsigned_varint(data, 0)
        key, position = read_unsigned_varint(data, position)
        version, position = read_unsigned_varint(data, position)
    except IndexError:
        raise MalformedFrame("a metadata record is truncated") from None
    if frame != FRAME_VERSION:
        raise MalformedFrame(f"metadata records with frames of version {frame} are not known")
    declared = RECORDS.get(key)
    if declared is None:
        return key
    if version not in message_info(declared).versions:
        raise MalformedFrame(f"{declared.__name__} {version} is not known")
    return decode(declared, data, version, position)
