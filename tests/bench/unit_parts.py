"""What several brokers as one unit (`broker.processes`) cost beside one: the same records, the same machine."""

from __future__ import annotations

from pathlib import Path

from tests.bench.rates import throughput_of
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client, create_topic, ready

PARTITIONS = 8
COUNT, SIZE = 1_000_000, 1024
PROCESSES = (2, 4)
SINGLE_RECORDS = 3_000


class UnitSide(OurSide):
    name = "kafka-ds, a unit"


def processes(folder: Path, report: Report, runs: int) -> None:
    """Produce and consume with several processes (ours) and with one (theirs), in turn; one record at a time.

    With clients on the same cores the rates say nothing; the CPU is that of the whole unit.
    """
    for count in PROCESSES:
        one = OurSide(folder / f"one-beside-{count}")
        sides = (UnitSide(folder / str(count), {"broker.processes": count}), one)
        try:
            for side in sides:
                side.launch()
                ready(side)
            label = f"{count} processes beside 1, "
            throughput_of(
                sides,
                report,
                SIZE,
                COUNT,
                runs,
                label=label,
                partitions=PARTITIONS,
                rate_at_least=None,
                cpu_at_most=1.25,
            )
            _single_records(sides, report, runs, label)
        finally:
            for side in sides:
                side.stop()


def _single_records(sides: tuple[OurSide, OurSide], report: Report, runs: int, label: str) -> None:
    p99: dict[str, list[float]] = {side.name: [] for side in sides}
    for side in sides:
        create_topic(side, "pingpong")
    for run in range(runs + 1):
        for side in sides:
            found = client("pingpong", side, "pingpong", count=SINGLE_RECORDS, size=100)
            if run:
                p99[side.name].append(found["p99_us"])
    ours, theirs = p99.values()
    name = f"{label}one record at a time, p99"
    report.add(Figure(name=name, unit="us", ours=ours, theirs=theirs))
