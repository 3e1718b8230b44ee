"""Partitions that become diskless: what is put before the controller is asked, and who takes appends meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from broker.diskless.write_ahead_log import WriteAheadLog
from broker.metadata.diskless_change import replicated as with_followers
from broker.metadata.diskless_change import switched
from broker.metadata.events import (
    RECOVERING,
    TO_DISKLESS,
    TO_REPLICATED,
    ConfigChanged,
    PartitionRegistration,
)
from broker.replica import diskless_switch
from broker.replica.diskless_partitions import DisklessPartitions
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.batch import ControlType
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.store import ALWAYS
from tests.loops import in_loop, until
from tests.unit.log.log_model import client_batch, marker
from tests.unit.replica.diskless_bench import (
    ANY,
    BEFORE,
    OWN,
    DisklessBench,
    FencedTier,
    bench,
    led,
    own_entries,
    part,
    put,
)
from tests.unit.replica.followed_logs import NOW_MS, content
from tests.unit.replica.replica_bench import ID, ME, OTHER, changed, produce

EPOCH = 3


class SwitchBench(DisklessBench):
    """A controller that is asked to make partitions diskless, and may not answer."""

    asked: list[tuple[Mapping[PartitionId, int], int]]
    states: list[int]
    trouble: KafkaError | None = None
    answer: asyncio.Event | None = None

    async def switch_partitions(
        self, leader_epochs: Mapping[PartitionId, int], state: int, broker_epoch: int
    ) -> None:
        self.states.append(state)
        self.asked.append((dict(leader_epochs), broker_epoch))
        if self.answer is not None:
            await self.answer.wait()
        if self.trouble is not None:
            raise self.trouble

    @property
    def diskless(self) -> DisklessPartitions:
        found = self.manager.applier.diskless
        assert found is not None
        return found

    async def switch(self) -> None:
        await self.diskless.switching.switch()


class KnownTier(FencedTier):
    """A lake that has said where partitions begin, and perhaps that data files are missing."""

    gaps: Sequence[tuple[int, int]] = ()
    copies_to: int | None = None
    """Where a copy ends that is asked for; None: there is none."""

    @property
    def copies(self) -> KnownTier:
        return self

    def copy_active(self, key: PartitionId) -> None:
        self.end = self.end if self.copies_to is None else self.copies_to

    def highest_offset_in_remote_storage(self, topic_id: bytes, partition: int) -> int:
        return self.end

    def missing_of(self, topic_id: bytes, partition: int) -> Sequence[tuple[int, int]]:
        return self.gaps

    def lake_log_start(self, topic_id: bytes, partition: int) -> int | None:
        return self.log_start


def replicated(**changes: object) -> PartitionRegistration:
    """Led here, with a follower that is in sync no more."""
    registration = PartitionRegistration(
        replicas=(ME, OTHER), isr=(ME,), leader=ME, leader_epoch=EPOCH, partition_epoch=7
    )
    return replace(registration, **changes)  # type: ignore[arg-type]


def setting(value: str) -> ConfigChanged:
    return ConfigChanged(
        resource_type=TOPIC_RESOURCE, resource_name="t", name="lake.diskless", value=value
    )


@asynccontextmanager
async def led_with(
    count: int, tier: KnownTier | None = None, *, partitions: int = 1
) -> AsyncIterator[SwitchBench]:
    """Replicated partitions with so many records, whose topic is to be diskless."""
    async with bench(tier or KnownTier(), SwitchBench) as broker:
        assert isinstance(broker, SwitchBench)
        broker.asked, broker.states = [], []
        await broker.create(*[replicated(leader_epoch=0, partition_epoch=0)] * partitions)
        await broker.commit(*(changed(replicated(), each) for each in range(partitions)))
        await broker.commit(setting("true"))
        for each in range(partitions):
            for _ in range(count):
                produce(broker.led(each), acks=1)
        yield broker


@in_loop
async def test_a_leader_puts_what_the_table_lacks_before_it_asks() -> None:
    async with led_with(3) as broker:
        partition = broker.led()
        partition.log.update_highest_offset_in_remote_storage(0)
        held = broker.store.hold(path=ANY)
        switch = asyncio.get_running_loop().create_task(broker.switch())
        await until(lambda: held.reached.is_set())
        with pytest.raises(KafkaError, match="it is becoming diskless"):
            produce(partition)
        assert not broker.asked
        held.goes_on.set()
        await switch
        assert broker.asked == [({(ID, 0): EPOCH}, OWN.broker_epoch)]
        assert broker.states == [TO_DISKLESS]
        assert own_entries(broker.store) == [(EPOCH, 1, 2)]
        # Its own log begins with what the table must have.
        assert broker.diskless.wal.table_end((ID, 0)) == 0


@in_loop
async def test_what_was_put_is_taken_over_in_the_new_epoch() -> None:
    async with led_with(3) as broker:
        before = content(broker.led().log)
        await broker.switch()
        await broker.commit(changed(switched(replicated(), OWN)))
        await until(lambda: broker.recovered_epochs == [EPOCH + 1])
        partition = broker.led()
        assert (content(partition.log), partition.high_watermark) == (before, 3)
        # The fence of the new epoch, and all of it once more.
        assert own_entries(broker.store) == [(EPOCH, 0, 2), (EPOCH + 1, -1, 2)]
        produce(partition)
        await until(lambda: partition.high_watermark == 4)
        assert partition.is_diskless


@in_loop
async def test_a_partition_whose_records_are_all_in_the_table_asks_at_once() -> None:
    async with led_with(2) as broker:
        broker.led().log.update_highest_offset_in_remote_storage(1)
        await broker.switch()
        assert len(broker.asked) == 1
        assert not own_entries(broker.store)


@in_loop
async def test_a_store_that_is_away_lets_the_leader_go_on_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diskless_switch, "PUT_SECONDS", 0.05)
    async with led_with(1) as broker:
        broker.store.refuse(path=ANY, times=ALWAYS)
        await broker.switch()
        assert not broker.asked
        partition = broker.led()
        produce(partition)
        assert partition.log.log_end_offset == 2
        broker.store.mend()
        monkeypatch.setattr(diskless_switch, "PUT_SECONDS", 10.0)
        await until(lambda: not broker.diskless.wal.away_ms)
        broker.clock.ms += diskless_switch.RETRY_MS
        await broker.switch()
        assert len(broker.asked) == 1
        assert own_entries(broker.store)[-1][2] == 1


@in_loop
async def test_producers_wait_less_often_the_more_attempts_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diskless_switch, "PUT_SECONDS", 0.01)
    begun = list[int]()
    begin = LeaderPartition.begin_switch

    def begin_switch(partition: LeaderPartition) -> None:
        begun.append(broker.clock.ms - began_ms)
        begin(partition)

    monkeypatch.setattr(LeaderPartition, "begin_switch", begin_switch)
    monkeypatch.setattr(WriteAheadLog, "away_ms", 0)
    async with led_with(1) as broker:
        broker.store.refuse(path=ANY, times=ALWAYS)
        began_ms = broker.clock.ms
        for _ in range(100):
            await broker.switch()
            broker.clock.ms += 1_000
        assert begun == [0, 2_000, 6_000, 14_000, 30_000, 62_000]
        broker.clock.ms += 1_000_000
        await broker.switch()
        broker.clock.ms += diskless_switch.RETRY_MS_MAX
        await broker.switch()
        assert len(begun) == 8


@in_loop
async def test_producers_do_not_wait_for_a_store_that_is_known_to_be_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with led_with(1) as broker:
        monkeypatch.setattr(WriteAheadLog, "away_ms", 1_000)
        await broker.switch()
        assert not broker.asked
        monkeypatch.setattr(WriteAheadLog, "away_ms", 0)
        await broker.switch()
        assert len(broker.asked) == 1


@in_loop
async def test_a_partition_that_is_not_put_does_not_wait_for_the_checkpoint_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diskless_switch, "PUT_SECONDS", 0.05)
    async with led_with(1, partitions=2) as broker:
        broker.led(0).log.update_highest_offset_in_remote_storage(0)
        broker.store.refuse(path=ANY, times=ALWAYS)
        held = broker.store.hold(path="*checkpoint-*")
        switch = asyncio.get_running_loop().create_task(broker.switch())
        await until(held.reached.is_set)
        try:
            produce(broker.led(1), acks=1)
            assert broker.led(0).is_switching
        finally:
            held.goes_on.set()
        await switch


@in_loop
async def test_no_others_begin_while_the_controller_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diskless_switch, "PARTITIONS_AT_ONCE", 1)
    async with led_with(1, partitions=2) as broker:
        broker.trouble = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        await broker.switch()
        await broker.switch()
        assert [set(asked) for asked, _ in broker.asked] == [{(ID, 0)}] * 2
        produce(broker.led(1), acks=1)
        await broker.commit(changed(switched(replicated(), OWN)))
        await broker.switch()
        assert set(broker.asked[-1][0]) == {(ID, 1)}


@in_loop
async def test_what_waits_for_the_controller_for_long_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(diskless_switch, "UNANSWERED_SECONDS", 0.01)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]

    async with led_with(1, partitions=2) as broker:
        broker.answer = asyncio.Event()
        switch = asyncio.get_running_loop().create_task(broker.switch())
        await until(said)
        assert "t-0, t-1 take no records: the controller has not made" in said()[0]
        broker.answer.set()
        await switch


@pytest.mark.parametrize("failing", ["begin_switch", "give_up_switch"])
@in_loop
async def test_one_partitions_trouble_does_not_keep_others_from_taking_appends(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskless_switch, "PUT_SECONDS", 0.01)
    bad = 0 if failing == "give_up_switch" else 1
    real = getattr(LeaderPartition, failing)

    def fail(partition: LeaderPartition) -> None:
        if partition.partition == bad:
            raise ValueError("a session's trouble")
        real(partition)

    monkeypatch.setattr(LeaderPartition, failing, fail)
    async with led_with(1, partitions=2) as broker:
        broker.store.refuse(path=ANY, times=ALWAYS)
        with suppress(ValueError):
            await broker.switch()
        produce(broker.led(1 - bad), acks=1)


@in_loop
async def test_a_leader_that_has_asked_takes_no_appends_in_this_epoch() -> None:
    """Its request may be done, whatever the answer, or be done later."""
    async with led_with(1) as broker:
        broker.trouble = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        await broker.switch()
        # A follower has come back.
        await broker.commit(changed(replicated(isr=(ME, OTHER), partition_epoch=8)))
        await broker.switch()
        assert len(broker.asked) == 2
        with pytest.raises(KafkaError, match="it is becoming diskless"):
            produce(broker.led(), acks=1)
        await broker.commit(changed(replicated(leader_epoch=EPOCH + 1, partition_epoch=9)))
        produce(broker.led(), acks=1)


@in_loop
async def test_what_was_put_stays_while_a_commit_may_name_it() -> None:
    async with led_with(1) as broker:
        await broker.switch()
        assert not broker.diskless.is_safe((ID, 0), 0)
        await broker.commit(changed(replicated(leader_epoch=EPOCH + 1, partition_epoch=8)))
        assert broker.diskless.is_safe((ID, 0), 0)


@pytest.mark.parametrize(
    "reason",
    ["the setting", "recovering", "log start", "too much", "local log", "missing", "unknown"],
)
@in_loop
async def test_a_partition_that_cannot_switch_yet_goes_on(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_with(3) as broker:
        partition, tier = broker.led(), broker.tier
        match reason:
            case "the setting":
                broker.image.topics["t"].configs.clear()
            case "recovering":
                await broker.commit(
                    changed(replicated(leader_recovery_state=RECOVERING, partition_epoch=8))
                )
            case "log start":
                # Deleted records, of which the table does not know yet.
                partition.log.update_high_watermark(3)
                partition.log.advance_log_start_offset(1)
                partition.log.update_highest_offset_in_remote_storage(1)
            case "too much":
                monkeypatch.setattr(diskless_switch, "BYTES_MAX", 100)
            case "local log":
                # The table ends before what was deleted: a log in the lake would have a gap.
                partition.log.update_high_watermark(3)
                partition.log.advance_log_start_offset(2)
                tier.log_start = 2
            case "missing":
                # What replicas may still repair: followers' logs would go.
                partition.log.update_highest_offset_in_remote_storage(2)
                tier.gaps = [(1, 1)]
            case _:
                tier.log_start = None
        await broker.switch()
        assert not broker.asked
        assert not partition.is_switching
        assert not own_entries(broker.store)


@in_loop
async def test_records_are_deleted_once_the_table_knows_it() -> None:
    """Also by a leader that has asked: who takes over begins there."""
    async with led_with(2) as broker:
        partition = broker.led()
        partition.log.update_high_watermark(2)
        await broker.switch()
        partition.log.advance_log_start_offset(1)
        assert partition.low_watermark() == 0
        partition.lake_begins(1)
        assert partition.low_watermark() == 1


@in_loop
async def test_a_follower_that_had_lost_its_records_takes_over_what_became_diskless() -> None:
    async with bench(KnownTier(), SwitchBench) as broker:
        put(broker.store, 0, part(0), part(1))
        before = replicated(leader=OTHER, isr=(OTHER,))
        await broker.create(before)
        assert broker.followed().has_lost_records
        put_by_other = switched(before, BEFORE)
        await broker.commit(
            changed(
                replace(
                    put_by_other,
                    replicas=(ME,),
                    isr=(ME,),
                    leader=ME,
                    leader_epoch=put_by_other.leader_epoch + 1,
                    partition_epoch=put_by_other.partition_epoch + 1,
                    wals=(BEFORE, OWN),
                    wals_since=2,
                )
            )
        )
        await until(lambda: broker.recovered_epochs == [EPOCH + 2])
        assert broker.led().high_watermark == 2
        produce(broker.led())


# -- replicated again -------------------------------------------------------------------------------


@asynccontextmanager
async def returning_with(count: int, tier: KnownTier) -> AsyncIterator[SwitchBench]:
    """A diskless partition with so many records, all of them acknowledged, whose topic is to be replicated."""
    async with bench(tier, SwitchBench) as broker:
        assert isinstance(broker, SwitchBench)
        broker.asked, broker.states = [], []
        end, tier.end = tier.end, -1
        await broker.create(led(0, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs == [0])
        for _ in range(count):
            produce(broker.led())
        await until(lambda: broker.led().high_watermark == count)
        tier.end = end
        await broker.commit(setting("false"))
        yield broker


def transact(partition: LeaderPartition, producer_id: int, *, sequence: int) -> None:
    batch = client_batch(
        1,
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    partition.append(memoryview(batch), acks=-1, now_ms=NOW_MS)


def end_transaction(partition: LeaderPartition, producer_id: int) -> None:
    batch = marker(ControlType.COMMIT, producer_id, timestamp_ms=NOW_MS)
    origin = AppendOrigin.COORDINATOR
    partition.append(memoryview(batch), acks=-1, now_ms=NOW_MS, origin=origin)


async def begun(broker: SwitchBench) -> asyncio.Task[None]:
    """The switch has begun, and waits for the table."""
    switch = asyncio.get_running_loop().create_task(broker.switch())
    await until(lambda: broker.led().is_switching)
    return switch


@in_loop
async def test_a_leader_asks_for_followers_when_the_table_has_everything() -> None:
    tier = KnownTier(0)
    async with returning_with(3, tier) as broker:
        switch = await begun(broker)
        with pytest.raises(KafkaError, match="it is becoming replicated"):
            produce(broker.led())
        assert not broker.asked
        tier.end = 2
        await switch
        assert (broker.asked, broker.states) == (
            [({(ID, 0): 0}, OWN.broker_epoch)],
            [TO_REPLICATED],
        )
        before = content(broker.led().log)
        present = broker.image.topics["t"].partitions[0]
        await broker.commit(changed(with_followers(present, [OTHER], lambda _: bytes(16))))
        partition = broker.led()
        assert not partition.is_diskless and not partition.is_switching
        assert (content(partition.log), partition.high_watermark) == (before, 3)
        assert partition.log.leader_epochs.entries[-1] == (1, 3)
        produce(partition, acks=1)
        assert broker.diskless.is_safe((ID, 0), 2)


@in_loop
async def test_a_table_that_gets_nothing_lets_the_leader_go_on_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diskless_switch, "COPY_SECONDS", 0.05)
    tier = KnownTier(0)
    async with returning_with(2, tier) as broker:
        await broker.switch()
        assert not broker.asked
        produce(broker.led())
        tier.copies_to = 2
        await until(lambda: broker.led().high_watermark == 3)
        await broker.switch()
        assert not broker.asked, "producers have just waited"
        broker.clock.ms += diskless_switch.RETRY_MS
        await broker.switch()
        assert len(broker.asked) == 1


@in_loop
async def test_transactions_that_are_open_end_before_anything_else_waits() -> None:
    """Nothing of them is in the table before."""
    tier = KnownTier(0)
    async with returning_with(1, tier) as broker:
        partition = broker.led()
        transact(partition, 7, sequence=0)
        switch = await begun(broker)
        transact(partition, 7, sequence=1)
        with pytest.raises(KafkaError, match="it is becoming replicated"):
            transact(partition, 8, sequence=0)
        end_transaction(partition, 7)
        await until(lambda: partition.high_watermark == 4)
        tier.end = 3
        await switch
        assert len(broker.asked) == 1
        with pytest.raises(KafkaError, match="it is becoming replicated"):
            end_transaction(partition, 7)


@in_loop
async def test_a_leader_that_has_asked_for_followers_appends_nothing_more_in_this_epoch() -> None:
    tier = KnownTier(0)
    async with returning_with(1, tier) as broker:
        broker.trouble = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        await broker.switch()
        await broker.commit(setting("true"))
        await broker.switch()
        assert len(broker.asked) == 2
        with pytest.raises(KafkaError, match="it is becoming replicated"):
            produce(broker.led())
        # What the controller does with such a request.
        await broker.commit(changed(led(1, OWN, state=RECOVERING)))
        await until(lambda: broker.recovered_epochs == [0, 1])
        produce(broker.led())


@pytest.mark.parametrize("reason", ["put", "log start", "unknown", "missing", "too much"])
@in_loop
async def test_a_partition_that_cannot_be_replicated_yet_remains_diskless(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskless_switch, "COPY_SECONDS", 0.05)
    tier = KnownTier(2)
    async with returning_with(3, tier) as broker:
        partition = broker.led()
        match reason:
            case "put":
                broker.store.refuse(path=ANY, times=ALWAYS)
                produce(partition)
                tier.end = 3
            case "log start":
                partition.log.advance_log_start_offset(1)
            case "unknown":
                tier.log_start = None
            case "missing":
                tier.gaps = [(1, 1)]
            case _:
                tier.end = -1
                monkeypatch.setattr(diskless_switch, "BYTES_MAX", 100)
        await broker.switch()
        assert not broker.asked
        assert not partition.is_switching


@in_loop
async def test_a_former_leader_that_follows_truncates_what_was_never_acknowledged() -> None:
    """Its log is an old cache. The leader knows where the epoch has ended in which that was appended (KIP-101)."""
    tier = KnownTier()
    async with bench(tier, SwitchBench) as broker:
        assert isinstance(broker, SwitchBench)
        broker.asked, broker.states = [], []
        put(broker.store, 0, part(0), part(1))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs == [3])
        await broker.commit(setting("false"))
        tier.end = 1
        await broker.switch()
        present = broker.image.topics["t"].partitions[0]
        await broker.commit(changed(with_followers(present, [OTHER], lambda _: bytes(16))))
        produce(broker.led(), acks=1)
        assert broker.led().end_of_epoch(2) == (2, 2)
