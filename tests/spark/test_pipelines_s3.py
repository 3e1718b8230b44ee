"""Typed tables of a lake on S3: kept, and rid of what was erased, at an endpoint without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import kafka_ds
from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.names import TYPED_TABLES, topic_table
from spark_conf import s3a
from spark_conf.pipelines.pipelines import Pipelines
from tests.command_line import CommandLine
from tests.processes import running_broker, wait_until
from tests.s3_server import CREDENTIAL, IDENTITY, S3Server, address_for


@pytest.fixture
def on_s3(
    spark: SparkSession, s3_server: S3Server, s3_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkSession]:
    """The session, whose tasks and whose JVM find the server, as those of a process that was started with it do."""
    for name, value in s3_server.environment.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    kafka_ds.register(spark)
    settings = {
        name.removeprefix("spark.hadoop."): value
        for name, value in s3a.settings(s3_server.environment).items()
    }
    settings |= {"fs.s3a.access.key": IDENTITY, "fs.s3a.secret.key": CREDENTIAL}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)
    monkeypatch.undo()
    kafka_ds.register(spark)


@pytest.mark.timeout(300)
def test_what_was_erased_leaves_a_typed_table_on_s3(
    on_s3: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    lake = address_for(tmp_path)
    settings = {"lake.uri": lake, "lake.max.lag.ms": 300}
    environment = s3_server.environment
    store = open_store(lake)

    def table(folder: str) -> DeltaTable:
        return DeltaTable(store.uri(folder), storage_options=store.delta_options)

    def kept() -> list[tuple[int, int]]:
        """As by a process that has just started."""
        pipelines = Pipelines(on_s3, {"kafka.bootstrap.servers": broker.bootstrap}, lake)
        assert pipelines.run_once() == []
        pipelines.close()
        rows = table(f"{TYPED_TABLES}/orders").to_pyarrow_table().to_pylist()
        return sorted((row["_offset"], row["total"]) for row in rows)

    with running_broker(tmp_path / "broker", settings, environment) as broker:
        orders = CommandLine(broker.bootstrap, tmp_path, **environment)
        orders.ok("topic", "create", "orders", "--config", "lake.table.value.format=json")
        orders.ok("produce", "orders", typed='{"total":1}\n{"total":2}\n{"total":3}\n')
        wait_until("the lake", lambda: orders.json("tier", "status")[0]["lake_rows"] == 3)
        assert kept() == [(0, 1), (1, 2), (2, 3)]
        assert table(topic_table("orders")).delete("offset = 1")["num_deleted_rows"] == 1
        assert kept() == [(0, 1), (2, 3)]
