"""Codecs: clients' data is read; broken or oversized data is refused before it is decompressed."""

import contextlib
import gzip
import itertools
import random
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records.compression import (
    BLOCKS_A_STEP,
    DECOMPRESSED_BYTES_MAX,
    Codec,
    CorruptRecord,
    compress,
    decompress,
    decompressed_bytes_max,
)
from kafka_ds.records.decompression import pieces

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"a record, and another one; " * 9_000


def samples() -> list[bytes]:
    draw = random.Random(3)
    return [b"", b"x", TEXT, draw.randbytes(100_000), bytes(3 << 20)]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", samples(), ids=len)
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    assert decompress(codec, packed) == data
    assert decompress(codec, memoryview(bytearray(packed)), limit_bytes=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", samples()[1:], ids=len)
def test_output_is_bounded(codec: Codec, data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="longer"):
        decompress(codec, compress(codec, data), limit_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_nothing_may_be_missing_or_left_over(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    for broken in (packed + b"\0", packed + b"garbage", packed[:-1], packed[: len(packed) // 2]):
        with pytest.raises(CorruptRecord):
            decompress(codec, broken)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_frames_may_follow_each_other(codec: Codec) -> None:
    packed = compress(codec, TEXT) + compress(codec, b"and more")
    assert decompress(codec, packed) == TEXT + b"and more"
    with pytest.raises(CorruptRecord):
        decompress(codec, packed, limit_bytes=len(TEXT) + 7)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_nothing_at_all_is_no_frame(codec: Codec) -> None:
    with pytest.raises(CorruptRecord):
        decompress(codec, b"")


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(CorruptRecord):
        decompress(codec, b"data")


def test_zstd_of_unknown_size() -> None:
    """librdkafka streams: its frames do not say how long their content is."""
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    packed = stream.compress(TEXT) + stream.flush()
    assert decompress(Codec.ZSTD, packed) == TEXT
    assert decompress(Codec.ZSTD, packed + packed, limit_bytes=2 * len(TEXT)) == TEXT + TEXT
    with pytest.raises(CorruptRecord, match="longer"):
        decompress(Codec.ZSTD, packed, limit_bytes=len(TEXT) - 1)
    # A limit below what the blocks could hold, but not below what they do.
    assert decompress(Codec.ZSTD, packed, limit_bytes=len(TEXT)) == TEXT


def test_zstd_frames_that_are_skipped() -> None:
    note = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    packed = compress(Codec.ZSTD, TEXT)
    assert decompress(Codec.ZSTD, note + packed + note) == TEXT
    with pytest.raises(CorruptRecord):
        decompress(Codec.ZSTD, packed + note[:-1])


def test_a_zstd_frame_may_not_lie_about_its_size() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(bytes(100_000)))
    assert packed[4] >> 6 == 2, "the size has four bytes"
    packed[5:9] = (10).to_bytes(4, "little")
    with pytest.raises(CorruptRecord):
        decompress(Codec.ZSTD, packed, limit_bytes=1_000)
    packed[5:9] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(CorruptRecord):
        decompress(Codec.ZSTD, packed)


def test_snappy_raw_as_librdkafka_writes_it() -> None:
    packed = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Codec.SNAPPY, packed) == TEXT
    with pytest.raises(CorruptRecord):
        decompress(Codec.SNAPPY, packed, limit_bytes=len(TEXT) - 1)
    # It claims four gigabytes.
    with pytest.raises(CorruptRecord, match="longer"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + packed)


def test_lz4_frames_of_all_kinds() -> None:
    choices = itertools.product((4, 5, 6, 7), *[(True, False)] * 4)
    for size, linked, content_checksum, block_checksum, sized in choices:
        packed = lz4.frame.compress(
            TEXT,
            block_size=size,
            block_linked=linked,
            content_checksum=content_checksum,
            block_checksum=block_checksum,
            store_size=sized,
        )
        assert decompress(Codec.LZ4, packed + packed) == TEXT + TEXT
        assert decompress(Codec.LZ4, packed, limit_bytes=len(TEXT)) == TEXT


def test_an_lz4_header_is_not_believed() -> None:
    packed = bytearray(lz4.frame.compress(TEXT, store_size=True))
    packed[6:14] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(CorruptRecord):
        decompress(Codec.LZ4, packed)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_no_more_than_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(32 << 20))
    with pytest.raises(CorruptRecord, match="longer"):
        decompress(codec, bomb, limit_bytes=1 << 20)


def test_thousands_of_empty_frames_take_linear_time() -> None:
    for codec in COMPRESSED:
        frame = compress(codec, b"")
        assert decompress(codec, frame * (100_000 // len(frame))) == b""


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_who_looks_at_pieces_is_asked_before_many_blocks_are_walked_over(codec: Codec) -> None:
    """A few hundred KiB of blocks of a byte each kept the event loop for a tenth of a second."""
    if codec == Codec.LZ4:
        begin, block, end = compress(codec, b"")[:7], b"\x01\x00\x00\x80a", bytes(4)
    else:
        begin, block, end = b"\x28\xb5\x2f\xfd\x00\x58", b"\x08\x00\x00a", b"\x01\x00\x00"
    found = list(pieces(codec, memoryview(begin + 1_000 * block + end)))
    assert b"".join(found) == 1_000 * b"a" == decompress(codec, begin + 1_000 * block + end)
    assert len(found) > 1_000 // BLOCKS_A_STEP
    # Nothing behind them was looked at yet.
    cut = pieces(codec, memoryview(begin + 1_000 * block))
    assert [next(cut) for _ in range(1_000 // BLOCKS_A_STEP)] == [b""] * (1_000 // BLOCKS_A_STEP)
    with pytest.raises(CorruptRecord):
        next(cut)


def test_a_skipped_zstd_frame_is_a_piece_too() -> None:
    skipped, frame = b"\x50\x2a\x4d\x18" + bytes(4), compress(Codec.ZSTD, b"data")
    assert list(pieces(Codec.ZSTD, memoryview(3 * skipped + frame))) == [b"", b"", b"", b"data"]


def test_default_limit() -> None:
    assert decompressed_bytes_max(0) == decompressed_bytes_max(1 << 20) == 64 << 20
    assert decompressed_bytes_max(10 << 20) == 640 << 20
    assert decompressed_bytes_max(1 << 30) == DECOMPRESSED_BYTES_MAX


@settings(max_examples=300)
@given(st.sampled_from(COMPRESSED), st.binary(max_size=60), st.integers(0, 2**32))
def test_whatever_is_wrong_is_a_corrupt_record(codec: Codec, noise: bytes, seed: int) -> None:
    draw = random.Random(seed)
    packed = bytearray(compress(codec, TEXT[:500]))
    packed[draw.randrange(len(packed)) :] = noise
    flipped = bytearray(compress(codec, TEXT[:500]))
    flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    for broken in (noise, packed, flipped):
        with contextlib.suppress(CorruptRecord):
            assert len(decompress(codec, broken, limit_bytes=10_000)) <= 10_000


def test_what_other_clients_write_and_read() -> None:
    encoders = {
        Codec.GZIP: aiokafka_codec.gzip_encode,
        Codec.SNAPPY: aiokafka_codec.snappy_encode,
        Codec.LZ4: aiokafka_codec.lz4_encode,
        Codec.ZSTD: aiokafka_codec.zstd_encode,
    }
    decoders = {
        Codec.GZIP: aiokafka_codec.gzip_decode,
        Codec.SNAPPY: aiokafka_codec.snappy_decode,
        Codec.LZ4: aiokafka_codec.lz4_decode,
        Codec.ZSTD: aiokafka_codec.zstd_decode,
    }
    for codec in COMPRESSED:
        assert decompress(codec, bytes(encoders[codec](TEXT))) == TEXT
        assert bytes(decoders[codec](compress(codec, TEXT))) == TEXT
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    assert decompress(Codec.GZIP, zlib.compress(TEXT, wbits=31)) == TEXT
