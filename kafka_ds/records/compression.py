"""Pure: the compression codecs of record batches.

- Output is bounded: the size that a frame claims is compared with the limit before it is decompressed.
- Several frames may follow each other (zstd, lz4 and gzip allow that). A truncated frame, or other data after the last
  one, raises CorruptRecord, as all invalid data does.
- A codec's library is imported when it is first needed: most brokers need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from enum import IntEnum
from typing import Any, cast

from kafka_ds.process.buffers import Buffer

__all__ = [
    "DECOMPRESSED_BYTES_MAX",
    "Codec",
    "CorruptRecord",
    "compress",
    "decompress",
    "decompressed_bytes_max",
]

# A batch may decompress to 64 MiB, or to 64 times its size if that is more (a producer fills batches by their
# compressed size), but never to more than 1 GiB: the offsets of an Arrow array have 32 bits.
DECOMPRESSED_BYTES_DEFAULT = 64 << 20
DECOMPRESSED_RATIO_DEFAULT = 64
DECOMPRESSED_BYTES_MAX = 1 << 30

# The default levels of Kafka's settings.
GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
ZSTD_LEVEL_DEFAULT = 3

# The blocks of a frame between two yields of control to the caller; blocks may be empty.
BLOCKS_A_STEP = 4

_PIECE_BYTES = 1 << 20
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES_MAX = 128 << 10
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 << 10


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptRecord(Exception):
    """The bytes are not a valid record batch."""


def decompressed_bytes_max(compressed_bytes: int) -> int:
    """The default limit for a batch with so many bytes of compressed records."""
    by_size = compressed_bytes * DECOMPRESSED_RATIO_DEFAULT
    return min(max(DECOMPRESSED_BYTES_DEFAULT, by_size), DECOMPRESSED_BYTES_MAX)


def decompress(
    codec: int,
    data: Buffer,
    *,
    limit_bytes: int | None = None,
    lz4_header_is_checked: bool = True,
) -> bytes:
    """Decompress `data`; CorruptRecord if it is invalid or larger than the limit.

    `lz4_header_is_checked`: False for messages of magic 0, whose writers computed that checksum wrongly.
    """
    limit = decompressed_bytes_max(len(data)) if limit_bytes is None else limit_bytes
    if codec == Codec.NONE:
        return data if isinstance(data, bytes) else bytes(data)
    if codec not in _DECODERS:
        raise CorruptRecord(f"unknown codec {codec}")
    if codec == Codec.LZ4 and not lz4_header_is_checked:
        data = _with_lz4_header_checksums(data, limit)
    return _DECODERS[codec](memoryview(data).toreadonly(), limit)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as one frame that every client can read (Java needs independent lz4 blocks).

    `level`: Kafka's compression.<codec>.level (KIP-390); None: a fast one.
    """
    match Codec(codec):
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _compress_gzip(data, level)
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            import lz4.frame

            # Kafka's default 9 selects its fast compressor, any other level the high-compression one.
            own_level = 0 if level in (None, LZ4_LEVEL_DEFAULT) else level
            framed: bytes = lz4.frame.compress(
                data, block_linked=False, store_size=False, compression_level=own_level
            )
            return framed
        case Codec.ZSTD:
            return _compress_zstd(data, ZSTD_LEVEL_DEFAULT if level is None else level)


def _too_long(codec: Codec) -> CorruptRecord:
    return CorruptRecord(f"{codec.name} data is longer than the limit")


def _truncated(codec: Codec) -> CorruptRecord:
    return CorruptRecord(f"{codec.name} data ends within a frame")


# -- gzip ---------------------------------------------------------------------------------------


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    if level in (None, GZIP_LEVEL_DEFAULT):
        from isal import isal_zlib  # Three times as fast, but without zlib's levels.

        packed: bytes = isal_zlib.compress(data, level=2, wbits=31)
        return packed
    import zlib

    return zlib.compress(data, level, wbits=31)


def _decompress_gzip(data: memoryview, limit: int) -> bytes:
    pieces: list[bytes] = []
    room = limit
    for piece in gzip_pieces(data, min(limit + 1, max(_PIECE_BYTES, 8 * len(data)))):
        room -= len(piece)
        if room < 0:
            raise _too_long(Codec.GZIP)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def gzip_pieces(data: memoryview, bytes_max: int) -> Iterator[bytes]:
    """The decompressed members, in pieces of at most so many bytes.

    Input is also given in pieces: the library copies what it has not consumed.
    """
    from isal import isal_zlib

    failure = cast("type[Exception]", isal_zlib.error)
    position, members = 0, 0
    while position < len(data) or not members:
        members += 1
        member = isal_zlib.decompressobj(wbits=31)
        given: Buffer = b""
        while not member.eof:
            if not given:
                given = data[position : position + _PIECE_BYTES]
                position += len(given)
            try:
                piece = member.decompress(given, bytes_max)
            except failure as error:
                raise CorruptRecord(f"GZIP: {error}") from None
            given = member.unconsumed_tail
            if not piece and not given and not member.eof and position == len(data):
                raise _truncated(Codec.GZIP)
            yield piece
        position -= len(member.unused_data)


# -- snappy -------------------------------------------------------------------------------------


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    """Raw snappy (librdkafka) or the framing of snappy-java (Java, aiokafka, kafka-python)."""
    pieces: list[bytes] = []
    room = limit
    for block in snappy_blocks(data):
        piece = snappy_block(block, room)
        room -= len(piece)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """The blocks of snappy-java's framing, or without it the data as one block."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    position = 0
    while position < len(data):
        # Streams may be concatenated, each with its header.
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise _truncated(Codec.SNAPPY)
            continue
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + length > len(data):
            raise _truncated(Codec.SNAPPY)
        yield data[position : position + length]
        position += length


def snappy_block(block: memoryview, limit: int) -> bytes:
    """Decompress a block, unless it claims more bytes than the limit."""
    import cramjam

    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise CorruptRecord("SNAPPY: no length")
    if claimed > limit:
        raise _too_long(Codec.SNAPPY)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecord(f"SNAPPY: {error}") from None


def _compress_snappy(data: Buffer) -> bytes:
    """Compress with snappy-java's framing: every client can read it, block by block."""
    import cramjam

    view = memoryview(data).cast("B")
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


# -- lz4 ----------------------------------------------------------------------------------------


def _decompress_lz4(data: memoryview, limit: int) -> bytes:
    import lz4.frame

    pieces: list[bytes] = []
    room = limit
    for frame, bytes_max in lz4_frames(data, limit):
        try:
            if bytes_max <= room:
                piece: bytes = lz4.frame.decompress(frame)
            else:
                piece = lz4.frame.LZ4FrameDecompressor().decompress(frame, max_length=room + 1)
        except (RuntimeError, EOFError, MemoryError) as error:
            raise CorruptRecord(f"LZ4: {error}") from None
        room -= len(piece)
        if room < 0:
            raise _too_long(Codec.LZ4)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def lz4_frames(data: memoryview, limit: int) -> Iterator[tuple[memoryview, int]]:
    """Each frame, and the most bytes that its blocks can decompress to."""
    return (step for step in lz4_steps(data, limit) if step is not None)


def lz4_steps(data: memoryview, limit: int) -> Iterator[tuple[memoryview, int] | None]:
    """The same, with a None after every BLOCKS_A_STEP blocks, so that the caller can stop.

    The block headers are read here because the library decompresses only one frame, and first allocates what its header
    claims.
    """
    position, frames = 0, 0
    while position < len(data) or not frames:
        frames += 1
        if bytes(data[position : position + 4]) != _LZ4_MAGIC or len(data) < position + 7:
            raise CorruptRecord("LZ4: no frame")
        flags, block_kind = data[position + 4], data[position + 5] >> 4 & 7
        claims_size = bool(flags & 8)
        claimed = int.from_bytes(data[position + 6 : position + 14], "little")
        if claims_size and claimed > limit:
            raise _too_long(Codec.LZ4)
        blocks = position + 7 + (8 if claims_size else 0) + (4 if flags & 1 else 0)
        end, block_count = yield from _lz4_blocks_end(data, blocks, 4 if flags & 16 else 0)
        end += 4 if flags & 4 else 0
        if end > len(data):
            raise _truncated(Codec.LZ4)
        yield data[position:end], block_count << (8 + 2 * block_kind)
        position = end


def _lz4_blocks_end(
    data: memoryview, position: int, checksum_bytes: int
) -> Generator[None, None, tuple[int, int]]:
    """The position after a frame's end mark, and the number of its blocks."""
    count = 0
    while True:
        if position + 4 > len(data):
            raise _truncated(Codec.LZ4)
        size = int.from_bytes(data[position : position + 4], "little") & 0x7FFF_FFFF
        position += 4
        if size == 0:
            return position, count
        position += size + checksum_bytes
        count += 1
        if not count % BLOCKS_A_STEP:
            yield


def _with_lz4_header_checksums(data: Buffer, limit: int) -> bytearray:
    """The same frames with a valid checksum in each header: the byte before the first block."""
    right = bytearray(data)
    position = 0
    for frame, _ in lz4_frames(memoryview(data).toreadonly(), limit):
        flags = frame[4]
        end = position + 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        if end < len(right):
            right[end] = _xxh32(bytes(right[position + 4 : end])) >> 8 & 0xFF
        position += len(frame)
    return right


_XXH = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_UINT32 = 0xFFFF_FFFF


def _xxh32(data: bytes) -> int:
    """xxHash-32 of less than 16 bytes, with seed 0."""
    assert len(data) < 16
    one, two, three, four, five = _XXH
    state = five + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state += int.from_bytes(data[at : at + 4], "little") * three
        state = _rotated(state, 17) * four & _UINT32
    for byte in data[whole:]:
        state = _rotated(state + byte * five, 11) * one & _UINT32
    state &= _UINT32
    state = (state ^ state >> 15) * two & _UINT32
    state = (state ^ state >> 13) * three & _UINT32
    return state ^ state >> 16


def _rotated(number: int, bits: int) -> int:
    number &= _UINT32
    return number << bits & _UINT32 | number >> 32 - bits


# -- zstd ---------------------------------------------------------------------------------------

# Contexts are expensive to create, and threads must not share them: each call takes one off the list, and puts it back.
# `pop` and `append` are atomic.
_idle_decompressors: list[Any] = []
_idle_compressors: list[Any] = []


@contextlib.contextmanager
def zstd_decompressor() -> Iterator[Any]:
    """A context for the caller alone; its errors become CorruptRecord."""
    import zstandard

    context = _idle_decompressors.pop() if _idle_decompressors else zstandard.ZstdDecompressor()
    try:
        yield context
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"ZSTD: {error}") from None
    finally:
        _idle_decompressors.append(context)


def _decompress_zstd(data: memoryview, limit: int) -> bytes:
    pieces: list[bytes] = []
    room = limit
    with zstd_decompressor() as context:
        for frame, content_bytes, bytes_max in zstd_frames(data):
            if content_bytes is not None and content_bytes > room:
                raise _too_long(Codec.ZSTD)
            if bytes_max <= room:
                # decompressobj reads frames with and without a size; librdkafka writes none.
                piece = context.decompressobj().decompress(frame)
            elif content_bytes is not None:
                piece = context.decompress(frame)
            else:
                piece = context.stream_reader(frame).read(room + 1)
            room -= len(piece)
            if room < 0:
                raise _too_long(Codec.ZSTD)
            pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


ZstdFrame = tuple[memoryview, int | None, int]


def zstd_frames(data: memoryview) -> Iterator[ZstdFrame]:
    """Each frame, the size that it claims, and the most bytes that its blocks can decompress to."""
    return (step for step in zstd_steps(data) if step is not None)


def zstd_steps(data: memoryview) -> Iterator[ZstdFrame | None]:
    """The same, with a None after every BLOCKS_A_STEP blocks and each skippable frame, so that the caller can stop.

    The block headers are read here because the library neither reports the end of a frame nor refuses a truncated one.
    """
    position, frames = 0, 0
    while position < len(data) or not frames:
        frames += 1
        magic = bytes(data[position : position + 4])
        if len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50:
            end = position + 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            if end > len(data):
                raise _truncated(Codec.ZSTD)
            position = end
            yield None
            continue
        if magic != _ZSTD_MAGIC or len(data) < position + 6:
            raise CorruptRecord("ZSTD: no frame")
        content_bytes, blocks = _zstd_frame_header(data, position + 4)
        end, bytes_max = yield from _zstd_frame_end(data, blocks)
        end += 4 if data[position + 4] & 4 else 0
        if end > len(data):
            raise _truncated(Codec.ZSTD)
        yield data[position:end], content_bytes, bytes_max
        position = end


def _zstd_frame_header(data: memoryview, position: int) -> tuple[int | None, int]:
    """The size that a frame claims (None: none), and the position of its first block."""
    descriptor = data[position]
    single_segment = bool(descriptor & 0x20)
    size_bytes = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    start = position + (1 if single_segment else 2) + (0, 1, 2, 4)[descriptor & 3]
    blocks = start + size_bytes
    if blocks > len(data):
        raise _truncated(Codec.ZSTD)
    if not size_bytes:
        return None, blocks
    claimed = int.from_bytes(data[start:blocks], "little")
    return claimed + (256 if size_bytes == 2 else 0), blocks


def _zstd_frame_end(data: memoryview, position: int) -> Generator[None, None, tuple[int, int]]:
    """The position after a frame's last block, and the most bytes that its blocks can decompress to."""
    bytes_max = count = 0
    while True:
        if position + 3 > len(data):
            raise _truncated(Codec.ZSTD)
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        kind, size = header >> 1 & 3, header >> 3
        repeated = kind == 1
        position += 3 + (1 if repeated else size)
        bytes_max += size if kind < 2 else _ZSTD_BLOCK_BYTES_MAX
        if header & 1:
            return position, bytes_max
        count += 1
        if not count % BLOCKS_A_STEP:
            yield


def _compress_zstd(data: Buffer, level: int) -> bytes:
    import zstandard

    # Only contexts of the default level are kept.
    is_usual = level == ZSTD_LEVEL_DEFAULT
    context = (is_usual and _idle_compressors and _idle_compressors.pop()) or None
    context = context or zstandard.ZstdCompressor(level=level)
    try:
        packed: bytes = context.compress(data)
    finally:
        if is_usual:
            _idle_compressors.append(context)
    return packed


_DECODERS: dict[int, Callable[[memoryview, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
