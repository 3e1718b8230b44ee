"""Three brokers against three of Apache Kafka: what replication costs those who write."""

from __future__ import annotations

from pathlib import Path

from tests.bench.cluster_sides import BROKERS, ApacheClusterSide, OurClusterSide
from tests.bench.rates import throughput_of
from tests.bench.report import Report
from tests.bench.sides import ready

SETTLE_S = 2.0
RECORDS = {100: 600_000, 1024: 120_000}
PARTITIONS = 3


def throughput(folder: Path, report: Report, runs: int) -> None:
    """Produce with acks=all, three replicas, two of them needed; both clusters up, one at work at a time, in turn."""
    sides = OurClusterSide(folder / "ours"), ApacheClusterSide(folder / "apache")
    try:
        for side in sides:
            side.launch()
            ready(side)
        for size, count in RECORDS.items():
            throughput_of(
                sides,
                report,
                size,
                count,
                runs,
                kinds=("produce",),
                label="three brokers, ",
                partitions=PARTITIONS,
                replicas=BROKERS,
                settle_s=SETTLE_S,
            )
    finally:
        for side in sides:
            side.stop()
