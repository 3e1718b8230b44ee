"""Spark on a topic that lies in the lake, against its own Kafka source on Apache Kafka; one session for both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_ds
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheKafka, OurSide, Side, client, create_topic, ready
from tests.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 4_000_000
PARTITIONS = 4
TOPIC = "records"
# By `kafka_ds.scan`.
SCAN = "scan(): "
# Everything is to lie in the lake but what is in the last, open segments.
QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
    "lake.max.lag.ms": 1000,
}


def frame(spark: SparkSession, side: Side, *, scanned: bool = False) -> DataFrame:
    """The topic of a side by its source; ``scanned``, ours by `kafka_ds.scan` and theirs all the same."""
    if scanned and isinstance(side, OurSide):
        return kafka_ds.scan(spark, TOPIC, **{"kafka.bootstrap.servers": side.bootstrap})
    reader = (
        spark.read.format("kafka_ds" if isinstance(side, OurSide) else "kafka")
        .option("kafka.bootstrap.servers", side.bootstrap)
        .option("subscribe", TOPIC)
    )
    if not isinstance(side, OurSide):
        # Its better setting: at the default of 500 ms it waits at the end of every partition.
        reader = reader.option("kafka.fetch.max.wait.ms", "10")
    return reader.load()


def queries(at: object) -> dict[str, tuple[Callable[[DataFrame], DataFrame], float]]:
    """Query by name, and how many times faster than Spark's Kafka source it should be."""
    from pyspark.sql import functions as f

    def narrow(d: DataFrame) -> DataFrame:
        return d.where(f.col("offset") >= RECORDS // PARTITIONS * 99 // 100).agg(
            f.count("*"), f.sum(f.length("value"))
        )

    def late(d: DataFrame) -> DataFrame:
        return d.where(f.col("timestamp") >= f.lit(at)).agg(f.count("*"), f.sum(f.length("value")))

    def full(d: DataFrame) -> DataFrame:
        columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
        return d.agg(f.sum(f.hash(*columns).cast("long")), f.count("*"))

    def count(d: DataFrame) -> DataFrame:
        return d.agg(f.count("*"))

    def length(d: DataFrame) -> DataFrame:
        return d.agg(f.sum(f.length("value")))

    def by_minute(d: DataFrame) -> DataFrame:
        minute = f.date_trunc("minute", "timestamp")
        return d.groupBy("partition", minute).agg(f.count("*"), f.max("offset"))

    return {
        "count": (count, 2.0),
        SCAN + "count": (count, 10.0),
        "sum(length(value))": (length, 2.0),
        SCAN + "sum(length(value))": (length, 10.0),
        SCAN + "rows and last offset by partition and minute": (by_minute, 10.0),
        "full projection": (full, 2.0),
        "filter on offset, 1 %": (narrow, 4.0),
        "filter on timestamp, 1 %": (late, 4.0),
    }


def _lake_holds_all(side: OurSide) -> bool:
    import pyarrow as pa
    from deltalake import DeltaTable

    path = side.broker.lake / "topics" / TOPIC
    if not (path / "_delta_log").exists():
        return False
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    return bool(sum(actions.column("num_records").to_pylist()) >= RECORDS)


def _fill(ours: OurSide, theirs: ApacheKafka) -> None:
    for side in (ours, theirs):
        side.launch(clean=True)
        ready(side)
        create_topic(side, TOPIC, PARTITIONS, segment_bytes=64 << 20)
        client("produce", side, TOPIC, count=RECORDS, size=100)
    wait_until("all records to be in the lake", lambda: _lake_holds_all(ours), timeout_s=120)


def _timestamp_of_last_percent(spark: SparkSession, side: Side) -> object:
    row = (
        frame(spark, side).selectExpr("percentile(unix_millis(timestamp), 0.99) AS at").collect()[0]
    )
    return spark.sql(f"SELECT timestamp_millis({int(row['at'])})").collect()[0][0]


def batch(folder: Path, report: Report, runs: int) -> None:
    from spark_conf import jars
    from spark_conf.session import session

    ours, theirs = OurSide(folder / "ours", QUICKLY), ApacheKafka(folder / "apache")
    kafka_jars = ",".join(str(path) for path in sorted(jars.fetch("spark-kafka").glob("*.jar")))
    try:
        _fill(ours, theirs)
        spark = session("kafka-ds bench", master="local[2]", extra_jars=kafka_jars)
        try:
            for name in queries(0):
                _compare(spark, report, runs, name, ours, theirs)
        finally:
            spark.stop()
    finally:
        ours.stop()
        theirs.stop()


def _compare(
    spark: SparkSession, report: Report, runs: int, name: str, ours: OurSide, theirs: ApacheKafka
) -> None:
    times: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    foreign: list[float] = []
    answers: dict[str, int] = {}
    wanted = 0.0
    for run in range(runs + 1):
        for side in (ours, theirs):
            # Both topics were filled at other times, so the last percent begins elsewhere in each.
            at = _timestamp_of_last_percent(spark, side) if "timestamp" in name else 0
            query, wanted = queries(at)[name]
            with machine.watching([*ours.pids(), *theirs.pids()]) as use:
                began = time.perf_counter()
                rows = query(frame(spark, side, scanned=name.startswith(SCAN))).collect()
                wall = time.perf_counter() - began
            answers[side.name] = rows[0].asDict().get("count(1)", rows[0][0])
            if run:
                times[side.name].append(wall)
                foreign.append(use.foreign_cores)
    if name.endswith("count") and len(set(answers.values())) != 1:
        raise RuntimeError(f"the sides counted differently: {answers}")
    report.add(
        Figure(
            name=f"Spark cold: {name} (1/s)",
            unit="1/s",
            ours=[1 / t for t in times[ours.name]],
            theirs=[1 / t for t in times[theirs.name]],
            at_least=wanted,
            foreign_cores=statistics.median(foreign),
        )
    )
