"""Fetchers of a broker: disk errors, leaders that come and go, the throttle, and metrics."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from broker.log.durability import NotFlushed
from broker.log.log import Log
from broker.metadata.image import TopicImage
from broker.rates import ByteRate
from broker.replica.fetcher.context import THROTTLED_REPLICAS
from broker.replica.fetcher.metrics import fetcher_samples
from broker.replica.fetcher.rate import FetchRate
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FollowerState
from kafka_ds.protocol.errors import ErrorCode
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.loops import in_loop, until
from tests.unit.replica.fake_leader import (
    LEADER,
    SETTINGS,
    FakeLeader,
    diverge,
    following,
    has_all,
    leading,
    log_of,
)
from tests.unit.replica.followed_logs import SMALL, append, content, open_log

KEY = ("t", 0)


@in_loop
async def test_flush_messages_holds_the_next_fetch_until_the_disk_has_it() -> None:
    leader, log = leading()
    for number in range(3):
        append(log, f"{number}", 1)
    background = ManualBackground()
    other = log_of("t", 0, replace(SMALL, flush_messages=1), background)
    async with following(leader) as broker:
        broker.follow(other, 1)
        for end in (1, 2, 3):
            await until(lambda end=end: other.log_end_offset == end)  # type: ignore[misc]
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert len(leader.fetches) == end
            assert other.recovery_point == end - 1
            background.run()
        await until(lambda: len(leader.fetches) > 3)
        assert other.recovery_point == 3


def told(leader: FakeLeader, topic: str = "t") -> set[int]:
    """The offsets that a follower has asked for: it has everything below."""
    return {
        partition.fetch_offset
        for fetch in leader.fetches
        for asked in fetch.topics
        for partition in asked.partitions
        if asked.topic_id == topic.encode() * 16
    }


@in_loop
async def test_what_a_full_disk_did_not_flush_is_not_told_to_the_leader() -> None:
    leader, _ = leading("x")
    leader.keeps_sessions = False
    background = ManualBackground()
    async with following(leader) as broker:
        mine = log_of("t", 0, replace(SMALL, flush_messages=1), background)
        broker.follow(mine, 1)
        for _ in range(3):
            await until(lambda: background.waiting)
            assert told(leader) == {0}
            background.refuse(NotFlushed(errno.ENOSPC, "full"))
        await until(lambda: background.waiting)
        background.run()
        await until(lambda: told(leader) == {0, 1})
        assert mine.recovery_point == 1


@in_loop
async def test_what_was_not_flushed_when_the_connection_was_lost_is_not_told_to_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, _ = leading("x")
    leader.lead(log_of("u", 0), 1)
    leader.errors["u", 0] = [ErrorCode.OFFSET_OUT_OF_RANGE]

    def gone(_: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(leader, "list_offsets", gone)
    background = ManualBackground()
    async with following(leader) as broker:
        mine = log_of("t", 0, replace(SMALL, flush_messages=1), background)
        partitions = [
            FollowerPartition(log, FollowerState(high_watermark=0))
            for log in (mine, log_of("u", 0))
        ]
        for partition in partitions:
            partition.follow(LEADER, 1)
        broker.fetchers.update(add=partitions)
        await until(lambda: background.waiting)
        assert mine.log_end_offset == 1
        assert told(leader) == {0}
        background.run()
        await until(lambda: told(leader) == {0, 1})


@in_loop
async def test_a_log_that_is_deleted_while_it_is_flushed_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(2)]
    for log in logs:
        leader.lead(log, 1)
    append(logs[0], "x", 1)
    background, disk = ManualBackground(), MemoryDisk()
    deleted = Log.open(
        "/d/t-0",
        replace(SMALL, flush_messages=1),
        disk,
        ManualClock(),
        topic="t",
        partition=0,
        topic_id=b"t" * 16,
        background=background,
    )
    async with following(leader) as broker:
        gone = broker.follow(deleted, 1)
        stays = broker.follow(log_of("t", 1), 1)
        await until(lambda: background.waiting)
        gone.stop_following()
        broker.fetchers.update(remove=[gone])
        deleted.abandon()
        disk.broken = {"/d"}
        background.run()
        append(logs[1], "y", 1)
        await until(lambda: has_all(stays, logs[1]))
    assert not caplog.records


@in_loop
async def test_a_source_that_moves_is_found_again() -> None:
    leader, log = leading("x")
    async with following(leader, replace(SETTINGS, replica_fetch_backoff_ms=5)) as broker:
        good = broker.image.brokers.pop(2)
        partition = broker.follow(open_log(MemoryDisk()), 1)
        broker.register(("127.0.0.1", 1))  # nobody is there
        await until(lambda: partition.follower.due_ms > 0)
        broker.image.brokers[2] = good
        broker.fetchers.wake(2)
        await until(lambda: has_all(partition, log))


@in_loop
async def test_a_fetcher_without_partitions_ends() -> None:
    leader, log = leading()
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        assert len(list(broker.fetchers)) == 1
        broker.fetchers.update(remove=[partition])
        assert not list(broker.fetchers)


@in_loop
async def test_partitions_are_spread_over_num_replica_fetchers() -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(8)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x", 1)
    leader.keeps_sessions = False
    async with following(leader, replace(SETTINGS, num_replica_fetchers=4)) as broker:
        partitions = [broker.follow(log_of("t", index), 1) for index in range(8)]
        await until(lambda: all(map(has_all, partitions, logs)))
        assert sorted(len(fetcher) for fetcher in broker.fetchers) == [2, 2, 2, 2]
        assert leader.connections == 4


@in_loop
async def test_partitions_are_spread_anew_when_num_replica_fetchers_changes() -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(8)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x", 1)
    leader.keeps_sessions = False
    async with following(leader) as broker:
        partitions = [broker.follow(log_of("t", index), 1) for index in range(8)]
        await until(lambda: all(map(has_all, partitions, logs)))
        for count, spread in ((4, [2, 2, 2, 2]), (2, [4, 4])):
            broker.dynamic_config.current = replace(SETTINGS, num_replica_fetchers=count)
            broker.fetchers.configure()
            assert sorted(len(fetcher) for fetcher in broker.fetchers) == spread
            for log in logs:
                append(log, "y", 1)
            await until(lambda: all(map(has_all, partitions, logs)))


@in_loop
async def test_what_is_to_be_seen_of_fetchers() -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(2)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x" * 50, 1)
    leader.watermarks["t", 0] = 5
    leader.errors["t", 1] = [ErrorCode.FENCED_LEADER_EPOCH]
    async with following(leader) as broker:
        partitions = [broker.follow(log_of("t", index), 1) for index in range(2)]
        await until(
            lambda: has_all(partitions[0], logs[0]) and broker.fetchers.failed_partitions == 1
        )
        samples = {
            (metric.name.rpartition("_")[2], *labels): value
            for metric, labels, value in fetcher_samples(broker.fetchers, partitions, 0)
        }
        name = "ReplicaFetcherThread-0-2"
        assert samples["consumerlag", name, "t", "0"] == 4
        assert samples["maxlag", "Replica"] == 4
        assert samples["failedpartitionscount", "Replica"] == 1
        assert samples["deadthreadcount", "Replica"] == 0
        totals = {
            metric.bean.rpartition("=")[2]: value
            for metric, labels, value in fetcher_samples(broker.fetchers, partitions, 0)
            if labels == (name,)
        }
        assert totals["BytesPerSec"] == len(content(logs[0]))
        assert totals["RequestsPerSec"] == next(iter(broker.fetchers)).requests


def test_a_rate_is_that_of_the_last_whole_minute() -> None:
    rate = FetchRate(0)
    assert rate.of(10, 5_000) == 2.0
    assert rate.of(120, 60_000) == 2.0
    assert rate.of(120, 61_000) == 2.0
    assert rate.of(180, 120_000) == 1.0


@in_loop
async def test_what_is_throttled_and_not_in_sync_waits_for_its_rate() -> None:
    """KIP-73: the other partitions go on; so does this one, as soon as the rate allows or once it is in sync."""
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(2)]
    for log in logs:
        leader.lead(log, 1)
        for number in range(5):
            append(log, f"{number}" * 50, 1)
        leader.watermarks["t", log.partition] = 5
    allowed = 0
    async with following(leader) as broker:
        broker.context.throttle = ByteRate(lambda: allowed)
        topic = TopicImage("t", b"t" * 16)
        topic.configs[THROTTLED_REPLICAS] = "0:1,1:7"
        broker.image.topics["t"] = topic
        partitions = [broker.follow(log_of("t", index), 1) for index in range(2)]
        await until(lambda: has_all(partitions[1], logs[1]))
        count = len(leader.fetches)
        await until(lambda: len(leader.fetches) > count + 5)
        assert partitions[0].log.log_end_offset == 1  # one batch, and the rate was exceeded
        allowed = 1 << 40
        await until(lambda: has_all(partitions[0], logs[0]) and partitions[0].follower.lag == 0)
        allowed = 0
        append(logs[0], "in sync", 1)
        await until(lambda: has_all(partitions[0], logs[0]))


@in_loop
async def test_all_held_back_wait_without_burning_the_loop() -> None:
    leader, log = leading()
    for number in range(3):
        append(log, f"{number}", 1)
    leader.watermarks[KEY] = 3
    async with following(leader, replace(SETTINGS, replica_fetch_backoff_ms=0)) as broker:
        broker.context.throttle = ByteRate(lambda: 0)
        topic = TopicImage("t", b"t" * 16)
        topic.configs[THROTTLED_REPLICAS] = "*"
        broker.image.topics["t"] = topic
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: partition.log.log_end_offset == 1)
        seen = len(leader.fetches)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(leader.fetches) == seen


@in_loop
async def test_a_source_that_registers_is_asked_at_once_however_long_the_back_off() -> None:
    leader, log = leading("x")
    async with following(leader, replace(SETTINGS, replica_fetch_backoff_ms=3_600_000)) as broker:
        good = broker.image.brokers.pop(2)
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: partition.follower.due_ms > 0)
        broker.image.brokers[2] = good
        broker.fetchers.wake(2)
        await until(lambda: has_all(partition, log))


@in_loop
async def test_what_later_metadata_have_taken_away_is_not_fetched() -> None:
    leader, log = leading()
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        broker.fetchers.update(remove=[partition])
        partition.stop_following()
        broker.fetchers.update(add=[partition])
        assert not list(broker.fetchers)


@in_loop
async def test_an_answer_that_comes_after_a_change_of_leader_is_not_taken() -> None:
    leader, log = leading("x")
    leader.faults = ["slow"]
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: leader.fetches)
        leader.lead(log, 2)
        broker.again(partition, 2)
        leader.released.set()
        await until(lambda: has_all(partition, log))
        asked = [fetch.topics[0].partitions[0] for fetch in leader.fetches[:2]]
        assert [(each.fetch_offset, each.current_leader_epoch) for each in asked] == [
            (0, 1),
            (0, 2),
        ]


@in_loop
async def test_an_answer_for_a_partition_that_is_led_here_by_now_is_not_taken() -> None:
    leader, log = leading("x")
    leader.faults = ["slow"]
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        other = broker.follow(log_of("u", 0), 1)
        leader.lead(log_of("u", 0), 1)
        append(leader.logs["u", 0], "y", 1)
        await until(lambda: leader.fetches)
        partition.stop_following()  # as metadata do; the fetcher hears of it with all else of the commit
        leader.released.set()
        await until(lambda: has_all(other, leader.logs["u", 0]))
        assert partition.log.log_end_offset == 0


@in_loop
async def test_nothing_is_fetched_before_the_disk_knows_of_a_cut() -> None:
    """Not even by the fetcher of the next leader, while the one that cut is gone already."""
    leader, log, other = FakeLeader(), open_log(MemoryDisk()), open_log(MemoryDisk())
    diverge(leader, log, other)
    written = asyncio.Event()

    async def write(_folder: str) -> None:
        await written.wait()

    async with following(leader) as broker:
        broker.checkpoint_recovery_points = write  # type: ignore[method-assign]
        partition = broker.follow(other, 2)
        await until(lambda: partition.is_truncation_unwritten)
        leader.lead(log, 3)
        broker.fetchers.update(remove=[partition])
        broker.again(partition, 3)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert other.log_end_offset == 1
        written.set()
        await until(lambda: has_all(partition, log))


@in_loop
async def test_a_cut_that_could_not_be_written_is_written_before_anything_is_fetched() -> None:
    leader, log, other = FakeLeader(), open_log(MemoryDisk()), open_log(MemoryDisk())
    diverge(leader, log, other)
    tried = 0
    has_room = False

    async def write(_folder: str) -> None:
        nonlocal tried
        tried += 1
        if not has_room:
            raise OSError(errno.ENOSPC, "full")

    async with following(leader) as broker:
        broker.checkpoint_recovery_points = write  # type: ignore[method-assign]
        partition = broker.follow(other, 2)
        await until(lambda: tried > 2)
        leader.lead(log, 3)
        broker.fetchers.update(remove=[partition])
        broker.again(partition, 3)
        tried_before = tried
        await until(lambda: tried > tried_before + 1)
        assert other.log_end_offset == 1
        assert not broker.fetchers.failed_partitions
        has_room = True
        await until(lambda: has_all(partition, log))


@in_loop
async def test_what_has_moved_to_another_leader_is_not_held_back_for_the_loss_of_the_last() -> None:
    leader, log = leading()
    leader.lead(log_of("u", 0), 1)
    append(log, "x", 1)
    leader.faults = ["dying"]
    async with following(leader, replace(SETTINGS, replica_fetch_backoff_ms=3_600_000)) as broker:
        broker.image.brokers[3] = replace(broker.image.brokers[2], broker_id=3)
        partition = broker.follow(open_log(MemoryDisk()), 1)
        stays = broker.follow(log_of("u", 0), 1)
        await until(lambda: leader.fetches)
        broker.fetchers.update(remove=[partition])
        leader.lead(log, 2)
        partition.follow(3, 2)
        broker.fetchers.update(add=[partition])
        await until(lambda: has_all(partition, log))
        leader.released.set()
        await until(lambda: stays.follower.due_ms > 0)
        assert partition.follower.due_ms == 0
        append(log, "y", 2)
        await until(lambda: has_all(partition, log))


@in_loop
async def test_a_full_directory_keeps_no_cut_of_another_one_waiting() -> None:
    leader, followed = FakeLeader(), []
    for index, folder in enumerate(("/d/t-0", "/e/t-1")):
        log = log_of("t", index)
        other = Log.open(
            folder,
            SMALL,
            MemoryDisk(),
            ManualClock(),
            topic="t",
            partition=index,
            topic_id=b"t" * 16,
        )
        diverge(leader, log, other)
        followed.append((other, log))
    has_room = False

    async def write(folder: str) -> None:
        if folder.startswith("/e/") and not has_room:
            raise OSError(errno.ENOSPC, "full")

    async with following(leader) as broker:
        broker.checkpoint_recovery_points = write  # type: ignore[method-assign]
        good, full = [broker.follow(other, 2) for other, _ in followed]
        await until(lambda: has_all(good, followed[0][1]) and full.is_truncation_unwritten)
        assert full.log.log_end_offset == 1
        has_room = True
        await until(lambda: has_all(full, followed[1][1]))
