"""What aiokafka's own integration tests ask of its consumer, asked of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalOperation,
    IllegalStateError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.adaptors import Message, librdkafka_produce
from tests.clients.messages import BEGAN_MS, fill
from tests.loops import until
from tests.processes import BrokerProcess
from tests.topics import create_topic

TIMEOUT_S = 120


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


@asynccontextmanager
async def consuming(
    broker: BrokerProcess, *topics: str, **settings: Any
) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    chosen = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **settings}
    consumer = aiokafka.AIOKafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **chosen)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def read(consumer: aiokafka.AIOKafkaConsumer, count: int, **how: Any) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=500, **how)).values():
            found += records
    return found


def test_one_by_one_and_by_partition(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        async with consuming(broker, filled, group_id=f"g-{filled}") as consumer:
            first = await consumer.getone()
            # Whichever partition was answered first.
            assert (first.topic, first.offset, first.value) == (
                filled,
                0,
                b"%d-0" % first.partition,
            )
            assert (first.key, first.headers, first.timestamp) == (
                b"k0",
                (("n", b"0"),),
                BEGAN_MS,
            )
            other = TopicPartition(filled, 1 - first.partition)
            mine = await consumer.getone(other)
            assert (mine.partition, mine.offset) == (other.partition, 0)
            assert consumer.assignment() == {TopicPartition(filled, p) for p in (0, 1)}
            assert consumer.subscription() == {filled}
            assert {"k"} & set(consumer.partitions_for_topic(filled) or ()) == set()
            assert consumer.partitions_for_topic(filled) == {0, 1}
            assert filled in await consumer.topics()

    run(work())


def test_an_iteration_gives_everything_in_order(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        async with consuming(broker, filled) as consumer:
            seen: dict[int, list[int]] = {0: [], 1: []}
            async for record in consumer:
                seen[record.partition].append(record.offset)
                if len(seen[0]) + len(seen[1]) == 200:
                    break
            assert seen == {0: list(range(100)), 1: list(range(100))}

    run(work())


def test_polls_are_bounded_and_come_back_empty(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        async with consuming(broker, filled, max_poll_records=7) as consumer:
            seen = 0
            while seen < 200:
                found = await consumer.getmany(timeout_ms=1_000)
                count = sum(map(len, found.values()))
                assert count <= 7
                seen += count
            assert await consumer.getmany(timeout_ms=200) == {}
            assert await consumer.getmany(timeout_ms=0) == {}
        async with consuming(broker, filled) as consumer:
            assert len(await read(consumer, 3, max_records=3)) == 3

    run(work())


@pytest.mark.parametrize("limit", ["fetch_max_bytes", "max_partition_fetch_bytes"])
def test_a_record_larger_than_the_limit(broker: BrokerProcess, topic: str, limit: str) -> None:
    """KIP-74: the first batch comes whole; aiokafka itself refuses one above its partition's limit."""

    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        fill(broker, topic, range(1))
        librdkafka_produce(broker.bootstrap, topic, [Message(None, b"x" * 10_000, [], BEGAN_MS)])
        async with consuming(broker, topic, **{limit: 1_000}) as consumer:
            assert (await consumer.getone()).value == b"0-0"
            try:
                large = await consumer.getone()
            except RecordTooLargeError:
                assert limit == "max_partition_fetch_bytes"
            else:
                assert len(large.value) == 10_000

    run(work())


@pytest.mark.parametrize("how", ["getone", "getmany"])
def test_seeks_go_backward_and_forward(broker: BrokerProcess, filled: str, how: str) -> None:
    async def work() -> None:
        async with consuming(broker) as consumer:
            place = TopicPartition(filled, 0)
            consumer.assign([place])

            async def next_offset() -> int:
                if how == "getone":
                    offset: int = (await consumer.getone()).offset
                else:
                    offset = (await read(consumer, 1, max_records=1))[0].offset
                return offset

            assert await next_offset() == 0
            for offset in (60, 5, 99, 0):
                consumer.seek(place, offset)
                assert await consumer.position(place) == offset
                assert await next_offset() == offset
            await consumer.seek_to_end(place)
            assert await consumer.position(place) == 100
            fill(broker, filled, range(100, 101))
            assert await next_offset() == 100
            await consumer.seek_to_beginning()
            assert await next_offset() == 0
            with pytest.raises(IllegalStateError):
                consumer.seek(TopicPartition(filled, 1), 0)
            with pytest.raises(ValueError):
                consumer.seek(place, -1)

    run(work())


def test_positions_and_commits_of_a_group(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        places = [TopicPartition(filled, partition) for partition in (0, 1)]
        settings: dict[str, Any] = {"group_id": f"g-{filled}", "enable_auto_commit": False}
        async with consuming(broker, **settings) as consumer:
            consumer.assign(places)
            assert [await consumer.committed(place) for place in places] == [None, None]
            seen = await read(consumer, 30, max_records=30)
            await consumer.commit()
            assert [await consumer.committed(place) for place in places] == [
                await consumer.position(place) for place in places
            ]
            await consumer.commit({places[0]: OffsetAndMetadata(7, "said so")})
            await consumer.commit({places[1]: 9})
            assert [await consumer.committed(place) for place in places] == [7, 9]
            await consumer.seek_to_committed()
            assert [await consumer.position(place) for place in places] == [7, 9]
            assert len(seen) == 30
            with pytest.raises(IllegalStateError):
                await consumer.commit({TopicPartition(filled, 7): 1})
        async with consuming(broker, **settings) as consumer:
            consumer.assign(places)
            assert {(r.partition, r.offset) for r in await read(consumer, 184)} == {
                *((0, offset) for offset in range(7, 100)),
                *((1, offset) for offset in range(9, 100)),
            }

    run(work())


def test_without_a_group_nothing_is_committed(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        async with consuming(broker, filled) as consumer:
            await consumer.getone()
            with pytest.raises(IllegalOperation):
                await consumer.commit()
            with pytest.raises(IllegalOperation):
                await consumer.committed(TopicPartition(filled, 0))

    run(work())


def test_what_is_committed_by_itself_is_not_read_again(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {"group_id": f"g-{filled}", "auto_commit_interval_ms": 50}
        async with consuming(broker, filled, **settings) as consumer:
            await read(consumer, 200)
        async with consuming(broker, filled, **settings) as consumer:
            await until(lambda: len(consumer.assignment()) == 2)
            assert await consumer.getmany(timeout_ms=700) == {}

    run(work())


def test_offsets_for_times_and_both_ends(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        first, second = (TopicPartition(filled, partition) for partition in (0, 1))
        async with consuming(broker) as consumer:
            found = await consumer.offsets_for_times({first: BEGAN_MS + 33, second: BEGAN_MS + 100})
            assert (found[first].offset, found[first].timestamp) == (33, BEGAN_MS + 33)
            assert found[second] is None
            assert await consumer.offsets_for_times({}) == {}
            assert await consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
            assert await consumer.end_offsets([first, second]) == {first: 100, second: 100}
            with pytest.raises(ValueError):
                await consumer.offsets_for_times({first: -1})
        async with consuming(broker, request_timeout_ms=700) as consumer:
            with pytest.raises(KafkaTimeoutError):
                await consumer.end_offsets([TopicPartition(filled, 7)])

    run(work())


def test_a_paused_partition_gives_nothing(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        first, second = (TopicPartition(filled, partition) for partition in (0, 1))
        async with consuming(broker) as consumer:
            consumer.assign([first, second])
            consumer.pause(first)
            assert consumer.paused() == {first}
            assert {record.partition for record in await read(consumer, 100)} == {1}
            assert await consumer.getmany(timeout_ms=300) == {}
            consumer.resume(first)
            assert [record.offset for record in await read(consumer, 100)] == list(range(100))
            assert consumer.highwater(first) == 100

    run(work())


def test_an_offset_that_is_gone_needs_somebody_to_decide(
    broker: BrokerProcess, filled: str
) -> None:
    async def work() -> None:
        place = TopicPartition(filled, 0)
        async with consuming(broker, auto_offset_reset="none") as consumer:
            consumer.assign([place])
            with pytest.raises(NoOffsetForPartitionError):
                await consumer.getone()
            consumer.seek(place, 5_000)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone()
            consumer.seek(place, 98)
            assert (await consumer.getone()).offset == 98

    run(work())


class WaitingListener(aiokafka.ConsumerRebalanceListener):
    """What a consumer was told; it waits before it goes on, as a user's may."""

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []
        self._before = before

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if self._before is not None and revoked:
            await self._before()
        self.told.append(("revoked", frozenset(place.partition for place in revoked)))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await asyncio.sleep(0.02)
        self.told.append(("assigned", frozenset(place.partition for place in assigned)))


def test_listeners_may_commit_before_they_give_away(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {
            "group_id": f"g-{filled}",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 6_000,
        }
        async with consuming(broker, **settings) as first:
            heard = WaitingListener(first.commit)
            first.subscribe([filled], listener=heard)
            assert len(await read(first, 200)) == 200
            async with consuming(broker, **settings) as second:
                other = WaitingListener()
                second.subscribe([filled], listener=other)
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
                # Both go on behind what the first had committed when it gave away.
                fill(broker, filled, range(100, 103), 0)
                fill(broker, filled, range(100, 103), 1)
                found = [*await read(first, 3), *await read(second, 3)]
                assert sorted((r.partition, r.offset) for r in found) == [
                    (partition, offset) for partition in (0, 1) for offset in (100, 101, 102)
                ]
                await second.commit()
            assert ("revoked", frozenset({0, 1})) in heard.told
            assert len(other.told[-1][1]) in (0, 1)
            await until(lambda: len(first.assignment()) == 2)

    run(work())


def test_a_pattern_finds_topics_that_are_made_later(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, f"{topic}-1")
        fill(broker, f"{topic}-1", range(3))
        settings: dict[str, Any] = {"group_id": f"g-{topic}", "metadata_max_age_ms": 200}
        async with consuming(broker, **settings) as consumer:
            consumer.subscribe(pattern=f"^{topic}-.*")
            assert {record.topic for record in await read(consumer, 3)} == {f"{topic}-1"}
            create_topic(broker.bootstrap, f"{topic}-2")
            fill(broker, f"{topic}-2", range(4))
            assert {record.topic for record in await read(consumer, 4)} == {f"{topic}-2"}
            assert consumer.subscription() == {f"{topic}-1", f"{topic}-2"}

    run(work())


def test_the_brokers_own_topics_are_out_of_a_pattern(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with consuming(broker, group_id=f"g-{topic}") as consumer:
            consumer.subscribe(pattern=f"^(__consumer_offsets|{topic})$")
            await until(lambda: bool(consumer.assignment()))
            assert consumer.subscription() == {topic}

    run(work())


def test_more_partitions_reach_a_member(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

        create_topic(broker.bootstrap, topic)
        async with consuming(
            broker, topic, group_id=f"g-{topic}", metadata_max_age_ms=200
        ) as consumer:
            await until(lambda: len(consumer.assignment()) == 1)
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
            await admin.start()
            await admin.create_partitions({topic: NewPartitions(3)})
            await admin.close()
            await until(lambda: len(consumer.assignment()) == 3)
            fill(broker, topic, range(2), 2)
            assert [record.partition for record in await read(consumer, 2)] == [2, 2]

    run(work())


def test_who_does_not_poll_loses_its_partitions(broker: BrokerProcess, filled: str) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {
            "group_id": f"g-{filled}",
            "enable_auto_commit": False,
            "session_timeout_ms": 1_000,
            "heartbeat_interval_ms": 100,
        }
        async with consuming(broker, filled, max_poll_interval_ms=600, **settings) as lazy:
            await lazy.getone()
            async with consuming(broker, filled, **settings) as eager:
                assert len({r.partition for r in await read(eager, 200)}) == 2
                assert len(eager.assignment()) == 2
                # The second where it has noticed by itself what it has lost.
                with pytest.raises((CommitFailedError, IllegalStateError)):
                    await lazy.commit({TopicPartition(filled, 0): 1})

    run(work())


def test_a_reader_that_waits_hears_of_the_end(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with consuming(broker, topic) as consumer:
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.1)
            await consumer.stop()
            with pytest.raises(ConsumerStoppedError):
                await waiting

    run(work())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch_does_not_give_what_is_before_the_position(
    broker: BrokerProcess, topic: str, codec: str
) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        messages = [Message(None, b"%d" % n, [], BEGAN_MS + n) for n in range(50)]
        librdkafka_produce(broker.bootstrap, topic, messages, codec)
        async with consuming(broker) as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            for offset in (0, 1, 25, 49):
                consumer.seek(place, offset)
                assert (await consumer.getone()).offset == offset

    run(work())
