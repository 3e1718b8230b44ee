"""What several tests use: fill, storage_of, optimize."""

from dataclasses import replace
from typing import Any

from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.rpc import Optimized
from tests.integration.lake_bench import LakeBench
from tests.integration.tier_segments import (
    PARTITION,
    copy_range,
    copy_request,
    segment,
)


def fill(lake: LakeBench, start: int) -> None:
    path = segment(lake.root / f"{start:020d}.log", start, 10)
    compression = "snappy" if start % 20 else "zstd"
    made = replace(copy_range(path, start, start + 9), compression=compression)
    lake.copy(copy_request([made]))


def storage_of(lake: LakeBench, crash_at: str = "") -> RemoteStorageManager:
    """As of a freshly started worker."""
    return lake.open(crash_at)[1]


def optimize(storage: RemoteStorageManager, epoch: int = 3, **more: Any) -> Optimized:
    return storage.optimizer.optimize(PARTITION, leader_epoch=epoch, **more)
