"""Tables written here are read by other engines with the same rows."""

import polars
import pyarrow as pa
import pyarrow.fs
import pytest
from deltalake import DeltaTable

from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file
from kafka_ds.topic.files.parquet import read_files
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.duck import connect
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.lake.odd_rows import ROWS, comparable, copy_rows

EXPECTED = comparable([{"partition": part, **row} for part in (0, 7) for row in ROWS])


@pytest.fixture(params=["commits", "checkpoint"])
def table(request, store):
    """A table of two partitions and several commits, with or without a checkpoint in its middle."""
    table = TopicTable(store, "odd.topic_1-x")
    table.open(TOPIC_ID)
    copy_rows(table, 0, ROWS[:5], attempt="first")
    copy_rows(table, 0, ROWS[5:])
    commit(table, copy_of(table, 3, 0, 9))
    if request.param == "checkpoint":
        write_checkpoint(table.log)
        for version in range(3):
            table.log.store.delete(table.log.path(commit_file(version)))
    copy_rows(table, 7, ROWS)
    return table


def uri(table):
    return table.log.store.uri(table.folder)


def options(table):
    return table.log.store.delta_options


def partitions_0_and_7(rows):
    return comparable(each for each in rows if each["partition"] != 3)


def test_by_ourselves(table):
    snapshot = TopicSnapshot.load(table.log.store, table.topic)
    rows = []
    for partition in (0, 7):
        files = snapshot.index.files(partition)
        found, _ = read_files(snapshot.reader, files, start_offset=0, end_offset=2**60)
        rows += [{"partition": partition, **each} for each in found.to_pylist()]
    assert comparable(rows) == EXPECTED


def test_by_delta_rs(table):
    # A native file system: with the default one the interpreter may abort at its end.
    folder = table.log.store.local_path(table.folder)
    files = folder and pa.fs.SubTreeFileSystem(folder, pa.fs.LocalFileSystem())
    delta = DeltaTable(uri(table), storage_options=options(table))
    found = delta.to_pyarrow_dataset(filesystem=files).to_table()
    assert partitions_0_and_7(found.to_pylist()) == EXPECTED
    assert found.num_rows == 2 * len(ROWS) + 10
    sizes = delta.get_add_actions(flatten=True)
    assert sum(pa.chunked_array(sizes.column("num_records")).to_pylist()) == found.num_rows
    assert delta.protocol().min_reader_version == 1
    assert [each["operation"] for each in delta.history(1)] == ["COPY"]


def test_by_polars(table):
    found = polars.read_delta(uri(table), storage_options=options(table))
    assert partitions_0_and_7(found.to_dicts()) == EXPECTED
    one = polars.scan_delta(uri(table), storage_options=options(table)).filter(
        (polars.col("partition") == 7) & (polars.col("offset") == 20)
    )
    assert one.select("key", "leader_epoch").collect().to_dicts() == [
        {"key": b"\xf0\x28\x8c\x28", "leader_epoch": 2**31 - 1}
    ]


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_by_duckdb(table):
    with connect() as duck:
        duck.sql(f"CREATE VIEW odd AS FROM delta_scan('{uri(table)}')")
        found = duck.sql("FROM odd").to_arrow_table().to_pylist()
        one = duck.sql('SELECT key, leader_epoch FROM odd WHERE "partition" = 7 AND "offset" = 20')
        assert one.fetchall() == [(b"\xf0\x28\x8c\x28", 2**31 - 1)]
    assert partitions_0_and_7(found) == EXPECTED
