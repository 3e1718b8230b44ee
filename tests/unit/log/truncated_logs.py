"""What several tests use: open_log, give, append, OneRefusal and others."""

from __future__ import annotations

import errno

from broker.log.config import LogConfig
from broker.log.log import Log
from kafka_ds.records.batch import ControlType, stamp
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch, marker

NOW_MS = 1_700_000_000_000


DEFAULT = log_settings()


def open_log(
    disk: MemoryDisk,
    config: LogConfig = DEFAULT,
    *,
    clean_shutdown: bool = False,
    recovery_point: int = 0,
) -> Log:
    return Log.open(
        "/d/t-0",
        config,
        disk,
        ManualClock(NOW_MS),
        topic="t",
        partition=0,
        clean_shutdown=clean_shutdown,
        recovery_point=recovery_point,
    )


def give(log: Log, offset: int, count: int) -> None:
    """A leader's batch of this many records; a gap before it is due to compaction."""
    batch = memoryview(client_batch(count, timestamp_ms=NOW_MS))
    stamp(batch, 0, base_offset=offset, leader_epoch=0)
    log.append_as_follower(batch, leader_epoch=0, now_ms=NOW_MS)


def append(log: Log, producer_id: int, count: int, *, transactional: bool = False) -> None:
    """Batches of two records, in sequence, of 1 KiB, each later than all before."""
    state = log.producers.get(producer_id)
    sequence = state.last_sequence + 1 if state else 0
    for number in range(count):
        batch = client_batch(
            2,
            value_bytes=500,
            timestamp_ms=NOW_MS + log.log_end_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence + 2 * number,
            is_transactional=transactional,
        )
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


class OneRefusal:
    """Lets a disk refuse one operation after so many others."""

    def __init__(self, disk: MemoryDisk, after: int) -> None:
        self.is_over = False
        self._left = after
        self._check = disk.check
        disk.check = self.check  # type: ignore[method-assign]

    def check(self, operation: str) -> None:
        self._check(operation)
        if self._left == 0 and not self.is_over:
            self.is_over = True
            raise OSError(errno.ENOSPC, f"{operation} fails")
        self._left -= 1


def log_with_an_abort(disk: MemoryDisk, config: LogConfig, *, is_rolled: bool) -> Log:
    """A durable log that was closed well, of several segments, with an aborted transaction behind offset 5."""
    log = open_log(disk, config)
    for number in range(6):
        give(log, number, 1)
    append(log, 8, 2, transactional=True)
    abort = marker(ControlType.ABORT, 8, timestamp_ms=NOW_MS)
    origin = AppendOrigin.COORDINATOR
    log.append(memoryview(abort), leader_epoch=0, now_ms=NOW_MS, origin=origin)
    append(log, 9, 4)
    if is_rolled:
        log.roll()
    assert log.close()
    disk.kill()
    return open_log(disk, config, clean_shutdown=True)


def sequences(log: Log) -> dict[int, tuple[int, int]]:
    """The last sequence of each producer, and where its open transaction begins."""
    return {
        producer_id: (state.last_sequence, state.transaction_start)
        for producer_id, state in log.producers
    }
