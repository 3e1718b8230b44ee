"""`__cluster_metadata`: the cluster's events are rows once at every version, also when their files are merged."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker.metadata import log as metadata_log
from broker.metadata.events import TopicCreated, TopicDeleted
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog, replay_commit
from broker.worker.errors import StorageError
from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata import materialise
from broker.worker.metadata.materialise import Materialiser
from kafka_ds.delta import actions
from kafka_ds.delta.actions import KIND_KEY
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog, SystemLogClock
from kafka_ds.delta.maintenance import vacuum, write_checkpoint
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.process.crash_points import EVENTS_POINTS, CrashPoints
from kafka_ds.topic import metadata_table as table
from kafka_ds.topic.event_files import MergedEvents, merge_events
from kafka_ds.topic.events import read_events
from kafka_ds.topic.names import CLUSTER_METADATA
from kafka_ds.topic.schemas import CLUSTER_METADATA_SCHEMA, DAY_MS
from tests.fakes.lake_rows import files_at
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.fakes.store import FolderStore, MemoryStore

Place = tuple[int, str, int]
FILES_MIN = 4


class MetadataRows:
    """A controller, and the worker that turns its events into rows."""

    def __init__(self, store: MemoryStore | FolderStore, **settings: int) -> None:
        self.store = store
        self.log = MetadataLog(store, log=log_of(store))
        self.image = self.log.load()
        if self.image.cluster_id is None:
            self.log.found("c")
            self.image = self.log.load()
        self.deleted: list[bytes] = []
        self.settings = tier_settings(**settings)
        self.worker = Materialiser(
            store,
            self.settings,
            CrashPoints(),
            lambda topic, topic_id: self.deleted.append(topic_id),
        )
        self.maintenance = TableMaintenance(
            store, CrashPoints(), SystemLogClock(), interval=self.settings.lake_checkpoint_interval
        )

    def decide(self, first: int, last: int) -> None:
        """A topic comes and goes in each commit, and each commit's rows come in one of their own."""
        for number in range(first, last):
            self.commit(number)
            self.worker.materialise(self.image.version)

    def commit(self, number: int) -> None:
        topic_id = bytes([number]) * 16
        events = [
            TopicCreated(topic="a", topic_id=topic_id),
            TopicDeleted(topic="a", topic_id=topic_id),
        ]
        version = self.log.commit(self.log.begin(events, self.image))
        assert version is not None
        replay_commit(self.image, version, events)


def log_of(store: MemoryStore | FolderStore) -> DeltaLog:
    return DeltaLog(store, CLUSTER_METADATA, clock=store.clock)


def merge(store: MemoryStore, at: Callable[[str], None] = lambda step: None) -> list[MergedEvents]:
    return merge_events(log_of(store), files_min=FILES_MIN, at=at)


def rows_at(
    store: MemoryStore | FolderStore, version: int | None = None
) -> dict[Place, dict[str, Any]]:
    """The rows of a version by their position; asserts that each is there once."""
    rows = [
        row
        for path in files_at(log_of(store), version)
        for row in read_events(store, path, CLUSTER_METADATA_SCHEMA).to_pylist()
    ]
    found = {(row["version"], row["kind"], row["sequence"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def state(image: MetadataImage) -> object:
    return (image.cluster_id, image.version, sorted(image.topics), image.controller_epoch)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_deletion_that_fails_is_remembered_and_holds_up_no_other_event(
    store: MemoryStore,
) -> None:
    """One folder that cannot be written, and neither later rows nor the clean-up of the log would go on."""
    cluster, failing, deleted = MetadataRows(store), {bytes([1]) * 16}, []

    def delete(topic: str, topic_id: bytes) -> None:
        if topic_id in failing:
            raise StorageError("this folder is read-only")
        deleted.append((topic, topic_id))

    def worker() -> Materialiser:
        return Materialiser(store, tier_settings(), CrashPoints(), delete)

    first = worker()
    for number in (1, 2):
        cluster.commit(number)
    with pytest.raises(StorageError, match="read-only"):
        first.materialise(cluster.image.version)
    assert len(rows_at(store)) == 5, "with the one that founded the cluster"
    latest = log_of(store).latest_version()
    with pytest.raises(StorageError, match="read-only"):
        first.materialise(cluster.image.version)
    assert log_of(store).latest_version() == latest, "no commit says what is known"
    cluster.commit(3)
    with pytest.raises(StorageError, match="read-only"):
        first.materialise(cluster.image.version)
    assert [*dict.fromkeys(deleted)] == [("a", bytes([2]) * 16), ("a", bytes([3]) * 16)]
    failing.clear()
    for _ in range(2):
        worker().materialise(cluster.image.version)
        first.materialise(cluster.image.version)
    assert [*dict.fromkeys(deleted)][2:] == [("a", bytes([1]) * 16)]
    assert len(rows_at(store)) == 7


def test_rows_are_deleted_once_more_after_the_event_says_so(store: MemoryStore) -> None:
    """A broker that has not heard of it makes the table, and asks then; what fails the second time is left, too."""
    cluster, said = MetadataRows(store), list[bool]()

    def delete(topic: str, topic_id: bytes) -> None:
        said.append(materialiser.was_deleted(topic_id))
        if len(said) == 2:
            raise StorageError("the store is away")

    materialiser = Materialiser(store, tier_settings(), CrashPoints(), delete)
    assert not materialiser.was_deleted(bytes([1]) * 16)
    cluster.commit(1)
    with pytest.raises(StorageError, match="away"):
        materialiser.materialise(cluster.image.version)
    materialiser = Materialiser(store, tier_settings(), CrashPoints(), delete)
    for _ in range(2):
        materialiser.materialise(cluster.image.version)
    assert said == [False, True, True]
    assert len(rows_at(store)) == 3


@pytest.mark.parametrize("said", [None, "true"])
def test_a_table_of_before_is_told_once_that_only_the_worker_cleans_up_its_log(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    """Else one checkpoint by Spark takes the commits that brokers start from."""
    name = table.EXPIRED_LOG_CLEANUP
    with monkeypatch.context() as before:
        before.delitem(table.PROPERTIES, name)
        if said is not None:
            before.setitem(table.PROPERTIES, name, said)
        cluster = MetadataRows(store)
    log = log_of(store)

    def metadata() -> list[dict[str, Any]]:
        return [
            a["metaData"]
            for _, actions in log.versions_after(-1)
            for a in actions
            if "metaData" in a
        ]

    def change() -> None:
        """Somebody says something else of the table meanwhile."""
        (made,) = metadata()
        others = {**made, "configuration": {**made["configuration"], "other": "x"}}
        change = PlainChange("SET TBLPROPERTIES", actions=[{"metaData": others}])
        log.commit(log.begin(change), read_version=log.latest_version())

    cluster.commit(1)
    store.race(change)
    cluster.worker.materialise(cluster.image.version)
    cluster.decide(2, 5)
    assert len(rows_at(store)) == 9
    first, *_, last = metadata()
    assert len(metadata()) == (2 if said else 3)
    assert last == {
        **first,
        "configuration": {
            **table.PROPERTIES,
            KIND_KEY: table.KIND,
            name: said or "false",
            "other": "x",
        },
    }
    assert state(MetadataLog(store).load()) == state(cluster.image)


def test_where_many_deletions_fail_each_is_tried_in_its_turn(store: MemoryStore) -> None:
    """While the store is away each takes its time: some are tried at a time, and never the same ones alone."""
    cluster, tried = MetadataRows(store), list[bytes]()

    def delete(topic: str, topic_id: bytes) -> None:
        tried.append(topic_id)
        raise StorageError("away")

    cluster.worker.delete_topic = delete
    for number in range(1, 9):
        cluster.commit(number)
    for _ in range(8):
        before = len(tried)
        with pytest.raises(StorageError, match="not tried now"):
            cluster.worker.materialise(cluster.image.version)
        assert len(tried) - before == materialise.FAILURES_MAX
    assert set(tried) == {bytes([number]) * 16 for number in range(1, 9)}


def test_each_row_is_there_once_at_every_version(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for commits that begin with a snapshot, whose rows are numbered from 0 like the commit's own."""
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", 5)
    cluster = MetadataRows(store)
    cluster.decide(0, 8)
    latest = log_of(store).latest_version()
    before = [rows_at(store, version) for version in range(latest + 1)]
    assert {kind for _, kind, _ in before[-1]} == {"event", "snapshot"}
    (merged,) = merge(store)
    assert (merged.files, merged.events, merged.version) == (8, len(before[-1]), latest + 1)
    assert [rows_at(store, version) for version in range(latest + 1)] == before
    assert rows_at(store) == before[-1]
    (path,) = files_at(log_of(store))
    rows = read_events(store, path, CLUSTER_METADATA_SCHEMA).to_pylist()
    at = [(row["version"], row["kind"] == "event", row["sequence"]) for row in rows]
    assert at == sorted(at), "in their order, what was before a commit first"
    # Who follows the table, and who follows the cluster, have nothing to do with it.
    changes = [
        action.get("add") or action.get("remove")
        for action in log_of(store).read_version(merged.version) or ()
        if "commitInfo" not in action
    ]
    assert len(changes) == 9 and not any(each["dataChange"] for each in changes if each)
    assert state(MetadataRows(store).image) == state(cluster.image)
    assert cluster.log.read_after(cluster.image.version) == []
    cluster.decide(8, 10)
    assert [*dict.fromkeys(cluster.deleted)] == [bytes([number]) * 16 for number in range(10)]
    assert all(cluster.worker.was_deleted(each) for each in cluster.deleted)
    assert merge(store) == [], "not each time that there is another"


def test_who_decides_and_makes_rows_meanwhile_is_not_disturbed(store: MemoryStore) -> None:
    cluster = MetadataRows(store)
    cluster.decide(0, 5)

    def others() -> None:
        cluster.decide(5, 6)
        cluster.commit(6)

    store.race(others)
    (merged,) = merge(store)
    cluster.worker.materialise(cluster.image.version)
    assert merged.files == 5 and len(files_at(log_of(store))) == 3
    assert {version for version, _, _ in rows_at(store)} <= set(range(merged.version))
    assert len(rows_at(store)) == 1 + 2 * 7
    assert len({*cluster.deleted}) == 7


@pytest.mark.parametrize("point", EVENTS_POINTS)
def test_a_crash_at_any_step_neither_loses_nor_doubles(store: MemoryStore, point: str) -> None:
    cluster = MetadataRows(store)
    cluster.decide(0, 5)
    before = rows_at(store)

    def at(step: str) -> None:
        if step == point:
            raise ProcessDied

    with pytest.raises(ProcessDied):
        merge(store, at)
    assert rows_at(store) == before
    assert state(MetadataRows(store).image) == state(cluster.image)
    merge(store)
    assert rows_at(store) == before and len(files_at(log_of(store))) == 1


def test_the_worker_merges_where_it_makes_rows(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    cluster = MetadataRows(
        store, lake_maintenance_interval_ms=0, lake_maintenance_min_files=FILES_MIN
    )
    cluster.decide(0, 5)
    before = rows_at(store)
    cluster.worker.maintain(cluster.maintenance)
    assert len(files_at(log_of(store))) == 5, "a young table at the start of a worker"
    cluster.worker.maintain(cluster.maintenance)
    assert len(files_at(log_of(store))) == 1 and rows_at(store) == before
    cluster.decide(5, 6)
    # What was replaced goes with VACUUM, a week later.
    write_checkpoint(log_of(store))
    now_ms = SystemLogClock().wall_ms()
    for entry in store.list(CLUSTER_METADATA):
        os.utime(store.uri(entry.path), ((now_ms - 8 * DAY_MS) // 1000,) * 2)
    assert len(vacuum(log_of(store), now_ms=now_ms)) == 5
    assert len(rows_at(store)) == 1 + 2 * 6
    assert state(MetadataRows(store).image) == state(cluster.image)


def test_a_worker_that_lives_for_one_commit_cleans_the_log_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot from which a starting broker reads was made in the life of another."""
    store = FolderStore(str(tmp_path))
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", 5)
    MetadataRows(store).decide(0, 4)
    checkpoint = write_checkpoint(log_of(store))
    MetadataRows(store).decide(4, 10)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", 1000)
    cluster = MetadataRows(store, lake_checkpoint_interval=1, lake_maintenance_interval_ms=-1)
    cluster.decide(10, 11)
    cluster.worker.maintain(cluster.maintenance)
    commits = log_of(store).listing().commits
    assert commits == list(range(checkpoint, log_of(store).latest_version() + 1))
    assert state(MetadataRows(store).image) == state(cluster.image)
    assert len(rows_at(store)) > 2 * 11


@pytest.mark.parametrize("interval", [3, 1000])
def test_what_a_starting_broker_reads_stays_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    """An old checkpoint has the rows; the state is in the commits from the last snapshot on, or from the first."""
    store = FolderStore(str(tmp_path))
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", interval)
    MetadataRows(store).decide(0, 4)
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", 1000)
    MetadataRows(store).decide(4, 5)
    checkpoint = write_checkpoint(log_of(store))
    assert -1 <= MetadataRows(store).log.last_snapshot_version < checkpoint
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    cluster = MetadataRows(store, lake_checkpoint_interval=1, lake_maintenance_interval_ms=-1)
    cluster.decide(5, 6)
    cluster.worker.maintain(cluster.maintenance)
    assert log_of(store).listing().commits == list(range(log_of(store).latest_version() + 1))
    assert state(MetadataRows(store).image) == state(cluster.image)


@pytest.mark.parametrize("failure", [StorageError, RuntimeError])
def test_a_deletion_that_cannot_be_carried_out_for_a_week_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    """What has no rows yet stays in the log, also where starting brokers begin behind it."""
    store = FolderStore(str(tmp_path))
    MetadataRows(store).decide(0, 2)

    def fail(topic: str, topic_id: bytes) -> None:
        raise failure("not now")

    cluster = MetadataRows(store, lake_checkpoint_interval=1, lake_maintenance_interval_ms=-1)
    monkeypatch.setattr(metadata_log, "SNAPSHOT_INTERVAL", 2)
    cluster.worker.delete_topic = fail
    for number in range(2, 8):
        cluster.commit(number)
        with pytest.raises(failure):
            cluster.worker.materialise(cluster.image.version)
    write_checkpoint(log_of(store))
    cluster.commit(8)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    with pytest.raises(failure):
        cluster.worker.materialise(cluster.image.version)
    cluster.worker.maintain(cluster.maintenance)
    later = MetadataRows(store)
    later.worker.materialise(later.image.version)
    assert sorted({*later.deleted}) == [bytes([number]) * 16 for number in range(2, 9)]


@pytest.mark.parametrize("stamp_ms", [actions.NEVER_EXPIRES_MS, 1_000])
def test_rows_come_once_though_another_engine_forgot_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp_ms: int
) -> None:
    """`delta.setTransactionRetentionDuration` takes numbers out of checkpoints; those of before carry a time."""
    monkeypatch.setattr(actions, "NEVER_EXPIRES_MS", stamp_ms)
    store = FolderStore(str(tmp_path))
    cluster = MetadataRows(store)
    cluster.decide(0, 3)
    before = rows_at(store)
    table = DeltaTable(store.uri(CLUSTER_METADATA))
    table.alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 seconds"}, raise_if_not_exists=False
    )
    DeltaTable(store.uri(CLUSTER_METADATA)).create_checkpoint()
    forgot = TableSnapshot(log_of(store))
    forgot.read()
    assert materialise.APP_ID in forgot.txns, (
        "a checkpoint that may have forgotten numbers is passed over"
    )
    again = MetadataRows(store)
    assert rows_at(store) == before
    again.decide(3, 5)
    rows = rows_at(store)
    assert len(rows) == len(before) + 2 * 2 and before.items() <= rows.items()
    assert [*dict.fromkeys(again.deleted)] == [bytes([number]) * 16 for number in (3, 4)]
