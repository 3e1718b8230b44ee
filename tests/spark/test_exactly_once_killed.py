"""Spark's driver and executors die while they write a stream, speculation on: each row is there once.

Each micro-batch's commit dies behind its next step in turn, and what follows it dies once more (`dying_sink` has the
plan). ``KAFKA_DS_SIM_SEEDS`` says how many micro-batches there are: 143 have each of the first deaths with each of the
second ones, 200 are the measure that we have set ourselves.
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
from tests.spark.dying_sink import ALL_DIE_EVERY, DEATHS, finished
from tests.spark.topics import Topic

ROOT = Path(__file__).resolve().parents[2]
ROWS_A_BATCH = 20


@contextlib.contextmanager
def driver(folder: Path, arguments: Mapping[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """The application as a group of processes, of which none is left at the end."""
    words = [sys.executable, "-m", "tests.spark.sink_driver"]
    for name, value in arguments.items():
        words += [f"--{name}", str(value)]
    # Executors run in folders of their own, and have to find the sink that dies.
    environment = {**os.environ, DEATHS: str(folder / "deaths"), "PYTHONPATH": str(ROOT)}
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
    broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    batches = examples(8)
    origin = Topic(broker, f"{topic.name}-origin").create(partitions=3)
    origin.produce(batches * ROWS_A_BATCH, partitions=3)
    targets = [
        Topic(broker, f"{topic.name}-{n}").create(partitions=PARTITIONS).name for n in range(2)
    ]
    checkpoint, deaths = tmp_path / "checkpoint", tmp_path / "deaths"
    deaths.mkdir()
    arguments = {
        "bootstrap": broker.bootstrap,
        "origin": origin.name,
        "targets": ",".join(targets),
        "checkpoint": checkpoint,
        "rows": ROWS_A_BATCH,
    }
    killed = 0
    while True:
        with driver(tmp_path, arguments) as process:
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
    assert [words[2:] for words in died].count(["all"]) == written // ALL_DIE_EVERY == killed
    assert Counter(message.value() for message in read_all(broker.bootstrap, targets)) == Counter(
        row["value"] for row in origin.rows.values()
    )
