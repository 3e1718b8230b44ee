"""`kafka-ds erase` of typed tables with deletion vectors, and of a kind that deltalake does not write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.command_line import CommandLine
from tests.spark.topics import Topic
from tests.spark.typed_tables import keep_anew

SETTINGS = {"lake.table.value.format": "json", "lake.table.mode": "current"}


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
@pytest.mark.parametrize("clustered", [False, True])
def test_a_key_leaves_a_table_of_current_state(
    spark: SparkSession, topic: Topic, tmp_path: Path, clustered: bool
) -> None:
    """A clustered one is Spark's to change: the command waits for the pipelines."""
    columns = {"lake.table.cluster.columns": "number"} if clustered else {}
    topic.create(partitions=1, **SETTINGS, **columns)
    for number in range(3):
        for key in (b"ada", b"ben"):
            send(topic, key, number)
        keep_anew(spark, topic)
    table = topic.broker.lake / "tables" / topic.name
    assert keys_in(table) == {b"ada", b"ben"}

    kafka_ds = CommandLine(topic.broker.bootstrap, tmp_path)
    words = ("erase", "--topic", topic.name, "--key", "ada", "--timeout", "200")
    with kafka_ds.popen(*words) as running:
        while clustered:
            keep_anew(spark, topic)
            try:
                running.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        output, errors = running.communicate(timeout=300)
    assert running.returncode == 0, output + errors
    assert ("waiting for kafka-ds pipelines" in errors) == clustered
    assert keys_in(table) == {b"ben"}
    keep_anew(spark, topic)
    state = spark.read.format("delta").load(str(table)).collect()
    assert [(bytes(row["_key"]), row["number"]) for row in state] == [(b"ben", 2)]
