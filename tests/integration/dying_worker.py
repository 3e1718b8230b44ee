"""What several tests use: ProcessDied, DiesAt, die_copying, optimize_and_vacuum."""

from itertools import count
from typing import Any

import pytest

from broker.worker.copier import Copier
from kafka_ds.delta.log import DeltaLog
from kafka_ds.process.crash_points import CrashPoints
from tests.fakes.process_death import ProcessDied
from tests.fakes.store import MemoryStore
from tests.integration.tier_segments import copy_request
from tests.integration.worker_bench import TABLE, WorkerBench, data_files, put_version


class DiesAt(CrashPoints):
    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point:
            raise ProcessDied


def die_copying(worker: WorkerBench, point: str, *ranges: Any) -> None:
    numbers = count(len(worker.store.objects))
    copier = Copier(
        worker.storage,
        worker.metadata,
        node_id=1,
        crash_points=DiesAt(point),
        new_id=lambda: bytes([next(numbers)]) * 16,
    )
    with pytest.raises(ProcessDied):
        copier.copy(copy_request(ranges))


def optimize_and_vacuum(store: MemoryStore) -> None:
    """Another engine puts the rows of the only file into one of its own, and deletes the old one."""
    (before,) = data_files(store)
    log = DeltaLog(store, TABLE, clock=store.clock)
    actions = log.read_version(log.latest_version())
    assert actions is not None
    (add,) = [each["add"] for each in actions if "add" in each]
    store.objects[f"{TABLE}/partition=0/part-0.parquet"] = store.objects[before]
    remove = {name: add[name] for name in ("path", "partitionValues", "size")}
    put_version(
        store,
        {"commitInfo": {"operation": "OPTIMIZE"}},
        {"remove": {**remove, "dataChange": False, "deletionTimestamp": 0}},
        {"add": {**add, "path": "partition=0/part-0.parquet", "dataChange": False}},
    )
    del store.objects[before]
