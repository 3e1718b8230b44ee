"""The copier over a lake in a folder and on S3: the same tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.worker.errors import OffsetOutOfRange
from kafka_ds.process.crash_points import COPY_POINTS
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from tests.fakes.process_death import ProcessDied
from tests.integration.lake_bench import LakeBench
from tests.integration.tier_segments import (
    BASE_MS,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    copy_range,
    copy_request,
    records,
    segment,
)

CRASHES = [(kind, point) for kind in ("delta", "s3") for point in COPY_POINTS]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[int, int], Path]:
    return lambda start, count: segment(tmp_path / f"{start:020d}.log", start, count)


def test_copied_ranges_are_read_back(lake: LakeBench, make: Callable[[int, int], Path]) -> None:
    first, second = make(0, 50), make(50, 31)
    answer = lake.copy(copy_request([copy_range(first, 0, 49), copy_range(second, 50, 80)]))
    (outcome,) = answer.partitions
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == ("finished", 80)
    assert (outcome.ranges, outcome.rows) == (2, 81)
    assert lake.records() == records(0, 81)
    assert lake.records(77)[-1] == records(80, 1)[0]
    segments = lake.open()[2].list_segments(TOPIC_ID, 0)
    assert [(each.start_offset, each.end_offset) for each in segments] == [(0, 49), (50, 80)]
    assert {each.state for each in segments} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    assert [each.row_count for each in segments] == [50, 31]


def test_partitions_are_apart(lake: LakeBench, make: Callable[[int, int], Path]) -> None:
    path = make(0, 10)
    ranges = [copy_range(path, 0, 9, partition=each) for each in (0, 3)]
    answer = lake.copy(copy_request(ranges))
    assert [each.outcome for each in answer.partitions] == ["finished", "finished"]
    assert lake.records(partition=3) == records(0, 10)
    storage = lake.open()[1]
    assert (
        storage.state(TopicIdPartition(TOPIC_ID, TOPIC, 1)).highest_offset_in_remote_storage == -1
    )
    with pytest.raises(OffsetOutOfRange):
        storage.reader.read(
            TopicIdPartition(TOPIC_ID, TOPIC, 1), 0, max_bytes=1, committed_only=True
        )


def test_offsets_outside_are_out_of_range(
    lake: LakeBench, make: Callable[[int, int], Path]
) -> None:
    storage = lake.open()[1]
    with pytest.raises(OffsetOutOfRange):
        storage.reader.read(PARTITION, 0, max_bytes=1, committed_only=True)
    lake.copy(copy_request([copy_range(make(0, 10), 0, 9)]))
    storage.reader.read(PARTITION, 9, max_bytes=1, committed_only=True)
    with pytest.raises(OffsetOutOfRange):
        storage.reader.read(PARTITION, 10, max_bytes=1, committed_only=True)


def test_a_repeated_copy_finds_what_the_first_one_did(
    lake: LakeBench, make: Callable[[int, int], Path]
) -> None:
    request = copy_request([copy_range(make(0, 10), 0, 9)])
    lake.copy(request)
    (outcome,) = lake.copy(request).partitions
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage, outcome.ranges) == (
        "finished",
        9,
        0,
    )
    assert len(lake.open()[2].list_segments(TOPIC_ID, 0)) == 1


def test_a_range_that_the_lake_holds_in_part_is_not_copied(
    lake: LakeBench, make: Callable[[int, int], Path]
) -> None:
    lake.copy(copy_request([copy_range(make(0, 10), 0, 9)]))
    (outcome,) = lake.copy(copy_request([copy_range(make(7, 13), 7, 19)])).partitions
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == ("failed", 9)
    assert lake.records() == records(0, 10)


def test_a_segment_that_is_gone_fails_alone(
    lake: LakeBench, make: Callable[[int, int], Path]
) -> None:
    gone = copy_range(Path("nowhere/x.log"), 0, 9, partition=1)
    answer = lake.copy(copy_request([copy_range(make(0, 10), 0, 9), gone]))
    by_partition = {each.partition: each for each in answer.partitions}
    assert by_partition[0].outcome == "finished"
    assert by_partition[1].outcome == "failed"
    assert lake.records() == records(0, 10)


@pytest.mark.parametrize(("lake", "point"), CRASHES, indirect=["lake"])
def test_a_crash_at_any_step_neither_loses_nor_doubles(
    lake: LakeBench, make: Callable[[int, int], Path], point: str
) -> None:
    first = copy_request([copy_range(make(0, 10), 0, 9)])
    ranges = [copy_range(make(10, 20), 10, 29), copy_range(make(30, 5), 30, 34)]
    lake.copy(first)
    with pytest.raises(ProcessDied):
        lake.open(point)[0].copy(copy_request(ranges))
    # Before anybody copies again, nothing is there twice.
    assert lake.records() in (records(0, 10), records(0, 35))
    (outcome,) = lake.copy(copy_request(ranges)).partitions
    assert (outcome.outcome, outcome.highest_offset_in_remote_storage) == ("finished", 34)
    assert lake.records() == records(0, 35)
    metadata = lake.open()[2]
    finished = [
        (each.start_offset, each.end_offset, each.row_count)
        for each in metadata.list_segments(TOPIC_ID, 0)
        if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    assert finished == [(0, 9, 10), (10, 29, 20), (30, 34, 5)]
    lake.copy(copy_request([copy_range(make(35, 5), 35, 39)]))
    assert lake.records() == records(0, 40)
    metadata = lake.open()[2]
    assert metadata.unfinished() == []
    # The attempt that the crash ended, if it did not win, is deleted by now, for everybody to see.
    left = metadata.list_segments(TOPIC_ID, 0)
    assert {each.state for each in left} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    assert len(left) == 4
    assert not metadata.is_deleting(TOPIC_ID, 0)


def test_a_time_is_found(lake: LakeBench, make: Callable[[int, int], Path]) -> None:
    lake.copy(copy_request([copy_range(make(0, 50), 0, 49)]))
    storage = lake.open()[1]
    found = storage.reader.times.offset_for_timestamp(PARTITION, BASE_MS + 17, start_offset=0)
    assert found == (BASE_MS + 17, 17, 3)
    assert (
        storage.reader.times.offset_for_timestamp(PARTITION, BASE_MS + 50, start_offset=0) is None
    )
    assert storage.reader.times.offset_for_timestamp(PARTITION, 0, start_offset=0) == (
        BASE_MS,
        0,
        3,
    )
    # The leader's log start may have moved, and the lake has not heard of it yet.
    found = storage.reader.times.offset_for_timestamp(PARTITION, 0, start_offset=30)
    assert found == (BASE_MS + 30, 30, 3)
    assert storage.reader.times.offset_for_timestamp(PARTITION, 0, start_offset=50) is None
    assert storage.reader.times.max_timestamp(PARTITION, start_offset=50) is None


def test_the_latest_time_is_found(lake: LakeBench, make: Callable[[int, int], Path]) -> None:
    storage = lake.open()[1]
    assert storage.reader.times.max_timestamp(PARTITION, start_offset=0) is None
    for start in (0, 30, 60):
        lake.copy(copy_request([copy_range(make(start, 30), start, start + 29)]))
        found = lake.open()[1].reader.times.max_timestamp(PARTITION, start_offset=0)
        assert found == (BASE_MS + start + 29, start + 29, 3)
    assert (
        lake.open()[1].reader.times.max_timestamp(
            TopicIdPartition(b"another topic id"[:16], TOPIC, 0), start_offset=0
        )
        is None
    )


def test_a_deleted_topic_holds_nothing(lake: LakeBench, make: Callable[[int, int], Path]) -> None:
    lake.copy(copy_request([copy_range(make(0, 10), 0, 9)]))
    storage = lake.open()[1]
    storage.delete_topic(TOPIC, b"another topic id"[:16])
    assert lake.records() == records(0, 10)
    storage.delete_topic(TOPIC, TOPIC_ID)
    storage.delete_topic(TOPIC, TOPIC_ID)
    with pytest.raises(OffsetOutOfRange):
        storage.reader.read(PARTITION, 0, max_bytes=1, committed_only=True)
