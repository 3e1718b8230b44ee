"""Pure: what Kafka keeps in `__share_group_state`: keys and values of its records, as bytes and as messages.

- A snapshot has the whole state of a share partition; each update has what has changed since the snapshot of its epoch.
- A key begins with the type of its record, a value with the version of its schema, two bytes each. A snapshot without a
  value is a tombstone: the share partition is forgotten.
- Another type of key is unknown: `decode_key` gives None, and the record is left alone. A value of a newer version is
  refused: half of it would be a guess.
"""

from typing import TypeAlias

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.share_state import StateBatch
from kafka_ds.protocol.types import i32, i64, message, message_info, string, uuid, v
from kafka_ds.protocol.versioned import NUMBER_BYTES, encode_numbered, read_number

_RECORD = "a record's key or value"
_VERSION = 0


@message(key=None, versions="0", flexible=None)
class ShareSnapshotKey:
    """The key of a share partition's whole state."""

    group_id: string
    topic_id: uuid
    partition: i32


@message(key=None, versions="0", flexible="0+")
class ShareSnapshotValue:
    """The whole state of a share partition."""

    snapshot_epoch: i32
    state_epoch: i32
    leader_epoch: i32
    start_offset: i64
    delivery_complete_count: i32 = v(tag=0, default=-1)
    create_timestamp: i64
    write_timestamp: i64
    state_batches: list[StateBatch]


@message(key=None, versions="0", flexible=None)
class ShareUpdateKey:
    """The key of a change of a share partition's state."""

    group_id: string
    topic_id: uuid
    partition: i32


@message(key=None, versions="0", flexible="0+")
class ShareUpdateValue:
    """What has changed since the snapshot of this epoch; a start offset of -1 has not."""

    snapshot_epoch: i32
    leader_epoch: i32
    start_offset: i64
    delivery_complete_count: i32 = v(tag=0, default=-1)
    state_batches: list[StateBatch]


ShareStateKey: TypeAlias = ShareSnapshotKey | ShareUpdateKey
ShareStateValue: TypeAlias = ShareSnapshotValue | ShareUpdateValue

_VALUES: dict[type, type] = {
    ShareSnapshotKey: ShareSnapshotValue,
    ShareUpdateKey: ShareUpdateValue,
}
_KEYS: tuple[type[ShareStateKey], ...] = (ShareSnapshotKey, ShareUpdateKey)


def encode_key(key: ShareStateKey) -> bytes:
    """Encode a key."""
    return encode_numbered(key, 0, _KEYS.index(type(key)))


def encode_value(value: ShareStateValue) -> bytes:
    """Encode a value."""
    return encode_numbered(value, _VERSION)


def decode_key(data: Buffer) -> ShareStateKey | None:
    """The key, or None if it is of a type that is not declared here."""
    number = read_number(data, _RECORD)
    if not 0 <= number < len(_KEYS):
        return None
    return decode(_KEYS[number], data, 0, NUMBER_BYTES)


def decode_value(key: ShareStateKey, data: Buffer) -> ShareStateValue:
    """The value of this key's record."""
    cls = _VALUES[type(key)]
    version = read_number(data, _RECORD)
    if version not in message_info(cls).versions:
        raise MalformedFrame(f"{cls.__name__} {version} is not known")
    value: ShareStateValue = decode(cls, data, version, NUMBER_BYTES)
    return value
