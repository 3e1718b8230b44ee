"""Clients of librdkafka that write and read while brokers fail, and the checks of the logs afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.processes import wait_until

FLUSH_S = 120

# Partition, offset and value. The offset is None if an idempotent producer only knows that the record is there: the
# answer was lost, and too much was written since for the broker to recognise the batch by its sequence.
Acknowledged = tuple[int, int | None, bytes]


class NumberedWriter:
    """Writes `<name> <number>` with acks=all and idempotence, to one partition after the other."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.acknowledged: list[Acknowledged] = []
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "request.timeout.ms": 3_000,
                "socket.timeout.ms": 4_000,
                "socket.connection.setup.timeout.ms": 2_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) < 20_000:
                value = f"{self.name} {self.sent} ".encode() + b"." * (self.sent % 800)
                self._producer.produce(
                    self.topic,
                    value,
                    partition=self.sent % self.partitions,
                    on_delivery=self._delivered,
                )
                self.sent += 1
            self._producer.poll(0.002)
        self.left = self._producer.flush(FLUSH_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))
        else:
            self.failed.append(str(error))

    def wait_for(self, more: int, timeout_s: float = 120) -> None:
        """Wait until this many more records are acknowledged, in any partitions."""
        wanted = len(self.acknowledged) + more
        wait_until(
            f"{more} more of {self.name} acknowledged; failed: {self.failed[:3]}",
            lambda: len(self.acknowledged) >= wanted,
            timeout_s=timeout_s,
        )

    def wait_for_each(self, timeout_s: float = 120) -> None:
        """Wait until one more record is acknowledged in every partition."""
        begin = len(self.acknowledged)

        def have_all() -> bool:
            taken = {partition for partition, _, _ in self.acknowledged[begin:]}
            return len(taken) == self.partitions

        wait_until(f"{self.name} in each partition", have_all, timeout_s=timeout_s)

    def stop(self) -> None:
        """Stop writing, and wait until everything is answered."""
        self._stop.set()
        self._thread.join()
        assert self.left == 0, f"{self.name}: {self.left} records were never answered"
        assert not self.failed, f"{self.name}: {len(self.failed)} failed, as {self.failed[0]}"
        assert len(self.acknowledged) == self.sent

    def give_up(self) -> None:
        """Stop writing at once, without waiting for answers: the test has failed already."""
        self._stop.set()
        while self._thread.is_alive():
            self._producer.purge()
            self._thread.join(0.1)


class OffsetReader:
    """Reads every partition from its beginning, and keeps the records in the order of their arrival."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "socket.timeout.ms": 4_000,
                "socket.connection.setup.timeout.ms": 2_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)]
        )
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1_000, timeout=0.1):
                error = message.error()
                if error is None:
                    read: Any = message
                    self.seen[read.partition()].append((read.offset(), read.value()))
                elif not error.retriable():
                    # That a broker is gone is retriable; a reset of offsets is not.
                    self.errors.append(str(error))
        self._consumer.close()

    def count(self) -> int:
        return sum(map(len, self.seen))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def check_acknowledged(
    stored: Sequence[Mapping[int, bytes | None]], acknowledged: Iterable[Acknowledged]
) -> None:
    """Every acknowledged record is in the logs, at its acknowledged offset."""
    everywhere = [set(records.values()) for records in stored]
    for partition, offset, value in acknowledged:
        if offset is None:
            assert value in everywhere[partition], f"{partition}: {value[:40]!r} is not there"
        else:
            found = stored[partition].get(offset)
            assert found == value, f"{partition}@{offset}: {value[:40]!r} became {found!r}"


def check(
    stored: list[dict[int, bytes | None]], writers: list[NumberedWriter], reader: OffsetReader
) -> None:
    """Nothing is lost, nothing is there twice, each writer's records are in order, and readers saw exactly this."""
    for writer in writers:
        check_acknowledged(stored, writer.acknowledged)
    for partition, records in enumerate(stored):
        last: dict[str, int] = {}
        for offset in sorted(records):
            name, number, _ = (records[offset] or b"").decode().split(" ", 2)
            assert int(number) > last.get(name, -1), (
                f"{partition}@{offset}: {name} {number} comes after {last[name]}"
            )
            last[name] = int(number)
        written = sum(len(range(partition, each.sent, each.partitions)) for each in writers)
        assert len(records) == written, f"{partition}: {len(records)} stored, {written} written"
        seen = reader.seen[partition]
        assert seen == sorted(records.items()), f"{partition}: readers saw something else"
