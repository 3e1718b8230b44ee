"""`kafka-ds erase` of typed tables with deletion vectors, and of a kind that deltalake does not write."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.command_line import CommandLine
from tests.spark.topics import Topic
from tests.spark.typed_tables import keep_anew

PARTITIONED = {"lake.table.partition.columns": "_date,_partition"}


def send(topic: Topic, key: bytes, number: int) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    producer.produce(topic.name, key=key, value=json.dumps({"number": number}), partition=0)
    assert producer.flush(60) == 0


def keys_in(folder: Path) -> set[bytes]:
    """Those of all files, also of older versions and of the change feed."""
    found = folder.rglob("*.parquet")
    return {
        row["_key"] for path in found if "_delta_log" not in str(path)
        for row in pq.read_table(path, columns=["_key"]).to_pylist()
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "settings",
    [
        {"lake.table.mode": "current"},
        {"lake.table.mode": "current", **PARTITIONED},
        PARTITIONED,
        {"lake.table.cluster.columns": "number"},
    ],
)
def test_a_key_leaves_a_table(
    spark: SparkSession, topic: Topic, tmp_path: Path, settings: dict[str, str]
) -> None:
    """A clustered one is Spark's to change: the command waits for the pipelines."""
    topic.create(partitions=1, **{"lake.table.value.format": "json", **settings})
    is_current = "lake.table.mode" in settings
    is_clustered = "lake.table.cluster.columns" in settings
    for number in range(3):
        for key in (b"ada", b"ben"):
            send(topic, key, number)
        keep_anew(spark, topic)
    table = topic.broker.lake / "tables" / topic.name
    assert keys_in(table) == {b"ada", b"ben"}

    kafka_ds = CommandLine(topic.broker.bootstrap, tmp_path)
    words = ("erase", "--topic", topic.name, "--key", "ada", "--timeout", "200")
    with kafka_ds.popen(*words) as running:
        while is_clustered and running.poll() is None:
            keep_anew(spark, topic)
        output, errors = running.communicate(timeout=300)
    assert running.returncode == 0, output + errors
    assert ("waiting for `kafka-ds pipelines run` to delete" in errors) == is_clustered
    assert keys_in(table) == {b"ben"}
    keep_anew(spark, topic)
    rows = spark.read.format("delta").load(str(table)).orderBy("number").collect()
    left = [(bytes(row["_key"]), row["number"]) for row in rows]
    assert left == [(b"ben", number) for number in ([2] if is_current else range(3))]
