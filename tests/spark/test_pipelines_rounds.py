"""The rounds of pipelines: turns, what an idle topic costs, how large a step is, and a Spark that has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from kafka_ds.client.admin import Admin
from kafka_ds.delta.store.store import Store
from kafka_ds.errors import OptionError
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import deletions, progress, typed_table
from spark_conf.pipelines import pipeline as pipeline_module
from spark_conf.pipelines import pipelines as pipelines_module
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.typed_table import write
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.spark.java import QUICK_JAVA
from tests.spark.topics import Topic
from tests.spark.typed_tables import JSON_TOPIC, alter, errors_of, keep, rows, send


class CountedStore:
    """A store that counts the requests to it."""

    def __init__(self, store: Store, requests: Counter[str]) -> None:
        self._store = store
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        self._requests[name] += 1
        return getattr(self._store, name)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that has no other test's topics."""
    with running_broker(tmp_path / "data", {"lake.max.lag.ms": 300}) as running:
        yield running


@pytest.fixture
def alone(spark: SparkSession, own: BrokerProcess) -> Iterator[Pipelines]:
    """The pipelines of that broker."""
    with closing(_pipelines(spark, own)) as made:
        yield made


def _pipelines(spark: SparkSession, broker: BrokerProcess) -> Pipelines:
    return Pipelines(spark, {"kafka.bootstrap.servers": broker.bootstrap}, str(broker.lake))


def steps(topic: Topic) -> list[int]:
    """How many offsets each step had, the newest first."""
    path = topic.broker.lake / "tables" / topic.name
    found = (TableStep.parse(each.get("userMetadata")) for each in DeltaTable(path).history())
    return [each.offsets for each in found if each is not None]


@pytest.mark.timeout(300)
def test_an_idle_topic_costs_no_request_to_the_store(
    spark: SparkSession, own: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(own, "idle").create(partitions=2, **JSON_TOPIC)
    send(topic, b'{"n":1}')
    requests: Counter[str] = Counter()
    opened = pipelines_module.open_store
    monkeypatch.setattr(
        pipelines_module, "open_store", lambda uri: CountedStore(opened(uri), requests)
    )
    with closing(_pipelines(spark, own)) as alone:
        _check_requests(alone, topic, requests, monkeypatch)


def _check_requests(
    alone: Pipelines, topic: Topic, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "ERASED_S", 1e9)
    asked: list[object] = []
    settings = Admin.topic_settings

    def told(self: Admin, *given: Any) -> Any:
        asked.append(given)
        return settings(self, *given)

    monkeypatch.setattr(Admin, "topic_settings", told)
    monkeypatch.setattr(pipelines_module, "SETTINGS_S", 1e9)
    monkeypatch.setattr(pipeline_module, "SETTLED_S", 1e9)
    # The step, and then that there is no other one.
    for _ in range(2):
        assert alone.run_once(by_turns=True) == []
    assert rows(topic)
    requests.clear()
    asked.clear()
    for _ in range(3):
        assert alone.run_once(by_turns=True) == []
    assert (requests, asked) == (Counter(), [])
    # A new topic, and a new setting when the last answer is too old, are seen.
    Topic(topic.broker, "new").create(partitions=1, **JSON_TOPIC)
    alone.run_once(by_turns=True)
    assert len(asked) == 1
    # So is what another one did to the table, when it was not looked at for long enough.
    monkeypatch.setattr(pipeline_module, "SETTLED_S", 0.0)
    alone.run_once(by_turns=True)
    assert requests
    monkeypatch.setattr(pipelines_module, "SETTINGS_S", 0.0)
    alter(topic, "lake.table.value.format", "none")
    send(topic, b'{"n":2}')
    alone.run_once(by_turns=True)
    assert len(rows(topic)) == 1


def test_another_folder_is_not_taken_for_the_lake(
    spark: SparkSession, own: BrokerProcess, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="contains no tables of a cluster"):
        Pipelines(spark, {"kafka.bootstrap.servers": own.bootstrap}, str(tmp_path))


@pytest.mark.timeout(300)
def test_a_backlog_lets_the_others_have_their_turns(
    alone: Pipelines, own: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "OFFSETS_PER_STEP", 10)
    large = Topic(own, "a-backlog").create(partitions=1, **JSON_TOPIC)
    small = Topic(own, "b-small").create(partitions=1, **JSON_TOPIC)
    send(large, *[b'{"n":1}'] * 40)
    send(small, b'{"n":1}')
    alone.run_once(by_turns=True)
    assert (len(rows(large)), len(rows(small))) == (10, 1)
    send(small, b'{"n":1}')
    alone.run_once(by_turns=True)
    assert (len(rows(large)), len(rows(small))) == (15, 2), "both were behind, and share a step"
    alone.run_once()
    assert (len(rows(large)), len(rows(small))) == (40, 2)


@pytest.mark.timeout(300)
def test_steps_have_a_limited_number_of_bytes(
    pipelines: Pipelines, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "OFFSETS_OF_FIRST_STEP", 5)
    monkeypatch.setattr(progress, "BYTES_PER_STEP", 1_000_000)
    random = Random(7)
    topic.create(partitions=1, **{**JSON_TOPIC, "lake.table.value.format": "string"})
    # Spark compresses what it caches.
    send(topic, *[random.randbytes(50_000).hex().encode() for _ in range(60)])
    keep(pipelines, topic)
    *later, first = steps(topic)
    assert first == 5
    assert sum(later) == 55
    assert max(later) <= 20

    def fails(rows: DataFrame, path: str, step: TableStep) -> None:
        if not path.endswith("__errors"):
            raise MemoryError
        write(rows, path, step)

    send(topic, b"\xff", b"1", b"\xff")
    with monkeypatch.context() as patch:
        patch.setattr(typed_table, "write", fails)
        with pytest.raises(MemoryError):
            keep(pipelines, topic)
    assert (len(rows(topic)), [offset for offset, _ in errors_of(topic)]) == (60, [60, 62])
    keep(pipelines, topic)
    assert steps(topic)[:2] == [2, 1], "the errors that are there do not keep it as large"
    assert (len(rows(topic)), [offset for offset, _ in errors_of(topic)]) == (63, [60, 62])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_whose_jvm_is_killed_ends(own: BrokerProcess, tmp_path: Path) -> None:
    topic = Topic(own, "orders").create(partitions=1, **JSON_TOPIC)
    send(topic, b'{"n":1}')
    words = ["--bootstrap-server", own.bootstrap, "--lake", str(own.lake)]
    log = tmp_path / "pipelines.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "spark_conf.pipelines.main", *words],
            stdout=output,
            stderr=output,
            env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA},
        ) as running,
    ):
        try:
            log_of_table = own.lake / "tables" / topic.name / "_delta_log"
            wait_until("the table", lambda: list(log_of_table.glob("*.json")))
            (jvm,) = children(running.pid)
            os.kill(jvm, signal.SIGKILL)
            assert running.wait(60) == 1
        finally:
            running.kill()
    (said,) = (line for line in log.read_text().splitlines() if " ERROR " in line)
    assert "Spark has ended: its JVM does not answer" in said


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [
        int(number)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for number in (task / "children").read_text().split()
    ]
