"""Pure: what Kafka keeps in `__consumer_offsets`: keys and values of its records, as bytes and as messages.

- A key begins with the type of its record, a value with the version of its schema, two bytes each. A record without
  a value is a tombstone: what its key names is gone.
- A type that is not declared here is unknown: `decode_key` gives None, and the record is left alone, so that a log
  written by a later Apache Kafka keeps what we do not understand.
- A value of a newer version is refused: half of it would be a guess.
"""

from typing import Any, NamedTuple, TypeAlias

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kafka_ds.protocol.messages.persisted_share_groups import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from kafka_ds.protocol.messages.persisted_streams_groups import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from kafka_ds.protocol.types import (
    NO_UUID,
    bytes_,
    i32,
    i64,
    message,
    message_info,
    string,
    struct,
    uuid,
    v,
)
from kafka_ds.protocol.versioned import NUMBER_BYTES, encode_numbered, read_number

_RECORD = "a record's key or value"


@message(key=None, versions="0", flexible=None)
class LegacyOffsetCommitKey:
    """The key of a committed offset as it was written before Kafka 0.8.2."""

    group: string
    topic: string
    partition: i32


@message(key=None, versions="0", flexible=None)
class OffsetCommitKey:
    """The key of a committed offset."""

    group: string
    topic: string
    partition: i32


@message(key=None, versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset."""

    offset: i64
    leader_epoch: i32 = v("3+", default=-1)
    metadata: string
    commit_timestamp: i64
    expire_timestamp: i64 = v("1", default=-1)
    topic_id: uuid = v("4+", tag=0, default=NO_UUID)


@message(key=None, versions="0", flexible=None)
class GroupMetadataKey:
    """The key of a group's state."""

    group: string


@struct
class MemberMetadata:
    member_id: string
    group_instance_id: string | None = v("3+", nullable="3+", default=None)
    client_id: string
    client_host: string
    rebalance_timeout: i32 = v("1+", default=-1)
    session_timeout: i32
    subscription: bytes_
    assignment: bytes_


@message(key=None, versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A group of the classic protocol in a generation that is stable, or empty."""

    protocol_type: string
    generation: i32
    protocol: string | None = v(nullable="0+")
    leader: string | None = v(nullable="0+")
    current_state_timestamp: i64 = v("2+", default=-1)
    members: list[MemberMetadata]


class RecordType(NamedTuple):
    """The messages of one type of record."""

    key: type
    value: type


# By the number at the start of a key.
RECORD_TYPES: dict[int, RecordType] = {
    0: RecordType(LegacyOffsetCommitKey, OffsetCommitValue),
    1: RecordType(OffsetCommitKey, OffsetCommitValue),
    2: RecordType(GroupMetadataKey, GroupMetadataValue),
    3: RecordType(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: RecordType(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: RecordType(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: RecordType(
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue
    ),
    7: RecordType(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: RecordType(
        ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue
    ),
    10: RecordType(ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    11: RecordType(ShareGroupMetadataKey, ShareGroupMetadataValue),
    12: RecordType(ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    13: RecordType(ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    14: RecordType(ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    15: RecordType(ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
    16: RecordType(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    17: RecordType(StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    19: RecordType(StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
    20: RecordType(
        StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue
    ),
    21: RecordType(StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
    22: RecordType(
        StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue
    ),
    23: RecordType(StreamsGroupTopologyKey, StreamsGroupTopologyValue),
}
_NUMBERS = {types.key: number for number, types in RECORD_TYPES.items()}

ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
ShareGroupKey: TypeAlias = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
ShareGroupValue: TypeAlias = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)
StreamsGroupKey: TypeAlias = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
StreamsGroupValue: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)
RecordKey: TypeAlias = (
    OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | ShareGroupKey | StreamsGroupKey
)
RecordValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupValue
    | ShareGroupValue
    | StreamsGroupValue
)


def encode_key(key: RecordKey | LegacyOffsetCommitKey) -> bytes:
    """Encode a key."""
    return encode_numbered(key, 0, _NUMBERS[type(key)])


def encode_value(value: RecordValue, version: int) -> bytes:
    """Encode a value."""
    return encode_numbered(value, version)


def decode_key(data: Buffer) -> RecordKey | None:
    """The key, or None if it is of a type that is not declared here."""
    known = RECORD_TYPES.get(read_number(data, _RECORD))
    if known is None:
        return None
    key: Any = decode(known.key, data, 0, NUMBER_BYTES)
    return _modern(key) if isinstance(key, LegacyOffsetCommitKey) else key


def decode_value(key: RecordKey, data: Buffer) -> RecordValue:
    """The value that belongs to this key."""
    cls = RECORD_TYPES[_NUMBERS[type(key)]].value
    version = read_number(data, _RECORD)
    if version not in message_info(cls).versions:
        raise MalformedFrame(f"{cls.__name__} {version} is not known")
    value: RecordValue = decode(cls, data, version, NUMBER_BYTES)
    return value


def _modern(key: LegacyOffsetCommitKey) -> OffsetCommitKey:
    return OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)
