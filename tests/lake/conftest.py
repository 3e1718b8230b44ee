"""Stores of all kinds, and a Spark that reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from spark_conf import jars
from tests.apache_kafka import free_ports
from tests.azurite import AzureServer
from tests.gcs_server import GcsServer, running_gcs
from tests.s3_server import S3Server
from tests.spark.java import QUICK_JAVA

Cloud: TypeAlias = S3Server | GcsServer | AzureServer


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One for all tests of this process, as `s3_server`."""
    with running_gcs(tmp_path_factory.mktemp("gcs"), free_ports(1)[0]) as running:
        yield running


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One for all tests of this process, as `s3_server`. npm brings it: 186 MB, which takes a quarter of a minute."""
    with AzureServer.running(tmp_path_factory.mktemp("azure"), free_ports(1)[0]) as running:
        yield running


def server_of(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The server of a kind of store, with its environment set."""
    server: Cloud = request.getfixturevalue(f"{kind}_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(
    params=["s3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gcs", "azure"))]
)
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A server of each kind of object store, and the environment in which clients find it."""
    return server_of(request.param, request, monkeypatch)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """Tests of the lake run on a folder and on S3; those of stores ask for the others, too."""
    if request.param == "folder":
        return LocalStore(str(tmp_path))
    return open_store(server_of(request.param, request, monkeypatch).address_for(tmp_path))


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
