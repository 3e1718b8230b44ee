"""Numbers of a topic's table that another engine's checkpoint forgot (`delta.setTransactionRetentionDuration`)."""

import os
import time

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.delta.tiered_extent import removals
from broker.worker.maintenance import TableMaintenance
from kafka_ds.delta import actions
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import ForeignTable, SystemLogClock
from kafka_ds.delta.maintenance import BadCheckpoint, clean_log, maintain
from kafka_ds.delta.names import commit_file
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.commit_rules import PartitionIntent, RangeTaken, TableChanged
from kafka_ds.topic.names import AppIdKind, app_id
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, batch_of, commit, copy_of, orders_table, write_file
from tests.fakes.settings import tier_settings

PROPERTY = "delta.setTransactionRetentionDuration"


def fill(store):
    """Two partitions up to 29 and 9, by leaders of epoch 7; the log of the first one begins at 5."""
    table = orders_table(store)
    for start in (0, 10, 20):
        parts = [copy_of(table, 0, start, start + 9, leader_epoch=7, attempt=f"a{start:021d}")]
        if start == 0:
            parts.append(copy_of(table, 1, 0, 9, leader_epoch=7, attempt="b" * 22))
        commit(table, *parts)
    commit(table, PartitionIntent(partition=0, leader_epoch=7, log_start_offset=5))
    return table


@pytest.fixture
def dated(monkeypatch):
    """Numbers that carry the time of their commit, as any engine's do."""
    monkeypatch.setattr(actions, "NEVER_EXPIRES_MS", 1_000)


def numbers(snapshot):
    return [
        (
            snapshot.highest_offset_in_remote_storage(each),
            snapshot.leader_epoch(each),
            snapshot.log_start(each),
        )
        for each in (0, 1)
    ]


KNOWN = [(29, 7, 5), (9, 7, None)]


def engine(table):
    return DeltaTable(table.log.store.uri(table.folder))


def set_retention(table):
    engine(table).alter.set_table_properties(
        {PROPERTY: "interval 0 seconds"}, raise_if_not_exists=False
    )


def unset_retention(table):
    """What `ALTER TABLE … UNSET TBLPROPERTIES` does; `deltalake` has no word for it."""
    table.read()
    kept = {key: value for key, value in table.snapshot.configuration.items() if key != PROPERTY}
    metadata = {"metaData": {**table.snapshot.metadata, "configuration": kept}}
    change = PlainChange("UNSET TBLPROPERTIES", actions=[metadata])
    table.log.commit(table.log.begin(change), read_version=table.snapshot.version)


def forget(store):
    """A table whose newest checkpoint is another engine's, which was told to forget."""
    table = fill(store)
    set_retention(table)
    engine(table).create_checkpoint()
    return table


def cut(table):
    """Take the commits below the last checkpoint away."""
    for version in range(table.log.last_checkpoint()):
        table.log.store.delete(table.log.path(commit_file(version)))


def test_no_retention_makes_an_engine_forget_a_number(store):
    """The whole story: set, checkpointed and cut by others, unset; copies go on from where they were."""
    table = forget(store)
    time.sleep(0.01)
    cut(table)
    fresh = TopicTable(store, "orders")
    with pytest.raises(TableChanged, match=PROPERTY):
        fresh.open(TOPIC_ID)
    assert numbers(fresh.snapshot) == KNOWN
    with pytest.raises(TableChanged, match=PROPERTY):
        commit(fresh, copy_of(fresh, 0, 30, 39, leader_epoch=7, attempt="c"))
    unset_retention(fresh)
    engine(fresh).create_checkpoint()
    cut(fresh)
    again = orders_table(store)
    assert numbers(again.snapshot) == KNOWN
    with pytest.raises(RangeTaken):
        commit(again, copy_of(again, 0, 0, 9, leader_epoch=8, attempt="d"))
    commit(again, copy_of(again, 0, 30, 39, leader_epoch=7, attempt="e"))
    assert numbers(again.snapshot) == [(39, 7, 5), (9, 7, None)]


def test_a_checkpoint_that_forgot_is_passed_over(store, dated):
    """Numbers of before carry a time; the log has them still."""
    table = forget(store)
    assert numbers(TopicSnapshot.load(store, "orders")) == KNOWN
    unset_retention(table)
    again = orders_table(store)
    assert numbers(again.snapshot) == KNOWN
    commit(again, copy_of(again, 0, 30, 39, leader_epoch=7, attempt="e"))
    assert numbers(TopicSnapshot.load(store, "orders")) == [(39, 7, 5), (9, 7, None)]


def test_the_upkeep_replaces_a_checkpoint_that_forgot(store, dated):
    table = forget(store)
    with pytest.raises(BadCheckpoint):
        # The engine's library that writes it is still told to forget.
        maintain(table.log, now_ms=SystemLogClock().wall_ms(), interval=0)
    assert table.log.listing().checkpoints == {} and table.log.read_version(0) is not None
    unset_retention(table)
    upkeep = TableMaintenance(store, CrashPoints(), SystemLogClock(), interval=1)
    upkeep.look_after(table.folder, table.log.latest_version())
    cut(table)
    assert numbers(TopicSnapshot.load(store, "orders")) == KNOWN


def test_where_nothing_has_the_numbers_any_more_nothing_is_answered(store, dated):
    table = forget(store)
    cut(table)
    unset = "offset 29.*an engine forgot them.*docs/concepts/table.md"
    storage = RemoteStorageManager(store, tier_settings(), CrashPoints())
    with pytest.raises(ForeignTable, match=unset):
        storage.state(TopicIdPartition(TOPIC_ID, "orders", 0))
    with pytest.raises(ForeignTable, match=unset):
        storage.reader.read(
            TopicIdPartition(TOPIC_ID, "orders", 0), 5, max_bytes=1000, committed_only=True
        )
    with pytest.raises(ForeignTable, match=unset):
        storage.aux_state.at(TopicIdPartition(TOPIC_ID, "orders", 0), 5)
    with pytest.raises(ForeignTable, match=unset):
        storage.fence("orders", TOPIC_ID, {0: 9})
    with pytest.raises(ForeignTable, match=unset):
        TopicTable(store, "orders").open(TOPIC_ID)


def test_an_operator_can_say_the_numbers_again(store, dated):
    """As docs/concepts/table.md has it."""
    table = forget(store)
    cut(table)
    said = {0: KNOWN[0], 1: KNOWN[1]}
    told = [
        Transaction(app_id(TOPIC_ID, partition, kind), number)
        for partition, known in said.items()
        for kind, number in zip(
            (AppIdKind.HIGHEST_OFFSET, AppIdKind.LEADER_EPOCH, AppIdKind.LOG_START),
            known,
            strict=True,
        )
        if number is not None
    ]
    there = engine(table)
    there.alter.set_table_properties(
        {PROPERTY: "interval 100000 days"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(app_transactions=told),
    )
    engine(table).create_checkpoint()
    assert numbers(TopicSnapshot.load(store, "orders")) == KNOWN


def test_an_end_that_is_too_low_for_the_files_is_forgotten_too(store, dated):
    """A worker that took the table for a new one, and copied again."""
    table = forget(store)
    cut(table)
    end = Transaction(app_id(TOPIC_ID, 0, AppIdKind.HIGHEST_OFFSET), 9)
    other = Transaction(app_id(TOPIC_ID, 1, AppIdKind.HIGHEST_OFFSET), 9)
    engine(table).alter.set_table_properties(
        {PROPERTY: "interval 100000 days"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(app_transactions=[end, other]),
    )
    engine(table).create_checkpoint()
    with pytest.raises(ForeignTable, match="partition 0 up to offset 29.*the highest offset is 9"):
        TopicTable(store, "orders").open(TOPIC_ID)


def test_rows_that_others_put_in_are_no_numbers_that_are_missing(store):
    table = orders_table(store)
    commit(table, copy_of(table, 0, 0, 9, attempt="a" * 22))
    _, add = write_file(table, 5, [batch_of(range(900, 910))], attempt="z" * 22)
    insert = actions.encode_actions([{"commitInfo": {"operation": "WRITE"}}, add])
    assert store.put_if_absent(table.log.path(commit_file(2)), insert)
    table.read()
    assert table.snapshot.highest_offset_in_remote_storage(5) is None
    table.mark_complaints()
    maintain(table.log, now_ms=SystemLogClock().wall_ms(), interval=0)


def empty(table, partition=1):
    """All rows of a partition expired; what is left of it are its numbers."""
    end = table.read().highest_offset_in_remote_storage(partition)
    commit(table, PartitionIntent(partition=partition, leader_epoch=7, log_start_offset=end + 1))
    gone = removals(table.snapshot, TOPIC_ID, partition, end + 1, now_ms=1)
    assert gone
    commit(table, PartitionIntent(partition=partition, leader_epoch=7, removes=gone))


OF_EMPTY = (9, 7, 10)


def test_numbers_of_a_partition_without_rows_are_not_lost_with_a_checkpoint(store, dated):
    """Nothing in the checkpoint shows that they are lacking: who was told to forget is not believed."""
    table = fill(store)
    empty(table)
    set_retention(table)
    engine(table).create_checkpoint()
    assert numbers(TopicSnapshot.load(store, "orders")) == [KNOWN[0], OF_EMPTY]


def test_nothing_is_cut_below_a_checkpoint_that_forgot_a_partition_without_rows(
    store, dated, tmp_path
):
    """An engine that was told to forget has its state from its own checkpoint, and makes the next one of that."""
    table = fill(store)
    empty(table)
    set_retention(table)
    forgetful = engine(table)
    forgetful.create_checkpoint()
    unset_retention(table)
    engine(table).create_checkpoint()
    forgetful_too = table.log.latest_version()
    assert max(table.log.listing().checkpoints) == forgetful_too
    old = time.time() - 40 * 86_400
    for path in (tmp_path / table.folder / "_delta_log").iterdir():
        os.utime(path, (old, old))
    commit(table, PartitionIntent(partition=0, leader_epoch=7))
    with pytest.raises(BadCheckpoint):
        clean_log(table.log, now_ms=SystemLogClock().wall_ms())
    assert table.log.read_version(0) is not None
    maintain(table.log, now_ms=SystemLogClock().wall_ms(), interval=0)
    assert numbers(TopicSnapshot.load(store, "orders")) == [KNOWN[0], OF_EMPTY]


def test_the_upkeep_replaces_a_checkpoint_that_forgot_a_partition_without_rows(store, dated):
    table = fill(store)
    empty(table)
    set_retention(table)
    engine(table).create_checkpoint()
    unset_retention(table)
    engine(table).create_checkpoint()
    maintain(table.log, now_ms=SystemLogClock().wall_ms(), interval=0)
    cut(table)
    assert numbers(TopicSnapshot.load(store, "orders")) == [KNOWN[0], OF_EMPTY]


def test_a_leader_epoch_that_is_forgotten_alone_is_missed(store, dated):
    """Else a leader that slept might write again."""
    table = forget(store)
    cut(table)
    told = [
        Transaction(app_id(TOPIC_ID, partition, AppIdKind.HIGHEST_OFFSET), number)
        for partition, (number, _, _) in enumerate(KNOWN)
    ]
    engine(table).alter.set_table_properties(
        {PROPERTY: "interval 100000 days"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(app_transactions=told),
    )
    engine(table).create_checkpoint()
    with pytest.raises(
        ForeignTable, match="version .: it has a number of partition 0, but not its leader epoch"
    ):
        TopicTable(store, "orders").open(TOPIC_ID)


def test_a_topic_whose_numbers_are_forgotten_can_be_deleted(store, dated):
    table = forget(store)
    cut(table)
    fresh = TopicTable(store, "orders")
    assert fresh.retire(TOPIC_ID)
    assert len(engine(fresh).file_uris()) == 0
