"""What is found to be missing in the store, what is written again from the local log, and what is left as it is."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.worker import service
from broker.worker.delta.check import StoreCheckResult
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import StorageError
from broker.worker.rpc import (
    FINISHED,
    Check,
    CheckQuestion,
    CopyRequest,
    LogSegmentData,
    StoreState,
)
from kafka_ds.delta.actions import encode_actions
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.process.crash_points import REPAIR_POINTS, CrashPoints
from kafka_ds.records.batch import build_batch
from kafka_ds.topic.files.parquet import FileReader, write_rows
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.fakes.store import MemoryStore
from tests.integration.dying_worker import DiesAt, die_copying, optimize_and_vacuum
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    changed,
    copy_range,
    copy_request,
    records,
    segment,
    write_segment,
)
from tests.integration.worker_bench import TABLE, WorkerBench, data_files, put_version

Source = Callable[..., LogSegmentData]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    def made(start: int, end: int) -> LogSegmentData:
        path = segment(tmp_path / f"{start}-{end}.log", start, end - start + 1)
        return copy_range(path, start, end)

    return made


def look(worker: WorkerBench, start: int = 0) -> StoreCheckResult:
    worker.copier.recover()
    worker.storage.check.forget(TOPIC)
    segments = worker.metadata.list_segments(TOPIC_ID, 0)
    return worker.storage.check.look(PARTITION, start, segments)


def repair(
    worker: WorkerBench, *sources: LogSegmentData, epoch: int = 3, start: int = 0
) -> StoreCheckResult:
    """As the leader does; what is missing after that."""
    found = look(worker, start)
    given = {(each.read_from, each.read_to): sources for each in found.missing}
    worker.storage.check.repair(PARTITION, leader_epoch=epoch, look=found, sources=given)
    return look(worker, start)


def spans(found: StoreCheckResult) -> list[tuple[int, int]]:
    return [(each.start_offset, each.end_offset) for each in found.missing]


def residue_files(store: MemoryStore) -> list[str]:
    return sorted(each for each in store.objects if each.endswith(".residue"))


def operations(store: MemoryStore) -> list[str]:
    log = DeltaLog(store, TABLE, clock=store.clock)
    versions = [log.read_version(each) or [] for each in range(log.latest_version() + 1)]
    return [
        next(a["commitInfo"]["operation"] for a in each if "commitInfo" in a) for each in versions
    ]


def pack(store: MemoryStore) -> None:
    """Another engine's OPTIMIZE: one file with the rows of all those that the table names."""
    entries = TopicSnapshot.load(store, TOPIC).files.values()
    reader = FileReader(store)
    batches = [one for each in entries for one in reader.open(each.path).read().to_batches()]
    written = write_rows(store, f"{TABLE}/partition=0/packed.parquet", batches)
    assert written is not None
    fixed = {"partitionValues": {"partition": "0"}, "dataChange": False, "deletionTimestamp": 0}
    removes = [{"remove": {"path": e.action_path, "size": e.size, **fixed}} for e in entries]
    put_version(
        store,
        {"commitInfo": {"operation": "OPTIMIZE"}},
        *removes,
        written.add(TABLE, 0, now_ms=0, data_change=False),
    )


@pytest.mark.parametrize("damage", ["gone", "empty", "short"])
def test_a_missing_file_is_written_again(store: MemoryStore, source: Source, damage: str) -> None:
    WorkerBench(store).copy(source(0, 9), source(10, 19))
    (path,) = data_files(store)
    if damage == "gone":
        del store.objects[path]
    else:
        store.objects[path] = b"" if damage == "empty" else store.objects[path][:-1]
    worker = WorkerBench(store, node_id=2)
    (found,) = look(worker).missing
    assert (found.start_offset, found.end_offset, found.what) == (0, 19, path)
    assert repair(worker, source(0, 9), source(10, 19)).missing == []
    for each in (worker, WorkerBench(store)):
        assert each.offsets() == list(range(20))
    actions = DeltaLog(store, TABLE, clock=store.clock).read_version(2)
    assert actions is not None
    changes = [
        each[kind]["dataChange"] for each in actions for kind in ("add", "remove") if kind in each
    ]
    assert changes == [False, False], "readers that follow the table see no row twice"
    assert worker.copy(source(20, 29))[0].outcome == FINISHED


def test_what_lies_below_the_local_log_is_not_looked_for(
    store: MemoryStore, source: Source
) -> None:
    worker = WorkerBench(store)
    for start in (0, 10, 20):
        worker.copy(source(start, start + 9))
    for path in data_files(store)[:2]:
        del store.objects[path]
    assert spans(look(worker)) == [(0, 9), (10, 19)]
    assert spans(look(worker, 10)) == [(10, 19)]
    assert spans(look(worker, 20)) == []
    worker.storage.set_log_start(PARTITION, leader_epoch=3, offset=10)
    assert spans(look(worker)) == [(10, 19)]


def test_files_that_others_replaced_are_not_missing(store: MemoryStore, source: Source) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    optimize_and_vacuum(store)
    assert look(worker).missing == []
    # Their file counts as ours do.
    (path,) = data_files(store)
    body = store.objects.pop(path)
    assert [each.what for each in look(worker).missing] == [path]
    assert repair(worker, source(0, 9)).missing == []
    assert worker.offsets() == list(range(10))
    store.objects[path] = body
    assert look(worker).missing == []


def erase(store: MemoryStore, gone: range) -> None:
    """Another engine's DELETE: a file with the rows that are left, and the old one vacuumed."""
    (path,) = data_files(store)
    log = DeltaLog(store, TABLE, clock=store.clock)
    adds = [
        each["add"] for _, actions in log.versions_after(-1) for each in actions if "add" in each
    ]
    add = adds[-1]
    table = FileReader(store).open(path).read()
    kept = table.filter([each not in gone for each in table.column("offset").to_pylist()])
    remove = {name: add[name] for name in ("path", "partitionValues", "size")}
    actions = [
        {"commitInfo": {"operation": "DELETE"}},
        {"remove": {**remove, "dataChange": True, "deletionTimestamp": 0}},
    ]
    if kept.num_rows:
        written = write_rows(store, f"{TABLE}/partition=0/part-0.parquet", kept.to_batches())
        assert written is not None
        actions.append(written.add(TABLE, 0, now_ms=0))
    put_version(store, *actions)
    del store.objects[path]


def test_erased_rows_do_not_come_back(
    store: MemoryStore, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    erase(store, range(3, 5))
    assert look(worker).missing == []
    (path,) = data_files(store)
    body = store.objects.pop(path)
    before = set(store.objects)
    assert spans(repair(worker, source(0, 9))) == [(0, 9)]
    assert set(store.objects) == before, "nothing is written"
    assert "offsets 0-9 cannot be rewritten: the local log has 10 of its 8 rows" in caplog.text
    store.objects[path] = body
    assert look(worker).missing == []
    assert worker.offsets() == [0, 1, 2, *range(5, 10)]


def test_a_range_of_which_everything_was_erased_is_not_missing(
    store: MemoryStore, source: Source
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    erase(store, range(10))
    assert look(worker).missing == []


def test_what_the_local_log_has_no_more_is_left_missing(store: MemoryStore, source: Source) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9), source(10, 19))
    (path,) = data_files(store)
    del store.objects[path]
    assert spans(repair(worker, source(10, 19))) == [(0, 19)]
    assert spans(repair(worker)) == [(0, 19)]
    gone = source(0, 9)
    Path(gone.path).unlink()
    assert spans(repair(worker, gone, source(10, 19))) == [(0, 19)]
    assert data_files(store) == []


def test_of_a_file_that_begins_below_the_log_start_the_rest_is_written(
    store: MemoryStore, source: Source
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9), source(10, 19))
    (path,) = data_files(store)
    worker.storage.set_log_start(PARTITION, leader_epoch=3, offset=12)
    del store.objects[path]
    assert spans(look(worker, 12)) == [(12, 19)]
    assert repair(worker, source(10, 19), start=12).missing == []
    assert TopicSnapshot.load(store, TOPIC).index.find(0, 0, 99)[0].min_offset == 12


@pytest.fixture
def begun(store: MemoryStore, tmp_path: Path) -> tuple[WorkerBench, LogSegmentData]:
    """A copied file with a gap, an aborted batch, that begins below the log start."""
    batches = [
        build_batch(records(0, 5), leader_epoch=3),
        build_batch(
            records(5, 5), leader_epoch=3, producer_id=7, producer_epoch=0, is_transactional=True
        ),
        build_batch(records(10, 10), leader_epoch=3),
    ]
    path = write_segment(tmp_path / "0.log", batches)
    whole = copy_range(path, 0, 19, aborted=[(7, 5, 9)])
    worker = WorkerBench(store)
    worker.copy(whole)
    worker.storage.set_log_start(PARTITION, leader_epoch=3, offset=12)
    return worker, whole


def test_of_a_copied_file_with_gaps_the_rest_is_written(
    store: MemoryStore, begun: tuple[WorkerBench, LogSegmentData]
) -> None:
    """How many of its rows lie below the log start nobody knows any more."""
    worker, whole = begun
    (path,) = data_files(store)
    del store.objects[path]
    assert spans(look(worker, 12)) == [(12, 19)]
    assert repair(worker, whole, start=12).missing == []
    (entry,) = TopicSnapshot.load(store, TOPIC).index.find(0, 0, 99)
    assert (entry.min_offset, entry.max_offset, entry.rows) == (12, 19, 8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (partial(changed, start_offset=13), "begins behind it"),
        (partial(changed, end_offset=18), "does not reach its end"),
        (partial(replace, may_have_gaps=True), "the log is compacted"),
    ],
)
def test_where_the_log_may_lack_records_no_file_with_gaps_is_written(
    store: MemoryStore,
    begun: tuple[WorkerBench, LogSegmentData],
    caplog: pytest.LogCaptureFixture,
    change: Callable[[LogSegmentData], LogSegmentData],
    why: str,
) -> None:
    worker, whole = begun
    (path,) = data_files(store)
    del store.objects[path]
    assert spans(repair(worker, change(whole), start=12)) == [(12, 19)]
    assert why in caplog.text
    assert data_files(store) == []


def test_of_a_file_with_gaps_that_others_wrote_nothing_is_written(
    store: MemoryStore, begun: tuple[WorkerBench, LogSegmentData]
) -> None:
    """A row may have been erased from it."""
    worker, whole = begun
    erase(store, range(15, 16))
    (path,) = data_files(store)
    del store.objects[path]
    assert spans(repair(worker, whole, start=12)) == [(12, 19)]
    assert data_files(store) == []


def test_what_has_become_damaged_is_not_taken_for_the_rest_of_a_file(
    store: MemoryStore, begun: tuple[WorkerBench, LogSegmentData], caplog: pytest.LogCaptureFixture
) -> None:
    worker, whole = begun
    (path,) = data_files(store)
    del store.objects[path]
    segment_file = Path(whole.path)
    body = bytearray(segment_file.read_bytes())
    body[-1] ^= 0xFF
    segment_file.write_bytes(body)
    assert spans(repair(worker, whole, start=12)) == [(12, 19)]
    assert "cannot be rewritten" in caplog.text


def test_a_file_may_end_within_a_batch(store: MemoryStore, tmp_path: Path) -> None:
    """A large copy is cut into files by rows."""
    path = write_segment(
        tmp_path / "0.log", [build_batch(records(0, 100, size=50_000), leader_epoch=3)]
    )
    whole = copy_range(path, 0, 99)
    worker = WorkerBench(store, lake_file_bytes=1)
    worker.copy(whole)
    files = data_files(store)
    for lost in files:
        body = store.objects.pop(lost)
        assert repair(worker, whole).missing == []
        assert worker.offsets() == list(range(100))
        store.objects[lost] = body


def test_a_missing_residue_file_is_written_again_under_its_name(
    store: MemoryStore, tmp_path: Path
) -> None:
    batches = [
        build_batch(records(0, 5), leader_epoch=3),
        build_batch(
            records(5, 5), leader_epoch=3, producer_id=7, producer_epoch=0, is_transactional=True
        ),
    ]
    path = write_segment(tmp_path / "0.log", batches)
    whole = copy_range(path, 0, 9, aborted=[(7, 5, 9)])
    WorkerBench(store).copy(whole)
    (name,) = residue_files(store)
    body = store.objects.pop(name)
    worker = WorkerBench(store, node_id=2)
    (found,) = look(worker).missing
    assert (found.start_offset, found.end_offset, found.what) == (0, 9, name)
    assert spans(repair(worker)) == [(0, 9)], "of which the local log has nothing"
    assert repair(worker, whole).missing == []
    assert store.objects[name] == body


def test_the_residue_of_a_dead_leader_s_last_range_is_looked_for(
    store: MemoryStore, source: Source
) -> None:
    """It was committed, and nobody has said that it is FINISHED."""
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    (name,) = residue_files(store)
    del store.objects[name]
    worker = WorkerBench(store, node_id=2)
    assert [each.what for each in look(worker).missing] == [name]
    assert repair(worker, source(0, 9)).missing == []


def test_a_hole_that_a_lost_commit_left_is_filled(store: MemoryStore, source: Source) -> None:
    """Its version was renamed over only when the next range was there."""
    lose_the_second_commit(store, source)
    later = WorkerBench(store, node_id=2)
    assert WorkerBench(store).offsets() == [*range(10), *range(20, 30)]
    assert spans(look(later)) == [(10, 19)]
    assert repair(later, source(10, 19)).missing == []
    for each in (later, WorkerBench(store)):
        assert each.offsets() == list(range(30))
        assert each.storage.state(PARTITION).highest_offset_in_remote_storage == 29
    assert operations(store)[-1] == "REPAIR"


def test_what_is_erased_of_a_repaired_range_does_not_come_back(
    store: MemoryStore, source: Source
) -> None:
    lose_the_second_commit(store, source)
    later = WorkerBench(store, node_id=2)
    assert repair(later, source(10, 19)).missing == []
    (entry,) = TopicSnapshot.load(store, TOPIC).index.find(0, 10, 19)
    fixed = {"partitionValues": {"partition": "0"}, "dataChange": True, "deletionTimestamp": 0}
    put_version(
        store,
        {"commitInfo": {"operation": "DELETE"}},
        {"remove": {"path": entry.action_path, "size": entry.size, **fixed}},
    )
    for each in (later, WorkerBench(store, node_id=3)):
        assert look(each).missing == []
        assert each.copy(source(0, 9), source(10, 19), source(20, 29))[0].outcome == FINISHED
        assert each.offsets() == [*range(10), *range(20, 30)]


@pytest.mark.parametrize(("log_start", "local_start"), [(13, 0), (13, 13), (0, 13)])
def test_of_a_lost_commit_that_begins_below_the_log_the_rest_is_filled(
    store: MemoryStore, source: Source, log_start: int, local_start: int
) -> None:
    lose_the_second_commit(store, source)
    later = WorkerBench(store, node_id=2)
    if log_start:
        later.storage.set_log_start(PARTITION, leader_epoch=3, offset=log_start)
    (found,) = look(later, local_start).missing
    assert (found.start_offset, found.end_offset, found.read_from) == (13, 19, 10)
    assert repair(later, source(10, 19), start=local_start).missing == []
    (entry,) = TopicSnapshot.load(store, TOPIC).index.find(0, 10, 19)
    assert (entry.min_offset, entry.max_offset, entry.rows) == (13, 19, 7)


def test_a_hole_inside_a_file_that_others_packed_is_filled(
    store: MemoryStore, source: Source
) -> None:
    lose_the_second_commit(store, source)
    pack(store)
    (entry,) = TopicSnapshot.load(store, TOPIC).files.values()
    assert (entry.min_offset, entry.max_offset, entry.rows) == (0, 29, 20)
    later = WorkerBench(store, node_id=2)
    assert spans(look(later)) == [(10, 19)]
    assert repair(later, source(10, 19)).missing == []
    for each in (later, WorkerBench(store)):
        assert each.offsets() == list(range(30))


Operations = Mapping[type, Callable[..., Any]]


@pytest.fixture
def worker(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Operations:
    """What a broker asks of a worker process."""
    monkeypatch.setattr(service, "open_lake", lambda uri, **_: store)
    settings = tier_settings(log_dirs=(), lake_copy_threads=1)
    return service.Service(settings, CrashPoints()).writing()


def check(worker: Operations, *commits: tuple[int, str]) -> StoreState:
    """All is looked at where no commits are named."""
    question = CheckQuestion(
        partition=PARTITION,
        leader_epoch=3,
        start_offset=0,
        is_whole=not commits,
        commits=commits,
    )
    (state,) = worker[Check](Check(partitions=[question]))
    assert isinstance(state, StoreState)
    return state


def take_away(store: MemoryStore, version: int) -> None:
    """Another writer renames its commit over one of ours."""
    body = encode_actions([{"commitInfo": {"operation": "DELETE"}}])
    store.objects[f"{TABLE}/{commit_file(version)}"] = body


def lose_the_second_commit(store: MemoryStore, source: Source) -> None:
    """Copy three ranges of ten records; another writer renames its commit over that of the second."""
    worker = WorkerBench(store)
    for start in (0, 10, 20):
        worker.copy(source(start, start + 9))
    take_away(store, 2)


def test_whoever_lets_segments_go_reads_their_commits_back(
    store: MemoryStore, source: Source, worker: Operations
) -> None:
    """Of what a leader has copied itself it asks for the commits alone."""
    commits = []
    for start in (0, 10):
        (done,) = worker[CopyRequest](copy_request([source(start, start + 9)])).partitions
        commits.append(done.commit)
    state = check(worker, *commits)
    assert (state.is_lost, state.highest_offset_in_remote_storage) == (False, 19)
    take_away(store, commits[-1][0])
    state = check(worker, *commits)
    assert (state.is_lost, state.highest_offset_in_remote_storage) == (True, 9)


def test_whoever_begins_to_lead_reads_the_table_anew(
    store: MemoryStore, source: Source, worker: Operations
) -> None:
    """What its worker has read for others may be another writer's by now."""
    for start in (0, 10):
        (done,) = worker[CopyRequest](copy_request([source(start, start + 9)])).partitions
    assert check(worker).highest_offset_in_remote_storage == 19
    take_away(store, done.commit[0])
    assert check(worker).highest_offset_in_remote_storage == 9


def test_whoever_begins_to_lead_settles_what_a_dead_leader_left(
    store: MemoryStore, source: Source, worker: Operations
) -> None:
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    assert WorkerBench(store).finished() == []
    assert check(worker).missing == ()
    assert WorkerBench(store).finished() == [(0, 9)]


def test_a_leader_that_was_overtaken_repairs_nothing(store: MemoryStore, source: Source) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    (path,) = data_files(store)
    del store.objects[path]
    WorkerBench(store, node_id=2).storage.fence(TOPIC, TOPIC_ID, {0: 9})
    with pytest.raises(StorageError, match="leader epoch 9 wrote"):
        repair(worker, source(0, 9))
    assert data_files(store) == []
    assert repair(worker, source(0, 9), epoch=9).missing == []


@pytest.mark.parametrize("point", REPAIR_POINTS)
def test_a_worker_that_dies_while_it_repairs_leaves_it_to_the_next(
    store: MemoryStore, source: Source, point: str
) -> None:
    WorkerBench(store).copy(source(0, 9))
    for path in (*data_files(store), *residue_files(store)):
        del store.objects[path]
    dying = WorkerBench(store, node_id=2)
    dying.storage = RemoteStorageManager(
        store, tier_settings(node_id=2), DiesAt(point), clock=store.clock
    )
    with pytest.raises(ProcessDied):
        repair(dying, source(0, 9))
    later = WorkerBench(store, node_id=3)
    assert repair(later, source(0, 9)).missing == []
    for each in (later, WorkerBench(store)):
        assert each.offsets() == list(range(10))
    known = TopicSnapshot.load(store, TOPIC).files
    assert len(known) == 1


@pytest.mark.parametrize("point", ["after_repair_file", "after_repair_commit"])
def test_a_worker_that_dies_while_it_fills_the_hole_of_a_commit_leaves_it_to_the_next(
    store: MemoryStore, source: Source, point: str
) -> None:
    lose_the_second_commit(store, source)
    dying = WorkerBench(store, node_id=2)
    dying.storage = RemoteStorageManager(
        store, tier_settings(node_id=2), DiesAt(point), clock=store.clock
    )
    with pytest.raises(ProcessDied):
        repair(dying, source(10, 19))
    later = WorkerBench(store, node_id=3)
    assert repair(later, source(10, 19)).missing == []
    for each in (later, WorkerBench(store)):
        assert each.offsets() == list(range(30))
