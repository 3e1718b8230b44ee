"""A table's state: loaded at a version, followed, whatever other engines wrote into it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kafka_ds.delta.actions import CorruptLog, add_action, remove_action, txn_action
from kafka_ds.delta.checkpoint import read_checkpoint
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file, encode_path
from kafka_ds.delta.snapshot import NoSuchTable, NoSuchVersion, TableSnapshot
from kafka_ds.delta.statistics import UnsupportedFile, milliseconds
from kafka_ds.topic.files.parquet import UnreadableFile, write_rows
from kafka_ds.topic.names import AppIdKind, app_id
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.clock import ManualClock
from tests.fakes.deletion_vectors import inline
from tests.fakes.lake_rows import TOPIC_ID, batch_of, commit, copy_of, orders_table, write_file
from tests.unit.topic.foreign_commits import foreign_commit

# What comes with rows in each commit of ours.
TIERED = [
    txn_action(app_id(TOPIC_ID, 0, AppIdKind.HIGHEST_OFFSET), 99),
    txn_action(app_id(TOPIC_ID, 0, AppIdKind.LEADER_EPOCH), 0),
]


@pytest.fixture
def table(store):
    return orders_table(store)


def ranges(snapshot, partition=0):
    return [(each.min_offset, each.max_offset) for each in snapshot.index.files(partition)]


def copies(table, count, *, size=10):
    for number in range(count):
        start = number * size
        commit(table, copy_of(table, 0, start, start + size - 1, attempt=str(number)))


def test_a_table_is_followed(store, table):
    snapshot = TopicSnapshot.load(store, "orders")
    assert (snapshot.version, snapshot.topic_id, snapshot.kind) == (0, TOPIC_ID, "topic")
    assert not snapshot.refresh()
    copies(table, 3)
    assert snapshot.refresh()
    assert snapshot.version == 3 and snapshot.highest_offset_in_remote_storage(0) == 29
    assert ranges(snapshot) == [(0, 9), (10, 19), (20, 29)]
    assert len(snapshot.index.find(0, 5, 12)) == 2


def test_time_travel(store, table):
    copies(table, 6)
    write_checkpoint(table.log)
    copies_at = {version: TopicSnapshot.load(store, "orders", version) for version in range(7)}
    assert [len(each.files) for each in copies_at.values()] == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(NoSuchVersion, match="version 7 is not there"):
        TopicSnapshot.load(store, "orders", 7)
    with pytest.raises(NoSuchTable):
        TopicSnapshot.load(store, "nothing")


def test_a_checkpoint_says_what_the_commits_say(store, table):
    copies(table, 5)
    (entry,) = table.snapshot.index.find(0, 0, 9)
    foreign_commit(
        store,
        remove_action(path=entry.action_path, partition_values={}, size=1, deleted_ms=2**41),
    )
    by_commits = TopicSnapshot.load(store, "orders")
    version = write_checkpoint(DeltaLog(store, "topics/orders"))
    state = read_checkpoint(
        store, "topics/orders", version, table.log.listing().checkpoints[version]
    )
    assert {each.path: each for each in state.files} == by_commits.files
    assert state.txns == by_commits.txns
    assert state.metadata == by_commits.metadata
    assert json.loads(json.dumps(state.metadata)) == state.metadata
    for each in range(version):
        store.delete(table.log.path(commit_file(each)))
    fresh = TopicSnapshot.load(store, "orders")
    assert (fresh.version, fresh.highest_offset_in_remote_storage(0), fresh.topic_id) == (
        version,
        49,
        TOPIC_ID,
    )
    assert ranges(fresh) == ranges(by_commits)


@pytest.mark.parametrize("failing", [None, "list", "read"])
def test_a_reader_left_behind_by_a_clean_up_reads_anew(store, table, monkeypatch, failing):
    """And takes nothing from a version that a paused writer left in the gap.

    Where the store was away once, what it knows is as old as it was before that.
    """
    clock = ManualClock()
    snapshot = TopicSnapshot.load(store, "orders", clock=clock)
    copies(table, 5)
    write_checkpoint(table.log)
    for each in range(5):
        store.delete(table.log.path(commit_file(each)))
    clock.ms += 8 * 86_400_000
    store.put_durable(table.log.path(commit_file(1)), b'{"txn":{"appId":"x","version":1}}')

    def fail(*_, **__):
        raise OSError("the store is away")

    if failing:
        with monkeypatch.context() as away, pytest.raises(OSError, match="away"):
            away.setattr(store, failing, fail)
            snapshot.refresh()
    assert snapshot.refresh()
    assert snapshot.version == 5 and len(snapshot.files) == 5
    assert "x" not in snapshot.txns
    assert not snapshot.refresh()


def test_a_torn_checkpoint_is_passed_over(store, table):
    copies(table, 2)
    write_checkpoint(table.log)
    before = set(table.snapshot.files)
    commit(table, copy_of(table, 0, 20, 29))
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[3]
    store.put_durable(path, store.read(path)[:-100])
    snapshot = TopicSnapshot.load(store, "orders")
    assert snapshot.version == 3 and snapshot.files.keys() > before
    store.put_durable(path, b"")
    assert TopicSnapshot.load(store, "orders").version == 3


def test_neither_checkpoint_nor_beginning_is_an_error(store, table):
    copies(table, 2)
    store.delete(table.log.path(commit_file(0)))
    with pytest.raises(CorruptLog, match="neither a checkpoint nor version 0"):
        TopicSnapshot.load(store, "orders")


def test_a_checkpoint_in_parts(store, table):
    copies(table, 4)
    version = write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[version]
    rows = pq.read_table(pa.BufferReader(store.read(path)))
    for part, piece in enumerate((rows.slice(0, 4), rows.slice(4)), start=1):
        sink = pa.BufferOutputStream()
        pq.write_table(piece, sink)
        name = f"_delta_log/{version:020d}.checkpoint.{part:010d}.{2:010d}.parquet"
        store.put_durable(table.log.path(name), sink.getvalue().to_pybytes())
    store.delete(path)
    for each in range(version):
        store.delete(table.log.path(commit_file(each)))
    snapshot = TopicSnapshot.load(store, "orders")
    assert snapshot.version == version and len(snapshot.files) == 4
    assert snapshot.highest_offset_in_remote_storage(0) == 39


def test_files_of_other_engines(store, table, tmp_path):
    """Without tags, with encoded and absolute paths, without statistics, with broken ones."""
    names = ["partition=0/a b%.parquet", "plain.parquet", "sub/abs.parquet", "broken.parquet"]
    for number, name in enumerate(names):
        write_rows(store, f"topics/orders/{name}", [batch_of(range(number * 5, number * 5 + 5))])
    paths = [
        encode_path(names[0]),
        names[1],
        f"file://{tmp_path}/topics/orders/{names[2]}",
        names[3],
    ]
    stats = ["", '{"numRecords":5}', None, '{"numRecords":']
    adds = [
        {
            "add": {
                "path": path,
                "partitionValues": {"partition": "0"},
                "size": 1,
                "modificationTime": 1,
                "dataChange": True,
                "stats": stat,
            }
        }
        for path, stat in zip(paths, stats, strict=True)
    ]
    foreign_commit(store, *adds, *TIERED, more={"kafkaDs": {}})  # Else they are quarantined.
    for _ in range(2):
        snapshot = TopicSnapshot.load(store, "orders")
        assert ranges(snapshot) == [(0, 4), (5, 9), (10, 14), (15, 19)]
        assert all(snapshot.has_file(path) for path in paths)
        write_checkpoint(table.log)
    foreign_commit(
        store, remove_action(path=paths[2], partition_values={}, size=1, deleted_ms=2**41)
    )
    snapshot.refresh()
    assert ranges(snapshot) == [(0, 4), (5, 9), (15, 19)]


def test_foreign_commits_are_accounted_for(store, table):
    copies(table, 2)
    entry = table.snapshot.index.find(0, 0, 9)[0]
    kept = write_rows(store, "topics/orders/partition=0/kept.parquet", [batch_of(range(3, 10))])
    foreign_commit(
        store,
        remove_action(path=entry.action_path, partition_values={}, size=1, deleted_ms=2**41),
        kept.add("topics/orders", 0, now_ms=1),
        operation="DELETE",
    )
    inserted = write_rows(store, "topics/orders/new.parquet", [batch_of(range(900, 905))])
    foreign_commit(store, inserted.add("topics/orders", 0, now_ms=1))
    table.read()
    first, second = table.snapshot.foreign_commits
    assert (first.version, first.operation, first.erased_rows, first.complaint) == (
        3,
        "DELETE",
        3,
        None,
    )
    assert second.complaint == "partition 0: 5 rows came where 0 went"


@pytest.mark.parametrize("offsets", [range(3, 6), range(900, 905)])
def test_rows_of_others_are_in_no_index_however_the_table_is_read(store, table, offsets):
    copies(table, 2)
    inserted = write_rows(store, "topics/orders/a new.parquet", [batch_of(offsets)])
    version = foreign_commit(store, inserted.add("topics/orders", 0, now_ms=1))
    expected = [(0, 9), (10, 19)]
    assert ranges(table.read()) == ranges(TopicSnapshot.load(store, "orders")) == expected
    (complaint,) = table.snapshot.complaints()
    assert (complaint.version, len(complaint.quarantined)) == (version, 1)
    assert table.mark_complaints() == 2
    write_checkpoint(table.log)
    loaded = TopicSnapshot.load(store, "orders")
    assert ranges(loaded) == ranges(table.snapshot) == expected
    assert loaded.complaints() == table.snapshot.complaints() == []
    assert table.mark_complaints() == 0
    commit(table, copy_of(table, 0, 20, 29, attempt="later"))
    assert ranges(table.read()) == [*expected, (20, 29)]


def test_a_mark_holds_for_the_versions_before_it(store, table):
    """Another engine's checkpoint does not say who wrote a file; the mark comes later."""
    copies(table, 1)
    inserted = write_rows(store, "topics/orders/new.parquet", [batch_of(range(900, 905))])
    version = foreign_commit(store, inserted.add("topics/orders", 0, now_ms=1))
    table.read()
    write_checkpoint(DeltaLog(store, "topics/orders"))
    assert table.mark_complaints() == 2
    assert ranges(TopicSnapshot.load(store, "orders")) == [(0, 9)]
    then = TopicSnapshot.load(store, "orders", version)
    assert (then.version, ranges(then)) == (version, [(0, 9)])


def test_a_file_that_is_added_once_more_is_no_insertion(store, table):
    copies(table, 2)
    (again, _) = table.snapshot.index.files(0)
    add = add_action(
        path=again.action_path,
        partition_values={"partition": "0"},
        size=again.size,
        modified_ms=1,
        stats="",
        data_change=False,
    )
    foreign_commit(store, add, operation="COMPUTE STATS")
    assert ranges(table.read()) == ranges(TopicSnapshot.load(store, "orders")) == [(0, 9), (10, 19)]
    assert table.snapshot.complaints() == []


@pytest.mark.parametrize("by", ["commits", "checkpoint"])
def test_a_deletion_vector_is_refused_by_name_where_no_topic_is(store, table, by):
    """Of the cluster's own tables, until others have written the file anew."""
    copies(table, 2)
    first, _ = table.snapshot.index.files(0)
    of_file = {"path": first.action_path, "partition_values": {"partition": "0"}}
    marked = add_action(**of_file, size=first.size, modified_ms=1, stats='{"numRecords":10}')
    marked["add"]["deletionVector"] = inline([0])
    remove = remove_action(**of_file, size=first.size, deleted_ms=1)
    before = table.snapshot.version
    followed = TableSnapshot(table.log)
    followed.read()
    foreign_commit(store, remove, marked, operation="DELETE")
    for _ in range(2):
        with pytest.raises(UnsupportedFile, match=rf"{first.path} has a.*REORG TABLE"):
            followed.refresh()
    TableSnapshot(table.log).read(before)
    if by == "checkpoint":
        DeltaTable(store.uri("topics/orders")).create_checkpoint()
        assert table.log.last_checkpoint() == before + 1
    foreign_commit(store, remove, operation="REORG")
    followed.refresh()
    assert len(followed.files) == 1
    with pytest.raises(UnsupportedFile):
        TableSnapshot(table.log).read(before + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T00:00:00.001999Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:01", 1000),
        ("1969-12-31T23:59:59.999500Z", -1),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("soon", None),
        (None, None),
    ],
)
def test_times_in_statistics(text, expected):
    assert milliseconds(text) == expected


def test_statistics_are_read_alike_from_commits_and_checkpoints(store, table):
    stats = [
        '{"numRecords":3,"minValues":{"offset":0,"timestamp":"9999-12-31T23:59:59.999Z"},'
        '"maxValues":{"offset":2,"timestamp":"9999-12-31T23:59:59.999Z"},"nullCount":{"key":1}}',
        '{"numRecords":3,"minValues":{"offset":10},"maxValues":{"offset":12},"tightBounds":true}',
        '{"numRecords":0}',
        '{"numRecords":3,"minValues":{"offset":20,"timestamp":"1969-12-31T23:59:59.999500Z"},'
        '"maxValues":{"offset":22,"timestamp":"2013-01-01T05:00:00+00:00"}}',
    ]
    adds = [
        add_action(
            path=f"{n}.parquet",
            partition_values={"partition": "0"},
            size=n,
            modified_ms=n,
            stats=each,
        )
        for n, each in enumerate(stats)
    ]
    table.log.commit(
        table.log.begin(PlainChange("TEST", actions=[*adds, *TIERED])),
        read_version=table.snapshot.version,
    )
    by_commits = TopicSnapshot.load(store, "orders").files
    write_checkpoint(table.log)
    for each in range(2):
        store.delete(table.log.path(commit_file(each)))
    assert TopicSnapshot.load(store, "orders").files == by_commits
    assert [each.max_timestamp_ms for each in by_commits.values()] == [
        253_402_300_799_999,
        None,
        None,
        1_357_016_400_000,
    ]


def rewritten(store, table, path, name, offsets=range(10)):
    """Another engine writes a file anew and keeps no statistics; the path of the new one."""
    _, add = write_file(table, 0, [batch_of(offsets)], attempt=name)
    add["add"] |= {"stats": None, "dataChange": False}
    gone = {"path": path, "partitionValues": {"partition": "0"}, "dataChange": False}
    foreign_commit(store, {"remove": gone}, add, operation="OPTIMIZE")
    return add["add"]["path"]


def test_a_file_that_came_and_went_and_was_vacuumed_is_not_asked_for_its_statistics(store, table):
    """A worker that starts from an older checkpoint meets the commit that brought it."""
    copies(table, 1)
    (entry,) = table.read().index.find(0, 0, 9)
    first = rewritten(store, table, entry.action_path, "first")
    followed = TopicSnapshot.load(store, "orders")
    second = rewritten(store, table, first, "second")
    erased = rewritten(store, table, second, "erased", offsets=(0, 1, 9))
    for path in (first, second):
        store.delete(f"topics/orders/{path}")
    for snapshot in (TopicSnapshot.load(store, "orders"), followed):
        snapshot.refresh()
        assert [each.action_path for each in snapshot.index.files(0)] == [erased]
        assert snapshot.complaints() == [] and not snapshot.quarantined
        assert sum(each.erased_rows for each in snapshot.foreign_commits) == 7
    table.log.store.delete(f"topics/orders/{erased}")
    with pytest.raises(UnreadableFile, match="erased"):
        TopicSnapshot.load(store, "orders")
