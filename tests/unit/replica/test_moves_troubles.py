"""Moves between log directories on disks that fail or are full."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.replica.fetcher.metrics import FAILED_MOVES
from kafka_ds.process.settings import MAX_LONG
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.loops import in_loop
from tests.unit.log.log_model import client_batch
from tests.unit.replica.moves_bench import (
    begin_slowly,
    future,
    lags_and_failures,
    move,
    until_ended,
)
from tests.unit.replica.moving_bench import NOW_MS, MovingBench


@in_loop
async def test_a_directory_that_fails_ends_its_moves() -> None:
    bench = MovingBench()
    bench.append(20)

    def fail() -> None:
        bench.disk.broken = {"/b"}
        bench.append(5)

    bench.on_wait = fail
    await move(bench)
    assert dict(lags_and_failures(bench))[FAILED_MOVES] == 1
    assert bench.manager.failures["/b"] is not None
    assert (bench.log.directory, bench.log.log_end_offset) == ("/a/t-0", 25)
    assert not bench.log.compaction.is_paused


@in_loop
async def test_a_full_disk_is_waited_for() -> None:
    bench = MovingBench()
    bench.append(20)
    bench.disk.capacity_bytes = sum(len(bench.disk.contents(p)) for p in bench.disk.paths()) + 900
    bench.moves.alter(TopicPartition("t", 0), "/b")
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert bench.manager.failures["/b"] is None
    assert bench.log.directory == "/a/t-0"
    bench.disk.capacity_bytes = None
    await until_ended(bench)
    assert (bench.log.directory, bench.log.log_end_offset) == ("/b/t-0", 20)


@in_loop
async def test_a_third_directory_that_is_full_keeps_no_move_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = MovingBench(log_dirs=("/a", "/b", "/c"))
    bench.append(20)
    rename = bench.disk.rename

    def refuse(source: str, target: str) -> None:
        if source.startswith("/c/"):
            raise OSError(errno.ENOSPC, "full", source)
        rename(source, target)

    monkeypatch.setattr(bench.disk, "rename", refuse)
    await move(bench)
    assert (bench.log.directory, bench.log.log_end_offset) == ("/b/t-0", 20)


@in_loop
async def test_an_old_folder_goes_when_a_full_disk_has_room_for_what_was_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = MovingBench()
    bench.append(20)
    exchange = bench.manager.replace_with_future

    def exchange_and_fill(key: TopicPartition) -> None:
        exchange(key)
        bench.append(1, epoch=1)
        bench.disk.capacity_bytes = 0

    monkeypatch.setattr(bench.manager, "replace_with_future", exchange_and_fill)
    bench.moves.alter(TopicPartition("t", 0), "/b")
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert bench.log.directory == "/b/t-0"
    assert bench.folders() == {"/a/t-0", "/b/t-0"}
    bench.disk.capacity_bytes = None
    await until_ended(bench)
    assert bench.folders() == {"/a/t-0-delete", "/b/t-0"}


@in_loop
async def test_a_copy_that_cannot_be_begun_leaves_nothing_behind() -> None:
    """Else the next start would take it for one to go on with, though the move was refused."""
    bench = MovingBench()
    bench.append(3)
    bench.disk.capacity_bytes = 0
    with pytest.raises(KafkaError, match="does not take"):
        bench.moves.alter(TopicPartition("t", 0), "/b")
    assert bench.folders() == {"/a/t-0"}


@in_loop
async def test_a_copy_that_cannot_be_cut_at_a_start_is_given_up_and_copied_anew() -> None:
    """A crash has taken more from the log than from its copy."""
    bench = MovingBench()
    await begin_slowly(bench)
    copied = future(bench).log.log_end_offset
    await bench.moves.stop()
    bench.disk.kill()
    first = f"/a/t-0/{0:020d}.log"
    for path in bench.disk.paths():
        if path.startswith("/a/t-0/0") and path != first:
            bench.disk.unlink(path)
    data = bench.disk.contents(first)
    del data[len(client_batch(1, timestamp_ms=NOW_MS)) * (copied - 1) :]
    bench.disk.failing, bench.disk.failing_with = {"truncate"}, errno.EIO
    bench.start()
    bench.disk.failing = set()
    assert 0 < bench.log.log_end_offset < copied
    assert bench.manager.future_log(TopicPartition("t", 0)) is None
    assert not bench.log.compaction.is_paused
    bench.rate = MAX_LONG
    await move(bench)
    assert bench.log.directory == "/b/t-0"
