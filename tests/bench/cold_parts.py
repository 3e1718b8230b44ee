"""Reading records that are only in the lake: rate and first byte, against Apache Kafka with LocalTieredStorage."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, BenchSide, OurSide, client, create_topic, ready
from tests.processes import wait_until

# Of a topic of small records, and of one of larger ones; both are read whole.
RECORDS = {100: 1_000_000, 1024: 150_000}
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
        self.first_time: dict[int, list[float]] = {size: [] for size in RECORDS}
        self.again: dict[int, list[float]] = {size: [] for size in RECORDS}
        self.cpu_s_a_gb: dict[int, list[float]] = {size: [] for size in RECORDS}
        self.client: list[float] = []
        self.reach_p50_ms: list[float] = []
        self.reach_p99_ms: list[float] = []
        self.background: list[float] = []


def cold(folder: Path, report: Report, runs: int) -> None:
    """Topics of a run, read from their beginning three times by who makes no objects of records; then places by lot."""
    ours = OurSide(folder / "ours", OURS)
    mine = _measure(ours, ours.data, runs)
    try:
        lake = ours.lake / "topics" / "cold-100-0"
        produced = RECORDS[100] * 100
        in_lake = _bytes(lake, "**/*.parquet") + _bytes(lake, "_residue/**/*")
        memory = machine.resident_mib(ours.pids())
    finally:
        ours.stop()
    # Of 4.4.0 Maven Central lacks the jar with LocalTieredStorage.
    settings = {**THEIRS, "rsm.config.dir": folder / "remote"}
    theirs = ApacheSide(folder / "apache", settings, jar_set="kafka")
    try:
        other = _measure(theirs, folder / "apache" / "data", runs)
    finally:
        theirs.stop()
    _report(report, mine, other)
    report.add(
        Figure(
            name="bytes in the lake / bytes of records",
            unit="",
            ours=[in_lake / produced],
            at_most=1.0,
        )
    )
    report.add(Figure(name="memory while reading cold, with worker", unit="MiB", ours=[memory]))


def _report(report: Report, mine: Measured, other: Measured) -> None:
    """The rates, and how long a first byte takes."""
    load = statistics.median(mine.background + other.background)

    def add(
        name: str, unit: str, ours: list[float], theirs: list[float] | None = None, **more: float
    ) -> None:
        report.add(Figure(name=name, unit=unit, ours=ours, theirs=theirs, **more))

    for size in RECORDS:
        name, us, them = f"consumer reading cold, {size} B", mine.first_time, other.first_time
        add(name, "MB/s", us[size], them[size], at_least=1.5, background_load=load)
        again = mine.again[size], other.again[size]
        add(f"{name}, third time", "MB/s", *again, at_least=1.0, background_load=load)
        add(f"{name}, alone", "MB/s", us[size], at_least=200, background_load=load)
        cpu = mine.cpu_s_a_gb[size], other.cpu_s_a_gb[size]
        name = f"reading cold, {size} B, broker CPU"
        add(name, "s/GB", *cpu, at_most=0.6, background_load=load)
    name = "the same by librdkafka in Python, 100 B"
    add(name, "MB/s", mine.client, other.client, background_load=load)
    name, p99 = "first byte of a cold read", mine.reach_p99_ms
    add(f"{name}, p50", "ms", mine.reach_p50_ms, other.reach_p50_ms)
    add(f"{name}, p99", "ms", p99, at_most=20)
    add(f"{name}, p99, both", "ms", p99, other.reach_p99_ms)


def _measure(side: BenchSide, log: Path, runs: int) -> Measured:
    found = Measured()
    side.launch()
    ready(side)
    for run in range(runs):
        for size, count in RECORDS.items():
            _tiered(side, log, f"cold-{size}-{run}", size, count)
        time.sleep(2)
        with machine.watching(side.pids()) as use:
            for size, count in RECORDS.items():
                _drain(side, found, f"cold-{size}-{run}", size, count)
            small = f"cold-100-{run}"
            reach = client("reach", side, small, count=PLACES)
            read = client("consume", side, small, count=RECORDS[100], size=100)
        found.client.append(read["mb_s"])
        found.reach_p50_ms.append(reach["p50_ms"])
        found.reach_p99_ms.append(reach["p99_ms"])
        found.background.append(use.background_load)
    return found


def _tiered(side: BenchSide, log: Path, topic: str, size: int, count: int) -> None:
    """Records that are only in the lake, except those of the active segment."""
    create_topic(side, topic, 1, **TIERED)
    client("produce", side, topic, count=count, size=size)
    wait_until(
        f"{side.name} to have one segment of {topic} on disk",
        lambda: len(list(log.glob(f"{topic}-0/*.log"))) <= 1,
        timeout_s=180,
    )


def _drain(side: BenchSide, found: Measured, topic: str, size: int, count: int) -> None:
    rates = []
    for time_of_reading in range(3):
        with machine.watching(side.pids()) as use:
            rates.append(client("drain", side, topic, count=count, size=size)["mb_s"])
        if not time_of_reading:
            found.cpu_s_a_gb[size].append(use.cpu_s / (count * size / 1e9))
    found.first_time[size].append(rates[0])
    found.again[size].append(rates[-1])


def _bytes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))
