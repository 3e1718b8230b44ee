"""The events' small files are merged: every event once at every version, in its order, for whoever reads."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.worker.metadata.event_files import EventMerging
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from kafka_ds.delta.commit import FateUnknown, PlainChange
from kafka_ds.delta.log import DeltaLog, SystemLogClock
from kafka_ds.delta.maintenance import vacuum, write_checkpoint
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.crash_points import EVENTS_POINTS, CrashPoints
from kafka_ds.topic.event_files import merge_events
from kafka_ds.topic.events import RemoteLogEvents, read_events
from kafka_ds.topic.names import REMOTE_LOG_METADATA
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState
from tests.fakes.clock import ManualClock
from tests.fakes.lake_rows import events_of, files_at
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.fakes.store import ALWAYS, MemoryStore

STATES = tuple(RemoteLogSegmentState)[:2]
Order = list[tuple[int, int, int]]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def segment(number: int) -> RemoteLogSegment:
    return RemoteLogSegment(
        topic="orders",
        topic_id=bytes(range(16)),
        partition=0,
        segment_id=bytes([number]) * 16,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        start_offset=number * 10,
        end_offset=number * 10 + 9,
        leader_epochs=((0, number * 10),),
        files=("partition=0/a.parquet",),
        broker_id=1,
    )


def fill(events: RemoteLogEvents, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        events.append([replace(segment(number), state=state) for state in STATES])


def log_of(store: MemoryStore) -> DeltaLog:
    return DeltaLog(store, REMOTE_LOG_METADATA, clock=store.clock)


def at_version(store: MemoryStore, version: int) -> Order:
    """(version, sequence, segment) of every row of the table as of a version."""
    rows = [
        row for f in files_at(log_of(store), version) for row in read_events(store, f).to_pylist()
    ]
    return sorted((r["version"], r["sequence"], r["start_offset"] // 10) for r in rows)


def followed(events: RemoteLogEvents) -> Order:
    return [(e.version, e.sequence, e.start_offset // 10) for e in events.follow()]


def test_each_event_is_there_once_at_every_version_and_for_every_follower(
    store: MemoryStore,
) -> None:
    writer, follower = events_of(store), events_of(store)
    fill(writer, 3)
    seen = followed(follower)
    fill(writer, 4, 3)
    (merged,) = merge_events(log_of(store), files_min=4)
    assert (merged.files, merged.events, merged.version) == (7, 14, 8)
    assert len(files_at(log_of(store))) == 1
    fill(writer, 2, 7)
    seen += followed(follower)
    everything = followed(events_of(store))
    assert seen == everything
    assert [number for _, _, number in everything] == [each // 2 for each in range(18)]
    for version in range(10):
        assert at_version(store, version) == [e for e in everything if e[0] <= version]
    assert merge_events(log_of(store), files_min=4) == [], "not each time that there is another"


def test_what_was_merged_is_merged_again_when_there_is_as_much_of_others(
    store: MemoryStore,
) -> None:
    writer = events_of(store)
    written = 0
    for turn in range(12):
        fill(writer, 5, turn * 5)
        written += sum(each.events for each in merge_events(log_of(store), files_min=4))
    assert len(followed(events_of(store))) == 120
    assert len(files_at(log_of(store))) < 15
    assert written < 120 * 5


def test_who_appends_meanwhile_is_not_disturbed(store: MemoryStore) -> None:
    writer = events_of(store)
    fill(writer, 5)
    store.race(lambda: fill(writer, 1, 5))
    (merged,) = merge_events(log_of(store), files_min=4)
    assert merged.version == 7
    assert [number for _, _, number in followed(events_of(store))] == [
        each // 2 for each in range(12)
    ]


def test_of_two_that_merge_one_wins_and_the_other_leaves_nothing(store: MemoryStore) -> None:
    fill(events_of(store), 5)
    before = followed(events_of(store))

    def other() -> None:
        assert len(merge_events(log_of(store), files_min=4)) == 1

    store.race(other)
    assert merge_events(log_of(store), files_min=4) == []
    assert followed(events_of(store)) == before
    parquet = [path for path in store.objects if path.endswith(".parquet")]
    assert len(parquet) == 6 and len(files_at(log_of(store))) == 1


def test_a_merge_whose_answer_is_lost_counts_once(store: MemoryStore) -> None:
    fill(events_of(store), 5)
    before = followed(events_of(store))
    newest = log_of(store).latest_version() + 1
    store.lose(calls="put_if_absent read", path=f"*{newest:020d}.json", times=ALWAYS)
    with pytest.raises(FateUnknown):
        merge_events(log_of(store), files_min=4)
    store.mend()
    assert merge_events(log_of(store), files_min=4) == []
    assert followed(events_of(store)) == before and len(files_at(log_of(store))) == 1


@pytest.mark.parametrize("point", EVENTS_POINTS)
def test_a_crash_at_any_step_neither_loses_nor_doubles(store: MemoryStore, point: str) -> None:
    fill(events_of(store), 5)
    before = followed(events_of(store))

    def at(step: str) -> None:
        if step == point:
            raise ProcessDied

    with pytest.raises(ProcessDied):
        merge_events(log_of(store), files_min=4, at=at)
    assert followed(events_of(store)) == before
    merge_events(log_of(store), files_min=4)
    assert followed(events_of(store)) == before and len(files_at(log_of(store))) == 1


def test_a_table_with_columns_of_others_is_left_as_it_is(store: MemoryStore) -> None:
    events = events_of(store)
    fill(events, 5)
    actions = events.log.read_version(0) or []
    (meta,) = (each["metaData"] for each in actions if "metaData" in each)
    wider = meta["schemaString"].replace(
        '"fields":[', '"fields":[{"name":"mine","type":"string","nullable":true,"metadata":{}},', 1
    )
    assert wider != meta["schemaString"]
    change = PlainChange("ADD COLUMNS", actions=[{"metaData": {**meta, "schemaString": wider}}])
    events.log.commit(events.log.begin(change), read_version=events.log.latest_version())
    assert merge_events(log_of(store), files_min=4) == []


def metadata_of(store: MemoryStore, **settings: int) -> RemoteLogMetadataManager:
    return RemoteLogMetadataManager(
        store, tier_settings(**settings), CrashPoints(), clock=store.clock
    )


def test_a_worker_finds_what_it_began_behind_a_merge(store: MemoryStore) -> None:
    """The merge is nobody's last commit."""
    worker, other = metadata_of(store, node_id=1), metadata_of(store, node_id=2)
    for number in range(6):
        worker.add([segment(number)])
        if number != 2:
            worker.update([replace(segment(number), state=STATES[1])])
    other.add([replace(segment(9), broker_id=2)])
    assert len(merge_events(log_of(store), files_min=4)) == 1
    for each, node_id, numbers in ((worker, 1, [2]), (other, 2, [9])):
        for known in (each, metadata_of(store, node_id=node_id)):
            assert [one.segment_id[0] for one in known.unfinished()] == numbers
            there = known.list_segments(bytes(range(16)), 0)
            assert [one.segment_id[0] for one in there] == [0, 1, 2, 3, 4, 5, 9]


def test_it_is_looked_at_by_its_setting(tmp_path: Path) -> None:
    store, clock = LocalStore(str(tmp_path)), ManualClock()
    events = RemoteLogEvents(store, clock=clock)
    events.open()
    fill(events, 10)

    def merging(interval_ms: int = 300_000) -> EventMerging:
        settings = tier_settings(lake_maintenance_interval_ms=interval_ms)
        return EventMerging(store, REMOTE_LOG_METADATA, settings, CrashPoints(), clock)

    first = merging()
    assert first.look() == 0, "a young table at the start of a worker"
    clock.ms += 299_999
    assert first.look() == 0
    clock.ms += 1
    assert first.look() == 1
    fill(events, 12, 10)
    assert first.look() == 0
    write_checkpoint(events.log)
    assert merging(-1).look() == 0
    assert merging().look() == 1, "one that has a checkpoint"
    # What was replaced goes with VACUUM, a week later.
    before = events.follow()
    now_ms = SystemLogClock().wall_ms()
    for entry in store.list(REMOTE_LOG_METADATA):
        os.utime(store.uri(entry.path), (now_ms // 1000 - 8 * 86_400,) * 2)
    gone = vacuum(DeltaLog(store, REMOTE_LOG_METADATA, clock=clock), now_ms=now_ms)
    assert len(gone) == 10 + 12 + 1
    again = RemoteLogEvents(store, clock=clock)
    again.open()
    assert again.follow() == before
