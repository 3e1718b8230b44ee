"""Finding batches and times in a log of several segments."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.log.log import Log
from broker.log.replay import LoadFailed, replay_log
from broker.log.values import LogRead
from kafka_ds.process.seams import Disk
from kafka_ds.process.system import SystemDisk
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import BatchHeader, CorruptRecord, crc_is_valid, iterate_headers
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk, MemoryFile
from tests.fakes.settings import log_settings
from tests.loops import in_loop
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
CONFIG = log_settings(segment_bytes=4000, index_interval_bytes=400)


@pytest.fixture
def log(disk: MemoryDisk) -> Iterator[Log]:
    """100 batches of 3 records; each batch is a second later than the one before."""
    log = open_log(disk)
    for index in range(100):
        batch = client_batch(3, value_bytes=20, timestamp_ms=NOW_MS + 1000 * index)
        log.append(memoryview(batch), leader_epoch=index // 40, now_ms=NOW_MS + 1000 * index)
    yield log


def open_log(disk: Disk, *, folder: str | Path = "/data", clean: bool = False) -> Log:
    return Log.open(
        f"{folder}/t-0", CONFIG, disk, ManualClock(), topic="t", partition=0, clean_shutdown=clean
    )


def offsets(log: Log, found: LogRead) -> list[int]:
    data = b"".join(part.read() for part in found.slices)
    headers = [header for _, header in iterate_headers(data)]
    assert sum(header.size_in_bytes for header in headers) == len(data) == found.size_bytes
    return [header.base_offset for header in headers]


def read(log: Log, offset: int, *, bound: int | None = None, max_bytes: int = 1 << 20) -> LogRead:
    return log.read(
        offset,
        max_bytes=max_bytes,
        upper_bound_offset=log.log_end_offset if bound is None else bound,
        min_one_batch=False,
    )


def test_every_offset_is_found_in_its_batch(log: Log) -> None:
    for offset in range(300):
        assert offsets(log, read(log, offset))[0] == offset // 3 * 3


def test_it_is_found_again_after_a_restart(log: Log, disk: MemoryDisk) -> None:
    log.close()
    log = open_log(disk, clean=True)
    for offset in range(300):
        assert offsets(log, read(log, offset))[0] == offset // 3 * 3


def test_nothing_at_or_above_the_bound(log: Log) -> None:
    for bound in range(0, 300, 7):
        for offset in range(bound // 3 * 3, bound):
            assert all(base + 3 <= bound for base in offsets(log, read(log, offset, bound=bound)))
        assert read(log, bound, bound=bound).slices == ()
    assert offsets(log, read(log, 294, bound=300)) == [294, 297]
    assert offsets(log, read(log, 294, bound=299)) == [294]
    assert read(log, 10, bound=5).size_bytes == 0


@pytest.mark.parametrize("max_bytes", [200, 300, 1000, 3999])
def test_a_read_ends_at_a_batch(log: Log, max_bytes: int) -> None:
    offset, collected = 0, []
    while offset < 300:
        found = read(log, offset, max_bytes=max_bytes)
        assert found.size_bytes <= max_bytes
        batches = offsets(log, found)
        collected += batches
        assert batches[-1] + 3 <= found.upper_bound_offset
        offset = batches[-1] + 3
    assert collected == list(range(0, 300, 3))


def test_one_whole_batch_at_least_where_asked_for(log: Log) -> None:
    assert read(log, 30, max_bytes=50).slices == ()
    found = log.read(30, max_bytes=0, upper_bound_offset=300, min_one_batch=True)
    assert offsets(log, found) == [30]
    assert found.upper_bound_offset == 33


@pytest.mark.parametrize("offset", [-1, 301])
def test_out_of_range(log: Log, offset: int) -> None:
    with pytest.raises(KafkaError) as raised:
        read(log, offset)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(log, 300).slices == ()


def test_below_the_start_is_out_of_range(log: Log) -> None:
    log.advance_log_start_offset(100)
    with pytest.raises(KafkaError):
        read(log, 99)
    assert offsets(log, read(log, 100))[0] == 99


def test_a_sequential_reader_reads_no_header_twice(log: Log, disk: MemoryDisk) -> None:
    found = read(log, 0, max_bytes=1000)
    offset = offsets(log, found)[-1] + 3
    disk.bytes_read = 0
    found = read(log, offset, max_bytes=1 << 20)
    assert disk.bytes_read == 0
    assert found.slices[0].position > 0


def test_the_tail_is_found_without_the_disk(log: Log, disk: MemoryDisk) -> None:
    disk.is_cold = True
    disk.bytes_read = 0
    for offset in range(294, 300):
        found = log.read(
            offset, max_bytes=1000, upper_bound_offset=300, min_one_batch=True, may_wait=False
        )
        assert found.size_bytes
        assert found.slices[0].read_now() is None, "cold: to be read in a thread"
    assert disk.bytes_read == 0


def test_nothing_more_is_sent_of_what_was_truncated_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    log = open_log(SystemDisk(), folder=tmp_path)
    for _ in range(4):
        log.append(
            memoryview(client_batch(3, value_bytes=200, timestamp_ms=NOW_MS)),
            leader_epoch=0,
            now_ms=NOW_MS,
        )
    sending = read(log, 0).slices[0].sendable()
    assert sending is not None
    here, there = socket.socketpair()
    with here, there:
        begun = sending.send(here.fileno(), 500)
        log.truncate_to(9)
        log.append(
            memoryview(client_batch(3, value_bytes=200, timestamp_ms=NOW_MS)),
            leader_epoch=1,
            now_ms=NOW_MS,
        )
        with pytest.raises(OSError, match="truncated while it was being sent"):
            sending.send(here.fileno(), 5000)
        again = read(log, 0).slices[0].sendable()
        assert again is not None
        assert again.send(here.fileno(), 500) == begun == 500
    log.close()


def test_a_cold_header_is_not_waited_for(log: Log, disk: MemoryDisk) -> None:
    disk.is_cold = True
    with pytest.raises(BlockingIOError):
        log.read(10, max_bytes=10, upper_bound_offset=300, min_one_batch=True, may_wait=False)


def test_times(log: Log) -> None:
    for index in range(100):
        for shift_ms, expected in ((-500, (0, 0)), (0, (0, 0)), (1, (1, 1)), (2, (2, 2))):
            found = log.offset_for_timestamp(NOW_MS + 1000 * index + shift_ms)
            assert found is not None
            assert found.timestamp_ms == NOW_MS + 1000 * index + expected[0]
            assert found.offset == 3 * index + expected[1]
            assert found.leader_epoch == index // 40
    assert log.offset_for_timestamp(NOW_MS + 99_003) is None
    latest = log.max_timestamp_offset()
    assert latest == (NOW_MS + 99_002, 299, 2)


def test_times_below_the_start_do_not_count(log: Log) -> None:
    log.advance_log_start_offset(31)
    found = log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 31


def test_times_of_a_batch_within_which_the_log_begins(disk: MemoryDisk) -> None:
    """All its records have the broker's time: the first of those that are left is the answer."""
    config = log_settings(message_timestamp_type="LogAppendTime")
    log = Log.open("/data/u-0", config, disk, ManualClock(), topic="u", partition=0)
    for number in range(2):
        batch = client_batch(10, timestamp_ms=0)
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS + number)
    log.advance_log_start_offset(5)
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 5, 0)
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 10, 0)


def test_an_empty_log_has_no_times(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_an_undecodable_batch_has_a_place_all_the_same(disk: MemoryDisk) -> None:
    """Its checksum holds, so a follower takes it; what its records are nobody can say."""
    from tests.unit.log.batch_headers import with_header

    log = open_log(disk)
    good = bytes(client_batch(3, timestamp_ms=NOW_MS))
    bad = with_header(good[:61] + b"\xff" * (len(good) - 61), record_count=3)
    origin = AppendOrigin.REPLICATION
    log.append(memoryview(bytearray(bad)), leader_epoch=0, now_ms=NOW_MS, origin=origin)
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found.offset == 0
    assert log.max_timestamp_offset() is not None


def test_segments_as_tiering_sees_them(log: Log) -> None:
    views = log.rolled_segments()
    assert [view.base_offset for view in views[1:]] == [view.next_offset for view in views[:-1]]
    for view in views:
        assert view.size_bytes <= CONFIG.segment_bytes
        assert view.max_timestamp_ms == NOW_MS + (view.next_offset // 3 - 1) * 1000 + 2
        assert view.producer_snapshot is not None
        owners = log.leader_epochs.between(view.base_offset, view.next_offset)
        epochs = [epoch for epoch, _ in owners]
        assert epochs[0] == view.base_offset // 3 // 40
        assert epochs[-1] == (view.next_offset - 1) // 3 // 40
    assert log.rolled_segments(views[2].next_offset) == views[3:]


def test_an_index_that_is_made_anew_hides_nothing_meanwhile(
    log: Log, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any thread may find that an index is damaged, while others read the same segment."""
    assert log.close()
    disk.kill()
    path = log.segments.all[0].path
    disk.contents(path.removesuffix(".log") + ".index")[:4] = b"\xff\xff\xff\xff"
    log = open_log(disk, clean=True)
    size_bytes, seen = log.size_bytes, []
    original = MemoryFile.read

    def read_and_look(file: MemoryFile, size: int, position: int) -> bytes:
        if file.path == path and size > 1000 and not seen:
            seen.append(log.size_bytes)
            seen.append(offsets(log, read(log, 20))[0])
        return original(file, size, position)

    monkeypatch.setattr(MemoryFile, "read", read_and_look)
    assert offsets(log, read(log, 10))[0] == 9
    assert seen == [size_bytes, 18]
    assert log.max_timestamp_offset() is not None
    assert log.size_bytes == size_bytes


# -- damage under a running log, or after a clean stop, when nothing is scanned -------------------


def next_sound(headers: Iterator[tuple[int, BatchHeader]], data: bytes) -> Any:
    """The next batch as a client checks it for itself."""
    try:
        position, header = next(headers)
    except StopIteration:
        return None
    except CorruptRecord as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE) from error
    if not crc_is_valid(data, position, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
    return position, header


def read_all(log: Log, max_bytes: int) -> list[bytes]:
    """What a consumer gets that reads to the end, batch by batch; raises KafkaError where it can go no further."""
    offset, found = 0, []
    while offset < log.log_end_offset:
        part = log.read(
            offset, max_bytes=max_bytes, upper_bound_offset=log.log_end_offset, min_one_batch=True
        )
        assert part.slices, f"nothing at {offset}, and no error"
        data = b"".join(each.read() for each in part.slices)
        headers = iterate_headers(data)
        while (each := next_sound(headers, data)) is not None:
            position, header = each
            assert header.base_offset <= offset, f"{offset} is passed over"
            found.append(data[position : position + header.size_in_bytes])
            offset = header.next_offset
    return found


@pytest.mark.parametrize("at", [8, 10, 16])
@in_loop
async def test_a_coordinator_does_not_load_past_a_damaged_header(
    log: Log, disk: MemoryDisk, at: int
) -> None:
    assert log.close()
    segment = log.segments.all[1]
    batch_bytes = next(iterate_headers(disk.contents(segment.path)))[1].size_in_bytes
    disk.contents(segment.path)[4 * batch_bytes + at] ^= 0x41
    log = open_log(disk, clean=True)
    seen: list[int] = []

    def replay(_: object, position: int, header: BatchHeader) -> int:
        seen.append(header.base_offset)
        return 1

    with pytest.raises((LoadFailed, KafkaError)):
        async for _ in replay_log(log, replay):
            pass
    assert seen == list(range(0, segment.base_offset + 12, 3))


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("where", ["closed", "last"])
def test_a_damaged_header_is_an_error_and_never_passed_over(
    disk: MemoryDisk, where: str, max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(disk)
    for index in range(60):
        batch = client_batch(3, value_bytes=20, timestamp_ms=NOW_MS + index)
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
    segment = log.segments.all[1 if where == "closed" else -1]
    batch_bytes = len(batch)
    position, path = batch_bytes * 4, segment.path
    whole = read_all(log, max_bytes)
    assert log.close()
    for at in (8, 9, 10, 11, 16):  # Its length, and its magic.
        for bit in range(0, 8, 3):
            disk.contents(path)[position + at] ^= 1 << bit
            log = open_log(disk, clean=True)
            if log.log_end_offset < 180:
                assert where == "last", "only the end is looked at after a clean stop"
            else:
                caplog.clear()
                with pytest.raises(KafkaError) as raised:
                    assert read_all(log, max_bytes) != whole
                assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
                if at in (10, 11):
                    disk.contents(path)[position + at] ^= 1 << bit
                    continue  # What it claims to hold is there: its checksum is wrong.
                offset = segment.base_offset + 12
                with pytest.raises(KafkaError) as raised:
                    read(log, offset, max_bytes=max_bytes)
                assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
                assert (
                    f"t-0: Found invalid messages in log segment {path} at byte offset {position}"
                    in (caplog.text)
                )
            disk.contents(path)[position + at] ^= 1 << bit


@pytest.mark.parametrize("at", [8, 16])
def test_a_time_behind_damage_is_an_error_and_no_later_offset(
    log: Log, disk: MemoryDisk, at: int
) -> None:
    """A consumer that begins at a time would else begin behind what is damaged, and miss it without a word."""
    segment = log.segments.all[1]
    damaged = segment.base_offset // 3 + 1
    assert log.close()
    batch_bytes = next(iterate_headers(disk.contents(segment.path)))[1].size_in_bytes
    disk.contents(segment.path)[batch_bytes + at] ^= 0x41
    log = open_log(disk, clean=True)
    before = log.offset_for_timestamp(NOW_MS + 1000 * (damaged - 1))
    assert before is not None and before.offset == segment.base_offset
    with pytest.raises(KafkaError) as raised:
        log.offset_for_timestamp(NOW_MS + 1000 * damaged)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    behind = log.offset_for_timestamp(NOW_MS + 1000 * 99)
    assert behind is not None and behind.offset == 3 * 99


def test_the_greatest_time_in_a_damaged_batch_is_an_error(log: Log, disk: MemoryDisk) -> None:
    batch = client_batch(3, value_bytes=20, timestamp_ms=NOW_MS + 10**6)
    log.append(memoryview(batch), leader_epoch=2, now_ms=NOW_MS)
    segment = log.active
    position = segment.position_of(300)
    log.roll()
    log.append(memoryview(client_batch(3, timestamp_ms=NOW_MS)), leader_epoch=2, now_ms=NOW_MS)
    assert log.close()
    disk.contents(segment.path)[position + 16] ^= 0x41
    with pytest.raises(KafkaError) as raised:
        open_log(disk, clean=True).max_timestamp_offset()
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
