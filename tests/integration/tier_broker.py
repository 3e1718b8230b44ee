"""A broker whose topics roll and tier quickly, the records that it acknowledged, and the rows in its lake."""

import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests import topics
from tests.processes import BrokerProcess

MIB = 1024 * 1024
RESTORE_TIMEOUT_S = 300
QUICK = {
    # The records have timestamps of 2023: local segments expire at once, and rows in the lake stay.
    "log.retention.ms": -1,
    "log.local.retention.ms": 1,
    "log.segment.bytes": MIB,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 200,
    "lake.local.grace.ms": 300,
    "lake.start.delay.ms": 50,
    "remote.log.manager.task.interval.ms": 500,
    "message.max.bytes": 12 * MIB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedRow:
    """A record as it was produced, or read."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


@dataclass(slots=True)
class Acknowledged:
    """The records that the broker acknowledged, by partition and offset."""

    rows: dict[tuple[int, int], ProducedRow] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def partition(self, partition: int) -> dict[int, ProducedRow]:
        return {offset: row for (p, offset), row in self.rows.items() if p == partition}


def broker_process(
    folder: Path,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BrokerProcess:
    return BrokerProcess(folder, {**QUICK, **(overrides or {})}, environment)


def restore(broker: BrokerProcess) -> subprocess.CompletedProcess[str]:
    """`python -m broker restore` with the broker's own arguments."""
    words = broker.command()
    at = words.index("broker") + 1
    return subprocess.run(
        [*words[:at], "restore", *words[at:]],
        capture_output=True,
        text=True,
        timeout=RESTORE_TIMEOUT_S,
        check=False,
    )


def create_topic(broker: BrokerProcess, topic: str, partitions: int = 1, **config: object) -> None:
    settings = {name.replace("_", "."): str(value) for name, value in config.items()}
    topics.create_topic(broker.bootstrap, topic, settings, partitions=partitions)


def alter_topic(broker: BrokerProcess, topic: str, **changes: object) -> None:
    """Give settings of a topic these values."""
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(120)


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(120)


def rows(count: int, *, size: int = 1000, start: int = 0) -> list[ProducedRow]:
    return [
        ProducedRow(
            key=b"key-%d" % number,
            value=(b"value-%d-" % number).ljust(size, b"x"),
            headers=(("n", b"%d" % number),),
            timestamp_ms=1_700_000_000_000 + number,
        )
        for number in range(start, start + count)
    ]


class Feeder:
    """A producer that notes acknowledged records, across restarts of the broker."""

    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        self.topic = topic
        self.acknowledged = Acknowledged()
        config = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.max.bytes": 12 * MIB,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._producer = Producer(config)

    def send(self, sent: Iterable[ProducedRow], partition: int = 0) -> None:
        for row in sent:
            while True:
                try:
                    self._producer.produce(
                        self.topic,
                        key=row.key,
                        value=row.value,
                        headers=list(row.headers),
                        timestamp=row.timestamp_ms or 0,
                        partition=partition,
                        on_delivery=self._note(row),
                    )
                    break
                except BufferError:
                    self._producer.poll(0.05)
            self._producer.poll(0)

    def _note(self, row: ProducedRow) -> Any:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.acknowledged.failures.append(str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self.acknowledged.rows[partition, offset] = row

        return delivered

    def settle(self, timeout_s: float) -> None:
        """Wait for answers, whatever they are."""
        self._producer.flush(timeout_s)

    def flush(self, timeout_s: float = 120.0) -> None:
        left = self._producer.flush(timeout_s)
        assert left == 0, f"{left} records are not acknowledged"
        assert self.acknowledged.failures == []


def consume(
    bootstrap: str,
    topic: str,
    partition: int,
    *,
    start: int = 0,
    end: int,
    timeout_s: float = 120.0,
    **settings: object,
) -> dict[int, ProducedRow]:
    """The records of offsets [start, end) as a client reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": MIB,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    found: dict[int, ProducedRow] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.1):
                error = message.error()
                assert error is None, error
                offset = message.offset()
                assert offset is not None and offset not in found
                if offset < end:
                    found[offset] = row_of(message)
            position = consumer.position([TopicPartition(topic, partition)])[0].offset
            if position >= end:
                return found
    finally:
        consumer.close()
    raise TimeoutError(f"{topic}-{partition}: read {len(found)} records, not up to {end}")


def row_of(message: Message) -> ProducedRow:
    kind, timestamp = message.timestamp()
    return ProducedRow(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp if kind else None,
    )


def table(lake: Path, topic: str) -> pl.DataFrame:
    """The topic's table as another engine reads it, by offset."""
    return pl.read_delta(str(lake / "topics" / topic)).sort("partition", "offset")


def highest_offset_in_remote_storage(lake: Path, topic: str, partition: int) -> int:
    """The last offset in the table; -1 without any."""
    # The table's folder is there a moment before its first commit.
    if not any((lake / "topics" / topic / "_delta_log").glob("*.json")):
        return -1
    offsets = table(lake, topic).filter(pl.col("partition") == partition)["offset"]
    return int(offsets.max()) if len(offsets) else -1  # type: ignore[arg-type]


def assert_table_holds(lake: Path, topic: str, acknowledged: Acknowledged) -> None:
    """Each acknowledged record up to the tiered end is in the table once, and nothing else."""
    found = table(lake, topic)
    pairs = list(found.select("partition", "offset").iter_rows())
    assert len(pairs) == len(set(pairs)), "an offset is there twice"
    for partition in sorted({partition for partition, _ in pairs}):
        mine = found.filter(pl.col("partition") == partition)
        offsets = mine["offset"].to_list()
        assert offsets == list(range(len(offsets)))
        expected = acknowledged.partition(partition)
        for offset, key, value in mine.select("offset", "key", "value").iter_rows():
            assert (key, value) == (expected[offset].key, expected[offset].value), offset


def segment_states(lake: Path, topic: str, partition: int) -> list[tuple[str, int, int]]:
    """The last state of each segment of a partition, by start offset."""
    events = pl.read_delta(str(lake / "__remote_log_metadata")).sort("version", "sequence")
    mine = events.filter((pl.col("topic") == topic) & (pl.col("partition") == partition))
    last = mine.group_by("segment_id", maintain_order=True).last()
    return sorted(
        last.select("state", "start_offset", "end_offset").iter_rows(), key=lambda r: r[1]
    )


def finished_end(lake: Path, topic: str, partition: int) -> int:
    """The last offset of the finished segments."""
    ends = [
        end
        for state, _, end in segment_states(lake, topic, partition)
        if state == "COPY_SEGMENT_FINISHED"
    ]
    return max(ends, default=-1)


def assert_segments_finished(lake: Path, topic: str, partition: int, end: int) -> None:
    """The finished segments follow each other from 0 to `end`, or on, and each has one FINISHED event."""
    events = pl.read_delta(str(lake / "__remote_log_metadata"))
    finished = events.filter(
        (pl.col("topic") == topic)
        & (pl.col("partition") == partition)
        & (pl.col("state") == "COPY_SEGMENT_FINISHED")
    ).sort("start_offset")
    following = 0
    for start, last in finished.select("start_offset", "end_offset").iter_rows():
        assert start == following, "a gap, or an event that is there twice"
        following = last + 1
    assert following > end
