"""Others change a topic's table with delta-rs: reads and writes stay correct."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.schema import Field, PrimitiveType

from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.topic.commit_rules import TableChanged
from kafka_ds.topic.schemas import TOPIC_SCHEMA
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, batch_of, commit, copy_of
from tests.lake.foreign_rows import offsets

# The other one is refused without its companion.
FEATURES = [each for each in dir(TableFeatures) if each[0] != "_" and each != "TimestampNanos"]


@pytest.fixture
def table(store):
    """Two partitions with five files of 200 rows each, keys out of order."""
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    for number in range(5):
        start = number * 200
        commit(table, *(copy_of(table, each, start, start + 199) for each in (0, 1)))
    return table


def delta(table):
    store = table.log.store
    return DeltaTable(store.uri(table.folder), storage_options=store.delta_options)


def test_compaction(table):
    delta(table).optimize.compact()
    assert len(table.read().index.files(0)) == 1
    assert offsets(table) == offsets(table, 1, max_bytes=1000) == list(range(1000))
    (seen,) = table.snapshot.foreign_commits
    assert (seen.operation, seen.erased_rows, seen.complaint) == ("OPTIMIZE", 0, None)
    commit(table, copy_of(table, 0, 1000, 1009, attempt="later"))
    assert offsets(table) == list(range(1010))


def test_clustering_that_unsorts(table):
    delta(table).optimize.z_order(["key"])
    table.read()
    rows = pa.concat_tables(
        pa.parquet.read_table(pa.BufferReader(table.log.store.read(each.path)), columns=["offset"])
        for each in table.snapshot.index.files(0)
    )
    assert rows.column("offset").to_pylist() != list(range(1000)), "it is unsorted indeed"
    assert offsets(table) == offsets(table, 1, max_bytes=1000) == list(range(1000))


def test_two_packings_at_once_double_rows_for_sql_alone(table):
    """delta-rs lets both win (docs/limitations.md); nobody reads a record twice through the index."""
    slow = delta(table)
    delta(table).optimize.compact()
    slow.optimize.compact()
    assert len(delta(table).to_pyarrow_table(columns=["offset"])) == 4000
    table.read()
    assert offsets(table) == offsets(table, 1, max_bytes=1000) == list(range(1000))
    assert "1000 rows came where 0 went" in table.snapshot.foreign_commits[-1].complaint


def test_erasing_one_key_while_we_go_on_writing(table):
    stale = TopicTable(table.log.store, "orders")
    stale.open(TOPIC_ID)
    part = copy_of(stale, 0, 1000, 1009, attempt="ours")
    delta(table).delete('"offset" = 500 OR "offset" BETWEEN 300 AND 309')
    commit(stale, part)
    expected = [each for each in range(1010) if each != 500 and not 300 <= each <= 309]
    assert offsets(table) == expected
    assert offsets(table, 1) == [each for each in expected if each < 1000]
    (seen,) = table.snapshot.foreign_commits
    assert (seen.erased_rows, seen.complaint) == (22, None)
    assert len(table.snapshot.index.find(0, 305, 305)) == 1, "a gap lies inside of a file"
    write_checkpoint(table.log)
    assert offsets(table, snapshot=TopicSnapshot.load(table.log.store, "orders")) == expected


def test_vacuum_and_time_travel(table):
    delta(table).optimize.compact()
    table.log.store.put_durable("topics/orders/_residue/partition=0/x.residue", b"kept")
    gone = delta(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert len(gone) == 10
    assert table.log.store.size("topics/orders/_residue/partition=0/x.residue") == 4
    assert offsets(table) == list(range(1000))
    commit(table, copy_of(table, 0, 1000, 1009, attempt="later"))
    old = TopicSnapshot.load(table.log.store, "orders", 2)
    assert old.highest_offset_in_remote_storage(0) == 399 and len(old.files) == 4


def test_rows_that_somebody_inserts_are_noted(table):
    rows = pa.Table.from_batches([batch_of(range(5000, 5003))])
    rows = rows.add_column(0, TOPIC_SCHEMA.field(0), pa.array([0, 0, 0], pa.int32()))
    write_deltalake(delta(table), rows, mode="append")
    assert table.read().highest_offset_in_remote_storage(0) == 999
    (seen,) = table.snapshot.foreign_commits
    assert seen.complaint == "partition 0: 3 rows came where 0 went"


def test_a_column_that_somebody_adds(table):
    delta(table).alter.add_columns([Field("note", PrimitiveType("string"))])
    commit(table, copy_of(table, 0, 1000, 1009, attempt="later"))
    assert offsets(table) == list(range(1010))
    delta(table).delete('"offset" < 10')
    assert offsets(table) == list(range(10, 1010))
    found = delta(table).schema().to_json()
    assert "note" in found


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_that_somebody_lists_pauses_the_topic_only_where_that_asks_something(
    table, feature
):
    named = getattr(TableFeatures, feature)
    delta(table).alter.add_feature(named, allow_protocol_versions_increase=True)
    part = copy_of(table, 0, 1000, 1009, attempt="later")
    if feature == "RowTracking":
        with pytest.raises(TableChanged, match="DROP FEATURE rowTracking"):
            commit(table, part)
    else:
        commit(table, part)
        write_checkpoint(table.log)
        fresh = TopicSnapshot.load(table.log.store, "orders")
        assert offsets(table, snapshot=fresh) == list(range(1010))


@pytest.mark.parametrize(
    ("do", "undo"),
    [
        (
            lambda it: it.alter.set_table_properties({"delta.appendOnly": "true"}),
            lambda it: it.alter.set_table_properties({"delta.appendOnly": "false"}),
        ),
        (
            lambda it: it.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
            lambda it: it.alter.set_table_properties({"delta.enableChangeDataFeed": "false"}),
        ),
        (
            lambda it: it.alter.add_constraint({"small": '"offset" < 5000'}),
            lambda it: it.alter.drop_constraint("small"),
        ),
    ],
)
def test_what_is_undone_stops_nothing_though_its_feature_stays_listed(table, do, undo):
    do(delta(table))
    part = copy_of(table, 0, 1000, 1009, attempt="later")
    with pytest.raises(TableChanged, match="ALTER TABLE"):
        commit(table, part)
    undo(delta(table))
    commit(table, part)
    assert offsets(table) == list(range(1010))


def test_a_checkpoint_and_clean_up_by_others(table):
    delta(table).create_checkpoint()
    delta(table).cleanup_metadata()
    commit(table, copy_of(table, 0, 1000, 1009, attempt="later"))
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert offsets(table, snapshot=fresh) == list(range(1010))
    assert fresh.highest_offset_in_remote_storage(0) == 1009
