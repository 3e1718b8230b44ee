"""Compaction: megabytes of log a second that one cleaner reads, maps and writes, in this process and on a real disk."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from broker.cleaner.rewriter import Cleaning
from broker.cleaner.rpc import CleanJob, SourceSegment
from kafka_ds.process.system import SystemDisk
from kafka_ds.records.batch import Codec, Record, build_batch, stamp
from tests.bench.report import Figure, Report
from tests.fakes.settings import cleaner_settings

SEGMENT_BYTES = 64 << 20
SEGMENTS = 4
KEYS = 100_000
# Name, records of a batch, bytes of a value, codec. A group's or a changelog's batches are small.
KINDS = (
    ("100 B records, batches of 150", 150, 84, Codec.NONE),
    ("1 KiB records, batches of 15", 15, 1000, Codec.NONE),
    ("100 B records, one a batch", 1, 84, Codec.NONE),
    ("100 B records, batches of 150, lz4 (unpacked)", 150, 84, Codec.LZ4),
)


def _batches(count: int, value_bytes: int, codec: Codec) -> list[bytearray]:
    """Some hundred batches that are repeated with other offsets: building is slow."""
    chosen = random.Random(1)
    values = [chosen.randbytes(value_bytes) for _ in range(100)]
    return [
        bytearray(
            build_batch(
                [
                    Record(i, 1_700_000_000_000 + i, b"%08d" % chosen.randrange(KEYS), value)
                    for i, value in enumerate(chosen.choices(values, k=count))
                ],
                codec=codec,
            )
        )
        for _ in range(max(1000, 30_000 // count))
    ]


def _write_log(folder: Path, count: int, value_bytes: int, codec: Codec) -> list[SourceSegment]:
    batches = _batches(count, value_bytes, codec)
    offset = 0
    segments: list[SourceSegment] = []

    def stamped() -> Iterator[bytearray]:
        nonlocal offset
        size = index = 0
        while size < SEGMENT_BYTES:
            batch = batches[index % len(batches)]
            stamp(batch, 0, base_offset=offset, leader_epoch=0)
            offset += count
            size += len(batch)
            index += 1
            yield batch

    for _ in range(SEGMENTS):
        base = offset
        path = folder / f"{base:020d}.log"
        with path.open("wb") as file:
            file.writelines(stamped())
        size = path.stat().st_size
        segments.append(SourceSegment(base_offset=base, next_offset=offset, size_bytes=size))
    return segments


def _unpacked_bytes(segments: list[SourceSegment], count: int, value_bytes: int) -> int:
    """The bytes of the log, as many as they would be if its batches were not compressed."""
    batch = len(_batches(count, value_bytes, Codec.NONE)[0])
    return segments[-1].next_offset // count * batch


def compaction(report: Report, runs: int) -> None:
    """A log that is dirty from its beginning: mapped, then cleaned segment by segment, fsync included."""
    for name, count, value_bytes, codec in KINDS:
        rates = []
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            segments = _write_log(folder, count, value_bytes, codec)
            size = _unpacked_bytes(segments, count, value_bytes)
            for _ in range(runs + 1):
                began = time.perf_counter()
                _clean(folder, segments)
                rates.append(size / (time.perf_counter() - began) / 1e6)
        report.add(Figure(name=f"compaction, {name}", unit="MB/s", ours=rates[1:], at_least=100))


def _clean(folder: Path, segments: list[SourceSegment]) -> None:
    end_offset = segments[-1].next_offset
    job = CleanJob(
        number=1,
        directory=str(folder),
        segments=tuple(segments),
        first_dirty_offset=0,
        first_uncleanable_offset=end_offset,
        now_ms=1_700_000_000_000,
        delete_retention_ms=86_400_000,
        index_interval_bytes=4096,
        aborted=(),
        last_records=(),
        keeps_tombstones=False,
        settings=cleaner_settings(),
    )
    cleaning = Cleaning(job, SystemDisk(), (1, 2), lambda _: None)
    assert cleaning.map().end_offset == end_offset
    kept = sum(cleaning.clean([segment]).records_kept for segment in segments)
    assert kept <= KEYS
