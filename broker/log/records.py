"""Pure: looking into a batch's records, if a topic's settings depend on more than its header.

Rules of this file:
- It is used for compression.type (what is recompressed must be sound), for compacted topics (each record has a key)
  and for message.timestamp.before.max.ms. For all other batches the header is enough, and they never come here.
- It is the one place of the broker that walks records, so it builds no objects: a record costs a microsecond. Large
  batches are walked in a thread (`broker.replica.leader.preparing`).
- Recompression changes the codec and nothing else: offsets, times, sequences and the records' bytes stay. The maximum
  timestamp is taken from the records, as Kafka does when it rewrites a batch.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.log.config import LogConfig
from kafka_ds.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    CorruptRecord,
    seal,
)
from kafka_ds.wire.compression import compress, decompress

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_WRAP, _SIGN = 1 << 64, 1 << 63
_LONG_BYTES_MAX, _INT_BYTES_MAX = 10, 5


class Inspection(NamedTuple):
    """What the records of a batch say; times are -1 if no record has one."""

    oldest_ms: int
    newest_ms: int
    without_key: tuple[int, ...]
    """Their places in the batch, from 0 on."""


def wanted_codec(config: LogConfig, header: BatchHeader) -> Codec | None:
    """The codec with which a batch must be recompressed; None if it may stay as it is."""
    codec = CODECS.get(config.compression_type)  # `producer` is none.
    return None if codec is None or codec == header.codec else codec


def unpack(records: memoryview, header: BatchHeader, *, limit_bytes: int | None = None) -> bytes:
    """The records' bytes; raises CorruptRecord."""
    return decompress(header.codec, records[HEADER_BYTES:], limit_bytes=limit_bytes)


def pack(
    payload: bytes, header: BatchHeader, codec: Codec, config: LogConfig, newest_ms: int
) -> memoryview:
    """The batch of these records, compressed with another codec."""
    attributes = header.attributes & ~CODEC_MASK | codec
    packed = compress(codec, payload, _level(codec, config))
    changed = header._replace(attributes=attributes, max_timestamp=newest_ms)
    return memoryview(bytearray(seal(changed, packed)))


def _level(codec: Codec, config: LogConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None


def inspect(payload: bytes, header: BatchHeader) -> Inspection:
    """Walk the records of a producer's batch; raises CorruptRecord for whatever breaks a rule."""
    base_ms = header.base_timestamp
    oldest_ms, newest_ms = _SIGN, NO_TIMESTAMP
    without_key: list[int] = []
    position = 0
    try:
        for expected in range(header.record_count):
            delta_ms, has_key, position = _record(payload, position, expected)
            timestamp_ms = base_ms + delta_ms
            if not -_SIGN <= timestamp_ms < _SIGN:
                timestamp_ms = (timestamp_ms + _SIGN) % _WRAP - _SIGN  # as Java adds
            if timestamp_ms > newest_ms:
                newest_ms = timestamp_ms
            if timestamp_ms < oldest_ms and timestamp_ms != NO_TIMESTAMP:
                oldest_ms = timestamp_ms
            if not has_key:
                without_key.append(expected)
    except IndexError:
        raise CorruptRecord("a record is cut short") from None
    if position != len(payload):
        raise CorruptRecord("bytes after the last record")
    oldest_ms = NO_TIMESTAMP if oldest_ms == _SIGN else oldest_ms
    return Inspection(oldest_ms, newest_ms, tuple(without_key))


def _record(payload: bytes, position: int, expected: int) -> tuple[int, bool, int]:
    """The time of the record that begins there, whether it has a key, and where it ends."""
    length, position = _varint(payload, position)
    end = position + length
    # One byte of attributes, without any bit in use.
    delta_ms, position = _varint(payload, position + 1, _LONG_BYTES_MAX)
    delta, position = _varint(payload, position)
    if delta != expected:
        raise CorruptRecord(f"offset delta {delta} where {expected} is due")
    key_bytes, position = _varint(payload, position)
    position = _behind_value(payload, _behind(position, key_bytes))
    if payload[position]:
        position = _behind_headers(payload, position)
    else:
        position += 1
    if position != end:
        raise CorruptRecord("a record's length and its fields differ")
    return delta_ms, key_bytes >= 0, position


def _behind(position: int, size: int) -> int:
    if size < -1:
        raise CorruptRecord(f"a length of {size}")
    return position + max(size, 0)


def _behind_value(payload: bytes, position: int) -> int:
    size, position = _varint(payload, position)
    return _behind(position, size)


def _behind_headers(payload: bytes, position: int) -> int:
    count, position = _varint(payload, position)
    if count < 0:
        raise CorruptRecord(f"{count} headers")
    for _ in range(count):  # A false count ends where the payload does.
        size, position = _varint(payload, position)
        if size < 0:
            raise CorruptRecord("a header without a key")
        position = _behind_value(payload, position + size)
    return position


def _varint(payload: bytes, position: int, bytes_max: int = _INT_BYTES_MAX) -> tuple[int, int]:
    """A zigzag varint and where it ends; IndexError at the payload's end."""
    byte = payload[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    number, shift = byte & 0x7F, 7
    for at in range(position + 1, position + bytes_max):
        byte = payload[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            # What is beyond 32 or 64 bits is dropped, as Java shifts it out.
            number &= 0xFFFF_FFFF if bytes_max == _INT_BYTES_MAX else _WRAP - 1
            return number >> 1 ^ -(number & 1), at + 1
        shift += 7
    raise CorruptRecord("a varint is too long")
