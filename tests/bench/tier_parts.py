"""The tier: segment to Parquet, cold reads, bytes in the lake, and what tiering costs a hot producer."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheKafka, OurSide, client, create_topic, ready
from tests.processes import wait_until

RECORDS = 2_000_000
SIZE = 100
QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
}
TIERED = {"segment_bytes": 16 << 20, "local_retention_bytes": 1}


def _bytes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def _tiered_rows(side: OurSide, topic: str) -> int:
    import pyarrow as pa
    from deltalake import DeltaTable

    path = side.broker.lake / "topics" / topic
    if not (path / "_delta_log").exists():
        return 0
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    return int(sum(actions.column("num_records").to_pylist()))


def cold(folder: Path, report: Report, runs: int) -> None:
    """A topic that lies in the lake is read by librdkafka from its beginning."""
    side = OurSide(folder / "ours", QUICKLY)
    side.launch(clean=True)
    try:
        create_topic(side, "cold", 1, **TIERED)
        client("produce", side, "cold", count=RECORDS, size=SIZE)
        log = side.broker.data
        produced = _bytes(log, "cold-0/*.log")
        wait_until(
            "all closed segments to be local no more",
            lambda: len(list(log.glob("cold-0/*.log"))) == 1,
        )
        kept = _bytes(log, "cold-0/*.log")
        time.sleep(2)
        rates, first, foreign = [], [], []
        for _ in range(runs):
            with machine.watching(side.pids()) as use:
                result = client("consume", side, "cold", count=RECORDS, size=SIZE)
            rates.append(result["mb_s"])
            first.append(result["first_s"] * 1000)
            foreign.append(use.foreign_cores)
        report.add(
            Figure(
                name="consumer reading cold, 100 B records",
                unit="MB/s",
                ours=rates,
                at_least=100,
                foreign_cores=sum(foreign) / len(foreign),
            )
        )
        report.add(Figure(name="first records of a cold read", unit="ms", ours=first))
        lake = _bytes(side.broker.lake / "topics" / "cold", "**/*.parquet")
        lake += _bytes(side.broker.lake / "topics" / "cold", "_residue/**/*")
        ratio = lake / max(1, produced - kept)
        report.add(
            Figure(
                name="bytes in the lake / bytes of the segments", unit="", ours=[ratio], at_most=1.0
            )
        )
        report.add(
            Figure(
                name="memory while reading cold, with worker",
                unit="MiB",
                ours=[machine.resident_mib(side.pids())],
            )
        )
    finally:
        side.stop()


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


def apache_cold(folder: Path, report: Report, runs: int) -> None:
    """For comparison: Apache Kafka with its LocalTieredStorage (a folder), the same topic."""
    side = ApacheKafka(
        folder / "apache",
        {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": folder / "apache-remote",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
            "log.retention.check.interval.ms": 1000,
            "remote.log.manager.task.interval.ms": 1000,
            "log.initial.task.delay.ms": 500,
        },
    )
    side.launch(clean=True)
    try:
        ready(side)
        create_topic(side, "cold", 1, remote_storage_enable="true", **TIERED)
        client("produce", side, "cold", count=RECORDS, size=SIZE)
        log = folder / "apache" / "data"
        wait_until(
            "Apache Kafka to drop its local copies",
            lambda: len(list(log.glob("cold-0/*.log"))) <= 1,
            timeout_s=120,
        )
        rates = [
            client("consume", side, "cold", count=RECORDS, size=SIZE)["mb_s"] for _ in range(runs)
        ]
        report.add(
            Figure(name="(Apache Kafka, LocalTieredStorage, reading cold)", unit="MB/s", ours=rates)
        )
    finally:
        side.stop()
