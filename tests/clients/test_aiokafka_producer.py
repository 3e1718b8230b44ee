"""What aiokafka's own integration tests ask of its producer, transactions and admin client, asked of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    IllegalOperation,
    KafkaError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.adaptors import READERS
from tests.clients.group_members import AiokafkaMember
from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.processes import BrokerProcess
from tests.topics import create_topic

TIMEOUT_S = 120


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


@asynccontextmanager
async def producing(
    broker: BrokerProcess, **settings: Any
) -> AsyncIterator[aiokafka.AIOKafkaProducer]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def administering(broker: BrokerProcess) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def values(broker: BrokerProcess, topic: str, count: int) -> list[bytes | None]:
    return [message.value for message in READERS["librdkafka"](broker.bootstrap, topic, count)]


def test_a_record_is_described_as_it_was_stored(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic, partitions=2)
        async with producing(broker) as producer:
            assert await producer.partitions_for(topic) == {0, 1}
            told = await producer.send_and_wait(
                topic, b"v", key=b"k", headers=[("h", b"x")], partition=1, timestamp_ms=99
            )
            assert (told.topic, told.partition, told.offset) == (topic, 1, 0)
            assert (told.timestamp, told.timestamp_type) == (99, 0)
            before_ms = int(time.time() * 1000)
            told = await producer.send_and_wait(topic, b"w", partition=1)
            assert told.offset == 1
            assert before_ms - 1 <= told.timestamp <= int(time.time() * 1000)
        (first, _) = READERS["librdkafka"](broker.bootstrap, topic, 2, 1)
        assert (first.key, first.value, first.headers) == (b"k", b"v", [("h", b"x")])

    run(work())


def test_the_time_is_the_brokers_where_the_topic_says_so(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic, {"message.timestamp.type": "LogAppendTime"})
        async with producing(broker) as producer:
            before_ms = int(time.time() * 1000)
            told = await producer.send_and_wait(topic, b"v", timestamp_ms=99)
            assert told.timestamp_type == 1
            assert before_ms <= told.timestamp <= int(time.time() * 1000)

    run(work())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_each_kind_of_acknowledgement(broker: BrokerProcess, topic: str, acks: int | str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, acks=acks) as producer:
            told = [await producer.send(topic, b"%d" % i, partition=0) for i in range(20)]
            await producer.flush()
            found = [await future for future in told]
            if acks == 0:
                assert found == [None] * 20
            else:
                assert [each.offset for each in found] == list(range(20))
        assert values(broker, topic, 20) == [b"%d" % i for i in range(20)]

    run(work())


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_made_by_hand(broker: BrokerProcess, topic: str, codec: str | None) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, compression_type=codec) as producer:
            batch = producer.create_batch()
            assert batch.append(key=b"k", value=b"0", timestamp=None) is not None
            for number in range(1, 10):
                batch.append(key=None, value=b"%d" % number, timestamp=5)
            batch.close()
            assert batch.append(key=None, value=b"late", timestamp=None) is None
            told = await (await producer.send_batch(batch, topic, partition=0))
            assert told.offset == 0
        assert values(broker, topic, 10) == [b"%d" % i for i in range(10)]

    run(work())


def test_an_idempotent_producer_writes_each_record_once(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, enable_idempotence=True, max_batch_size=200) as producer:
            told = [await producer.send(topic, b"%d" % i, partition=0) for i in range(300)]
            assert [(await each).offset for each in told] == list(range(300))
        assert values(broker, topic, 300) == [b"%d" % i for i in range(300)]

    run(work())


def test_a_gap_in_the_sequence_is_refused(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, enable_idempotence=True) as producer:
            await producer.send_and_wait(topic, b"0", partition=0)
            # What the client believes to have sent, by its own means.
            producer._txn_manager.increment_sequence_number(TopicPartition(topic, 0), 3)
            with pytest.raises(OutOfOrderSequenceNumber):
                await producer.send_and_wait(topic, b"4", partition=0)
        assert values(broker, topic, 1) == [b"0"]

    run(work())


def test_what_the_broker_refuses_is_told_with_its_reason(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic, {"max.message.bytes": "500"})
        async with producing(broker) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 1000)
            assert (await producer.send_and_wait(topic, b"x")).offset == 0

    run(work())


# -- transactions -------------------------------------------------------------------------------------


def test_committed_aborted_and_empty_transactions(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, transactional_id=f"id-{topic}") as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"1", partition=0)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"2", partition=0)
                    raise ZeroDivisionError
            async with producer.transaction():
                pass
            await producer.begin_transaction()
            await producer.send(topic, b"3", partition=0)  # flushed by the commit
            await producer.commit_transaction()

    run(work())
    assert read_committed["aiokafka"](broker.bootstrap, topic) == [b"1", b"3"]
    assert read_uncommitted["aiokafka"](broker.bootstrap, topic) == [b"1", b"2", b"3"]


def test_nothing_is_sent_outside_of_a_transaction(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, transactional_id=f"id-{topic}") as producer:
            with pytest.raises(IllegalOperation):
                await producer.send(topic, b"1", partition=0)
            with pytest.raises(IllegalOperation):
                await producer.send_batch(producer.create_batch(), topic, partition=0)
        async with producing(broker) as producer:
            with pytest.raises(IllegalOperation):
                await producer.begin_transaction()

    run(work())
    assert read_uncommitted["librdkafka"](broker.bootstrap, topic) == []


def test_a_restarted_producer_goes_on_under_its_id(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        seen = []
        for value in (b"1", b"2", b"3"):
            async with producing(broker, transactional_id=f"id-{topic}") as producer:
                async with producer.transaction():
                    await producer.send_and_wait(topic, value, partition=0)
                manager = producer._txn_manager
                seen.append((manager.producer_id, manager.producer_epoch))
        assert len({producer_id for producer_id, _ in seen}) == 1
        epochs = [epoch for _, epoch in seen]
        assert epochs == list(range(epochs[0], epochs[0] + 3))

    run(work())
    assert read_committed["librdkafka"](broker.bootstrap, topic) == [b"1", b"2", b"3"]


def test_a_later_instance_fences_the_first(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, transactional_id=f"id-{topic}") as first:
            await first.begin_transaction()
            await first.send_and_wait(topic, b"lost", partition=0)
            async with producing(broker, transactional_id=f"id-{topic}") as second:
                async with second.transaction():
                    await second.send_and_wait(topic, b"kept", partition=0)
                with pytest.raises(ProducerFenced):
                    await first.commit_transaction()

    run(work())
    assert read_committed["librdkafka"](broker.bootstrap, topic) == [b"kept"]


def test_offsets_of_a_group_are_committed_or_not_with_it(broker: BrokerProcess, topic: str) -> None:
    async def committed(group: str, place: TopicPartition) -> int | None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group)
        await consumer.start()
        try:
            consumer.assign([place])
            found: int | None = await consumer.committed(place)
            return found
        finally:
            await consumer.stop()

    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        place, group = TopicPartition(topic, 0), f"g-{topic}"
        async with producing(broker, transactional_id=f"id-{topic}") as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"1", partition=0)
                await producer.send_offsets_to_transaction({place: OffsetAndMetadata(5, "")}, group)
            assert await committed(group, place) == 5
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: 9}, group)
            await producer.abort_transaction()
            assert await committed(group, place) == 5

    run(work())


def test_a_reader_that_is_at_a_marker_goes_on_behind_it(broker: BrokerProcess, topic: str) -> None:
    """A position at a control record, or a poll that finds nothing else, is no end."""

    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker, transactional_id=f"id-{topic}") as producer:
            for number in range(5):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
                await (
                    producer.abort_transaction() if number % 2 else producer.commit_transaction()
                )
            place = TopicPartition(topic, 0)
            for isolation, expected in (("read_committed", [4]), ("read_uncommitted", [3, 4])):
                consumer = aiokafka.AIOKafkaConsumer(
                    bootstrap_servers=broker.bootstrap, isolation_level=isolation
                )
                await consumer.start()
                consumer.assign([place])
                consumer.seek(place, 5)  # the marker behind record 2, which is at offset 4
                found = [int((await consumer.getone()).value) for _ in expected]
                assert found == expected
                assert consumer.last_stable_offset(place) == 10
                await consumer.seek_to_end(place)
                assert await consumer.position(place) == 10
                await consumer.stop()

    run(work())


# -- administration -----------------------------------------------------------------------------------


def test_topics_are_made_grown_listed_and_deleted(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        async with administering(broker) as admin:
            response = await admin.create_topics([NewTopic(topic, 2, 1)])
            assert [each[1] for each in response.topic_errors] == [0]
            assert topic in await admin.list_topics()
            (told,) = await admin.describe_topics([topic])
            assert len(told["partitions"]) == 2
            await admin.create_partitions({topic: NewPartitions(3)})
            (told,) = await admin.describe_topics([topic])
            assert len(told["partitions"]) == 3
            response = await admin.delete_topics([topic])
            assert [each[1] for each in response.topic_error_codes] == [0]
            assert topic not in await admin.list_topics()
            cluster = await admin.describe_cluster()
            assert [each["node_id"] for each in cluster["brokers"]] == [1]
            assert cluster["controller_id"] == 1

    run(work())


def test_settings_are_told_and_changed(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with administering(broker) as admin:

            async def told() -> dict[str, Any]:
                resource = ConfigResource(ConfigResourceType.TOPIC, topic)
                (response,) = await admin.describe_configs([resource])
                ((code, _, _, _, entries),) = response.resources
                assert code == 0
                return {entry[0]: entry[1] for entry in entries}

            assert (await told())["retention.ms"] == str(7 * 24 * 3_600_000)
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "777"})
            (response,) = await admin.alter_configs([resource])
            assert [each[0] for each in response.resources] == [0]
            assert (await told())["retention.ms"] == "777"
            (response,) = await admin.describe_configs(
                [ConfigResource(ConfigResourceType.BROKER, "1")]
            )
            assert len(response.resources[0][4]) > 50

    run(work())


def test_groups_are_listed_described_and_their_offsets_told(
    broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    group = f"g-{topic}"

    async def before() -> None:
        async with producing(broker) as producer:
            for number in range(5):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)

    async def work() -> None:
        async with administering(broker) as admin:
            assert (group, "consumer") in await admin.list_consumer_groups()
            (response,) = await admin.describe_consumer_groups([group])
            ((code, name, state, *_, members),) = [each[:6] for each in response.groups]
            assert (code, name, state, len(members)) == (0, group, "Stable", 1)
            place = TopicPartition(topic, 0)
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[place].offset == 5
            assert await admin.list_consumer_group_offsets(group, partitions=[place]) == offsets
            assert (await admin.find_coordinator(group)) == 1

    run(before())
    member = AiokafkaMember(broker.bootstrap, group, topic).has_read(5)
    asyncio.run(asyncio.sleep(0.3))  # it commits after it has read
    run(work())
    member.leave()


def test_records_are_deleted(broker: BrokerProcess, topic: str) -> None:
    async def work() -> None:
        create_topic(broker.bootstrap, topic)
        async with producing(broker) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
        place = TopicPartition(topic, 0)
        async with administering(broker) as admin:
            assert await admin.delete_records({place: RecordsToDelete(before_offset=6)}) == {
                place: 6
            }
            with pytest.raises(KafkaError):
                await admin.delete_records({place: RecordsToDelete(before_offset=11)})
            # The client looks for the leader first, and finds none.
            with pytest.raises((NotLeaderForPartitionError, UnknownTopicOrPartitionError)):
                other = TopicPartition(topic, 5)
                await admin.delete_records({other: RecordsToDelete(before_offset=1)})
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([place])
        assert [(await consumer.getone()).value for _ in range(4)] == [b"6", b"7", b"8", b"9"]
        await consumer.stop()

    run(work())
