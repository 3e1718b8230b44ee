"""Opening a log of an old Kafka: its messages are batches afterwards, whatever stops it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from broker.log.failures import LogDirectoryError
from broker.log.log import Log
from broker.log.recovery import upconversion
from kafka_ds.records.batch import Record, build_batch, iterate_headers, read_records
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import encode_epochs
from kafka_ds.segments.index import AbortedTxn, encode_aborted
from tests.fakes.memory_disk import MemoryDisk, PowerLoss
from tests.unit.log.recovered_logs import CONFIG, FOLDER, bases, content, open_log, path
from tests.unit.records.old_sets import (
    Plain,
    Wrapper,
    all_records,
    encode,
    encode_all,
    some_entries,
)

NOW_MS = 1_700_000_000_000
Entries = Sequence[Wrapper | Plain]


def split_up(entries: Entries, segments: int) -> list[list[Wrapper | Plain]]:
    size = -(-len(entries) // segments)
    return [list(entries[start : start + size]) for start in range(0, len(entries), size)]


def plant(disk: MemoryDisk, parts: Sequence[tuple[int, bytes]], *, modified_ms: int = 0) -> None:
    """Segments as an old Kafka left them: unusable indexes, and a checkpoint without epochs."""
    disk.make_directory(FOLDER)
    for base, data in parts:
        disk.plant(path(base, names.LOG), data)
        disk.plant(path(base, names.OFFSET_INDEX), b"\0" * 8)
        disk.plant(path(base, names.TIME_INDEX), b"\0" * 12)
        disk.set_modified_ms(path(base, names.LOG), modified_ms)
    disk.plant(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}", encode_epochs([]))
    disk.sync_everything()


def old_segments(entries: Entries, segments: int = 3) -> list[tuple[int, bytes]]:
    parts = split_up(entries, segments)
    starts = [0, *(all_records(part)[-1].offset + 1 for part in parts[:-1])]
    return [(start, encode_all(part)) for start, part in zip(starts, parts, strict=True)]


def records_in(log: Log) -> list[Record]:
    data = content(log)
    return [r for at, header in iterate_headers(data) for r in read_records(data, at, header)]


def is_converted(disk: MemoryDisk) -> bool:
    return all(
        header.magic == 2
        for file in disk.paths()
        if file.endswith(names.LOG)
        for _, header in iterate_headers(disk.contents(file))
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 10**6])
def test_an_old_log_opens(
    clean: bool, recovery_point: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    entries = some_entries()
    plant(disk, old_segments(entries), modified_ms=77)
    with caplog.at_level("WARNING"):
        log = open_log(disk, clean=clean, recovery_point=recovery_point)
    expected = all_records(entries)
    assert f"{len(expected)} messages of formats 0 and 1 in 3 segments" in caplog.text
    assert records_in(log) == expected
    assert log.log_end_offset == expected[-1].offset + 1
    assert log.leader_epochs.entries == ((0, 0),)
    assert disk.modified_ms(path(0, names.LOG)) == 77
    assert not [file for file in disk.paths() if file.endswith((names.SWAP, names.CLEANED))]
    # Found by offset and by time, through indexes that were made anew.
    for record in expected[::5]:
        found = log.read(record.offset, max_bytes=1, upper_bound_offset=10**9, min_one_batch=True)
        (part,) = found.slices
        (first, *_) = [header for _, header in iterate_headers(part.read())]
        assert first.base_offset <= record.offset <= first.last_offset
    timed = next(record for record in expected if record.timestamp > 0)
    found_time = log.offset_for_timestamp(timed.timestamp)
    assert found_time is not None
    assert found_time.offset == timed.offset
    # It goes on as any log, and nothing is converted at the next start.
    batch = bytearray(build_batch([Record(0, NOW_MS, b"k", b"new")]))
    log.append(memoryview(batch), leader_epoch=4, now_ms=NOW_MS)
    log.close()
    caplog.clear()
    again = open_log(disk, clean=True)
    assert [record.value for record in records_in(again)] == [*(r.value for r in expected), b"new"]
    assert again.leader_epochs.entries == ((0, 0), (4, expected[-1].offset + 1))
    assert "formats 0 and 1" not in caplog.text


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_loses_nothing(power: bool) -> None:
    """The process is killed, or power fails, after each change to the disk; the next start finishes the work."""
    entries = some_entries()[3:12]
    expected = all_records(entries)
    parts = old_segments(entries, 2)
    aborted = AbortedTxn(3, 1, 2, 2)
    for steps in range(10_000):
        disk = MemoryDisk()
        plant(disk, parts)
        disk.plant(path(0, names.TRANSACTION_INDEX), encode_aborted([aborted]))
        disk.sync_everything()
        disk.crash_after = steps
        try:
            log = open_log(disk, clean=True)
            break
        except PowerLoss:
            if power:
                disk.lose_power(Random(steps))
            else:
                disk.kill()
        # What was begun is not clean any more; the recovery point vouched for both segments.
        log = open_log(disk, clean=steps % 2 == 0, recovery_point=10**6)
        assert records_in(log) == expected, steps
        assert log.leader_epochs.entries == ((0, 0),), steps
        assert is_converted(disk), steps
        assert list(log.aborted_transactions(0, 9)) == [aborted], steps
    assert steps > 15
    assert records_in(log) == expected


@pytest.mark.parametrize("clean", [True, False])
def test_segments_that_compaction_emptied_hide_no_old_ones(clean: bool) -> None:
    """Kafka 2.8.2 left an empty first segment, followed by messages of format 1."""
    disk = MemoryDisk()
    first, second = some_entries(100), some_entries(900)
    expected = all_records([*first, *second])
    parts = [(0, b""), (100, encode_all(first)), (700, b""), (900, encode_all(second))]
    plant(disk, parts)
    config = replace(CONFIG, cleanup_policy=("compact",))
    log = open_log(disk, config=config, clean=clean, recovery_point=10**6)
    assert is_converted(disk)
    assert records_in(log) == expected
    assert log.leader_epochs.entries == ((0, 0),)


def test_a_log_that_was_upgraded_keeps_its_batches_epochs_and_aborted_transactions() -> None:
    disk = MemoryDisk()
    old = some_entries()
    end = all_records(old)[-1].offset + 1
    new = build_batch([Record(end, NOW_MS, b"k", b"v")], leader_epoch=5)
    plant(disk, [(0, encode_all(old) + new)])
    aborted = AbortedTxn(3, end, end, end + 1)
    disk.plant(path(0, names.TRANSACTION_INDEX), encode_aborted([aborted]))
    disk.plant(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}", encode_epochs([(5, end)]))
    log = open_log(disk, clean=True)
    assert content(log).endswith(new)
    assert log.leader_epochs.entries == ((0, 0), (5, end))
    assert list(log.aborted_transactions(0, end + 1)) == [aborted]


def test_old_messages_behind_batches_are_converted_where_a_recovery_meets_them() -> None:
    """message.format.version had been taken back for a while."""
    disk = MemoryDisk()
    new = build_batch([Record(0, NOW_MS, b"k", b"v")], leader_epoch=2)
    old = some_entries(1)
    plant(disk, [(0, new + encode_all(old))])
    log = open_log(disk, clean=False)
    assert [r.value for r in records_in(log)] == [b"v", *(r.value for r in all_records(old))]
    assert {header.leader_epoch for _, header in iterate_headers(content(log))} == {2}


# -- damage ----------------------------------------------------------------------------------------


def damaged_segments(at_part: int) -> tuple[list[tuple[int, bytes]], list[Record]]:
    """Three segments, one with a flipped bit in its last message; and the bytes before it."""
    parts = split_up(some_entries(), 3)
    segments = old_segments(some_entries(), 3)
    base, data = segments[at_part]
    segments[at_part] = base, data[:-1] + bytes([data[-1] ^ 1])
    good = [entry for part in parts[: at_part + 1] for entry in part][:-1]
    return segments, all_records(good)


@pytest.mark.parametrize("at_part", [0, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_damage_below_the_recovery_point_changes_nothing(at_part: int, clean: bool) -> None:
    disk = MemoryDisk()
    segments, _ = damaged_segments(at_part)
    if at_part == 2 and not clean:
        segments.append((10**6, b""))  # The active segment is never vouched for.
    plant(disk, segments)
    with pytest.raises(
        LogDirectoryError,
        match=r"\.log: damaged at byte \d+ of \d+ \(a message does not match.* keep a copy",
    ):
        open_log(disk, clean=clean, recovery_point=0 if clean else 10**7)
    assert bytes(disk.contents(path(segments[at_part][0], names.LOG))) == segments[at_part][1]
    epochs = bytes(disk.contents(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}"))
    assert (epochs == encode_epochs([])) == (at_part == 0)  # What lies before was converted.
    assert not [file for file in disk.paths() if file.endswith((names.SWAP, names.CLEANED))]


@pytest.mark.parametrize("at_part", [0, 1, 2])
@pytest.mark.parametrize("compacted", [True, False])
def test_a_recovery_ends_the_log_at_damage(
    at_part: int, compacted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    segments, good = damaged_segments(at_part)
    plant(disk, segments)
    policy = ("compact" if compacted else "delete",)
    config = replace(CONFIG, cleanup_policy=policy, segment_bytes=1000, index_interval_bytes=100)
    log = open_log(disk, config=config)
    assert records_in(log) == good
    assert log.log_end_offset == good[-1].offset + 1
    assert bases(disk) == [base for base, _ in segments[: at_part + 1]]
    assert log.dropped is not None
    assert log.dropped.offset == log.log_end_offset
    assert log.dropped.end_offset == max(segments[-1][0] * (at_part < 2), log.log_end_offset)
    said = next(each.getMessage() for each in caplog.records if "invalid" in each.getMessage())
    assert "Found invalid messages in log segment " in said
    assert f"Truncating to offset {log.log_end_offset}: {log.dropped.size_bytes} bytes" in said


def test_a_crash_while_a_log_ends_at_damage_leaves_no_hole() -> None:
    """In a compacted log a gap between segments would be believed."""
    segments, good = damaged_segments(0)
    config = replace(CONFIG, cleanup_policy=("compact",), segment_bytes=1000)
    for steps in range(10_000):
        disk = MemoryDisk()
        plant(disk, segments)
        disk.crash_after = steps
        try:
            open_log(disk, config=config)
            break
        except PowerLoss:
            disk.kill()
        assert records_in(open_log(disk, config=config)) == good, steps
    assert steps > 10


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_in_the_first_message_is_damage_too(magic: int, more: int) -> None:
    """After a clean stop all is vouched for, so nothing is cut off."""
    first = encode(Plain(magic=magic, record=Record(0, NOW_MS, b"k", b"v")))
    data = first[:-1] + b"?" + encode_all(some_entries(1)[:more])
    disk = MemoryDisk()
    plant(disk, [(0, data)])
    with pytest.raises(LogDirectoryError, match="damaged at byte 0"):
        open_log(disk, clean=True)
    assert bytes(disk.contents(path(0, names.LOG))) == data
    assert open_log(disk, clean=False).log_end_offset == 0


@pytest.mark.parametrize("cut", [1, 15, 30])
def test_a_torn_end_is_cut_off(cut: int) -> None:
    disk = MemoryDisk()
    entries = some_entries()
    data = encode_all(entries)
    plant(disk, [(0, data[:-cut])])
    assert records_in(open_log(disk)) == all_records(entries[:-1])


def test_a_file_of_zeros_behind_the_messages_is_cut_off() -> None:
    """Kafka's preallocate=true, and a crash."""
    disk = MemoryDisk()
    entries = some_entries()
    plant(disk, [(0, encode_all(entries) + bytes(5000))])
    assert records_in(open_log(disk)) == all_records(entries)


def test_a_full_disk_leaves_the_segment_as_it_was() -> None:
    disk = MemoryDisk()
    segments = old_segments(some_entries(), 1)
    plant(disk, segments)
    disk.capacity_bytes = sum(len(disk.contents(each)) for each in disk.paths()) + 60
    with pytest.raises(OSError, match="no space|could not be written"):
        open_log(disk, clean=True)
    disk.capacity_bytes = None
    assert bytes(disk.contents(path(0, names.LOG))) == segments[0][1]
    assert records_in(open_log(disk, clean=True)) == all_records(some_entries())


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, *range(0, 40, 3)])
def test_a_segment_that_grows_too_large_becomes_two(
    monkeypatch: pytest.MonkeyPatch, steps: int | None
) -> None:
    monkeypatch.setattr(upconversion, "SEGMENT_BYTES_MAX", 700)
    disk = MemoryDisk()
    entries = some_entries()
    plant(disk, [(0, encode_all(entries))])
    disk.crash_after = steps
    try:
        log = open_log(disk, clean=True)
    except PowerLoss:
        disk.lose_power(Random(steps))
        log = open_log(disk, clean=True)
    assert records_in(log) == all_records(entries)
    assert len(bases(disk)) > 1
    assert all(disk.size(path(base, names.LOG)) <= 700 for base in bases(disk))


def test_a_message_larger_than_what_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upconversion, "READ_BYTES", 64)
    disk = MemoryDisk()
    large = Plain(magic=1, record=Record(0, NOW_MS, b"k", b"v" * 5000))
    rest = some_entries(1)
    plant(disk, [(0, encode(large) + encode_all(rest))])
    assert records_in(open_log(disk, clean=True)) == all_records([large, *rest])


def test_who_has_no_old_log_reads_one_head_of_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(3):
        log.append(
            memoryview(bytearray(build_batch([Record(0, NOW_MS, b"k", b"v")]))),
            leader_epoch=0,
            now_ms=NOW_MS,
        )
        log.roll()
    log.close()
    before = disk.bytes_read
    assert upconversion.begins_old(disk.open(path(0, names.LOG)).read, 100) is False
    assert disk.bytes_read - before == upconversion.HEAD_BYTES
