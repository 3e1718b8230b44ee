"""Apache Kafka of years ago: which ones are tried, and all that such a one is asked to write."""

from __future__ import annotations

import contextlib
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from kafka_ds.protocol.messages import MetadataRequest
from kafka_ds.records.batch import MAGIC_POSITION
from kafka_ds.segments.checkpoint import decode_offsets
from spark_conf import jars
from tests.apache_kafka import (
    LOG4J_1,
    TOOL_OPTIONS,
    ApacheKafka,
    free_ports,
    java,
    wait_for_listener,
)
from tests.integration.raw_client import RawClient
from tests.processes import wait_until

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"


@contextlib.contextmanager
def running_zookeeper(jar_folder: Path, folder: Path) -> Iterator[str]:
    """Where it listens."""
    folder.mkdir(parents=True)
    log4j, log_file = folder / "log4j.properties", folder / "zookeeper.log"
    log4j.write_text(LOG4J_1)
    (port,) = free_ports(1)
    options = (
        *TOOL_OPTIONS,
        f"-Dlog4j.configuration={log4j.as_uri()}",
        "-Dzookeeper.admin.enableServer=false",
        "-Dzookeeper.jmx.log4j.disable=true",
    )
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            java(jar_folder, options, MAIN, str(port), str(folder / "data")),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_for_listener("ZooKeeper", f"127.0.0.1:{port}", process, log_file)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


HOUR_MS = 3_600_000
CUT_AT = 77
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
}
SMALL = {"segment.bytes": "8192", "index.interval.bytes": "512"}
TINY = {**SMALL, "segment.bytes": "2048"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OldKafka:
    """A version, where it keeps its metadata, and the settings that only it needs."""

    version: str
    has_zookeeper: bool
    settings: Mapping[str, object] = field(default_factory=dict)
    has_old_formats: bool = False
    """Whether a topic may be told to keep messages of format 0 or 1 (until protocol 3.0 between brokers)."""

    def __str__(self) -> str:
        return f"{self.version}-{'zookeeper' if self.has_zookeeper else 'kraft'}"

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))

    @property
    def codecs(self) -> tuple[str, ...]:
        """KIP-110 came with 2.1."""
        known = ("none", "gzip", "snappy", "lz4")
        return (*known, "zstd") if self.number >= (2, 1) else known

    @property
    def has_static_members(self) -> bool:
        """KIP-345."""
        return self.number >= (2, 3)

    @property
    def topics(self) -> dict[str, dict[str, str]]:
        """Their settings."""
        found: dict[str, dict[str, str]] = {
            "codecs": SMALL,
            "stamped": {"message.timestamp.type": "LogAppendTime"},
            "state": COMPACTED,
            "pay": SMALL,
            "once": SMALL,
            "cut": TINY,
        }
        if self.has_old_formats:
            found |= {
                "old-0": {**TINY, "message.format.version": "0.9.0"},
                "old-1": {**TINY, "message.format.version": "0.10.2"},
                "old-mixed": {"message.format.version": "0.10.2"},
                "old-state": {**COMPACTED, "message.format.version": "0.10.2"},
            }
        return found

    @property
    def compacted(self) -> list[str]:
        return [name for name in self.topics if name.endswith("state")]

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[ApacheKafka]:
        """A broker that is not started yet, and the ZooKeeper that it needs."""
        jar_folder = jars.fetch(f"kafka-{self.version}")
        with contextlib.ExitStack() as stack:
            zookeeper = None
            if self.has_zookeeper:
                zookeeper = stack.enter_context(running_zookeeper(jar_folder, folder / "zookeeper"))
            settings = {**SETTINGS, **self.settings}
            kafka = ApacheKafka(jar_folder, folder / "kafka", settings, zookeeper=zookeeper)
            stack.callback(kafka.kill)
            yield kafka


OLD_KAFKAS = (
    OldKafka(version="2.0.1", has_zookeeper=True, has_old_formats=True),
    OldKafka(version="2.4.1", has_zookeeper=True, has_old_formats=True),
    OldKafka(version="2.7.2", has_zookeeper=True, has_old_formats=True),
    OldKafka(version="2.8.2", has_zookeeper=True, has_old_formats=True),
    OldKafka(
        version="3.0.2",
        has_zookeeper=True,
        has_old_formats=True,
        settings={"inter.broker.protocol.version": "2.8"},
    ),
    OldKafka(version="3.0.2", has_zookeeper=False),
    OldKafka(version="3.3.2", has_zookeeper=False),
    OldKafka(version="3.9.1", has_zookeeper=True),
    OldKafka(version="3.9.1", has_zookeeper=False),
)


def start(kafka: ApacheKafka) -> None:
    """Start it and wait until it knows its controller: it listens long before."""
    kafka.start()
    with RawClient(kafka.bootstrap) as client:
        wait_until(
            "a controller",
            lambda: client.ask(MetadataRequest(topics=[]), 1).controller_id == 1,
        )


class OldKafkaWriter:
    """Writes everything to a broker that a data directory can contain."""

    def __init__(self, old: OldKafka, kafka: ApacheKafka) -> None:
        self._old = old
        self._kafka = kafka
        self._bootstrap = kafka.bootstrap
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap})
        self._began_ms = int(time.time() * 1000) - HOUR_MS
        # They stay, as clients do that know nothing of a broker's end.
        self._open: list[Producer] = []

    def fill(self) -> None:
        """The first life of the broker."""
        topics = [
            NewTopic(name, 2 if name in ("codecs", "pay") else 1, 1, config=config)
            for name, config in (*self._old.topics.items(), ("gone", {}))
        ]
        for created in self._admin.create_topics(topics).values():
            created.result(120)
        for codec in self._old.codecs:
            for partition in (0, 1):
                self._produce("codecs", 120, codec, partition=partition)
        self._produce("stamped", 40, "lz4")
        self._produce("gone", 5)
        self._produce("once", 300, idempotent=True)
        self._produce("cut", 200)
        self._commit()
        self._transactions()
        if self._old.has_old_formats:
            self._fill_old()
        self._clean()
        cut = self._admin.delete_records([TopicPartition("cut", 0, CUT_AT)])
        for done in cut.values():
            done.result(120)
        self._admin.delete_topics(["gone"])["gone"].result(120)
        self._leave_open("open")
        checkpoint = self._kafka.data / "log-start-offset-checkpoint"
        wait_until(
            "the deletion of records to be noted",
            lambda: (
                checkpoint.exists()
                and decode_offsets(checkpoint.read_bytes()).get(("cut", 0)) == CUT_AT
            ),
        )

    def go_on(self) -> None:
        """A second life: another leader epoch."""
        for codec in self._old.codecs:
            self._produce("codecs", 30, codec)
        self._produce("once", 30, idempotent=True)
        self._transact("commit-2", commits=True)
        self._transact("abort-2", commits=False)
        self._leave_open("open-2")
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "by hand"})
        consumer.commit(offsets=[TopicPartition("codecs", 1, 44)], asynchronous=False)
        consumer.close()

    def close(self) -> None:
        """Drop the producers with open transactions, without telling the broker."""
        self._open.clear()

    def _produce(
        self,
        topic: str,
        count: int,
        codec: str = "none",
        *,
        partition: int = 0,
        idempotent: bool = False,
        has_headers: bool = True,
        keys: int = 0,
    ) -> None:
        """Records with and without keys, values and headers, at times of the last hour that go up and down.

        `keys`: the number of keys; every third ends with a null value.
        """
        settings = {"compression.type": codec, "linger.ms": 5, "enable.idempotence": idempotent}
        producer = Producer({"bootstrap.servers": self._bootstrap, **settings})
        for number in range(count):
            key = b"k%d" % (number % keys) if keys else b"%d" % number if number % 3 else None
            value: bytes | None = b"%s %d " % (codec.encode(), number) + b"v" * (number % 97)
            if keys and number >= count - keys and number % 3 == 0 or not keys and number % 11 == 5:
                value = None
            headers = [("h", b"%d" % number), ("h", None)] if has_headers and number % 2 else None
            producer.produce(
                topic,
                value,
                key,
                partition,
                timestamp=self._began_ms + number * 7_919 % 60_000,
                headers=headers,
                on_delivery=delivered,
            )
            if number % 20 == 19:
                assert producer.flush(120) == 0
        assert producer.flush(120) == 0

    def _fill_old(self) -> None:
        """Messages of formats 0 and 1, to which Kafka converts the client's batches; they do not exist with zstd."""
        for codec in self._old.codecs[:4]:
            for topic in ("old-0", "old-1", "old-mixed"):
                self._produce(topic, 60, codec, has_headers=False)
            self._produce("old-state", 120, codec, has_headers=False, keys=12)
        resource = ConfigResource("topic", "old-mixed", {"message.format.version": "2.0"})
        with warnings.catch_warnings():
            # Its successor came with 2.3.
            warnings.simplefilter("ignore", DeprecationWarning)
            altered = self._admin.alter_configs([resource])[resource]
        altered.result(120)
        log = self._kafka.data / "old-mixed-0" / f"{0:020d}.log"
        wait_until("messages of format 2", lambda: self._has_new_format(log))

    def _has_new_format(self, log: Path) -> bool:
        size = log.stat().st_size
        self._produce("old-mixed", 3, "lz4", has_headers=False)
        with log.open("rb") as file:
            file.seek(size)
            return file.read()[MAGIC_POSITION] == 2

    def _transactions(self) -> None:
        for index in range(3):
            self._transact("commits", commits=True, topic="state" if index else None)
            self._transact("aborts", commits=False, topic="state" if index else None)

    def _producer(self, transactional_id: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 900_000,
                "linger.ms": 2,
            }
        )
        producer.init_transactions(120)
        producer.begin_transaction()
        return producer

    def _transact(self, transactional_id: str, *, commits: bool, topic: str | None = None) -> None:
        producer = self._producer(transactional_id)
        for number in range(10):
            producer.produce(
                topic or "pay",
                transactional_id.encode(),
                b"%d" % number,
                number % 2 if topic is None else 0,
            )
        producer.flush(120)
        if commits:
            at = [TopicPartition("pay", 0, 7)]
            metadata = Consumer(
                {"bootstrap.servers": self._bootstrap, "group.id": "of a transaction"}
            )
            producer.send_offsets_to_transaction(at, metadata.consumer_group_metadata(), 120)
            metadata.close()
            producer.commit_transaction(120)
        else:
            producer.abort_transaction(120)

    def _leave_open(self, transactional_id: str) -> None:
        producer = self._producer(transactional_id)
        for number in range(10):
            producer.produce("pay", b"open", b"%d" % number, 1, on_delivery=delivered)
        assert producer.flush(120) == 0
        self._open.append(producer)

    def _clean(self) -> None:
        """Wait until the cleaner reports the compaction and nothing is left to clean."""
        self._produce("state", 400, "gzip", keys=12)
        self._produce("state", 100, "none", keys=7)
        checkpoint = self._kafka.data / "cleaner-offset-checkpoint"
        for topic in self._old.compacted:
            folder = self._kafka.data / f"{topic}-0"

            def is_clean(topic: str = topic, folder: Path = folder) -> bool:
                if not checkpoint.exists():
                    return False
                active = max(int(path.stem) for path in folder.glob("*.log"))
                return decode_offsets(checkpoint.read_bytes()).get((topic, 0)) == active

            wait_until(f"{topic} to be cleaned", is_clean)

    def _commit(self) -> None:
        """A group that committed by hand, one that subscribed and left, and a member that has a name and stays."""
        by_hand = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "by hand"})
        at = [
            TopicPartition("codecs", 0, 33, metadata="so far", leader_epoch=0),
            TopicPartition("codecs", 1, 0),
            TopicPartition("pay", 0, 5),
        ]
        by_hand.commit(offsets=at, asynchronous=False)
        by_hand.close()
        self._subscribe("left", {})
        if self._old.has_static_members:
            self._subscribe("named", {"group.instance.id": "first", "session.timeout.ms": 300_000})

    def _subscribe(self, group: str, settings: Mapping[str, object]) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "max.poll.interval.ms": 600_000,
                **settings,
            }
        )
        consumer.subscribe(["codecs"])
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None, KafkaException(message.error())
        consumer.commit(message, asynchronous=False)
        consumer.close()


def delivered(error: object, message: object) -> None:
    """Notices what `flush` does not tell."""
    assert error is None, error
