"""Pure: what a producer's bytes must satisfy before they may enter a log.

Exactly one batch of magic 2, whose records fit its header: as many as it says, at the offsets 0, 1, 2 and so on, none
truncated, nothing behind the last (`kafka_ds.records.validation`, in machine code). The same pass finds records that
their topic refuses (no key where it is compacted, KIP-467; too far from the broker's clock, KIP-937) and the greatest
time, which replaces a wrong one in the header, as in Kafka: so a header's times are not validated. Cheap checks come
first, in Kafka's order, so that a client sees Kafka's error.
"""

from __future__ import annotations

from broker.log.config import NO_DECOMPRESSED_LIMIT, UNLIMITED, LogConfig
from broker.log.recompression import (
    recompress,
    recompressed_at_once_bytes_max,
    recompressed_attributes,
    target_codec,
)
from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.errors import ErrorCode, KafkaError, RecordsRefused
from kafka_ds.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    CorruptRecord,
    crc_is_valid,
    seal_writable,
)
from kafka_ds.records.crc import crc32c
from kafka_ds.records.validation import (
    LONG_MAX,
    LONG_MIN,
    DecompressedTooLarge,
    RecordRules,
    ValidationResult,
    is_fast,
    validate_records,
)
from kafka_ds.records.validation_loop import varint

LEGACY_BYTES_MIN = 14
# Named in a refusal. Kafka names all, which may take many times the batch's size.
REFUSED_RECORDS_MAX = 1000
_NO_KEY = "Compacted topic cannot accept message without key."
# What is decompressed while the event loop waits: half a millisecond of each codec. A thread costs nearly as much
# again.
UNPACKED_AT_ONCE_BYTES_MAX: dict[int, int] = {
    Codec.NONE: UNLIMITED,
    Codec.GZIP: 384 << 10,
    Codec.SNAPPY: 640 << 10,
    Codec.LZ4: 1280 << 10,
    Codec.ZSTD: 448 << 10,
}
# Where records are validated in Python.
VALIDATED_AT_ONCE_BYTES_MAX = 8 << 10


class TakesLong(Exception):
    """A batch that must not be validated while the event loop waits."""


def at_once_bytes_max(config: LogConfig, codec: int) -> int:
    """How large the decompressed records of this codec may be, to be prepared while the event loop waits."""
    bytes_max = UNPACKED_AT_ONCE_BYTES_MAX.get(codec, 0)
    if not is_fast():
        bytes_max = min(bytes_max, VALIDATED_AT_ONCE_BYTES_MAX)
    target = target_codec(config, codec)
    return (
        bytes_max
        if target is None
        else min(bytes_max, recompressed_at_once_bytes_max(target, config))
    )


def check_client_batch(records: memoryview, config: LogConfig) -> BatchHeader:
    """The header of the one batch that a producer sent; raises KafkaError."""
    size = len(records)
    if size < HEADER_BYTES:
        raise _too_short(records)
    header = BatchHeader._make(HEADER.unpack_from(records))
    if header.magic != MAGIC or header.batch_length + LOG_OVERHEAD_BYTES != size:
        raise _not_one_batch(header, size)
    if header.base_offset:
        raise _invalid(
            f"The baseOffset of the record batch in the append should be 0, but it is {header.base_offset}"
        )
    _check_size(size, config.max_message_bytes)
    if crc32c(records[ATTRIBUTES_POSITION:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its checksum")
    _check_claims(records, header)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime"
        )
    return header


def prepare(
    records: memoryview, config: LogConfig, now_ms: int, *, at_once: bool = False
) -> tuple[memoryview, BatchHeader]:
    """A producer's batch as it may be appended, and its header, when header and records have been validated.

    Raises KafkaError; with `at_once` also TakesLong, if the caller's thread must not wait.
    """
    header = check_client_batch(records, config)
    payload = records[HEADER_BYTES:]
    sent = header.attributes & CODEC_MASK
    unpacked_max = None
    if at_once and (sent or len(payload) > VALIDATED_AT_ONCE_BYTES_MAX):
        unpacked_max = at_once_bytes_max(config, sent)
        if not sent and len(payload) > unpacked_max:
            raise TakesLong
    codec = target_codec(config, sent)
    limit = config.max_decompressed_message_bytes
    is_limited = bool(sent) and limit < NO_DECOMPRESSED_LIMIT
    kept = bytearray() if is_limited or codec is not None else None
    result = _validated(payload, header, _record_rules(config, now_ms), unpacked_max, kept)
    if is_limited and kept and len(kept) > limit:
        _check_decompressed(kept, header.record_count, limit)
    if codec is not None:
        recompressed = recompress(kept or payload, codec, config)
        _check_size(HEADER_BYTES + len(recompressed), config.max_message_bytes)
        attributes = recompressed_attributes(header.attributes, codec)
        header = header._replace(attributes=attributes, max_timestamp=result.newest_ms)
        return _sealed(header, recompressed)
    if config.uses_log_append_time or result.newest_ms == header.max_timestamp:
        return records, header
    return _sealed(header._replace(max_timestamp=result.newest_ms), payload)


def _validated(
    payload: memoryview,
    header: BatchHeader,
    rules: RecordRules,
    unpacked_max: int | None,
    kept: bytearray | None,
) -> ValidationResult:
    """What is known of the records, of which none is wrong or refused."""
    try:
        result = validate_records(payload, header, rules, bytes_max=unpacked_max, kept=kept)
        if not result.refused:
            return result
        # Only for a refused batch the records are named.
        listed = validate_records(payload, header, rules, listed_max=REFUSED_RECORDS_MAX)
    except DecompressedTooLarge as too_large:
        raise TakesLong from too_large
    except CorruptRecord as error:
        raise _invalid(f"records that cannot be read: {error}") from error
    raise _refused(listed, rules)


def _sealed(header: BatchHeader, payload: Buffer) -> tuple[memoryview, BatchHeader]:
    records = memoryview(seal_writable(header, payload))
    return records, BatchHeader._make(HEADER.unpack_from(records))


def prepare_in_thread(records: memoryview, config: LogConfig, now_ms: int) -> memoryview:
    """The batch that `prepare` makes of a producer's, to be checked once more when its turn has come."""
    return prepare(records, config, now_ms)[0]


def check_own_batch(
    records: memoryview, position: int, *, limit_bytes: int | None = None
) -> BatchHeader:
    """The header of a batch that a leader or this broker made; raises CORRUPT_MESSAGE."""
    left = len(records) - position
    if left < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch header is truncated")
    header = BatchHeader._make(HEADER.unpack_from(records, position))
    if (
        header.magic != MAGIC
        or not HEADER_BYTES <= header.batch_length + LOG_OVERHEAD_BYTES <= left
        or header.last_offset_delta < 0
        or not crc_is_valid(records, position, header)
    ):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch is not what its header says")
    if limit_bytes is not None:
        _check_size(header.size_in_bytes, limit_bytes)
    return header


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes, max.message.bytes is {limit_bytes}",
        )


def _check_decompressed(records: bytearray, count: int, limit: int) -> None:
    """Refuse a batch of valid records, of which one is too large."""
    position = 0
    for _ in range(count):
        size, position = varint(records, position, len(records))
        if size > limit:
            raise _invalid(f"a record of {size} bytes, max.decompressed.message.bytes is {limit}")
        position += size


def _check_claims(records: memoryview, header: BatchHeader) -> None:
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records with a last offset delta of {header.last_offset_delta}")
    if header.attributes & CONTROL_FLAG:
        raise _invalid("Clients are not allowed to write control records")
    if header.producer_id != NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"sequence {header.base_sequence} and epoch {header.producer_epoch} "
                f"of producer {header.producer_id}"
            )
    elif header.attributes & TRANSACTIONAL_FLAG:
        raise _invalid("a transactional batch without a producer id")
    codec = header.attributes & CODEC_MASK
    payload_bytes = len(records) - HEADER_BYTES
    if not codec:
        if count * RECORD_BYTES_MIN > payload_bytes:
            raise _invalid(f"{count} records in {payload_bytes} bytes")
    elif codec > Codec.ZSTD:
        raise _invalid(f"unknown compression {codec}")


def _record_rules(config: LogConfig, now_ms: int) -> RecordRules:
    if config.uses_log_append_time:
        return RecordRules(config.is_compacted, LONG_MIN, LONG_MAX)
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    if earliest_ms < LONG_MIN or latest_ms > LONG_MAX:
        earliest_ms, latest_ms = max(earliest_ms, LONG_MIN), min(latest_ms, LONG_MAX)
    return RecordRules(config.is_compacted, earliest_ms, latest_ms)


def _refused(result: ValidationResult, rules: RecordRules) -> RecordsRefused:
    allowed = f"[{rules.earliest_ms}, {rules.latest_ms}]"
    messages = {
        each.place: _NO_KEY
        if each.lacks_key
        else f"Timestamp {each.time_ms} of record {each.place} is not within {allowed}."
        for each in result.refusals
    }
    # One wrong time decides it, as in Kafka.
    code = ErrorCode.INVALID_TIMESTAMP if result.bad_timestamps else ErrorCode.INVALID_RECORD
    without_key = result.refused - result.bad_timestamps
    return RecordsRefused(code, messages, result.refused, without_key=without_key)


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


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
