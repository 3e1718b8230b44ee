"""Reading what is in the lake alone: rate, first byte; against Apache Kafka with its LocalTieredStorage, a folder."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheKafka, OurSide, Side, client, create_topic, ready
from tests.processes import wait_until

RECORDS = 2_000_000
SIZE = 100
PLACES = 300
OURS = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
}
THEIRS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "log.retention.check.interval.ms": 1000,
    "remote.log.manager.task.interval.ms": 1000,
    "log.initial.task.delay.ms": 500,
}
TIERED = {"segment_bytes": 16 << 20, "local_retention_bytes": 1, "remote_storage_enable": "true"}


class Measured:
    """What one side does, run by run."""

    def __init__(self) -> None:
        self.first_time: list[float] = []
        self.again: list[float] = []
        self.reach_p50_ms: list[float] = []
        self.reach_p99_ms: list[float] = []
        self.foreign: list[float] = []


def cold(folder: Path, report: Report, runs: int) -> None:
    """A topic a run, read from its beginning three times; then places of it by lot."""
    ours = OurSide(folder / "ours", OURS)
    mine = _measure(ours, ours.broker.data, runs)
    try:
        lake = ours.broker.lake / "topics" / "cold-0"
        produced = RECORDS * SIZE
        in_lake = _bytes(lake, "**/*.parquet") + _bytes(lake, "_residue/**/*")
        memory = machine.resident_mib(ours.pids())
    finally:
        ours.stop()
    theirs = ApacheKafka(folder / "apache", {**THEIRS, "rsm.config.dir": folder / "remote"})
    try:
        other = _measure(theirs, folder / "apache" / "data", runs)
    finally:
        theirs.stop()
    foreign = statistics.median(mine.foreign + other.foreign)
    for name, unit, us, them, bound in (
        ("consumer reading cold, 100 B", "MB/s", mine.first_time, other.first_time, 1.0),
        ("the same, the third time", "MB/s", mine.again, other.again, 1.0),
    ):
        report.add(
            Figure(
                name=name, unit=unit, ours=us, theirs=them, at_least=bound, foreign_cores=foreign
            )
        )
    report.add(
        Figure(name="consumer reading cold", unit="MB/s", ours=mine.first_time, at_least=200)
    )
    report.add(
        Figure(
            name="first byte of a cold read, p50",
            unit="ms",
            ours=mine.reach_p50_ms,
            theirs=other.reach_p50_ms,
        )
    )
    report.add(
        Figure(name="first byte of a cold read, p99", unit="ms", ours=mine.reach_p99_ms, at_most=20)
    )
    report.add(
        Figure(
            name="first byte of a cold read, p99, both",
            unit="ms",
            ours=mine.reach_p99_ms,
            theirs=other.reach_p99_ms,
        )
    )
    report.add(
        Figure(
            name="bytes in the lake / bytes of records",
            unit="",
            ours=[in_lake / produced],
            at_most=1.0,
        )
    )
    report.add(Figure(name="memory while reading cold, with worker", unit="MiB", ours=[memory]))


def _measure(side: Side, log: Path, runs: int) -> Measured:
    found = Measured()
    side.launch(clean=True)
    ready(side)
    for run in range(runs):
        topic = f"cold-{run}"
        create_topic(side, topic, 1, **TIERED)
        client("produce", side, topic, count=RECORDS, size=SIZE)
        wait_until(
            f"{side.name} to have one segment of {topic} on disk",
            lambda topic=topic: len(list(log.glob(f"{topic}-0/*.log"))) <= 1,  # type: ignore[misc]
            timeout_s=180,
        )
        time.sleep(2)
        with machine.watching(side.pids()) as use:
            rates = [
                client("consume", side, topic, count=RECORDS, size=SIZE)["mb_s"] for _ in range(3)
            ]
            reach = client("reach", side, topic, count=PLACES)
        found.first_time.append(rates[0])
        found.again.append(rates[-1])
        found.reach_p50_ms.append(reach["p50_ms"])
        found.reach_p99_ms.append(reach["p99_ms"])
        found.foreign.append(use.foreign_cores)
    return found


def _bytes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))
