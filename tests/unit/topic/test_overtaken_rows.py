"""Overtaken rows: how far they may go, when that is worth it, and what ends the commit."""

import numpy as np
import pytest
from deltalake import DeltaTable

from broker.worker.delta.lost_files import origin_of
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import FilesRemoved, PartitionIntent, TableChanged
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.files.rewrite import NotRewritable, rewrite_files
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import cleaned_at_mark, cleaned_mark
from kafka_ds.topic.overtaken_rows import CleanedFile, TableCleaning, clean_end, is_dirty
from tests.fakes.lake_rows import TOPIC_ID, commit, copies, filled_table


def entry(first, last, *, rows=None, newest_ms=None):
    return FileEntry(
        path=f"{first}",
        action_path=f"{first}",
        partition=0,
        size=1,
        rows=last - first + 1 if rows is None else rows,
        min_offset=first,
        max_offset=last,
        max_timestamp_ms=newest_ms,
        null_timestamps=0,
    )


def test_a_file_with_a_young_record_and_all_after_it_stay():
    files = [entry(0, 9, newest_ms=5), entry(10, 19, newest_ms=8), entry(20, 29, newest_ms=6)]
    assert clean_end(files, 25, 8) == 25
    assert clean_end(files, 25, 7) == 10
    assert clean_end([entry(0, 9)], 25, 7) == 0, "times that are no date"


def test_it_waits_until_a_share_of_the_rows_is_new():
    files = [entry(0, 99, rows=30), entry(100, 129)]
    assert is_dirty(files, 0, 130, 1.0)
    assert is_dirty(files, 100, 130, 0.5)
    assert not is_dirty(files, 110, 130, 0.5)
    assert is_dirty(files, 110, 130, 0.0)
    assert not is_dirty(files, 130, 130, 0.0)
    assert not is_dirty(files, 100, 100, 0.0)


@pytest.fixture
def table(tmp_path):
    return filled_table(LocalStore(str(tmp_path)))


def rewritten(table, file, leaving):
    store = table.log.store
    return rewrite_files(
        store,
        FileReader(store),
        table.folder,
        [file],
        attempt=uuid_text(bytes(range(16))),
        log_start_offset=0,
        file_bytes=None,
        without=np.array(leaving),
    )


def cleaning(table, *leaving, pass_id="pass"):
    """That of a pass which ends at 40, and in which these offsets leave each file: all versions after the present one
    come between.
    """
    snapshot = table.read()
    files = []
    for file, offsets in zip(snapshot.index.files(0), leaving, strict=False):
        made = [
            each.add(table.folder, 0, now_ms=1) for each in rewritten(table, file, offsets).files
        ]
        files.append(CleanedFile(before=file, deleted=len(offsets), add=made[0] if made else None))
    change = TableCleaning(
        pass_id=pass_id,
        topic_id=TOPIC_ID,
        partition=0,
        files=files,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        now_ms=17,
        cleaned=40,
    )
    delta, version = TableWriter(table.log), snapshot.version
    return change, lambda: delta.commit(delta.begin(change), read_version=version)


def offsets(table):
    found = DeltaTable(table.log.store.uri(table.folder)).to_pyarrow_table()
    return sorted(found.column("offset").to_pylist())


ALL, TWO = range(10), (10, 13)
LEFT = [each for each in range(10, 40) if each not in TWO]


def test_rows_leave_while_the_broker_copies(table):
    change, commits = cleaning(table, ALL, TWO)
    copies(table, 40)
    commits()
    assert offsets(table) == [*LEFT, *range(40, 50)]
    assert change.deleted == 12
    snapshot = table.read()
    assert snapshot.txns[cleaned_mark(TOPIC_ID, 0)] == 40
    assert snapshot.txns[cleaned_at_mark(TOPIC_ID, 0)] == 17
    assert (snapshot.quarantined, list(snapshot.missing(0))) == (set(), [])


def test_a_lost_file_is_written_again_only_before_the_next_pass(table):
    """After it, tombstones may be gone of what would come back."""
    _, commits = cleaning(table, ALL, TWO, [25])
    commits()
    first, second, _ = table.read().index.files(0)
    origin = origin_of(table.log.store, table.log, second.path)
    assert origin is not None and {first.path, second.path} == origin.new
    assert len(origin.old) == 3
    _, commits = cleaning(table, [11], pass_id="next")
    commits()
    anew = table.read().index.files(0)[0]
    assert origin_of(table.log.store, table.log, anew.path) is not None
    assert origin_of(table.log.store, table.log, second.path) is None


def replaced(table, number):
    """As an OPTIMIZE of the broker."""
    file = table.read().index.files(0)[number]
    (made,) = rewritten(table, file, ()).files
    part = PartitionIntent(
        partition=0,
        leader_epoch=0,
        is_rewrite=True,
        adds=(made.add(table.folder, 0, now_ms=1, data_change=False),),
        removes=(file.removal(1, data_change=False),),
    )
    commit(table, part, operation="OPTIMIZE")


def test_what_was_optimised_meanwhile_stays_for_the_next_pass(table):
    change, commits = cleaning(table, ALL, TWO)
    replaced(table, 1)
    commits()
    assert offsets(table) == [*range(10, 40)]
    assert (change.deleted, change.dropped) == (10, 1)
    assert cleaned_mark(TOPIC_ID, 0) not in table.read().txns
    change, commits = cleaning(table, TWO)
    replaced(table, 0)
    with pytest.raises(FilesRemoved, match="rewrote all of the files"):
        commits()


def test_nothing_leaves_once_others_removed_rows_or_changed_the_table(table):
    _, commits = cleaning(table, ALL)
    DeltaTable(table.log.store.uri(table.folder)).delete('"offset" = 35')
    with pytest.raises(FilesRemoved, match="removed rows"):
        commits()
    _, commits = cleaning(table, ALL)
    DeltaTable(table.log.store.uri(table.folder)).alter.set_table_properties(
        {"delta.appendOnly": "true"}
    )
    with pytest.raises(TableChanged):
        commits()
    assert len(offsets(table)) == 39


def test_rows_that_are_not_there_cannot_leave(table):
    with pytest.raises(NotRewritable, match="10 rows were found where 9 were"):
        rewritten(table, table.read().index.files(0)[0], [10])
