"""How fast two sides move records, and what it costs them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import Running, client, create_topic

# What a side has been asked to do settles before it is measured.
SETTLE_S = 1.0


def throughput_of(
    sides: Sequence[Running],
    report: Report,
    size: int,
    count: int,
    runs: int,
    *,
    kinds: Sequence[str] = ("produce", "consume"),
    label: str = "",
    partitions: int = 1,
    replicas: int = 1,
    settle_s: float = SETTLE_S,
    rate_at_least: float | None = 1.0,
    cpu_at_most: float = 0.5,
) -> None:
    """Ours and theirs in turn, one at work at a time: records a second and CPU per GB, as figures of the report."""
    for what in kinds:
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        costs: dict[str, list[float]] = {side.name: [] for side in sides}
        background: list[float] = []
        # One run that does not count: the JVM compiles, our kernels and caches warm up.
        for run in range(runs + 1):
            for side in sides:
                topic = f"load-{size}-{run}-{label.strip(', ').replace(' ', '-')}"
                if what == "produce":
                    create_topic(side, topic, partitions, replicas)
                time.sleep(settle_s)
                with machine.watching(side.pids()) as use:
                    result = client(what, side, topic, count=count, size=size)
                if run:
                    rates[side.name].append(result["records_s"] * size / 1e6)
                    costs[side.name].append(use.cpu_s / (count * size / 1e9))
                    background.append(use.background_load)
        ours, theirs = (side.name for side in sides)
        cores = statistics.median(background)
        report.add(
            Figure(
                name=f"{label}{what} {size} B",
                unit="MB/s",
                ours=rates[ours],
                theirs=rates[theirs],
                at_least=rate_at_least,
                background_load=cores,
            )
        )
        report.add(
            Figure(
                name=f"{label}{what} {size} B, broker CPU",
                unit="s/GB",
                ours=costs[ours],
                theirs=costs[theirs],
                at_most=cpu_at_most,
                background_load=cores,
            )
        )
