"""One session for all tests of this folder, a broker of ours with a lake, an Apache Kafka; topics are a test's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_conf import jars
from spark_conf.home import quick_home
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.session import session
from tests.apache_kafka import ApacheKafka
from tests.certificates import Authority
from tests.processes import BrokerProcess, running_broker
from tests.spark.dying_sink import WORKERS
from tests.spark.java import QUICK_JAVA
from tests.spark.machines import NAMES, Machines, SparkCluster
from tests.spark.schema_registry import running_registry
from tests.spark.secured import Ways, ways_in
from tests.spark.topics import Topic

ROOT = Path(__file__).resolve().parents[2]
# Closed segments go to the lake at once, and open ones stay where they are: tests know what is cold and what is hot.
QUICKLY = {
    "remote.log.manager.task.interval.ms": 200,
    "lake.local.grace.ms": 200,
    "log.retention.check.interval.ms": 200,
    "lake.offsets.interval.ms": 300,
}


TYPED = ("test_history", "test_pipelines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    # Spark's own Kafka source beside ours, to compare with, and S3A.
    sets = ("spark-kafka", "spark-avro", "s3a")
    extra = ",".join(str(jar) for name in sets for jar in sorted(jars.fetch(name).glob("*.jar")))
    running = session("tests", master="local[2]", settings=settings, extra_jars=extra)
    yield running
    running.stop()


# A step of a typed table is a dozen small queries, and to compile them takes a sixth of the tests' CPU (142.8 s against
# 119.2 in test_pipelines.py, 2026-12-01). Other tests, the demo, and processes that tests start run Spark as users do.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(autouse=True)
def expressions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark interprets the expressions of tests of typed tables, instead of compiling them."""
    if "spark" not in request.fixturenames or not request.path.name.startswith(TYPED):
        yield
        return
    conf = request.getfixturevalue("spark").conf
    for name, text in INTERPRETED.items():
        conf.set(name, text)
    yield
    for name in INTERPRETED:
        conf.unset(name)


@pytest.fixture(scope="package")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificate of the broker's listener SASL_SSL."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="package")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[BrokerProcess]:
    safe = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue("broker").both_file,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "connection.failed.authentication.delay.ms": 1,
    }
    with running_broker(tmp_path_factory.mktemp("broker"), {**QUICKLY, **safe}) as running:
        yield running


@pytest.fixture(scope="package")
def ways(broker: BrokerProcess, authority: Authority) -> Ways:
    return ways_in(broker, authority)


@pytest.fixture(scope="package")
def launched(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[ApacheKafka]:
    """Apache Kafka, which may not answer yet: it starts while the session does, where this comes first."""
    side = ApacheKafka(kafka_jars, tmp_path_factory.mktemp("apache") / "kafka")
    side.launch()
    yield side
    side.kill()


@pytest.fixture(scope="package")
def apache(launched: ApacheKafka) -> ApacheKafka:
    launched.listens()
    return launched


@pytest.fixture(scope="package")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a schema registry."""
    with running_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
def pipelines(spark: SparkSession, broker: BrokerProcess) -> Iterator[Pipelines]:
    made = Pipelines(spark, {"kafka.bootstrap.servers": broker.bootstrap}, str(broker.lake))
    yield made
    made.close()


@pytest.fixture
def registered(spark: SparkSession, broker: BrokerProcess, registry: str) -> Iterator[Pipelines]:
    """Pipelines that ask the registry."""
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    made = Pipelines(spark, options, str(broker.lake), SchemaRegistry(registry))
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, free_port: int) -> Iterator[SparkCluster]:
    """Two executors of which processes find the tests, and what is compiled already."""
    shared = {"PYTHONPATH": str(ROOT), "SPARK_HOME": str(quick_home()), "HOME": os.environ["HOME"]}
    with contextlib.ExitStack() as after:
        machines = Machines(tmp_path, after, spark=quick_home(), environment=shared)
        master = machines.start_master(free_port)
        workers = [machines.start_worker(name, master) for name in NAMES]
        yield SparkCluster(
            master=master, environment={**shared, WORKERS: ",".join(map(str, workers))}
        )


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: BrokerProcess) -> Topic:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    # A second try of a test has no topics of the first.
    attempt = getattr(request.node, "execution_count", 1)
    return Topic(broker, f"s-{attempt}-{name}"[:100])
