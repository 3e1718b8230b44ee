"""Overtaken rows leave the table of a compacted topic, and no consumer and no typed table misses anything."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import PartitionIntent
from kafka_ds.topic.names import cleaned_mark
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from kafka_ds.topic.table import TopicTable
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import history
from spark_conf.pipelines.history import CompactedHistory, HistoryPolicy
from tests.fakes.lake_rows import TOPIC_ID, batch_of, commit, write_file
from tests.processes import wait_until
from tests.spark.topics import Topic
from tests.spark.typed_tables import alter, errors_of, keep_anew, state_of

SETTINGS = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "true",
    "segment.ms": 100,
    "lake.table.value.format": "string",
    "lake.table.key.format": "string",
    "lake.table.mode": "current",
    "lake.compacted.history.ms": 0,
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 0,
}
Record = tuple[bytes, bytes | None]


def send(topic: Topic, *records: Record) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    for key, value in records:
        producer.produce(topic.name, key=key, value=value, partition=0)
    assert producer.flush(60) == 0


def kept(topic: Topic, spark: SparkSession) -> list[tuple[int, bytes, bytes | None]]:
    """The rows of the topic's own table: offset, key, value."""
    path = str(topic.broker.lake / "topics" / topic.name)
    found = spark.read.format("delta").load(path).orderBy("offset").collect()
    return [(r.offset, bytes(r.key), None if r.value is None else bytes(r.value)) for r in found]


def newest(records: list[Record]) -> dict[str, str]:
    last = dict(records)
    return {k.decode(): v.decode() for k, v in last.items() if v is not None}


def consumed(topic: Topic) -> dict[str, str]:
    """Each key's last value, for a consumer that reads from the beginning. It may find what the table has deleted."""
    settings = {
        "bootstrap.servers": topic.broker.bootstrap,
        "group.id": "g",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic.name, 0, OFFSET_BEGINNING)])
    found: dict[str, str] = {}
    while (message := consumer.poll(30)) is not None and message.error() is None:
        key = (message.key() or b"").decode()
        found.pop(key, None)
        if (value := message.value()) is not None:
            found[key] = value.decode(errors="replace")
    consumer.close()
    return found


def values(spark: SparkSession, topic: Topic) -> dict[str, str]:
    return {key: row["value"] for key, row in state_of(spark, topic).items()}


@pytest.mark.timeout(300)
def test_overtaken_rows_leave(
    spark: SparkSession, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.create(partitions=1, **SETTINGS)
    records: list[Record] = [(b"1", b"\xff")]
    records += [(b"%d" % (n % 7), None if n % 5 == 4 else b"%d" % n) for n in range(200)]
    send(topic, *records)
    topic.wait_until_tiered(0, least=201)
    with caplog.at_level("INFO"):
        keep_anew(spark, topic)
    last = [(at, *each) for at, each in enumerate(records)][-7:]
    assert kept(topic, spark) == last
    assert errors_of(topic) == []
    assert f"{topic.name}-0: 194 overtaken rows below offset 201 deleted" in caplog.text
    assert values(spark, topic) == newest(records) == consumed(topic)
    read = topic.read(spark).select("offset", "key", "value").orderBy("offset").collect()
    assert [tuple(row) for row in read] == last

    # With the next cleaning tombstones leave, too, and what is not in the lake yet overtakes nothing.
    send(topic, (b"0", b"a"), (b"0", b"b"))
    topic.wait_until_tiered(0, least=203)
    keep_anew(spark, topic)
    now = [each for each in last if each[2] is not None and each[1] != b"0"]
    assert kept(topic, spark) == [*now, (202, b"0", b"b")]
    assert values(spark, topic) == newest([*records, (b"0", b"b")]) == consumed(topic)


# After the typed table's MERGE and one file of five; before the next file; and after it.
KILLS = (("after", 2, 151), ("before", 1, 151), ("after", 1, 101))


@pytest.mark.parametrize("kills", [KILLS[:1], pytest.param(KILLS, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_killed_between_its_commits_it_loses_no_key(
    spark: SparkSession, topic: Topic, tmp_path: Path, kills: tuple[tuple[str, int, int], ...]
) -> None:
    # Compacted only once the lake alone has its records: consumers read them there.
    before = {**SETTINGS, "cleanup.policy": "delete", "local.retention.bytes": 1}
    topic.create(partitions=1, **before)
    records: list[Record] = []
    for number in range(4):
        records += [
            (b"%d" % (n % 9), None if n % 7 == 6 else b"%d-%d" % (number, n)) for n in range(50)
        ]
        send(topic, *records[-50:])
        topic.wait_until_tiered(0, least=len(records))
    wait_until("only the lake to have them", lambda: topic.closed_end() == len(records))
    alter(topic, "cleanup.policy", "compact")
    send(topic, (b"0", b"hot"))
    records.append((b"0", b"hot"))
    topic.wait_until_tiered(0, least=201)
    expected = newest(records)
    assert consumed(topic) == expected
    command = ["pipelines", "run", "--once", "--master", "local[1]"]
    command += ["--lake", str(topic.broker.lake), "--bootstrap-server", topic.broker.bootstrap]
    for when, number, left in kills:
        driver = [sys.executable, "-m", "tests.spark.pipelines_driver", when, str(number), "1000"]
        driver.append(topic.name)
        with (tmp_path / "driver.log").open("ab") as log:
            done = subprocess.run([*driver, *command], stdout=log, stderr=log, check=False)
        assert done.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
        assert len(kept(topic, spark)) == left
        assert consumed(topic) == values(spark, topic) == expected
    keep_anew(spark, topic)
    last = dict(records)
    assert {key: value for _, key, value in kept(topic, spark)} == last
    assert len(kept(topic, spark)) == len(last)
    assert consumed(topic) == values(spark, topic) == expected
    # The driver of another try would take it first.
    topic.delete()


class Shown:
    """A typed table that shows the rows of some offsets."""

    def __init__(self, spark: SparkSession, offsets: set[int]) -> None:
        self._spark, self._offsets = spark, offsets

    def rows_of(self, _: int) -> DataFrame:
        return self._spark.createDataFrame([(each,) for each in self._offsets], "_offset long")


class Written:
    """A topic's table without a broker, and all records that were ever in it."""

    def __init__(self, spark: SparkSession, lake: Path, seed: int) -> None:
        self.spark, self.random = spark, random.Random(seed)
        self.table = TopicTable(LocalStore(str(lake)), "t")
        self.table.open(TOPIC_ID)
        self.history = CompactedHistory(spark, self.table.log.store, str(lake), "t")
        self.records: dict[int, tuple[str | None, str | None, int]] = {}
        self.end = self.taken = 0
        self.was_ended = False

    def copy(self, now_ms: int) -> None:
        """A file of records, some minutes apart."""
        start = self.end
        self.end += self.random.randint(1, 25)
        rows = batch_of(range(start, self.end)).to_pylist()
        # An offset may be a marker's.
        rows = [row for row in rows if self.random.random() < 0.9] or rows
        for row in rows:
            age_ms = self.random.randint(0, 10) * 60_000
            row["key"] = self.random.choice([None, *(b"%d" % each for each in range(15))])
            row["value"] = self.random.choice([None, b"%d" % row["offset"]])
            row["timestamp"] = datetime.fromtimestamp((now_ms - age_ms) / 1000, UTC)
            self.records[row["offset"]] = (row["key"], row["value"], now_ms - age_ms)
        made = pa.RecordBatch.from_pylist(rows, TOPIC_FILE_SCHEMA)
        _, add = write_file(self.table, 0, [made], attempt=uuid_text(new_uuid()))
        part = PartitionIntent(
            partition=0, leader_epoch=0, start_offset=start, end_offset=self.end - 1, adds=(add,)
        )
        commit(self.table, part)

    def offsets(self) -> set[int]:
        found = DeltaTable(self.table.log.store.uri(self.table.folder)).to_pyarrow_table()
        for each in found.select(["offset", "key", "value"]).to_pylist():
            assert self.records[each["offset"]][:2] == (each["key"], each["value"])
        assert len({*found["offset"].to_pylist()}) == found.num_rows
        return {*found["offset"].to_pylist()}

    def state(self, offsets: set[int], end: int) -> dict[str, int]:
        """The offset of each key's newest record before `end`, unless that is a tombstone."""
        newest = {self.records[at][0]: at for at in sorted(offsets) if at < end}
        return {
            k: at for k, at in newest.items() if k is not None and self.records[at][1] is not None
        }

    def shown(self) -> set[int]:
        return {*self.state({*self.records}, self.taken).values()}

    def is_ended(self) -> bool:
        """Whether a pass ends, before any of its commits."""
        self.was_ended = self.random.random() < 0.15
        return self.was_ended

    def cleaned(self) -> int:
        return self.table.read().txns.get(cleaned_mark(TOPIC_ID, 0), 0)

    def expire(self, history_ms: int) -> None:
        self.was_ended = False
        self.taken = self.random.randint(self.taken, self.end)
        done = TableStep(
            number=1,
            topic_id=uuid_text(TOPIC_ID),
            mode="current",
            start={0: 0},
            end={0: self.taken},
        )
        policy = HistoryPolicy(history_ms=history_ms, delete_retention_ms=0, dirty_ratio=0.0)
        shown: Any = Shown(self.spark, self.shown())
        self.history.expire(shown, done, policy, self.is_ended)

    def is_overtaken(self, at: int, offsets: set[int], end: int) -> bool:
        key = self.records[at][0]
        return key is not None and any(self.records[o][0] == key for o in offsets if at < o < end)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_against_a_model(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "COMMIT_BYTES", 1)
    made = Written(spark, tmp_path, seed)
    reached = 0
    for _ in range(5):
        now_ms = time.time_ns() // 1_000_000
        for _ in range(made.random.randint(1, 3)):
            made.copy(now_ms)
        before, cleaned_before = made.offsets(), made.cleaned()
        history_ms = made.random.choice([0, 5, 9]) * 60_000
        made.expire(history_ms)
        after = made.offsets()
        cleaned = made.cleaned()
        assert cleaned <= made.taken
        # Where a pass that was ended, now or before, may have been.
        reached = max(reached, made.taken if made.was_ended else cleaned)
        for end in range(reached, made.end + 1):
            assert made.state(after, end) == made.state({*made.records}, end)
        assert made.shown() <= after
        assert not any(made.is_overtaken(at, after, cleaned) for at in after - made.shown())
        for at in before - after:
            key, value, time_ms = made.records[at]
            assert at < reached and time_ms <= now_ms - history_ms + 60_000
            if not made.is_overtaken(at, before, reached):
                older = [each for each in before if each < at and made.records[each][0] == key]
                assert value is None and not older, "a tombstone, after what it deleted"
                assert at < cleaned_before, "which a whole pass has deleted"


def test_rows_of_another_engine_overtake_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Written(spark, tmp_path, seed=0)
    made.copy(time.time_ns() // 1_000_000)
    made.taken = made.end
    rows = DeltaTable(made.table.log.store.uri(made.table.folder)).to_pyarrow_table()
    later = pc.add(rows["offset"], made.end)
    inserted = rows.set_column(rows.schema.get_field_index("offset"), "offset", later)
    write_deltalake(made.table.log.store.uri(made.table.folder), inserted, mode="append")
    made.expire(0)
    found = DeltaTable(made.table.log.store.uri(made.table.folder)).to_pyarrow_table()
    assert found.num_rows == 2 * len(made.records)
    assert "no overtaken rows are deleted: another engine inserted rows" in caplog.text
