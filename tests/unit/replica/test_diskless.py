"""Diskless partitions of one broker: when appends count, and what a take-over gives its log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from broker.diskless.metrics import DATA_MISSING
from broker.diskless.wal_object import (
    WalPart,
    checkpoint_path,
    decode_header,
    encode,
    encode_checkpoint,
    encode_fence,
    object_path,
)
from broker.log.directories.directories import LogDirectories
from broker.metadata.events import RECOVERING, WalId
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.fakes.store import ALWAYS, MemoryStore
from tests.loops import in_loop, until
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
from tests.unit.replica.followed_logs import content
from tests.unit.replica.replica_bench import ID, OTHER, changed, produce


@in_loop
async def test_an_append_counts_once_the_write_ahead_log_has_it() -> None:
    async with bench() as broker:
        held = broker.store.hold(path=ANY)
        await broker.create(led(0, OWN))
        partition = broker.led()
        produce(partition)
        produce(partition, acks=1)
        answers = [partition.acknowledgement(0, -1), partition.acknowledgement(1, 1)]
        await until(lambda: held.reached.is_set())
        assert (partition.high_watermark, partition.log.log_end_offset) == (0, 2)
        assert not any(each.done() for each in answers)
        held.goes_on.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*answers)
        assert partition.high_watermark == 2
        assert own_entries(broker.store) == [(0, 0, 1)]


@in_loop
async def test_too_much_that_waits_for_the_store_is_refused() -> None:
    async with bench() as broker:
        broker.store.refuse(path=ANY, times=ALWAYS)
        await broker.create(led(0, OWN))
        partition = broker.led()
        with pytest.raises(KafkaError, match=r"bytes of diskless topics wait for the store"):
            for _ in range(100):
                produce(partition)
        end = partition.log.log_end_offset
        broker.store.mend()
        await until(lambda: partition.high_watermark == end)
        produce(partition)


@in_loop
async def test_a_take_over_has_what_counts_and_puts_it_again() -> None:
    async with bench() as broker:
        put(broker.store, 0, part(0), part(1, count=2))
        put(broker.store, 1, part(3))
        put(broker.store, 3, part(5), acked_to=1)
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        partition = broker.led()
        assert (partition.high_watermark, partition.log.log_end_offset) == (4, 4)
        assert content(partition.log) == b"".join(
            each.data for each in (part(0), part(1, count=2), part(3))
        )
        assert own_entries(broker.store) == [(3, 0, 3)]
        fence = decode_header(broker.store.objects[object_path(BEFORE, 2)])
        assert [(each.key, each.leader_epoch) for each in fence.entries] == [((ID, 0), 3)]
        produce(partition)
        await until(lambda: partition.high_watermark == 5)
        assert partition.log.leader_epochs.entries == ((2, 0), (3, 4))


@in_loop
async def test_a_take_over_goes_on_at_the_end_of_the_table() -> None:
    async with bench(FencedTier(end=1)) as broker:
        put(broker.store, 0, part(0, count=2), part(2))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        partition = broker.led()
        assert (partition.log.local_log_start_offset, partition.high_watermark) == (2, 3)
        assert broker.tier.told == ["closed 0", "fenced [3]", "opened t-0 in 3"]


@in_loop
async def test_records_are_deleted_once_the_table_knows_it() -> None:
    """Whoever leads next begins there, too: the log start on the disk is no more than a cache."""
    async with bench() as broker:
        await broker.create(led(0, OWN))
        partition = broker.led()
        produce(partition)
        produce(partition)
        await until(lambda: partition.high_watermark == 2)
        partition.log.advance_log_start_offset(1)
        deletion = partition.deletion(1)
        assert (partition.low_watermark(), deletion.done()) == (0, False)
        partition.lake_begins(1)
        assert deletion.result() == partition.low_watermark() == 1


@in_loop
async def test_a_take_over_begins_where_the_table_says() -> None:
    """Also where records were deleted that the table never had: they are taken over, and read no more."""
    async with bench(FencedTier(end=1, log_start=3)) as broker:
        put(broker.store, 0, part(2), part(3, count=2))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        partition = broker.led()
        assert (partition.log.log_start_offset, partition.high_watermark) == (3, 5)
        assert partition.low_watermark() == 3


@in_loop
async def test_a_leader_serves_nothing_before_all_of_it_is_put_again() -> None:
    async with bench() as broker:
        put(broker.store, 0, part(0))
        held = broker.store.hold(path="wal/1/11/*")
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: held.reached.is_set())
        partition = broker.led()
        assert partition.log.log_end_offset == 1
        assert not broker.recovered_epochs
        with pytest.raises(KafkaError) as refused:
            produce(partition)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        held.goes_on.set()
        await until(lambda: partition.high_watermark == 1)


@in_loop
async def test_records_of_several_logs_are_joined_by_their_offsets() -> None:
    """The leader between them put again only a part before it was gone."""
    first = WalId(OTHER, 9)
    async with bench() as broker:
        put(broker.store, 0, part(0, count=3, epoch=3))
        for place, each in enumerate((part(0), part(1, count=2), part(3), part(4))):
            broker.store.put_durable(object_path(first, place), encode(new_uuid(), 0, [each]))
        await broker.create(led(4, first, BEFORE, OWN, state=RECOVERING, since=2))
        await until(lambda: broker.recovered_epochs)
        partition = broker.led()
        assert partition.high_watermark == 5
        # In one part or two: they are put while the rest is still read.
        entries = own_entries(broker.store)
        assert {epoch for epoch, _, _ in entries} == {4}
        put_again = [offset for _, low, high in entries for offset in range(low, high + 1)]
        assert put_again == [0, 1, 2, 3, 4]
        fences = [object_path(first, 4), object_path(BEFORE, 1)]
        assert all(decode_header(broker.store.objects[each]).entries for each in fences)


@pytest.mark.parametrize("is_of_copy", [False, True])
@in_loop
async def test_what_lies_behind_a_gap_is_left_out_and_said(
    caplog: pytest.LogCaptureFixture, is_of_copy: bool
) -> None:
    """It was never acknowledged, but in a promoted copy, where an acknowledged object may be missing."""
    caplog.set_level(logging.INFO)
    async with bench() as broker:
        broker.image.promoted_in = "/copy" if is_of_copy else None
        put(broker.store, 0, part(0))
        put(broker.store, 1, part(2), part(3))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        assert broker.led().log.log_end_offset == 1
    (said,) = [each for each in caplog.records if "behind a gap" in each.getMessage()]
    why = "and are lost if" if is_of_copy else "so never acknowledged"
    assert f"t-0: offsets 2 to 3 were put behind a gap at 1, {why}" in said.getMessage()
    assert said.levelname == ("WARNING" if is_of_copy else "INFO")


@pytest.mark.parametrize("left_out", [part(2, count=4), part(5)])
@in_loop
async def test_a_copy_takes_what_a_later_leader_has_put_at_the_same_offsets(
    caplog: pytest.LogCaptureFixture, left_out: WalPart
) -> None:
    """Its metadata know only the leader of epoch 2: neither that of 3, nor that the process led again, in epoch 4."""
    async with bench() as broker:
        broker.image.promoted_in = "/copy"
        put(broker.store, 0, part(0, count=2))
        fence = encode_fence(new_uuid(), [((ID, 0), 3)])
        broker.store.put_durable(object_path(BEFORE, 1), fence)
        put(broker.store, 2, left_out)
        put(broker.store, 3, part(0, count=2)._replace(leader_epoch=4))
        put(broker.store, 4, part(2, count=2, epoch=4))
        put(broker.store, 5, part(4, epoch=4))
        await broker.create(led(5, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        partition = broker.led()
        assert partition.high_watermark == 5
        acknowledged = part(0, count=2), part(2, count=2, epoch=4), part(4, epoch=4)
        assert content(partition.log) == b"".join(each.data for each in acknowledged)
        produce(partition)
        await until(lambda: partition.high_watermark == 6)
    assert "t-0: what the write-ahead logs have from offset 5 on was put by an ea" in caplog.text


@in_loop
async def test_a_copy_has_the_rest_of_what_was_put_again_in_part() -> None:
    async with bench() as broker:
        broker.image.promoted_in = "/copy"
        put(broker.store, 0, part(0), part(1, count=2))
        put(broker.store, 1, part(3))
        again = WalPart(ID, 0, 3, 0, 2, part(0).data + part(1, count=2).data)
        put(broker.store, 2, again)
        await broker.create(led(4, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 4


def data_missing(broker: DisklessBench) -> Any:
    """Of how many partitions this broker says that their records are missing."""
    diskless = broker.manager.applier.diskless
    assert diskless is not None
    return {sample[0]: sample[2] for sample in diskless.wal.samples()}[DATA_MISSING]


def put_checkpoint(store: MemoryStore, wal: WalId, end: int) -> None:
    data = encode_checkpoint(new_uuid(), 0, {(ID, 0): end})
    store.put_durable(checkpoint_path(wal, 0), data)


@in_loop
async def test_a_table_that_has_lost_its_end_is_not_gone_on_from(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replica.diskless_partitions.RETRY_SECONDS", 0.001)
    tier = FencedTier(end=1)
    async with bench(tier) as broker:
        put_checkpoint(broker.store, BEFORE, 3)
        put(broker.store, 0, part(4))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: "Unable to take over t-0 yet: offsets 2 to 3 were ackn" in caplog.text)
        await until(lambda: data_missing(broker) == 1)
        reads = broker.store.count("read_range")
        fences = tier.told.count("fenced [3]")
        await until(lambda: tier.told.count("fenced [3]") > fences + 2)
        assert broker.store.count("read_range") == reads, "the table still ends there"
        assert [each.levelname for each in caplog.records if "2 to 3" in each.message] == ["ERROR"]
        assert not broker.recovered_epochs
        tier.end = 3
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 5
        await until(lambda: data_missing(broker) == 0)


@in_loop
async def test_what_a_table_has_lost_is_taken_from_logs_that_have_it_still() -> None:
    async with bench(FencedTier(end=1)) as broker:
        put_checkpoint(broker.store, BEFORE, 3)
        put(broker.store, 0, part(2, count=2))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 4


@in_loop
async def test_offsets_of_lost_records_are_used_again_where_the_topic_allows_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench(FencedTier(end=1)) as broker:
        broker.config = replace(broker.config, unclean_leader_election_enable=True)
        put_checkpoint(broker.store, BEFORE, 3)
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 2
    assert "t-0: offsets 2 to 3 were acknowledged, and are neither in the topic's" in caplog.text


@in_loop
async def test_a_leader_of_an_idle_partition_says_what_the_table_has_before_it_leads() -> None:
    """The logs of earlier leaders are named no more, and nothing is put for it here."""
    async with bench(FencedTier(end=3)) as broker:
        held = broker.store.hold(path="wal/1/11/checkpoint-*")
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: held.reached.is_set())
        assert not broker.recovered_epochs
        held.goes_on.set()
        await until(lambda: broker.recovered_epochs)
        (own,) = decode_header(broker.store.objects[checkpoint_path(OWN, 0)]).entries
        assert (own.key, own.last_offset) == ((ID, 0), 3)


@in_loop
async def test_a_take_over_that_fails_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replica.diskless_partitions.RETRY_SECONDS", 0.001)
    tier = FencedTier()
    tier.failing = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no lake")
    async with bench(tier) as broker:
        put(broker.store, 0, part(0))
        broker.store.refuse(calls="list", path="wal/*")
        broker.store.refuse(calls="read_range", path=object_path(BEFORE, 0))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: "Unable to take over t-0 yet: " in caplog.text)
        tier.failing = None
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 1
        assert not broker.store.scripted


@in_loop
async def test_damage_in_a_write_ahead_log_is_no_reason_to_lead_without_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replica.diskless_partitions.RETRY_SECONDS", 0.001)
    async with bench() as broker:
        put(broker.store, 0, part(0))
        whole = broker.store.objects[object_path(BEFORE, 0)]
        broker.store.objects[object_path(BEFORE, 0)] = whole[:30]
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: "00000000000000000000.wal: " in caplog.text)
        damaged = bytearray(whole)
        damaged[-1] ^= 1
        broker.store.objects[object_path(BEFORE, 0)] = bytes(damaged)
        await until(lambda: "CORRUPT" in caplog.text)
        assert not broker.recovered_epochs
        broker.store.objects[object_path(BEFORE, 0)] = whole
        await until(lambda: broker.recovered_epochs)
        assert broker.led().high_watermark == 1


@in_loop
async def test_what_is_damaged_of_one_partition_keeps_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is fenced once for each epoch, however often the damaged one is tried again."""
    monkeypatch.setattr("broker.replica.diskless_partitions.RETRY_SECONDS", 0.001)
    monkeypatch.setattr("broker.replica.diskless_partitions.RETRY_SECONDS_MAX", 0.001)
    tier = FencedTier()
    async with bench(tier) as broker:
        damaged = part(0)
        damaged = damaged._replace(data=damaged.data[:-1] + bytes([damaged.data[-1] ^ 1]))
        put(broker.store, 0, damaged)
        put(broker.store, 1, part(0)._replace(partition=1))
        both = led(3, BEFORE, OWN, state=RECOVERING)
        await broker.create(both, led(4, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs == [4])
        assert broker.led(1).high_watermark == 1
        await until(lambda: "Unable to take over t-0 yet: " in caplog.text)
        await asyncio.sleep(0.1)
        assert tier.told.count("fenced [3, 4]") == 1
        assert not [told for told in tier.told if told == "fenced [3]"]
        assert broker.recovered_epochs == [4]


@in_loop
async def test_what_comes_while_others_are_taken_over_is_the_next_group() -> None:
    """One group at a time: each has fences and listings of its own."""
    tier = FencedTier()
    async with bench(tier) as broker:
        held = broker.store.hold(calls="list", path="wal/*")
        waiting = [led(3 + n, BEFORE, OWN, state=RECOVERING) for n in range(4)]
        await broker.create(waiting[0])
        await until(lambda: held.reached.is_set())
        for number, each in enumerate(waiting[1:], 1):
            await broker.commit(changed(each, number))
            await asyncio.sleep(0.03)
        held.goes_on.set()
        await until(lambda: sorted(broker.recovered_epochs) == [3, 4, 5, 6])
        assert [told for told in tier.told if told.startswith("fenced")] == [
            "fenced [3]",
            "fenced [4, 5, 6]",
        ]


@in_loop
async def test_a_fence_ends_a_leader_before_the_metadata_do() -> None:
    async with bench() as broker:
        await broker.create(led(0, OWN))
        partition = broker.led()
        produce(partition)
        await until(lambda: partition.high_watermark == 1)
        broker.store.put_durable(
            object_path(OWN, 1), encode(new_uuid(), 0, [WalPart(ID, 0, 1, -1, -1, b"")])
        )
        produce(partition)
        looked_up = partition.changes
        with pytest.raises(KafkaError) as refused:
            async with asyncio.timeout(20):
                await partition.acknowledgement(1, -1)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(KafkaError) as refused:
            produce(partition)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.high_watermark == 1
        # Someone who has read on at the new leader, and names no epoch, is not out of range here.
        with pytest.raises(KafkaError) as refused:
            partition.check_epoch(-1)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.changes > looked_up, "sessions in which it is idle look again"


@in_loop
async def test_the_same_process_that_leads_anew_takes_over_its_own_log() -> None:
    """Another broker was elected in between, and did not recover."""
    async with bench() as broker:
        await broker.create(led(0, OWN))
        partition = broker.led()
        produce(partition)
        await until(lambda: partition.high_watermark == 1)
        held = broker.store.hold(path=ANY)
        produce(partition)
        waiting = partition.acknowledgement(1, -1)
        await until(lambda: held.reached.is_set())
        await broker.commit(changed(led(2, BEFORE, OWN, state=RECOVERING)))
        assert isinstance(waiting.exception(), KafkaError)
        held.goes_on.set()
        await until(lambda: broker.recovered_epochs)
        assert broker.led() is partition
        assert partition.high_watermark in (1, 2), "the last one may have been put in time"
        assert partition.high_watermark == partition.log.log_end_offset
        end = partition.log.log_end_offset
        produce(partition)
        await until(lambda: partition.high_watermark == end + 1)


@in_loop
async def test_a_registration_of_an_earlier_process_is_not_led() -> None:
    async with bench() as broker:
        await broker.create(led(0, replace_epoch(OWN, 10)))
        await asyncio.sleep(0.05)
        with pytest.raises(KafkaError) as refused:
            produce(broker.led())
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.tier.told == ["closed 0"]
        await broker.commit(changed(led(1, replace_epoch(OWN, 10), OWN, state=RECOVERING)))
        await until(lambda: broker.recovered_epochs == [1])
        produce(broker.led())


def replace_epoch(wal: WalId, epoch: int) -> WalId:
    return WalId(wal.node_id, epoch)


@in_loop
async def test_a_broker_with_a_failed_log_directory_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that directory may have of the partition is a cache."""
    monkeypatch.setattr(LogDirectories, "some_failed", property(lambda _: True))
    async with bench() as broker:
        put(broker.store, 0, part(0), part(1))
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: broker.recovered_epochs == [3])
        assert broker.led().log.log_end_offset == 2


@in_loop
async def test_a_process_that_is_registered_again_while_it_runs_ends() -> None:
    """UnregisterBroker: its next heartbeat registers it in another epoch, whose write-ahead log it does not have."""
    async with bench() as broker:
        await broker.create(led(0, OWN))
        assert not broker.failures
        await broker.commit(changed(led(2, OWN, replace_epoch(OWN, 12), state=RECOVERING)))
        await until(lambda: broker.failures)
        await asyncio.sleep(0.05)
        assert not broker.recovered_epochs
        assert "was registered again, in epoch 12" in str(broker.failures[0])


@in_loop
async def test_a_later_election_is_not_reported_as_recovered() -> None:
    """The metadata here know of it, while this broker has taken over for the one before."""
    async with bench() as broker:
        put(broker.store, 0, part(0))
        held = broker.store.hold(path="wal/1/11/*")
        await broker.create(led(3, BEFORE, OWN, state=RECOVERING))
        await until(lambda: held.reached.is_set())
        late = led(5, BEFORE, WalId(3, 9), OWN, state=RECOVERING)
        image = broker.image.topics["t"].partitions
        image[0] = late
        held.goes_on.set()
        await until(lambda: broker.led().leader.effective_end_offset == 1)
        await asyncio.sleep(0.05)
        assert not broker.recovered_epochs
        await broker.commit(changed(replace(late, partition_epoch=late.partition_epoch + 1)))
        await until(lambda: broker.recovered_epochs == [5])


@in_loop
async def test_records_are_needed_until_the_table_has_them_or_nobody_asks_for_them_here() -> None:
    async with bench() as broker:
        await broker.create(led(0, OWN))
        diskless, key = broker.manager.applier.diskless, (ID, 0)
        assert diskless is not None
        assert not diskless.is_safe(key, 0)
        broker.led().log.update_highest_offset_in_remote_storage(3)
        assert diskless.is_safe(key, 3)
        assert not diskless.is_safe(key, 4)
        await broker.commit(changed(led(1, OWN, BEFORE, state=RECOVERING)))
        assert not diskless.is_safe(key, 0), "it is being taken over"
        await broker.commit(changed(led(1, BEFORE, since=1)))
        assert diskless.is_safe(key, 99), "somebody else has put all of it again"
        assert diskless.is_safe((b"gone" * 4, 0), 0)
