"""The tier: segment to Parquet, and what tiering costs a hot producer."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kafka_ds.protocol.messages import ListOffsetsRequest
from kafka_ds.protocol.messages.offsets import LATEST_TIERED, ListOffsetsPartition, ListOffsetsTopic
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client, create_topic, ready
from tests.integration.raw_client import RawClient

RECORDS = 400_000
SIZE = 1024
# What is copied last is half a second and a copy late: long enough that this does not decide.
OFFERED_RECORDS = 1_500_000
OFFERED_MB_S = 120
# A segment of 16 MiB that is still open, and what rounding to batches leaves.
ACTIVE_BYTES = 20 << 20
# Bytes of a record, records, and the CPU in s/GB that copying them may take.
BACKLOGS = ((1024, 600_000, 6.0), (100, 4_000_000, 8.0))

QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """What became of one topic, in MB of log a second."""

    produced: float
    tiered: float
    cpu_s_gb: float
    lake_bytes: float
    """Of a byte of log, before files are merged."""
    background_load: float


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
    backlog(folder / "backlog", report, runs)
    keeping_up(folder / "rate", report, runs)
    hot_latency_while_tiering(folder / "hot", report, runs)


def backlog(folder: Path, report: Report, runs: int) -> None:
    """A log that is there becomes a table, and nothing else runs: bytes of records a second, and CPU."""
    side = OurSide(folder / "ours", QUICKLY)
    side.launch()
    try:
        ready(side)
        _copied_of(side, "first", "produce", count=RECORDS // 10)  # Which starts the worker.
        for size, count, cpu in BACKLOGS:
            found = [_backlog(side, f"log-{size}-{run}", size, count) for run in range(runs)]
            load = statistics.median(each.background_load for each in found)
            rates, costs = ([getattr(each, of) for each in found] for of in ("tiered", "cpu_s_gb"))
            name = f"a log of {size} B into the lake, alone"
            report.add(
                Figure(name=name, unit="MB/s", ours=rates, at_least=200, background_load=load)
            )
            name += ", broker and worker CPU"
            report.add(
                Figure(name=name, unit="s/GB", ours=costs, at_most=cpu, background_load=load)
            )
    finally:
        side.stop()


def _backlog(side: OurSide, topic: str, size: int, count: int) -> _Copied:
    create_topic(side, topic, 2, segment_bytes=16 << 20, remote_storage_enable="false")
    made = client("produce", side, topic, size=size, count=count)
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    entry = ConfigEntry(
        "remote.storage.enable", "true", incremental_operation=AlterConfigOpType.SET
    )
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    with machine.watching(side.pids()) as use:
        began = time.monotonic()
        admin.incremental_alter_configs([change])[change].result(20)
        copied = _wait_for_tiered(side.bootstrap, topic, count - 2 * ACTIVE_BYTES // size, 2) * size
        took_s = time.monotonic() - began
    return _Copied(
        produced=count * size / made["wall_s"] / 1e6,
        tiered=copied / took_s / 1e6,
        cpu_s_gb=use.cpu_s / (copied / 1e9),
        lake_bytes=_lake_bytes(side, topic) / copied,
        background_load=use.background_load,
    )


def keeping_up(folder: Path, report: Report, runs: int) -> None:
    """Bytes of log a second from the first record until all but the active segment is in the table.

    Once with a client without costs of its own and a steady rate, like one on another machine, and once with an
    unbounded producer that shares the cores with the broker.
    """
    side = OurSide(folder / "ours", QUICKLY)
    side.launch()
    try:
        ready(side)
        _copied_of(side, "first", "produce", count=RECORDS // 10)  # Which starts the worker.
        steady = [
            _copied_of(side, f"steady-{run}", "offer", count=OFFERED_RECORDS, rate=OFFERED_MB_S)
            for run in range(runs)
        ]
        greedy = [_copied_of(side, f"bulk-{run}", "produce", count=RECORDS) for run in range(runs)]
    finally:
        side.stop()
    for name, found in ((f"{OFFERED_MB_S} MB/s offered", steady), ("no bounds", greedy)):
        _add(
            report, f"produce 1 KiB while tiering, {name}", [each.produced for each in found], found
        )
        _add(report, f"log into the lake, {name}", [each.tiered for each in found], found)
    report.add(
        Figure(
            name="CPU of broker and worker a GB, steady",
            unit="s/GB",
            ours=[each.cpu_s_gb for each in steady],
        )
    )
    report.add(
        Figure(
            name="bytes in the lake / bytes of records, as copied, steady",
            unit="",
            ours=[each.lake_bytes for each in steady],
        )
    )


def _add(report: Report, name: str, rates: list[float], found: list[_Copied]) -> None:
    background = statistics.median(each.background_load for each in found)
    report.add(Figure(name=name, unit="MB/s", ours=rates, at_least=100, background_load=background))


def _copied_of(side: OurSide, topic: str, what: str, **options: object) -> _Copied:
    create_topic(side, topic, 1, segment_bytes=16 << 20)
    with machine.watching(side.pids()) as use:
        made = client(what, side, topic, size=SIZE, **options)
        count = int(made.get("records", options["count"]))
        copied = _wait_for_tiered(side.bootstrap, topic, count - ACTIVE_BYTES // SIZE) * SIZE
        took_s = time.monotonic() - made["began"]
    return _Copied(
        produced=count * SIZE / made["wall_s"] / 1e6,
        tiered=copied / took_s / 1e6,
        cpu_s_gb=use.cpu_s / (count * SIZE / 1e9),
        lake_bytes=_lake_bytes(side, topic) / copied,
        background_load=use.background_load,
    )


def _lake_bytes(side: OurSide, topic: str) -> int:
    return sum(each.stat().st_size for each in side.folder.rglob(f"topics/{topic}/*/*.parquet"))


def _wait_for_tiered(bootstrap: str, topic: str, records: int, partitions: int = 1) -> int:
    """How many records are in the lake, once they are so many."""
    wanted = [
        ListOffsetsPartition(partition_index=each, timestamp=LATEST_TIERED)
        for each in range(partitions)
    ]
    topics = [ListOffsetsTopic(name=topic, partitions=wanted)]
    deadline = time.monotonic() + 180
    with RawClient(bootstrap) as one:
        while time.monotonic() < deadline:
            found = one.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 9)
            copied: int = sum(each.offset + 1 for each in found.topics[0].partitions)
            if copied >= records:
                return copied
            time.sleep(0.02)
    raise RuntimeError(f"{copied} records of {topic} are in the lake, not {records}")


def hot_latency_while_tiering(folder: Path, report: Report, runs: int) -> None:
    """p99 of one record at a time, with and without segments on their way into the lake."""
    side = OurSide(folder / "ours", QUICKLY)
    side.launch()
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
