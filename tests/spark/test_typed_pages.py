"""docs/how-to/typed-tables.md, and what docs/reference/cli.md has for Spark: run as it is, in the tests' session."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_conf.session
from broker.cli.main import program
from spark_conf.pipelines import main
from spark_conf.pipelines.typed_table import NO_KEY
from tests.command_line import CommandLine
from tests.pages import ROOT, blocks_of, own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.spark.schema_registry import Sender
from tests.spark.topics import Topic
from tests.spark.typed_tables import rows

JSON = '{"customer":"ada","total":2}\n{"customer":"ben","total":3}\n{"customer":"ada","total":5}\nnope\n'
SCHEMA = """{"type":"record","name":"Order","fields":[
    {"name":"customer","type":"string"},{"name":"total","type":"int"}]}"""

Type = Callable[[str], None]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """A broker whose lake is the page's, with no other test's topics."""
    monkeypatch.chdir(tmp_path)
    with running_broker(tmp_path / "data", {"lake.max.lag.ms": 500}) as running:
        yield running


@pytest.fixture
def types(
    spark: SparkSession, own: BrokerProcess, registry: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Type]:
    """Runs a line with `kafka-ds`, which finds the tests' session."""
    monkeypatch.setattr(main, "spark_session", lambda *_: spark)
    monkeypatch.setattr(spark_conf.session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setenv("KAFKA_DS_BOOTSTRAP_SERVER", own.bootstrap)
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    here = {
        "broker-1:9092": own.bootstrap,
        "s3://bucket/lake": "data/lake",
        "http://localhost:8081": registry,
    }

    def run(line: str) -> None:
        for written, used in here.items():
            line = line.replace(written, used)
        words = shlex.split(line, comments=True)
        assert words.pop(0) == "kafka-ds"
        assert not program.main(words, standalone_mode=False), line

    yield run
    for each, handler in handlers.items():
        signal.signal(each, handler)


def until(topic: Topic, count: int) -> None:
    """Ends the `pipelines run` of this process once the table has so many rows."""

    def end() -> None:
        wait_until("the rows", lambda: len(rows(topic)) == count)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()


def code_of_the_page(language: str) -> list[str]:
    """The page's blocks of a language."""
    blocks = own_blocks("docs/how-to/typed-tables.md", __file__)
    return [each.code for each in blocks if each.language == language]


def of_the_command() -> list[str]:
    """What docs/reference/cli.md has for Spark."""
    sections = [
        block.code.splitlines()
        for block in blocks_of(ROOT / "docs/reference/cli.md")
        if block.language == "sh"
    ]
    pipelines = [section for section in sections if any(" pipelines " in line for line in section)]
    by_spark = [line for section in sections for line in section if " --spark " in line]
    return [*sum(pipelines, []), *by_spark]


@pytest.mark.timeout(600)
def test_the_page_of_typed_tables_does_what_it_says(
    spark: SparkSession,
    own: BrokerProcess,
    types: Type,
    registry: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka_ds = CommandLine(own.bootstrap, tmp_path)
    orders = Topic(own, "orders").create(partitions=1)
    scripts = [each.replace("\\\n", " ").splitlines() for each in code_of_the_page("sh")]
    (json,), (once, endless), (by_sql,), (partitioned,), (types_of,), *after = scripts
    (avro, with_registry), (history,), (text, replay) = after
    totals, changes, reasons = (
        each.replace("/path/to/data/lake", str(own.lake)) for each in code_of_the_page("sql")
    )
    types(json)
    kafka_ds.ok("produce", "orders", typed=JSON)
    types(once)
    assert [row.get("total") for row in rows(orders)] == [2, 3, 5, None]
    kafka_ds.ok("produce", "orders", typed='{"customer":"ben","total":1}\n')
    until(orders, 5)
    types(endless)
    assert set(spark.sql(totals).collect()) == {(None, None), ("ada", 7), ("ben", 4)}
    capsys.readouterr()
    types(f"{by_sql} --json".replace("data/lake", str(own.lake)))
    printed = {(row["customer"], row["total"]) for row in loads(capsys.readouterr().out)}
    assert printed == {(None, None), ("ada", 7), ("ben", 4)}
    (newest,) = code_of_the_page("python")
    seen: dict[str, Any] = {"spark": spark}
    exec(newest.replace("127.0.0.1:9092", own.bootstrap), seen)
    assert seen["orders"].count() == 5

    for line in of_the_command():
        if " --once " not in line and "run" in line:
            kafka_ds.ok("produce", "orders", typed='{"customer":"dia","total":8}\n')
            until(orders, 6)
        types(line)

    types(avro)
    sender = Sender(orders, registry)
    sender.send((b"cho", sender.framed(SCHEMA, {"customer": "cho", "total": 9})))
    until(orders, 7)
    types(with_registry)
    assert (rows(orders)[6]["_key"], rows(orders)[6]["total"]) == ("cho", 9)

    # Made anew as one of current state, of JSON again.
    types("kafka-ds topic alter orders --config lake.table.mode=current")
    for each in (json, types_of, partitioned):
        types(each)
    for table in ("orders", "orders__errors"):
        shutil.rmtree(own.lake / "tables" / table)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    of_ada = 'ada;{"customer":"ada","total":1}\n'
    kafka_ds.ok("produce", "orders", "--key-separator", ";", typed=of_ada)
    types(once)
    kafka_ds.ok("produce", "orders", "--key-separator", ";", typed=of_ada)
    types(once)
    columns = spark.read.format("delta").load(str(own.lake / "tables" / "orders")).columns
    assert {"price", "pos", "tags", "_date"} <= {*columns}
    changed = {(row[0], row[1]) for row in spark.sql(changes).collect()}
    assert changed >= {("ada", "update_preimage"), ("ada", "update_postimage")}
    told = {row["reason"]: row["records"] for row in spark.sql(reasons).collect()}
    not_json = "the value is not JSON"
    assert told == {NO_KEY: 5, not_json: 1, f"{not_json}; {NO_KEY}": 1}
    kafka_ds.ok("topic", "create", "accounts", "--config", "cleanup.policy=compact")
    types(history)
    types(text)
    types(replay)
    assert capsys.readouterr().out.endswith("replayed into the typed table of orders: 1 record\n")
