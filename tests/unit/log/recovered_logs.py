"""What several tests use: open_log, content, path, bases."""

from __future__ import annotations

from broker.log.config import LogConfig
from broker.log.log import Log
from kafka_ds.records.batch import iterate_headers
from kafka_ds.segments import names
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings

NOW_MS = 1_700_000_000_000


FOLDER = "/data/t-0"


CONFIG = log_settings(segment_bytes=1000, index_interval_bytes=100)


def open_log(
    disk: MemoryDisk, *, clean: bool = False, recovery_point: int = 0, config: LogConfig = CONFIG
) -> Log:
    return Log.open(
        FOLDER,
        config,
        disk,
        ManualClock(NOW_MS),
        topic="t",
        partition=0,
        clean_shutdown=clean,
        recovery_point=recovery_point,
        background=ManualBackground(),
    )


def content(log: Log) -> bytes:
    data, offset = b"", log.local_log_start_offset
    while offset < log.log_end_offset:
        found = log.read(
            offset,
            max_bytes=1 << 20,
            upper_bound_offset=log.log_end_offset,
            min_one_batch=True,
        )
        part = b"".join(each.read() for each in found.slices)
        data += part
        offset = [header for _, header in iterate_headers(part)][-1].next_offset
    return data


def path(base_offset: int, kind: str) -> str:
    return f"{FOLDER}/{names.file_name(base_offset, kind)}"


def bases(disk: MemoryDisk) -> list[int]:
    files = [names.parse_file_name(each.rpartition("/")[2]) for each in disk.paths()]
    return [file.offset for file in files if file and file.kind == ".log" and not file.suffix]
