"""Pure: producers' batches in the codec that their topic wants (compression.type).

Recompressing changes the codec, and nothing else that a consumer sees: offsets, times, sequences and the records' bytes
stay. Of the attributes only those stay that mean something in a producer's batch, as in Kafka.
"""

from __future__ import annotations

from broker.log.config import LogConfig
from kafka_ds.process.buffers import Buffer
from kafka_ds.records.batch import TRANSACTIONAL_FLAG, Codec
from kafka_ds.records.compression import (
    GZIP_LEVEL_DEFAULT,
    LZ4_LEVEL_DEFAULT,
    ZSTD_LEVEL_DEFAULT,
    compress,
)

__all__ = [
    "CODECS",
    "recompress",
    "recompressed_at_once_bytes_max",
    "recompressed_attributes",
    "target_codec",
]

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
# What is recompressed while the event loop waits: a producer's default batch takes a tenth of a millisecond, less than
# a thread costs. A level may be slow.
RECOMPRESSED_AT_ONCE_BYTES_MAX: dict[Codec, int] = {
    Codec.NONE: 128 << 10,
    Codec.GZIP: 32 << 10,
    Codec.SNAPPY: 64 << 10,
    Codec.LZ4: 64 << 10,
    Codec.ZSTD: 32 << 10,
}
RECOMPRESSED_SLOWLY_AT_ONCE_BYTES_MAX = 8 << 10
_USUAL_LEVELS: dict[Codec, int] = {
    Codec.GZIP: GZIP_LEVEL_DEFAULT,
    Codec.LZ4: LZ4_LEVEL_DEFAULT,
    Codec.ZSTD: ZSTD_LEVEL_DEFAULT,
}


def target_codec(config: LogConfig, codec: int) -> Codec | None:
    """The codec with which a batch of this one must be recompressed; None if it may stay as it is."""
    wanted = CODECS.get(config.compression_type)  # `producer` means none.
    return None if wanted is None or wanted == codec else wanted


def recompressed_at_once_bytes_max(codec: Codec, config: LogConfig) -> int:
    """How many bytes of records may be recompressed while the event loop waits."""
    if _level(codec, config) == _USUAL_LEVELS.get(codec):
        return RECOMPRESSED_AT_ONCE_BYTES_MAX[codec]
    return RECOMPRESSED_SLOWLY_AT_ONCE_BYTES_MAX


def recompress(payload: Buffer, codec: Codec, config: LogConfig) -> Buffer:
    """These records, compressed with another codec; the same bytes for none."""
    return payload if codec == Codec.NONE else compress(codec, payload, _level(codec, config))


def recompressed_attributes(attributes: int, codec: Codec) -> int:
    """The attributes of a producer's batch that was recompressed."""
    return attributes & TRANSACTIONAL_FLAG | codec


def _level(codec: Codec, config: LogConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None
