"""The demo's Spark part: batch, streams and SQL over the same rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_conf.session import system_views
from tests.demo import show
from tests.demo.clients import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_SCHEMA = "carrier STRING, dep_delay INT, arr_delay INT, distance INT"
STREAM_TIMEOUT_S = 180.0


def read(spark: SparkSession, bootstrap: str) -> DataFrame:
    return (
        spark.read.format("kafka_ds")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .load()
    )


def exactly_once(spark: SparkSession, bootstrap: str, acknowledged: list[int]) -> None:
    """Each (partition, offset) that was acknowledged is there exactly once, and nothing else."""
    rows = (
        read(spark, bootstrap)
        .groupBy("partition")
        .agg({"*": "count", "offset": "max"})
        .withColumnRenamed("count(1)", "rows")
        .withColumnRenamed("max(offset)", "last")
        .collect()
    )
    distinct = read(spark, bootstrap).select("partition", "offset").distinct().count()
    found = {row["partition"]: (row["rows"], row["last"]) for row in rows}
    expected = {p: (count, count - 1) for p, count in enumerate(acknowledged) if count}
    if found != expected or distinct != sum(acknowledged):
        raise RuntimeError(f"Spark read {found} ({distinct} distinct), acknowledged: {expected}")
    show.fact(f"{distinct:,} rows = what was acknowledged; each (partition, offset) exactly once")


def delays_by_carrier(spark: SparkSession, bootstrap: str) -> None:
    from pyspark.sql import functions as f

    flights = read(spark, bootstrap).select(
        f.from_json(f.col("value").cast("string"), VALUE_SCHEMA).alias("flight")
    )
    delays = (
        flights.groupBy("flight.carrier")
        .agg(
            f.count("*").alias("flights"),
            f.round(f.avg("flight.dep_delay"), 1).alias("departure"),
            f.round(f.avg("flight.arr_delay"), 1).alias("arrival"),
        )
        .orderBy(f.desc("flights"))
        .limit(8)
    )
    show.table(
        ("carrier", "flights", "departure delay", "arrival delay"),
        [
            (r["carrier"], f"{r['flights']:,}", r["departure"], r["arrival"])
            for r in delays.collect()
        ],
    )


def stream_available_now(spark: SparkSession, bootstrap: str, folder: Path, total: int) -> None:
    """A stream over all that there is, in several batches, then its end."""
    query = (
        spark.readStream.format("kafka_ds")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", total // 3 + 1)
        .load()
        .select("partition", "offset")
        .writeStream.format("memory")
        .queryName("available_now")
        .option("checkpointLocation", str(folder / "available-now"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(int(STREAM_TIMEOUT_S)):
        raise RuntimeError("the stream with Trigger.AvailableNow did not end")
    batches = len(query.recentProgress)
    _expect_stream(spark, "available_now", total)
    show.fact(
        f"Trigger.AvailableNow: {total:,} rows in {batches} batches, the same as the batch read"
    )


def stream_running(spark: SparkSession, bootstrap: str, folder: Path, total: int) -> None:
    """A running stream reaches the same rows."""
    query = (
        spark.readStream.format("kafka_ds")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .select("partition", "offset")
        .writeStream.format("memory")
        .queryName("running")
        .option("checkpointLocation", str(folder / "running"))
        .start()
    )
    deadline = time.monotonic() + STREAM_TIMEOUT_S
    try:
        while spark.table("running").count() < total:
            if time.monotonic() > deadline or query.exception() is not None:
                raise RuntimeError(
                    f"the running stream did not reach {total:,} rows: {query.exception()}"
                )
            time.sleep(0.2)
    finally:
        query.stop()
    _expect_stream(spark, "running", total)
    show.fact(f"running stream: {total:,} rows, the same as the batch read")


def _expect_stream(spark: SparkSession, name: str, total: int) -> None:
    streamed = spark.table(name)
    rows, distinct = streamed.count(), streamed.distinct().count()
    if (rows, distinct) != (total, total):
        raise RuntimeError(f"stream {name}: {rows} rows, {distinct} distinct, expected {total}")


def segments(spark: SparkSession, lake: Path) -> None:
    """``__remote_log_metadata`` is a table: the segments, their state, offsets, epochs and sizes."""
    system_views(spark, lake)
    query = f"""SELECT partition, state, count(*) AS segments, min(start_offset) AS first, max(end_offset) AS last,
                max(leader_epoch) AS epoch, sum(size_bytes) AS bytes, sum(lake_bytes) AS lake
         FROM remote_segments WHERE topic = '{TOPIC}' GROUP BY partition, state ORDER BY partition, state"""
    show.fact(" ".join(query.split()))
    rows = spark.sql(query).collect()
    show.table(
        ("partition", "state", "segments", "offsets", "epoch", "log MB", "lake MB"),
        [
            (
                r["partition"],
                r["state"],
                r["segments"],
                f"{r['first']}..{r['last']}",
                r["epoch"],
                f"{r['bytes'] / 1e6:.1f}",
                f"{r['lake'] / 1e6:.1f}",
            )
            for r in rows
        ],
    )


def typed_table(spark: SparkSession, bootstrap: str, lake: Path, total: int) -> None:
    """`kafka-ds pipelines run --once` in this session: the fields of the JSON become columns."""
    from kafka_ds.client.admin import Admin
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.client.settings import parse_settings
    from spark_conf.pipelines.pipelines import Pipelines

    options = {"kafka.bootstrap.servers": bootstrap}
    with Cluster(parse_settings(options)) as cluster:
        wanted = {"lake.table.value.format": "json", "lake.table.key.format": "string"}
        Admin(cluster).alter_topic_configs(TOPIC, wanted)
    began = time.monotonic()
    pipelines = Pipelines(spark, options, str(lake))
    try:
        failed = pipelines.run_once()
    finally:
        pipelines.close()
    rows = spark.read.format("delta").load(str(lake / "tables" / TOPIC))
    distinct = rows.select("_partition", "_offset").distinct().count()
    if failed or (rows.count(), distinct) != (total, total):
        raise RuntimeError(f"the typed table has {distinct} records, expected {total}: {failed}")
    show.fact(f"{total:,} rows of {len(rows.columns)} columns in {time.monotonic() - began:.1f} s")
    query = f"""SELECT origin, count(*) AS flights, round(avg(distance)) AS miles, max(dep_delay) AS longest
         FROM delta.`{lake}/tables/{TOPIC}` GROUP BY origin ORDER BY flights DESC"""
    show.fact(" ".join(query.replace(f"{lake}/", "lake/").split()))
    show.table(
        ("origin", "flights", "miles on average", "longest delay in minutes"),
        [
            (r["origin"], f"{r['flights']:,}", f"{r['miles']:.0f}", r["longest"])
            for r in spark.sql(query).collect()
        ],
    )
