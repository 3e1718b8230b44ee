"""Fetchers on real sockets: each answer of a leader is applied once and completely, whatever fails on the way."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.loops import in_loop, until
from tests.unit.replica.fake_leader import (
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
async def test_it_fetches_what_is_there_and_what_comes() -> None:
    leader, log = leading("before")
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: has_all(partition, log))
        for number in range(20):
            append(log, f"later {number}", 1)
        leader.watermarks[KEY] = 15
        await until(lambda: has_all(partition, log))
        append(log, "last", 1)
        await until(lambda: has_all(partition, log))
        assert content(partition.log) == content(log)
        assert partition.high_watermark == 15
        assert partition.follower.lag == 0
        fetch = leader.fetches[0]
        assert fetch.replica_state is not None
        assert (fetch.replica_state.replica_id, fetch.max_bytes) == (1, 10 << 20)
        assert fetch.topics[0].partitions[0].current_leader_epoch == 1


@in_loop
async def test_only_what_has_changed_is_asked_for_in_a_session() -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(8)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x", 1)
    async with following(leader) as broker:
        partitions = [broker.follow(log_of("t", index), 1) for index in range(8)]
        await until(lambda: all(map(has_all, partitions, logs)))
        seen = len(leader.fetches)
        append(logs[3], "more", 1)
        await until(lambda: has_all(partitions[3], logs[3]))
        await until(lambda: len(leader.fetches) > seen + 3)
        later = leader.fetches[seen + 3 :]
        assert all(fetch.session_epoch > 0 for fetch in later)
        assert not any(fetch.topics for fetch in later[1:])
        broker.fetchers.update(remove=[partitions[0]])
        await until(lambda: any(fetch.forgotten_topics_data for fetch in leader.fetches))
        assert len(leader.session) == 7


@in_loop
async def test_a_leader_without_sessions_is_followed_as_well() -> None:
    leader, log = FakeLeader(), open_log(MemoryDisk())
    leader.keeps_sessions = False
    leader.lead(log, 1)
    for number in range(10):
        append(log, f"{number}", 1)
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: has_all(partition, log))
        assert {fetch.session_epoch for fetch in leader.fetches} == {0}


FAULTS = ["gone", "half", "twice", "damaged", "cut", "forgotten", ""]


@pytest.mark.parametrize("fault", [*FAULTS[:-1], "late"])
def test_a_faulty_answer_costs_nothing_but_time(fault: str) -> None:
    @in_loop
    async def run() -> None:
        leader, log = FakeLeader(), open_log(MemoryDisk())
        leader.lead(log, 1)
        for number in range(12):
            append(log, f"{number}", 1)
        leader.faults = ["", fault, fault, "", fault]
        timeout_ms = 50 if fault == "late" else 30_000
        async with following(leader, replace(SETTINGS, replica_socket_timeout_ms=timeout_ms)) as b:
            partition = b.follow(open_log(MemoryDisk()), 1)
            await until(lambda: has_all(partition, log) and not leader.faults)
            assert content(partition.log) == content(log)

    run()


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_faults_and_elections_ends_in_the_leaders_log(seed: int) -> None:
    @in_loop
    async def run() -> None:
        chance = random.Random(seed)
        leader = FakeLeader(fetch_version=11 if seed % 3 == 2 else 18)
        leader.keeps_sessions = seed % 2 == 0
        logs = [open_log(MemoryDisk()), open_log(MemoryDisk())]
        epoch = 1
        leader.lead(logs[0], epoch)
        async with following(leader) as broker:
            partition = broker.follow(logs[1], epoch)
            for number in range(120):
                append(leader.logs[KEY], f"{number} in {epoch}", epoch, count=chance.randint(1, 3))
                if chance.random() < 0.3:
                    leader.faults.append(chance.choice(FAULTS))
                if chance.random() < 0.1:
                    leader.errors.setdefault(KEY, []).append(
                        chance.choice(
                            [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID]
                        )
                    )
                if chance.random() < 0.1:
                    count = len(leader.requests)
                    await until(lambda count=count: len(leader.requests) > count + 2)
                if chance.random() < 0.08:
                    # The other one leads, with what it has; what it lacks was not committed.
                    broker.fetchers.update(remove=[partition])
                    partition.stop_following()
                    epoch += 1
                    logs.reverse()
                    leader.lead(logs[0], epoch)
                    partition = broker.follow(logs[1], epoch)
            leader.faults, leader.errors = [], {}
            await until(lambda: content(logs[0]) == content(logs[1]))

    run()


@in_loop
async def test_an_old_leader_is_asked_where_epochs_end_before_the_first_fetch() -> None:
    leader, log = FakeLeader(fetch_version=11), open_log(MemoryDisk())
    leader.lead(log, 3)
    append(log, "theirs", 3)
    other = open_log(MemoryDisk())
    append(other, "mine", 1)
    append(other, "mine", 1)
    async with following(leader) as broker:
        partition = broker.follow(other, 3)
        await until(lambda: content(partition.log) == content(log))
        kinds = [type(each).__name__ for each in leader.requests]
        assert kinds.index("OffsetForLeaderEpochRequest") < kinds.index("FetchRequest")


@in_loop
async def test_what_diverges_is_cut_and_its_recovery_point_written_before_more_is_appended() -> (
    None
):
    leader, log = FakeLeader(), open_log(MemoryDisk())
    append(log, "both", 1)
    other = open_log(MemoryDisk())
    append(other, "both", 1)
    for _ in range(5):
        append(other, "never committed", 1)
    other.flush(wait=True)
    leader.lead(log, 2)
    append(log, "new", 2)
    async with following(leader) as broker:
        partition = broker.follow(other, 2)
        await until(lambda: has_all(partition, log) and partition.follower.lag is not None)
        assert content(other) == content(log)
        assert broker.written == 1


@in_loop
async def test_a_log_start_that_a_cut_lowers_is_written_down_too() -> None:
    leader, log = FakeLeader(), open_log(MemoryDisk())
    other = open_log(MemoryDisk())
    for each in (log, other):
        append(each, "both", 1)
    for _ in range(3):
        append(other, "of an unclean election's loser", 1)
    other.update_high_watermark(4)
    other.advance_log_start_offset(3)
    leader.lead(log, 2)
    append(log, "new", 2)
    async with following(leader) as broker:
        partition = broker.follow(other, 2)
        await until(lambda: has_all(partition, log) and partition.follower.lag is not None)
        assert broker.written == 1


@in_loop
async def test_a_cut_that_a_disk_refuses_is_tried_again_and_written_down() -> None:
    leader, log = FakeLeader(), open_log(MemoryDisk())
    disk = MemoryDisk()
    other = open_log(disk, config=replace(SMALL, index_interval_bytes=1))
    for each in (log, other):
        for _ in range(2):
            append(each, "both", 1)
    for _ in range(5):
        append(other, "never committed", 1)
    other.flush(wait=True)
    leader.lead(log, 2)
    append(log, "new", 2)
    refused: list[OSError] = []
    list_names = disk.list_names

    def refuse(directory: str) -> list[str]:
        if not refused:
            refused.append(OSError(errno.EMFILE, "no file left", directory))
            raise refused[0]
        return list_names(directory)

    disk.list_names = refuse  # type: ignore[method-assign]
    async with following(leader) as broker:
        partition = broker.follow(other, 2)
        await until(lambda: has_all(partition, log) and partition.follower.lag is not None)
        assert refused
        assert content(other) == content(log)
        assert broker.written == 1


@in_loop
async def test_what_diverges_of_many_logs_is_written_down_at_once() -> None:
    leader, followed = FakeLeader(), []
    for index in range(20):
        log, other = log_of("t", index), log_of("t", index)
        diverge(leader, log, other)
        followed.append((other, log))
    async with following(leader) as broker:
        partitions = [broker.follow(other, 2) for other, _ in followed]
        await until(
            lambda: all(
                has_all(partition, log)
                for partition, (_, log) in zip(partitions, followed, strict=True)
            )
        )
        assert broker.written < 5


@in_loop
async def test_a_follower_that_is_behind_the_metadata_waits_for_them() -> None:
    leader, log = leading("x", epoch=5)
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 4)
        await until(lambda: broker.fetchers.failed_partitions == 1)
        asked = len(leader.fetches)
        assert partition.log.log_end_offset == 0
        broker.again(partition, 5)
        await until(lambda: has_all(partition, log))
        assert broker.fetchers.failed_partitions == 0
        assert len(leader.fetches) > asked


@in_loop
async def test_a_leader_that_is_behind_is_asked_again() -> None:
    leader, log = leading("x", epoch=4)
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 5)
        await until(lambda: len(leader.fetches) > 3)
        assert partition.log.log_end_offset == 0
        leader.epochs[KEY] = 5
        await until(lambda: has_all(partition, log))


@in_loop
async def test_an_answer_that_is_tried_again_is_logged_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    leader, log = leading("x")
    leader.errors[KEY] = [ErrorCode.UNKNOWN_TOPIC_ID]
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: has_all(partition, log))
    assert "Error for partition t-0: broker 2 answers UNKNOWN_TOPIC_ID" in caplog.messages


@in_loop
async def test_damage_at_the_leader_is_an_error_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader, log = leading("x")
    append(log, "x", 1)
    leader.faults = ["damaged"]
    leader.errors[KEY] = [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]
    async with following(leader) as broker:
        partition = broker.follow(open_log(MemoryDisk()), 1)
        await until(lambda: has_all(partition, log))
        assert broker.context.topic_metrics.of("t").invalid_checksums == 1
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said[0].startswith(
        "Error for partition t-0: CORRUPT_MESSAGE: Found invalid messages during fetch from broker 2 at offset "
    )
    assert said[1].startswith(
        "Error for partition t-0: broker 2 answers CORRUPT_MESSAGE at offset "
    )


@in_loop
async def test_an_idle_partition_does_not_keep_one_waiting_that_is_asked_for_again() -> None:
    leader = FakeLeader()
    for index in range(2):
        leader.lead(log_of("t", index), 1)
    leader.errors["t", 1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 6
    slow = replace(SETTINGS, replica_fetch_backoff_ms=1_000, replica_fetch_wait_max_ms=500)
    async with following(leader, slow) as broker:
        for index in range(2):
            broker.follow(log_of("t", index), 1)
        await until(lambda: not leader.errors["t", 1])
        # As long as the other one is held back, and no longer.
        assert min(fetch.max_wait_ms for fetch in leader.fetches) < 500
        assert leader.fetches[0].max_wait_ms == 500


@in_loop
async def test_who_has_stopped_follows_nothing_more() -> None:
    leader, _ = leading("x")
    async with following(leader) as broker:
        broker.fetchers.stop()
        broker.follow(open_log(MemoryDisk()), 1)
        assert not list(broker.fetchers)


@in_loop
async def test_one_partitions_trouble_is_not_anothers() -> None:
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(3)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x", 1)
    leader.errors["t", 1] = [ErrorCode.KAFKA_STORAGE_ERROR] * 20
    leader.errors["t", 2] = [ErrorCode.FENCED_LEADER_EPOCH]
    async with following(leader) as broker:
        partitions = [broker.follow(log_of("t", index), 1) for index in range(3)]
        for number in range(10):
            append(logs[0], f"{number}", 1)
        await until(lambda: has_all(partitions[0], logs[0]) and has_all(partitions[1], logs[1]))
        assert broker.fetchers.failed_partitions == 1
        assert partitions[2].log.log_end_offset == 0


@in_loop
async def test_a_full_disk_holds_the_partition_back_alone_until_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "broker.replica.fetcher")
    leader = FakeLeader()
    logs = [log_of("t", index) for index in range(2)]
    for log in logs:
        leader.lead(log, 1)
        append(log, "x" * 100, 1)
    disk = MemoryDisk()
    refused: list[OSError] = []
    mine = Log.open(
        "/d/t-1",
        SMALL,
        disk,
        ManualClock(),
        topic="t",
        partition=1,
        topic_id=b"t" * 16,
        report=lambda _, error: refused.append(error),
    )
    disk.capacity_bytes = 10
    async with following(leader) as broker:
        good = broker.follow(log_of("t", 0), 1)
        full = broker.follow(mine, 1)
        await until(lambda: has_all(good, logs[0]) and len(refused) > 5)
        assert full.log.log_end_offset == 0
        assert not broker.fetchers.failed_partitions
        disk.capacity_bytes = None
        await until(lambda: has_all(full, logs[1]))
        # One line when it begins, one when it is over.
        (begun, over) = [each for each in caplog.records if "t-1" in each.getMessage()]
        assert (begun.levelno, over.levelno) == (logging.ERROR, logging.INFO)
        assert "no space left" in begun.getMessage()
        assert over.getMessage().startswith("t-1: fetching again after the error: ")


@in_loop
async def test_a_follower_beyond_the_leaders_end_is_cut_to_it() -> None:
    """A fetch without an epoch to compare, as of a log from before there were epochs."""
    leader, log, other = FakeLeader(), open_log(MemoryDisk()), open_log(MemoryDisk())
    leader.lead(log, 1)
    append(log, "x", 1)
    for _ in range(4):
        append(other, "x", 1)
    other.leader_epochs.clear()
    async with following(leader) as broker:
        partition = broker.follow(other, 1, watermark=4)
        await until(lambda: other.log_end_offset == 1)
        append(log, "y", 1)
        await until(lambda: has_all(partition, log))


@in_loop
async def test_a_follower_below_the_leaders_start_begins_there() -> None:
    leader, log, other = FakeLeader(), open_log(MemoryDisk()), open_log(MemoryDisk())
    leader.lead(log, 1)
    for number in range(60):
        append(log, f"{number}" * 10, 1)
    append(other, "0" * 10, 1)
    log.update_high_watermark(60)
    log.advance_log_start_offset(40)
    leader.watermarks[KEY] = 60
    async with following(leader) as broker:
        partition = broker.follow(other, 1)
        await until(lambda: has_all(partition, log))
        assert other.log_start_offset == 40
        assert content(other) == content(log)
        assert other.leader_epochs.entries == log.leader_epochs.entries


@in_loop
async def test_what_is_in_the_lake_alone_is_not_fetched_but_gone_on_behind() -> None:
    leader, log = leading()
    for number in range(60):
        append(log, f"{number}" * 10, 1)
    leader.errors[KEY] = [ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE]
    asked: list[tuple[str, int]] = []

    async def aux_state(partition: TopicIdPartition, _offset: int) -> tuple[int, RemoteLogAuxState]:
        asked.append(partition[1:])
        return 30, RemoteLogAuxState(leader_epochs=((1, 0),))

    async with following(leader) as broker:
        broker.context.remote_log_manager = cast(Any, SimpleNamespace(aux_state=aux_state))
        partition = broker.follow(open_log(MemoryDisk(), config=replace_tiered()), 1)
        await until(lambda: has_all(partition, log))
        assert asked == [partition.key]
        assert partition.log.log_start_offset == 0
        assert partition.log.local_log_start_offset == 30
        assert partition.log.leader_epochs.entries == ((1, 0),)
        assert content(partition.log) == content(log)[-len(content(partition.log)) :]


@in_loop
async def test_a_lake_that_does_not_answer_is_asked_again_though_nothing_else_is_fetched() -> None:
    leader, log = leading()
    for number in range(60):
        append(log, f"{number}" * 10, 1)
    leader.errors[KEY] = [ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE] * 2
    asked: list[tuple[str, int]] = []

    async def aux_state(partition: TopicIdPartition, _offset: int) -> tuple[int, RemoteLogAuxState]:
        asked.append(partition[1:])
        if len(asked) == 1:
            # Its fetcher has nothing to do meanwhile, and waits.
            await asyncio.sleep(0.05)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the store is away")
        return 30, RemoteLogAuxState(leader_epochs=((1, 0),))

    async with following(leader) as broker:
        broker.context.remote_log_manager = cast(Any, SimpleNamespace(aux_state=aux_state))
        partition = broker.follow(open_log(MemoryDisk(), config=replace_tiered()), 1)
        await until(lambda: has_all(partition, log))
        assert asked == [partition.key] * 2


def replace_tiered() -> LogConfig:
    return replace(SMALL, remote_storage_enable=True)
