"""The tier's events: appended in groups, in an order that rows carry, read by whoever follows."""

from dataclasses import replace

import pytest

from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from kafka_ds.delta.commit import FateUnknown, PlainChange
from kafka_ds.delta.log import DeltaLog, ForeignTable
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState
from tests.fakes.clock import ManualClock
from tests.fakes.lake_rows import events_of
from tests.fakes.settings import tier_settings
from tests.fakes.store import ALWAYS, SCHEMA_JSON, MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


def event(number, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED):
    return RemoteLogSegment(
        topic="orders",
        topic_id=bytes(range(16)),
        partition=3,
        segment_id=bytes([number]) * 16,
        state=state,
        start_offset=number * 10,
        end_offset=number * 10 + 9,
        leader_epochs=((0, number * 10), (4, number * 10 + 5)),
        max_timestamp_ms=1_700_000_000_123,
        size_bytes=1 << 40,
        lake_bytes=77,
        row_count=10,
        broker_id=1,
        leader_epoch=4,
        files=("partition=3/a.parquet",),
        residue=None if number % 2 else "_residue/partition=3/a.residue",
        event_id=bytes([number, 9]) * 8,
        event_time_ms=1_700_000_000_456,
    )


def test_events_come_back_as_they_were_in_their_order(store):
    writer, reader = events_of(store), events_of(store)
    first = writer.append([event(1), event(2)])
    assert [(each.version, each.sequence) for each in first] == [(1, 0), (1, 1)]
    assert [replace(each, version=-1, sequence=0) for each in first] == [event(1), event(2)]
    assert reader.follow() == first
    assert reader.follow() == []
    second = writer.append([event(3)])
    assert reader.follow() == second
    assert events_of(store).follow() == first + second


def test_two_writers_at_once(store):
    writer, other = events_of(store), events_of(store)

    store.race(lambda: other.append([event(7)]))
    (mine,) = writer.append([event(1)])
    assert (mine.version, mine.sequence) == (2, 0)
    assert [each.segment_id[0] for each in events_of(store).follow()] == [7, 1]
    files = [path for path in store.objects if path.endswith(".parquet")]
    assert len(files) == 2, "the file of the try that was lost is gone"


def test_a_vacuum_of_all_that_is_in_flight_does_not_end_an_append(store):
    """Each try writes a file of its own."""
    writer, other = events_of(store), events_of(store)
    vacuum = PlainChange("VACUUM START", parameters={"specifiedRetentionMillis": "0"})

    store.race(lambda: other.log.commit(other.log.begin(vacuum), read_version=0))
    (mine,) = writer.append([event(1)])
    assert mine.version == 2
    assert len([path for path in store.objects if path.endswith(".parquet")]) == 1


def test_an_unknown_fate_is_taken_up_again(store):
    writer = events_of(store)
    store.refuse(times=ALWAYS)
    with pytest.raises(FateUnknown):
        writer.append([event(1)])
    store.mend()
    assert writer.settle()
    assert not writer.settle()
    assert [each.segment_id[0] for each in events_of(store).follow()] == [1]


def test_a_read_that_fails_halfway_loses_nothing_of_what_was_read_before(store, monkeypatch):
    writer, reader = events_of(store), events_of(store)
    assert reader.follow() == []
    found = [*writer.append([event(1)]), *writer.append([event(2)])]
    read, paths = store.read, []

    def fail_once(path):
        if path.endswith(".parquet") and path not in paths:
            paths.append(path)
            if len(paths) == 2:
                raise OSError("the store is away")
        return read(path)

    monkeypatch.setattr(store, "read", fail_once)
    with pytest.raises(OSError, match="away"):
        reader.follow()
    assert reader.follow() == found
    assert reader.follow() == []


@pytest.mark.parametrize("is_away", [False, True])
def test_who_was_left_behind_by_a_clean_up_misses_nothing(tmp_path, monkeypatch, is_away):
    """Also where the store is away once: then nothing is taken from a version that a paused writer left in the gap."""
    store, clock = LocalStore(str(tmp_path)), ManualClock()
    writer, reader = (RemoteLogEvents(store, clock=clock) for _ in range(2))
    writer.open(), reader.open()
    writer.append([event(1)])
    assert len(reader.follow()) == 1
    found = [*writer.append([event(2)]), *writer.append([event(3)])]
    left = store.read(writer.log.path(commit_file(3)))
    write_checkpoint(writer.log)
    for version in range(3):
        store.delete(writer.log.path(commit_file(version)))
    clock.ms += 8 * 86_400_000

    def fail(path):
        raise OSError("the store is away")

    if is_away:
        store.put_durable(writer.log.path(commit_file(2)), left)
        with monkeypatch.context() as away, pytest.raises(OSError, match="away"):
            away.setattr(store, "read", fail)
            reader.follow()
    assert reader.follow() == found
    assert reader.follow() == []


def test_events_are_there_though_what_a_lost_version_left_cannot_be_deleted(store, monkeypatch):
    writer, other = events_of(store), events_of(store)

    def come_first():
        other.append([event(1)])

    def fail(path):
        raise OSError("the store is away")

    store.race(come_first)
    monkeypatch.setattr(store, "delete", fail)
    (done,) = writer.append([event(2)])
    assert done.version == 2
    assert [each.segment_id for each in events_of(store).follow()] == [
        bytes([1]) * 16,
        bytes([2]) * 16,
    ]


def test_a_table_of_somebody_else_is_refused(store):
    log = DeltaLog(store, "__remote_log_metadata", clock=store.clock)
    log.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})
    with pytest.raises(ForeignTable, match="memory:/__remote_log_metadata"):
        events_of(store)


def test_opening_twice_is_one_table(store):
    events_of(store)
    assert events_of(store).log.latest_version() == 0


def test_nothing_is_appended_before_the_table_is_there(store):
    with pytest.raises(AssertionError):
        RemoteLogEvents(store, clock=store.clock).append([event(1)])


def test_a_broker_that_looks_again_after_the_clean_up_sees_what_others_have_begun_since(tmp_path):
    store, clock = LocalStore(str(tmp_path)), ManualClock()
    one, two = (
        RemoteLogMetadataManager(store, tier_settings(node_id=number), CrashPoints(), clock=clock)
        for number in (1, 2)
    )
    states = RemoteLogSegmentState
    place = (event(1).topic_id, event(1).partition)
    two.add([event(1)])
    assert not one.is_deleting(*place)
    two.update([event(1, states.COPY_SEGMENT_FINISHED)])
    log = DeltaLog(store, "__remote_log_metadata")
    for version in range(write_checkpoint(log)):
        store.delete(log.path(commit_file(version)))
    clock.ms += 8 * 86_400_000
    two.add([event(2)])
    store.delete(log.path(commit_file(2)))
    two.update([event(1, states.DELETE_SEGMENT_STARTED)])
    assert one.is_deleting(*place)
