"""The load: producers, members of groups, readers of old offsets, and one that makes and deletes topics; each a thread.

While the broker is away a client retries the errors that its documentation says to retry; any other error ends its
thread, which ends the run. A record is noted as acknowledged after its acknowledgement, never before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests import duck

PLAIN, IDEMPOTENT, TRANSACTIONAL, COMPACTED = (
    "soak-plain",
    "soak-idempotent",
    "soak-transactional",
    "soak-compacted",
)
PARTITIONS = 3
KEYS = 100
RECORD_BYTES = 200
BATCH = 50
MIB = 1 << 20
_SMALL = {"segment.bytes": str(MIB), "local.retention.bytes": str(MIB)}
TOPICS: dict[str, dict[str, str]] = {
    PLAIN: {**_SMALL, "retention.bytes": str(8 * MIB)},
    IDEMPOTENT: _SMALL,
    TRANSACTIONAL: _SMALL,
    COMPACTED: {
        "cleanup.policy": "compact",
        "segment.bytes": str(MIB),
        "min.cleanable.dirty.ratio": "0.1",
    },
}


class Load:
    """All clients of a run."""

    def __init__(self, bootstrap: str, lake: Path, scale: float = 1.0) -> None:
        """`scale` multiplies the rates of producers."""
        self._bootstrap, self._lake, self._scale = bootstrap, lake, scale
        self._stop = threading.Event()
        # Held while the tables' files are read without the broker.
        self.reading = threading.Lock()
        self.failures: list[str] = []
        self.counts: dict[str, int] = {}
        # The records that were acknowledged for good.
        self.idempotent: set[int] = set()
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.newest: dict[bytes, int] = {}
        roles: list[Callable[[], None]] = [
            self._produce_plainly,
            self._produce_idempotently,
            self._produce_in_transactions,
            self._overwrite_keys,
            self._read_what_is_old,
            self._make_and_delete_topics,
            self._query_the_table,
            *(
                lambda p=p: self._be_member(p)
                for p in ("classic", "classic", "consumer", "consumer")
            ),
        ]
        self._threads = [
            threading.Thread(target=self._guard, args=(role,), daemon=True) for role in roles
        ]

    def start(self) -> None:
        """Make the topics, then begin."""
        admin = AdminClient(self._client())
        made = admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, config=own) for name, own in TOPICS.items()]
        )
        for each in made.values():
            each.result(120)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all clients after their present piece of work."""
        self._stop.set()
        for thread in self._threads:
            thread.join(300)
            if thread.is_alive():
                self.failures.append(f"{thread.name} does not end")

    def _guard(self, role: Callable[[], None]) -> None:
        try:
            role()
        except Exception as error:  # reported at the end
            self.failures.append(f"{getattr(role, '__name__', 'member')}: {error!r}")

    def _client(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "metadata.recovery.strategy": "none",
            "topic.metadata.refresh.interval.ms": 5_000,
            "log_level": 0,
            "socket.timeout.ms": 20_000,
            **more,
        }

    def _count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def _pace(self, number: int, rate: float) -> None:
        self._stop.wait(number / (rate * self._scale))

    # -- producers ----------------------------------------------------------------------------------

    def _produce_plainly(self) -> None:
        producer = confluent_kafka.Producer(self._client(**{"linger.ms": 20, "acks": 1}))
        value = bytes(RECORD_BYTES)
        while not self._stop.is_set():
            for _ in range(BATCH):
                with suppress(BufferError):
                    producer.produce(PLAIN, value)
            producer.poll(0)
            self._count("plain records", BATCH)
            self._pace(BATCH, 2_000)
        producer.flush(120)

    def _produce_idempotently(self) -> None:
        producer = confluent_kafka.Producer(
            self._client(
                **{"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 600_000}
            )
        )
        sent = 0

        def note(number: int) -> Callable[[KafkaError | None, Any], None]:
            def acknowledged(error: KafkaError | None, _: Any) -> None:
                if error is not None:
                    raise KafkaException(error)
                self.idempotent.add(number)

            return acknowledged

        while not self._stop.is_set():
            for _ in range(BATCH):
                value = b"%d " % sent + bytes(RECORD_BYTES)
                producer.produce(
                    IDEMPOTENT, value, key=b"%d" % (sent % KEYS), on_delivery=note(sent)
                )
                sent += 1
            producer.poll(0)
            self._pace(BATCH, 400)
        if producer.flush(300):
            raise TimeoutError("idempotent records are not acknowledged")

    def _produce_in_transactions(self) -> None:
        sent = 0
        producer = None
        while not self._stop.is_set():
            numbers = range(sent, sent + BATCH)
            sent += BATCH
            aborts = sent // BATCH % 4 == 0
            try:
                if producer is None:
                    producer = confluent_kafka.Producer(
                        self._client(
                            **{"transactional.id": "soak", "transaction.timeout.ms": 60_000}
                        )
                    )
                    producer.init_transactions(120)
                producer.begin_transaction()
                for number in numbers:
                    producer.produce(TRANSACTIONAL, b"%d " % number + bytes(RECORD_BYTES))
                self._end(producer, aborts=aborts)
            except KafkaException:
                # Not known whether it was committed: the next producer with this id ends it either way.
                producer = None
                self._count("transactions of unknown end")
                continue
            (self.aborted if aborts else self.committed).update(numbers)
            self._pace(BATCH, 200)

    def _end(self, producer: confluent_kafka.Producer, *, aborts: bool) -> None:
        until = time.monotonic() + 300
        while True:
            try:
                return producer.abort_transaction(30) if aborts else producer.commit_transaction(30)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    def _overwrite_keys(self) -> None:
        producer = confluent_kafka.Producer(
            self._client(
                **{"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": 600_000}
            )
        )
        sent = 0

        def note(key: bytes, number: int) -> Callable[[KafkaError | None, Any], None]:
            def acknowledged(error: KafkaError | None, _: Any) -> None:
                if error is not None:
                    raise KafkaException(error)
                self.newest[key] = number

            return acknowledged

        while not self._stop.is_set():
            for _ in range(BATCH):
                key = b"%d" % (sent % KEYS)
                value = b"%d " % sent + bytes(RECORD_BYTES)
                producer.produce(COMPACTED, value, key=key, on_delivery=note(key, sent))
                sent += 1
            producer.poll(0)
            self._pace(BATCH, 400)
        if producer.flush(300):
            raise TimeoutError("compacted records are not acknowledged")

    # -- readers ------------------------------------------------------------------------------------

    def _be_member(self, protocol: str) -> None:
        while not self._stop.is_set():
            settings = {
                "group.id": f"soak-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                # Ten times as often as by default: __consumer_offsets is to be compacted within the hour.
                "auto.commit.interval.ms": 500,
            }
            member = confluent_kafka.Consumer(self._client(**settings))
            member.subscribe([PLAIN, IDEMPOTENT])
            until = time.monotonic() + 30
            while time.monotonic() < until and not self._stop.is_set():
                self._count(f"records of {protocol} members", len(_records(member, 1.0)))
            member.close()

    def _read_what_is_old(self) -> None:
        while not self._stop.wait(10 / self._scale):
            self._count("old records", len(self.read(IDEMPOTENT, number_of, limit=2_000)))

    def read(
        self,
        topic: str,
        keep: Callable[[Any], Any],
        *,
        limit: int | None = None,
        isolation: str = "read_committed",
    ) -> list[Any]:
        """Read a topic to its end as of the start, or this many records; `keep` picks a part of each."""
        settings = {
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
        }
        reader = confluent_kafka.Consumer(self._client(**settings))
        left = set(range(PARTITIONS))
        reader.assign(
            [TopicPartition(topic, each, confluent_kafka.OFFSET_BEGINNING) for each in left]
        )
        found: list[Any] = []
        until = time.monotonic() + 600
        while left and (limit is None or len(found) < limit) and time.monotonic() < until:
            for message in reader.consume(500, 1.0):
                error = message.error()
                if error is None:
                    found.append(keep(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        reader.close()
        assert limit is not None or not left, f"{topic} is not read to its end within 600 s"
        return found

    def _query_the_table(self) -> None:
        table = self._lake / "topics" / IDEMPOTENT
        while not self._stop.wait(15 / self._scale):
            if not (table / "_delta_log").is_dir():
                continue
            # A new connection each time, like a user with a single query.
            with self.reading, duck.connect() as connection:
                query = f"SELECT count(*) FROM delta_scan('{table.as_posix()}')"
                found = connection.execute(query).fetchone()
            self._count("queries")
            self.counts["rows of the last query"] = int(found[0]) if found else 0

    # -- topics -------------------------------------------------------------------------------------

    def _make_and_delete_topics(self) -> None:
        admin, made = AdminClient(self._client()), 0
        while not self._stop.wait(5 / self._scale):
            name = f"soak-short-{made}"
            made += 1
            try:
                admin.create_topics([NewTopic(name, 2, 1, config=_SMALL)])[name].result(60)
                producer = confluent_kafka.Producer(self._client(**{"message.timeout.ms": 60_000}))
                for _ in range(BATCH):
                    producer.produce(name, bytes(RECORD_BYTES))
                producer.flush(60)
                admin.delete_topics([name])[name].result(60)
                self._count("topics made and deleted")
            except KafkaException:
                # The broker was away: what is left of the topic stays until the run ends.
                self._count("topics whose making was cut short")


def number_of(message: Any) -> int:
    """The number that a record was given by its producer."""
    return int(message.value().split()[0])


def _records(consumer: confluent_kafka.Consumer, timeout_s: float) -> list[Any]:
    return [each for each in consumer.consume(500, timeout_s) if each.error() is None]
