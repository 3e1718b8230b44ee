"""Spark writes a frame that lies in its memory: ours to our broker, Spark's Kafka sink to Apache Kafka; one session."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, BenchSide, OurSide, create_topic, ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
# Name, rows, bytes of a value.
SHAPES = (("10 M x 100 B", 10_000_000, 100), ("1 M x 1 KiB", 1_000_000, 1024))
# Of both sides: the key names the partition. Theirs gets what it is better with than with its defaults.
COMMON = {"kafka.acks": "all"}
BETTER = {"kafka.linger.ms": "10", "kafka.batch.size": str(512 * 1024)}


def write(folder: Path, report: Report, runs: int) -> None:
    from spark_conf import jars
    from spark_conf.session import session

    ours, theirs = OurSide(folder / "ours"), ApacheSide(folder / "apache")
    kafka_jars = ",".join(str(path) for path in sorted(jars.fetch("spark-kafka").glob("*.jar")))
    try:
        for side in (ours, theirs):
            side.launch()
            ready(side)
        spark = session(
            "kafka-ds bench",
            master="local[2]",
            extra_jars=kafka_jars,
            settings={"spark.driver.memory": "6g"},
        )
        try:
            for name, rows, size in SHAPES:
                _compare(spark, report, runs, name, _frame(spark, rows, size), ours, theirs)
        finally:
            spark.stop()
    finally:
        ours.stop()
        theirs.stop()


def load(folder: Path, report: Report, runs: int) -> None:
    """A bulk load against the same rows written through the same broker, in turns."""
    from spark_conf.session import session

    ours = OurSide(folder / "ours")
    ours.launch()
    try:
        ready(ours)
        spark = session("kafka-ds bench", master="local[2]", settings={"spark.driver.memory": "6g"})
        try:
            for name, rows, size in SHAPES:
                _compare_load(spark, report, runs, name, _frame(spark, rows, size), ours)
        finally:
            spark.stop()
    finally:
        ours.stop()


def _compare_load(
    spark: SparkSession, report: Report, runs: int, name: str, frame: DataFrame, side: OurSide
) -> None:
    loaded, written, background = list[float](), list[float](), list[float]()
    count = frame.count()
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    for run in range(runs + 1):
        stem = f"{name.split()[0]}-{name.split()[1]}-{run}"
        create_topic(side, f"written-{stem}", PARTITIONS, remote_storage_enable="false")
        with machine.watching(side.pids()) as use:
            of_load = _write(frame, side, f"loaded-{stem}", load="lake", partitions=str(PARTITIONS))
            of_write = _write(frame, side, f"written-{stem}")
        for topic in (f"loaded-{stem}", f"written-{stem}"):
            admin.delete_topics([topic])[topic].result(120)
        # The first run warms up.
        if run:
            loaded.append(count / of_load)
            written.append(count / of_write)
            background.append(use.background_load)
    frame.unpersist()
    report.add(
        Figure(
            name=f"Spark load: {name}",
            unit="rows/s",
            ours=loaded,
            theirs=written,
            at_least=5.0,
            background_load=statistics.median(background),
        )
    )


def _frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Made once: the sinks are compared, and not the making of rows."""
    filled = f"lpad(CAST(id AS STRING), {size}, sha2(CAST(id AS STRING), 512))"
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "CAST(id AS STRING) AS key", f"{filled} AS value"
    )
    kept = frame.cache()
    kept.count()
    return kept


def _compare(
    spark: SparkSession,
    report: Report,
    runs: int,
    name: str,
    frame: DataFrame,
    ours: OurSide,
    theirs: ApacheSide,
) -> None:
    rates: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    background: list[float] = []
    count = frame.count()
    for run in range(runs + 1):
        for side in (ours, theirs):
            topic = f"written-{name.split()[0]}-{name.split()[1]}-{run}"
            create_topic(side, topic, PARTITIONS, remote_storage_enable="false")
            with machine.watching([*ours.pids(), *theirs.pids()]) as use:
                took = _write(frame, side, topic)
            # Kept until it has answered: what it has under way goes with it.
            admin = AdminClient({"bootstrap.servers": side.bootstrap})
            admin.delete_topics([topic])[topic].result(120)
            # The first run warms up.
            if run:
                rates[side.name].append(count / took)
                background.append(use.background_load)
    frame.unpersist()
    report.add(
        Figure(
            name=f"Spark write: {name}",
            unit="rows/s",
            ours=rates[ours.name],
            theirs=rates[theirs.name],
            at_least=1.0,
            background_load=statistics.median(background),
        )
    )


def _write(frame: DataFrame, side: BenchSide, topic: str, **more: str) -> float:
    is_ours = isinstance(side, OurSide)
    options = {"kafka.bootstrap.servers": side.bootstrap, "topic": topic, **COMMON, **more}
    began = time.perf_counter()
    (
        frame.write.format("kafka_ds" if is_ours else "kafka")
        .options(**options if is_ours else {**options, **BETTER})
        .mode("append")
        .save()
    )
    return time.perf_counter() - began
