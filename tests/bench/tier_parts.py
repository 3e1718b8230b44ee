"""The tier: segment to Parquet, and what tiering costs a hot producer."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client, create_topic, ready

QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
}


def conversion(report: Report, runs: int) -> None:
    """Segment bytes to a durable Parquet file, one thread, in this process: decoding, encoding, writing."""
    from tests.bench.conversion import segment, to_parquet

    for size in (100, 1024):
        data = segment(size, 64 << 20)
        rates = []
        with tempfile.TemporaryDirectory() as scratch:
            for _ in range(runs + 1):
                began = time.thread_time()
                to_parquet(data, Path(scratch))
                rates.append(len(data) / (time.thread_time() - began) / 1e6)
        report.add(
            Figure(
                name=f"segment to Parquet, {size} B, one core",
                unit="MB/s",
                ours=rates[1:],
                at_least=100,
            )
        )


def hot_latency_while_tiering(folder: Path, report: Report, runs: int) -> None:
    """p99 of one record at a time, with and without segments on their way into the lake."""
    side = OurSide(folder / "ours", QUICKLY)
    side.launch(clean=True)
    quiet, busy = [], []
    try:
        ready(side)
        create_topic(side, "pingpong", remote_storage_enable="false")
        client("pingpong", side, "pingpong", count=3000, size=100)
        for run in range(runs):
            create_topic(
                side, f"calm-{run}", 1, remote_storage_enable="false", segment_bytes=4 << 20
            )
            create_topic(side, f"bulk-{run}", 1, segment_bytes=4 << 20)
            quiet.append(_pingpong_beside(side, f"calm-{run}"))
            busy.append(_pingpong_beside(side, f"bulk-{run}"))
    finally:
        side.stop()
    report.add(
        Figure(
            name="hot produce p99 while tiering / without (theirs)",
            unit="us",
            ours=busy,
            theirs=quiet,
            at_most=2.0,
        )
    )


def _pingpong_beside(side: OurSide, topic: str) -> float:
    """The same paced bulk producer runs beside both; only the bulk topic's segments are tiered in one of them."""
    from tests.bench.paced import paced_producer

    stop = threading.Event()
    bulk = threading.Thread(target=paced_producer, args=(side.bootstrap, topic, 20e6, stop))
    bulk.start()
    time.sleep(1.5)
    try:
        return float(client("pingpong", side, "pingpong", count=4000, size=100)["p99_us"])
    finally:
        stop.set()
        bulk.join()
