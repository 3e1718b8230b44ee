"""A bulk load by Spark: the same rows for a consumer from offset 0, the source, `scan()` and DuckDB."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import kafka_ds
from tests import duck
from tests.processes import BrokerProcess
from tests.spark.topics import Topic

ROWS = 5_000


def by_offset(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (n, offset, bytes(key), bytes(value), time) for n, offset, key, value, time in rows
    )


def test_every_reader_sees_what_was_loaded(
    spark: SparkSession, topic: Topic, broker: BrokerProcess
) -> None:
    frame = spark.range(0, ROWS, 1, 3).selectExpr(
        "CAST(id AS STRING) AS key",
        "repeat(CAST(id AS STRING), 20) AS value",
        "timestamp_millis(unix_millis(current_timestamp()) - id) AS timestamp",
    )
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name}
    written = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic.name,
        "load": "lake",
        "partitions": "4",
    }
    frame.write.format("kafka_ds").options(**written).mode("append").save()
    columns = ["partition", "offset", "key", "value", "timestamp"]
    ours = by_offset(
        spark.read.format("kafka_ds").options(**options).load().select(*columns).collect()
    )
    # Spark's own source is a consumer of Java's client.
    sparks = spark.read.format("kafka").options(**options).load().select(*columns).collect()
    scanned = kafka_ds.scan(spark, **options).select(*columns)
    with duck.connect() as engine:
        table = engine.execute(
            'SELECT partition, "offset", key, value, timestamp '
            f"FROM delta_scan('{broker.lake}/topics/{topic.name}')"
        ).fetchall()
    assert len(ours) == ROWS and len({key for _, _, key, *_ in ours}) == ROWS
    for partition in range(4):
        offsets = [offset for n, offset, *_ in ours if n == partition]
        assert offsets == list(range(len(offsets)))
    assert by_offset(sparks) == ours
    assert by_offset(scanned.collect()) == ours
    assert [row[:4] for row in by_offset(table)] == [row[:4] for row in ours]
    with pytest.raises(Exception, match=f"topic {topic.name} exists; a load makes a new topic"):
        frame.write.format("kafka_ds").options(**written).mode("append").save()


def test_a_load_that_fails_leaves_no_topic_and_no_file(
    spark: SparkSession, topic: Topic, broker: BrokerProcess
) -> None:
    # In one task: Spark lets another one write on while it aborts the job.
    frame = spark.range(0, 100, 1, 1).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id = 99, 7, 0) AS partition"
    )
    written = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic.name,
        "load": "lake",
        "partitions": "2",
    }
    with pytest.raises(Exception, match="row 99 of Spark partition 0: column 'partition' is 7"):
        frame.write.format("kafka_ds").options(**written).mode("append").save()
    assert not list((broker.lake / "topics" / topic.name).rglob("*.parquet"))
    frame.filter("partition = 0").write.format("kafka_ds").options(**written).mode("append").save()
    read = spark.read.format("kafka_ds").option("subscribe", topic.name)
    assert read.option("kafka.bootstrap.servers", broker.bootstrap).load().count() == 99
