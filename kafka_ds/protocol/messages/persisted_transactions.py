"""Pure: what Kafka keeps in `__transaction_state`: keys and values of its records, as bytes and as messages.

- A key begins with the type of its record, a value with the version of its schema, two bytes each. A record without
  a value is a tombstone: its transactional id is forgotten.
- There is one type, 0. Another one is unknown: `decode_key` gives None, and the record is left alone.
- A value of a newer version is refused: half of it would be a guess.
"""

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.types import i8, i16, i32, i64, message, message_info, string, struct, v
from kafka_ds.protocol.versioned import NUMBER_BYTES, encode_numbered, read_number

_RECORD = "a record's key or value"
_KEY_TYPE = 0


@message(key=None, versions="0", flexible=None)
class TransactionLogKey:
    """The key of a transaction's state."""

    transactional_id: string


@struct
class PartitionsSchema:
    topic: string
    partition_ids: list[i32]


@message(key=None, versions="0-1", flexible="1+")
class TransactionLogValue:
    """The producer and the state of a transaction."""

    producer_id: i64
    previous_producer_id: i64 = v("1+", tag=0, default=-1)
    next_producer_id: i64 = v("1+", tag=1, default=-1)
    producer_epoch: i16
    next_producer_epoch: i16 = v("1+", tag=3, default=-1)
    transaction_timeout_ms: i32
    transaction_status: i8
    transaction_partitions: list[PartitionsSchema] | None = v(nullable="0+")
    transaction_last_update_timestamp_ms: i64
    transaction_start_timestamp_ms: i64
    client_transaction_version: i16 = v("1+", tag=2, default=0)


def encode_key(key: TransactionLogKey) -> bytes:
    """Encode a key."""
    return encode_numbered(key, 0, _KEY_TYPE)


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """Encode a value."""
    return encode_numbered(value, version)


def decode_key(data: Buffer) -> TransactionLogKey | None:
    """The key, or None if it is of a type that is not declared here."""
    if read_number(data, _RECORD) != _KEY_TYPE:
        return None
    return decode(TransactionLogKey, data, 0, NUMBER_BYTES)


def decode_value(data: Buffer) -> TransactionLogValue:
    """The value of a transaction's record."""
    version = read_number(data, _RECORD)
    if version not in message_info(TransactionLogValue).versions:
        raise MalformedFrame(f"TransactionLogValue {version} is not known")
    return decode(TransactionLogValue, data, version, NUMBER_BYTES)
