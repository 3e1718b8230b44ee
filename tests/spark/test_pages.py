"""Spark's part of the pages is run as it stands there, in the session of these tests, and shows what they say."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_conf.session
from spark_conf.catalog import topic_catalog
from spark_conf.system_views import system_views
from tests.command_line import CommandLine
from tests.pages import AVRO_ORDER, ROOT, Block, PageReader, blocks_of, own_blocks
from tests.processes import BrokerProcess
from tests.spark.topics import Topic

TABLE = re.compile(r"(?:[+|].*\n)+")


@pytest.fixture
def orders(broker: BrokerProcess, tmp_path: Path) -> Topic:
    """The topic of docs/get-started/tutorial.md, made by its script."""
    topic = Topic(broker, "orders").create(3)
    (script,) = [
        block
        for block in blocks_of(ROOT / "docs/get-started/tutorial.md")
        if block.title == "orders.py"
    ]
    reader = PageReader(tmp_path, {"127.0.0.1:9092": broker.bootstrap})
    reader.follow(script)
    reader.type("python orders.py", "1000 orders written, 0 not acknowledged\n")
    return topic


def blocks(page: str, language: str) -> list[Block]:
    return [block for block in own_blocks(page, __file__) if block.language == language]


def test_the_pages_of_spark_do_what_they_say(
    spark: SparkSession,
    orders: Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """get-started/spark.md, how-to/exactly-once.md, then Spark's part of decode.md and reference/sql.md."""

    def ours(*_: object, lake: str | None = None) -> SparkSession:
        assert lake is None or system_views(spark, lake)
        return spark

    monkeypatch.setattr(spark_conf.session, "session", ours)
    here = {
        "127.0.0.1:9092": orders.broker.bootstrap,
        '"data/lake"': f'"{orders.broker.lake}"',
        '"data/': f'"{tmp_path}/data/',
    }
    names: dict[str, object] = {"spark": spark}

    def run(block: Block) -> None:
        code = block.code
        for written, used in here.items():
            code = code.replace(written, used)
        exec(compile(code, f"{block.page}:{block.line}", "exec"), names)

    page = "docs/get-started/spark.md"
    for block in blocks(page, "python"):
        run(block)
    shown = TABLE.findall(capsys.readouterr().out)
    assert shown == [block.code for block in blocks(page, "text")]
    assert len(shown) == 2

    (stream,) = blocks("docs/how-to/exactly-once.md", "python")
    run(stream)
    names["query"].awaitTermination()  # type: ignore[attr-defined]
    copied = read(spark, orders, "orders-copy").select("key", "value")
    assert copied.count() == 1000
    large = sum(order["total"] >= 90 for order in made())
    assert read(spark, orders, "large-orders").count() == large > 0

    topic_catalog(spark, orders.broker.bootstrap)
    json_tab, avro = blocks("docs/how-to/decode.md", "python")
    assert eval(json_tab.code, {"spark": spark}).agg({"total": "sum"}).head()[0] == 51987
    (view,) = blocks("docs/how-to/decode.md", "sql")
    spark.sql(view.code)
    assert spark.sql("SELECT sum(order.total) FROM orders_json").head()[0] == 51987  # type: ignore[index]

    Topic(orders.broker, "avro-orders").create(1)
    CommandLine(orders.broker.bootstrap, tmp_path).ok(
        "produce", "avro-orders", typed=AVRO_ORDER + b"\n"
    )
    run(avro)
    assert names["avro_orders"].collect() == [(21, "ada")]  # type: ignore[attr-defined]

    (asked,) = blocks("docs/reference/sql.md", "python")
    run(asked)
    assert "|topic|topic_id|partition|since|" in capsys.readouterr().out.replace(" ", "")


def read(spark: SparkSession, topic: Topic, name: str) -> DataFrame:
    return (
        spark.read.format("kafka_ds")
        .option("kafka.bootstrap.servers", topic.broker.bootstrap)
        .option("subscribe", name)
        .load()
    )


def made() -> list[dict[str, int]]:
    """As the tutorial's script does."""
    chance = random.Random(1)
    found = []
    for number in range(1000):
        chance.choice(["ada", "ben", "cho", "dia"])
        found.append({"order": number, "total": chance.randrange(5, 100)})
    return found
