"""Cold reads that are kept, in memory and on disk: others at work on the table, restarts, topics that go."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker.worker.cache.disk_cache import DiskCache
from broker.worker.copier import Copier
from broker.worker.delta import reader as delta_reader
from broker.worker.delta import tables as delta_tables
from broker.worker.delta.chunk_builder import ChunkBuilder
from broker.worker.delta.reader import ColdRead
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.delta.tables import TopicTables
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.ipc import shared_memory
from kafka_ds.ipc.shared_memory import BrokerMemory, WorkerMemory
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import SystemDisk, new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.clock import ManualClock
from tests.fakes.settings import tier_settings
from tests.fakes.store import Hold
from tests.integration.tier_segments import (
    TOPIC,
    TOPIC_ID,
    all_records,
    cold_reads,
    copy_range,
    copy_request,
    segment,
)

COUNT = 400
FILE_ROWS = 80


class ColdLake:
    """A topic of one partition, read by one worker after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.store = LocalStore(str(folder / "lake"))
        self.start()
        copier = Copier(
            self.storage,
            RemoteLogMetadataManager(self.store, tier_settings(), CrashPoints()),
            node_id=1,
            crash_points=CrashPoints(),
            new_id=new_uuid,
        )
        for start in range(0, COUNT, FILE_ROWS):
            path = segment(folder / f"{start}.log", start, FILE_ROWS)
            source = copy_range(path, start, start + FILE_ROWS - 1)
            assert copier.copy(copy_request([source])).partitions[0].outcome == "finished"

    def start(self, *, memory_bytes: int = 0, shared: WorkerMemory | None = None) -> None:
        """A worker as new; without memory each read asks the disk."""
        self.cache = DiskCache(
            SystemDisk(), self.clock, str(self.folder / "cache"), bytes_max=1 << 20, ttl_ms=-1
        )
        self.cache.load()
        settings = tier_settings(lake_reader_cache_bytes=memory_bytes)
        self.storage = RemoteStorageManager(
            self.store, settings, CrashPoints(), cache=self.cache, memory=shared
        )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "lake" / "topics" / TOPIC))

    def offsets(self, start: int = 0) -> list[int]:
        found: list[int] = []
        for chunks in cold_reads(self.storage, start, max_bytes=1_000):
            found += [each.offset for each in all_records(chunks) if each.offset >= start]
            self.cache.work()
        return found


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ColdLake:
    # Each read looks at the table as it is now; nothing is prepared ahead by a thread.
    monkeypatch.setattr(delta_tables, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(delta_reader, "PREFETCHERS", 0)
    return ColdLake(tmp_path)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    "rewrite", [lambda table: table.delete('"offset" BETWEEN 100 AND 119'), None]
)
def test_rows_that_somebody_erases_do_not_come_back_out_of_a_cache(
    lake: ColdLake, rewrite: Callable[[DeltaTable], Any] | None, memory_bytes: int
) -> None:
    lake.start(memory_bytes=memory_bytes)
    everything = list(range(COUNT))
    for _ in range(3):
        assert lake.offsets() == everything
    if rewrite is not None:
        rewrite(lake.table)
        everything = [each for each in everything if not 100 <= each <= 119]
    assert lake.offsets() == everything
    lake.start()
    assert lake.offsets() == everything


def test_the_third_reader_reads_nothing_of_the_table_nor_does_one_after_a_restart(
    lake: ColdLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert lake.offsets() == list(range(COUNT))
    lake.start()
    monkeypatch.setattr(ChunkBuilder, "make", None)
    assert lake.offsets() == list(range(COUNT))
    # Wherever it begins.
    assert lake.offsets(123) == list(range(123, COUNT))
    assert (lake.cache.counts.misses, lake.cache.counts.hits > 4) == (0, True)
    monkeypatch.undo()
    lake.storage.delete_topic(TOPIC, TOPIC_ID)
    lake.cache.work()
    assert list((lake.folder / "cache").iterdir()) == []


def test_batches_lie_where_the_broker_sends_them_from_as_long_as_there_is_room(
    lake: ColdLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "SLACK_BYTES", 0)
    memory = BrokerMemory(32 * 1024)
    shared = WorkerMemory(memory.fd)
    lake.start(memory_bytes=1 << 20, shared=shared)

    def read(start: int, max_bytes: int = 1 << 20) -> ColdRead:
        return lake.storage.reader.read(
            TopicIdPartition(TOPIC_ID, TOPIC, 0), start, max_bytes=max_bytes, committed_only=True
        )

    def seen(found: ColdRead) -> list[memoryview]:
        return memory.view(1, [(at, size) for at, size in found.shared if at is not None])

    found = read(0)
    assert b"".join(seen(found)) == b"".join(found.chunks)
    assert [each.offset for each in all_records(found.chunks)] == list(range(FILE_ROWS))
    # More than fits is read: what was kept makes room, but for what somebody still has a view of.
    before = [bytes(each) for each in found.chunks]
    assert lake.offsets() == list(range(COUNT))
    assert [bytes(each) for each in found.chunks] == before
    held = [found]
    while all(at is not None for at, _ in held[-1].shared):
        lake.start(memory_bytes=0, shared=shared)
        held.append(read(0, max_bytes=1))
    assert b"".join(held[-1].chunks) == b"".join(before)[: held[-1].shared[0][1]]


def test_what_comes_after_a_chunk_is_prepared_while_somebody_is_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, as soon as the footer of the chunk's file says where that ends."""
    lake = ColdLake(tmp_path)
    lake.start(memory_bytes=16 << 20)
    snapshot = TopicSnapshot.load(lake.store, TOPIC)
    _, second, third = (each.path for each in snapshot.index.find(0, 0, 3 * FILE_ROWS - 1))
    footer, rows, ahead = Hold(), Hold(), threading.Event()
    looks: Counter[int] = Counter()
    read_footer, read_rows, look = FileReader.footer, FileReader.read, TopicTables.get

    def footers(reader: FileReader, path: str) -> Any:
        if path == second:
            footer.wait()
        return read_footer(reader, path)

    def reads(reader: FileReader, path: str, **how: Any) -> Any:
        if path == second:
            rows.wait()
        if path == third:
            ahead.set()
        return read_rows(reader, path, **how)

    def looking(tables: TopicTables, topic: str) -> Any:
        looks[threading.get_ident()] += 1
        return look(tables, topic)

    monkeypatch.setattr(FileReader, "footer", footers)
    monkeypatch.setattr(FileReader, "read", reads)
    monkeypatch.setattr(TopicTables, "get", looking)

    def read(offset: int) -> list[int]:
        found = lake.storage.reader.read(
            TopicIdPartition(TOPIC_ID, TOPIC, 0), offset, max_bytes=1, committed_only=True
        )
        return [each.offset for each in all_records(found.chunks)]

    read(0)
    assert footer.reached.wait(60)
    busy = {*looks}
    while max((n for thread, n in [*looks.items()] if thread not in busy), default=0) < 2:
        read(0)  # For the other thread, which is done with the first when it looks for the second.
        time.sleep(0.001)
    assert not ahead.is_set(), "nobody knows yet where that begins"
    footer.goes_on.set()
    assert rows.reached.wait(60)
    read(0)
    assert ahead.wait(60)
    assert read(2 * FILE_ROWS)[0] == 2 * FILE_ROWS
    with ThreadPoolExecutor(1) as consumer:
        waiting = consumer.submit(read, FILE_ROWS)
        assert not waiting.done()
        rows.goes_on.set()
        assert waiting.result(60)[0] == FILE_ROWS


def test_a_cache_that_is_harmed_between_two_reads_is_no_error(lake: ColdLake) -> None:
    for _ in range(2):
        lake.offsets()
    for number, path in enumerate(sorted((lake.folder / "cache").iterdir())):
        data = path.read_bytes()
        path.write_bytes((data[: len(data) // 2], b"", b"\0" * len(data))[number % 3])
    assert lake.offsets() == list(range(COUNT))
    for path in (lake.folder / "cache").iterdir():
        path.unlink()
    assert lake.offsets() == list(range(COUNT))
    shutil.rmtree(lake.folder / "cache")
    (lake.folder / "cache").write_text("a file where the folder was")
    for _ in range(4):
        assert lake.offsets() == list(range(COUNT))
    assert lake.cache.counts.is_off


def test_the_latest_record_is_found_whatever_was_erased_or_has_no_date(lake: ColdLake) -> None:
    """Statistics describe what was written: a file's largest value may be deleted, or lie below the log start."""
    found = lake.storage.reader.times.max_timestamp(
        TopicIdPartition(TOPIC_ID, TOPIC, 0), start_offset=0
    )
    assert found is not None
    assert found[1:] == (COUNT - 1, 3)
    lake.table.delete(f'"offset" >= {COUNT - 10}')
    lake.start()
    assert lake.storage.reader.times.max_timestamp(
        TopicIdPartition(TOPIC_ID, TOPIC, 0), start_offset=0
    ) == (
        found[0] - 10,
        COUNT - 11,
        3,
    )
    lake.storage.set_log_start(
        TopicIdPartition(TOPIC_ID, TOPIC, 0), leader_epoch=3, offset=COUNT - 5
    )
    lake.start()
    assert (
        lake.storage.reader.times.max_timestamp(
            TopicIdPartition(TOPIC_ID, TOPIC, 0), start_offset=0
        )
        is None
    )


def test_who_reads_ahead_outlives_what_nobody_thought_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = ColdLake(tmp_path)
    monkeypatch.setattr(delta_reader, "AHEAD_BYTES", 1)  # A row group, of which there are several.
    find, tried = TopicTables.get, threading.Semaphore(0)

    def fails_ahead(tables: TopicTables, topic: str) -> Any:
        if threading.current_thread() is threading.main_thread():
            return find(tables, topic)
        tried.release()
        raise ValueError("nobody thought of it")

    monkeypatch.setattr(TopicTables, "get", fails_ahead)
    for _ in range(2):
        assert lake.offsets() == list(range(COUNT))
        assert tried.acquire(timeout=120), "what comes next is prepared no more"
    assert "orders-0: read-ahead from offset" in caplog.text
    assert "nobody thought of it" in caplog.text
