"""A broker's write-ahead log on a store that is slow, loses answers, or is away; what others find in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.diskless.ended_wals import CLEAN_ROUNDS, EndedWals
from broker.diskless.take_over import FoundEntry, FoundRecords, TakenPartition, contiguous
from broker.diskless.wal_object import (
    WalEntry,
    WalHeader,
    WalPart,
    checkpoint_path,
    decode_header,
    encode_fence,
    object_path,
)
from broker.diskless.wal_reader import WalReader
from broker.diskless.wal_writer import EVERY_OFFSET, WalWriter
from broker.diskless.write_ahead_log import IN_FLIGHT_MAX, WalSettings, WriteAheadLog
from broker.log.values import FileSlice, LogRead
from broker.metadata.events import PartitionRegistration, RegisterBroker, WalId
from broker.metadata.image import MetadataImage, TopicImage
from kafka_ds.process.system import SystemClock, new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.store import ALWAYS, MemoryStore
from tests.loops import in_loop, until

TOPIC = b"t" * 16
OWN, OTHER = WalId(1, 10), WalId(2, 20)
ANY = "*.wal"
BUFFER_BYTES = 1_000


class Bytes:
    """A file in memory, of which half is said to be on the disk only."""

    def __init__(self) -> None:
        self.data = b""

    def read_now(self, size: int, position: int) -> bytes | None:
        return None if position % 2 else self.read(size, position)

    def read(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


class Leader:
    """A leader whose records have a byte each."""

    def __init__(self, wal: WriteAheadLog, number: int, epoch: int = 3) -> None:
        self.key, self.leader_epoch = (TOPIC, number), epoch
        self.wal, self.file = wal, Bytes()
        self.counted, self.deposed_by = 0, -1
        self.error: Exception | None = None

    def append(self, data: bytes) -> None:
        first = len(self.file.data)
        self.file.data += data
        self.wal.appended(self, first, first + len(data), len(data))

    def read_appended(self, offset: int, max_bytes: int) -> LogRead:
        if self.error is not None:
            raise self.error
        size = min(len(self.file.data) - offset, max_bytes)
        file: Any = self.file
        return LogRead((FileSlice(file, offset, size),), size, offset + size)

    def failed_to_put(self, error: Exception) -> None:
        self.deposed_by = -2

    def wal_has(self, first_offset: int, end_offset: int) -> None:
        assert first_offset == self.counted
        self.counted = end_offset

    def deposed(self, leader_epoch: int) -> None:
        self.deposed_by = leader_epoch

    async def all_count(self) -> None:
        await until(lambda: self.counted == len(self.file.data))


@asynccontextmanager
async def write_ahead_log(
    store: MemoryStore, *, linger_ms: int = 1, batch_bytes: int = 100
) -> AsyncIterator[WriteAheadLog]:
    settings = WalSettings(linger_ms=linger_ms, batch_bytes=batch_bytes, buffer_bytes=BUFFER_BYTES)
    with ThreadPoolExecutor(8) as threads:
        wal = WriteAheadLog(
            store,
            lambda: OWN,
            lambda: settings,
            clock=SystemClock(),
            executor=threads,
            new_id=new_uuid,
            failed=pytest.fail,
        )
        wal.start(lambda key, last_offset: True, lambda topic_id: False)
        try:
            yield wal
        finally:
            wal.stop()
            store.mend()


def in_table(key: PartitionId, last_offset: int) -> bool:
    """The table has all records."""
    return last_offset < EVERY_OFFSET


async def found_by(store: MemoryStore, *keys: PartitionId) -> FoundRecords:
    with ThreadPoolExecutor(8) as threads:
        taken = dict.fromkeys(keys, TakenPartition(4, 0))
        return await WalReader(store, threads, new_uuid).take_over(OWN, taken)


async def read(store: MemoryStore, leader: Leader, wal: WalId = OWN) -> bytes:
    """What a new leader of the partition finds."""
    with ThreadPoolExecutor(8) as threads:
        reader = WalReader(store, threads, new_uuid)
        taken = {leader.key: TakenPartition(leader.leader_epoch + 1, 0)}
        entries = (await reader.take_over(wal, taken)).entries[leader.key]
        found = b""
        for each in contiguous(entries, 0):
            (body,) = await reader.bodies(each.wal, each.place, [each])
            found += body[len(found) - each.entry.first_offset :]
    return found


def header(store: MemoryStore, place: int) -> WalHeader:
    return decode_header(store.objects[object_path(OWN, place)])


@in_loop
async def test_one_object_has_the_records_of_all_partitions() -> None:
    store = MemoryStore()
    async with write_ahead_log(store, linger_ms=100) as wal:
        leaders = [Leader(wal, number) for number in range(5)]
        for each in leaders:
            each.append(b"ab")
        for each in leaders:
            each.append(b"c")
        for each in leaders:
            await each.all_count()
        assert store.count("put_if_absent") == 1
        assert len(header(store, 0).entries) == 5
        assert [await read(store, each) for each in leaders] == [b"abc"] * 5
        assert wal.buffered_bytes == 0


@in_loop
async def test_a_full_object_does_not_linger() -> None:
    store = MemoryStore()
    async with write_ahead_log(store, linger_ms=10_000, batch_bytes=10) as wal:
        leader = Leader(wal, 0)
        leader.append(b"0123456789abcdefghijKLM")
        await until(lambda: leader.counted == 20)
        assert [len(each.entries) for each in (header(store, 0), header(store, 1))] == [1, 1]


@in_loop
async def test_acknowledgements_are_in_order_whatever_the_store_does() -> None:
    store = MemoryStore()
    held = store.hold(path=object_path(OWN, 0))
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        for word in (b"a", b"b", b"c"):
            leader.append(word)
            await until(lambda word=word: len(store.calls) > b"abc".index(word))
        await until(lambda: len(store.objects) == 2)
        assert leader.counted == 0, "the first place is empty"
        held.goes_on.set()
        await leader.all_count()
        assert header(store, 2).acked_to == 0
        assert await read(store, leader) == b"abc"


@in_loop
async def test_at_most_so_many_objects_are_put_at_once() -> None:
    store = MemoryStore()
    held = store.hold(path=ANY, times=ALWAYS)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        for _ in range(IN_FLIGHT_MAX + 3):
            leader.append(b"x")
            await asyncio.sleep(0.01)
        assert store.count("put_if_absent") == IN_FLIGHT_MAX
        store.mend()
        held.goes_on.set()
        await leader.all_count()
        assert store.count("put_if_absent") == IN_FLIGHT_MAX + 1


@in_loop
async def test_a_lost_answer_is_no_second_put(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.lose(path=ANY)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        leader.append(b"a")
        await leader.all_count()
        assert list(store.objects) == [object_path(OWN, 0)]
        assert wal.metrics.errors == 1
    assert "Unable to put wal/1/10/00000000000000000000.wal, will try again" in caplog.text


@in_loop
async def test_while_the_store_is_away_so_much_waits_and_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.diskless.write_ahead_log.AWAY_MS", 1)
    caplog.set_level(logging.INFO)
    store = MemoryStore()
    store.refuse(path=ANY, times=ALWAYS)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        wal.check_room()
        leader.append(bytes(BUFFER_BYTES))
        with pytest.raises(KafkaError, match=r"lake\.diskless\.buffer\.bytes=1000") as refused:
            wal.check_room()
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        await until(lambda: wal.away_ms)
        store.mend()
        await leader.all_count()
        wal.check_room()
        assert wal.away_ms == 0
    assert "The store takes records of diskless topics again, after" in caplog.text


@in_loop
async def test_a_store_that_does_not_answer_is_away_before_a_put_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.diskless.write_ahead_log.AWAY_MS", 1)
    store = MemoryStore()
    held = store.hold(path=ANY)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        assert wal.away_ms == 0, "nothing was tried"
        leader.append(b"a")
        await until(lambda: wal.away_ms)
        assert wal.metrics.errors == 0
        held.goes_on.set()
        await leader.all_count()
        assert wal.away_ms == 0


@in_loop
async def test_a_deleted_topic_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.diskless.write_ahead_log.CLEAN_UP_SECONDS", 0.001)
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        wal.table_has((TOPIC, 0), 7)
        assert wal.wal_id == OWN
        await until(lambda: wal.table_end((TOPIC, 0)) == -1)


def test_fences_of_a_deleted_topic_are_forgotten() -> None:
    writer, key = WalWriter(new_uuid), (TOPIC, 0)
    writer.put([WalPart(*key, 3, 0, 0, b"a")])
    outcome = writer.exists(0, decode_header(encode_fence(new_uuid(), [(key, 4)])))
    assert outcome.fenced == ((key, 4),)
    writer.forget_topics(lambda topic_id: True)
    assert writer.fenced_by(key) == 4
    writer.forget_topics(lambda topic_id: False)
    assert writer.fenced_by(key) == -1


@in_loop
async def test_what_is_taken_over_takes_no_room_from_producers() -> None:
    store = MemoryStore()
    store.refuse(path=ANY, times=ALWAYS)
    async with write_ahead_log(store, linger_ms=10_000, batch_bytes=1 << 20) as wal:
        taken, own = Leader(wal, 0), Leader(wal, 1)
        taken.file.data = bytes(5 * BUFFER_BYTES)
        wal.appended(taken, 0, 5 * BUFFER_BYTES, 5 * BUFFER_BYTES, is_again=True)
        assert wal.buffered_bytes == 5 * BUFFER_BYTES
        wal.check_room()
        own.append(bytes(BUFFER_BYTES))
        with pytest.raises(KafkaError):
            wal.check_room()
        wal.forget(taken)
        wal.forget(own)
        wal.check_room()
        assert wal.buffered_bytes == 0


@in_loop
async def test_a_fence_deposes_a_leader_and_moves_the_others_behind_it() -> None:
    store = MemoryStore()
    async with write_ahead_log(store, linger_ms=20) as wal:
        fenced, other = Leader(wal, 0), Leader(wal, 1)
        store.put_durable(object_path(OWN, 0), encode_fence(new_uuid(), [(fenced.key, 4)]))
        fenced.append(b"late")
        other.append(b"ab")
        await other.all_count()
        assert (fenced.counted, fenced.deposed_by, other.deposed_by) == (0, 4, -1)
        assert [each.key for each in header(store, 1).entries] == [other.key]
        assert wal.buffered_bytes == 0


@in_loop
async def test_a_take_over_ends_the_old_leader() -> None:
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        leader.append(b"ab")
        await leader.all_count()
        assert await read(store, leader) == b"ab"
        leader.append(b"c")
        await until(lambda: leader.deposed_by == 4)
        assert leader.counted == 2
        assert await read(store, leader) == b"ab"
        assert wal.metrics.fenced == 1
        again = Leader(wal, 0)
        again.append(b"late")
        await until(lambda: again.deposed_by == 4)
        assert wal.buffered_bytes == 0
        assert wal.knows(leader.key), "what was put before"
        other = Leader(wal, 1)
        assert not wal.knows(other.key)
        store.put_durable(object_path(OWN, 2), encode_fence(new_uuid(), [(other.key, 4)]))
        other.append(b"late")
        await until(lambda: other.deposed_by == 4)
        assert not wal.knows(other.key)


@in_loop
async def test_a_log_that_cannot_be_read_stops_no_other() -> None:
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        broken, other = Leader(wal, 0), Leader(wal, 1)
        broken.error = OSError("damaged")
        broken.append(b"a")
        other.append(b"b")
        await other.all_count()
        assert broken.deposed_by == -2
        assert wal.buffered_bytes == 0


@in_loop
async def test_trouble_of_one_leader_is_not_that_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    async with write_ahead_log(store, linger_ms=20) as wal:
        broken, other = Leader(wal, 0), Leader(wal, 1)
        broken.counted = 7  # Contradicts what it is told.
        broken.append(b"a")
        other.append(b"b")
        await other.all_count()
        assert broken.deposed_by == -2
        other.append(b"c")
        await other.all_count()
        assert wal.buffered_bytes == 0
    assert "A leader cannot be told what its write-ahead log has" in caplog.text


@in_loop
async def test_a_leader_that_is_forgotten_hears_nothing() -> None:
    store = MemoryStore()
    held = store.hold(path=ANY)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        leader.append(b"a")
        await until(lambda: store.calls)
        leader.append(b"b")
        wal.forget(leader)
        held.goes_on.set()
        await until(lambda: wal.buffered_bytes == 0)
        assert leader.counted == 0


@in_loop
async def test_objects_are_erased_once_a_checkpoint_says_that_they_were_there() -> None:
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        for word in (b"a", b"b", b"c"):
            leader.append(word)
            await leader.all_count()
        assert await wal.erase(in_table) == 0, "a listing may have begun before the checkpoint"
        assert await wal.erase(lambda *_: False) == 0, "somebody needs it"
        assert wal.knows(leader.key)
        assert await wal.erase(in_table) == 3
        assert not wal.knows(leader.key)
        assert list(store.objects) == [checkpoint_path(OWN, 0)]
        puts = store.count("put_if_absent")
        assert await wal.erase(in_table) == 0
        assert store.count("put_if_absent") == puts, "there is nothing new"
        assert await read(store, leader) == b""
        assert header(store, 3).entries[0].is_fence, "nothing is fenced where something was"


@in_loop
async def test_a_checkpoint_says_what_the_table_has_before_it_is_erased() -> None:
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        leader, gone = Leader(wal, 0), Leader(wal, 1)
        for _ in range(2):
            leader.append(b"ab")
            gone.append(b"c")
            await leader.all_count()
            await gone.all_count()

        def is_safe(key: PartitionId, last_offset: int) -> bool:
            return key == gone.key or last_offset < 3

        store.lose(path="*checkpoint*", times=2)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await wal.erase(is_safe)
        assert wal.object_count, "it is not known what is durable"
        await wal.erase(is_safe)
        erased = await wal.erase(is_safe)
        assert erased
        assert len(header(store, wal.object_count).entries) <= 2
        found = await found_by(store, leader.key, gone.key)
        assert found.table_ends == {leader.key: wal.table_end(leader.key)}
        (kept, *_) = found.entries[leader.key]
        assert kept.entry.first_offset == wal.table_end(leader.key) + 1
        wal.table_has(leader.key, 7)
        await wal.checkpoint()
        checkpoints = [path for path in store.objects if "checkpoint" in path]
        assert len(checkpoints) == 2, "somebody may read the one before"
        assert (await found_by(store, leader.key)).table_ends == {leader.key: 7}


@in_loop
async def test_all_that_nobody_needs_goes_at_once() -> None:
    """A busy broker makes a thousand objects a minute, and a clean-up comes once a minute."""
    store = MemoryStore()
    async with write_ahead_log(store, linger_ms=0, batch_bytes=1) as wal:
        leader = Leader(wal, 0)
        leader.append(bytes(1_500))
        await leader.all_count()
        assert wal.object_count == 1_500
        assert await wal.erase(lambda *_: True) == 0
        assert await wal.erase(lambda key, last_offset: last_offset < 1_400) == 1_400
        assert wal.object_count == sum(path.endswith(".wal") for path in store.objects) == 100


@in_loop
async def test_an_object_that_is_erased_while_it_is_read_has_the_log_listed_again() -> None:
    store = MemoryStore()
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        for word in (b"a", b"b"):
            leader.append(word)
            await leader.all_count()
        store.race(
            lambda: store.delete(object_path(OWN, 0)), calls="read_range", path=object_path(OWN, 0)
        )
        assert await read(store, leader) == b""
        assert store.count("list") == 3, "and once more behind the fence"
        assert header(store, 2).entries[0].is_fence


@in_loop
async def test_logs_of_ended_brokers_lose_all_but_their_fences() -> None:
    store, paths = MemoryStore(), {}
    for wal_id in (OWN, OTHER, WalId(3, 30), WalId(4, 40)):
        paths[wal_id] = [object_path(wal_id, place) for place in range(2)]
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        leader.append(b"a")
        await leader.all_count()
        data, fence = store.objects[paths[OWN][0]], encode_fence(new_uuid(), [(leader.key, 4)])
        for one, two in paths.values():
            store.put_durable(one, data)
            store.put_durable(two, fence)
        image = MetadataImage()
        for registered in (WalId(1, 10), WalId(2, 21), WalId(3, 31)):
            register(image, registered)
        image.last_broker_epoch = 39
        topic = TopicImage(name="t", topic_id=TOPIC)
        topic.partitions[0] = PartitionRegistration(
            replicas=(1,), isr=(1,), leader=1, wals=(OTHER,)
        )
        image.topics["t"] = topic
        store.put_durable(checkpoint_path(OTHER, 5), fence)
        ended = EndedWals(store, wal.executor, image, lambda: True)
        assert await ended.erase() == 1
        assert checkpoint_path(OTHER, 5) in store.objects, "it is named"
        gone = {path for listed in paths.values() for path in listed} - store.objects.keys()
        assert gone == {paths[WalId(3, 30)][0]}, (
            "not one that lives, is named, or comes to be known"
        )
        del topic.partitions[0]
        image.last_broker_epoch = 40
        assert await ended.erase() == 3
        assert checkpoint_path(OTHER, 5) not in store.objects
        assert await ended.erase() == 0
        before = store.count("list")
        assert await ended.erase() == 0
        assert store.count("list") == before, "a log of fences only is not read again"
        store.put_durable(object_path(OTHER, 9), data)
        for _ in range(CLEAN_ROUNDS):
            await ended.erase()
        assert object_path(OTHER, 9) not in store.objects, "a late put"


@in_loop
async def test_a_log_that_was_named_while_others_were_erased_stays() -> None:
    """A partition has become diskless, and its leader was registered again, since the ended logs were looked for."""
    store, path = MemoryStore(), object_path(OWN, 0)
    async with write_ahead_log(store) as wal:
        leader = Leader(wal, 0)
        leader.append(b"a")
        await leader.all_count()
        ended_before = object_path(WalId(0, 5), 0)
        store.put_durable(ended_before, store.objects[path])
        image = MetadataImage()
        register(image, OWN)
        held = store.hold(calls="delete", path=ended_before)
        erasing = asyncio.get_running_loop().create_task(
            EndedWals(store, wal.executor, image, lambda: True).erase()
        )
        await until(held.reached.is_set)
        image.topics["t"] = TopicImage(name="t", topic_id=TOPIC)
        image.topics["t"].partitions[0] = PartitionRegistration(
            replicas=(1,), isr=(1,), leader=1, wals=(OWN,)
        )
        register(image, WalId(OWN.node_id, 40))
        held.goes_on.set()
        assert await erasing == 1
        assert path in store.objects


def register(image: MetadataImage, wal: WalId) -> None:
    registered = RegisterBroker(
        broker_id=wal.node_id,
        incarnation_id=new_uuid(),
        endpoints=(),
        broker_epoch=wal.broker_epoch,
    )
    image.replay(registered, MetadataPosition(0, 0))


def entries(*found: tuple[int, int, int]) -> list[FoundEntry]:
    """Entries of these leader epochs, first and last offsets, in this order."""
    return [
        FoundEntry(OWN, place, WalEntry(TOPIC, 0, epoch, first, last, 0, 1))
        for place, (epoch, first, last) in enumerate(found)
    ]


def planned(start_offset: int, *found: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    plan = contiguous(reversed(entries(*found)), start_offset)
    return [(e.entry.leader_epoch, e.entry.first_offset, e.entry.last_offset) for e in plan]


def test_of_entries_that_overlap_the_later_leaders_is_taken() -> None:
    """In a copy of a lake one may count that a later leader has left out."""
    acknowledged = (5, 0, 1), (7, 2, 3), (7, 4, 4)
    assert planned(0, *acknowledged, (5, 2, 4)) == [*acknowledged]
    # What is behind the end contradicts nothing; the batches say whether it continues what precedes it.
    assert planned(0, *acknowledged, (5, 2, 5)) == [*acknowledged, (5, 2, 5)]
    assert planned(0, (5, 0, 1), (5, 2, 5), (7, 0, 1), (7, 2, 3), (7, 4, 9)) == [
        (7, 0, 1), (7, 2, 3), (7, 4, 9),
    ]  # fmt: skip


def test_a_part_that_was_put_again_does_not_end_what_it_was_taken_from() -> None:
    assert planned(0, (5, 0, 9), (6, 0, 3)) == [(6, 0, 3), (5, 0, 9)]
    assert planned(2, (5, 0, 9), (6, 4, 5)) == [(5, 0, 9)]
    assert planned(0, (5, 0, 3), (5, 4, 5), (6, 0, 2), (6, 7, 8)) == [
        (6, 0, 2),
        (5, 0, 3),
        (5, 4, 5),
    ]
    assert planned(6, (5, 0, 5), (6, 7, 8)) == []
