"""Pure: decompresses a batch's records in pieces, for callers that read them once.

- Only one piece is in memory, however large the batch; `unpacked_bytes_max` bounds the time of a batch. A block of raw
  snappy cannot be divided; it decompresses to at most 22 times its size.
- Pieces may be empty: each costs time, and so counts.
- Invalid data raises CorruptRecord, also after the last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kafka_ds.records import compression
from kafka_ds.records.compression import DECOMPRESSED_BYTES_MAX, Codec, CorruptRecord

__all__ = ["PIECE_BYTES", "pieces", "unpacked_bytes_max"]

# A piece stays in the processor's cache until it is read.
PIECE_BYTES = 256 << 10
# A MiB of zstd can decompress to 32 GiB, which keeps a thread busy for seconds. Batches of Java's producer decompress
# to up to 436 times their size (measured), and a record of zeros may be as large as max.request.size.
UNPACKED_BYTES_MAX = 1 << 30
UNPACKED_RATIO_MAX = 1024
# Snappy's copy element: three bytes stand for up to 64.
SNAPPY_RATIO_MAX = 22
# With each piece lz4 copies the input that it has not read yet.
_LZ4_GIVEN_BYTES = 64 << 10


def pieces(
    codec: int, data: memoryview, *, block_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[bytes]:
    """Decompress `data` in pieces; raises CorruptRecord.

    `block_bytes_max`: the most that an indivisible block may decompress to.
    """
    if codec == Codec.SNAPPY:
        return _snappy(data.toreadonly(), block_bytes_max)
    if codec not in _DECODERS:
        raise CorruptRecord(f"unknown codec {codec}")
    return _DECODERS[codec](data.toreadonly())


def unpacked_bytes_max(packed_bytes: int) -> int:
    """The most bytes that so many compressed bytes may decompress to."""
    return max(UNPACKED_BYTES_MAX, packed_bytes * UNPACKED_RATIO_MAX)


def _gzip(data: memoryview) -> Iterator[bytes]:
    return compression.gzip_pieces(data, PIECE_BYTES)


def _snappy(data: memoryview, block_bytes_max: int) -> Iterator[bytes]:
    for block in compression.snappy_blocks(data):
        limit = min(SNAPPY_RATIO_MAX * len(block), block_bytes_max)
        yield compression.snappy_block(block, limit)


def _lz4(data: memoryview) -> Iterator[bytes]:
    import lz4.frame

    for step in compression.lz4_steps(data, DECOMPRESSED_BYTES_MAX):
        if step is None:
            yield b""
            continue
        frame, _ = step
        context = lz4.frame.LZ4FrameDecompressor()
        position = 0
        try:
            while not context.eof:
                given: Any = b""
                if context.needs_input:
                    given = frame[position : position + _LZ4_GIVEN_BYTES]
                    position += len(given)
                    if not given:
                        raise CorruptRecord("LZ4 data ends within a frame")
                yield context.decompress(given, max_length=PIECE_BYTES)
        except (RuntimeError, EOFError, MemoryError) as error:
            raise CorruptRecord(f"LZ4: {error}") from None
        if context.unused_data or position < len(frame):
            raise CorruptRecord("LZ4: a frame is longer than its blocks")


def _zstd(data: memoryview) -> Iterator[bytes]:
    with compression.zstd_decompressor() as context:
        for step in compression.zstd_steps(data):
            if step is None:
                yield b""
                continue
            frame, _, bytes_max = step
            if bytes_max <= PIECE_BYTES:
                yield context.decompressobj().decompress(frame)
                continue
            with context.stream_reader(frame, closefd=False) as reader:
                while piece := reader.read(PIECE_BYTES):
                    yield piece


_DECODERS: dict[int, Callable[[memoryview], Iterator[bytes]]] = {
    Codec.GZIP: _gzip,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
