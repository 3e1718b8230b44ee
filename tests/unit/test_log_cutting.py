"""A log that is cut at its end: what is known of producers then, and what had to be read for it."""

from __future__ import annotations

import pytest

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.values import AppendOrigin
from kafka_ds.wire.batch import ControlType
from tests.fakes.memory_disk import ManualClock, MemoryDisk
from tests.unit.log_model import client_batch, marker

NOW_MS = 1_700_000_000_000
# What a cut reads that does not depend on how much is kept: the headers of what goes, the last entries of an index.
READ_BYTES_MAX = 64 << 10


def open_log(disk: MemoryDisk) -> Log:
    clock = ManualClock(NOW_MS)
    return Log.open("/d/t-0", LogConfig(), disk, clock, topic="t", partition=0)


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
    assert read_bytes_of_cut(disk, log, end) >= log.size_bytes
    assert known(log) == expected
    assert log.last_stable_offset(end) == stable
