"""A disk that refuses one operation, whichever: the log is what it was, or what it was to be, and goes on."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.records.batch import ControlType, iterate_headers, stamp
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk, PowerLoss
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch, marker
from tests.unit.log.truncated_logs import (
    NOW_MS,
    OneRefusal,
    append,
    log_with_an_abort,
    open_log,
    sequences,
)

CONFIG = log_settings(segment_bytes=1200, index_interval_bytes=1)


def refusing(
    prepare: Callable[[MemoryDisk], Log], act: Callable[[Log], object]
) -> Iterator[tuple[MemoryDisk, Log]]:
    """The log after `act`, of which the disk has refused one operation: each in turn, where it takes more then."""
    for after in range(1_000):
        disk = MemoryDisk()
        log = prepare(disk)
        refusal = OneRefusal(disk, after)
        with suppress(OSError, KafkaError):
            act(log)
        refused, refusal.is_over = refusal.is_over, True
        if log.storage_error is None:
            yield disk, log
        if not refused:
            assert after > 2
            return


def read_again(disk: MemoryDisk) -> dict[int, tuple[int, int]]:
    """What a recovery of the same files finds."""
    disk.kill()
    return sequences(open_log(disk, CONFIG))


def aborting(log: Log, producer_id: int = 8) -> None:
    abort = marker(ControlType.ABORT, producer_id, timestamp_ms=NOW_MS)
    log.append(memoryview(abort), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("target", [0, 1, 6, 8, 10, 11, 15])
@pytest.mark.parametrize("segment_bytes", [1200, 100_000])
def test_who_leads_after_a_cut_that_was_refused_knows_the_producers(
    segment_bytes: int, target: int
) -> None:
    """Else the next try of what was cut off would be taken for a duplicate, and acknowledged."""
    config = log_settings(segment_bytes=segment_bytes, index_interval_bytes=1)

    def prepare(disk: MemoryDisk) -> Log:
        return log_with_an_abort(disk, config, is_rolled=False)

    for disk, log in refusing(prepare, lambda log: log.truncate_to(target)):
        found, stable = sequences(log), log.last_stable_offset(log.log_end_offset)
        assert found == read_again(disk)
        assert stable == open_log(disk, config).last_stable_offset(log.log_end_offset)


@pytest.mark.parametrize("target", [1, 8, 15])
def test_a_stop_after_a_cut_that_was_refused_leaves_the_right_producers(target: int) -> None:
    def prepare(disk: MemoryDisk) -> Log:
        return log_with_an_abort(disk, CONFIG, is_rolled=False)

    for disk, log in refusing(prepare, lambda log: log.truncate_to(target)):
        assert log.close()
        disk.kill()
        found = sequences(open_log(disk, CONFIG, clean_shutdown=True))
        disk.kill()
        for path in disk.paths():
            if path.endswith(".snapshot"):
                disk.unlink(path)
        assert found == sequences(open_log(disk, CONFIG))


@pytest.mark.parametrize("offset", [9, 30])
def test_a_log_that_does_not_begin_anew_keeps_its_producers(offset: int) -> None:
    """Or it has begun, with those that the lake knows."""
    known = open_log(MemoryDisk())
    append(known, 7, 2)
    ended = RemoteLogAuxState(
        producer_snapshot=known.producers.encode_snapshot(NOW_MS), leader_epochs=((0, 0), (1, 2))
    )

    def prepare(disk: MemoryDisk) -> Log:
        return log_with_an_abort(disk, CONFIG, is_rolled=False)

    before = sequences(prepare(MemoryDisk()))
    for disk, log in refusing(prepare, lambda log: log.truncate_fully_and_start_at(offset, ended)):
        found, epochs = sequences(log), log.leader_epochs.entries
        assert found == (sequences(known) if not log.size_bytes else before)
        assert epochs == (((0, 0), (1, 2)) if not log.size_bytes else ((0, 0),))
        assert found == read_again(disk)


def small(log: Log) -> None:
    log.append(memoryview(client_batch(1, timestamp_ms=NOW_MS)), leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_roll_that_was_refused_leaves_no_segment(*, preallocate: bool) -> None:
    """The next clean start would end the log where that begins, below what was appended since."""
    config = log_settings(segment_bytes=1300, index_interval_bytes=1, preallocate=preallocate)

    def prepare(disk: MemoryDisk) -> Log:
        log = open_log(disk, config)
        small(log)
        append(log, 7, 1)
        return log

    for disk, log in refusing(prepare, lambda log: append(log, 7, 1)):
        small(log)
        had = offsets(log)
        assert log.close()
        disk.kill()
        log = open_log(disk, config, clean_shutdown=True)
        assert (offsets(log), log.log_end_offset) == (had, len(had))


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_roll_behind_a_gap_that_was_refused_leaves_nothing(*, is_empty: bool) -> None:
    """Who leads then writes the offsets of the gap, of which a segment or a snapshot behind it knows nothing."""
    config = log_settings(segment_bytes=1600, index_interval_bytes=1)
    gap_end = 1 << 32 if is_empty else 12

    def prepare(disk: MemoryDisk) -> Log:
        log = open_log(disk, config)
        if not is_empty:
            for _ in range(4):
                append_short(log, 7)
        return log

    def behind_a_gap(log: Log) -> None:
        batch = memoryview(client_batch(10, value_bytes=100, timestamp_ms=NOW_MS))
        stamp(batch, 0, base_offset=gap_end, leader_epoch=0)
        log.append_as_follower(batch, leader_epoch=0, now_ms=NOW_MS)

    for disk, log in refusing(prepare, behind_a_gap):
        for producer_id in (9, 7, 7):
            append_short(log, producer_id)
        known = sequences(log)
        append_short(log, 11, is_transactional=True)
        log.truncate_to(log.log_end_offset - 1)
        assert sequences(log) == known
        had, end = offsets(log), log.log_end_offset
        assert log.close()
        disk.kill()
        log = open_log(disk, config, clean_shutdown=True)
        assert (offsets(log), log.log_end_offset, sequences(log)) == (had, end, known)


def append_short(log: Log, producer_id: int, *, is_transactional: bool = False) -> None:
    state = log.producers.get(producer_id)
    batch = client_batch(
        2,
        value_bytes=50,
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=state.last_sequence + 1 if state else 0,
        is_transactional=is_transactional,
    )
    log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


def offsets(log: Log) -> list[int]:
    found: list[int] = []
    offset, end = log.local_log_start_offset, log.log_end_offset
    while offset < end:
        read = log.read(offset, max_bytes=1 << 20, upper_bound_offset=end, min_one_batch=True)
        if not read.slices:
            break
        for part in read.slices:
            for _, header in iterate_headers(part.read()):
                found += range(header.base_offset, header.next_offset)
        offset = found[-1] + 1
    return found


@pytest.mark.parametrize("as_follower", [False, True])
def test_no_marker_is_in_the_log_and_not_in_the_index(*, as_follower: bool) -> None:
    """Consumers of committed records would get what was aborted."""

    def prepare(disk: MemoryDisk) -> Log:
        log = open_log(disk)
        append(log, 8, 1, transactional=True)
        aborting(log)
        append(log, 8, 1, transactional=True)
        assert log.close()
        disk.kill()
        return open_log(disk, clean_shutdown=True)

    def act(log: Log) -> None:
        if not as_follower:
            aborting(log)
            return
        both = marker(ControlType.ABORT, 8, timestamp_ms=NOW_MS)
        stamp(both, 0, base_offset=5, leader_epoch=0)
        data = client_batch(
            2, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=0, base_sequence=0
        )
        stamp(data, 0, base_offset=6, leader_epoch=0)
        log.append_as_follower(memoryview(both + data), leader_epoch=0, now_ms=NOW_MS)

    for disk, log in refusing(prepare, act):
        end = log.log_end_offset
        aborted = log.aborted_transactions(0, end)
        assert [each.last_offset for each in aborted] == [2, 5][: 2 if end > 5 else 1]
        found = sequences(log)
        assert found == read_again(disk)


def test_a_refused_flush_does_not_keep_the_index_from_growing() -> None:
    """Until the garbage collector comes the error holds what it was to write: that was the index, which was locked."""
    disk = MemoryDisk()
    log = open_log(disk, log_settings(index_interval_bytes=1))
    gc.disable()
    try:
        append(log, 7, 3)
        disk.failing, disk.failing_with = {"write"}, errno.ENOSPC
        log.flush()
        disk.failing = set()
        append(log, 7, 3)
    finally:
        gc.enable()
    assert log.log_end_offset == 12


@pytest.mark.parametrize("after", range(6))
def test_a_stop_that_is_killed_leaves_the_snapshot_where_the_last_segment_begins(
    after: int,
) -> None:
    """When retention has taken the segments before, nothing else knows of their producers."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, 7, 1)
    log.roll()
    disk.crash_after = after
    with suppress(PowerLoss):
        log.close()
    disk.kill()
    log = open_log(disk, recovery_point=2)
    log.segments.discard_oldest(1, 0)
    disk.kill()
    assert sequences(open_log(disk, recovery_point=2)) == {7: (1, -1)}


def test_what_a_snapshot_says_of_the_start_at_which_a_log_begins_anew_is_known() -> None:
    """At once, and not only after the next crash."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, 7, 2)
    assert log.close()
    disk.kill()
    del disk.contents("/d/t-0/00000000000000000000.log")[-1:]
    for _ in range(2):
        log = Log.open(
            "/d/t-0", CONFIG, disk, ManualClock(NOW_MS), topic="t", partition=0, log_start_offset=4
        )
        assert (log.first_base_offset, log.log_end_offset) == (4, 4)
        assert sequences(log) == {7: (3, -1)}
        disk.kill()


@pytest.mark.parametrize("after", range(8))
def test_a_roll_that_is_killed_leaves_no_zeros_behind_the_batches(after: int) -> None:
    """Below the recovery point nothing is looked at, and consumers would get them."""
    disk = MemoryDisk()
    log = open_log(disk, log_settings(segment_bytes=5000, preallocate=True))
    append(log, 7, 2)
    log.flush(wait=True)
    size = log.size_bytes
    disk.crash_after = after
    with suppress(PowerLoss):
        log.roll()
    disk.kill()
    assert open_log(disk, CONFIG, recovery_point=4).size_bytes == size
