"""The tier: segment to Parquet, and what tiering costs a hot producer."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from kafka_ds.wire.messages import ListOffsetsRequest
from kafka_ds.wire.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client, create_topic, ready
from tests.integration.raw_client import RawClient

RECORDS = 400_000
SIZE = 1024
# A segment of 16 MiB that is still open, and what rounding to batches leaves.
ACTIVE_RECORDS = 20_000
LATEST_TIERED = -5

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


def tier(folder: Path, report: Report, runs: int) -> None:
    """Whether tiering keeps up with a producer, and what it costs another."""
    keeping_up(folder / "rate", report, runs)
    hot_latency_while_tiering(folder / "hot", report, runs)


def keeping_up(folder: Path, report: Report, runs: int) -> None:
    """Bytes of log a second from a producer's first record until all but the active segment is in the table."""
    side = OurSide(folder / "ours", QUICKLY)
    side.launch(clean=True)
    produced: list[float] = []
    tiered: list[float] = []
    foreign: list[float] = []
    try:
        ready(side)
        for run in range(runs + 1):  # The first one starts the worker, and does not count.
            topic = f"bulk-{run}"
            create_topic(side, topic, 1, segment_bytes=16 << 20)
            began = time.monotonic()
            with machine.watching(side.pids()) as use:
                made = client("produce", side, topic, count=RECORDS, size=SIZE)
                last = _wait_for_tiered(side.bootstrap, topic, RECORDS - ACTIVE_RECORDS)
            if run:
                produced.append(RECORDS * SIZE / made["wall_s"] / 1e6)
                tiered.append((last + 1) * SIZE / (time.monotonic() - began) / 1e6)
                foreign.append(use.foreign_cores)
    finally:
        side.stop()
    cores = statistics.median(foreign)
    report.add(
        Figure(
            name="produce 1 KiB while tiering",
            unit="MB/s",
            ours=produced,
            at_least=100,
            foreign_cores=cores,
        )
    )
    report.add(
        Figure(
            name="log into the lake, from the first record on",
            unit="MB/s",
            ours=tiered,
            at_least=100,
            foreign_cores=cores,
        )
    )


def _wait_for_tiered(bootstrap: str, topic: str, offset: int) -> int:
    """The last offset in the lake, once it is so high."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIERED)
    topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
    deadline = time.monotonic() + 180
    with RawClient(bootstrap) as one:
        while time.monotonic() < deadline:
            found = one.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 9)
            last: int = found.topics[0].partitions[0].offset
            if last >= offset:
                return last
            time.sleep(0.02)
    raise RuntimeError(f"{topic} is in the lake up to {last} alone, not {offset}")


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
            at_most=1.5,
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
