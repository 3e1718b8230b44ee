"""Planning: every wanted offset is in exactly one task, nothing else is, and lost offsets are reported exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.plan.scan_plan import (
    ColdRange,
    HotRange,
    LakeView,
    PartitionView,
    Plan,
    TableFileSlice,
    plan_scan,
)
from tests.unit.source.made_views import END, file, view, views


def cold_slices(plan: Plan, partition: int) -> list[TableFileSlice]:
    return [
        file_slice
        for task in plan.tasks
        if task.partition == partition
        for piece in task.ranges
        if isinstance(piece, ColdRange)
        for file_slice in piece.files
    ]


def hot_offsets(plan: Plan, partition: int) -> list[int]:
    return [
        offset
        for task in plan.tasks
        if task.partition == partition
        for piece in task.ranges
        if isinstance(piece, HotRange)
        for offset in range(piece.start, piece.end)
    ]


@given(
    st.lists(st.just(0), min_size=1, max_size=3).flatmap(
        lambda ones: st.tuples(*(views(partition=n) for n in range(len(ones))))
    ),
    st.none() | st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=3),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 20),
    st.integers(200, 5000),
)
def test_each_wanted_offset_is_read_in_exactly_one_place(
    given_views: tuple[PartitionView, ...],
    offsets: list[tuple[int, int]] | None,
    min_partitions: int | None,
    max_records: int | None,
    task_bytes: int,
) -> None:
    predicate = Predicate(offset=None if offsets is None else Intervals.of(*offsets))
    plan = plan_scan(
        given_views,
        predicate,
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        task_bytes=task_bytes,
    )
    assert all(task.ranges for task in plan.tasks)
    for each_view in given_views:
        wanted = {n for n in range(each_view.start, each_view.end) if n in predicate.offsets()}
        in_lake = set(range(each_view.lake.start, each_view.lake.end)) if each_view.lake else set()
        at_leader = set(range(each_view.log_start, each_view.log_end))
        hot = hot_offsets(plan, each_view.partition)
        assert sorted(hot) == sorted((wanted - in_lake) & at_leader)
        lost = {
            n
            for span in plan.lost
            if span.partition == each_view.partition
            for n in range(span.start, span.end)
        }
        gone = {n for n in wanted & in_lake if each_view.lake and n in each_view.lake.missing}
        assert lost == (wanted - in_lake - at_leader) | gone
        for data_file in each_view.lake.files if each_view.lake else ():
            visited = [
                n
                for each in cold_slices(plan, each_view.partition)
                if each.path == data_file.path
                for start, end in each.offsets
                for n in range(start, end)
            ]
            rows = set(range(data_file.first_offset, data_file.last_offset + 1))
            assert sorted(visited) == sorted((wanted & in_lake & rows) - gone)
    if max_records is not None:
        assert all(offsets_of(task_pieces(plan, n)) <= max_records for n in range(len(plan.tasks)))


def task_pieces(plan: Plan, number: int) -> list[Intervals]:
    found = []
    for piece in plan.tasks[number].ranges:
        if isinstance(piece, HotRange):
            found.append(Intervals.of((piece.start, piece.end)))
        else:
            found += [file_slice.offsets for file_slice in piece.files]
    return found


def offsets_of(pieces: list[Intervals]) -> int:
    """Files may overlap: an offset counts once."""
    return Intervals.of(*(span for piece in pieces for span in piece)).count


def test_the_seam_is_the_tiered_end() -> None:
    lake = LakeView(version=9, start=0, end=600, files=(file(0, 299), file(300, 590)))
    plan = plan_scan([view(lake=lake)], Predicate())
    (task,) = plan.tasks
    cold, hot = task.ranges
    assert isinstance(cold, ColdRange)
    assert cold.version == 9
    assert [(each.path, each.offsets.spans) for each in cold.files] == [
        ("0.parquet", ((0, 300),)),
        ("300.parquet", ((300, 591),)),
    ]
    assert hot == HotRange(start=600, end=1000, leader_epoch=7)


def test_tiering_that_began_late_is_read_from_the_leader_first() -> None:
    lake = LakeView(version=9, start=500, end=600, files=(file(500, 599),))
    (task,) = plan_scan([view(lake=lake)], Predicate()).tasks
    assert [type(piece) for piece in task.ranges] == [HotRange, ColdRange, HotRange]


def test_files_are_left_out_by_their_timestamps() -> None:
    files = (
        file(0, 99, min_timestamp_us=0, max_timestamp_us=999),
        file(100, 199, min_timestamp_us=1000, max_timestamp_us=1999),
        file(200, 299),
    )
    lake = LakeView(version=9, start=0, end=300, files=files)
    predicate = Predicate(timestamp=Intervals.of((1500, 1600)))
    (task,) = plan_scan([view(lake=lake, end=300, log_end=300)], predicate).tasks
    (cold,) = task.ranges
    assert isinstance(cold, ColdRange)
    assert [each.path for each in cold.files] == ["100.parquet", "200.parquet"]


def test_hot_rows_begin_where_the_leader_says_that_times_may_match() -> None:
    (task,) = plan_scan([view(floor=900)], Predicate(timestamp=Intervals.of((5, 6)))).tasks
    assert task.ranges == (HotRange(start=900, end=1000, leader_epoch=7),)
    assert plan_scan([view(floor=2**63)], Predicate()).tasks == ()


def test_what_the_leader_knows_of_epochs_cuts_no_cold_rows() -> None:
    """A leader that lost its disk knows only its own epoch; rows of the table are filtered by their own epochs."""
    lake = LakeView(version=9, start=0, end=600, files=(file(0, 599),))
    known = view(lake=lake, epochs=Intervals.of((800, 1000)))
    (task,) = plan_scan([known], Predicate(leader_epoch=Intervals.points([1, 2]))).tasks
    cold, hot = task.ranges
    assert isinstance(cold, ColdRange)
    assert [each.offsets.spans for each in cold.files] == [((0, 600),)]
    assert hot == HotRange(start=800, end=1000, leader_epoch=7)


def test_a_partition_is_cut_by_the_bytes_of_its_files() -> None:
    files = tuple(file(n * 100, n * 100 + 99, size_bytes=1000) for n in range(10))
    lake = LakeView(version=9, start=0, end=1000, files=files)
    plan = plan_scan([view(lake=lake)], Predicate(), task_bytes=2500)
    assert len(plan.tasks) == 4
    narrow = plan_scan(
        [view(lake=lake)], Predicate(offset=Intervals.of((150, 160))), task_bytes=2500
    )
    assert len(narrow.tasks) == 1


def test_min_partitions_cuts_the_large_ones() -> None:
    given = [view(partition=0, end=10, log_end=10), view(partition=1), view(partition=2)]
    plan = plan_scan(given, Predicate(), min_partitions=9)
    per_partition = [sum(t.partition == n for t in plan.tasks) for n in range(3)]
    assert per_partition == [1, 4, 4]
    assert len(plan_scan(given, Predicate(), min_partitions=2).tasks) == 3


# What Spark's own Kafka source makes of ranges, by the kinds of its tests: cut or not, skewed, empty, rounded.
@pytest.mark.parametrize(
    ("ranges", "least", "most", "cuts"),
    [
        ([(1, 2)], None, None, [[2]]),
        ([(1, 2), (1, 1)], None, None, [[2], []]),
        ([(1, 2), (1, 2), (1, 2)], 3, None, [[2], [2], [2]]),
        ([(1, 5)], 4, None, [[2, 3, 4, 5]]),
        ([(1, 5), (1, 21)], 4, None, [[5], [7, 14, 21]]),
        ([(1, 1), (1, 21)], 4, None, [[], [6, 11, 16, 21]]),
        ([(1, 2), (1, 1001)], 4, None, [[2], [334, 667, 1001]]),
        ([(1, 5), (1, 21)], 1, None, [[5], [21]]),
        ([(1, 11)], 3, None, [[4, 7, 11]]),
        ([(0, 10), (0, 10), (0, 1)], 6, None, [[3, 6, 10], [3, 6, 10], [1]]),
        ([(1, 5), (1, 21), (1, 1)], 4, None, [[5], [7, 14, 21], []]),
        (
            [(0, 10000), (0, 15000), (0, 20000)], 9, None,
            [[5000, 10000], [5000, 10000, 15000], [5000, 10000, 15000, 20000]],
        ),
        ([(0, 500), (0, 12000), (0, 15001)], 6, None, [[500], [6000, 12000], [5000, 10000, 15001]]),
        ([(0, 1), (0, 1), (0, 10000)], 6, None, [[1], [1], [2500, 5000, 7500, 10000]]),
        # 2.5 of 4 parts are 3: halves go up.
        ([(0, 5), (0, 3)], 4, None, [[1, 3, 5], [1, 3]]),
        ([(1, 2)], None, 4, [[2]]),
        ([(1, 5)], None, 4, [[5]]),
        ([(1, 6)], None, 4, [[3, 6]]),
        ([(1, 40), (1, 50), (1, 60)], None, 20, [[20, 40], [17, 33, 50], [20, 40, 60]]),
        ([(1, 40)], 1, 20, [[20, 40]]),
        ([(1, 40)], 4, 20, [[10, 20, 30, 40]]),
    ],
)  # fmt: skip
def test_ranges_are_cut_as_by_sparks_own_source(
    ranges: list[tuple[int, int]], least: int | None, most: int | None, cuts: list[list[int]]
) -> None:
    given = [
        view(partition=n, start=start, end=end, log_end=end)
        for n, (start, end) in enumerate(ranges)
    ]
    plan = plan_scan(given, Predicate(), min_partitions=least, max_records_per_partition=most)
    found: list[list[int]] = [[] for _ in ranges]
    for task in plan.tasks:
        (hot,) = task.ranges
        assert isinstance(hot, HotRange)
        before = found[task.partition]
        assert hot.start == (before[-1] if before else ranges[task.partition][0])
        before.append(hot.end)
    assert found == cuts


def test_partitions_and_topics_that_are_not_asked_for_are_not_read() -> None:
    given = [view(partition=0), view(partition=1), view(topic="u")]
    plan = plan_scan(given, Predicate(partition=Intervals.points([1])))
    assert [(t.topic, t.partition) for t in plan.tasks] == [("t", 1)]
    plan = plan_scan(given, Predicate(topics=frozenset({"u"})))
    assert [(t.topic, t.partition) for t in plan.tasks] == [("u", 0)]


def test_a_plan_is_the_same_each_time() -> None:
    lake = LakeView(version=9, start=0, end=600, files=(file(300, 590), file(0, 299)))
    given = [view(lake=lake), view(partition=1)]
    assert plan_scan(given, Predicate(), min_partitions=5) == plan_scan(
        given, Predicate(), min_partitions=5
    )
