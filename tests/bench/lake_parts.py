"""What the lake takes: the flights of 2013 as a table, against the same records in segments that zstd compressed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable

from kafka_ds.delta.statistics import entry_of_add
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import LOG_OVERHEAD_BYTES, Record, build_batch
from kafka_ds.topic.batches.convert import decode_batches
from kafka_ds.topic.files.optimize import DAYS_KEPT_MAX, LevelChoice
from kafka_ds.topic.files.parquet import FileReader, write_rows
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.names import data_file
from tests.bench.conversion import segment
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, create_topic, ready
from tests.demo.flights import FlightRecord, flights
from tests.processes import wait_until

QUICKLY = {
    "lake.local.grace.ms": 500,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 300,
    "remote.log.manager.task.interval.ms": 500,
}
# As any topic of some size has them all the time: of thirteen megabytes there are not ten files in a row.
MERGING = {"lake.maintenance.interval.ms": 500, "lake.maintenance.min.files": 2}
PARTITIONS = 4
# The records are of 2013: by their timestamps they would be past any retention.
TOPIC = {"segment_bytes": 1 << 20, "retention_ms": -1, "segment_ms": 10 * 365 * 86_400_000}
# As Java's producer batches, and as librdkafka does.
BATCHES = {"16 KiB": 16_384, "1 MB": 1_000_000}
LEVELS = (1, 3, 9)
COPIES = 10
SETTLE_S = 4.0


def flights_topic(folder: Path, report: Report, runs: int) -> None:
    """Bytes a record: the table's live files and residue, as copied and as merged, against the segments'."""
    records = list(flights())
    levels(records[:100_000], report, runs)
    for name, batch_bytes in BATCHES.items():
        side = OurSide(folder / f"batches-{batch_bytes}", {**QUICKLY, **MERGING})
        side.launch()
        try:
            ready(side)
            create_topic(side, "hot", PARTITIONS, remote_storage_enable="false", **TOPIC)
            create_topic(side, "cold", PARTITIONS, remote_storage_enable="true", **TOPIC)
            for topic in ("hot", "cold"):
                _produce(side.bootstrap, topic, records, batch_bytes)
            log = sum(each.stat().st_size for each in side.data.glob("hot-*/*.log"))
            merged = _lake_bytes_a_record(side.lake / "topics" / "cold")
        finally:
            side.stop()
        report.add(
            Figure(
                name=f"flights: lake / zstd segments of {name} batches",
                unit="",
                ours=[merged / (log / len(records))],
                at_most=0.6,
            )
        )


def levels(records: Sequence[FlightRecord], report: Report, runs: int) -> None:
    """What the levels of compression cost and give: one file of the flights, one thread, in this process."""
    batches = _batches(records)
    data = b"".join(batches)
    decode_batches(batches[:1], start_offset=0, end_offset=499)  # The kernels are loaded once.
    for level in LEVELS:
        rates, sizes = [], []
        with tempfile.TemporaryDirectory() as scratch:
            store = LocalStore(scratch)
            for run in range(runs):
                began = time.thread_time()
                decoded = decode_batches([data], start_offset=0, end_offset=len(records) - 1)
                made = write_rows(store, f"{run}.parquet", decoded.table_batches, level=level)
                rates.append(len(data) / (time.thread_time() - began) / 1e6)
                assert made is not None
                sizes.append(made.size / len(data))
        report.add(
            Figure(name=f"flights to Parquet, zstd {level}, one core", unit="MB/s", ours=rates)
        )
        report.add(Figure(name=f"flights in Parquet, zstd {level} / plain", unit="", ours=sizes))


def _batches(records: Sequence[FlightRecord]) -> list[bytes]:
    batches = []
    for first in range(0, len(records), 500):
        rows = [
            Record(first + at, each.timestamp_ms, each.key, each.value)
            for at, each in enumerate(records[first : first + 500])
        ]
        batches.append(build_batch(rows, leader_epoch=0))
    return batches


def optimize(report: Report, runs: int) -> None:
    """Ten copied files merged into one as the worker does, in this process: CPU against that of copying, and bytes."""
    samples = {
        "flights": b"".join(_batches(list(flights())[:200_000])),
        "words, 100 B": segment(100, 64 << 20),
        "words, 1 KiB": segment(1024, 64 << 20),
    }
    for name, data in samples.items():
        for kept, days in (("7 days", 7.0), ("for ever", DAYS_KEPT_MAX)):
            found = [_copied_and_merged(data, days) for _ in range(runs + 1)][1:]
            report.add(
                Figure(
                    name=f"CPU, merged / copied: {name}, kept {kept}",
                    unit="s/GB",
                    ours=[each.merge_s * 1e9 / len(data) for each in found],
                    theirs=[each.copy_s * 1e9 / len(data) for each in found],
                    at_most=1.5,
                )
            )
            report.add(
                Figure(
                    name=f"bytes, merged / copied: {name}, kept {kept}",
                    unit="a byte",
                    ours=[each.merged_bytes / len(data) for each in found],
                    theirs=[each.copied_bytes / len(data) for each in found],
                    at_most=1,
                )
            )


@dataclass(frozen=True, slots=True)
class _Merged:
    copy_s: float
    copied_bytes: int
    merge_s: float
    merged_bytes: int


def _copied_and_merged(data: bytes, days: float) -> _Merged:
    with tempfile.TemporaryDirectory() as scratch:
        store = LocalStore(scratch)
        began, copies = time.process_time(), []
        for part in _parts(data, COPIES):
            # The end of a range is found by its last batch's header.
            decoded = decode_batches([part], start_offset=0, end_offset=1 << 62)
            path = f"t/{data_file(0, len(copies), uuid_text(new_uuid()))}"
            made = write_rows(store, path, decoded.table_batches)
            assert made is not None
            copies.append(made)
        copied_at = time.process_time()
        merged = rewrite_files(
            store,
            FileReader(store),
            "t",
            [entry_of_add("t", each.add("t", 0, now_ms=0)["add"]) for each in copies],
            attempt=uuid_text(new_uuid()),
            log_start_offset=0,
            file_bytes=None,
            level=LevelChoice(lowest=1, highest=9, days_kept=days),
        )
        return _Merged(
            copy_s=copied_at - began,
            copied_bytes=sum(each.size for each in copies),
            merge_s=time.process_time() - copied_at,
            merged_bytes=sum(each.size for each in merged.files),
        )


def _parts(data: bytes, count: int) -> list[bytes]:
    """A segment's batches, parted into so many of about one size."""
    ends, at = [0], 0
    while at < len(data):
        at += LOG_OVERHEAD_BYTES + int.from_bytes(data[at + 8 : at + LOG_OVERHEAD_BYTES], "big")
        if at >= len(data) * len(ends) / count:
            ends.append(at)
    return [data[start:end] for start, end in pairwise(ends)]


def _produce(bootstrap: str, topic: str, records: Sequence[FlightRecord], batch_bytes: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            "batch.size": batch_bytes,
        }
    )
    failures: list[object] = []
    for each in records:
        while True:
            try:
                producer.produce(
                    topic,
                    key=each.key,
                    value=each.value,
                    timestamp=each.timestamp_ms,
                    headers=[("carrier", each.carrier)],
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(120)
    if failures:
        raise RuntimeError(f"not acknowledged: {failures[0]}")


def _lake_bytes_a_record(table: Path) -> float:
    """Of the files that make up the table when copies and merges have come to rest, and of the residue beside them."""
    seen: list[tuple[int, int]] = [(0, 0)]
    since = time.monotonic()

    def at_rest() -> bool:
        nonlocal since
        if not (table / "_delta_log").exists():
            return False
        actions = pa.table(DeltaTable(table).get_add_actions())
        rows, size = (
            sum(actions.column(name).to_pylist()) for name in ("num_records", "size_bytes")
        )
        if (rows, size) != seen[-1]:
            seen.append((rows, size))
            since = time.monotonic()
        return rows > 0 and time.monotonic() - since > SETTLE_S

    wait_until("the flights to be in the lake", at_rest, timeout_s=120, every_s=0.3)
    rows, size = seen[-1]
    size += sum(each.stat().st_size for each in table.glob("_residue/**/*") if each.is_file())
    return size / rows
