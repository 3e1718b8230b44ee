"""Spark's driver and executors die while they write a stream, speculation on: each row is there once.

Each micro-batch dies twice: its commit after the next step in turn, and then the retry (`dying_sink` has the plan).
``KAFKA_DS_SIM_SEEDS`` is the number of micro-batches: 143 combine each first death with each second one; our own goal
is 200. ``KAFKA_DS_TEST_BEGIN`` says where in the plan a run begins: runs of 50 from 0, 50, 100 and 150 have the same
deaths as one run of 200.

The two executors have addresses of their own. With one address, as in Spark's "local-cluster", speculation does
nothing: Spark starts a second copy of a task only on a host where the task has not run yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.sink_life import PARTITIONS, read_all
from tests.model_runs import examples
from tests.processes import BrokerProcess
from tests.spark.dying_sink import (
    BEGIN,
    COPIES,
    DEATHS,
    all_die,
    finished,
    has_copy,
)
from tests.spark.machines import SparkCluster
from tests.spark.topics import Topic

ROWS_A_BATCH = 21  # As many of each of the origin's partitions.


@contextlib.contextmanager
def driver(
    folder: Path, arguments: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the application as a process group; no process of it is left at the end."""
    words = [sys.executable, "-m", "tests.spark.sink_driver"]
    for name, value in arguments.items():
        words += [f"--{name}", str(value)]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            words, stdout=log, stderr=log, start_new_session=True, env=environment, cwd=folder
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_each_row_is_there_once_whoever_is_killed(
    broker: BrokerProcess, topic: Topic, tmp_path: Path, cluster: SparkCluster
) -> None:
    batches, begin = examples(8), int(os.environ.get(BEGIN, "0"))
    origin = Topic(broker, f"{topic.name}-origin").create(partitions=3)
    origin.produce(batches * ROWS_A_BATCH, partitions=3)
    targets = [
        Topic(broker, f"{topic.name}-{n}").create(partitions=PARTITIONS).name for n in range(2)
    ]
    checkpoint, deaths, copies = (tmp_path / name for name in ("checkpoint", "deaths", "copies"))
    deaths.mkdir()
    copies.mkdir()
    arguments = {
        "master": cluster.master,
        "bootstrap": broker.bootstrap,
        "origin": origin.name,
        "targets": ",".join(targets),
        "checkpoint": checkpoint,
        "rows": ROWS_A_BATCH,
    }
    environment = {
        **os.environ,
        **cluster.environment,
        DEATHS: str(deaths),
        COPIES: str(copies),
        BEGIN: str(begin),
    }
    killed = 0
    while True:
        with driver(tmp_path, arguments, environment) as process:
            status = process.wait()
        if status == 0:
            break
        assert status == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
        killed += 1
        assert killed <= batches
    written = finished(checkpoint)
    assert written >= batches
    died = [path.read_text().split() for path in deaths.iterdir()]
    assert len(died) == 2 * written
    assert [words[2:] for words in died].count(["all"]) == killed
    copied = {int(path.name.partition("-")[0]) for path in copies.glob("*-begun-*")}
    assert not list(copies.glob("*-alone"))
    # A task that is slow for another reason may have a copy as well.
    assert copied >= set(filter(has_copy, range(begin, begin + written)))
    assert killed == sum(map(all_die, range(begin, begin + written)))
    read = Counter((each.key(), each.value()) for each in read_all(broker.bootstrap, targets))
    assert read == Counter((row["key"], row["value"]) for row in origin.rows.values())
