"""Opening a log: what a stop, a crash or somebody else has left in its folder."""

from __future__ import annotations

import logging

import pytest

from broker.log.log import Log
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import ControlType, iterate_headers
from kafka_ds.segments import names
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch, marker
from tests.unit.log.recovered_logs import CONFIG, FOLDER, NOW_MS, bases, content, open_log, path


def fill(log: Log, batches: int = 30, *, producer_id: int = 9) -> None:
    """Batches of two records of one idempotent producer."""
    state = log.producers.get(producer_id)
    sequence = state.last_sequence + 1 if state else 0
    for index in range(batches):
        batch = client_batch(
            2,
            timestamp_ms=NOW_MS + index,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence + 2 * index,
        )
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)


def test_after_a_clean_stop_nothing_is_scanned(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 200)
    log.close()
    disk.bytes_read = 0
    log = open_log(disk, clean=True)
    assert log.log_end_offset == log.recovery_point == 400
    assert disk.bytes_read < 1500, (
        "the end of the last segment, its indexes, a snapshot, the epochs"
    )
    state = log.producers.get(9)
    assert state is not None
    assert state.last_sequence == 399


def test_a_clean_log_that_was_not_touched_is_not_written(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    log.close()
    log = open_log(disk, clean=True)
    disk.failing = {"write", "sync"}
    assert log.close()


def test_after_a_crash_only_what_is_past_the_recovery_point_is_scanned(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 200)
    log.flush(wait=True)  # Else nothing would have moved the recovery point.
    expected = content(log)
    disk.kill()
    first_bases = bases(disk)
    recovery_point = first_bases[-2]
    disk.bytes_read = 0
    log = open_log(disk, recovery_point=recovery_point)
    assert disk.bytes_read < 6 * CONFIG.segment_bytes, "two segments, twice: batches and producers"
    assert log.log_end_offset == 400
    assert content(log) == expected


@pytest.mark.parametrize("junk", [b"\0" * 500, b"junk" * 100, b"\xff" * 61, b"x"])
def test_nonsense_behind_the_end_is_cut_off(disk: MemoryDisk, junk: bytes) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    disk.kill()
    disk.contents(path(bases(disk)[-1], ".log")).extend(junk)
    log = open_log(disk)
    assert content(log) == expected
    fill(log, 1)
    assert log.log_end_offset == 62


def test_a_clean_stop_is_not_believed_against_the_evidence(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    log.close()
    disk.kill()
    disk.contents(path(bases(disk)[-1], ".log")).extend(b"junk")
    assert content(open_log(disk, clean=True)) == expected


@pytest.mark.parametrize("cut", [1, 30, 61, 90])
def test_a_torn_tail_is_cut_off(disk: MemoryDisk, cut: int) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    batch_bytes = len(expected) // 30
    disk.kill()
    data = disk.contents(path(bases(disk)[-1], ".log"))
    del data[-cut:]
    assert content(open_log(disk)) == expected[:-batch_bytes]


def test_a_bad_batch_in_the_middle_ends_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    batch_bytes = len(expected) // 30
    disk.kill()
    all_bases = bases(disk)
    disk.contents(path(all_bases[1], ".log"))[2 * batch_bytes + 70] ^= 1
    log = open_log(disk)
    assert log.log_end_offset == all_bases[1] + 2 * 2
    assert bases(disk) == all_bases[:2], "what came behind is gone"
    assert content(log) == expected[: len(content(log))]
    state = log.producers.get(9)
    assert state is not None
    assert state.last_sequence == log.log_end_offset - 1
    fill(log)
    disk.kill()
    assert open_log(disk).log_end_offset == log.log_end_offset


def test_a_segment_that_does_not_continue_the_one_before_goes(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    disk.kill()
    all_bases = bases(disk)
    data = disk.contents(path(all_bases[1], ".log"))
    del data[len(data) // 2 // 88 * 88 :]
    log = open_log(disk)
    assert log.log_end_offset < all_bases[2]
    assert bases(disk) == all_bases[:2]


def test_compaction_leaves_gaps_between_segments(disk: MemoryDisk) -> None:
    config = log_settings(segment_bytes=1000, index_interval_bytes=100, cleanup_policy=("compact",))
    log = open_log(disk, config=config)
    fill(log)
    batch_bytes = len(content(log)) // 30
    disk.kill()
    data = disk.contents(path(bases(disk)[1], ".log"))
    del data[-batch_bytes:]
    log = open_log(disk, config=config)
    assert log.log_end_offset == 60
    gap = bases(disk)[2] - 2
    found = log.read(gap, max_bytes=1000, upper_bound_offset=60, min_one_batch=True)
    assert next(iterate_headers(found.slices[0].read()))[1].base_offset == gap + 2


@pytest.mark.parametrize("why", ["gaps within", "durable", "neither"])
def test_gaps_stay_when_a_topic_is_not_compacted_any_more(disk: MemoryDisk, why: str) -> None:
    """What is behind them is all there; only without any trace of compaction a gap is the lost end of a file."""
    log = open_log(disk)
    fill(log)
    batch_bytes = len(content(log)) // 30
    disk.kill()
    del disk.contents(path(bases(disk)[1], ".log"))[-batch_bytes:]
    if why == "gaps within":
        del disk.contents(path(bases(disk)[0], ".log"))[batch_bytes : 2 * batch_bytes]
    elif why == "durable":  # But the first segment has to be read again.
        file = disk.open(path(0, names.TRANSACTION_INDEX), create=True)
        file.write(b"torn", 0)
        disk.kill()
    log = open_log(disk, recovery_point=60 if why == "durable" else 0)
    assert (log.log_end_offset == 60) is (why != "neither")


@pytest.mark.parametrize("kind", [names.OFFSET_INDEX, names.TIME_INDEX])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_index_is_made_anew(disk: MemoryDisk, kind: str, clean: bool) -> None:
    log = open_log(disk)
    fill(log)
    log.close()
    disk.kill()
    originals = {base: bytes(disk.contents(path(base, kind))) for base in bases(disk)}
    for base in originals:
        disk.unlink(path(base, kind))
    log = open_log(disk, clean=clean, recovery_point=60)
    log.close()
    for base, original in originals.items():
        assert disk.contents(path(base, kind)) == original


@pytest.mark.parametrize("damage", [b"abc", b"\xff" * 16, b"\x7f" * 24])
def test_a_corrupt_index_is_made_anew_when_it_is_read(disk: MemoryDisk, damage: bytes) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    log.close()
    disk.kill()
    originals = {}
    for base in bases(disk)[:-1]:
        for kind in (names.OFFSET_INDEX, names.TIME_INDEX):
            originals[path(base, kind)] = bytes(disk.contents(path(base, kind)))
            disk.contents(path(base, kind))[:] = damage
    log = open_log(disk, clean=True)
    assert content(log) == expected
    for offset in range(60):
        found = log.read(offset, max_bytes=1, upper_bound_offset=60, min_one_batch=True)
        data = found.slices[0].read()
        assert next(iterate_headers(data))[1].base_offset == offset // 2 * 2
    assert log.offset_for_timestamp(NOW_MS + 29) is not None
    assert {each: disk.contents(each) for each in originals} == originals


def test_a_corrupt_snapshot_falls_back_to_the_one_before(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    expected = log.producers.fingerprint()
    log.close()
    disk.kill()
    snapshots = sorted(each for each in disk.paths() if each.endswith(".snapshot"))
    for each in snapshots[-2:]:
        disk.contents(each)[20] ^= 1
    disk.bytes_read = 0
    log = open_log(disk, clean=True)
    state = log.producers.get(9)
    assert state is not None
    assert [batch.last_sequence for batch in state.batches][-1] == 59
    assert set(log.producers.fingerprint()) == set(expected)
    for each in snapshots:
        if disk.exists(each):
            disk.unlink(each)
    disk.kill()
    log = open_log(disk)
    assert log.producers.fingerprint() == expected, "from the batches alone"


@pytest.mark.parametrize("damage", ["cut", "version", "place"])
def test_a_damaged_transaction_index_is_made_anew(disk: MemoryDisk, damage: str) -> None:
    log = open_log(disk)
    for sequence in range(0, 20, 2):
        batch = client_batch(
            2,
            timestamp_ms=NOW_MS,
            producer_id=3,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
        abort = marker(ControlType.ABORT, 3, timestamp_ms=NOW_MS)
        log.append(
            memoryview(abort), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 10
    log.close()
    indexes = [each for each in disk.paths() if each.endswith(".txnindex")]
    assert len(indexes) > 1
    originals = {each: bytes(disk.contents(each)) for each in indexes}
    data = disk.contents(indexes[1])
    match damage:
        case "cut":
            del data[-3:]
        case "version":
            data[:2] = b"\x7f\x7f"
        case _:
            data[18:26] = bytes(8)  # The marker's place.
    log = open_log(disk, clean=True)
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert {each: disk.contents(each) for each in indexes} == originals


def test_leader_epochs_are_made_anew_from_the_batches(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for epoch in range(4):
        batch = client_batch(2, timestamp_ms=NOW_MS)
        log.append(memoryview(batch), leader_epoch=epoch, now_ms=NOW_MS)
    expected = log.leader_epochs.entries
    log.close()
    checkpoint = f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}"
    disk.contents(checkpoint)[:] = b"0\n4\n0 0\n1"
    log = open_log(disk, clean=True)
    assert log.leader_epochs.entries == expected
    log.close()
    assert disk.read_file(checkpoint) == b"0\n4\n0 0\n1 2\n2 4\n3 6\n"


def test_leftovers_are_removed(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    log.close()
    leftovers = [
        path(0, ".log") + ".deleted",
        path(0, ".index") + ".deleted",
        path(4, ".snapshot") + ".deleted",
        path(0, ".log") + ".cleaned",
        path(0, ".timeindex") + ".cleaned",
        path(999, ".index"),
        path(999, ".txnindex"),
        path(999, ".snapshot"),
        f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}.tmp",
    ]
    for each in leftovers:
        disk.plant(each, b"whatever")
    disk.plant(f"{FOLDER}/notes.txt", b"not ours")
    log = open_log(disk, clean=True)
    assert content(log) == expected
    assert not set(leftovers) & set(disk.paths())
    assert disk.exists(f"{FOLDER}/notes.txt")


def test_a_swap_is_completed(disk: MemoryDisk) -> None:
    """A cleaned segment that got its last name but one: it covers the first two segments."""
    log = open_log(disk)
    fill(log)
    log.close()
    disk.kill()
    all_bases = bases(disk)
    merged = b"".join(bytes(disk.contents(path(base, ".log"))) for base in all_bases[:2])
    disk.plant(path(0, ".log") + ".swap", merged)
    log = open_log(disk, clean=True)
    assert bases(disk) == [0, *all_bases[2:]]
    assert len(content(log)) == len(merged) + sum(
        len(disk.contents(path(base, ".log"))) for base in all_bases[2:]
    )
    assert log.log_end_offset == 60


def test_a_swap_that_was_half_prepared_is_undone(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    expected = content(log)
    log.close()
    disk.plant(path(0, ".log") + ".swap", b"")
    disk.plant(path(0, ".log") + ".cleaned", b"")
    assert content(open_log(disk, clean=True)) == expected


def test_a_log_that_ends_before_its_start_begins_anew(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    assert log.close()
    disk.kill()
    log = open_log(disk, clean=True)  # The snapshot at its end is that of no segment.
    fill(log, 30)
    disk.kill()
    where = FOLDER, CONFIG, disk, ManualClock()
    log = Log.open(*where, topic="t", partition=0, log_start_offset=100, recovery_point=79)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert bases(disk) == [100]
    assert len(log.producers) == 0


def test_truncation_forgets_what_was_cut(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log)
    log.assign_leader_epoch(1, 50)
    log.truncate_to(20)
    assert log.log_end_offset == 20
    assert log.leader_epochs.entries == ((0, 0),)
    state = log.producers.get(9)
    assert state is not None
    assert state.last_sequence == 19
    with pytest.raises(KafkaError) as raised:
        batch = client_batch(
            1, timestamp_ms=NOW_MS, producer_id=9, producer_epoch=0, base_sequence=60
        )
        log.append(memoryview(batch), leader_epoch=2, now_ms=NOW_MS)
    assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    fill(log)
    expected = content(log)
    disk.kill()
    assert content(open_log(disk)) == expected


def test_a_checkpoint_from_before_the_crash_does_not_date_what_came_after(
    disk: MemoryDisk,
) -> None:
    """Epoch 9 began at 35 once; that was lost, and what it wrote later begins at 20."""
    log = open_log(disk)
    fill(log, 10)
    log.append(memoryview(client_batch(2, timestamp_ms=NOW_MS)), leader_epoch=9, now_ms=NOW_MS)
    disk.kill()
    disk.plant(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}", b"0\n2\n0 0\n9 35\n")
    assert open_log(disk).leader_epochs.entries == ((0, 0), (9, 20))


def test_a_sync_from_before_a_cut_does_not_count(disk: MemoryDisk) -> None:
    background = ManualBackground()
    log = Log.open(
        FOLDER, CONFIG, disk, ManualClock(), topic="t", partition=0, background=background
    )
    fill(log)
    log.flush()
    log.truncate_to(20)
    background.run()
    assert log.recovery_point == 0
    log.flush()
    background.run()
    assert log.recovery_point == 20


def lose_power_keeping_names(disk: MemoryDisk) -> None:
    """All names survive, and of contents only what was synced."""
    disk.kill()
    for path_ in disk.paths():
        inode = disk.names[path_]
        inode.data[:] = inode.durable
        inode.changes.clear()


def test_what_a_failed_write_left_is_gone_for_good(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    log.flush(wait=True)
    disk.capacity_bytes = sum(len(disk.contents(each)) for each in disk.paths()) + 5
    with pytest.raises(KafkaError):
        fill(log, 1)
    disk.capacity_bytes = None
    inode = disk.names[path(0, ".log")]
    assert inode.changes == [], "the cut is as durable as the five bytes were not"


def test_indexes_below_the_recovery_point_are_durable(disk: MemoryDisk) -> None:
    """A roll after a flush has nothing to sync: the flush must have synced the indexes too."""
    log = open_log(disk)
    fill(log, 9)
    log.flush(wait=True)
    expected = {kind: bytes(disk.contents(path(0, kind))) for kind in (".index", ".timeindex")}
    log.roll()
    lose_power_keeping_names(disk)
    log = open_log(disk, recovery_point=18)
    log.roll()
    assert {kind: bytes(disk.contents(path(0, kind))) for kind in expected} == expected
    assert log.offset_for_timestamp(NOW_MS + 8) is not None


def test_a_producer_of_old_records_is_known_after_a_restart(disk: MemoryDisk) -> None:
    """What is past is the time of its records; it wrote them a moment ago, and may have to send the last ones again."""
    year_ms = 365 * 24 * 3_600_000
    batch = client_batch(
        2, timestamp_ms=NOW_MS - year_ms, producer_id=9, producer_epoch=0, base_sequence=0
    )
    log = open_log(disk)
    log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    log = open_log(disk, clean=True)
    assert log.append(memoryview(batch), leader_epoch=1, now_ms=NOW_MS).duplicate
    assert log.log_end_offset == 2


# -- what goes is said ----------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_bad_batch_in_the_middle_is_told(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(disk)
    fill(log)
    batch_bytes = len(content(log)) // 30
    size_bytes = log.size_bytes
    disk.kill()
    second = bases(disk)[1]
    disk.contents(path(second, ".log"))[2 * batch_bytes + 70] ^= 1
    log = open_log(disk)
    (line,) = warnings(caplog)
    end = second + 4
    assert line.startswith(
        f"t-0: Found invalid messages in log segment {path(second, '.log')} at byte offset {2 * batch_bytes}: "
        f"CRC mismatch in the batch at offset {end}. Truncating to offset {end}: "
    )
    assert log.dropped is not None
    gone = size_bytes - log.size_bytes
    assert f"{gone} bytes are dropped, with offsets {end} to 59, " in line
    assert line.endswith(" later segments among them")
    assert (log.dropped.offset, log.dropped.end_offset) == (end, 60)
    assert log.dropped.size_bytes == gone
    assert log.known_end_offset == 60


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"x", "1 bytes are no whole batch header"),
        (b"\0" * 200, "zeros, never written"),
        (b"junk" * 30, "no record batch: magic byte 106"),
        (0, "torn batch: 70 of {} bytes are there"),
        (23, "the batch header is corrupt"),  # The sign of lastOffsetDelta.
        (16, "no record batch: magic byte"),
        (7, "offset {} is out of order"),
        (3, "offset {} is too far"),
    ],
)
def test_the_reason_is_told(
    disk: MemoryDisk,
    caplog: pytest.LogCaptureFixture,
    damage: bytes | int,
    reason: str,
) -> None:
    """Junk behind the last batch; or the last batch is torn, or has another byte at a place."""
    log = open_log(disk)
    fill(log)
    batch_bytes = len(content(log)) // 30
    disk.kill()
    data = disk.contents(path(bases(disk)[-1], ".log"))
    if isinstance(damage, bytes):
        data.extend(damage)
    elif damage == 0:
        del data[-batch_bytes + 70 :]
    else:
        data[damage - batch_bytes] = {3: 1, 7: 1}.get(damage, 0xF1)
    open_log(disk)
    (line,) = warnings(caplog)
    assert reason.partition("{}")[0] in line
    assert ("with offsets" in line) is (damage == 7 and "59" in line)


def test_a_torn_tail_has_no_whole_batch(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(disk)
    fill(log)
    disk.kill()
    del disk.contents(path(bases(disk)[-1], ".log"))[-1:]
    log = open_log(disk)
    assert "bytes are dropped, no whole batch" in warnings(caplog)[0]
    assert log.dropped is not None
    assert log.known_end_offset == log.dropped.end_offset == log.log_end_offset == 58


def test_nothing_is_told_of_a_whole_log(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    config = log_settings(segment_bytes=1000, index_interval_bytes=100, preallocate=True)
    log = open_log(disk, config=config)
    fill(log)
    disk.kill()
    log = open_log(disk, config=config)  # The rest of the preallocated file holds zeros.
    assert log.log_end_offset == 60
    assert not warnings(caplog)
    assert log.dropped is None


def test_what_the_recovery_point_vouched_for_is_known(disk: MemoryDisk) -> None:
    """The file ends with a whole batch, but not where it ended when it was synced."""
    log = open_log(disk)
    fill(log)
    last = bases(disk)[-1]
    disk.kill()
    del disk.contents(path(last, ".log"))[:]
    log = open_log(disk, recovery_point=60)
    assert log.log_end_offset == last
    assert log.known_end_offset == 60


def test_a_gap_between_segments_is_told(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(disk)
    fill(log)
    batch_bytes = len(content(log)) // 30
    disk.kill()
    third = bases(disk)[2]
    del disk.contents(path(bases(disk)[1], ".log"))[-batch_bytes:]
    open_log(disk)
    assert f": the next segment begins at offset {third}. Truncating to" in warnings(caplog)[0]


def test_all_that_goes_below_the_log_start_is_told(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(disk)
    fill(log, 10)
    size_bytes = log.size_bytes
    disk.kill()
    where = FOLDER, CONFIG, disk, ManualClock()
    log = Log.open(*where, topic="t", partition=0, log_start_offset=100, recovery_point=20)
    (line,) = warnings(caplog)
    assert line == (
        "t-0: Deleting all segments because logEndOffset 20 was smaller than logStartOffset 100: "
        f"{size_bytes} bytes are dropped, and the log goes on at offset 100"
    )
    assert log.dropped is None, "all of it was deleted before"


def test_a_damaged_end_after_a_clean_stop_is_told(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(disk)
    fill(log)
    log.close()
    disk.kill()
    disk.contents(path(bases(disk)[-1], ".log")).extend(b"junk")
    open_log(disk, clean=True)
    first, second = warnings(caplog)
    assert "was shut down cleanly" in first
    assert "Found invalid messages" in second


def test_what_is_rebuilt_is_told(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Epochs, producers, and an index without its segment; then the index of aborted transactions."""
    log = open_log(disk)
    fill(log)
    log.close()
    disk.kill()
    disk.plant(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}", b"0\n2\nwhat")
    disk.plant(path(60, ".snapshot"), b"whatever")
    disk.plant(path(999, ".timeindex"), b"")
    log = open_log(disk, clean=True)
    said = "\n".join(warnings(caplog))
    assert f"ignoring {FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}: " in said
    assert f"Failed to load producer snapshot from {path(60, '.snapshot')}" in said
    assert f"Found an orphaned index file {path(999, '.timeindex')}" in said
    assert log.close()
    caplog.clear()
    second = path(bases(disk)[1], "")
    disk.plant(second + ".txnindex", b"odd")
    assert open_log(disk, clean=True).log_end_offset == 60
    (line,) = warnings(caplog)
    assert f"Found a corrupted index file corresponding to log file {second}.log: .txnindex" in line


def test_a_corrupt_index_is_told(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(disk)
    fill(log)
    log.close()
    disk.plant(path(0, ".index"), b"odd")
    log = open_log(disk, clean=True)
    log.read(4, max_bytes=100, upper_bound_offset=60, min_one_batch=True)
    assert warnings(caplog) == [
        f"Found a corrupted index file corresponding to log file {path(0, '.log')}, "
        "rebuilding indexes..."
    ]
