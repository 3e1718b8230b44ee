"""Rows to batches: a consumer of old offsets reads what was produced, and its position advances."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records.batch import (
    Record,
    TimestampType,
    build_batch,
    crc_is_valid,
    read_header,
    read_records,
)
from kafka_ds.topic.batches.convert import decode_batches, encode_batches
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.unit.records.record_cases import RecordLog, logs, rows_of_batches, utf8_keys
from tests.unit.records.record_oracles import READERS, records_of

T0 = 1_700_000_000_000


def table_of(*batches: bytes, start: int, end: int) -> pa.Table:
    decoded = decode_batches(batches, start_offset=start, end_offset=end)
    assert decoded.residue == []
    return pa.Table.from_batches(decoded.table_batches, schema=TOPIC_FILE_SCHEMA)


def assert_spans(batches: list[bytes], start: int, end: int) -> None:
    """Each batch is whole, and begins where the one before it ended."""
    next_offset = start
    for batch in batches:
        header = read_header(batch)
        assert header.size_in_bytes == len(batch) and crc_is_valid(batch, 0, header)
        assert header.base_offset == next_offset and header.last_offset_delta >= 0
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert header.attributes & ~0b1111 == 0
        next_offset = header.next_offset
    assert next_offset == end + 1


@settings(max_examples=60, deadline=None)
@given(logs(), st.sampled_from([1, 200, 1 << 20]))
def test_every_record_comes_back(log: RecordLog, bytes_max: int) -> None:
    table = table_of(*log.batches, start=log.start_offset, end=log.end_offset)
    rebuilt = encode_batches(
        table,
        first_offset=log.start_offset,
        last_offset=log.end_offset,
        batch_bytes_max=bytes_max,
    )
    assert_spans(rebuilt, log.start_offset, log.end_offset)
    assert rows_of_batches(rebuilt) == rows_of_batches(log.batches)


@settings(max_examples=50, deadline=None)
@given(logs(), st.randoms(use_true_random=False), st.booleans())
def test_every_row_that_is_left_comes_back(
    log: RecordLog, draw: random.Random, in_pieces: bool
) -> None:
    table = table_of(*log.batches, start=log.start_offset, end=log.end_offset)
    rows = rows_of_batches(log.batches)
    kept = [draw.random() < 0.5 for _ in rows]
    left = table.filter(pa.array(kept))
    if in_pieces:
        middle = len(left) // 2
        left = pa.concat_tables([left.slice(0, middle), left.slice(middle)])
    rebuilt = encode_batches(left, first_offset=log.start_offset, last_offset=log.end_offset)
    assert_spans(rebuilt, log.start_offset, log.end_offset)
    assert rows_of_batches(rebuilt) == [row for row, keep in zip(rows, kept, strict=True) if keep]


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=30, deadline=None)
@given(log=logs(header_keys=utf8_keys))
def test_other_clients_read_what_is_rebuilt(reader: type, log: RecordLog) -> None:
    table = table_of(*log.batches, start=log.start_offset, end=log.end_offset)
    rebuilt = encode_batches(table, first_offset=log.start_offset, last_offset=log.end_offset)
    found = [record for batch in rebuilt for record in records_of(reader, batch)]
    assert found == [row.record for row in rows_of_batches(log.batches)]


def test_slices_of_a_table() -> None:
    draw = random.Random(4)
    records = [
        Record(
            i,
            T0 + i if i % 7 else -1,
            (None, b"", draw.randbytes(9))[i % 3],
            (draw.randbytes(20), None)[i % 5 == 0],
            ((b"h%d" % i, None), (b"\xff", b"x"))[: i % 3],
        )
        for i in range(60)
    ]
    (whole,) = table_of(build_batch(records), start=0, end=59).to_batches()
    for start in (0, 1, 7, 8, 9, 59):
        for end in (start + 1, start + 9, 60):
            part = whole.slice(start, min(end, 60) - start)
            rebuilt = encode_batches(part, first_offset=start, last_offset=min(end, 60) - 1)
            assert [row.record for row in rows_of_batches(rebuilt)] == records[start:end]


def test_a_new_batch_for_each_leader_epoch_and_timestamp_type() -> None:
    log_append = TimestampType.LOG_APPEND_TIME
    batches = [
        build_batch([Record(0, T0, None, b"a")], leader_epoch=1),
        build_batch([Record(1, T0, None, b"b")], leader_epoch=1),
        build_batch([Record(2, T0, None, b"c")], leader_epoch=2),
        build_batch([Record(3, T0, None, b"d")], leader_epoch=2, timestamp_type=log_append),
        build_batch([Record(4, T0, None, b"e")], leader_epoch=2, timestamp_type=log_append),
        build_batch([Record(5, T0 + 1, None, b"f")], leader_epoch=2, timestamp_type=log_append),
    ]
    table = table_of(*batches, start=0, end=5)
    rebuilt = encode_batches(table, first_offset=0, last_offset=5)
    assert [read_header(batch).record_count for batch in rebuilt] == [2, 1, 2, 1]
    assert rows_of_batches(rebuilt) == rows_of_batches(batches)
    assert [read_header(batch).max_timestamp for batch in rebuilt] == [T0, T0, T0, T0 + 1]


def test_batches_of_about_the_size_asked_for() -> None:
    records = [Record(i, T0 + i, b"key", bytes(1_000)) for i in range(1_000)]
    table = table_of(build_batch(records), start=0, end=999)
    rebuilt = encode_batches(table, first_offset=0, last_offset=999, batch_bytes_max=64 << 10)
    sizes = [len(batch) for batch in rebuilt]
    assert max(sizes) <= 64 << 10 and min(sizes[:-1]) > 63 << 10
    # One record larger than that is a batch of its own.
    records = [
        Record(0, T0, None, b"a"),
        Record(1, T0, None, bytes(10 << 20)),
        Record(2, T0, None, b""),
    ]
    table = table_of(*(build_batch([record]) for record in records), start=0, end=2)
    rebuilt = encode_batches(table, first_offset=0, last_offset=2)
    assert [read_header(batch).record_count for batch in rebuilt] == [1, 1, 1]
    assert [row.record for row in rows_of_batches(rebuilt)] == records


def test_a_range_without_a_row() -> None:
    rebuilt = encode_batches(TOPIC_FILE_SCHEMA.empty_table(), first_offset=5, last_offset=9)
    assert_spans(rebuilt, 5, 9)
    assert [read_records(batch) for batch in rebuilt] == [[]]
    assert encode_batches(TOPIC_FILE_SCHEMA.empty_table(), first_offset=5, last_offset=4) == []


def test_holes_wider_than_a_batch_can_span() -> None:
    offsets = [10, 11, 2**31 + 9, 2**33, 2**40]
    batches = [build_batch([Record(o, T0, None, b"v")], leader_epoch=4) for o in offsets]
    table = table_of(*batches, start=0, end=2**41)
    rebuilt = encode_batches(table, first_offset=0, last_offset=2**41)
    assert_spans(rebuilt, 0, 2**41)
    assert [row.record.offset for row in rows_of_batches(rebuilt)] == offsets
    assert {read_header(batch).leader_epoch for batch in rebuilt} == {4}


def test_rows_out_of_order_or_range_are_refused() -> None:
    table = table_of(build_batch([Record(i, T0, None, b"v") for i in range(5)]), start=0, end=4)
    with pytest.raises(ValueError, match="not sorted"):
        encode_batches(table.take(pa.array([1, 0])), first_offset=0, last_offset=4)
    with pytest.raises(ValueError, match="not sorted"):
        encode_batches(pa.concat_tables([table, table]), first_offset=0, last_offset=9)
    for first, last in ((1, 4), (0, 3)):
        with pytest.raises(ValueError, match="not sorted"):
            encode_batches(table, first_offset=first, last_offset=last)


def test_what_another_engine_wrote() -> None:
    """Wider types, other column orders, columns left out."""
    records = [Record(i, T0 + i, b"k", b"v%d" % i, ((b"h", b"x"),)) for i in range(5)]
    table = table_of(build_batch(records, leader_epoch=3), start=0, end=4)
    wider = [("key", pa.large_binary()), ("value", pa.binary_view()), ("leader_epoch", pa.int64())]
    foreign = table.drop_columns(["batch", "headers_raw", "timestamp_ms"])
    for name, wider_type in wider:
        index = foreign.schema.get_field_index(name)
        foreign = foreign.set_column(index, name, foreign[name].cast(wider_type))
    foreign = foreign.select(sorted(foreign.column_names))
    rebuilt = encode_batches(foreign, first_offset=0, last_offset=4)
    assert rows_of_batches(rebuilt) == rows_of_batches([build_batch(records, leader_epoch=3)])
