"""A log that is cut at its end: what is known of producers then, and what had to be read for it."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from broker.log.log import Log
from broker.log.segment.segment import Segment
from broker.log.values import RemoteLogAuxState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import ControlType, iterate_headers
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.memory_disk import MemoryDisk, PowerLoss
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch, marker
from tests.unit.log.truncated_logs import (
    NOW_MS,
    OneRefusal,
    append,
    give,
    log_with_an_abort,
    open_log,
    sequences,
)

# What a cut reads that does not depend on how much is kept: the headers of what goes, the last entries of an index.
READ_BYTES_MAX = 64 << 10
COMPACT = ("compact",)
COMPACTED = log_settings(cleanup_policy=COMPACT)


def known(log: Log) -> dict[int, tuple[object, ...]]:
    """What a restart finds as well: the last batch of each producer."""
    return {
        producer_id: (
            state.epoch,
            state.last_sequence,
            state.last_timestamp_ms,
            *list(state.batches)[-1:],
        )
        for producer_id, state in log.producers
    }


def read_bytes_of_cut(disk: MemoryDisk, log: Log, offset: int) -> int:
    before = disk.bytes_read
    log.truncate_to(offset)
    return disk.bytes_read - before


def test_a_few_batches_are_cut_off_without_reading_the_segment() -> None:
    """In the event loop, which has other partitions to see to: a follower that was ahead of its new leader."""
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(100):
        append(log, 7, 4)
        append(log, 8, 2)
        append(log, -1, 1)
    expected = known(log)
    end = log.log_end_offset
    append(log, 7, 3)
    append(log, 8, 1)
    append(log, -1, 5)
    assert read_bytes_of_cut(disk, log, end) < READ_BYTES_MAX
    assert known(log) == expected
    append(log, 7, 1)  # Its sequence goes on where it was cut.
    disk.kill()
    assert known(open_log(disk)) == known(log)


@pytest.mark.parametrize("case", ["transaction", "marker", "gone", "many"])
def test_what_memory_does_not_have_is_read(case: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, 7, 300)
    if case == "marker":
        append(log, 8, 1, transactional=True)
    expected, end = known(log), log.log_end_offset
    stable = log.last_stable_offset(end)
    if case == "transaction":
        append(log, 8, 1, transactional=True)
    elif case == "marker":
        abort = marker(ControlType.ABORT, 8, timestamp_ms=NOW_MS)
        origin = AppendOrigin.COORDINATOR
        log.append(memoryview(abort), leader_epoch=0, now_ms=NOW_MS, origin=origin)
    elif case == "gone":
        append(log, 9, 1)
    else:
        append(log, 7, 5)
    assert read_bytes_of_cut(disk, log, end) > log.size_bytes // 2
    assert known(log) == expected
    assert log.last_stable_offset(end) == stable


@pytest.mark.parametrize(
    ("offset", "end"), [(10, 10), (9, 8), (8, 8), (6, 6), (4, 4), (3, 0), (0, 0)]
)
def test_a_cut_behind_a_gap_of_compaction_ends_where_it_was_made(offset: int, end: int) -> None:
    """An offset that compaction took is not given to another record by whoever leads next."""
    log = open_log(MemoryDisk(), COMPACTED)
    give(log, 0, 4)
    give(log, 8, 2)
    log.truncate_to(offset)
    assert log.log_end_offset == end


def test_a_cut_in_a_gap_between_segments_ends_where_it_was_made() -> None:
    log = open_log(MemoryDisk(), log_settings(segment_bytes=150, cleanup_policy=COMPACT))
    give(log, 0, 4)
    give(log, 10, 4)
    log.truncate_to(7)
    assert log.log_end_offset == 7
    give(log, 7, 1)
    assert offsets(log) == [0, 7]


def test_a_cut_between_segments_ends_there_after_a_restart_too() -> None:
    disk, config = MemoryDisk(), log_settings(segment_bytes=150, cleanup_policy=COMPACT)
    log = open_log(disk, config)
    give(log, 0, 4)
    give(log, 10, 4)
    assert [view.next_offset for view in log.rolled_segments()] == [10]
    log.truncate_to(10)
    assert log.log_end_offset == 10
    assert log.close()
    disk.kill()
    log = open_log(disk, config, clean_shutdown=True)
    assert log.log_end_offset == 10
    give(log, 10, 4)
    log.flush(wait=True)
    disk.kill()
    assert open_log(disk, config).log_end_offset == 14


def offsets(log: Log) -> list[int]:
    """The first offset of each batch in the log's files."""
    return [
        header.base_offset
        for segment in log.segments.all
        for _, header in iterate_headers(segment.file.read(segment.size_bytes, 0))
    ]


@pytest.mark.parametrize("operations", range(14))
def test_a_crash_in_a_cut_leaves_no_hole(operations: int) -> None:
    """What was durable before it is not looked at again, so nothing else would notice one."""
    disk, config = MemoryDisk(), log_settings(segment_bytes=300)
    log = open_log(disk, config)
    for number in range(12):
        give(log, number, 1)
    log.flush(wait=True)
    disk.crash_after = operations
    with suppress(PowerLoss):
        log.truncate_to(1)
    disk.kill()
    log = open_log(disk, config, recovery_point=12)
    assert offsets(log) == list(range(log.log_end_offset))


@pytest.mark.parametrize("operations", range(12))
def test_a_crash_in_a_recovery_leaves_no_hole_either(operations: int) -> None:
    """In a compacted log a gap between segments would be believed."""
    disk, config = MemoryDisk(), log_settings(segment_bytes=300, cleanup_policy=COMPACT)
    log = open_log(disk, config)
    for number in range(12):
        give(log, number, 1)
    disk.kill()
    disk.contents("/d/t-0/00000000000000000003.log")[-1] ^= 1
    disk.crash_after = operations
    with suppress(PowerLoss):
        open_log(disk, config)
    disk.kill()
    log = open_log(disk, config)
    assert offsets(log) == list(range(5))
    assert log.log_end_offset == 5


@pytest.mark.parametrize("is_reopened", [True, False])
@pytest.mark.parametrize("segment_bytes", [300, 100_000])
@pytest.mark.parametrize("refused", ["room", "open", "rename", "truncate", "write", "read"])
def test_a_cut_that_the_disk_refuses_leaves_a_log_that_can_lead(
    refused: str, segment_bytes: int, *, is_reopened: bool
) -> None:
    disk, config = MemoryDisk(), log_settings(segment_bytes=segment_bytes, index_interval_bytes=1)
    log = open_log(disk, config)
    for number in range(12):
        give(log, number, 1)
    if is_reopened:
        assert log.close()
        disk.kill()
        log = open_log(disk, config, clean_shutdown=True)
    if refused == "room":
        disk.capacity_bytes = 0
    else:
        disk.failing, disk.failing_with = {refused}, errno.EMFILE
    with suppress(OSError):
        log.truncate_to(5)
    disk.capacity_bytes, disk.failing = None, set()
    assert log.log_end_offset >= 5
    batch = client_batch(1, timestamp_ms=NOW_MS)
    log.append(memoryview(batch), leader_epoch=1, now_ms=NOW_MS)
    end = log.log_end_offset
    assert offsets(log) == list(range(end))
    assert log.close()
    disk.kill()
    log = open_log(disk, config, clean_shutdown=True)
    assert log.log_end_offset == end
    assert offsets(log) == list(range(end))


@pytest.mark.parametrize("is_rolled", [True, False])
@pytest.mark.parametrize("target", [0, 1, 6, 8, 10, 11, 15, 30])
@pytest.mark.parametrize("segment_bytes", [1200, 2500, 100_000])
def test_a_cut_of_which_the_disk_refuses_any_step_leaves_a_log_that_can_lead(
    segment_bytes: int, target: int, *, is_rolled: bool
) -> None:
    """Above all the second of many renames: what was renamed already would be gone after the next start."""
    config = log_settings(segment_bytes=segment_bytes, index_interval_bytes=1)
    for after in range(1_000):
        disk = MemoryDisk()
        log = log_with_an_abort(disk, config, is_rolled=is_rolled)
        ended = RemoteLogAuxState(producer_snapshot=log.producers.encode_snapshot(NOW_MS))
        refusal = OneRefusal(disk, after)
        with suppress(OSError):
            log.truncate_to(target) if target < 20 else log.truncate_fully_and_start_at(
                target, ended
            )
        refused, refusal.is_over = refusal.is_over, True
        end = log.log_end_offset
        assert all(each.last_offset < end for each in log.aborted_transactions(0, end + 1)), after
        log.append(memoryview(client_batch(1, timestamp_ms=NOW_MS)), leader_epoch=1, now_ms=NOW_MS)
        had = offsets(log)
        assert had[-1] == end
        assert log.close()
        disk.kill()
        log = open_log(disk, config, clean_shutdown=True)
        assert (offsets(log), log.log_end_offset) == (had, end + 1), after
        if not refused:
            break
    assert after > 2


@pytest.mark.parametrize("target", [1, 8, 10, 15])
@pytest.mark.parametrize("segment_bytes", [1200, 100_000])
def test_a_cut_that_is_tried_again_ends_with_the_right_producers(
    segment_bytes: int, target: int
) -> None:
    """What is read of the log for that may be what the disk refuses."""
    config = log_settings(segment_bytes=segment_bytes, index_interval_bytes=1)
    for after in range(1_000):
        disk = MemoryDisk()
        log = log_with_an_abort(disk, config, is_rolled=False)
        refusal = OneRefusal(disk, after)
        with suppress(OSError):
            log.truncate_to(target)
        refused, refusal.is_over = refusal.is_over, True
        log.truncate_to(min(target, log.log_end_offset))
        found = sequences(log)
        disk.kill()
        assert found == sequences(open_log(disk, config)), after
        if not refused:
            break
    assert after > 5


def test_without_files_to_open_a_cut_leaves_no_producer_with_what_is_cut_off() -> None:
    """Its next try of those batches would be taken for a duplicate, and acknowledged."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, 7, 4)
    disk.failing, disk.failing_with = {"open"}, errno.EMFILE
    listed, disk.list_names = disk.list_names, refuse_to_list  # type: ignore[method-assign]
    with pytest.raises(OSError):
        log.truncate_to(4)
    disk.failing, disk.list_names = set(), listed  # type: ignore[method-assign]
    before = log.producers.get(7)
    assert before is not None
    assert before.last_sequence == log.log_end_offset - 1


def refuse_to_list(_: str) -> list[str]:
    raise OSError(errno.EMFILE, "no file left")


@pytest.mark.parametrize("room", range(0, 400, 20))
def test_a_full_disk_behind_a_gap_leaves_a_log_that_can_lead(room: int) -> None:
    """The new segment may be there, and its first batch not."""
    disk, config = MemoryDisk(), log_settings(segment_bytes=150, cleanup_policy=COMPACT)
    log = open_log(disk, config)
    give(log, 0, 4)
    disk.capacity_bytes = sum(len(disk.contents(path)) for path in disk.paths()) + room
    try:
        give(log, 10, 4)
    except KafkaError as error:
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes = None
    batch = client_batch(1, timestamp_ms=NOW_MS)
    log.append(memoryview(batch), leader_epoch=1, now_ms=NOW_MS)
    end = log.log_end_offset
    disk.kill()
    assert open_log(disk, config).log_end_offset == end


@pytest.mark.parametrize("seed", range(20))
def test_what_was_cut_off_is_not_back_below_what_is_durable(seed: int) -> None:
    """After a loss of power: consumers would read it, and go on behind the records that took its place."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, 7, 5)
    log.flush(wait=True)
    log.truncate_to(4)
    log.roll()
    append(log, 8, 2)
    log.flush(wait=True)
    recovery_point = log.recovery_point
    assert recovery_point == 8
    disk.lose_power(Random(seed))
    assert offsets(open_log(disk, recovery_point=recovery_point)) == [0, 2, 4, 6]


@pytest.mark.interpreted  # Compiled, its fields have types, and no list of names.
def test_a_truncated_segment_becomes_what_was_left_in_each_of_its_fields() -> None:
    segment, left = (
        Segment(MemoryDisk(), "/data/t-0", 0, created_ms=0, index_interval_bytes=4096)
        for _ in range(2)
    )
    for number, name in enumerate(Segment.__slots__):
        setattr(left, name, number)
    segment.shorten(left)
    fields = [getattr(segment, name) for name in Segment.__slots__]
    assert fields == list(range(len(Segment.__slots__)))
