"""A disk that is full or fails: acknowledged records stay, failed appends leave no trace."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from broker.log.log import Log
from broker.log.values import AppendInfo
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
CONFIG = log_settings(segment_bytes=1000, index_interval_bytes=100)


@pytest.fixture
def background() -> ManualBackground:
    return ManualBackground()


@pytest.fixture
def log(disk: MemoryDisk, background: ManualBackground) -> Log:
    return open_log(disk, background)


def open_log(disk: MemoryDisk, background: ManualBackground) -> Log:
    return Log.open(
        "/data/t-0",
        CONFIG,
        disk,
        ManualClock(),
        topic="t",
        partition=0,
        background=background,
    )


def append(log: Log, sequence: int, *, value_bytes: int = 20) -> AppendInfo:
    batch = client_batch(
        1,
        value_bytes=value_bytes,
        timestamp_ms=NOW_MS,
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


def refusal(log: Log, sequence: int) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        append(log, sequence)
    return raised.value.code


def used(disk: MemoryDisk) -> int:
    return sum(len(disk.contents(path)) for path in disk.paths())


@pytest.mark.parametrize("room", [0, 1, 60, 90])
def test_a_full_disk_refuses_and_recovers_by_itself(
    disk: MemoryDisk, background: ManualBackground, log: Log, room: int
) -> None:
    append(log, 0)
    size = log.size_bytes
    disk.capacity_bytes = used(disk) + room
    assert refusal(log, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size_bytes) == (1, size)
    assert len(disk.contents("/data/t-0/00000000000000000000.log")) == size
    disk.capacity_bytes = None
    assert append(log, 1).first_offset == 1, "the sequence was not used up"
    disk.kill()
    assert open_log(disk, background).log_end_offset == 2


def test_a_roll_that_fails_is_tried_again(disk: MemoryDisk, log: Log) -> None:
    for sequence in range(10):
        append(log, sequence)
    assert log.rolled_segments() == []
    disk.failing = {"open"}
    assert refusal(log, 10) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.failing = set()
    assert append(log, 10).first_offset == 10
    assert [view.next_offset for view in log.rolled_segments()] == [10]


def test_a_failed_write_that_cannot_be_cut_off_ends_the_log(
    disk: MemoryDisk, background: ManualBackground, log: Log
) -> None:
    append(log, 0)
    disk.capacity_bytes = used(disk) + 10
    disk.failing = {"truncate"}
    assert refusal(log, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes, disk.failing = None, set()
    assert refusal(log, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.storage_error is not None
    assert not log.close(), "and there will be no clean-shutdown marker"
    disk.kill()
    log = open_log(disk, background)
    assert append(log, 1).first_offset == 1


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_sync_that_was_not_tried_is_tried_again(
    disk: MemoryDisk, background: ManualBackground, log: Log, code: int
) -> None:
    """A process without file descriptors has lost nothing."""
    append(log, 0)
    log.flush()
    background.run()
    append(log, 1)
    outcomes: list[BaseException | None] = []
    log.flush(then=outcomes.append)
    disk.failing, disk.failing_with = {"open"}, code
    background.run()
    assert isinstance(outcomes[0], OSError)
    assert (log.storage_error, log.recovery_point) == (None, 1)
    disk.failing = set()
    append(log, 2)
    log.flush(then=outcomes.append)
    background.run()
    assert (outcomes[1], log.recovery_point) == (None, 3)


def test_a_failed_sync_is_the_end(disk: MemoryDisk, background: ManualBackground, log: Log) -> None:
    """What the kernel does with pages that it could not write is anybody's guess."""
    append(log, 0)
    outcomes: list[BaseException | None] = []
    log.flush(then=outcomes.append)
    disk.failing = {"sync"}
    background.run()
    assert log.recovery_point == 0
    assert isinstance(outcomes[0], OSError)
    disk.failing = set()
    assert refusal(log, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.read(0, max_bytes=999, upper_bound_offset=1, min_one_batch=True).size_bytes
    log.flush(then=outcomes.append)
    assert isinstance(outcomes[1], OSError)


def test_a_flush_on_a_full_disk_promises_nothing(disk: MemoryDisk, log: Log) -> None:
    for sequence in range(5):
        append(log, sequence)
    disk.capacity_bytes = used(disk)
    with pytest.raises(KafkaError) as raised:
        log.flush(wait=True)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0
    disk.capacity_bytes = None
    log.flush(wait=True)
    assert log.recovery_point == 5


def test_the_recovery_point_moves_when_the_sync_is_done(
    background: ManualBackground, log: Log
) -> None:
    append(log, 0)
    outcomes: list[BaseException | None] = []
    log.flush(then=outcomes.append)
    append(log, 1)
    assert (log.recovery_point, outcomes) == (0, [])
    background.run()
    assert (log.recovery_point, outcomes) == (1, [None])
    log.flush(then=outcomes.append)
    background.run()
    log.flush(then=outcomes.append)
    assert (log.recovery_point, outcomes) == (2, [None, None, None])


def test_a_flush_that_is_waited_for_moves_the_recovery_point(disk: MemoryDisk, log: Log) -> None:
    append(log, 0)
    assert log.recovery_point == 0
    append(log, 1)
    assert log.unflushed_count == 2
    log.flush(wait=True)
    assert log.recovery_point == 2


def test_flush_ms(background: ManualBackground, log: Log) -> None:
    log.update_config(replace(CONFIG, flush_ms=1000))
    append(log, 0)
    log.tick(NOW_MS + 999)
    assert not background.waiting
    log.tick(NOW_MS + 1000)
    background.run()
    assert log.recovery_point == 1


def test_preallocated_segments_end_where_the_batches_do(
    disk: MemoryDisk, background: ManualBackground, log: Log
) -> None:
    log.update_config(replace(CONFIG, preallocate=True))
    append(log, 0)
    log.roll()
    append(log, 1)
    path = "/data/t-0/00000000000000000001.log"
    assert len(disk.contents(path)) == CONFIG.segment_bytes
    disk.kill()
    log = open_log(disk, background)
    assert log.log_end_offset == 2
    assert len(disk.contents(path)) == log.size_bytes // 2
    log.update_config(replace(CONFIG, preallocate=True))
    log.roll()
    log.close()
    assert len(disk.contents("/data/t-0/00000000000000000002.log")) == 0
