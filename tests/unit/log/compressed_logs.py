"""What several tests use: open_log, append, refusal, stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.values import AppendInfo
from kafka_ds.process.system import SystemClock, SystemDisk
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.segments.producers import AppendOrigin

NOW_MS = 1_700_000_000_000


def open_log(folder: Path, config: LogConfig) -> Log:
    return Log.open(
        f"{folder}/orders-0", config, SystemDisk(), SystemClock(), topic="orders", partition=0
    )


def append(log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
    return log.append(memoryview(bytearray(data)), leader_epoch=3, now_ms=NOW_MS, origin=origin)


def refusal(log: Log, data: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        append(log, data)
    assert log.log_end_offset == 0
    assert log.size_bytes == 0
    return raised.value.code


def stored(log: Log) -> bytes:
    found = log.read(
        0, max_bytes=1 << 30, upper_bound_offset=log.log_end_offset, min_one_batch=True
    )
    return b"".join(part.read() for part in found.slices)
