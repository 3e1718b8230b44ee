"""What it costs a broker to take batches of each codec, whose records it looks at."""

from __future__ import annotations

import statistics
from pathlib import Path

from kafka_ds.records.batch import Codec
from tests.bench import machine
from tests.bench.broker_parts import pair
from tests.bench.report import Figure, Report
from tests.bench.sides import client, create_topic, ready

# Records in a batch as librdkafka fills it under load, and in one that did not wait for long.
BATCH_BYTES = (900_000, 64_000)
SIZE = 100
OFFERED_BYTES = 60_000_000
# More than any side takes.
RATE_MB_S = 10_000


def codecs(folder: Path, report: Report, runs: int) -> None:
    """The broker's CPU for a GB of records, which arrive in batches that were made beforehand."""
    sides = pair(folder)
    try:
        for side in sides:
            side.launch()
            ready(side)
        for batch_bytes in BATCH_BYTES:
            for codec in Codec:
                costs: dict[str, list[float]] = {side.name: [] for side in sides}
                background: list[float] = []
                name = f"produce-{codec.name.lower()}-{batch_bytes}"
                for side in sides:
                    create_topic(side, name)
                for run in range(runs + 1):
                    for side in sides:
                        with machine.watching(side.pids()) as use:
                            done = client(
                                "offer",
                                side,
                                name,
                                size=SIZE,
                                batch=batch_bytes,
                                count=OFFERED_BYTES // SIZE,
                                rate=RATE_MB_S,
                                codec=codec.name.lower(),
                            )
                        if run:
                            background.append(use.background_load)
                            costs[side.name].append(use.cpu_s / (done["records"] * SIZE / 1e9))
                ours, theirs = (side.name for side in sides)
                report.add(
                    Figure(
                        name=f"produce {codec.name.lower()}, {batch_bytes // 1000} KB of records a batch, broker CPU",
                        unit="s/GB",
                        ours=costs[ours],
                        theirs=costs[theirs],
                        at_most=1.0,
                        background_load=statistics.median(background),
                    )
                )
    finally:
        for side in sides:
            side.stop()
