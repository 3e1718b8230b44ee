"""What takes rows and files out of a table."""

import pytest
from deltalake import DeltaTable

from broker.erasure.removal import RemovedFiles, purge
from broker.erasure.search import HIDDEN, TOPIC_TABLE, Search
from broker.erasure.wanted import WantedRecords
from kafka_ds.delta.store.local import LocalStore
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of, filled_table
from tests.unit.topic.foreign_commits import mark


@pytest.fixture
def table(tmp_path):
    return filled_table(LocalStore(str(tmp_path)))


def hidden(table, key):
    search = Search(WantedRecords(key))
    found = search.table(table.log.store, table.folder, TOPIC_TABLE, TOPIC_ID)
    return {each.path for each in found if each.kind == HIDDEN}


@pytest.mark.parametrize("is_merged", [True, False])
def test_files_with_rows_behind_vectors_are_written_anew(table, is_merged):
    """Those of their partition, and no others; also where there is but one."""
    if not is_merged:
        DeltaTable(table.log.store.uri(table.folder)).optimize.z_order(["offset"])
    commit(
        table, copy_of(table, 1, 0, 9, attempt="b" * 22), copy_of(table, 2, 0, 9, attempt="c" * 22)
    )
    (other,) = (path for path in table.read().files if "partition=1" in path)
    (start,) = {entry.min_offset for entry in table.read().files.values() if entry.partition == 2}
    assert start == 0
    mark(table, 20 if is_merged else 0, [2])
    key = b"key-22" if is_merged else b"key-2"
    paths = hidden(table, key)
    assert len(paths) == 1
    assert purge(table.log.store, table.folder, TOPIC_TABLE, paths)
    assert hidden(table, key) == set()
    assert other in table.read().files


def test_the_log_is_read_once(table, monkeypatch):
    removed = RemovedFiles(table.log.store, table.folder, TOPIC_ID)
    assert removed.now() == set()
    before = set(table.read().files)
    DeltaTable(table.log.store.uri(table.folder)).delete('"offset" < 5')
    read = []
    known = LocalStore.read
    monkeypatch.setattr(
        LocalStore, "read", lambda store, path: read.append(path[-7:]) or known(store, path)
    )
    (gone,) = removed.now()
    assert gone in before
    assert (read.count("04.json"), read.count("05.json")) == (1, 2), "by the snapshot, and here"
