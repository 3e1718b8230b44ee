"""Spark's driver and executors are killed while they write a stream, speculation on: each row is there once.

Where in the protocol they die is chance here; `tests/integration/test_exactly_once_sink.py` has all places in turn.
``KAFKA_DS_SIM_SEEDS`` says how many micro-batches there are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.model_runs import examples
from tests.processes import BrokerProcess, wait_until
from tests.spark.topics import Topic

ROWS_A_BATCH = 20
BATCHES_A_LIFE = 4
STARTS = 5


@contextlib.contextmanager
def driver(
    broker: BrokerProcess, checkpoint: Path, origin: str, targets: list[str], tasks: int
) -> Iterator[subprocess.Popen[bytes]]:
    """The application as a group of processes, of which none is left at the end."""
    words = [
        sys.executable,
        "-m",
        "tests.spark.sink_driver",
        "--bootstrap",
        broker.bootstrap,
        "--origin",
        origin,
    ]
    words += [
        "--targets",
        ",".join(targets),
        "--checkpoint",
        str(checkpoint),
        "--rows",
        str(ROWS_A_BATCH),
    ]
    with (checkpoint.parent / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [*words, "--tasks", str(tasks)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def executors(group: int) -> list[int]:
    """The JVMs of the group that run tasks."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (folder / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in words and os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
    return found


def done(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*"))) if checkpoint.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_each_row_is_there_once_whoever_is_killed(
    broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    batches, random = examples(8), Random(3)
    lives = max(2, batches // BATCHES_A_LIFE)
    origin = Topic(broker, f"{topic.name}-origin").create(partitions=3)
    origin.produce(batches * ROWS_A_BATCH, partitions=3)
    targets = [Topic(broker, f"{topic.name}-{n}").create(partitions=3).name for n in range(2)]
    checkpoint = tmp_path / "checkpoint"
    killed, status = 0, None
    for start in range(lives + STARTS):
        # Another number of tasks each time: a batch that is played again is spread otherwise.
        with driver(broker, checkpoint, origin.name, targets, tasks=2 + start % 3) as process:
            if killed == lives:
                status = process.wait(3600)
                if status == 0:
                    break
            elif goes_on(process, checkpoint):
                time.sleep(random.random())
                if running := executors(process.pid):
                    os.kill(random.choice(running), signal.SIGKILL)
                # The stream bears that, and then its driver dies.
                killed += goes_on(process, checkpoint)
                time.sleep(random.random() * 2)
    log = (tmp_path / "driver.log").read_text()
    assert (killed, status) == (lives, 0), log[-3000:]
    # Spark gives a source's process 10 s to start, which a busy machine exceeds.
    assert start - lives <= log.count("failed to connect back"), log[-3000:]
    assert Counter(committed(broker, targets)) == Counter(
        row["value"] for row in origin.rows.values()
    )


def goes_on(process: subprocess.Popen[bytes], checkpoint: Path) -> bool:
    """Whether the driver comes to the end of a further micro-batch; not, where it ends by itself."""
    goal = done(checkpoint) + 1
    wait_until(
        "a micro-batch to be written",
        lambda: process.poll() is not None or done(checkpoint) >= goal,
        timeout_s=900,
    )
    return process.poll() is None


def committed(broker: BrokerProcess, targets: list[str]) -> Iterator[bytes | None]:
    """What a read_committed consumer sees, to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "nobody",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    places = [TopicPartition(topic, p, 0) for topic in targets for p in range(3)]
    consumer.assign(places)
    ended = set()
    while len(ended) < len(places):
        message = consumer.poll(120)
        assert message is not None, "an end of each partition"
        if message.error() is None:
            yield message.value()
        else:
            ended.add((message.topic(), message.partition()))
    consumer.close()
