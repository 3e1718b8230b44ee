"""Executors are killed while they read records for typed tables: each record is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.machines import SparkCluster
from tests.spark.topics import Topic
from tests.spark.typed_tables import JSON_TOPIC, errors_of, rows, send

OFFSETS_PER_STEP, STEPS = 10, 6
DEATHS = (0, 3, 5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_record_is_there_once_when_executors_are_killed(
    topic: Topic, tmp_path: Path, cluster: SparkCluster
) -> None:
    topic.create(partitions=2, **JSON_TOPIC)
    sent = [b"nope" if n % 7 == 3 else b'{"n":%d}' % n for n in range(OFFSETS_PER_STEP * STEPS)]
    half = len(sent) // 2
    for partition in (0, 1):
        send(topic, *sent[partition * half :][:half], partition=partition)
    calls = tmp_path / "calls"
    calls.mkdir()
    command = [sys.executable, "-m", "tests.spark.executor_deaths", str(calls)]
    command += [",".join(map(str, DEATHS)), str(OFFSETS_PER_STEP), "pipelines", "run", "--once"]
    command += ["--bootstrap-server", topic.broker.bootstrap, "--lake", str(topic.broker.lake)]
    with (tmp_path / "driver.log").open("ab") as log:
        done = subprocess.run(
            [*command, "--master", cluster.master],
            env={
                **os.environ,
                **cluster.environment,
                "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m pyspark-shell",
            },
            stdout=log,
            stderr=log,
            check=False,
        )
    assert done.returncode == 0, (tmp_path / "driver.log").read_text()[-5000:]
    assert len(list(calls.iterdir())) > max(DEATHS)
    found = rows(topic)
    places = [(row["_partition"], row["_offset"]) for row in found]
    assert places == [(partition, offset) for partition in (0, 1) for offset in range(half)]
    assert [row.get("n") for row in found] == [
        None if value == b"nope" else number for number, value in enumerate(sent)
    ]
    assert len(errors_of(topic)) == sent.count(b"nope")
