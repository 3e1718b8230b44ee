"""Message sets of magic 0 and 1: what a hand, and kafka-python, wrote is what the batches hold."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from kafka_ds.records.batch import (
    BatchHeader,
    Codec,
    CorruptRecord,
    Record,
    TimestampType,
    build_batch,
    iterate_headers,
    read_records,
)
from kafka_ds.records.legacy import GROUP_BYTES_MAX, NESTING_MAX, Upconverter, read_message, unwrap
from tests.model_runs import examples
from tests.unit.records.old_sets import (
    APPEND_TIME,
    Plain,
    Wrapper,
    all_records,
    compressed,
    encode,
    encode_all,
    message,
    some_entries,
)

NOW_MS = 1_400_000_000_000
OLD_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def converted(data: bytes, *, chunk_bytes: int = 1 << 20, next_offset: int = 0) -> bytes:
    """The whole set as batches; damage is an error."""
    upconverter = Upconverter(next_offset=next_offset, leader_epoch=0)
    batches: list[bytes] = []
    position, wanted = 0, chunk_bytes
    while position < len(data):
        ready, taken = upconverter.feed(memoryview(data)[position : position + wanted])
        batches += ready
        position += taken
        if upconverter.damage is not None:
            raise CorruptRecord(upconverter.damage)
        if not taken and wanted >= len(data) - position:
            raise CorruptRecord("truncated")
        wanted = chunk_bytes if taken else 2 * wanted
    return b"".join([*batches, *upconverter.finish()])


def batches_of(data: bytes) -> list[tuple[BatchHeader, list[Record]]]:
    """Headers and records; with LogAppendTime the batch's time is that of all."""
    found = []
    for position, header in iterate_headers(data):
        records = read_records(data, position, header)
        found.append((header, records))
    return found


def records_in(data: bytes) -> list[Record]:
    return [record for _, records in batches_of(data) for record in records]


@pytest.mark.parametrize("chunk_bytes", [50, 700, 1 << 20])
def test_all_that_an_old_log_may_hold(chunk_bytes: int) -> None:
    entries = some_entries()
    data = converted(encode_all(entries), chunk_bytes=chunk_bytes)
    assert records_in(data) == all_records(entries)
    codecs = {header.codec for header, _ in batches_of(data)}
    assert codecs == {Codec.NONE, *OLD_CODECS}
    kinds = {header.timestamp_type for header, _ in batches_of(data)}
    assert kinds == {TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME}
    assert all(header.leader_epoch == 0 for header, _ in batches_of(data))


# Without LZ4 in magic 0, for which it wants a library of its own; the tests below have that.
@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        (0, Codec.NONE),
        (0, Codec.GZIP),
        (0, Codec.SNAPPY),
        *((1, each) for each in (0, *OLD_CODECS)),
    ],
)
def test_what_kafka_python_wrote(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    expected = []
    for offset in range(20):
        key, value = b"k%d" % offset, None if offset == 7 else b"v" * offset * 9
        assert builder.append(offset, timestamp=NOW_MS + offset, key=key, value=value)
        expected.append(Record(offset, NOW_MS + offset if magic else -1, key, value))
    data = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", data, 0, 19)  # What a broker of then wrote: the last one's offset.
    assert records_in(converted(bytes(data))) == expected


def test_relative_offsets_after_compaction() -> None:
    """Holes at the beginning, in the midst: the wrapper's offset is that of the last that is left."""
    inner = b"".join(
        message(1, relative, None, b"%d" % relative, time=NOW_MS) for relative in (2, 5, 6)
    )
    outer = message(
        1, 106, None, compressed(Codec.GZIP, inner, 1), attributes=Codec.GZIP, time=NOW_MS
    )
    assert [(r.offset, r.value) for r in records_in(converted(outer))] == [
        (102, b"2"),
        (105, b"5"),
        (106, b"6"),
    ]


def test_a_wrapper_with_offset_0_does_not_count() -> None:
    inner = b"".join(message(1, i, None, b"v", time=NOW_MS) for i in range(3))
    outer = message(1, 0, None, compressed(Codec.GZIP, inner, 1), attributes=Codec.GZIP)
    assert [r.offset for r in records_in(converted(outer))] == [0, 1, 2]


def test_compressed_sets_inside_of_a_compressed_set() -> None:
    """Two sets of two in one: each wrapper inside has the relative offset of its own last record."""
    parts = b""
    for last, values in ((1, (b"a", b"b")), (3, (b"c", b"d"))):
        inner = b"".join(message(1, i, None, value, time=NOW_MS) for i, value in enumerate(values))
        packed = compressed(Codec.SNAPPY, inner, 1)
        parts += message(1, last, None, packed, attributes=Codec.SNAPPY, time=NOW_MS)
    outer = message(1, 43, None, compressed(Codec.LZ4, parts, 1), attributes=Codec.LZ4, time=NOW_MS)
    assert [(r.offset, r.value) for r in records_in(converted(outer))] == [
        (40, b"a"),
        (41, b"b"),
        (42, b"c"),
        (43, b"d"),
    ]


def test_what_is_cut_inside_of_a_compressed_set_is_not_there() -> None:
    inner = (
        message(1, 0, None, b"whole", time=NOW_MS) + message(1, 1, None, b"cut", time=NOW_MS)[:-1]
    )
    outer = message(
        1, 9, None, compressed(Codec.GZIP, inner, 1), attributes=Codec.GZIP, time=NOW_MS
    )
    assert [(r.offset, r.value) for r in records_in(converted(outer))] == [(9, b"whole")]


def test_plain_messages_share_batches_of_a_bounded_size() -> None:
    records = [Record(i, NOW_MS + i, b"k", b"v" * 100) for i in range(2000)]
    found = batches_of(converted(encode_all(Plain(magic=1, record=r) for r in records)))
    assert [record for _, listed in found for record in listed] == records
    assert 3 < len(found) < 8
    assert all(header.size_in_bytes < GROUP_BYTES_MAX for header, _ in found)
    far = [Record(0, NOW_MS, None, b"a"), Record(2**31, NOW_MS, None, b"b")]
    found = batches_of(converted(encode_all(Plain(magic=1, record=r) for r in far)))
    assert [header.base_offset for header, _ in found] == [0, 2**31]


def test_batches_stay_byte_for_byte() -> None:
    """The log's end was written after the upgrade; and an older format again, after it was taken back."""
    old = encode_all(some_entries())
    end = all_records(some_entries())[-1].offset + 1
    new = build_batch([Record(end, NOW_MS, b"k", b"v")], leader_epoch=7, producer_id=3)
    later = encode_all(some_entries(end + 1))
    data = converted(old + new + later)
    assert new in data
    epochs = [header.leader_epoch for header, _ in batches_of(data)]
    assert (epochs[0], epochs[-1]) == (0, 7)
    assert epochs == sorted(epochs)
    with pytest.raises(CorruptRecord, match="offset 0 is below"):
        converted(old + new + old)


def wrapped(inner: bytes, *, magic: int = 1, codec: int = Codec.GZIP, offset: int = 50) -> bytes:
    packed = compressed(Codec(codec), inner, magic) if codec in OLD_CODECS else inner
    return message(magic, offset, None, packed, attributes=codec, time=NOW_MS)


def with_checksum(entry: bytes) -> bytes:
    return entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]


PLAIN = message(1, 5, b"key", b"value", time=NOW_MS)
LZ4_OF_MAGIC_0 = message(
    0, 50, None, compressed(Codec.LZ4, message(0, 50, None, b"v"), 0), attributes=3
)


@pytest.mark.parametrize(
    ("data", "why"),
    {
        "a flipped bit": (PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]), "checksum"),
        "cut": (PLAIN[:-1], "truncated"),
        "only a head": (PLAIN[:17], "truncated"),
        "magic 3": (PLAIN[:16] + b"\x03" + PLAIN[17:], "magic 3"),
        "no room for fields": (PLAIN[:8] + struct.pack(">i", 13) + PLAIN[12:], "13 bytes"),
        "a key beyond the end": (
            with_checksum(PLAIN[:26] + struct.pack(">i", 9999) + PLAIN[30:]),
            "9999 bytes",
        ),
        "a negative length": (
            with_checksum(PLAIN[:26] + struct.pack(">i", -2) + PLAIN[30:]),
            "-2 bytes",
        ),
        "no offset": (struct.pack(">q", -1) + PLAIN[8:], "not a message"),
        "an empty set": (wrapped(b""), "empty"),
        "no set": (message(1, 1, None, None, attributes=1), "without a value"),
        "zstd, which came later": (wrapped(b"x", codec=4), "codec 4"),
        "no such codec": (wrapped(b"x", codec=7), "codec 7"),
        "not gzip": (message(1, 1, None, b"no gzip", attributes=1), "GZIP"),
        "a damaged message inside": (
            wrapped(PLAIN[:-1] + b"?" + PLAIN),
            "checksum",
        ),
        "another format inside": (wrapped(message(0, 0, None, b"v")), "another magic"),
        "offsets go down": (
            wrapped(message(1, 1, None, b"v") + message(1, 0, None, b"v")),
            "ascend",
        ),
        "more inside than its offset": (wrapped(message(1, 51, None, b"v")), "beyond its own"),
        "lz4 of magic 1 with the wrong checksum": (
            message(
                1,
                50,
                None,
                compressed(Codec.LZ4, message(1, 0, None, b"v"), 0),
                attributes=Codec.LZ4,
            ),
            "LZ4",
        ),
    }.values(),
)
def test_damage_is_named(data: bytes, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        converted(data)


def test_lz4_of_magic_0_is_read_whatever_its_header_checksum() -> None:
    right = bytearray(LZ4_OF_MAGIC_0)
    at = right.index(b"\x04\x22\x4d\x18") + 6
    for each in range(0, 256, 51):
        right[at] = each
        assert [r.value for r in records_in(converted(with_checksum(bytes(right))))] == [b"v"]


def test_nesting_and_size_are_bounded() -> None:
    entry = Wrapper(magic=1, codec=Codec.GZIP, records=(Record(3, NOW_MS, None, b"v" * 5000),))
    for again in range(NESTING_MAX):
        deep = encode(Wrapper(magic=1, codec=entry.codec, records=entry.records, again=again))
        assert records_in(converted(deep)) == list(entry.records)
    deep = encode(Wrapper(magic=1, codec=entry.codec, records=entry.records, again=NESTING_MAX))
    with pytest.raises(CorruptRecord, match="too deeply"):
        converted(deep)
    outer, _ = read_message(memoryview(encode(entry)), 0)
    with pytest.raises(CorruptRecord, match="longer than the limit"):
        unwrap(outer, limit_bytes=5000)
    # All levels together: each of the two alone would be within the limit.
    inner, _ = read_message(
        memoryview(encode(Wrapper(magic=1, codec=entry.codec, records=entry.records, again=1))), 0
    )
    assert len(unwrap(inner, limit_bytes=6000)) == 1
    with pytest.raises(CorruptRecord, match="longer than the limit"):
        unwrap(inner, limit_bytes=5060)


# -- any sets --------------------------------------------------------------------------------------

_BYTES = st.none() | st.binary(max_size=40)


@st.composite
def entries(draw: st.DrawFn) -> list[Wrapper | Plain]:
    """A log: formats go up as a rule, offsets have holes, times are anything."""
    listed: list[Wrapper | Plain] = []
    offset = draw(st.integers(0, 5) | st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 8))):
        magic = draw(st.sampled_from((0, 1)))
        codec = draw(st.sampled_from((Codec.NONE, *OLD_CODECS)))
        records = []
        for _ in range(draw(st.integers(1, 6)) if codec else 1):
            offset += draw(st.integers(1, 3))
            time = draw(st.integers(-1, 2**45)) if magic else -1
            records.append(Record(offset, time, draw(_BYTES), draw(_BYTES)))
        if codec:
            append_time = draw(st.none() | st.integers(0, 2**45)) if magic else None
            listed.append(
                Wrapper(
                    magic=magic,
                    codec=codec,
                    records=tuple(records),
                    append_time=append_time,
                    again=draw(st.integers(0, 2)),
                )
            )
        else:
            has_append_time = bool(magic) and draw(st.booleans())
            listed.append(Plain(magic=magic, record=records[0], has_append_time=has_append_time))
    return listed


@given(entries(), st.integers(20, 400))
@settings(max_examples=examples(30), deadline=None)
def test_any_log_holds_the_same_afterwards(listed: list[Wrapper | Plain], chunk_bytes: int) -> None:
    data = converted(encode_all(listed), chunk_bytes=chunk_bytes)
    assert records_in(data) == all_records(listed)
    ends = [header.next_offset for header, _ in batches_of(data)]
    starts = [header.base_offset for header, _ in batches_of(data)]
    assert all(start >= end for end, start in zip(ends, starts[1:], strict=False))
    for header, records in batches_of(data):
        assert header.max_timestamp == max(record.timestamp for record in records)
        if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
            assert {record.timestamp for record in records} == {header.max_timestamp}


def test_the_append_time_flag_is_nothing_in_magic_0() -> None:
    entry = message(0, 1, None, b"v", attributes=APPEND_TIME)
    ((header, records),) = batches_of(converted(entry))
    assert header.timestamp_type == TimestampType.CREATE_TIME
    assert records[0].timestamp == -1
