"""A topic's table as several threads share it, while the store does not answer."""

import contextlib
from pathlib import Path

import pytest

from broker.worker.delta.tables import TopicTables
from kafka_ds.delta.actions import add_action
from kafka_ds.delta.checkpoint import is_torn
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog, SystemLogClock
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.schemas import LOG_RETENTION_MS
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.fakes.store import FolderStore

FOLDER = topic_table("orders")
CHECKPOINTS = "*.checkpoint.parquet"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A table whose log was cleaned up: it begins with a checkpoint."""
    store = FolderStore(tmp_path)
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    commit(table, copy_of(table, 0, 0, 9))
    version = write_checkpoint(DeltaLog(store, FOLDER))
    for each in range(version):
        store.delete(f"{FOLDER}/{commit_file(each)}")
    return store


def tables_of(store: LocalStore) -> TopicTables:
    return TopicTables(
        store, FileReader(store), SystemLogClock(), log_retention_ms=LOG_RETENTION_MS
    )


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_a_deletion_is_not_done_while_the_store_is_away(store: FolderStore, failures: int) -> None:
    """It would be marked as done, and the rows would stay."""
    shared = tables_of(store).get("orders")
    store.refuse(calls="read", path=CHECKPOINTS, times=failures)
    while store.scripted:
        try:
            assert shared.retire(TOPIC_ID), "it was not done"
        except OSError:
            continue
    shared.retire(TOPIC_ID)
    assert not TopicSnapshot.load(store, "orders").files


def test_a_table_whose_only_checkpoint_is_torn_is_given_up(store: FolderStore) -> None:
    """Nothing waits for ever for what will never be readable."""
    (entry,) = [e for e in store.list(FOLDER) if e.path.endswith(".checkpoint.parquet")]
    store.put_durable(entry.path, b"")
    assert not tables_of(store).get("orders").retire(TOPIC_ID)


def test_rows_behind_deletion_vectors_go_with_a_deleted_topic(store: FolderStore) -> None:
    """Also behind one that nobody here can read: the removal has to name it, no more."""
    log, path = DeltaLog(store, FOLDER), "partition=0/others.parquet"
    add = add_action(
        path=path, partition_values={"partition": "0"}, size=14, modified_ms=0, stats="{}"
    )
    add["add"]["deletionVector"] = {"storageType": "x", "pathOrInlineDv": "?", "cardinality": 1}
    shared = tables_of(store).get("orders")
    log.commit(log.begin(PlainChange("DELETE", actions=[add])), read_version=log.latest_version())
    assert shared.retire(TOPIC_ID)
    assert not TopicSnapshot.load(store, "orders").files
    actions = log.read_version(log.latest_version()) or []
    (remove,) = [e["remove"] for e in actions if e.get("remove", {}).get("path") == path]
    assert remove["deletionVector"]["storageType"] == "x"


@pytest.mark.parametrize("again", [False, True])
def test_of_a_deleted_topic_also_files_go_that_nobody_can_look_into(
    store: FolderStore, again: bool
) -> None:
    """Without statistics, as others may leave them, and the disk or the store does not give them now."""
    log, path = DeltaLog(store, FOLDER), f"{FOLDER}/partition=0/others.parquet"
    store.put_durable(path, b"not to be read")
    add = add_action(
        path="partition=0/others.parquet",
        partition_values={"partition": "0"},
        size=14,
        modified_ms=0,
        stats="{}",
    )
    log.commit(log.begin(PlainChange("OPTIMIZE", actions=[add])), read_version=log.latest_version())
    shared = tables_of(store).get("orders")
    assert shared.retire(TOPIC_ID)
    if again:
        # By another worker, as the first one died before it could say so.
        shared = tables_of(store).get("orders")
        assert not shared.retire(TOPIC_ID)
    assert shared.was_retired(TOPIC_ID)
    store.delete(path)
    assert not TopicSnapshot.load(store, "orders").files


@pytest.mark.parametrize("reads", range(4))
def test_a_checkpoint_is_not_torn_because_the_store_is_away(store: FolderStore, reads: int) -> None:
    """A checkpoint that is torn may be taken away."""
    log = DeltaLog(store, FOLDER)
    ((version, paths),) = log.listing().checkpoints.items()
    store.script(lambda read: read(), "read", path=CHECKPOINTS, times=reads)
    store.refuse(calls="read", path=CHECKPOINTS)
    with contextlib.suppress(TimeoutError):
        assert not is_torn(store, FOLDER, version, paths)
