"""What pages give to `spark-submit` and `spark-sql`: run as it stands there, each in a Java process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.command_line import CommandLine
from tests.pages import ROOT, Block, PageReader, own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.s3_server import BUCKET, S3Server
from tests.spark.java import QUICK_JAVA
from tests.spark.topics import Topic
from tests.spark.typed_tables import rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

URI = f"s3://{BUCKET}/submitted"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which the pages' relative paths are there."""
    for name in (".venv", ".cache", "spark_conf", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def block_with(page: str, part: str) -> Block:
    (found,) = (b for b in own_blocks(page, __file__) if b.language == "sh" and part in b.code)
    return found


def submits(folder: Path, page: str, part: str, instead: dict[str, str], **more: str) -> str:
    """What the block prints."""
    environment = {
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
    block = block_with(page, part)
    done = PageReader(folder, instead, **environment).run(f"set -e\n{block.code}", 600)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "data", {"lake.max.lag.ms": 300}) as broker:
        kafka_ds = CommandLine(broker.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--config", "lake.table.value.format=json")
        kafka_ds.ok("produce", "orders", typed='{"total":1}\n{"total":2}\n')
        wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lake_rows"] == 2)
        yield broker


def test_a_job_is_submitted(checkout: Path, orders: BrokerProcess) -> None:
    job = f"docs/examples/batch.py {orders.bootstrap} orders"
    told = submits(checkout, "docs/reference/spark.md", "JOB", {" JOB": f" {job}"})
    assert "{'everything': 2, 'first': 2, 'scanned': 2, 'later': 0}" in told


def test_the_pipelines_are_submitted(checkout: Path, orders: BrokerProcess) -> None:
    instead = {"broker-1:9092": orders.bootstrap, "s3://bucket/lake": "data/lake --once"}
    submits(checkout, "docs/how-to/typed-tables.md", "spark-submit", instead)
    assert [row["total"] for row in rows(Topic(orders, "orders"))] == [1, 2]


def test_json_becomes_columns(tmp_path: Path) -> None:
    """As a reader follows the page after its blocks that install, and start a broker."""
    with running_broker(tmp_path / "broker", {"lake.uri": tmp_path / "data/lake"}) as broker:
        reader = PageReader(
            tmp_path,
            {"127.0.0.1:9092": broker.bootstrap},
            KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap,
            KAFKA_DS_JARS=str(ROOT / ".cache" / "jars"),
            PYTHONPATH=str(ROOT),
            JDK_JAVA_OPTIONS=QUICK_JAVA,
        )
        for block in own_blocks("docs/get-started/columns.md", __file__):
            reader.follow(block, 400)


def test_a_declarative_pipeline_follows_a_topic(checkout: Path, orders: BrokerProcess) -> None:
    """Spark 4.2 ends with status 1 after a complete run that reads by a source in Python."""
    page = "docs/how-to/declarative-pipelines.md"
    CommandLine(orders.bootstrap, checkout).ok(
        "produce", "orders", typed='{"customer":"ada","total":5}\n{"customer":"ada","total":7}\n'
    )
    (checkout / "transformations").mkdir()
    for block in own_blocks(page, __file__):
        if block.title:
            code = block.code.replace("127.0.0.1:9092", orders.bootstrap)
            code = code.replace("/srv/pipelines", str(checkout / "storage"))
            (checkout / block.title).write_text(code)
    instead = {
        "spark-pipelines run": "spark-pipelines run 2>&1",
        "spec spark-pipeline.yml": "spec spark-pipeline.yml || true",
    }
    told = submits(checkout, page, "spark-pipelines", instead)
    assert "Run is COMPLETED" in told, told
    found = DeltaTable(checkout / "spark-warehouse" / "totals").to_pyarrow_table().to_pylist()
    assert {row["customer"]: row["total"] for row in found} == {None: 3, "ada": 12}


def test_spark_sql_reads_a_lake_on_s3(checkout: Path, s3_server: S3Server) -> None:
    s3 = s3_server.environment
    with running_broker(
        checkout / "broker", {"lake.uri": URI, "lake.max.lag.ms": 300}, s3
    ) as broker:
        kafka_ds = CommandLine(broker.bootstrap, checkout, **s3)
        kafka_ds.ok("produce", "orders", typed="a\nb\n")
        wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lake_rows"] == 2)
    table = URI.replace("s3:", "s3a:") + "/topics/orders"
    query = f"SELECT 4000 + count(*) FROM delta.`{table}`;"
    jars = 'paste -sd,)"'
    instead = {jars: f"{jars} <<< '{query}'"}
    told = submits(checkout, "docs/reference/spark.md", "spark-sql", instead, **s3)
    assert "4002" in told
