"""A topic's table: what of it may be erased by its offsets, and what a person has to settle first."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.erasure.checks import ErasureRefused, check_spelling, snapshot_of
from broker.erasure.removal import RemovedFiles
from broker.erasure.search import OLD, ROWS, TOPIC_TABLE, TYPED_TABLE, UNREADABLE, Search
from broker.erasure.wanted import WantedRecords
from kafka_ds.topic.recovery import add_back, give_up
from tests.fakes.lake_rows import TOPIC_ID, filled_table
from tests.unit.topic.foreign_commits import foreign_commit


@pytest.fixture
def table(store):
    return filled_table(store)


def delta(table):
    return DeltaTable(table.log.store.uri(table.folder))


def found(table, key):
    search = Search(WantedRecords(key))
    return search.table(table.log.store, table.folder, TOPIC_TABLE, TOPIC_ID)


def rows(table, key):
    return [
        {partition: offsets.tolist() for partition, offsets in each.places.items()}
        for each in found(table, key)
        if each.kind == ROWS
    ]


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda table: table.delete('"offset" = 1'),
        lambda table: table.optimize.compact(),
        lambda table: table.optimize.z_order(["offset"]),
    ],
)
def test_a_key_is_found_in_files_that_deltalake_wrote_anew(table, rewrite):
    """It writes views of bytes."""
    rewrite(delta(table))
    assert rows(table, b"key-2") == [{0: [2]}]
    assert any(each.kind == OLD for each in found(table, b"key-2"))


def test_a_key_that_is_neither_bytes_nor_text_is_not_passed_over(table):
    store = table.log.store
    odd = pa.table({"key": [1], "offset": [7], "partition": pa.array([0], pa.int32())})
    pq.write_table(odd, store.local_path("topics/orders/odd.parquet"))
    (odd_one,) = (each for each in found(table, b"key-2") if each.path.endswith("/odd.parquet"))
    assert odd_one.kind == UNREADABLE


def test_a_place_whose_record_is_another_now_is_let_be(table):
    """An earlier run knew a record there, which was lost with its log."""
    search = Search(WantedRecords(b"ada", {0: [5]}))
    assert search.table(table.log.store, table.folder, TOPIC_TABLE, TOPIC_ID) == []


def test_typed_rows_go_with_records_of_the_same_key(table):
    """A typed table may have decoded the key that is another in the topic."""
    snapshot = snapshot_of(table.log.store, table.folder, TOPIC_ID)
    wanted = WantedRecords(b"key-5", {0: [5]})

    def may_go(snapshot, partition, *offsets):
        places = {partition: np.array(offsets)}
        return check_spelling(snapshot, wanted, places)[partition].tolist()

    assert (may_go(snapshot, 0, 5), may_go(snapshot, 1, 3)) == ([5], [])
    assert may_go(snapshot, 0, 99) == [], "it is not in the table yet"
    with pytest.raises(
        ErasureRefused, match="at offset 7 of partition 0: name the topic's own key"
    ):
        may_go(snapshot, 0, 5, 7)
    delta(table).delete('"offset" = 7')
    gone = snapshot_of(table.log.store, table.folder, TOPIC_ID)
    assert may_go(gone, 0, 5, 7) == [5, 7]


def test_while_a_restore_has_taken_offsets_out_nothing_is_done(table):
    """Its files hold records that `add_back` brings back."""
    delta(table).restore(2)
    for look in (lambda: found(table, b"key-22"), lambda: files_gone(table)):
        with pytest.raises(ErasureRefused, match="a RESTORE removed offsets from the table"):
            look()
    table.read()
    table.mark_complaints()
    with pytest.raises(ErasureRefused, match="a RESTORE removed offsets from the table"):
        found(table, b"key-22")
    add_back(table.log.store.root, "orders")
    assert rows(table, b"key-22") == [{0: [22]}]


def test_offsets_that_were_given_up_may_go(table):
    delta(table).restore(2)
    give_up(table.log.store.root, "orders")
    assert rows(table, b"key-22") == []
    (old,) = found(table, b"key-22")
    assert (old.kind, old.is_of_topic, files_gone(table) >= {old.path}) == (OLD, False, True)


def files_gone(table):
    return RemovedFiles(table.log.store, table.folder, TOPIC_ID).now()


def test_a_file_that_came_back_is_not_an_older_versions(table):
    before = set(table.read().files)
    delta(table).delete('"offset" < 5')
    assert len(files_gone(table) & before) == 1
    delta(table).restore(4)
    assert not files_gone(table) & before
    assert files_gone(table), "what the DELETE wrote"


def nothing(table):
    pass


def behind_a_checkpoint(table):
    delta(table).create_checkpoint()


def merged(table):
    delta(table).optimize.compact()


def marked_and_merged(table):
    table.read()
    table.mark_complaints()
    behind_a_checkpoint(table)
    merged(table)


@pytest.mark.parametrize("shift", [0, 100])
@pytest.mark.parametrize("then", [nothing, behind_a_checkpoint, merged, marked_and_merged])
def test_rows_that_another_engine_inserted_are_settled_first(table, then, shift):
    """They have the offsets of others' records, or of such as are not in the table yet."""
    rows = delta(table).to_pyarrow_table().slice(5, 1)
    key = pa.array([b"ada"], rows.schema.field("key").type)
    rows = rows.set_column(rows.column_names.index("key"), "key", key)
    offset = pa.array([rows["offset"][0].as_py() + shift])
    rows = rows.set_column(rows.column_names.index("offset"), "offset", offset)
    write_deltalake(table.log.store.uri(table.folder), rows, mode="append")
    then(table)
    with pytest.raises(ErasureRefused, match="another engine inserted rows"):
        found(table, b"ada")
    delta(table).delete("key = X'616461'")
    assert [each for each in found(table, b"ada") if each.is_of_topic] == []


def test_rows_of_a_former_topic_are_settled_first(table):
    with pytest.raises(ErasureRefused, match="rows of a deleted topic"):
        snapshot_of(table.log.store, table.folder, bytes(16))


@pytest.mark.parametrize("path", ["file:///elsewhere/x.parquet", "gone.parquet"])
def test_a_file_that_is_not_in_the_folder_is_not_passed_over(store, path):
    known = pa.table({"_partition": [0], "_offset": pa.array([1], pa.int64()), "_key": ["ben"]})
    write_deltalake(store.uri("t"), known)
    add = {
        "path": path,
        "partitionValues": {},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
    }
    foreign_commit(store, {"add": add}, table="t")
    (elsewhere,) = Search(WantedRecords(b"ada")).table(store, "t", TYPED_TABLE)
    assert elsewhere.kind == UNREADABLE
    assert elsewhere.path.endswith(path.rpartition("/")[2])
