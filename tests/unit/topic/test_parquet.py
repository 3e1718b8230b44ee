"""Parquet files: written in offset order and groups of a megabyte, read by offset, however they lie."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ds.delta.statistics import milliseconds
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.files.footers import FOOTER_STATISTICS
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, read_files, write_rows
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from tests.fakes.lake_rows import START_MS, batch_of
from tests.fakes.store import MemoryStore

LAST_DATE_MS = 253_402_300_799_999


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return LocalStore(str(tmp_path)) if request.param == "folder" else MemoryStore()


def footer_of(store, path):
    return pq.ParquetFile(io.BytesIO(store.read(path))).metadata


def entry(path, start, end):
    return FileEntry(
        path=path,
        action_path=path,
        partition=0,
        size=0,
        rows=1,
        min_offset=start,
        max_offset=end,
    )


def offsets(table):
    return table.column("offset").to_pylist()


def test_what_is_written_is_read(store):
    batches = [batch_of(range(10, 20)), batch_of(range(25, 30), leader_epoch=2)]
    written = write_rows(store, "a.parquet", batches)
    assert (written.rows, written.min_offset, written.max_offset) == (15, 10, 29)
    assert written.size == len(store.read("a.parquet"))
    table, complete = FileReader(store).read("a.parquet", start_offset=0, end_offset=99)
    assert table.equals(pa.Table.from_batches(batches, TOPIC_FILE_SCHEMA))
    assert complete == 99


def test_statistics_are_deltas(store):
    written = write_rows(store, "a.parquet", [batch_of(range(3)), batch_of(range(3, 5))])
    assert json.loads(written.stats_json) == {
        "numRecords": 5,
        "minValues": {"offset": 0, "timestamp": "2020-09-13T12:26:40.000Z"},
        "maxValues": {"offset": 4, "timestamp": "2020-09-13T12:26:44.000Z"},
        "nullCount": {"offset": 0, "timestamp": 0},
    }


def test_rows_without_a_time(store):
    batch = batch_of(range(3))
    at = batch.schema.get_field_index("timestamp")
    nulls = pa.nulls(3, batch.schema.field(at).type)
    written = write_rows(store, "a.parquet", [batch.set_column(at, batch.schema.field(at), nulls)])
    assert written.min_timestamp_ms is None
    assert json.loads(written.stats_json)["nullCount"] == {"offset": 0, "timestamp": 3}
    assert json.loads(written.stats_json)["maxValues"] == {"offset": 2}


def test_statistics_of_far_times_are_exact(store):
    """A maximum that is too small lets a filter drop rows."""
    far = (8_600_000_000_123, 130_000_000_000_999, 253_402_300_799_999)
    for time_ms in (*far, *range(LAST_DATE_MS - 500, LAST_DATE_MS)):
        written = write_rows(store, f"{time_ms}.parquet", [batch_of([1], timestamp_ms=time_ms)])
        highest = json.loads(written.stats_json)["maxValues"]["timestamp"]
        assert milliseconds(highest) == time_ms


def test_no_rows_make_no_file(store):
    assert write_rows(store, "a.parquet", []) is None
    assert write_rows(store, "a.parquet", [batch_of(range(3)).slice(0, 0)]) is None
    assert store.size("a.parquet") is None


def test_offsets_must_rise(store):
    for batches in ([batch_of([1, 1])], [batch_of([2, 1])], [batch_of([5]), batch_of([4])]):
        with pytest.raises(AssertionError):
            write_rows(store, "a.parquet", batches)
    assert store.size("a.parquet") is None


def test_a_row_group_is_bounded_by_the_bytes_of_its_rows(store):
    small, large = batch_of(range(2000), value=b"x" * 100), batch_of([5000], value=b"y" * 10**7)
    written = write_rows(store, "a.parquet", [small, large, batch_of(range(6000, 6010))])
    assert written.rows == 2011
    footer = footer_of(store, "a.parquet")
    sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    assert sizes[-1] == 10 and sum(sizes) == 2011
    rest = write_rows(store, "b.parquet", [batch_of(range(2000), value=b"x" * 2000)] * 1)
    footer = footer_of(store, "b.parquet")
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    assert rest.rows == 2000 and 4 <= len(groups) <= 6
    assert all(group.total_byte_size < 1.2 * 2**20 for group in groups)


def test_small_batches_share_a_row_group(store):
    write_rows(store, "a.parquet", [batch_of([each]) for each in range(50)])
    assert footer_of(store, "a.parquet").num_row_groups == 1


def test_the_layout_of_the_columns(store):
    write_rows(store, "a.parquet", [batch_of(range(100))])
    group = footer_of(store, "a.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    with_statistics = {name for name, column in columns.items() if column.statistics is not None}
    assert with_statistics == set(FOOTER_STATISTICS)
    # Nothing of what users wrote, but for the names of their headers.
    assert not with_statistics & {"key", "value", "headers.list.element.value"}
    for name in ("offset", "leader_epoch", "timestamp", "batch.base_offset", "batch.max_timestamp"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    assert not any("DICTIONARY" in str(column.encodings) for column in columns.values())


def test_what_the_footer_says_is_not_read(store):
    """Groups of one epoch and no headers, of another with some, of both: all rows come back as they were."""
    parts = [batch_of(range(at, at + 100), leader_epoch=min(at, 3)) for at in (0, 100, 200)]
    for index in (0, 2):
        at = parts[index].schema.get_field_index("headers")
        field = parts[index].schema.field(at)
        parts[index] = parts[index].set_column(at, field, pa.nulls(100, field.type))
    rows = pa.Table.from_batches(parts, TOPIC_FILE_SCHEMA)
    foreign(store, "all.parquet", rows, row_group_size=100)
    foreign(store, "none.parquet", rows, row_group_size=100, write_statistics=False)
    reader = FileReader(store)
    nulls = {"timestamp_ms": None, "headers_raw": None}
    of_ours = {"timestamp_type": 0, **nulls}
    footer = reader.footer("all.parquet")
    assert footer.known([0]) == {"leader_epoch": 0, "headers": None, **of_ours}
    assert footer.known([1]) == footer.known([1, 2]) == {"leader_epoch": 3, **of_ours}
    assert footer.known([0, 1]) == of_ours
    assert reader.footer("none.parquet").known([0]) == {}
    for path in ("all.parquet", "none.parquet"):
        for start, end in ((0, 99), (50, 150), (100, 199), (150, 299), (0, 299)):
            table, _ = reader.read(path, start_offset=start, end_offset=end)
            assert table.equals(rows.slice(start, end - start + 1)), (path, start, end)


def foreign(store, path, rows, **options):
    """A file as another engine writes it."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    store.put_durable(path, sink.getvalue())


def rows_of(*numbers):
    return pa.Table.from_batches([batch_of(numbers)], TOPIC_FILE_SCHEMA)


@pytest.fixture
def grouped(store):
    """A file of ten groups of 100 rows."""
    foreign(store, "g.parquet", rows_of(*range(1000)), row_group_size=100)
    return "g.parquet"


def test_only_the_row_groups_asked_for_are_read(store, grouped):
    reader = FileReader(store)
    footer = reader.footer(grouped)
    assert footer.next_groups(250, 449, 1 << 62) == ([2, 3, 4], 449)
    table, complete = reader.read(grouped, start_offset=250, end_offset=449)
    assert offsets(table) == list(range(250, 450)) and complete == 449
    table, complete = reader.read(grouped, start_offset=250, end_offset=999, max_bytes=1)
    assert offsets(table) == list(range(250, 300)) and complete == 299
    table, complete = reader.read(grouped, start_offset=2000, end_offset=2010)
    assert table.num_rows == 0 and complete == 2010


def test_columns(store, grouped):
    reader = FileReader(store)
    table, _ = reader.read(grouped, start_offset=5, end_offset=6, columns=["value", "batch"])
    assert table.schema == pa.schema([TOPIC_FILE_SCHEMA.field(name) for name in ("value", "batch")])
    assert table.num_rows == 2
    table, _ = reader.read(grouped, start_offset=5, end_offset=6, columns=[])
    assert table.num_rows == 2 and table.num_columns == 0


def test_footers_are_read_once_and_not_kept_for_ever(store):
    for name in "abc":
        write_rows(store, name, [batch_of(range(3))])
    reader = FileReader(store, footers_max=2)
    first = reader.footer("a")
    assert reader.footer("a") is first
    reader.footer("b"), reader.footer("c")
    assert reader.footer("a") is not first


def test_unsorted_and_overlapping_groups_are_sorted(store):
    foreign(store, "f", rows_of(30, 5, 20, 10, 25, 15, 0, 35), row_group_size=2)
    reader = FileReader(store)
    table, complete = reader.read("f", start_offset=6, end_offset=32)
    assert offsets(table) == [10, 15, 20, 25, 30] and complete == 32
    table, complete = reader.read("f", start_offset=0, end_offset=99, max_bytes=1)
    assert offsets(table) == sorted(offsets(table))
    assert {each for each in range(0, 40, 5) if each <= complete} == set(offsets(table))


def test_an_offset_that_occurs_twice_comes_out_once(store):
    foreign(store, "f", rows_of(1, 2, 2, 3, 1))
    assert offsets(FileReader(store).read("f", start_offset=0, end_offset=9)[0]) == [1, 2, 3]


def test_groups_without_statistics_are_all_read(store):
    foreign(store, "f", rows_of(*range(10)), row_group_size=3, write_statistics=False)
    reader = FileReader(store)
    table, complete = reader.read("f", start_offset=4, end_offset=6, max_bytes=1)
    assert offsets(table) == [4, 5, 6] and complete == 6
    facts = reader.facts(FileEntry(path="f", action_path="f", partition=0, size=1))
    assert (facts.rows, facts.min_offset, facts.max_offset) == (10, 0, 9)


def test_missing_statistics_come_from_the_footer(store, grouped):
    facts = FileReader(store).facts(
        FileEntry(path=grouped, action_path="g", partition=4, size=9, modified_ms=3)
    )
    assert (facts.rows, facts.min_offset, facts.max_offset) == (1000, 0, 999)
    assert (facts.partition, facts.size, facts.modified_ms, facts.action_path) == (4, 9, 3, "g")


def test_columns_of_other_types_and_absent_ones(store):
    rows = rows_of(1, 2).select(["offset", "timestamp", "key", "leader_epoch"])
    rows = rows.set_column(
        1, "timestamp", rows.column("timestamp").cast(pa.timestamp("ns", tz="UTC"))
    )
    rows = rows.set_column(2, "key", rows.column("key").cast(pa.large_binary()))
    foreign(store, "f", rows.append_column("note", pa.array(["a", "b"])))
    table, _ = FileReader(store).read("f", start_offset=0, end_offset=9)
    assert table.schema == TOPIC_FILE_SCHEMA
    assert table.column("key").to_pylist() == [b"key-1", b"key-2"]
    assert table.column("value").null_count == table.column("batch").null_count == 2
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [
        (START_MS + 1000) * 1000,
        (START_MS + 2000) * 1000,
    ]


@pytest.mark.parametrize("time_ms", [START_MS, LAST_DATE_MS, 16_725_225_600_000])
def test_old_timestamps_of_other_engines(store, time_ms):
    """INT96, as Spark may write times: read as nanoseconds they end in 2262."""
    rows = pa.Table.from_batches([batch_of([1, 2], timestamp_ms=time_ms)], TOPIC_FILE_SCHEMA)
    foreign(store, "f", rows, use_deprecated_int96_timestamps=True)
    table, _ = FileReader(store).read("f", start_offset=0, end_offset=9)
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [time_ms * 1000] * 2


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"no parquet at all", b"PAR1" + bytes(50) + b"PAR1"]
)
def test_a_file_that_is_no_parquet_is_named(store, data):
    store.put_durable("bad.parquet", data)
    with pytest.raises(UnreadableFile, match=r"bad\.parquet"):
        FileReader(store).footer("bad.parquet")


def test_a_file_whose_columns_have_no_names_is_named(store):
    """Where the footer's bytes are damaged, and still are a footer."""
    write_rows(store, "good.parquet", [batch_of(range(5))])
    damaged = store.read("good.parquet").replace(b"\x09timestamp", b"\x09times\xf8amp")
    store.put_durable("bad.parquet", damaged)
    with pytest.raises(UnreadableFile, match=r"bad\.parquet"):
        FileReader(store).footer("bad.parquet")


def test_a_file_that_is_gone_is_named(store):
    with pytest.raises(UnreadableFile, match=r"gone\.parquet"):
        FileReader(store).footer("gone.parquet")


def test_files_side_by_side_and_overlapping(store):
    write_rows(store, "a", [batch_of(range(0, 100, 2))])
    write_rows(store, "b", [batch_of(range(1, 100, 2))])
    write_rows(store, "c", [batch_of(range(100, 200))])
    files = [entry("a", 0, 98), entry("b", 1, 99), entry("c", 100, 199)]
    reader = FileReader(store)
    table, complete = read_files(reader, files, start_offset=10, end_offset=150)
    assert offsets(table) == list(range(10, 151)) and complete == 150
    table, complete = read_files(reader, files, start_offset=0, end_offset=150, max_bytes=1)
    assert offsets(table) == list(range(complete + 1)) and complete == 98
    table, complete = read_files(reader, [], start_offset=0, end_offset=9, columns=["key"])
    assert table.num_rows == 0 and complete == 9


def test_a_budget_never_hides_rows(store, grouped):
    """Reading on from where the last read was complete gives every row once."""
    write_rows(store, "h", [batch_of(range(1000, 1500), value=b"z" * 100)], row_group_bytes=9000)
    foreign(store, "f", rows_of(*range(1400, 1700, 3), *range(1401, 1700, 3)), row_group_size=40)
    files = [entry(grouped, 0, 999), entry("h", 1000, 1499), entry("f", 1400, 1699)]
    reader, at, found = FileReader(store), 0, []
    while at <= 1800:
        wanted = [each for each in files if each.max_offset >= at]
        table, complete = read_files(
            reader, wanted, start_offset=at, end_offset=1800, max_bytes=20_000
        )
        found += offsets(table)
        assert complete >= at
        at = complete + 1
    expected = set(range(1500)) | set(range(1400, 1700, 3)) | set(range(1401, 1700, 3))
    assert found == sorted(expected)
