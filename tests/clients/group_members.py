"""Members of groups, of every client: each polls in a thread of its own and remembers what it read and had."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor

from tests.processes import wait_until

# Longer than any machine holds a client up: who is thrown out of its group in between reads anew, and cannot commit.
SESSION_MS = 30_000
TIMEOUT_S = 120.0
CLOSING_S = 15.0
Partitions = frozenset[int]


class ClientMember:
    """What all members have in common; `read` holds (partition, offset, value) in the order of reading.

    Of `read` the first `committed` were committed, and the broker has said so.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.settings = settings
        self.read: list[tuple[int, int, bytes]] = []
        self.committed = 0
        self.partitions: Partitions = frozenset()
        self.error: BaseException | None = None
        self._ending = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        _STARTED.append(self)
        self._thread.start()

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, value in self.read]

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            self.error = error

    def consume(self) -> None:
        """Read, commit what was read, until the end; then leave."""
        raise NotImplementedError

    def leave(self) -> None:
        """Commit, close, and raise what went wrong."""
        self._ending.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the member does not come to an end"
        if self.error is not None:
            raise self.error

    def has(self, count: int) -> ClientMember:
        """Wait until it has this many partitions."""
        return self._until(f"{count} partitions", lambda: len(self.partitions) == count)

    def has_read(self, count: int) -> ClientMember:
        """Wait until it has read and committed this many records."""
        return self._until(f"{count} records", lambda: self.committed >= count)

    def _until(self, what: str, condition: Callable[[], bool]) -> ClientMember:
        """Raises what the member has ended with, if it has."""
        wait_until(what, lambda: condition() or self.error is not None, timeout_s=TIMEOUT_S)
        if not condition():
            raise AssertionError(f"{what}: it ended before") from self.error
        return self


_STARTED: list[ClientMember] = []


def end_members() -> None:
    """End the members that a failed test has left running.

    Otherwise their threads would look for the stopped broker until the end of the run, and use `random` during other
    tests, which Hypothesis would blame on its strategies.
    """
    for member in _STARTED:
        member._abandoned = True
        member._ending.set()
    for member in _STARTED:
        member._thread.join(TIMEOUT_S)
        assert not member._thread.is_alive(), f"{type(member).__name__} does not come to an end"
    _STARTED.clear()


class LibrdkafkaMember(ClientMember):
    """A member through confluent-kafka."""

    def consume(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
            **self.settings,
        }
        consumer = Consumer({name: value for name, value in settings.items() if value is not None})
        consumer.subscribe([self.topic])
        try:
            while not self._ending.is_set():
                messages = consumer.consume(100, timeout=0.05)
                self.partitions = frozenset(p.partition for p in consumer.assignment())
                for message in messages:
                    if message.error() is not None:
                        raise RuntimeError(str(message.error()))
                    self.read.append((message.partition(), message.offset(), message.value()))
                if messages:
                    last = {m.partition(): m.offset() + 1 for m in messages}
                    self._commit(consumer, last)
                    self.committed = len(self.read)
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer, last: dict[int, int]) -> None:
        topic = self.topic.removeprefix("^")  # with which an expression begins
        offsets = [TopicPartition(topic, p, offset) for p, offset in last.items()]
        consumer.commit(offsets=offsets, asynchronous=False)


class NewLibrdkafkaMember(LibrdkafkaMember):
    """A member of the consumer protocol (KIP-848); the broker sets its timeouts."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        of_the_broker = {"session.timeout.ms": None, "heartbeat.interval.ms": None}
        more = {"group.protocol": "consumer", **of_the_broker, **settings}
        super().__init__(bootstrap, group, topic, **more)

    def _commit(self, consumer: Consumer, last: dict[int, int]) -> None:
        try:
            super()._commit(consumer, last)
        except KafkaException as error:
            # It has been told of another epoch in the meantime: what it read then is read again.
            if error.args[0].code() not in (KafkaError.STALE_MEMBER_EPOCH, KafkaError._NO_OFFSET):
                raise


class _ToldLater(kafka.ConsumerRebalanceListener):
    """Tells kafka-python's member of its partitions while a poll still waits for records."""

    def __init__(self, member: ClientMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.partitions = frozenset(place.partition for place in assigned)


class KafkaPythonMember(ClientMember):
    """A member through kafka-python."""

    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=[RangePartitionAssignor],
            **self.settings,
        )
        consumer.subscribe([self.topic], listener=_ToldLater(self))
        try:
            while not self._ending.is_set():
                # kafka-python 3.0.12 forgets an assignment that comes just when a poll's time is over.
                batches = consumer.poll(timeout_ms=50 if consumer.assignment() else 2_000)
                self.partitions = frozenset(p.partition for p in consumer.assignment())
                for where, messages in batches.items():
                    self.read += [(where.partition, m.offset, m.value) for m in messages]
                if batches:
                    consumer.commit()
                    self.committed = len(self.read)
        finally:
            consumer.close()


class AiokafkaMember(ClientMember):
    """A member through aiokafka."""

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        """Read until the end; from then on, without a broker, it tries for so long and no longer."""
        reading = asyncio.create_task(self._read())
        while not self._ending.is_set() and not reading.done():
            await asyncio.wait([reading], timeout=0.05)
        await asyncio.wait_for(reading, CLOSING_S if self._abandoned else TIMEOUT_S)

    async def _read(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=(AioRange,),
            **self.settings,
        )
        await consumer.start()
        try:
            while not self._ending.is_set():
                batches = await consumer.getmany(timeout_ms=50)
                self.partitions = frozenset(p.partition for p in consumer.assignment())
                for where, messages in batches.items():
                    self.read += [(where.partition, m.offset, m.value) for m in messages]
                if batches:
                    await consumer.commit()
                    self.committed = len(self.read)
        finally:
            await consumer.stop()


MEMBERS: dict[str, Callable[..., ClientMember]] = {
    "librdkafka": LibrdkafkaMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
