"""The scripts of docs/examples, in the session of these tests, on a topic of ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.topics import Topic

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def run(name: str, *words: str) -> dict[str, Any]:
    """What the script's main gives."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.main(*words)
    return found


@pytest.fixture
def kept(spark: SparkSession) -> Iterator[SparkSession]:
    """The scripts ask for a session of their own, and get this one, with their settings."""
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", shuffles)


def test_the_examples_do_what_they_say(kept: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create().produce(60)
    where = (topic.broker.bootstrap, topic.name)
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"batch", "stream", "sql"}
    assert run("batch", *where) == {"everything": 60, "first": 10, "scanned": 60, "later": 40}
    assert run("stream", *where, str(tmp_path))["copied"] == 60
    assert run("sql", *where) == {"rows": 40, "last": 29}
