"""Spark on topics of ours against its own Kafka source on Apache Kafka; one session for both.

A fifth of 10 million records of 100 bytes, and of 1 million of 1 KiB; ``KAFKA_DS_BENCH_SCALE=1`` takes all of them.
Where all of a topic lies in the lake the figure is called cold, where nothing does hot.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

import kafka_ds
from tests.bench import machine, spark_queries
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, BenchSide, OurSide, client, create_topic, ready
from tests.bench.spark_floor import Floor
from tests.bench.spark_streams import latency, throughput
from tests.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCALE = float(os.environ.get("KAFKA_DS_BENCH_SCALE", "0.2"))
PARTITIONS = 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Records and bytes of each by topic; those of the first in its hot twin as well.
SMALL, LARGE = "records-100", "records-1024"
HOT = "records-hot"
TOPICS = {
    SMALL: (int(10_000_000 * SCALE), 100),
    LARGE: (int(1_000_000 * SCALE), 1024),
}
MAINTENANCE_MS = 5_000
# Everything is to lie in the lake.
QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
    "lake.max.lag.ms": 1000,
    # The small files of so quick a fill are merged before anything is measured, and not meanwhile.
    "lake.maintenance.interval.ms": MAINTENANCE_MS,
}


class SparkBench:
    """Two brokers with the same records, and a session that reads both."""

    def __init__(
        self, spark: SparkSession, report: Report, runs: int, ours: OurSide, theirs: ApacheSide
    ) -> None:
        self.spark, self.report, self.runs = spark, report, runs
        self.ours, self.theirs = ours, theirs
        self._late: dict[tuple[str, str], datetime] = {}

    def last_percent(self, side: BenchSide, topic: str) -> datetime:
        """Where the last hundredth of the topic begins: each was filled at another time."""
        key = (side.name, topic)
        if key not in self._late:
            self._late[key] = last_percent(side, topic)
        return self._late[key]

    def read(self, side: BenchSide, topic: str, *, scanned: bool = False) -> DataFrame:
        """The topic of a side by its source; ``scanned``, ours by `kafka_ds.scan` and theirs all the same."""
        ours = side is self.ours
        if scanned and ours:
            return kafka_ds.scan(self.spark, topic, **{"kafka.bootstrap.servers": side.bootstrap})
        return self.spark.read.format(format_of(side)).options(**options_of(side, topic)).load()

    def compare(
        self,
        name: str,
        target: float,
        query: spark_queries.Query,
        *,
        topic: str,
        theirs: str | None = None,
        scanned: bool = False,
    ) -> None:
        """How often a second the query is answered; both answers must be the same."""
        sides: list[tuple[BenchSide, str]] = [(self.ours, topic), (self.theirs, theirs or topic)]
        times: dict[str, list[float]] = {side.name: [] for side, _ in sides}
        background: list[float] = []
        late = {(side, read): self.last_percent(side, read) for side, read in sides}
        for run in range(self.runs + 1):
            answers = []
            for side, read in sides:
                with machine.watching([*self.ours.pids(), *self.theirs.pids()]) as use:
                    began = time.perf_counter()
                    frame = self.read(side, read, scanned=scanned)
                    answers.append(query(frame, late[side, read]))
                    wall = time.perf_counter() - began
                if run:
                    times[side.name].append(wall)
                    background.append(use.background_load)
            if answers[0] != answers[1]:
                raise RuntimeError(f"{name}: the sides answered differently: {answers}")
        self.add(name, times[self.ours.name], times[self.theirs.name], target, background)

    def add(
        self,
        name: str,
        ours: list[float],
        theirs: list[float],
        target: float | None,
        background: list[float],
    ) -> None:
        """Seconds of both as a figure in which more is better."""
        figure = Figure(
            name=f"Spark {name} (1/s)",
            unit="1/s",
            ours=[1 / t for t in ours],
            theirs=[1 / t for t in theirs],
            at_least=target,
            background_load=statistics.median(background) if background else 0.0,
        )
        self.report.add(figure)

    def alone(self, read: Callable[[], object]) -> list[float]:
        """Seconds of something that has no other side."""
        times = []
        for run in range(self.runs + 1):
            began = time.perf_counter()
            read()
            if run:
                times.append(time.perf_counter() - began)
        return times


def last_percent(side: BenchSide, topic: str) -> datetime:
    """The time behind which a hundredth of the topic's records lies, of all partitions together."""
    consumer = Consumer({"bootstrap.servers": side.bootstrap, "group.id": "bench"})
    try:
        numbers = range(PARTITIONS)
        bounds = [
            consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30) for n in numbers
        ]
        ends = [end for _, end in bounds]
        count = sum(end - first for first, end in bounds)

        def behind(time_ms: int) -> int:
            asked = [TopicPartition(topic, n, time_ms) for n in numbers]
            found = consumer.offsets_for_times(asked, timeout=30)
            # Of a partition without such a record it is -1, the end.
            return sum(ends[each.partition] - each.offset for each in found if each.offset >= 0)

        # Times as brokers have them, in milliseconds: all of a fill lies between these.
        early, late = 0, int(time.time() * 1000)
        while early < late:
            middle = (early + late) // 2
            if behind(middle) > count // 100:
                early = middle + 1
            else:
                late = middle
        return datetime.fromtimestamp(early / 1000, UTC)
    finally:
        consumer.close()


def format_of(side: BenchSide) -> str:
    return "kafka_ds" if isinstance(side, OurSide) else "kafka"


def options_of(side: BenchSide, topic: str) -> dict[str, Any]:
    given = {"kafka.bootstrap.servers": side.bootstrap, "subscribe": topic}
    if not isinstance(side, OurSide):
        # Its better setting: at the default of 500 ms it waits at the end of every partition.
        given["kafka.fetch.max.wait.ms"] = "10"
    return given


def batch(folder: Path, report: Report, runs: int) -> None:
    from spark_conf import jars
    from spark_conf.session import session

    ours, theirs = OurSide(folder / "ours", QUICKLY), ApacheSide(folder / "apache")
    kafka_jars = ",".join(str(path) for path in sorted(jars.fetch("spark-kafka").glob("*.jar")))
    try:
        _fill(ours, theirs)
        spark = session("kafka-ds bench", master="local[2]", extra_jars=kafka_jars)
        try:
            bench = SparkBench(spark, report, runs, ours, theirs)
            for topic in TOPICS:
                _cold(bench, topic)
            _hot(bench)
            throughput(bench.add, spark, sides(bench), runs, TOPICS[SMALL][0], folder)
            latency(report, spark, sides(bench), folder)
        finally:
            spark.stop()
    finally:
        ours.stop()
        theirs.stop()


def sides(bench: SparkBench) -> list[tuple[BenchSide, str, dict[str, Any]]]:
    """Each side with its format and its options for the topic that streams read."""
    both: tuple[BenchSide, ...] = (bench.ours, bench.theirs)
    return [(side, format_of(side), options_of(side, SMALL)) for side in both]


def _cold(bench: SparkBench, topic: str) -> None:
    count, size = TOPICS[topic]
    of = f"cold, {size} B"
    asked = spark_queries.of(count // PARTITIONS)
    bench.compare(f"{of}: full scan", 3.0, asked.full, topic=topic)
    bench.compare(f"{of}: scan(), full scan", 3.0, asked.full, topic=topic, scanned=True)
    for name, query in asked.aggregates.items():
        bench.compare(f"{of}: scan(), {name}", 10.0, query, topic=topic, scanned=True)
    for name, query in asked.selective.items():
        bench.compare(f"{of}: {name}, 1 %", 10.0, query, topic=topic)
    _against_pyarrow(bench, topic, asked)


def _against_pyarrow(bench: SparkBench, topic: str, asked: spark_queries.Queries) -> None:
    """The bytes a second of a full scan, of those of pyarrow by itself on the same files, with as many threads."""
    floor = Floor(bench.ours.lake, topic)
    count, size = TOPICS[topic]
    alone = bench.alone(floor.pyarrow_alone)
    readers = bench.alone(floor.readers_alone)
    scans = {
        "the source": bench.alone(lambda: asked.full(bench.read(bench.ours, topic), EPOCH)),
        "scan()": bench.alone(
            lambda: asked.full(bench.read(bench.ours, topic, scanned=True), EPOCH),
        ),
        "PySpark, of batches that are there": bench.alone(
            lambda: asked.full(floor.given_batches(bench.spark, count), EPOCH),
        ),
        "the source's tasks without Spark": readers,
    }
    for name, times in scans.items():
        figure = Figure(
            name=f"Spark cold, {size} B: {name} / pyarrow (MB/s)",
            unit="MB/s",
            ours=[count * size / t / 1e6 for t in times],
            theirs=[count * size / t / 1e6 for t in alone],
            at_least=0.6 if name in ("the source", "scan()") else None,
        )
        bench.report.add(figure)


def _hot(bench: SparkBench) -> None:
    count, size = TOPICS[SMALL]
    asked = spark_queries.of(count // PARTITIONS)
    bench.compare(f"hot, {size} B: full scan", 1.5, asked.full, topic=HOT, theirs=SMALL)


def _lake_holds(side: OurSide, topic: str, count: int) -> bool:
    from kafka_ds.delta.snapshot import NoSuchTable
    from kafka_ds.delta.store.local import LocalStore
    from kafka_ds.topic.snapshot import TopicSnapshot

    try:
        snapshot = TopicSnapshot.load(LocalStore(str(side.lake)), topic)
    except NoSuchTable:
        return False
    return (
        sum((snapshot.highest_offset_in_remote_storage(n) or -1) + 1 for n in range(PARTITIONS))
        >= count
    )


def _fill(ours: OurSide, theirs: ApacheSide) -> None:
    for side in (ours, theirs):
        side.launch()
        ready(side)
        for topic, (count, size) in TOPICS.items():
            create_topic(side, topic, PARTITIONS, segment_bytes=64 << 20)
            client("produce", side, topic, count=count, size=size)
    create_topic(ours, HOT, PARTITIONS, remote_storage_enable="false")
    count, size = TOPICS[SMALL]
    client("produce", ours, HOT, count=count, size=size)
    for topic, (count, _) in TOPICS.items():
        wait_until(
            f"all records of {topic} to be in the lake",
            partial(_lake_holds, ours, topic, count),
            timeout_s=600,
        )
    pids = [*ours.pids(), *theirs.pids()]
    machine.rest(pids, window_s=2 * MAINTENANCE_MS / 1_000, timeout_s=600)
