"""What the copier makes of lost answers, a store that is away, leaders that were overtaken, foreign changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.worker.errors import CommitLost, StorageError
from broker.worker.rpc import CONFLICT, FAILED, FINISHED, PartitionOutcome
from kafka_ds.delta.actions import encode_actions, txn_action
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.topic.names import AppIdKind, app_id
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from tests.fakes.store import ALWAYS, Call, MemoryStore
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    copy_range,
    segment,
)
from tests.integration.worker_bench import TABLE, WorkerBench, data_files, put_version

EVENTS = "__remote_log_metadata"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Any]:
    def made(start: int, end: int, **more: Any) -> Any:
        path = segment(tmp_path / f"{start}-{end}.log", start, end - start + 1)
        return copy_range(path, start, end, **more)

    return made


def commits_of(table: str) -> str:
    return f"{table}/_delta_log/*.json"


def fall_silent(store: MemoryStore, table: str, *, times: float, written: bool) -> None:
    """From the first put into one table's log on, the store is away for that many calls.

    `written`: the put is done all the same, and its answer is lost.
    """
    where, error = {"path": commits_of(table)}, OSError("the connection was reset")
    fail = store.lose if written else store.refuse

    def begin(call: Call) -> None:
        if written:
            call()
        fail(error, calls="put_if_absent read", times=times - 1, **where)
        raise error

    store.script(begin, **where)


@pytest.mark.parametrize("table", [TABLE, EVENTS])
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("times", [1, 3, 40])
def test_lost_answers_neither_lose_nor_double(
    store: MemoryStore, source: Callable[..., Any], table: str, written: bool, times: int
) -> None:
    worker = WorkerBench(store)
    assert worker.copy(source(0, 9))[0].outcome == FINISHED
    fall_silent(store, table, times=times, written=written)
    outcomes = [worker.copy(source(10, 19), source(20, 24))[0] for _ in range(30)]
    assert {each.outcome for each in outcomes} <= {FINISHED, FAILED}
    assert store.scripted == 0
    assert (outcomes[-1].outcome, outcomes[-1].highest_offset_in_remote_storage) == (FINISHED, 24)
    for each in (worker, WorkerBench(store)):
        assert each.offsets() == list(range(25))
        assert each.finished() == [(0, 9), (10, 19), (20, 24)]
        each.copier.recover()
        assert each.metadata.unfinished() == []


def test_a_log_start_that_a_changed_table_does_not_take_is_told_again_until_it_does(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    log = DeltaLog(store, TABLE, clock=store.clock)

    def change(value: str) -> None:
        snapshot = TableSnapshot(log)
        snapshot.read()
        configuration = {**snapshot.configuration, "delta.appendOnly": value}
        action = {"metaData": {**snapshot.metadata, "configuration": configuration}}
        log.commit(log.begin(PlainChange("SET", actions=[action])), read_version=snapshot.version)

    def move() -> None:
        worker.storage.set_log_start(PARTITION, leader_epoch=99, offset=5)

    change("true")
    with pytest.raises(StorageError, match="appendOnly"):
        move()
    change("false")
    move()
    assert worker.storage.state(PARTITION).log_start_offset == 5


def test_a_leader_that_recovers_does_not_wait_for_a_column_that_was_dropped(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    WorkerBench(store).copy(source(0, 9))
    log = DeltaLog(store, TABLE, clock=store.clock)
    snapshot = TableSnapshot(log)
    snapshot.read()
    schema = json.loads(snapshot.metadata["schemaString"])
    schema["fields"] = [each for each in schema["fields"] if each["name"] != "key"]
    action = {"metaData": {**snapshot.metadata, "schemaString": json.dumps(schema)}}
    log.commit(log.begin(PlainChange("DROP", actions=[action])), read_version=snapshot.version)
    worker = WorkerBench(store, node_id=2)
    worker.storage.fence(TOPIC, TOPIC_ID, {0: 99})
    assert worker.storage.state(PARTITION).highest_offset_in_remote_storage == 9
    (outcome,) = worker.copy(source(10, 19))
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == (CONFLICT, 9)
    assert "column key was dropped" in outcome.message


@pytest.mark.parametrize("table", [TABLE, EVENTS])
def test_a_worker_that_dies_while_a_fate_is_unknown(
    store: MemoryStore, source: Callable[..., Any], table: str
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    fall_silent(store, table, times=ALWAYS, written=True)
    assert worker.copy(source(10, 19))[0].outcome == FAILED
    store.mend()
    later = WorkerBench(store)
    assert later.copy(source(10, 19))[0].outcome == FINISHED
    assert later.offsets() == list(range(20))
    assert later.finished() == [(0, 9), (10, 19)]


def test_while_a_fate_is_unknown_no_file_is_deleted(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    before = set(store.objects)
    fall_silent(store, TABLE, times=ALWAYS, written=True)
    for _ in range(3):
        assert worker.copy(source(10, 19))[0].outcome == FAILED
    files = {
        each for each in set(store.objects) - before if each.endswith((".parquet", ".residue"))
    }
    assert len([each for each in files if each.startswith(TABLE)]) == 2, "one attempt's files"
    store.mend()
    assert worker.copy(source(10, 19))[0].outcome == FINISHED
    assert files <= set(store.objects)


def test_a_store_that_is_away_fails_the_copy_and_later_not(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    fall_silent(store, EVENTS, times=ALWAYS, written=False)
    assert worker.copy(source(0, 9))[0].outcome == FAILED
    assert not any(each.startswith(TABLE) for each in store.objects), "nothing before STARTED"
    store.mend()
    assert worker.copy(source(0, 9))[0].outcome == FINISHED


def rename_over(store: MemoryStore) -> None:
    """As Delta's writer in a folder does, which looks whether the version is there and then renames."""
    theirs = encode_actions([{"commitInfo": {"operation": "DELETE"}}])

    def act(call: Call) -> Any:
        won = call()
        store.objects[call.path] = theirs
        return won

    store.script(act, path=commits_of(TABLE))


def test_a_topic_that_was_made_again_in_the_same_folder_is_not_copied_as_the_deleted_one(
    store: MemoryStore, tmp_path: Path
) -> None:
    worker = WorkerBench(store)
    path = segment(tmp_path / "0.log", 0, 10)
    metadata = tmp_path / "partition.metadata"
    metadata.write_bytes(encode_partition_metadata(bytes(range(3, 19))))
    (outcome,) = worker.copy(copy_range(path, 0, 9))
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == (FAILED, -1)
    assert "is of topic id" in outcome.message
    # As it is at first, and after a loss of power that took what was in it.
    metadata.write_bytes(b"")
    assert worker.copy(copy_range(path, 0, 9))[0].outcome == FINISHED
    metadata.write_bytes(encode_partition_metadata(TOPIC_ID))
    assert (
        worker.copy(copy_range(segment(tmp_path / "10.log", 10, 10), 10, 19))[0].outcome == FINISHED
    )


@pytest.mark.parametrize("is_known", [False, True])
def test_a_commit_that_another_writer_renamed_over_is_made_again(
    store: MemoryStore,
    source: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    is_known: bool,
) -> None:
    """Also where the table was read with our commit in it, before the other came."""
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    if is_known:
        confirm, storage = worker.storage.confirm, worker.storage

        theirs = encode_actions([{"commitInfo": {"operation": "DELETE"}}])

        def late(topic: str, commit: tuple[int, str]) -> None:
            store.objects[f"{TABLE}/{commit_file(commit[0])}"] = theirs
            storage.confirm = confirm  # type: ignore[method-assign]
            confirm(topic, commit)

        storage.confirm = late  # type: ignore[method-assign]
    else:
        rename_over(store)
    (outcome,) = worker.copy(source(10, 19))
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage, outcome.commit) == (
        FAILED,
        9,
        None,
    )
    assert worker.finished() == [(0, 9)]
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said.startswith("orders-0: offsets 10-19 are not in the table, and are copied again")
    (gap,) = worker.copy(source(20, 29))
    assert (gap.outcome, gap.highest_offset_in_remote_storage) == (FAILED, 9)
    (again,) = worker.copy(source(10, 19), source(20, 29))
    assert (again.outcome, again.highest_offset_in_remote_storage) == (FINISHED, 29)
    for each in (worker, WorkerBench(store)):
        assert each.offsets() == list(range(30))
        assert each.finished() == [(0, 9), (10, 19), (20, 29)]


def test_a_commit_that_was_cleaned_up_since_is_not_lost(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    (outcome,) = worker.copy(source(0, 9))
    assert outcome.commit is not None
    worker.storage.confirm(TOPIC, outcome.commit)
    version, commit_id = outcome.commit
    body = store.objects.pop(f"{TABLE}/{commit_file(version)}")
    with pytest.raises(CommitLost):
        worker.storage.confirm(TOPIC, (version, commit_id))
    store.put_durable(f"{TABLE}/_delta_log/{version:020d}.checkpoint.parquet", b"stands for one")
    worker.storage.confirm(TOPIC, (version, commit_id))
    store.objects[f"{TABLE}/{commit_file(version)}"] = body
    with pytest.raises(CommitLost):
        worker.storage.confirm(TOPIC, (version, "another"))


def test_a_leader_that_was_overtaken_is_fenced_and_the_rest_goes_on(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9), source(0, 9, partition=1))
    put_version(store, txn_action(app_id(TOPIC_ID, 0, AppIdKind.LEADER_EPOCH), 4))
    first, second = worker.copy(source(10, 19), source(10, 19, partition=1))
    assert (first.outcome, first.highest_offset_in_remote_storage) == (CONFLICT, 9)
    assert "leader epoch 4 wrote" in first.message
    assert (second.outcome, second.highest_offset_in_remote_storage) == (FINISHED, 19)
    assert worker.offsets() == list(range(10))
    # The leader of the higher epoch goes on.
    (third,) = worker.copy(source(10, 19, epoch=4))
    assert third.outcome == FINISHED


def test_two_workers_race_for_the_same_ranges(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    first, second = WorkerBench(store), WorkerBench(store)
    first.copy(source(0, 9))
    second.copy(source(0, 9))
    raced: list[PartitionOutcome] = []

    store.race(lambda: raced.extend(second.copy(source(10, 19))), path=commits_of(TABLE))
    (outcome,) = first.copy(source(10, 14))
    assert raced[0].outcome == FINISHED
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == (FAILED, 9)
    # Asked again, it says what there is, so that the leader goes on behind it.
    (again,) = first.copy(source(10, 14))
    assert (again.outcome, again.highest_offset_in_remote_storage) == (FINISHED, 19)
    assert first.offsets() == list(range(20))


def test_files_of_an_attempt_that_lost_go_once_another_has_won(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker, other = WorkerBench(store), WorkerBench(store)
    worker.copy(source(0, 9))
    store.race(lambda: other.copy(source(10, 19)), path=commits_of(TABLE))
    worker.copy(source(10, 19))
    assert len(data_files(store)) == 3
    later = WorkerBench(store)
    later.copy(source(20, 29))
    assert len(data_files(store)) == 3, "two that won before, one new"
    assert later.offsets() == list(range(30))
    known = later.metadata.list_segments(TOPIC_ID, 0)
    assert [each.start_offset for each in known] == [0, 10, 20], "one that lost is deleted"
    assert all(each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED for each in known)


def test_a_table_that_others_changed_pauses_its_topic(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    put_version(
        store,
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["catalogManaged"],
                "writerFeatures": ["catalogManaged", "invariants"],
            }
        },
    )
    (outcome,) = worker.copy(source(10, 19))
    assert outcome.outcome == CONFLICT
    assert "table feature catalogManaged" in outcome.message


def set_property(store: MemoryStore, name: str, value: str) -> None:
    """ALTER TABLE … SET TBLPROPERTIES by another engine."""
    log = DeltaLog(store, TABLE, clock=store.clock)
    snapshot = TableSnapshot(log)
    snapshot.read()
    configuration = {**snapshot.configuration, name: value}
    put_version(store, {"metaData": {**snapshot.metadata, "configuration": configuration}})


def test_a_table_that_may_not_be_written_to_costs_nothing_until_it_may(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """A pause is looked into again and again: each time the log of the table is read, and nothing is written."""
    worker = WorkerBench(store)
    worker.copy(source(0, 9), source(0, 9, partition=1))
    set_property(store, "delta.appendOnly", "true")
    before = set(store.objects)
    for each in (worker, worker, WorkerBench(store, node_id=2)):
        for outcome in each.copy(source(10, 19), source(10, 19, partition=1)):
            assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == (CONFLICT, 9)
            assert "delta.appendOnly" in outcome.message
    assert set(store.objects) == before
    set_property(store, "delta.appendOnly", "false")
    assert worker.copy(source(10, 19))[0].outcome == FINISHED
    assert worker.offsets() == list(range(20))


def test_a_leader_that_was_overtaken_writes_no_files_either(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    put_version(store, txn_action(app_id(TOPIC_ID, 0, AppIdKind.LEADER_EPOCH), 4))
    before = set(store.objects)
    (outcome,) = worker.copy(source(10, 19))
    assert outcome.outcome == CONFLICT
    assert "leader epoch 4 wrote" in outcome.message
    assert set(store.objects) == before


def test_a_log_that_holds_no_commit_is_a_conflict_as_well_until_it_is_mended(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """No waiting mends what somebody has to mend: it is said once, and not with each try."""
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    path = f"{TABLE}/{commit_file(2)}"
    store.objects[path] = b"{"
    for each in (worker, WorkerBench(store, node_id=2)):
        assert each.copy(source(10, 19))[0].outcome == CONFLICT
    store.delete(path)
    assert worker.copy(source(10, 19))[0].outcome == FINISHED


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_deletion_vector_stops_no_copy(
    store: MemoryStore, source: Callable[..., Any], is_begun: bool
) -> None:
    """Also where it comes while a copy is under way."""
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    (path,) = data_files(store)
    add = {"path": path.removeprefix(f"{TABLE}/"), "partitionValues": {"partition": "0"}, "size": 1}

    def erase_rows() -> None:
        vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
        vector |= {"sizeInBytes": 36, "cardinality": 2}
        put_version(store, {"add": {**add, "deletionVector": vector, "dataChange": True}})

    if is_begun:
        store.race(erase_rows, path=commits_of(TABLE))
    else:
        erase_rows()
    (outcome,) = worker.copy(source(10, 19))
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == (FINISHED, 19)


def test_a_deleted_topic_s_leader_writes_no_more(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    worker, asleep = WorkerBench(store), WorkerBench(store)
    worker.copy(source(0, 9))
    asleep.storage.state(PARTITION)
    worker.storage.delete_topic(TOPIC, TOPIC_ID)
    (outcome,) = asleep.copy(source(10, 19))
    assert outcome.outcome != FINISHED
    fresh = bytes(range(100, 116))
    (again,) = worker.copy(source(0, 4), topic_id=fresh)
    assert (again.outcome, again.highest_offset_in_remote_storage) == (FINISHED, 4)
    (outcome,) = asleep.copy(source(10, 19))
    assert outcome.outcome != FINISHED
    assert (
        worker.storage.state(TopicIdPartition(fresh, TOPIC, 0)).highest_offset_in_remote_storage
        == 4
    )
    assert not any(".residue" in each and "00000000000000000010-" in each for each in store.objects)
