"""What the copier makes of attempts that a crash left STARTED, when others were at the tables meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata.remote_log import DELETIONS, RemoteLogMetadataManager
from broker.worker.rpc import CONFLICT, FINISHED
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from kafka_ds.topic.schemas import DAY_MS
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.settings import tier_settings
from tests.fakes.store import MemoryStore
from tests.integration.dying_worker import die_copying, optimize_and_vacuum
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    changed,
    copy_range,
    copy_request,
    segment,
)
from tests.integration.worker_bench import TABLE, WorkerBench, data_files, put_version

OTHER_ID = bytes(range(50, 66))
OTHER = "invoices"


def copy_other(worker: WorkerBench, *ranges: Any) -> Any:
    request = copy_request(ranges, topic=OTHER, topic_id=OTHER_ID)
    return worker.copier.copy(request).partitions[0]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Any]:
    def made(start: int, end: int) -> Any:
        return copy_range(
            segment(tmp_path / f"{start}-{end}.log", start, end - start + 1), start, end
        )

    return made


def test_what_came_since_a_crash_is_read_once_for_all_attempts_that_were_left(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    partitions = range(20)
    won = [changed(source(0, 9), partition=each) for each in partitions]
    die_copying(WorkerBench(store), "after_commit", *won)
    lost = [changed(source(10, 19), partition=each) for each in partitions]
    die_copying(WorkerBench(store), "before_commit", *lost)
    other = WorkerBench(store, node_id=2)
    other.copy(*lost)
    for start in range(20, 520, 10):
        other.copy(source(start, start + 9))
    store.calls.clear()
    later = WorkerBench(store)
    assert later.copier.recover() == {}
    assert later.metadata.unfinished() == []
    assert later.finished(partitions[-1]) == [(0, 9), (10, 19)]
    reads = [path for name, path in store.calls if name == "read"]
    versions = [path for path in reads if path.startswith(f"{TABLE}/_delta_log/")]
    # Followed once and looked through once, and for each attempt a few: what is new, and what won.
    assert len(versions) < 2 * 60 + 6 * len(partitions)


def test_files_that_others_replaced_before_finished_are_not_missed(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    optimize_and_vacuum(store)
    later = WorkerBench(store)
    assert later.copy(source(10, 19))[0].outcome == FINISHED
    assert later.finished() == [(0, 9), (10, 19)]
    assert later.offsets() == list(range(20))


def test_a_file_that_is_lost_is_not_finished_and_keeps_nothing_from_being_copied(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    (lost,) = data_files(store)
    del store.objects[lost]
    later = WorkerBench(store)
    (outcome,) = later.copy(source(0, 9))
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage, outcome.ranges) == (
        FINISHED,
        9,
        0,
    )
    assert copy_other(later, source(0, 9)).outcome == FINISHED
    assert later.copy(source(10, 19))[0].ranges == 1
    assert later.finished() == [(10, 19)]
    assert [each.start_offset for each in later.metadata.unfinished()] == [0]


@pytest.mark.parametrize("body", [b'{"this is": not json', b'{"add": {"size": 3}}'])
def test_a_table_that_cannot_be_read_fails_its_topic_alone(
    store: MemoryStore, source: Callable[..., Any], body: bytes
) -> None:
    die_copying(WorkerBench(store), "before_commit", source(0, 9))
    log = DeltaLog(store, TABLE, clock=store.clock)
    store.put_if_absent(f"{TABLE}/{commit_file(log.latest_version() + 1)}", body)
    later = WorkerBench(store)
    for _ in range(2):
        request = copy_request([source(0, 9)])
        other = copy_request([source(0, 9)], topic=OTHER, topic_id=OTHER_ID)
        both = replace(request, sources=[*request.sources, *other.sources])
        first, second = later.copier.copy(both).partitions
        assert (first.outcome, second.outcome) == (CONFLICT, FINISHED)
        assert "is no table that can be read" in first.message


def test_a_table_is_told_how_long_to_keep_its_history(store: MemoryStore) -> None:
    settings = tier_settings(node_id=1, lake_log_retention_ms=30 * DAY_MS + 1)
    worker = WorkerBench(store)
    worker.storage = RemoteStorageManager(store, settings, CrashPoints(), clock=store.clock)
    worker.storage.set_log_start(PARTITION, leader_epoch=1, offset=0)
    snapshot = TopicSnapshot.load(store, TOPIC)
    assert snapshot.configuration["delta.logRetentionDuration"] == "interval 31 days"


def test_rows_that_others_insert_raise_an_alarm_once_and_reach_nobody(
    store: MemoryStore, source: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    (ours,) = data_files(store)
    log = DeltaLog(store, TABLE, clock=store.clock)
    actions = log.read_version(log.latest_version())
    assert actions is not None
    (add,) = [each["add"] for each in actions if "add" in each]
    stats = add["stats"].replace('"offset":', '"offset":1')
    store.objects[f"{TABLE}/partition=0/part-0.parquet"] = store.objects[ours]
    inserted = {**add, "path": "partition=0/part-0.parquet", "stats": stats}
    put_version(store, {"commitInfo": {"operation": "WRITE"}}, {"add": inserted})
    assert worker.copy(source(10, 19))[0].outcome == FINISHED
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said.startswith(f"{TABLE}: version 2 (WRITE) by another engine: partition 0: 10 rows")
    assert worker.storage.complaints() == 1
    worker.storage.maintain(
        TOPIC, TableMaintenance(store, CrashPoints(), store.clock, interval=100)
    )
    later = WorkerBench(store)
    assert later.copy(source(20, 29))[0].outcome == FINISHED
    assert later.storage.complaints() == 0, "it was told of"
    assert later.offsets() == list(range(30))


def test_a_range_is_finished_though_its_commit_was_cleaned_up(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    later = WorkerBench(store)
    assert later.storage.state(PARTITION).highest_offset_in_remote_storage == 9
    store.delete(f"{TABLE}/{commit_file(1)}")
    later.copier.recover()
    assert later.finished() == [(0, 9)]
    assert later.metadata.unfinished() == []
    (segment,) = later.metadata.list_segments(TOPIC_ID, 0)
    assert [f"{TABLE}/{each}" for each in segment.files] == data_files(store)


def test_an_attempt_that_the_log_start_was_moved_past_has_lost(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """Later copies begin after it: no commit ever covers its range."""
    for _ in range(2):
        die_copying(WorkerBench(store), "before_commit", source(0, 9))
    later = WorkerBench(store)
    assert later.copy(replace(source(12, 19), log_start_offset=12))[0].outcome == FINISHED
    later.copier.recover()
    assert later.finished() == [(12, 19)]
    assert later.metadata.unfinished() == []
    assert len(data_files(store)) == 1


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("point", ["after_finished", "after_commit"])
def test_one_attempt_at_a_range_has_won_though_its_commit_was_cleaned_up(
    store: MemoryStore, source: Callable[..., Any], point: str, replaced: bool
) -> None:
    die_copying(WorkerBench(store), "before_commit", source(0, 9))
    (lost,) = data_files(store)
    die_copying(WorkerBench(store), point, source(0, 9))
    (won,) = set(data_files(store)) - {lost}
    if replaced:
        del store.objects[lost]
        optimize_and_vacuum(store)
    later = WorkerBench(store)
    assert later.storage.state(PARTITION).highest_offset_in_remote_storage == 9
    store.delete(f"{TABLE}/{commit_file(1)}")
    later.copier.recover()
    assert later.metadata.unfinished() == []
    (segment,) = later.metadata.list_segments(TOPIC_ID, 0)
    assert uuid_text(segment.segment_id) in won
    assert later.finished() == [(0, 9)]


def test_an_attempt_that_another_broker_gave_up_is_not_finished(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """There is no trace left of the rival that won, nor of its commit."""
    die_copying(WorkerBench(store), "before_commit", source(0, 9))
    other = WorkerBench(store, node_id=2)
    assert other.copy(source(0, 9), source(10, 19))[0].outcome == FINISHED
    lost, won, _ = sorted(
        other.metadata.list_segments(TOPIC_ID, 0), key=lambda each: (each.end_offset, each.state)
    )
    other.metadata.given_up([lost])
    for state in DELETIONS:
        other.metadata.update([replace(won, state=state)])
    later = WorkerBench(store)
    assert later.storage.state(PARTITION).highest_offset_in_remote_storage == 19
    store.delete(f"{TABLE}/{commit_file(1)}")
    later.copier.recover()
    assert later.metadata.unfinished() == []
    assert later.finished() == [(10, 19)]
    events = RemoteLogEvents(store, clock=store.clock)
    events.open()
    states = {each.state for each in events.follow() if each.segment_id == lost.segment_id}
    assert RemoteLogSegmentState.COPY_SEGMENT_FINISHED not in states


@pytest.mark.parametrize("created_again", [True, False])
def test_attempts_of_a_deleted_topic_come_to_an_end(
    store: MemoryStore, source: Callable[..., Any], created_again: bool
) -> None:
    worker = WorkerBench(store)
    worker.copy(source(0, 9))
    die_copying(worker, "before_commit", source(10, 19))
    later = WorkerBench(store)
    later.storage.delete_topic(TOPIC, TOPIC_ID)
    left = [each for each in data_files(store) if "00000000000000000010-" in each]
    assert len(left) == 1
    if created_again:
        assert later.copy(source(0, 4), topic_id=OTHER_ID)[0].outcome == FINISHED
    else:
        later.copier.recover()
    assert later.metadata.unfinished() == []
    assert not set(left) & set(store.objects)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_table_that_a_topic_left_which_was_deleted_as_it_was_made(
    store: MemoryStore, source: Callable[..., Any], is_known: bool
) -> None:
    """Its deletion found no table; only where the cluster says so another topic takes the table over."""
    former, asked = WorkerBench(store), list[bytes]()
    former.copy(source(0, 9))

    def was_deleted(topic_id: bytes) -> bool:
        asked.append(topic_id)
        return is_known

    storage = RemoteStorageManager(store, tier_settings(), CrashPoints(), was_deleted=was_deleted)
    metadata = RemoteLogMetadataManager(store, tier_settings(), CrashPoints())
    copier = Copier(
        storage, metadata, node_id=1, crash_points=CrashPoints(), new_id=lambda: bytes([7] * 16)
    )
    (outcome,) = copier.copy(copy_request([source(0, 4)], topic_id=OTHER_ID)).partitions
    assert asked[0] == TOPIC_ID
    assert (outcome.outcome == FINISHED) is is_known
    assert storage.state(TopicIdPartition(OTHER_ID, TOPIC, 0)).highest_offset_in_remote_storage == (
        4 if is_known else -1
    )
    assert storage.state(PARTITION).highest_offset_in_remote_storage == (-1 if is_known else 9)
    if is_known:
        # The one that is gone takes nothing back, as little as with a table that was deleted in time.
        assert former.copy(source(10, 19))[0].outcome != FINISHED
        assert (
            storage.state(TopicIdPartition(OTHER_ID, TOPIC, 0)).highest_offset_in_remote_storage
            == 4
        )


def test_a_leader_whose_topic_was_deleted_before_its_first_copy_leaves_no_rows(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """It was paused. The deletion has found no table in which it could have left a mark."""
    storage = RemoteStorageManager(
        store, tier_settings(), CrashPoints(), was_deleted=lambda topic_id: topic_id == TOPIC_ID
    )
    storage.delete_topic(TOPIC, TOPIC_ID)
    metadata = RemoteLogMetadataManager(store, tier_settings(), CrashPoints())
    copier = Copier(
        storage, metadata, node_id=1, crash_points=CrashPoints(), new_id=lambda: bytes([7] * 16)
    )
    for _ in range(2):
        (outcome,) = copier.copy(copy_request([source(0, 4)])).partitions
        assert outcome.outcome != FINISHED
        assert "was deleted" in outcome.message
    assert storage.state(PARTITION).highest_offset_in_remote_storage == -1
    copier.recover()
    assert metadata.unfinished() == []
    assert data_files(store) == []


@pytest.mark.parametrize("point", ["after_verify", "after_finished"])
def test_a_worker_that_dies_while_it_rolls_forward_leaves_it_to_the_next(
    store: MemoryStore, source: Callable[..., Any], point: str
) -> None:
    die_copying(WorkerBench(store), "after_commit", source(0, 9))
    die_copying(WorkerBench(store), point, source(10, 19))
    later = WorkerBench(store)
    later.copier.recover()
    assert later.metadata.unfinished() == []
    assert later.finished() == [(0, 9)]
    assert later.offsets() == list(range(10))


def test_who_could_not_ask_whether_its_topic_was_deleted_asks_again(
    store: MemoryStore, source: Callable[..., Any]
) -> None:
    """Also the next process, which finds the table made."""
    away = [OSError("the store is away")]

    def was_deleted(_: bytes) -> bool:
        if away:
            raise away.pop()
        return True

    for _ in range(2):
        storage = RemoteStorageManager(
            store, tier_settings(), CrashPoints(), was_deleted=was_deleted
        )
        metadata = RemoteLogMetadataManager(store, tier_settings(), CrashPoints())
        storage.state(PARTITION)
        copier = Copier(storage, metadata, node_id=1, crash_points=CrashPoints(), new_id=new_uuid)
        (outcome,) = copier.copy(copy_request([source(0, 4)])).partitions
        assert outcome.outcome != FINISHED
    assert not away
    assert storage.state(PARTITION).highest_offset_in_remote_storage == -1
