"""Upkeep: checkpoints that are proven before anything goes, clean-up, vacuum."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from broker.worker.maintenance import TableMaintenance
from broker.worker.orphans import Orphans, lost_residue
from kafka_ds.delta import maintenance
from kafka_ds.delta.actions import add_action, remove_action
from kafka_ds.delta.commit import (
    FILES_AGE_MS_MAX,
    FilesMayBeGone,
    PlainChange,
    vacuumed_age_ms,
)
from kafka_ds.delta.log import DeltaLog, SystemLogClock
from kafka_ds.delta.maintenance import (
    BadCheckpoint,
    clean_log,
    drop_torn_checkpoints,
    maintain,
    vacuum,
    write_checkpoint,
)
from kafka_ds.delta.maintenance import MaintenanceResult as Upkept
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import StoreEntry
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of, write_file
from tests.fakes.lake_rows import batch_of as rows
from tests.fakes.store import FolderStore

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path):
    return LocalStore(str(tmp_path))


@pytest.fixture
def table(store):
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    for number in range(4):
        commit(table, copy_of(table, 0, number * 10, number * 10 + 9, attempt=str(number)))
    return table


def now_ms():
    return SystemLogClock().wall_ms()


def grow_old(tmp_path, days, *, pattern="*"):
    """Set back the times of all files that are there."""
    for path in (tmp_path / "topics").rglob(pattern):
        if path.is_file():
            status = path.stat()
            seconds = status.st_mtime - days * 86_400
            os.utime(path, (seconds, seconds))


def log_names(table):
    return sorted(
        entry.path.rpartition("/")[2]
        for entry in table.log.store.list(f"{table.folder}/_delta_log")
    )


def test_a_checkpoint_is_written_when_it_is_due(table):
    assert maintain(table.log, now_ms=now_ms(), interval=10).checkpoint_version is None
    done = maintain(table.log, now_ms=now_ms(), interval=3)
    assert (done.checkpoint_version, done.log_files_deleted) == (4, 0)
    assert maintain(table.log, now_ms=now_ms(), interval=3).checkpoint_version is None
    assert table.log.last_checkpoint() == 4


def test_checksums_that_spark_left_beside_its_checkpoint_go(table):
    """In a folder Hadoop puts them there: of another's content they make Spark wait, and complain."""
    store = table.log.store
    version = table.log.latest_version()
    names = ("_last_checkpoint", f"{version:020d}.checkpoint.parquet", f"{version:020d}.json")
    paths = {name: table.log.path(f"_delta_log/.{name}.crc") for name in names}
    for path in paths.values():
        store.put_durable(path, b"crc")
    assert write_checkpoint(table.log) == version
    assert [name for name, path in paths.items() if store.size(path)] == [f"{version:020d}.json"]


def test_a_checkpoint_that_is_not_what_it_should_be_is_taken_away(table, monkeypatch):
    monkeypatch.setattr(maintenance, "checkpoint_holds", lambda *arguments: False)
    with pytest.raises(BadCheckpoint, match="topics/orders: the checkpoint of version 4"):
        write_checkpoint(table.log)
    assert table.log.listing().checkpoints == {}
    assert table.log.last_checkpoint() is None
    assert TopicSnapshot.load(table.log.store, "orders").highest_offset_in_remote_storage(0) == 39


def test_the_log_is_cleaned_below_a_checkpoint_that_is_old_itself(table, tmp_path):
    write_checkpoint(table.log)
    assert clean_log(table.log, now_ms=now_ms()) == 0
    grow_old(tmp_path, 8)
    commit(table, copy_of(table, 0, 40, 49))
    assert clean_log(table.log, now_ms=now_ms(), keep_from=3) == 0
    assert clean_log(table.log, now_ms=now_ms(), retention_ms=9 * DAY_MS) == 0
    assert clean_log(table.log, now_ms=now_ms()) == 4
    assert log_names(table) == [
        "00000000000000000004.checkpoint.parquet",
        "00000000000000000004.json",
        "00000000000000000005.json",
        "_last_checkpoint",
    ]
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert (fresh.version, fresh.highest_offset_in_remote_storage(0), len(fresh.files)) == (
        5,
        49,
        5,
    )


def test_a_fresh_checkpoint_lets_nothing_go(table, tmp_path):
    """States since the retention must stay readable: they need the commits before the checkpoint."""
    grow_old(tmp_path, 8)
    write_checkpoint(table.log)
    assert clean_log(table.log, now_ms=now_ms()) == 0


def test_nothing_goes_for_a_checkpoint_that_cannot_be_read(table, tmp_path):
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[4]
    table.log.store.put_durable(path, b"torn")
    grow_old(tmp_path, 8)
    commit(table, copy_of(table, 0, 40, 49))
    with pytest.raises(ValueError):
        clean_log(table.log, now_ms=now_ms(), retention_ms=8 * DAY_MS)
    assert table.log.read_version(0) is not None


def test_a_retention_below_a_week_is_a_week(table, tmp_path):
    write_checkpoint(table.log)
    grow_old(tmp_path, 2)
    for number in range(4, 7):
        commit(table, copy_of(table, 0, number * 10, number * 10 + 9, attempt=str(number)))
    write_checkpoint(table.log)
    grow_old(tmp_path, 6)
    commit(table, copy_of(table, 0, 70, 79))
    # The first checkpoint is eight days old, and the second one six.
    assert clean_log(table.log, now_ms=now_ms(), retention_ms=1) == 4
    assert table.log.listing().commits == [4, 5, 6, 7, 8]


def test_a_clock_that_is_ahead_makes_nothing_old(littered):
    """Five minutes old by the store, and more than a week by the broker that takes out orphans."""
    ahead_ms = now_ms() + 8 * DAY_MS
    assert names(vacuum(littered.log, now_ms=ahead_ms)) == ORPHANS
    assert littered.log.store.size("topics/orders/partition=0/00000000000000000200-young.parquet")
    write_checkpoint(littered.log)
    assert clean_log(littered.log, now_ms=ahead_ms) == 0


def test_a_checkpoint_is_durable_before_anything_that_it_replaces_goes(table, tmp_path):
    write_checkpoint(table.log)
    grow_old(tmp_path, 8)
    for number in range(4, 7):
        commit(table, copy_of(table, 0, number * 10, number * 10 + 9, attempt=str(number)))
    store, done = table.log.store, []
    for name in ("make_durable", "delete"):
        called = getattr(store, name)

        def note(path, name=name, called=called):
            done.append((name, path.rpartition("/")[2]))
            called(path)

        setattr(store, name, note)
    assert maintain(table.log, now_ms=now_ms(), interval=3) == Upkept(
        checkpoint_version=7, log_files_deleted=4
    )
    checkpoint = "00000000000000000007.checkpoint.parquet"
    unlinked = [(kind, each) for kind, each in done if not each.endswith(".crc")]
    assert unlinked == [
        ("make_durable", checkpoint),
        ("make_durable", "_last_checkpoint"),
        *(("delete", f"{version:020d}.json") for version in range(4)),
    ]


def list_features(table, *features):
    """Another engine lists them in the table's protocol."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    change = PlainChange("UPGRADE PROTOCOL", actions=[{"protocol": protocol}])
    table.log.commit(table.log.begin(change), read_version=table.log.latest_version())


@pytest.mark.parametrize(
    ("feature", "deleted"), [("checkpointProtection", 5), ("keepsEverything", 0)]
)
def test_the_log_of_a_table_with_features_that_are_not_known_is_left_as_it_is(
    table, tmp_path, feature, deleted
):
    """A clean-up that makes no checkpoint, and takes none that is newer, is free under `checkpointProtection`."""
    list_features(table, feature)
    write_checkpoint(table.log)
    grow_old(tmp_path, 8)
    commit_alone(table)
    assert clean_log(table.log, now_ms=now_ms()) == deleted


def commit_alone(table):
    """A version that is young, whatever the table's features."""
    change = PlainChange("NOTHING")
    table.log.commit(table.log.begin(change), read_version=table.log.latest_version())


def test_a_checkpoint_whose_files_are_in_sidecars_is_neither_used_nor_taken_for_torn(table):
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[4]
    rows = pq.read_table(pa.BufferReader(table.log.store.read(path)))
    sidecars = pa.array([{"path": "x.parquet"}, *[None] * (len(rows) - 1)])
    rows = rows.drop(["add", "sidecar"]).append_column("sidecar", sidecars)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    table.log.store.put_durable(path, sink.getvalue().to_pybytes())
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert (fresh.version, len(fresh.files)) == (4, 4), "as the log says"
    assert drop_torn_checkpoints(table.log) == []


def test_a_torn_checkpoint_is_dropped_where_the_log_goes_on_without(table):
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[4]
    good = table.log.store.read(path)
    table.log.store.put_durable(path, good[:50])
    assert drop_torn_checkpoints(table.log) == [4]
    assert table.log.last_checkpoint() is None
    write_checkpoint(table.log)
    assert drop_torn_checkpoints(table.log) == []
    table.log.store.put_durable(path, b"")
    table.log.store.delete(table.log.path(commit_file(2)))
    assert drop_torn_checkpoints(table.log) == [], "without version 2 it is all that there is"


@pytest.mark.parametrize("left", [0, 50])
def test_a_torn_checkpoint_does_not_stop_the_upkeep(table, left):
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[4]
    table.log.store.put_durable(path, table.log.store.read(path)[:left])
    for number in range(4, 6):
        commit(table, copy_of(table, 0, number * 10, number * 10 + 9, attempt=str(number)))
    assert maintain(table.log, now_ms=now_ms(), interval=2).checkpoint_version == 6
    assert list(table.log.listing().checkpoints) == [6]
    assert DeltaTable(table.log.store.uri(table.folder)).version() == 6


def test_a_torn_checkpoint_goes_as_soon_as_a_worker_meets_the_table(table):
    write_checkpoint(table.log)
    (path,) = table.log.listing().checkpoints[4]
    table.log.store.put_durable(path, b"")
    upkeep = TableMaintenance(table.log.store, CrashPoints(), SystemLogClock(), interval=100)
    upkeep.look_after(table.folder, 4)
    assert table.log.listing().checkpoints == {}
    assert DeltaTable(table.log.store.uri(table.folder)).version() == 4


def test_looking_whether_a_table_needs_upkeep_asks_nothing_of_the_store(table):
    store = FolderStore(table.log.store.root)
    upkeep = TableMaintenance(store, CrashPoints(), SystemLogClock(), interval=3)
    upkeep.look_after(table.folder, 2)
    store.calls.clear()
    upkeep.look_after(table.folder, 2)
    assert store.calls == []
    upkeep.look_after(table.folder, 3)
    assert list(table.log.listing().checkpoints) == [4], "as of the newest version"
    store.calls.clear()
    upkeep.look_after(table.folder, 6)
    assert store.calls == []


def test_a_checkpoint_that_another_has_made_puts_ours_off(table):
    store = FolderStore(table.log.store.root)
    upkeep = TableMaintenance(store, CrashPoints(), SystemLogClock(), interval=3)
    upkeep.look_after(table.folder, 2)
    maintain(table.log, now_ms=now_ms(), interval=2)
    upkeep.look_after(table.folder, 4)
    store.calls.clear()
    upkeep.look_after(table.folder, 6)
    assert store.calls == []


@pytest.fixture
def littered(table, tmp_path):
    """A table with an orphan, a torn temporary file, residue, a removed file; all eight days old."""
    write_file(table, 0, [rows(range(100, 110))], attempt="orphan")
    store = table.log.store
    store.put_durable("topics/orders/partition=0/.x.parquet.0123.tmp", b"torn")
    store.put_durable("topics/orders/_delta_log/.9.json.0123.tmp", b"torn")
    for name in ("live", "dead"):
        store.put_durable(f"topics/orders/_residue/partition=0/{name}.residue", b"x")
    store.put_durable("topics/orders/_other/x", b"x")
    grow_old(tmp_path, 8)
    (entry,) = table.snapshot.index.find(0, 0, 9)
    gone = remove_action(path=entry.action_path, partition_values={}, size=1, deleted_ms=now_ms())
    log = table.log
    attempt = log.begin(maintenance.PlainChange("DELETE", actions=[gone]))
    log.commit(attempt, read_version=table.snapshot.version)
    write_file(table, 0, [rows(range(200, 210))], attempt="young")
    return table


ORPHANS = [
    "_delta_log/.9.json.0123.tmp",
    "partition=0/.x.parquet.0123.tmp",
    "partition=0/00000000000000000100-orphan.parquet",
]


def names(paths):
    return sorted(path.removeprefix("topics/orders/") for path in paths)


def test_a_vacuum_takes_old_orphans_alone(littered):
    log = littered.log
    before = log.latest_version()
    assert names(vacuum(log, now_ms=now_ms(), dry_run=True)) == ORPHANS
    assert log.latest_version() == before
    assert names(vacuum(log, now_ms=now_ms())) == ORPHANS
    left = names(entry.path for entry in log.store.list("topics/orders/partition=0"))
    assert "partition=0/00000000000000000000-0.parquet" in left, "an older version needs it"
    assert "partition=0/00000000000000000200-young.parquet" in left
    assert log.read_version(before + 1)[0]["commitInfo"]["operation"] == "VACUUM START"
    assert vacuum(log, now_ms=now_ms()) == []
    assert log.latest_version() == before + 1


def test_nothing_is_vacuumed_where_a_feature_may_need_it(littered):
    """vacuumProtocolCheck: who vacuums looks at the writer features first."""
    list_features(littered, "keepsEverything")
    assert vacuum(littered.log, now_ms=now_ms()) == []


def test_deletion_vectors_are_left_where_they_are(littered, tmp_path):
    """Which files have them is said in the log, and not looked into here."""
    littered.log.store.put_durable("topics/orders/deletion_vector_1.bin", b"1")
    grow_old(tmp_path, 30, pattern="deletion_vector_*")
    assert names(vacuum(littered.log, now_ms=now_ms())) == ORPHANS


def test_what_a_slow_writer_commits_before_the_announcement_is_no_orphan(littered, monkeypatch):
    log, slow = littered.log, DeltaLog(littered.log.store, littered.folder)
    path = "partition=0/00000000000000000100-orphan.parquet"
    commit = DeltaLog.commit

    def come_first(self, attempt, *, read_version):
        if self is log:
            add = add_action(
                path=path, partition_values={"partition": "0"}, size=1, modified_ms=0, stats="{}"
            )
            commit(
                slow,
                slow.begin(maintenance.PlainChange("SLOW", actions=[add])),
                read_version=read_version,
            )
        return commit(self, attempt, read_version=read_version)

    monkeypatch.setattr(DeltaLog, "commit", come_first)
    assert names(vacuum(log, now_ms=now_ms())) == [each for each in ORPHANS if each != path]
    assert log.store.size(f"topics/orders/{path}")


def test_residue_goes_where_it_is_known_to_be_dead(littered):
    lost = {"topics/orders/_residue/partition=0/dead.residue"}
    found = vacuum(littered.log, now_ms=now_ms(), lost=lost)
    assert names(found) == sorted([*ORPHANS, "_residue/partition=0/dead.residue"])
    assert littered.log.store.size("topics/orders/_other/x") == 1


def test_what_older_versions_need_goes_after_the_horizon(littered, tmp_path):
    grow_old(tmp_path, 8)
    found = names(vacuum(littered.log, now_ms=now_ms()))
    assert "partition=0/00000000000000000000-0.parquet" in found
    fresh = TopicSnapshot.load(littered.log.store, "orders")
    assert [each.min_offset for each in fresh.index.files(0)] == [10, 20, 30]
    assert all(littered.log.store.size(path) for path in fresh.files)


@pytest.mark.parametrize(
    "name", ["delta.logRetentionDuration", "delta.deletedFileRetentionDuration"]
)
def test_files_are_kept_as_long_as_the_table_says(littered, tmp_path, name):
    """`lake.log.retention.ms` is how long the history is kept: its versions can be read."""
    log, snapshot = littered.log, littered.snapshot
    snapshot.refresh()
    configuration = {**snapshot.configuration, name: "interval 30 days"}
    metadata = {"metaData": {**snapshot.metadata, "configuration": configuration}}
    longer = log.begin(maintenance.PlainChange("SET TBLPROPERTIES", actions=[metadata]))
    log.commit(longer, read_version=snapshot.version)
    grow_old(tmp_path, 20)
    assert vacuum(log, now_ms=now_ms()) == []
    before = TopicSnapshot.load(log.store, "orders", 4)
    assert [each.min_offset for each in before.index.files(0)] == [0, 10, 20, 30]
    assert all(log.store.size(path) for path in before.files)
    grow_old(tmp_path, 11)
    assert "partition=0/00000000000000000000-0.parquet" in names(vacuum(log, now_ms=now_ms()))


def test_a_horizon_below_a_day_is_refused(table):
    with pytest.raises(ValueError, match="older_than_ms=1000"):
        vacuum(table.log, now_ms=now_ms(), older_than_ms=1000)


def test_a_writer_that_slept_through_a_vacuum_commits_no_file_that_may_be_gone(littered):
    part = copy_of(littered, 0, 40, 49, attempt="slow")
    begun_ms = littered.begin_ms() - 2 * 3_600_000
    stale = TopicTable(littered.log.store, "orders")
    stale.open(TOPIC_ID)
    vacuum(littered.log, now_ms=now_ms())
    refresh = stale.snapshot.refresh
    stale.snapshot.refresh = lambda: False
    with pytest.raises(FilesMayBeGone):
        stale.commit(
            maintenance_intent(part),
            begun_ms=begun_ms,
        )
    stale.snapshot.refresh = refresh


def test_a_writer_that_reads_of_a_vacuum_before_its_commit_commits_no_file_that_may_be_gone(
    littered,
):
    """As it always does: a commit begins with what has come since."""
    part = copy_of(littered, 0, 40, 49, attempt="slow")
    slept = TopicTable(littered.log.store, "orders")
    slept.open(TOPIC_ID)
    begun_ms = slept.begin_ms()
    slept.log.clock = Later(2 * 3_600_000)
    assert vacuum(littered.log, now_ms=now_ms())
    with pytest.raises(FilesMayBeGone):
        slept.commit(maintenance_intent(part), begun_ms=begun_ms)
    # What has been written since is there.
    slept.commit(maintenance_intent(part), begun_ms=slept.begin_ms())


def test_a_writer_that_slept_past_the_log_commits_no_file_that_may_be_gone(littered):
    """Which versions came meanwhile it never reads: they may have been cleaned up."""
    part = copy_of(littered, 0, 40, 49, attempt="slow")
    slept = TopicTable(littered.log.store, "orders")
    slept.open(TOPIC_ID)
    begun_ms = slept.begin_ms()
    slept.log.clock = Later(8 * DAY_MS)
    with pytest.raises(FilesMayBeGone):
        slept.commit(maintenance_intent(part), begun_ms=begun_ms)


@pytest.mark.parametrize("is_between", [False, True])
def test_an_engine_that_vacuums_what_is_in_flight_ends_the_attempt(table, is_between):
    """`VACUUM … RETAIN 0 HOURS`: it announces what it deletes, however young that is."""
    begun_ms = table.begin_ms()
    part = copy_of(table, 0, 40, 49, attempt="second")
    path = table.log.store.local_path(table.folder)
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not any("second" in each.path for each in table.log.store.list(table.folder))
    refresh = table.snapshot.refresh
    if is_between:
        # The attempt itself meets the versions.
        table.snapshot.refresh = lambda: False
    with pytest.raises(FilesMayBeGone):
        table.commit(maintenance_intent(part), begun_ms=begun_ms)
    table.snapshot.refresh = refresh
    table.read()
    commit(table, copy_of(table, 0, 40, 49, attempt="third"))
    assert table.snapshot.highest_offset_in_remote_storage(0) == 49


@pytest.mark.parametrize("is_between", [False, True])
def test_a_commit_without_files_does_not_mind_what_is_vacuumed(table, is_between):
    """Whoever moves a log start would take it for another's, who has moved it further."""
    begun_ms = table.begin_ms()
    path = table.log.store.local_path(table.folder)
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    if is_between:
        table.snapshot.refresh = lambda: False
    part = PartitionIntent(partition=0, leader_epoch=0, log_start_offset=15)
    table.commit(maintenance_intent(part), begun_ms=begun_ms)
    assert TopicSnapshot.load(table.log.store, "orders").log_start(0) == 15


@pytest.mark.parametrize(
    ("parameters", "age_ms"),
    [
        ({"specifiedRetentionMillis": "0", "defaultRetentionMillis": "604800000"}, 0),
        ({"specifiedRetentionMillis": 60_000}, 60_000),
        ({"defaultRetentionMillis": "1000"}, 1000),
        ({"specifiedRetentionMillis": None, "defaultRetentionMillis": "1000"}, 1000),
        ({"specifiedRetentionMillis": "604800000"}, FILES_AGE_MS_MAX),
        ({"defaultRetentionMillis": "soon"}, FILES_AGE_MS_MAX),
        ({"status": "COMPLETED"}, FILES_AGE_MS_MAX),
        (None, FILES_AGE_MS_MAX),
    ],
)
def test_the_age_from_which_on_files_go_is_the_one_that_is_announced(parameters, age_ms):
    info = {"operation": "VACUUM START", "operationParameters": parameters}
    assert vacuumed_age_ms([{"commitInfo": info}]) == age_ms
    assert vacuumed_age_ms([{"commitInfo": {**info, "operation": "OPTIMIZE"}}]) is None


def test_a_slow_writer_commits_where_nobody_vacuumed(littered):
    part = copy_of(littered, 0, 40, 49, attempt="slow")
    slow = TopicTable(littered.log.store, "orders")
    slow.open(TOPIC_ID)
    begun_ms = slow.begin_ms()
    slow.log.clock = Later(2 * 3_600_000)
    assert slow.commit(maintenance_intent(part), begun_ms=begun_ms).version > 0


class Later(SystemLogClock):
    """The machine's clocks after a sleep."""

    def __init__(self, slept_ms):
        super().__init__()
        self._slept_ms = slept_ms

    def boot_ms(self):
        return super().boot_ms() + self._slept_ms


def maintenance_intent(part):
    return Intent(operation="COPY", topic_id=TOPIC_ID, partitions=(part,))


def test_a_file_named_by_an_absolute_path_is_alive(table, tmp_path):
    write_file(table, 1, [rows(range(5))], attempt="abs")
    path = tmp_path / "topics/orders/partition=1/00000000000000000000-abs.parquet"
    add = {
        "add": {
            "path": str(path),
            "partitionValues": {"partition": "1"},
            "size": 1,
            "modificationTime": 1,
            "dataChange": True,
        }
    }
    log = DeltaLog(table.log.store, table.folder)
    log.commit(
        log.begin(maintenance.PlainChange("OTHER", actions=[add])),
        read_version=log.latest_version(),
    )
    grow_old(tmp_path, 8)
    assert vacuum(log, now_ms=now_ms()) == []


def test_orphans_are_looked_for_once_a_day_where_a_checkpoint_was_made(littered):
    store, clock = littered.log.store, SystemLogClock()
    orphans = Orphans(store, clock)
    upkeep = TableMaintenance(
        store, CrashPoints(), clock, interval=3, checkpointed=orphans.are_due_in
    )
    assert orphans.vacuum_due() == []
    upkeep.look_after(littered.folder, littered.snapshot.version)
    assert names(orphans.vacuum_due()) == ORPHANS, "in no thread that anybody waits for"
    orphans.are_due_in(littered.folder)
    write_file(littered, 0, [rows(range(300, 310))], attempt="more")
    assert orphans.vacuum_due() == []


def entry(name, days_old):
    return StoreEntry(path=f"t/_residue/partition=0/{name}", size=1, modified_ms=-days_old * DAY_MS)


def test_residue_that_a_finished_segment_names_stays_and_what_lost_to_it_goes():
    start, other = f"{0:020d}", f"{50:020d}"
    entries = [
        entry(f"{start}-lost", 9),
        entry(f"{start}-won", 9),
        entry(f"{start}-young", 1),
        entry(f"{other}-alone", 9),
        entry("somebody's", 9),
    ]
    won = {f"t/_residue/partition=0/{start}-won"}
    found = lost_residue(entries, older_than_ms=-7 * DAY_MS, named=lambda: won)
    assert names(found) == [f"t/_residue/partition=0/{start}-lost"]
    # Two of which none is known to have won: either may yet be named by a broker that comes back.
    assert lost_residue(entries, older_than_ms=-7 * DAY_MS, named=set) == set()


def test_nobody_reads_the_segments_where_no_attempt_has_lost():
    entries = [entry(f"{start:020d}-a", 9) for start in range(3)]
    assert lost_residue(entries, older_than_ms=0, named=lambda: pytest.fail("read")) == set()
