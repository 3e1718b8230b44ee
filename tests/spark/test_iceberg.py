"""Typed tables and tables of errors as Iceberg tables: with the rows that Spark sees in Delta's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_ds.catalogs.hive import HiveMetastore
from kafka_ds.catalogs.tables import catalog_name
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.iceberg.lake_sync import LakeSync
from kafka_ds.topic.names import ICEBERG
from spark_conf import jars
from spark_conf.pipelines.pipelines import Pipelines
from tests.command_line import CommandLine
from tests.hive_server import running_metastore
from tests.lake.iceberg_readers import by_duckdb, by_pyiceberg
from tests.spark.topics import Topic
from tests.spark.typed_tables import keep
from tests.spark.versions import ROOT, environment

# The newest Spark that Iceberg has readers for.
PYSPARK = "4.1.4"
JSON_TOPIC = {"lake.table.value.format": "json", "lake.table.key.format": "string"}


def send(topic: Topic, *values: bytes | None, partition: int = 0) -> None:
    """Values, each with its number as its key."""
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    for number, each in enumerate(values):
        producer.produce(topic.name, value=each, key=b"%d" % number, partition=partition)
    assert producer.flush(60) == 0


def told(rows: list[dict[str, Any]]) -> list[str]:
    """Rows to compare: without what is null, of which readers have lists of none, too."""
    return sorted(
        repr({n: v for n, v in sorted(row.items()) if v not in (None, [])}) for row in rows
    )


def by_spark(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    found = spark.read.format("delta").load(path)
    # As text, since Spark gives moments in the machine's time zone, and bytes as bytearrays.
    return [json.loads(row[0]) for row in found.selectExpr("to_json(struct(*))").collect()]


def in_step(spark: SparkSession, path: str) -> None:
    """Readers of the Iceberg table see what Spark sees in the Delta table."""
    found = by_duckdb(path)
    assert told(by_pyiceberg(path)) == told(found)
    expected = by_spark(spark, path)
    assert len(found) == len(expected) > 0
    # As text, as Spark gives them here.
    found = [{**row, "_date": row.get("_date") and str(row["_date"])} for row in found]
    names = ("n", "_offset", "_key", "_date", "n__string", "reason", "new")
    assert told([{n: row.get(n) for n in names} for row in found]) == told(
        [{n: row.get(n) for n in names} for row in expected]
    )


@pytest.mark.timeout(300)
def test_a_table_of_current_state_is_an_iceberg_table(
    spark: SparkSession, pipelines: Pipelines, topic: Topic
) -> None:
    """With deletion vectors, moments of 96 bits, and the columns that a change data feed leaves in files."""
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.mode": "current"})
    tables = [str(topic.broker.lake / "tables" / f"{topic.name}{end}") for end in ("", "__errors")]
    lake_sync = LakeSync(LocalStore(str(topic.broker.lake)), [topic.name])
    for values in ([b'{"n":1}'] * 4, [b'{"n":"x","new":[{"x":1.5}]}', None, b"nope"]):
        send(topic, *values)
        keep(pipelines, topic)
        assert lake_sync.sync()[1] == {}
    for path in tables:
        in_step(spark, path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("partition_columns", ["", "_date,_partition"])
def test_sparks_upkeep_of_a_typed_table_leaves_its_iceberg_table(
    spark: SparkSession, pipelines: Pipelines, topic: Topic, partition_columns: str
) -> None:
    partitioned = {"lake.table.partition.columns": partition_columns} if partition_columns else {}
    topic.create(partitions=2, **JSON_TOPIC, **partitioned)
    path = str(topic.broker.lake / "tables" / topic.name)
    lake_sync = LakeSync(LocalStore(str(topic.broker.lake)), [topic.name])
    for part in range(3):
        values = [b'{"n":%d,"of":{"x":[1.5,2]}}' % n for n in range(50)]
        send(topic, *values, b'{"n":"text","new":true}', partition=part % 2)
        keep(pipelines, topic)
        assert lake_sync.sync()[1] == {}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for statement in (
        "OPTIMIZE {}",
        "DELETE FROM {} WHERE _offset < 10",
        "VACUUM {} RETAIN 0 HOURS",
    ):
        spark.sql(statement.format(f"delta.`{path}`"))
        assert lake_sync.sync()[1] == {}
        in_step(spark, path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_variant_is_left_out(spark: SparkSession, topic: Topic) -> None:
    path = str(topic.broker.lake / "tables" / topic.name)
    variant = "SELECT 1 AS n, parse_json('{\"x\":1}') AS v"
    spark.sql(f"CREATE TABLE delta.`{path}` USING delta AS {variant}")
    lake_sync = LakeSync(LocalStore(str(topic.broker.lake)), [topic.name])
    assert lake_sync.sync()[1] == {}
    assert by_duckdb(path) == by_pyiceberg(path) == [{"n": 1}]


DRIVER = """
import sys
from deltalake import DeltaTable
from pyspark.sql import SparkSession

settings = {"spark.jars": sys.argv[1], "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
builder = SparkSession.builder.master("local[1]").config("spark.sql.session.timeZone", "UTC")
for name, text in settings.items():
    builder = builder.config(name, text)
spark = builder.getOrCreate()
for path in sys.argv[2:]:
    rows = spark.read.format("iceberg").load(path)
    print("rows:", *sorted(row[0] for row in rows.selectExpr("to_json(struct(*))").collect()), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sparks_iceberg_reads_them(spark: SparkSession, pipelines: Pipelines, topic: Topic) -> None:
    """By the newest Spark that Iceberg has readers for, in a process of its own."""
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.mode": "current"})
    lake_sync = LakeSync(LocalStore(str(topic.broker.lake)), [topic.name])
    for part in range(2):
        send(topic, *(b'{"n":%d,"at":{"x":[1.5]}}' % (part * 10 + n) for n in range(4)), b"nope")
        keep(pipelines, topic)
        assert lake_sync.sync()[1] == {}
    names = (topic.name, f"{topic.name}__errors")
    paths = [str(topic.broker.lake / "tables" / each) for each in names]
    (jar,) = jars.fetch("iceberg").glob("*.jar")
    python = environment(PYSPARK)
    home = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "SPARK_HOME")}
    done = subprocess.run(
        [python, "-c", DRIVER, jar, *(f"{each}/{ICEBERG}" for each in paths)],
        cwd=ROOT, env=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told_by_iceberg = [part.split() for part in done.stdout.split("rows:")[1:]]
    expected = [
        sorted(
            row[0]
            for row in spark.read.format("delta")
            .load(each)
            .selectExpr("to_json(struct(*))")
            .collect()
        )
        for each in paths
    ]
    # Iceberg has a column _partition of its own.
    expected = [[row.replace('"_partition"', '"_partition_"') for row in rows] for rows in expected]
    assert told_by_iceberg == [[word for row in rows for word in row.split()] for rows in expected]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_command_keeps_typed_tables_iceberg_and_a_metastore(
    topic: Topic, tmp_path: Path
) -> None:
    """And takes the registrations away when the topic is deleted, though nothing of it was ever tiered."""
    topic.create(partitions=1, **JSON_TOPIC)
    send(topic, b'{"n":1}', b'{"n":2}')
    kafka_ds = CommandLine(topic.broker.bootstrap, tmp_path)
    name = catalog_name(topic.name)
    with running_metastore(tmp_path / "metastore") as address:
        words = ["pipelines", "run", "--once", "--lake", str(topic.broker.lake), "--iceberg"]
        done = kafka_ds.run(*words, "--catalog", address)
        assert done.status in (0, 1), done.errors
        said = [f"{topic.name}: step 1{then}" for then in (" begins, 2 offsets", ", 2 offsets in ")]
        said = ["starting Spark", "reading the settings of all topics", *said]
        places = [done.errors.index(each) for each in said]
        assert places == sorted(places)
        metastore = HiveMetastore(address)
        assert name in metastore.tables("kafka_tables")
        path = str(topic.broker.lake / "tables" / topic.name)
        assert sorted(row["n"] for row in by_duckdb(path)) == [1, 2]
        topic.delete()
        words = ["catalog", "sync", address, "--once", "--lake", str(topic.broker.lake)]
        done = kafka_ds.run(*words)
        assert f"kafka_tables.{name}: drop" in done.output.splitlines(), done.errors
        assert name not in metastore.tables("kafka_tables")
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2
