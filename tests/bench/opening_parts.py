"""Opening logs at a start: after a clean stop nothing is scanned, however much there is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from broker.log.directories.log_manager import LogManager
from broker.log.log import Log
from kafka_ds.process.seams import DiskFile, ReadableBuffer
from kafka_ds.process.system import InlineBackground, SystemClock, SystemDisk, SystemFile
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import HEADER_BYTES, Record, build_batch
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, client
from tests.fakes.logs import log_manager
from tests.fakes.settings import log_settings
from tests.topics import create_topic

LARGE_BYTES = 10 << 30
PARTITIONS = 2_000
BATCH_BYTES = 64 << 10
TOPIC_ID = bytes(range(16))


class UnsyncedFile(SystemFile):
    """Files of a measurement need not survive a crash."""

    __slots__ = ()

    def sync(self) -> None:
        pass


class HollowFile(UnsyncedFile):
    """Writes the headers of batches and leaves holes for their records, which nobody reads after a clean stop."""

    __slots__ = ()

    def write(self, data: ReadableBuffer, position: int) -> int:
        super().write(memoryview(data)[:HEADER_BYTES], position)
        self.truncate(position + len(data))
        return len(data)


class QuickDisk(SystemDisk):
    """For filling folders. Segments can be of any size in little room; all other files are what they are."""

    def __init__(self, *, is_hollow: bool = False) -> None:
        self._log_file = HollowFile if is_hollow else UnsyncedFile

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        assert isinstance(file, SystemFile)
        file.__class__ = self._log_file if path.endswith(".log") else UnsyncedFile
        return file

    def sync_directory(self, path: str) -> None:
        pass


def _manager(folder: Path, disk: SystemDisk | None = None) -> LogManager:
    manager = log_manager(
        [str(folder)],
        disk=disk or SystemDisk(),
        clock=SystemClock(),
        background=InlineBackground(),
        node_id=1,
        config=log_settings(retention_ms=-1),
        recovery_threads=2,
    )
    manager.load()
    return manager


def _append(log: Log, value_bytes: int, sequence: int) -> None:
    now_ms = SystemClock().now_ms()
    batch = build_batch(
        [Record(0, now_ms, b"k", bytes(value_bytes))],
        producer_id=sequence % 100,
        producer_epoch=0,
        base_sequence=sequence // 100,
    )
    log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=now_ms)


def _measure(folder: Path, report: Report, runs: int, name: str, at_most: float) -> None:
    seconds = []
    for run in range(runs + 1):  # The first does not count: the files may not be in memory.
        began = time.perf_counter()
        manager = _manager(folder)
        took = time.perf_counter() - began
        assert manager.was_clean
        manager.close()
        if run:
            seconds.append(took)
    report.add(Figure(name=name, unit="s", ours=seconds, at_most=at_most))


def _with_logs(folder: Path, fill: Callable[[], None], measure: Callable[[], None]) -> None:
    try:
        fill()
        measure()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def large(folder: Path, report: Report, runs: int) -> None:
    """One log of ten segments of 1 GiB, with an index entry a batch."""

    def fill() -> None:
        manager = _manager(folder, QuickDisk(is_hollow=True))
        log = manager.create(TopicPartition("large", 0), TOPIC_ID)
        for sequence in range(LARGE_BYTES // BATCH_BYTES):
            _append(log, BATCH_BYTES - 100, sequence)
        assert log.size_bytes > LARGE_BYTES * 0.99
        manager.close()

    name = "10 GiB of log, opened after a clean stop"
    _with_logs(folder, fill, lambda: _measure(folder, report, runs, name, 1.0))


def many(folder: Path, report: Report, runs: int) -> None:
    """Small logs, alone and behind a whole broker from the start of its process to its first answer."""

    def fill() -> None:
        manager = _manager(folder, QuickDisk())
        for partition in range(PARTITIONS):
            log = manager.create(TopicPartition("many", partition), TOPIC_ID)
            for sequence in range(3):
                _append(log, 100, sequence)
        manager.close()

    name = f"{PARTITIONS} partitions, opened after a clean stop"
    _with_logs(folder, fill, lambda: _measure(folder, report, runs, name, 3.0))


def many_behind_a_broker(folder: Path, report: Report, runs: int) -> None:
    """From the start of the process to an acknowledged record, with all partitions led."""
    side = OurSide(folder, {"remote.log.storage.system.enable": "false"})
    seconds = []
    try:
        side.launch()
        create_topic(side.bootstrap, "many", partitions=PARTITIONS)
        for _ in range(runs):
            side.stop()
            began = time.time()
            side.launch()
            seconds.append(client("first", side, "first")["at"] - began)
    finally:
        side.stop()
        shutil.rmtree(folder, ignore_errors=True)
    name = f"process start to a record, {PARTITIONS} partitions"
    report.add(Figure(name=name, unit="s", ours=seconds))
