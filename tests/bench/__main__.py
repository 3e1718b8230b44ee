"""``python -m tests.bench [part ...]``: prints ratios, saves them as JSON in .cache/bench.json. Never a test."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench import (
    broker_parts,
    cleaning_parts,
    cluster_parts,
    codec_parts,
    cold_parts,
    current_parts,
    diskless_parts,
    failover_parts,
    lake_parts,
    large_cluster_parts,
    opening_parts,
    replicated_parts,
    report,
    scale_parts,
    sink_parts,
    small_parts,
    spark_parts,
    table_parts,
    tier_parts,
    tls_parts,
    typed_parts,
    unit_parts,
)

RUNS = 3


def parts(folder: Path, out: report.Report, runs: int) -> dict[str, Callable[[], None]]:
    return {
        "throughput": partial(broker_parts.throughput, folder / "throughput", out, runs),
        "codecs": partial(codec_parts.codecs, folder / "codecs", out, runs),
        "tls": partial(tls_parts.tls, folder / "tls", out, runs),
        "fan-out": partial(broker_parts.fan_out, folder / "fan-out", out, runs),
        "latency": partial(broker_parts.latency, folder / "latency", out, runs),
        "small-requests": partial(small_parts.small_requests, folder / "small", out, runs),
        "offset-commits": partial(small_parts.offset_commits, folder / "commits", out, runs),
        "diskless": partial(diskless_parts.diskless, folder / "diskless", out, runs),
        "processes": partial(unit_parts.processes, folder / "processes", out, runs),
        "start": partial(broker_parts.start, folder / "start", out, runs),
        "open-large": partial(opening_parts.large, folder / "large", out, runs),
        "open-many": partial(opening_parts.many, folder / "many", out, runs),
        "start-many": partial(opening_parts.many_behind_a_broker, folder / "broker", out, runs),
        "scale": partial(scale_parts.scale, folder / "scale", out, runs),
        "large-cluster": partial(
            large_cluster_parts.large_cluster, folder / "large-cluster", out, runs
        ),
        "controller": partial(cluster_parts.controller, folder / "controller", out, runs),
        "replicated": partial(replicated_parts.throughput, folder / "replicated", out, runs),
        "failover": partial(failover_parts.failover, folder / "failover", out, runs),
        "conversion": partial(tier_parts.conversion, out, runs),
        "compaction": partial(cleaning_parts.compaction, out, runs),
        "cold": partial(cold_parts.cold, folder / "cold", out, runs),
        "tier": partial(tier_parts.tier, folder / "tier", out, runs),
        "optimize": partial(lake_parts.optimize, out, runs),
        "lake-bytes": partial(lake_parts.flights_topic, folder / "flights", out, runs),
        "tables": partial(table_parts.tables, folder / "tables", out, runs),
        "spark": partial(spark_parts.batch, folder / "spark", out, runs),
        "spark-load": partial(sink_parts.load, folder / "loaded", out, runs),
        "spark-write": partial(sink_parts.write, folder / "written", out, runs),
        "typed": partial(typed_parts.typed, folder / "typed", out, runs),
        "current": partial(current_parts.current, folder / "current", out, runs),
    }


def main() -> int:
    names = list(parts(Path(), report.Report(), RUNS))
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join(names)}; all when none is named"
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="counted runs a side (default %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the temporary folder with data and lake is"
    )
    options = parser.parse_args()
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(
            f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(names)}"
        )
    # Whoever ends the bench ends its brokers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Installed brokers have compiled modules: without them each start compiles, which is nobody's start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    out = report.Report()
    with tempfile.TemporaryDirectory(prefix="kafka-ds-bench-", dir=options.folder) as scratch:
        work = parts(Path(scratch), out, options.runs)
        print(report.heading())
        for name in options.parts or names:
            work[name]()
    saved = Path(".cache") / "bench.json"
    saved.parent.mkdir(exist_ok=True)
    out.save(saved)
    print(out.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
