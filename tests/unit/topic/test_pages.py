"""Pages of Parquet without Arrow: the same numbers and bytes as Arrow reads, and Unusual for all that is not ours."""

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ds.records.arrays import read_only
from kafka_ds.records.encoder import Columns
from kafka_ds.topic.batches.arrow import columns_of
from kafka_ds.topic.batches.rebuild import encode_batches
from kafka_ds.topic.batches.records import (
    RECORD_COLUMNS,
    between,
    offsets_of,
    parts_of,
    read_records,
)
from kafka_ds.topic.files import page_loops
from kafka_ds.topic.files.pages import PagePart, UnsupportedLayout, binaries, chunk_of, numbers
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, read_files, write_rows
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.fakes.lake_rows import batch_of
from tests.fakes.store import MemoryStore

ENCODINGS = {
    pa.int64(): ("INT64", "DELTA_BINARY_PACKED"),
    pa.binary(): ("BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"),
}
# Numbers near each other, of all widths, and both ends.
NUMBERS = st.lists(
    st.integers(0, 3) | st.integers(-(1 << 63), (1 << 63) - 1) | st.just(1 << 40), max_size=300
)
VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=300)


def parts(values, arrow_type, *, groups=1000, **options):
    """A column as a file of its own, its chunks read back as bytes."""
    physical, encoding = ENCODINGS[arrow_type]
    sink = io.BytesIO()
    table = pa.table({"column": pa.array(values, arrow_type)})
    settings = {
        "use_dictionary": False,
        "compression": "zstd",
        "column_encoding": {"column": encoding},
        "row_group_size": groups,
        **options,
    }
    pq.write_table(table, sink, **settings)
    whole = read_only(sink.getvalue(), np.uint8)
    metadata = pq.ParquetFile(sink).metadata
    chunks = [chunk_of(metadata, each, 0, physical) for each in range(metadata.num_row_groups)]
    return [PagePart(each, whole[each.start : each.end]) for each in chunks]


def taken(column):
    """The values of a column of bytes."""
    if not len(column.offsets):
        return [None] * len(column.valid)
    data, ends = column.data.tobytes(), column.offsets.tolist()
    found = [data[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    if len(column.valid):
        found = [each if ok else None for each, ok in zip(found, column.valid, strict=True)]
    return found


@settings(max_examples=40)
@given(NUMBERS, st.sampled_from(["zstd", "snappy", "none"]), st.integers(1, 400))
def test_numbers(values, compression, groups):
    read = parts(values, pa.int64(), compression=compression, groups=groups)
    assert numbers(read).tolist() == values


@settings(max_examples=40)
@given(VALUES, st.sampled_from(["zstd", "snappy", "none"]), st.integers(1, 400))
def test_binaries(values, compression, groups):
    read = parts(values, pa.binary(), compression=compression, groups=groups)
    assert taken(binaries(read)) == values


def test_many_pages_of_one_chunk():
    lots = random.Random(3)
    options = {"data_page_size": 500, "write_batch_size": 10, "groups": 5000}
    values = [
        lots.randbytes(lots.randrange(60)) if lots.random() < 0.9 else None for _ in range(3000)
    ]
    assert taken(binaries(parts(values, pa.binary(), **options))) == values
    times = [lots.randrange(1 << 45) for _ in range(3000)]
    assert numbers(parts(times, pa.int64(), **options)).tolist() == times


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True, "column_encoding": None},
        {"column_encoding": {"column": "PLAIN"}},
        {"compression": "gzip"},
        {"data_page_version": "2.0"},
    ],
)
@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.binary()])
def test_what_others_may_choose_is_unusual(options, arrow_type):
    values = [b"a", b"b"] * 20 if arrow_type == pa.binary() else [1, 2] * 20
    with pytest.raises(UnsupportedLayout):
        read = parts(values, arrow_type, **options)
        (binaries if arrow_type == pa.binary() else numbers)(read)
    with pytest.raises(UnsupportedLayout):
        numbers(parts([1, None], pa.int64()))


@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.binary()])
def test_damage_is_unusual_and_nothing_else(arrow_type):
    """Bytes changed and cut in pages that no checksum of zstd's covers: values of that number come out, or Unusual."""
    lots = random.Random(11)
    values = [lots.randrange(1 << lots.randrange(1, 63)) for _ in range(200)]
    if arrow_type == pa.binary():
        values = [each.to_bytes(8)[: each % 9] if each % 5 else None for each in values]
    read = binaries if arrow_type == pa.binary() else numbers
    (whole,) = parts(values, arrow_type, compression="none")
    refused = 0
    for _ in range(800):
        data = bytearray(whole.data.tobytes())
        for _ in range(lots.randrange(3)):
            data[lots.randrange(len(data))] = lots.randrange(256)
        cut = data if lots.random() < 0.5 else data[: lots.randrange(len(data))]
        try:
            found = read([PagePart(whole.chunk, read_only(bytes(cut), np.uint8))])
        except UnsupportedLayout:
            refused += 1
            continue
        if arrow_type == pa.int64():
            assert len(found) == 200
        else:
            assert len(taken(found)) == 200
            assert not len(found.offsets) or found.offsets[-1] == len(found.data)
            assert (np.diff(found.offsets) >= 0).all()
    assert 200 < refused < 800


def test_damage_leads_no_loop_out_of_its_bytes():
    """Run as plain Python, where an index that is too large raises; compiled code would read on."""
    lots = random.Random(5)
    for turn in range(400):
        data = lots.randbytes(lots.randrange(60))
        if turn % 2:
            # A block of 128 values in 4 miniblocks, and as many values as wanted; the rest by lot.
            data = b"\x80\x01\x04\x40" + data
        bytes_, numbers_ = read_only(data, np.uint8), np.empty(64, np.int64)
        with np.errstate(over="ignore"):
            at = page_loops.deltas(bytes_, 0, len(data), numbers_)
            assert at == page_loops.MALFORMED or 0 < at <= len(data)
            flags = np.empty(70, np.uint8)
            zeros = page_loops.levels(bytes_, 0, len(data), flags)
        assert zeros == page_loops.MALFORMED or zeros == np.count_nonzero(flags == 0)


@pytest.mark.parametrize("rows", [-1, 1 << 40])
@pytest.mark.parametrize("read", [numbers, binaries])
def test_rows_that_nobody_has_room_for_are_unusual(read, rows):
    (part,) = parts([1, 2, 3], pa.int64())
    with pytest.raises(UnsupportedLayout):
        read([part._replace(chunk=part.chunk._replace(rows=rows))])


@pytest.mark.parametrize("compression", ["zstd", "snappy"])
def test_a_page_that_is_shorter_than_it_says_is_unusual(compression):
    (part,) = parts([b"x" * 50] * 40, pa.binary(), compression=compression)
    grown = PagePart(part.chunk, larger(part.data))
    with pytest.raises(UnsupportedLayout, match="another size|ZSTD"):
        binaries([grown])


def larger(data):
    """A chunk whose page header claims more decompressed bytes than there are."""
    # The header begins with its type (0) and its uncompressed size, a zigzag varint of two bytes here.
    raw = bytearray(data.tobytes())
    assert raw[:2] == b"\x15\x00" and raw[2] == 0x15 and raw[3] & 0x80 and not raw[4] & 0x80
    size = raw[3] & 0x7F | raw[4] << 7
    size += 2 * 100
    raw[3], raw[4] = size & 0x7F | 0x80, size >> 7
    return read_only(bytes(raw), np.uint8)


# -- rows ---------------------------------------------------------------------------------------


def plain(offsets, *, keys=True, value=b"value-%d", **options):
    """Rows without headers, as most topics have them."""
    batch = batch_of(offsets, value=value, **options)
    names = ["headers"] if keys else ["headers", "key"]
    for name in names:
        at = batch.schema.get_field_index(name)
        field = batch.schema.field(at)
        batch = batch.set_column(at, field, pa.nulls(batch.num_rows, field.type))
    return batch


def both(store, path, start, end, max_bytes=1 << 62):
    """What is read past Arrow or not, and what Arrow reads."""
    reader = FileReader(store)
    entry = FileEntry(
        path=path, action_path=path, partition=0, size=0, rows=1, min_offset=0, max_offset=9999
    )
    asked = {"start_offset": start, "end_offset": end, "max_bytes": max_bytes}
    rows, complete = read_records(reader, [entry], **asked)
    table, same = read_files(reader, [entry], **asked, columns=RECORD_COLUMNS)
    assert complete == same
    assert offsets_of(rows).tolist() == table.column("offset").to_pylist()
    made = [
        [bytes(each) for each in encode_batches(each, first_offset=start, last_offset=complete)]
        for each in (rows, table)
    ]
    assert made[0] == made[1]
    return rows


@pytest.mark.parametrize(("keys", "level"), [(True, 1), (False, None)])
def test_rows_of_ours_are_read_past_arrow(keys, level):
    store = MemoryStore()
    batches = [plain(range(at, at + 500), keys=keys, value=b"v" * 50) for at in (0, 600, 1200)]
    write_rows(store, "f", batches, row_group_bytes=20_000, level=level)
    for start, end, size in ((0, 9999, 1 << 62), (250, 700, 1), (550, 580, 1), (601, 1699, 30_000)):
        rows = both(store, "f", start, end, size)
        # Where no group holds any of these, there is nothing to read.
        assert isinstance(rows, Columns) or (start, end) == (550, 580)
    rows = both(store, "f", 0, 9999)
    middle = between(rows, 3, 7)
    assert offsets_of(middle).tolist() == [3, 4, 5, 6]
    (whole,), (part,) = parts_of(rows), parts_of(middle)
    assert taken(part.key) == taken(whole.key)[3:7] and taken(part.value) == [b"v" * 50] * 4
    assert parts_of(between(rows, 4, 4)) == []


def test_rows_of_another_kind_are_read_by_arrow():
    store = MemoryStore()
    late = plain(range(3), timestamp_ms=1)
    at = late.schema.get_field_index("timestamp")
    late = late.set_column(at, late.schema.field(at), pa.nulls(3, late.schema.field(at).type))
    kinds = {
        "with headers": [batch_of(range(9))],
        "of two epochs": [plain(range(5)), plain(range(5, 9), leader_epoch=3)],
        "without a time": [late],
    }
    for path, batches in kinds.items():
        write_rows(store, path, batches)
        assert isinstance(both(store, path, 0, 99), pa.Table), path
    rows = pa.Table.from_batches([plain([5, 3, 3, 9])], TOPIC_FILE_SCHEMA)
    text = rows.set_column(6, "value", rows.column("value").cast(pa.large_binary()))
    for path, table, options in (
        ("unsorted", rows, {"compression": "zstd"}),
        ("of another engine", rows, {}),
        ("of other types", text, {"compression": "zstd", "use_dictionary": False}),
        ("of fewer columns", rows.drop_columns(["key"]), {}),
    ):
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        store.put_durable(path, sink.getvalue())
        assert isinstance(both(store, path, 0, 99), pa.Table), path


def test_the_header_loop_takes_rows_from_the_middle():
    """A slice of rows with headers equals the slice that Arrow makes."""
    batch = batch_of(range(20))
    (whole,) = parts_of(batch)
    cut = between(whole, 5, 12)
    expected = columns_of(batch.slice(5, 7))
    made = [
        [bytes(each) for each in encode_batches(rows, first_offset=5, last_offset=11)]
        for rows in (cut, batch.slice(5, 7))
    ]
    assert made[0] == made[1] and cut.offset.tolist() == expected.offset.tolist()


def test_a_file_cut_short_is_named():
    store = MemoryStore()
    write_rows(store, "f", [plain(range(2000))])
    reader = FileReader(store)
    reader.footer("f")
    data = store.read("f")
    store.put_durable("f", data[: len(data) // 8])
    entry = FileEntry(
        path="f", action_path="f", partition=0, size=0, rows=1, min_offset=0, max_offset=1999
    )
    with pytest.raises(UnreadableFile, match="f"):
        read_records(reader, [entry], start_offset=0, end_offset=1999, max_bytes=1 << 62)
