"""Tables of many files: a start, a plan and a commit with 50,000 files compared with 500."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker.remote.process import new_worker
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.rpc import ReadTieredState, TieredState
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import SystemClock
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.names import CLUSTER_MARK
from kafka_ds.topic.table import TopicTable
from tests.bench.report import Figure, Report
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.fakes.settings import tier_settings
from tests.lake.large_table import PARTITIONS, ROWS, table_of

FEW, MANY = 500, 50_000
COMMITS = 20


def _fill(folder: Path, count: int) -> LocalStore:
    """A table of this many files, with a checkpoint; the files are never opened."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / CLUSTER_MARK).mkdir(parents=True)  # Without it a worker takes the lake for lost.
    store = LocalStore(str(folder))
    table, _ = table_of(store, count)
    write_checkpoint(table.log)
    return store


def _seconds(work: Callable[[], None], times: int = 1) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / times


def _load(store: LocalStore) -> None:
    settings = tier_settings(lake_uri=store.root)
    RemoteStorageManager(store, settings, CrashPoints()).state(
        TopicIdPartition(TOPIC_ID, "orders", 0)
    )


PLAN = """
from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.plan.lake_tables import LakeTables
view = LakeTables({root!r}).views("orders", bytes.fromhex({topic_id!r}))[3]
assert len(view.within(Intervals.of(({middle}, {middle} + 10)))) == 1
"""


def _plan(store: LocalStore, count: int) -> None:
    """The files of a few offsets, as a query with a filter asks for them; in a process of its own, as Spark does."""
    middle = count // PARTITIONS * ROWS // 2
    code = PLAN.format(root=store.root, topic_id=TOPIC_ID.hex(), middle=middle)
    subprocess.run([sys.executable, "-c", code], check=True)


def _commits(table: TopicTable, count: int) -> Callable[[], None]:
    start = table.read().highest_offset_in_remote_storage(0)
    assert start is not None
    parts = [
        copy_of(table, 0, start + 1 + 10 * n, start + 10 + 10 * n, attempt=f"{count}-{start}-{n}")
        for n in range(COMMITS)
    ]

    def go() -> None:
        for part in parts:
            commit(table, part)

    return go


def _start(store: LocalStore) -> None:
    """A worker process, from its start to its first answer."""
    settings = tier_settings(lake_uri=store.root)
    question = ReadTieredState(partitions=[TopicIdPartition(TOPIC_ID, "orders", 0)])

    async def ask() -> None:
        worker = new_worker(settings.worker_arguments(), SystemClock(), idle_ms=-1)
        (state,) = await worker.send(question)
        assert isinstance(state, TieredState)
        assert state.highest_offset_in_remote_storage > 0
        await worker.stop()

    asyncio.run(ask())


def tables(folder: Path, report: Report, runs: int) -> None:
    """Ratios of many to few; target: at most 2."""
    stores = {count: _fill(folder / str(count), count) for count in (FEW, MANY)}
    opened = {count: TopicTable(store, "orders") for count, store in stores.items()}
    parts: dict[str, Callable[[int], float]] = {
        "a worker's start to its first answer": lambda n: _seconds(lambda: _start(stores[n])),
        "reading the table alone": lambda n: _seconds(lambda: _load(stores[n])),
        "a plan of a few offsets in its process": lambda n: _seconds(lambda: _plan(stores[n], n)),
        "a commit": lambda n: _seconds(_commits(opened[n], n), COMMITS),
    }
    for name, measure in parts.items():
        many, few = [], []
        for _ in range(runs + 1):
            few.append(measure(FEW) * 1000)
            many.append(measure(MANY) * 1000)
        # The first does not count: the files may not be in memory.
        target = None if "alone" in name else 2.0
        report.add(
            Figure(
                name=f"{name}, {MANY} files / {FEW}",
                unit="ms",
                ours=many[1:],
                theirs=few[1:],
                at_most=target,
            )
        )
    shutil.rmtree(folder, ignore_errors=True)
