"""Deletion vectors: decoded as the protocol has them, and honoured by all who read or rewrite a topic's files."""

from base64 import b85decode
from uuid import UUID

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.deletion_vector import (
    B85,
    Z85,
    BadVector,
    action_of,
    positions_of,
    stored_span,
    vector_of,
)
from kafka_ds.delta.maintenance import vacuum, write_checkpoint
from kafka_ds.topic.commit_rules import FilesRemoved, Intent, PartitionIntent
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, read_files
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.recovery import add_back
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.deletion_vectors import bitmap, inline, stored
from tests.fakes.lake_rows import TOPIC_ID, attempt_of, commit, copy_of, filled_table
from tests.unit.topic.foreign_commits import mark

UUID_TEXT = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"


@pytest.fixture
def table(store):
    return filled_table(store)


def offsets(snapshot):
    files = list(snapshot.index.files(0))
    assert sum(each.rows for each in files) == sum(1 for _ in _rows(snapshot, files))
    return list(_rows(snapshot, files))


def _rows(snapshot, files):
    reader = FileReader(snapshot.log.store)
    rows, _ = read_files(reader, files, start_offset=0, end_offset=1 << 40)
    return rows.column("offset").to_pylist()


def all_have(table, wanted):
    for each in (table.read(), TopicSnapshot.load(table.log.store, "orders")):
        assert offsets(each) == list(wanted)
        assert each.complaints() == [] and not each.quarantined


@given(
    st.sets(st.integers(0, 1 << 34), max_size=50),
    st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(1, 9000)), max_size=3),
    st.booleans(),
)
def test_a_bitmap_is_read_as_it_was_written(points, spans, runs):
    wanted = sorted(points.union(*(range(start, start + count) for start, count in spans)))
    vector = vector_of("t", inline(wanted, runs=runs))
    assert positions_of(vector, b"").tolist() == wanted
    body = bitmap(wanted, runs=runs)
    data, (_, start) = stored([b"another", body])
    found = vector_of(
        "t",
        {
            "storageType": "p",
            "pathOrInlineDv": "file:///x%20y/z.bin",
            "offset": start,
            "sizeInBytes": len(body),
            "cardinality": len(wanted),
        },
    )
    first, count = stored_span(found)
    assert positions_of(found, data[first : first + count]).tolist() == wanted
    assert found.path == "/x y/z.bin"


def test_paths_and_names_are_the_protocols():
    """The example of PROTOCOL.md: a random prefix, and the file's UUID."""
    action = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    vector = vector_of("topics/orders", action)
    assert vector.path == f"topics/orders/ab/deletion_vector_{UUID_TEXT}.bin"
    assert vector.id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    assert action_of(vector) == action and vector_of("t", None) is None
    uuid = b85decode(b"^-aqEH.-t@S}K{vb[*k^".translate(bytes.maketrans(Z85, B85)))
    assert str(UUID(bytes=uuid)) == UUID_TEXT


@pytest.mark.parametrize(
    "broken",
    [
        {"cardinality": 4},
        {"pathOrInlineDv": "00000"},
        {"pathOrInlineDv": '"'},
        {"sizeInBytes": 13},
        {"storageType": "x"},
        {"storageType": "u", "pathOrInlineDv": "ab"},
    ],
)
def test_a_broken_vector_is_said(broken):
    with pytest.raises(BadVector):
        positions_of(vector_of("t", {**inline([1, 2, 3]), **broken}), b"")


def test_deleted_rows_are_gaps_for_all_readers(table):
    mark(table, 10, [0, 3, 9])
    wanted = [each for each in range(40) if each not in (10, 13, 19)]
    all_have(table, wanted)
    write_checkpoint(table.log)
    all_have(table, wanted)
    assert [each.erased_rows for each in table.snapshot.foreign_commits] == [3]
    mark(table, 10, range(9))
    wanted = [*range(10), 19, *range(20, 40)]
    all_have(table, wanted)
    write_checkpoint(table.log)
    all_have(table, wanted)
    commit(table, copy_of(table, 0, 40, 49, attempt=attempt_of(40)))
    all_have(table, [*wanted, *range(40, 50)])


def test_a_restore_makes_deleted_rows_reappear(table):
    mark(table, 10, range(5))
    DeltaTable(table.log.store.uri(table.folder)).restore(4, protocol_downgrade_allowed=True)
    all_have(table, range(40))


def test_files_are_rewritten_without_what_is_deleted(table):
    mark(table, 10, [0, 3, 9])
    snapshot = table.read()
    files = snapshot.index.find(0, 0, 39)
    reader = FileReader(table.log.store)
    made = rewrite_files(
        table.log.store,
        reader,
        table.folder,
        files,
        attempt="x",
        log_start_offset=5,
        file_bytes=None,
    )
    assert (made.rows, made.expired_rows) == (32, 5)


def test_a_removal_names_the_vector_and_meets_no_other(table):
    """Else the file would stay in the table, with its deleted rows in a new layout beside it."""
    stale = table.read().index.find(0, 10, 10)[0]
    mark(table, 10, [0, 3, 9])

    def removal(entry):
        remove = {"path": entry.action_path, "dataChange": True, "size": entry.size}
        if entry.vector is not None:
            remove["deletionVector"] = action_of(entry.vector)
        part = PartitionIntent(partition=0, leader_epoch=0, removes=({"remove": remove},))
        return Intent(operation="DELETE", topic_id=TOPIC_ID, partitions=(part,))

    with pytest.raises(FilesRemoved):
        table.commit(removal(stale), begun_ms=table.begin_ms())
    assert len(table.read().index.find(0, 10, 10)) == 1
    table.commit(removal(table.read().index.find(0, 11, 11)[0]), begun_ms=table.begin_ms())
    all_have(table, [*range(10), *range(20, 40)])
    assert len(DeltaTable(table.log.store.uri(table.folder)).file_uris()) == 3


def test_a_vector_in_a_file(table):
    body = bitmap([0, 3, 9])
    data, (_, start) = stored([bitmap([5]), body])
    spelled = "ab^-aqEH.-t@S}K{vb[*k^"
    vector = {
        "storageType": "u",
        "pathOrInlineDv": spelled,
        "offset": start,
        "sizeInBytes": len(body),
        "cardinality": 3,
    }
    path = f"{table.folder}/ab/deletion_vector_{UUID_TEXT}.bin"
    table.log.store.put_durable(path, data)
    mark(table, 10, [0, 3, 9], vector=vector)
    wanted = [each for each in range(40) if each not in (10, 13, 19)]
    all_have(table, wanted)
    later_ms = table.log.clock.wall_ms() + 30 * DAY_MS
    assert vacuum(table.log, now_ms=later_ms, dry_run=True) == []
    table.log.store.put_durable(path, data[:-2] + b"xx")
    with pytest.raises(UnreadableFile, match="deletion vector"):
        _rows(table.read(), table.read().index.find(0, 0, 39))


def test_what_is_deleted_stays_so_when_a_file_is_added_back(table):
    mark(table, 20, [0, 3, 9])
    delta = DeltaTable(table.log.store.uri(table.folder))
    delta.restore(2, protocol_downgrade_allowed=True)
    assert table.read().missing(0) == [(20, 39)]
    assert add_back(table.log.store.root, "orders").rows == {0: 17}
    all_have(table, [each for each in range(40) if each not in (20, 23, 29)])


def test_rows_of_a_topic_that_is_deleted_go_with_their_vectors(table):
    mark(table, 10, [0])
    assert table.retire(TOPIC_ID)
    assert not TopicSnapshot.load(table.log.store, "orders").files
    assert DeltaTable(table.log.store.uri(table.folder)).file_uris() == []
