"""A leader that reads the lake before it leads: whether its log diverges from it, and a disk that refuses."""

import asyncio
import errno
from collections.abc import Collection
from typing import Any

import pytest

from broker.log.epochs import LeaderEpochs
from broker.log.values import RemoteLogAuxState
from broker.replica.lake_recovery import has_diverged
from broker.worker.rpc import TieredState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.fakes.logs import ScriptedLog
from tests.fakes.memory_disk import MemoryDisk, MemoryFile
from tests.fakes.settings import log_settings
from tests.loops import in_loop, until
from tests.unit.log.truncated_logs import NOW_MS, append, open_log
from tests.unit.replica.replica_bench import (
    ME,
    OTHER,
    ReplicaBench,
    Tier,
    changed,
    produce,
    registered,
)

LAKE_END = 35
ENDED = RemoteLogAuxState(leader_epochs=((0, 0), (1, 20)))


@pytest.mark.parametrize(
    ("epochs", "log_start", "has_parted"),
    [
        ([(0, 0)], 0, True),
        ([(0, 0), (1, 20)], 0, False),
        ([(0, 0), (1, 20), (2, 30)], 0, True),
        # Its log start lies behind the lake's end: DeleteRecords, or a topic that was no table for a while.
        ([(0, 0), (1, 20)], 36, False),
        ([(0, 0), (1, 20), (2, 40)], 50, False),
        ([(0, 0)], 36, True),
        ([], 0, True),
    ],
)
def test_a_log_parts_from_the_lake_by_the_epoch_at_its_end(
    epochs: list[tuple[int, int]], log_start: int, *, has_parted: bool
) -> None:
    known = LeaderEpochs()
    for epoch, start in epochs:
        known.assign(epoch, start)
    known.truncate_from_start(log_start)
    log: Any = ScriptedLog(TopicIdPartition(bytes(16), "t", 0), leader_epochs=known)
    ended = RemoteLogAuxState(producer_snapshot=b"", leader_epochs=((0, 0), (1, 20)))
    assert has_diverged(log, LAKE_END, ended) is has_parted


@pytest.mark.parametrize(
    ("epochs", "known", "has_parted"),
    [
        # The rows know it up to 30; what came behind in another epoch is not held against the log.
        (
            [(0, 0), (1, 20), (2, 32)],
            RemoteLogAuxState(leader_epochs=((1, 28),), epochs_known_to=30),
            False,
        ),
        ([(0, 0), (2, 20)], RemoteLogAuxState(leader_epochs=((1, 28),), epochs_known_to=30), True),
        ([(0, 0)], RemoteLogAuxState(), False),
    ],
)
def test_a_log_is_compared_where_the_lakes_epochs_are_known(
    epochs: list[tuple[int, int]], known: RemoteLogAuxState, *, has_parted: bool
) -> None:
    entries = LeaderEpochs()
    for epoch, start in epochs:
        entries.assign(epoch, start)
    log: Any = ScriptedLog(TopicIdPartition(bytes(16), "t", 0), leader_epochs=entries)
    assert has_diverged(log, LAKE_END, known) is has_parted


class FakeTier(Tier):
    """A tier whose lake ends at LAKE_END, in leader epoch 1."""

    def __init__(self, ended: RemoteLogAuxState = ENDED) -> None:
        super().__init__()
        self._ended = ended

    async def fence(self, leader_epochs: Collection[object], loads: object) -> list[TieredState]:
        state = TieredState(highest_offset_in_remote_storage=LAKE_END, log_start_offset=0)
        return [state] * len(leader_epochs)

    async def aux_state(self, *where: object) -> tuple[int, RemoteLogAuxState]:
        return LAKE_END + 1, self._ended


@in_loop
async def test_a_disk_that_refuses_to_go_on_behind_the_lake_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.replica.lake_recovery.RECOVERY_RETRY_SECONDS", 0.001)
    bench = ReplicaBench(FakeTier())
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(OTHER, 5))
    bench.disk.failing, bench.disk.failing_with = {"create"}, errno.EMFILE
    await bench.commit(changed(registered(ME, 6)))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert bench.led().leader.is_recovering
    bench.disk.failing = set()
    await until(lambda: not bench.led().leader.is_recovering)
    produce(bench.led(), acks=1)
    assert bench.led().log.log_end_offset == LAKE_END + 2
    bench.manager.stop()
    bench.background.run()
    bench.logs.close()


class LateLake(FakeTier):
    """One that can say nothing for a while."""

    asked = 0

    async def fence(self, leader_epochs: Collection[object], loads: object) -> list[TieredState]:
        self.asked += 1
        if self.asked < 6:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the lake is away")
        return await super().fence(leader_epochs, loads)


@in_loop
async def test_who_waits_for_the_lake_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.replica.lake_recovery.RECOVERY_RETRY_SECONDS", 0.001)
    lake = LateLake()
    bench = ReplicaBench(lake)
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(OTHER, 5))
    await bench.commit(changed(registered(ME, 6)))
    await until(lambda: not bench.led().leader.is_recovering)
    assert lake.asked == 6
    assert len([each for each in caplog.messages if "the lake is away" in each]) == 1
    bench.manager.stop()
    bench.background.run()
    bench.logs.close()


@in_loop
async def test_nobody_leads_where_the_lake_cannot_say_whose_records_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.replica.lake_recovery.RECOVERY_RETRY_SECONDS", 0.001)
    lake = FakeTier(RemoteLogAuxState(epochs_known_to=-1))
    bench = ReplicaBench(lake)
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(ME))
    for _ in range(LAKE_END + 5):
        produce(bench.led(), acks=1)
    await bench.commit(changed(registered(OTHER, 1)))
    bench.followed().has_lost_records = True
    await bench.commit(changed(registered(ME, 2)))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert bench.led().leader.is_recovering
    assert bench.led().log.log_end_offset == LAKE_END + 5
    (said,) = (each for each in caplog.messages if "Unable to lead" in each)
    assert (
        said.startswith(f"Unable to lead partition {bench.led().log.name} yet")
        and f"offset {LAKE_END}" in said
    )
    lake._ended = ENDED
    async with asyncio.timeout(120):
        while bench.led().leader.is_recovering:
            await asyncio.sleep(0.001)
            bench.background.run()
    bench.manager.stop()
    bench.background.run()
    bench.logs.close()


@in_loop
async def test_what_is_above_the_lakes_end_is_not_believed_when_the_log_goes_on_there() -> None:
    """It was durable, and the recovery point said so; what comes in its place is not."""
    bench = ReplicaBench(FakeTier())
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(ME))
    for _ in range(LAKE_END + 5):
        produce(bench.led(), acks=1)
    bench.led().log.flush(wait=True)
    bench.logs.write_recovery_points()
    await bench.commit(changed(registered(OTHER, 1)))
    bench.followed().has_lost_records = True
    await bench.commit(changed(registered(ME, 2)))
    async with asyncio.timeout(120):
        while bench.led().leader.is_recovering:
            await asyncio.sleep(0.001)
            bench.background.run()
    assert bench.led().log.log_end_offset == LAKE_END + 1
    assert bench.disk.contents("/d/recovery-point-offset-checkpoint") == b"0\n1\nt 0 36\n"


@in_loop
async def test_a_log_that_could_not_go_on_behind_the_lake_tries_again_and_knows_what_the_lake_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.replica.lake_recovery.RECOVERY_RETRY_SECONDS", 0.001)
    known = open_log(MemoryDisk())
    append(known, 7, 2)
    ended = RemoteLogAuxState(
        producer_snapshot=known.producers.encode_snapshot(NOW_MS), leader_epochs=((0, 0),)
    )
    bench = ReplicaBench(FakeTier(ended))
    bench.config = log_settings(remote_storage_enable=True)
    await bench.create(registered(ME))
    for _ in range(5):
        produce(bench.led(), acks=1)
    await bench.commit(changed(registered(OTHER, 1)))
    bench.followed().has_lost_records = True
    opened, refused = bench.disk.open, []

    def refuse(path: str, *, create: bool = False) -> MemoryFile:
        if path.endswith("36.log") and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, "no file left", path)
        return opened(path, create=create)

    monkeypatch.setattr(bench.disk, "open", refuse)
    await bench.commit(changed(registered(ME, 2)))
    async with asyncio.timeout(120):
        while bench.led().leader.is_recovering:
            await asyncio.sleep(0.001)
            bench.background.run()
    assert refused
    log = bench.led().log
    assert log.log_end_offset == LAKE_END + 1
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.last_sequence == 3
