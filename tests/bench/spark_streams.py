"""Streams of both sides: how fast a backlog is worked off, and how long a micro-batch takes that has little to do."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.paced import VALUE, paced_producer
from tests.bench.report import Figure, Report
from tests.bench.sides import BenchSide, create_topic
from tests.bench.spark_floor import Given
from tests.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Micro-batches of a backlog.
BATCHES = 4
# Micro-batches whose time is taken, and how many of them come before it counts. All sides are measured in each round,
# and the last round counts: micro-batches of a young JVM take up to twice as long, whoever's they are.
MEASURED, LOADING = 60, 10
ROUNDS = 2
# Topics that a stream reads as they grow, by how many partitions they have. Ours stay with the brokers: the bench has
# the lake filled each second (`spark_parts.QUICKLY`), which is no default and no part of a micro-batch.
LIVE = {1: "live-1", 8: "live-8"}
OURS_LIVE = {"remote_storage_enable": "false"}
RATE_RECORDS_S = 1000
AT_ONCE = {"processingTime": "0 seconds"}
Sides = Sequence[tuple[BenchSide, str, dict[str, Any]]]


def _started(
    spark: SparkSession, source: str, options: dict[str, Any], folder: Path, **trigger: Any
) -> StreamingQuery:
    frame = spark.readStream.format(source).options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    return writer.trigger(**trigger).start()


def _busy(query: StreamingQuery) -> list[int]:
    """What each micro-batch took that had records, in milliseconds."""
    progress = [json.loads(p.json) for p in query.recentProgress]
    return [p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"]]


def _has_measured(query: StreamingQuery) -> bool:
    failure = query.exception()
    if failure is not None:
        raise failure
    return len(_busy(query)) >= MEASURED


def throughput(
    add: Callable[[str, list[float], list[float], float | None, list[float]], None],
    spark: SparkSession,
    sides: Sides,
    runs: int,
    count: int,
    folder: Path,
) -> None:
    """A stream from the first record to the last, in as many offsets a micro-batch on both sides."""
    times: list[list[float]] = [[] for _ in sides]
    for run in range(runs + 1):
        for at, (_, source, options) in enumerate(sides):
            given = {
                **options,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": count // BATCHES + BATCHES,
            }
            began = time.perf_counter()
            query = _started(
                spark, source, given, folder / f"backlog-{source}-{run}", availableNow=True
            )
            if not query.awaitTermination(600):
                raise RuntimeError(f"{source}: the stream did not end")
            wall = time.perf_counter() - began
            rows = sum(json.loads(p.json)["numInputRows"] for p in query.recentProgress)
            if rows != count:
                raise RuntimeError(f"{source} gave {rows} rows of {count}")
            if run:
                times[at].append(wall)
    add("stream of a backlog, 100 B", times[0], times[1], 2.0, [])


def latency(report: Report, spark: SparkSession, sides: Sides, folder: Path) -> None:
    """The median of what a micro-batch takes while records come steadily, and with rows that a Python source has."""
    spark.dataSource.register(Given)
    for side, source, _ in sides:
        for count, topic in LIVE.items():
            create_topic(side, topic, count, **(OURS_LIVE if source == "kafka_ds" else {}))
    for run in range(ROUNDS):
        found = {
            count: [
                _p50_live(
                    spark,
                    side,
                    source,
                    {**options, "subscribe": topic},
                    folder / f"{topic}-{source}-{run}",
                )
                for side, source, options in sides
            ]
            for count, topic in LIVE.items()
        }
        floor = _p50_given(spark, folder / f"live-given-{run}")
    for count, (ours, theirs) in found.items():
        report.add(
            Figure(
                name=f"Spark micro-batch of {count} partitions, p50 (ms)",
                unit="ms",
                ours=[ours],
                theirs=[theirs],
                at_most=1.0,
            )
        )
    report.add(
        Figure(
            name="Spark micro-batch, p50: PySpark, of rows that are there (ms)",
            unit="ms",
            ours=[floor],
            theirs=[found[1][1]],
        )
    )


def _p50_live(
    spark: SparkSession, side: BenchSide, source: str, options: dict[str, Any], folder: Path
) -> float:
    query = _started(spark, source, options, folder, **AT_ONCE)
    stop = threading.Event()
    producing = threading.Thread(
        target=paced_producer,
        args=(side.bootstrap, options["subscribe"], RATE_RECORDS_S * len(VALUE), stop),
    )
    producing.start()
    try:
        return _p50(source, query)
    finally:
        stop.set()
        producing.join()
        query.stop()


def _p50_given(spark: SparkSession, folder: Path) -> float:
    query = _started(spark, "given", {"rows": RATE_RECORDS_S // 5}, folder, **AT_ONCE)
    try:
        return _p50("given", query)
    finally:
        query.stop()


def _p50(source: str, query: StreamingQuery) -> float:
    """The median of the micro-batches that count, when there have been enough."""
    wait_until(f"{source}: {MEASURED} micro-batches", partial(_has_measured, query), timeout_s=180)
    # The first ones load what all others use.
    return float(statistics.median(_busy(query)[LOADING:MEASURED]))
