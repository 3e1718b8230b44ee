"""Pure: what a producer's bytes must satisfy before they may enter a log.

Rules of this file:
- Exactly one batch of magic 2 (Produce 3 and later), whose records fit its header: as many as it says, one after the
  other, at the offsets 0, 1, 2 and so on, none of them cut, and nothing behind the last. Machine code walks over them
  (`kafka_ds.wire.fitting`); what is compressed is unpacked for it. So what reaches a log can be read.
- The walk also finds the records' greatest time, which is written into a header that says another one, as Kafka does:
  time lookups, retention and segments' ages go by the header. (Sarama before 1.45.1 sends -1 there, and kafkajs one
  that is too low if only some messages have a time.)
- `message.timestamp.after.max.ms` is decided by the header, `message.timestamp.before.max.ms` cannot be.
- Each record is read in Python only if a topic's settings need more than the walk says
  (`LogConfig.believes_headers`), or where there is no machine code.
- Cheap checks come first, in Kafka's order, so that a client sees Kafka's error.
"""

from __future__ import annotations

from broker.log.config import UNLIMITED, LogConfig
from broker.log.records import inspect, pack, unpack, wanted_codec
from kafka_ds.wire.batch import (
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    CorruptRecord,
    crc_is_valid,
    seal,
)
from kafka_ds.wire.errors import ErrorCode, KafkaError, RecordsRefused
from kafka_ds.wire.fitting import UnpacksToMore, is_fast, newest_time

LEGACY_BYTES_MIN = 14
_NO_KEY = "Compacted topic cannot accept message without key."
# What is unpacked while the event loop waits: half a millisecond of each codec. A thread costs nearly as much again.
UNPACKED_AT_ONCE_BYTES_MAX: dict[int, int] = {
    Codec.NONE: 0,
    Codec.GZIP: 384 << 10,
    Codec.SNAPPY: 640 << 10,
    Codec.LZ4: 1280 << 10,
    Codec.ZSTD: 448 << 10,
}


class TakesLong(Exception):
    """A batch that must not be looked into while the event loop waits."""


def must_be_prepared(config: LogConfig) -> bool:
    """Whether a producer's batches have to go through `prepare_client_batch`, which reads each record."""
    return not config.believes_headers or not is_fast()


def check_client_batch(records: memoryview, config: LogConfig, now_ms: int) -> BatchHeader:
    """The header of the one batch that a producer sent; raises KafkaError."""
    size = len(records)
    if size < HEADER_BYTES:
        raise _too_short(records)
    header = BatchHeader._make(HEADER.unpack_from(records))
    if header.magic != MAGIC or header.batch_length + LOG_OVERHEAD_BYTES != size:
        raise _not_one_batch(header, size)
    if header.base_offset:
        raise _invalid(f"the base offset of a produced batch is 0, not {header.base_offset}")
    if size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if not crc_is_valid(records, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its checksum")
    _check_claims(records, header)
    _check_times(header, config, now_ms)
    return header


def prepare(
    records: memoryview, config: LogConfig, now_ms: int, *, at_once: bool = False
) -> tuple[memoryview, BatchHeader]:
    """A producer's batch as it may be appended, and its header, when header and records have been looked at.

    Raises KafkaError; with `at_once` also TakesLong, where the caller's thread has other things to do.
    """
    if must_be_prepared(config):
        records = prepare_client_batch(records, config, now_ms)
        return records, check_client_batch(records, config, now_ms)
    header = check_client_batch(records, config, now_ms)
    unpacked_max = UNPACKED_AT_ONCE_BYTES_MAX[header.codec] if at_once else None
    try:
        newest_ms = newest_time(records, header, bytes_max=unpacked_max)
    except UnpacksToMore as error:
        raise TakesLong from error
    except CorruptRecord as error:
        raise _unreadable(error) from error
    if config.uses_log_append_time or newest_ms == header.max_timestamp:
        return records, header
    records = _with_newest_time(records, header, newest_ms)
    return records, check_client_batch(records, config, now_ms)


def prepare_in_thread(records: memoryview, config: LogConfig, now_ms: int) -> memoryview:
    """The batch that `prepare` makes of a producer's, to be checked once more when its turn has come."""
    return prepare(records, config, now_ms)[0]


def prepare_client_batch(records: memoryview, config: LogConfig, now_ms: int) -> memoryview:
    """A producer's batch as its topic's settings demand: records checked, in the codec of compression.type.

    Its header has the greatest timestamp of its records then. Raises KafkaError.
    The result must be checked like any batch, as recompression may have made it larger.
    """
    header = check_client_batch(records, config, now_ms)
    try:
        payload = unpack(records, header)
        found = inspect(payload, header)
    except CorruptRecord as error:
        raise _unreadable(error) from error
    if found.without_key and config.is_compacted:
        raise RecordsRefused(dict.fromkeys(found.without_key, _NO_KEY))
    if not config.uses_log_append_time:
        _check_not_too_late(found.newest_ms, config, now_ms)
        _check_not_too_old(found.oldest_ms, config, now_ms)
    codec = wanted_codec(config, header)
    if codec is not None:
        return pack(payload, header, codec, config, found.newest_ms)
    if header.max_timestamp == found.newest_ms or config.uses_log_append_time:
        return records
    return _with_newest_time(records, header, found.newest_ms)


def _with_newest_time(records: memoryview, header: BatchHeader, newest_ms: int) -> memoryview:
    timed = header._replace(max_timestamp=newest_ms)
    return memoryview(bytearray(seal(timed, records[HEADER_BYTES:])))


def check_own_batch(
    records: memoryview, position: int, *, limit_bytes: int | None = None
) -> BatchHeader:
    """The header of a batch that a leader or this broker made; raises CORRUPT_MESSAGE."""
    left = len(records) - position
    if left < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch header is cut short")
    header = BatchHeader._make(HEADER.unpack_from(records, position))
    if (
        header.magic != MAGIC
        or not HEADER_BYTES <= header.batch_length + LOG_OVERHEAD_BYTES <= left
        or header.last_offset_delta < 0
        or not crc_is_valid(records, position, header)
    ):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch is not what its header says")
    if limit_bytes is not None and header.size_in_bytes > limit_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size_in_bytes} bytes, max.message.bytes is {limit_bytes}",
        )
    return header


def _check_claims(records: memoryview, header: BatchHeader) -> None:
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records with a last offset delta of {header.last_offset_delta}")
    if header.attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control records")
    if header.producer_id != NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"sequence {header.base_sequence} and epoch {header.producer_epoch} "
                f"of producer {header.producer_id}"
            )
    elif header.attributes & TRANSACTIONAL_FLAG:
        raise _invalid("a transactional batch without a producer id")
    codec = header.codec
    payload_bytes = len(records) - HEADER_BYTES
    if codec == Codec.NONE:
        if count * RECORD_BYTES_MIN > payload_bytes:
            raise _invalid(f"{count} records in {payload_bytes} bytes")
    elif codec > Codec.ZSTD:
        raise _invalid(f"unknown compression {codec}")


def _check_times(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime"
        )
    if config.uses_log_append_time:
        return
    _check_not_too_late(max(header.base_timestamp, header.max_timestamp), config, now_ms)


def _check_not_too_late(latest: int, config: LogConfig, now_ms: int) -> None:
    after_max_ms = config.message_timestamp_after_max_ms
    if latest - now_ms > after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {latest} is more than {after_max_ms} ms after {now_ms}",
        )


def _check_not_too_old(oldest: int, config: LogConfig, now_ms: int) -> None:
    if config.message_timestamp_before_max_ms == UNLIMITED or oldest == NO_TIMESTAMP:
        return
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    if oldest < earliest_ms:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {oldest} is before {earliest_ms}")


def too_large_for_segment(size: int, config: LogConfig) -> KafkaError:
    """The error for batches that fit into no segment."""
    return KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"{size} bytes in one append, segment.bytes is {config.segment_bytes}",
    )


def _too_short(records: memoryview) -> KafkaError:
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in (0, 1):
        return _legacy(records[MAGIC_POSITION])
    return _invalid(f"{len(records)} bytes are no batch")


def _not_one_batch(header: BatchHeader, size: int) -> KafkaError:
    if header.magic in (0, 1):
        return _legacy(header.magic)
    if header.magic != MAGIC or header.batch_length < LEGACY_BYTES_MIN:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"magic {header.magic}, length {header.batch_length}"
        )
    return _invalid(f"{size} bytes are not exactly one batch of {header.size_in_bytes} bytes")


def _legacy(magic: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {magic} is not written (KIP-724)"
    )


def _unreadable(error: CorruptRecord) -> KafkaError:
    return _invalid(f"records that cannot be read: {error}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
