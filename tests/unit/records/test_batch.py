"""Record batches: layout, checksum, stamping; other clients' readers and builders as oracles."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records.batch import (
    HEADER_BYTES,
    MAGIC_POSITION,
    Codec,
    ControlType,
    CorruptRecord,
    Record,
    TimestampType,
    UnsupportedMagic,
    build_batch,
    control_type,
    crc_is_valid,
    empty_batch,
    end_transaction_marker,
    iterate_headers,
    read_header,
    read_records,
    seal,
    set_log_append_time,
    stamp,
    varint,
)
from tests.unit.records.hostile import RECORDS, hostile_payloads
from tests.unit.records.record_cases import RecordLog, logs, rows_of_batches, utf8_keys
from tests.unit.records.record_oracles import (
    BUILDERS,
    CODECS_OF_OTHERS,
    READERS,
    AiokafkaBatch,
    KafkaPythonBatch,
    records_of,
)


def test_header_fields() -> None:
    batch = build_batch(
        RECORDS,
        base_offset=5,
        last_offset=12,
        leader_epoch=3,
        codec=Codec.LZ4,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        producer_id=99,
        producer_epoch=2,
        base_sequence=2**31 - 3,
        is_transactional=True,
    )
    header = read_header(b"..." + batch, 3)
    assert header.size_in_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (5, 12, 13)
    assert (header.leader_epoch, header.magic, header.record_count) == (3, 2, 3)
    assert header.attributes == 0b0001_1011
    assert header.codec == Codec.LZ4
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional and not header.is_control
    assert (header.producer_id, header.producer_epoch) == (99, 2)
    assert header.max_timestamp == 1_700_000_000_005
    assert header.last_sequence == 4, "sequences go on with 0 after the largest number"
    assert header._replace(base_sequence=-1).last_sequence == -1
    assert crc_is_valid(batch, 0, header)


def test_header_against_a_layout_written_by_hand() -> None:
    batch = build_batch([Record(258, 1, None, b"v")], leader_epoch=772)
    expected = "0000000000000102 00000039 00000304 02 ........ 0000 00000000"
    expected += "0000000000000001 0000000000000001 ffffffffffffffff ffff ffffffff 00000001"
    expected += "0e 00 00 00 01 02 76 00"
    text = batch.hex()
    text = text[:34] + "." * 8 + text[42:]
    assert text == expected.replace(" ", "")


@pytest.mark.parametrize("batch_type", READERS)
@settings(max_examples=60, deadline=None)
@given(log=logs(header_keys=utf8_keys, codecs=CODECS_OF_OTHERS))
def test_other_readers_read_what_is_built(batch_type: type, log: RecordLog) -> None:
    for batch in log.batches:
        assert records_of(batch_type, batch) == read_records(batch)


@pytest.mark.parametrize("builder_type", BUILDERS)
@pytest.mark.parametrize("codec", CODECS_OF_OTHERS)
def test_what_other_builders_build_is_read(builder_type: type, codec: Codec) -> None:
    builder = builder_type(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    records = [
        Record(i, 1_700_000_000_000 - i, b"k%d" % i, b"v" * i, ((b"h", None),)) for i in range(300)
    ]
    for r in records:
        builder.append(r.offset, r.timestamp, r.key, r.value, [("h", None)])
    batch = bytes(builder.build())
    assert crc_is_valid(batch, 0, read_header(batch))
    assert read_records(batch) == records


@pytest.mark.parametrize("codec", Codec)
def test_records_come_back(codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec)
    assert read_records(b"before" + batch + b"after", 6) == RECORDS


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_of_all_sizes(number: int) -> None:
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = varint(number)
    assert len(encoded) == max(1, -(-zigzag.bit_length() // 7))
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded)) == zigzag


def test_stamping_leaves_the_checksum_alone() -> None:
    batches = bytearray(build_batch(RECORDS) + build_batch(RECORDS[:1]))
    second = read_header(batches).size_in_bytes
    stamp(memoryview(batches), second, base_offset=1 << 40, leader_epoch=9)
    header = read_header(batches, second)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert crc_is_valid(batches, second, header)
    assert read_records(batches, second)[0].offset == 1 << 40


def test_log_append_time() -> None:
    batch = bytearray(build_batch(RECORDS, codec=Codec.ZSTD))
    changed = set_log_append_time(batch, 0, read_header(batch), 1_800_000_000_000)
    assert read_header(batch) == changed
    assert crc_is_valid(batch, 0, changed)
    assert {record.timestamp for record in read_records(batch)} == {1_800_000_000_000}


def test_a_checksum_sees_each_bit_that_it_covers() -> None:
    batch = bytearray(build_batch(RECORDS))
    for position in range(21, len(batch)):
        batch[position] ^= 0x10
        assert not crc_is_valid(batch, 0, read_header(batch))
        batch[position] ^= 0x10
    assert not crc_is_valid(memoryview(batch)[:-1], 0, read_header(batch))


def test_iteration_stops_at_a_batch_that_is_not_whole() -> None:
    batches = [build_batch(RECORDS), empty_batch(12, 20, 1), build_batch(RECORDS[:1])]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    for end in range(len(data) + 1):
        whole = [start for start, b in zip(starts, batches, strict=True) if start + len(b) <= end]
        assert [position for position, _ in iterate_headers(data[:end])] == whole


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_named(magic: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[MAGIC_POSITION] = magic
    with pytest.raises(UnsupportedMagic, match=f"magic {magic if magic < 128 else -1}$"):
        read_header(batch)
    with pytest.raises(UnsupportedMagic):
        list(iterate_headers(batch))


@pytest.mark.parametrize("length", [-1, 0, 13, 14, 48, -(2**31)])
def test_a_length_that_no_batch_has(length: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[8:12] = struct.pack(">i", length)
    with pytest.raises(CorruptRecord):
        list(iterate_headers(batch))
    with pytest.raises(CorruptRecord):
        read_header(batch)


def test_a_header_that_is_cut_short() -> None:
    with pytest.raises(CorruptRecord):
        read_header(build_batch(RECORDS)[: HEADER_BYTES - 1])


def test_control_and_empty_batches() -> None:
    marker = end_transaction_marker(
        ControlType.COMMIT,
        offset=4,
        timestamp=5,
        producer_id=1,
        producer_epoch=2,
        coordinator_epoch=3,
    )
    header = read_header(marker)
    assert header.is_control and header.is_transactional
    (record,) = read_records(marker)
    assert control_type(record) == ControlType.COMMIT
    assert record.value == bytes.fromhex("000000000003")
    assert KafkaPythonBatch(marker).is_control_batch
    with pytest.raises(CorruptRecord):
        control_type(Record(0, 0, None, b""))
    empty = empty_batch(10, 20, 7)
    assert len(empty) == HEADER_BYTES
    header = read_header(empty)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 20, 0)
    assert crc_is_valid(empty, 0, header) and read_records(empty) == []
    assert list(AiokafkaBatch(empty)) == []


@pytest.mark.parametrize("payload", hostile_payloads().values(), ids=hostile_payloads().keys())
def test_hostile_records(payload: bytes) -> None:
    header = read_header(build_batch(RECORDS[1:2]))
    with pytest.raises(CorruptRecord):
        read_records(seal(header, payload))


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_a_record_count_that_is_wrong(count: int) -> None:
    batch = build_batch(RECORDS[1:2])
    header = read_header(batch)._replace(record_count=count)
    with pytest.raises(CorruptRecord):
        read_records(seal(header, batch[HEADER_BYTES:]))


def test_offsets_have_to_ascend() -> None:
    record = b"\x0c\x00\x00\x00\x01\x00\x00"
    header = read_header(build_batch(RECORDS[1:2]))._replace(record_count=2, last_offset_delta=5)
    with pytest.raises(CorruptRecord, match="offset delta"):
        read_records(seal(header, record + record))


def test_padded_varints_are_read_as_java_reads_them() -> None:
    """Kafka's own reader takes a varint of up to five bytes, however few would do."""
    padded = b"\x8c\x80\x80\x80\x00" + b"\x00\x00\x00\x01\x00\x00"
    header = read_header(build_batch([Record(0, 9, None, b"")]))
    assert read_records(seal(header, padded)) == [Record(0, 9, None, b"")]


@settings(max_examples=30, deadline=None)
@given(logs())
def test_the_log_that_other_tests_use_is_sound(log: RecordLog) -> None:
    offsets = [row.record.offset for row in rows_of_batches(log.batches)]
    assert offsets == sorted(set(offsets))
    assert log.start_offset <= offsets[0] and offsets[-1] <= log.end_offset
