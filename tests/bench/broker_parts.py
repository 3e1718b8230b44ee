"""Throughput, CPU, memory, start and latency of one broker against Apache Kafka's."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tests.bench import machine
from tests.bench.rates import SETTLE_S, throughput_of
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, OurSide, client, create_topic, ready

RECORDS = {100: 1_000_000, 1024: 200_000, 10_240: 40_000}
FAN_OUT = {"count": 500_000, "size": 1024}
READERS, PARTITIONS = 10, 6


def pair(folder: Path) -> tuple[OurSide, ApacheSide]:
    return OurSide(folder / "ours"), ApacheSide(folder / "apache")


def throughput(folder: Path, report: Report, runs: int) -> None:
    """Produce and consume, acks=all, one partition; both brokers up, one at work at a time, in turn."""
    sides = pair(folder)
    try:
        for side in sides:
            side.launch()
            ready(side)
        idle = {side.name: machine.resident_mib(side.pids()[:1]) for side in sides}
        floor = [machine.bare_write_s_per_gb(folder) for _ in range(runs)]
        report.add(
            Figure(
                name="(a bare write to a new file, CPU: both sides pay it)", unit="s/GB", ours=floor
            )
        )
        for size, count in RECORDS.items():
            throughput_of(sides, report, size, count, runs)
        loaded = {side.name: machine.resident_mib(side.pids()) for side in sides}
        ours, theirs = (side.name for side in sides)
        report.add(
            Figure(
                name="memory, broker alone, idle",
                unit="MiB",
                ours=[idle[ours]],
                theirs=[idle[theirs]],
                at_most=0.2,
            )
        )
        report.add(
            Figure(
                name="memory after load, broker and worker",
                unit="MiB",
                ours=[loaded[ours]],
                theirs=[loaded[theirs]],
                at_most=0.35,
            )
        )
    finally:
        for side in sides:
            side.stop()


def fan_out(folder: Path, report: Report, runs: int) -> None:
    """Ten readers of the same log at the same time, which lies in the page cache."""
    sides = pair(folder)
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    costs: dict[str, list[float]] = {side.name: [] for side in sides}
    background: list[float] = []
    try:
        for side in sides:
            side.launch()
            ready(side)
            create_topic(side, "read", PARTITIONS)
            client("produce", side, "read", **FAN_OUT)
        for run in range(runs + 1):
            for side in sides:
                time.sleep(SETTLE_S)
                with machine.watching(side.pids()) as use:
                    result = client(
                        "fan_out", side, "read", readers=READERS, partitions=PARTITIONS, **FAN_OUT
                    )
                if run:
                    rates[side.name].append(result["mb_s"])
                    costs[side.name].append(
                        use.cpu_s / (READERS * FAN_OUT["count"] * FAN_OUT["size"] / 1e9)
                    )
                    background.append(use.background_load)
    finally:
        for side in sides:
            side.stop()
    cores = statistics.median(background)
    for name, unit, found, bounds in (
        ("", "MB/s", rates, {"at_least": 1.0}),
        (", broker CPU", "s/GB", costs, {"at_most": 1.0}),
    ):
        ours, theirs = found.values()
        report.add(
            Figure(
                name=f"{READERS} readers of a log, 1 KiB{name}",
                unit=unit,
                ours=ours,
                theirs=theirs,
                background_load=cores,
                **bounds,
            )
        )


def latency(folder: Path, report: Report, runs: int) -> None:
    """One record at a time."""
    sides = pair(folder)
    found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    try:
        for side in sides:
            side.launch()
            ready(side)
            create_topic(side, "pingpong")
        for run in range(runs + 1):
            for side in sides:
                result = client("pingpong", side, "pingpong", count=3000, size=100)
                if run:
                    found[side.name].append(result)
    finally:
        for side in sides:
            side.stop()
    ours, theirs = (side.name for side in sides)
    for cut in ("p50_us", "p99_us"):
        report.add(
            Figure(
                name=f"latency, one record at a time, {cut[:3]}",
                unit="us",
                ours=[r[cut] for r in found[ours]],
                theirs=[r[cut] for r in found[theirs]],
                at_most=1.0,
            )
        )


def start(folder: Path, report: Report, runs: int) -> None:
    """From the start of the process to the first acknowledged record, on formatted, empty disks."""
    times: dict[str, list[float]] = {}
    for run in range(runs + 1):
        for side in pair(folder / str(run)):
            began = time.time()
            side.launch()
            at = client("first", side, "first")["at"]
            side.stop()
            if run:
                times.setdefault(side.name, []).append(at - began)
    ours, theirs = times.values()
    report.add(
        Figure(
            name="process start to first acknowledged record",
            unit="s",
            ours=ours,
            theirs=theirs,
            at_most=0.5,
        )
    )
