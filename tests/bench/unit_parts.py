"""What two brokers as one unit (`broker.processes`) cost beside one: the same records, the same machine."""

from __future__ import annotations

from pathlib import Path

from tests.bench.rates import throughput_of
from tests.bench.report import Report
from tests.bench.sides import OurSide, ready

PARTITIONS = 8
COUNT, SIZE = 1_000_000, 1024


class UnitSide(OurSide):
    name = "kafka-ds, 2 processes"


def processes(folder: Path, report: Report, runs: int) -> None:
    """Produce and consume with two processes (ours) and with one (theirs), in turn.

    With clients on the same two cores the rates say nothing; the CPU is that of the whole unit.
    """
    sides = (UnitSide(folder / "two", {"broker.processes": 2}), OurSide(folder / "one"))
    try:
        for side in sides:
            side.launch()
            ready(side)
        throughput_of(
            sides,
            report,
            SIZE,
            COUNT,
            runs,
            label="2 processes beside 1, ",
            partitions=PARTITIONS,
            rate_at_least=None,
            cpu_at_most=1.25,
        )
    finally:
        for side in sides:
            side.stop()
