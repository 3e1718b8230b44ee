"""leader-epoch-checkpoint: written with what makes a log durable, and by then as late as it may be."""

from __future__ import annotations

import errno
from collections.abc import Callable

from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from kafka_ds.records.batch import stamp
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import decode_epochs
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
FOLDER = "/data/t-0"
PATH = f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}"
EVERY_CHANGE = {"create", "write", "truncate", "rename", "unlink", "sync", "sync_directory"}


def open_log(
    disk: MemoryDisk, background: ManualBackground, *, recovery_point: int = 0, tiered: bool = False
) -> Log:
    return Log.open(
        FOLDER,
        log_settings(remote_storage_enable=tiered),
        disk,
        ManualClock(NOW_MS),
        topic="t",
        partition=0,
        recovery_point=recovery_point,
        background=background,
    )


def append(log: Log, leader_epoch: int, *, as_follower: bool = False) -> None:
    batch = client_batch(1, timestamp_ms=NOW_MS)
    if as_follower:
        stamp(batch, 0, base_offset=log.log_end_offset, leader_epoch=leader_epoch)
        log.append_as_follower(memoryview(batch), leader_epoch=leader_epoch, now_ms=NOW_MS)
    else:
        log.append(memoryview(batch), leader_epoch=leader_epoch, now_ms=NOW_MS)


def test_an_election_touches_no_file() -> None:
    """Hundreds of partitions get a new epoch at once, in the event loop."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background)
    append(log, 0)
    disk.failing = set(EVERY_CHANGE)
    log.assign_leader_epoch(3, log.log_end_offset)
    disk.failing = EVERY_CHANGE - {"write"}
    append(log, 4, as_follower=True)
    assert not background.waiting
    disk.failing = set()
    log.flush()
    assert not disk.exists(PATH), "the thread that waits for the disk writes it"
    background.run()
    assert decode_epochs(disk.read_file(PATH)) == [(0, 0), (4, 1)]


def test_epochs_behind_the_recovery_point_come_from_the_batches() -> None:
    """Killed after an election, and after a cut: the file is older than either, and it does not matter."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background)
    for epoch in (0, 2, 2, 5):
        append(log, epoch)
    log.flush(wait=True)
    log.truncate_to(2)
    append(log, 6, as_follower=True)
    log.assign_leader_epoch(7, log.log_end_offset)
    expected = [(0, 0), (2, 1), (6, 2)]
    assert list(log.leader_epochs.entries) == [*expected, (7, 3)]
    disk.kill()
    assert decode_epochs(disk.read_file(PATH)) == [(0, 0), (2, 1), (5, 3)]
    assert list(open_log(disk, background, recovery_point=2).leader_epochs.entries) == expected


def test_epochs_that_no_batch_tells_of_are_written_at_once() -> None:
    """The log starts over at the end of the lake."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background, tiered=True)
    append(log, 0)
    log.restart_at(50, RemoteLogAuxState(leader_epochs=((1, 0), (4, 20))))
    disk.kill()
    log = open_log(disk, background, tiered=True)
    assert list(log.leader_epochs.entries) == [(1, 0), (4, 20)]
    log.restart_at(60)
    disk.kill()
    assert not open_log(disk, background, tiered=True).leader_epochs.entries


def test_a_log_whose_epochs_are_not_written_is_not_left_cleanly() -> None:
    """A clean start believes the file, and no batch tells of them."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background, tiered=True)
    log.restart_at(50, RemoteLogAuxState(leader_epochs=((1, 0),)))
    log.flush(wait=True)
    disk.rename = _refuse_epochs(disk)  # type: ignore[method-assign]
    log.restart_at(50, RemoteLogAuxState(leader_epochs=((1, 0), (4, 20))))
    assert not log.close()


def _refuse_epochs(disk: MemoryDisk) -> Callable[[str, str], None]:
    rename = disk.rename

    def refuse(source: str, target: str) -> None:
        if target == PATH:
            raise OSError(errno.ENOSPC, "full", source)
        rename(source, target)

    return refuse


def test_what_was_known_last_stays() -> None:
    """Two flushes are under way, and the first one comes later to the file."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background)
    append(log, 0)
    log.flush()
    append(log, 1)
    log.flush()
    background.waiting.reverse()
    background.run()
    assert decode_epochs(disk.read_file(PATH)) == [(0, 0), (1, 1)]


def test_a_deleted_log_writes_nothing_into_the_folder_of_its_successor() -> None:
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background)
    append(log, 7)
    log.flush()
    log.abandon()
    disk.rename(FOLDER, f"{FOLDER}-delete")
    open_log(disk, background)
    background.run()
    assert not disk.exists(PATH)


def test_a_full_disk_puts_no_log_out_of_order() -> None:
    """The file is written by the thread that syncs: what fails there before the sync has lost nothing."""
    disk, background = MemoryDisk(), ManualBackground()
    log = open_log(disk, background)
    append(log, 0)
    outcomes: list[BaseException | None] = []
    log.flush(then=outcomes.append)
    disk.capacity_bytes = 0
    background.run()
    assert isinstance(outcomes[0], OSError)
    assert (log.storage_error, log.recovery_point) == (None, 0)
    disk.capacity_bytes = None
    log.flush(then=outcomes.append)
    background.run()
    assert (outcomes[1], log.recovery_point) == (None, 1)
    assert decode_epochs(disk.read_file(PATH)) == [(0, 0)]
