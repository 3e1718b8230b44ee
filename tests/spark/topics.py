"""Topics for the tests of the source: produced records are remembered, so that every read can be compared with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_ds.delta.snapshot import NoSuchTable
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.processes import BrokerProcess, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Headers = list[tuple[str, bytes | None]] | None
EPOCH = datetime(1970, 1, 1)
T0_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20


@dataclass
class Topic:
    """A topic of a running broker, and every row that was acknowledged: (partition, offset) to its columns."""

    broker: BrokerProcess
    name: str
    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def create(self, partitions: int = 2, **settings: object) -> Topic:
        wanted = {"segment.bytes": SEGMENT_BYTES, "retention.ms": -1, **settings}
        new = NewTopic(self.name, partitions, 1, config={k: str(v) for k, v in wanted.items()})
        admin = self._admin()
        admin.create_topics([new])[self.name].result(120)
        return self

    def delete(self) -> None:
        admin = self._admin()
        admin.delete_topics([self.name])[self.name].result(120)
        self.rows.clear()

    def grow(self, partitions: int) -> None:
        new = NewPartitions(self.name, partitions)
        admin = self._admin()
        admin.create_partitions([new])[self.name].result(120)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def produce(
        self,
        count: int,
        *,
        size: int = 20,
        partitions: int = 2,
        headers: bool = False,
        settings: dict[str, Any] | None = None,
        producer: Producer | None = None,
    ) -> Topic:
        """Round robin over the partitions; times rise by a millisecond a record of the topic."""
        made = producer or Producer(
            {"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5, **(settings or {})}
        )
        failures: list[str] = []

        def acknowledged(sent: Headers, error: Any, message: Any) -> None:
            if error is not None:
                failures.append(str(error))
                return
            self.rows[message.partition(), message.offset()] = {
                "key": message.key(),
                "value": message.value(),
                "topic": self.name,
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp": EPOCH + timedelta(milliseconds=message.timestamp()[1]),
                "timestampType": 0,
                "headers": sent,
            }

        start = len(self.rows)
        for number in range(start, start + count):
            sent: Headers = [("a", b"1"), ("a", None)] if headers and number % 2 else None
            made.produce(
                self.name,
                key=None if number % 3 == 0 else b"key-%d" % number,
                value=None if number % 7 == 0 else (b"%d-" % number).ljust(size, b"x"),
                partition=number % partitions,
                timestamp=T0_MS + number,
                headers=sent,
                # The message of a delivery report has no headers.
                on_delivery=partial(acknowledged, sent),
            )
            made.poll(0)
        assert made.flush(120) == 0
        assert not failures, failures[:3]
        return self

    def closed_end(self, partition: int = 0) -> int:
        """The first offset of the active segment: all below it is going to be in the table."""
        return max(
            int(path.stem) for path in self.broker.data.glob(f"{self.name}-{partition}/*.log")
        )

    def wait_until_tiered(self, partition: int = 0, *, least: int = 1) -> int:
        """Wait until this many offsets of the partition are in the table; returns the first offset that is not."""
        store = LocalStore(str(self.broker.lake))
        end = 0

        def tiered() -> bool:
            nonlocal end
            try:
                snapshot = TopicSnapshot.load(store, self.name)
            except NoSuchTable:
                return False
            last = snapshot.highest_offset_in_remote_storage(partition)
            end = 0 if last is None else last + 1
            return end >= least

        wait_until(f"{topic_table(self.name)} to hold {least} offsets", tiered)
        return end

    # -- reading --------------------------------------------------------------------------------

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.read.format("kafka_ds").options(**self.options(options))
        return reader.load()

    def stream(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.readStream.format("kafka_ds").options(**self.options(options))
        return reader.load()

    def options(self, more: dict[str, object]) -> dict[str, Any]:
        least: dict[str, object] = {"kafka.bootstrap.servers": self.broker.bootstrap}
        if not {"assign", "subscribePattern"} & set(more):
            least["subscribe"] = self.name
        return {
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in {**least, **more}.items()
        }

    def expected(self, keep: Any = None) -> list[tuple[Any, ...]]:
        """The rows that were acknowledged, as `found` gives them."""
        return sorted(plain(row) for row in self.rows.values() if keep is None or keep(row))


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame, sorted by partition and offset."""
    return sorted(plain(row.asDict(recursive=True)) for row in frame.collect())


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = row.get("headers")
    if headers and isinstance(headers[0], dict):
        headers = [(each["key"], each["value"]) for each in headers]
    timestamp = row.get("timestamp")
    if timestamp is not None:
        # A session in UTC hands out local times of this machine's zone: compare moments.
        timestamp = timestamp.replace(tzinfo=None)
    binary = tuple(None if row.get(n) is None else bytes(row[n]) for n in ("key", "value"))
    return (
        row["partition"], row["offset"], row.get("topic"), timestamp, row.get("timestampType"), *map(repr, binary),
        headers and tuple((k, None if v is None else bytes(v)) for k, v in headers),
    )  # fmt: skip


def moment(milliseconds: int) -> str:
    """A time as SQL spells it."""
    text = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(
        sep=" ", timespec="milliseconds"
    )
    return f"TIMESTAMP '{text}'"
