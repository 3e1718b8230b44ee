"""RESTORE of a topic's table: what comes back is the topic's, and what goes is said."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kafka_ds.delta.actions import DAY_MS, txn_action
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.maintenance import vacuum, write_checkpoint
from kafka_ds.topic.commit_rules import PartitionIntent
from kafka_ds.topic.files.parquet import FileReader, read_files
from kafka_ds.topic.missing import missing_files_of
from kafka_ds.topic.names import (
    MissingRange,
    complaint_mark,
    data_file,
    missing_mark,
    quarantine_mark,
)
from kafka_ds.topic.recovery import AddedBack, add_back, give_up, missing_ranges
from kafka_ds.topic.schemas import TOPIC_SCHEMA
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import (
    TOPIC_ID,
    attempt_of,
    batch_of,
    commit,
    copies,
    copy_of,
    filled_table,
)
from tests.unit.topic.foreign_commits import foreign_commit

OTHER_ID = bytes(range(2, 18))


@pytest.fixture
def table(store):
    return filled_table(store)


def delta(table):
    return DeltaTable(table.log.store.uri(table.folder))


def offsets_by_sql(table):
    rows = delta(table).to_pyarrow_table(columns=["offset"])
    return sorted(rows.column("offset").to_pylist())


def offsets(snapshot):
    """As consumers and Spark's source get them."""
    files = list(snapshot.index.files(0))
    rows, _ = read_files(FileReader(snapshot.log.store), files, start_offset=0, end_offset=1 << 40)
    return rows.column("offset").to_pylist()


def readers(table):
    """One that has followed all versions, and one that begins now."""
    return table.read(), TopicSnapshot.load(table.log.store, "orders")


def all_have(table, wanted):
    assert offsets_by_sql(table) == list(wanted)
    for each in readers(table):
        assert offsets(each) == list(wanted)
        assert each.complaints() == [] and not each.quarantined


def test_what_a_restore_took_away_is_there_after_the_restore_back(table):
    delta(table).restore(2)
    all_have(table, range(20))
    delta(table).restore(4)
    all_have(table, range(40))
    assert table.mark_complaints() == 0
    write_checkpoint(table.log)
    all_have(table, range(40))


@pytest.mark.parametrize("erased", [range(10), range(3, 15), range(12, 18)])
def test_rows_that_were_deleted_by_mistake_are_back_for_all_readers(table, erased):
    delta(table).delete(f'"offset" >= {erased.start} AND "offset" < {erased.stop}')
    all_have(table, [each for each in range(40) if each not in erased])
    delta(table).restore(4)
    all_have(table, range(40))


def test_rows_are_back_that_another_engine_had_written_anew(table):
    """Its files are called as it calls them: the log says that the table had them."""
    delta(table).optimize.compact()
    all_have(table, range(40))
    delta(table).delete()
    all_have(table, [])
    write_checkpoint(table.log)
    delta(table).restore(5)
    all_have(table, range(40))


def test_rows_of_others_stay_out_however_often_they_are_restored(table):
    rows = pa.Table.from_batches([batch_of(range(5, 8))])
    rows = rows.add_column(0, TOPIC_SCHEMA.field(0), pa.array([0, 0, 0], pa.int32()))
    write_deltalake(delta(table), rows, mode="append")
    for version in (4, 5):
        delta(table).restore(version)
    for each in readers(table):
        assert offsets(each) == list(range(40)) and len(each.quarantined) == 1
    assert table.mark_complaints() == 3, "two commits, one file"
    write_checkpoint(table.log)
    for each in readers(table):
        assert offsets(each) == list(range(40)) and len(each.quarantined) == 1


def test_a_file_that_is_put_beside_its_own_rows_is_quarantined(table):
    """No offset twice: what was written anew of it is there."""
    add = next(each["add"] for each in table.log.read_version(1) if "add" in each)
    delta(table).optimize.compact()
    log = TopicTable(table.log.store, "orders").log
    log.commit(log.begin(PlainChange("X", actions=[{"add": add}])), read_version=5)
    version = log.latest_version()
    body = log.store.read(log.path(f"_delta_log/{version:020d}.json"))
    log.store.put_durable(
        log.path(f"_delta_log/{version:020d}.json"), body.replace(b"kafkaDs", b"x")
    )
    for each in readers(table):
        assert [len(each.index.files(0)), len(each.quarantined)] == [1, 1]
        assert offsets(each) == list(range(40))


def test_a_file_beyond_the_tiered_end_was_never_in_the_table_whatever_it_is_called(
    table,
):
    """Its offsets are yet to be given out: a copy that did not commit left it, say."""
    add = next(each["add"] for each in table.log.read_version(4) if "add" in each)
    stats = {"numRecords": 10, "minValues": {"offset": 50}, "maxValues": {"offset": 59}}
    name = data_file(0, 50, attempt_of(50))
    foreign_commit(table.log.store, {"add": {**add, "path": name, "stats": json.dumps(stats)}})
    for each in readers(table):
        assert [path.rpartition("/")[2] for path in each.quarantined] == [name.rpartition("/")[2]]
        assert offsets(each) == list(range(40))


def test_quarantine_by_an_earlier_release_is_withdrawn(table):
    delta(table).restore(2)
    delta(table).restore(4)
    paths = [f"partition=0/{start:020d}-{attempt_of(start)}.parquet" for start in (20, 30)]
    marks = [complaint_mark(6), *map(quarantine_mark, paths)]
    actions = [{"txn": {"appId": each, "version": 6}} for each in marks]
    table.log.commit(table.log.begin(PlainChange("QUARANTINE", actions=actions)), read_version=6)
    write_checkpoint(table.log)
    later = TopicTable(table.log.store, "orders")
    assert offsets(later.read()) == list(range(20))
    assert later.mark_complaints() == 2
    all_have(table, range(40))
    assert later.mark_complaints() == 0
    write_checkpoint(table.log)
    all_have(table, range(40))
    then = TopicSnapshot.load(table.log.store, "orders", 7)
    assert offsets(then) == list(range(40)), "it holds for versions before it"


def test_files_of_an_earlier_topic_of_the_same_name_are_not_this_ones(table):
    gone = [each["add"] for each in table.log.read_version(2) if "add" in each]
    table.retire(TOPIC_ID)
    table.open(OTHER_ID)
    copies(table, 0, topic_id=OTHER_ID)
    part = copy_of(table, 0, 10, 19, attempt=attempt_of(76), offsets=[19])
    commit(table, part, topic_id=OTHER_ID)
    delta(table).delete('"offset" = 19')
    before = table.read().version
    # As a RESTORE does that leaves the metadata alone.
    name = table.log.path(f"_delta_log/{before + 1:020d}.json")
    lines = [{"commitInfo": {"operation": "RESTORE"}}, {"add": gone[0]}]
    table.log.store.put_if_absent(name, "\n".join(map(json.dumps, lines)).encode())
    for each in readers(table):
        assert offsets(each) == list(range(10)) and len(each.quarantined) == 1


# -- ranges that a RESTORE took out -------------------------------------------------------------


def missing(table, partition=0):
    """As one says that has followed all versions, and one that begins now."""
    found = [list(each.missing(partition)) for each in readers(table)]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("by", ["commits", "checkpoint", "sparks"])
def test_a_restore_that_takes_tiered_ranges_away_is_no_erasure(table, by):
    delta(table).restore(2)
    if by == "sparks":
        # As Spark does of each RESTORE, before any worker has seen it.
        delta(table).create_checkpoint()
    assert missing(table) == [(20, 39)]
    if by == "checkpoint":
        assert table.mark_complaints() == 2
        write_checkpoint(table.log)
        assert missing(table) == [(20, 39)]
    copies(table, 40)
    assert missing(table) == [(20, 39)], "copies go on behind it"
    assert [each.highest_offset_in_remote_storage(0) for each in readers(table)] == [49, 49]
    assert add_back(table.log.store.root, "orders") == AddedBack(rows={0: 20})
    assert missing(table) == []
    all_have(table, range(50))
    assert add_back(table.log.store.root, "orders") == AddedBack()


def test_a_restore_back_settles_it(table):
    delta(table).restore(1)
    assert missing(table) == [(10, 39)] and table.mark_complaints() == 3
    delta(table).restore(4)
    assert missing(table) == []
    assert table.mark_complaints() == 3
    delta(table).delete('"offset" >= 30')
    write_checkpoint(table.log)
    assert missing(table) == [], "what is erased then is no loss"
    all_have(table, range(30))


def test_one_restore_after_the_other(table):
    delta(table).restore(2)
    copies(table, 40)
    after_copy = table.read().version
    copies(table, 50)
    delta(table).restore(after_copy)
    assert missing(table) == [(20, 39), (50, 59)]
    delta(table).restore(3)
    assert missing(table) == [(30, 59)]


def test_what_is_erased_by_a_restore_is_missing_until_somebody_gives_it_up(table):
    delta(table).delete('"offset" >= 12')
    assert missing(table) == []
    erased = table.read().version
    delta(table).restore(4)
    delta(table).restore(erased)
    assert missing(table) == [(12, 39)], "it may be a mistake as well: somebody decides"
    assert give_up(table.log.store.root, "orders") == {0: [(12, 39)]}
    assert missing(table) == []
    all_have(table, range(12))


def test_of_a_file_that_was_merged_the_missing_part_is_written_anew(table):
    delta(table).optimize.compact()
    assert len(table.read().index.files(0)) == 1
    delta(table).restore(2)
    assert missing(table) == [(20, 39)]
    assert add_back(table.log.store.root, "orders") == AddedBack(rows={0: 20})
    all_have(table, range(40))
    assert len(table.read().index.files(0)) == 3


def test_what_lies_below_the_log_start_is_not_missing(table):
    start = PartitionIntent(partition=0, leader_epoch=0, log_start_offset=25)
    commit(table, start)
    delta(table).restore(2)
    assert missing(table) == [(25, 39)]


def test_files_that_were_vacuumed_stay_missing_until_somebody_gives_them_up(table):
    path = next(each.path for each in table.read().index.find(0, 30, 39))
    delta(table).restore(2)
    table.read()
    table.log.store.delete(path)
    uri = table.log.store.root
    assert add_back(uri, "orders") == AddedBack(rows={0: 10}, missing={0: [(30, 39)]})
    assert missing_ranges(uri, "orders") == {0: [(30, 39)]}
    all_have(table, range(30))
    assert give_up(uri, "orders") == {0: [(30, 39)]}
    assert missing_ranges(uri, "orders") == {} and missing(table) == []
    copies(table, 40)
    all_have(table, [*range(30), *range(40, 50)])


def test_add_back_begins_anew_if_others_come_between(table, monkeypatch):
    delta(table).restore(2)
    pauses = [lambda: delta(table).restore(4), lambda: None]
    plain = DeltaLog.commit

    def commit_later(self, attempt, *, read_version):
        pauses.pop(0)()
        return plain(self, attempt, read_version=read_version)

    monkeypatch.setattr(DeltaLog, "commit", commit_later)
    assert add_back(table.log.store.root, "orders") == AddedBack()
    monkeypatch.undo()
    all_have(table, range(40))


def test_orphans_are_not_removed_while_they_are_missing(table):
    delta(table).restore(2)
    table.read()
    table.mark_complaints()
    write_checkpoint(table.log)
    for each in range(table.read().version):
        table.log.store.delete(table.log.path(f"_delta_log/{each:020d}.json"))
    later_ms = table.log.clock.wall_ms() + 30 * DAY_MS

    def kept(snapshot):
        return missing_files_of(table.folder, snapshot.txns)

    assert vacuum(table.log, now_ms=later_ms, kept=kept, dry_run=True) == []
    give_up(table.log.store.root, "orders")
    assert len(vacuum(table.log, now_ms=later_ms, kept=kept, dry_run=True)) == 2


def test_of_a_file_that_comes_back_in_part_the_rest_stays_missing(table):
    delta(table).optimize.compact()
    delta(table).restore(1)
    assert missing(table) == [(10, 39)]
    delta(table).restore(2)
    assert missing(table) == [(20, 39)]
    table.mark_complaints()
    write_checkpoint(table.log)
    assert [list(each.missing(0)) for each in readers(table)] == [[(20, 39)]] * 2
    add_back(table.log.store.root, "orders")
    all_have(table, range(40))


@pytest.mark.parametrize("settle", [give_up, add_back])
def test_what_is_settled_leaves_no_older_mark_of_the_same_file(table, settle):
    delta(table).optimize.compact()
    delta(table).restore(1)
    assert missing(table) == [(10, 39)]
    table.mark_complaints()
    delta(table).restore(2)
    assert missing(table) == [(20, 39)]
    settle(table.log.store.root, "orders")
    delta(table).create_checkpoint()
    assert [list(each.missing(0)) for each in readers(table)] == [[], []]


@pytest.mark.parametrize("is_newest_first", [True, False])
def test_a_mark_that_is_settled_settles_no_other_of_the_same_file(table, is_newest_first):
    """A checkpoint holds them in any order."""
    path = table.read().index.find(0, 30, 39)[0].action_path
    old, new = (
        missing_mark(
            MissingRange(
                topic_id=TOPIC_ID,
                partition=0,
                start_offset=start,
                end_offset=39,
                action_path=path,
            )
        )
        for start in (35, 30)
    )
    marks = [txn_action(new, 3), txn_action(old, -1)]
    change = PlainChange("X", actions=marks if is_newest_first else marks[::-1])
    table.log.commit(table.log.begin(change), read_version=table.snapshot.version)
    assert list(table.read().missing(0)) == [(30, 39)]


def test_add_back_begins_anew_if_one_partition_gets_another_leader(table, monkeypatch):
    """Else it would say of that partition that nothing is missing, and bring nothing back."""
    part = copy_of(table, 1, 0, 9, attempt=attempt_of(98))
    commit(table, part)
    delta(table).restore(1)
    assert missing(table) == [(10, 39)] and missing(table, 1) == [(0, 9)]
    real, fenced = DeltaLog.commit, []

    def commit_later(log, attempt, **arguments):
        if attempt.change.operation == "ADD BACK" and not fenced:
            fenced.append(True)
            commit(table, PartitionIntent(partition=0, leader_epoch=9))
        return real(log, attempt, **arguments)

    monkeypatch.setattr(DeltaLog, "commit", commit_later)
    assert add_back(table.log.store.root, "orders") == AddedBack(rows={0: 30, 1: 10})
    assert missing(table) == [] and missing(table, 1) == []
    assert offsets(table.read()) == list(range(40))
