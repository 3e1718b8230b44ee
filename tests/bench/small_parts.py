"""Small requests of many clients: requests a second, and what one costs the broker, against Apache Kafka.

With compiled modules, too, if there is a build (``make compiled``).
"""

from __future__ import annotations

import statistics
from pathlib import Path

from broker.compiled.build_files import UnusableBuild, builds, check_build
from tests.bench import machine
from tests.bench.broker_parts import pair
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, OurSide, client, create_topic, ready

PARTITIONS = 20
CLIENTS = (20, 100)
GROUPS = 20
SECONDS = 5
WARM_UP_RUNS = 3


def small_requests(folder: Path, report: Report, runs: int) -> None:
    """Produce of one record of 100 B with acks=all, one request in flight a client."""
    kinds = {
        f"produce, {clients} clients, one record": ("requests", clients) for clients in CLIENTS
    }
    _in_turn(folder, report, runs, kinds)


def offset_commits(folder: Path, report: Report, runs: int) -> None:
    """OffsetCommit of one offset, one request in flight a group."""
    _in_turn(folder, report, runs, {f"OffsetCommit, {GROUPS} groups": ("commits", GROUPS)})


def has_build() -> bool:
    """Whether there are compiled modules of these sources."""
    try:
        return any(check_build(place) for place in builds())
    except UnusableBuild:
        return False


def _sides(folder: Path) -> list[OurSide | ApacheSide]:
    ours, theirs = pair(folder)
    compiled = OurSide(folder / "compiled", compiled=True)
    compiled.name = "kafka-ds, compiled"
    return [ours, compiled, theirs] if has_build() else [ours, theirs]


def _in_turn(folder: Path, report: Report, runs: int, kinds: dict[str, tuple[str, int]]) -> None:
    sides = _sides(folder)
    *ours, theirs = (side.name for side in sides)
    try:
        for side in sides:
            side.launch()
            ready(side)
            create_topic(side, "small", PARTITIONS)
        for name, (what, clients) in kinds.items():
            rates: dict[str, list[float]] = {side.name: [] for side in sides}
            costs: dict[str, list[float]] = {side.name: [] for side in sides}
            background: list[float] = []
            # The first runs do not count: the JVM compiles.
            for run in range(-WARM_UP_RUNS, runs):
                for side in sides:
                    with machine.watching(side.pids()) as use:
                        found = client(
                            what,
                            side,
                            "small",
                            clients=clients,
                            partitions=PARTITIONS,
                            seconds=SECONDS,
                        )
                    if run >= 0:
                        rates[side.name].append(found["requests_s"])
                        costs[side.name].append(use.cpu_s / found["requests"] * 1e6)
                        background.append(use.background_load)
            load = statistics.median(background)
            for each in ours:
                kind = name + each.removeprefix(ours[0])
                report.add(
                    Figure(
                        name=kind,
                        unit="/s",
                        ours=rates[each],
                        theirs=rates[theirs],
                        at_least=1.0,
                        background_load=load,
                    )
                )
                report.add(
                    Figure(
                        name=f"{kind}: broker CPU",
                        unit="us",
                        ours=costs[each],
                        theirs=costs[theirs],
                        at_most=1.0,
                        background_load=load,
                    )
                )
    finally:
        for side in sides:
            side.stop()
