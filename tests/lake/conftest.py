"""Stores of both kinds, and a Spark that reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from spark_conf import jars
from tests.s3_server import address_for
from tests.spark.java import QUICK_JAVA


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Tests of the lake run on both kinds of store."""
    if request.param == "folder":
        return LocalStore(str(tmp_path))
    request.getfixturevalue("s3_environment")
    return open_store(address_for(tmp_path))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .appName("lake")
        .config("spark.jars", ",".join(map(str, jars.fetch("delta").glob("*.jar"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        # VACUUM lists folders with so many tasks: 10,000 of them, most empty, take a minute.
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        # Clustering by key does what it is asked to, though keys have no statistics here.
        .config("spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled", "false")
        .config("spark.ui.enabled", "false")
        # Tables here are tiny: compiling a plan takes longer than to interpret it.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()
