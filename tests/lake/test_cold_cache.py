"""Cold reads that are kept, in memory and on disk: others at work on the table, restarts, topics that go."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker.worker.cache.chunk_files import ChunkKey
from broker.worker.cache.chunks import BatchChunk
from broker.worker.cache.disk_cache import DiskCache
from broker.worker.copier import Copier
from broker.worker.delta import reader as delta_reader
from broker.worker.delta import tables as delta_tables
from broker.worker.delta.reader import ColdRead, ColdReader
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.ipc import shared_memory
from kafka_ds.ipc.shared_memory import BrokerMemory, WorkerMemory
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import SystemDisk, new_uuid
from tests.fakes.clock import ManualClock
from tests.fakes.settings import tier_settings
from tests.integration.tier_segments import (
    TOPIC,
    TOPIC_ID,
    all_records,
    copy_range,
    copy_request,
    segment,
)

COUNT = 400
FILE_ROWS = 80


class Lake:
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
        while True:
            read = self.storage.reader.read(
                TOPIC, TOPIC_ID, 0, start, max_bytes=1_000, committed_only=True
            )
            found += [each.offset for each in all_records(read.chunks) if each.offset >= start]
            start = read.next_offset
            self.cache.work()
            if start > read.tiered_end:
                return found


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    # Each read looks at the table as it is now; nothing is prepared ahead by a thread.
    monkeypatch.setattr(delta_tables, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(ColdReader, "_prepare_ahead", lambda *_: None)
    return Lake(tmp_path)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    "rewrite", [lambda table: table.delete('"offset" BETWEEN 100 AND 119'), None]
)
def test_rows_that_somebody_erases_do_not_come_back_out_of_a_cache(
    lake: Lake, rewrite: Callable[[DeltaTable], Any] | None, memory_bytes: int
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
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert lake.offsets() == list(range(COUNT))
    lake.start()
    monkeypatch.setattr(ColdReader, "_build", None)
    assert lake.offsets() == list(range(COUNT))
    # Wherever it begins.
    assert lake.offsets(123) == list(range(123, COUNT))
    assert (lake.cache.counts.misses, lake.cache.counts.hits > 4) == (0, True)
    monkeypatch.undo()
    lake.storage.delete_topic(TOPIC, TOPIC_ID)
    lake.cache.work()
    assert list((lake.folder / "cache").iterdir()) == []


def test_batches_lie_where_the_broker_sends_them_from_as_long_as_there_is_room(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "SLACK_BYTES", 0)
    memory = BrokerMemory(32 * 1024)
    lake.start(memory_bytes=1 << 20, shared=WorkerMemory(memory.fd))

    def read(start: int, max_bytes: int = 1 << 20) -> ColdRead:
        return lake.storage.reader.read(
            TOPIC, TOPIC_ID, 0, start, max_bytes=max_bytes, committed_only=True
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
        lake.start(memory_bytes=0, shared=lake.storage.reader.builder._memory)
        held.append(read(0, max_bytes=1))
    assert b"".join(held[-1].chunks) == b"".join(before)[: held[-1].shared[0][1]]


def test_an_answer_goes_on_in_the_next_chunk_if_it_is_there(lake: Lake) -> None:
    lake.start(memory_bytes=1 << 20)
    cold = lake.storage.reader
    key = ChunkKey(topic_id=TOPIC_ID, partition=0, committed_only=True, layout="0" * 16)
    first = BatchChunk(0, (b"aa", b"bb"), (5, 10), 0)
    assert cold._runs(key, first, 0, 100) == ([first.slice(0, 2)], 10, 10)
    second = BatchChunk(10, (b"cc", b"dd"), (15, 20), 64)
    cold.cache.put(key, second)
    assert cold._runs(key, first, 1, 4) == ([((b"bb",), 2), ((b"cc",), 64)], 20, 15)
    assert cold._runs(key, first, 0, 100)[1:] == (20, 20)
    # The first batch at least, and no part of any.
    assert cold._runs(key, first, 1, 1) == ([((b"bb",), 2)], 10, 10)
    assert cold._runs(key, first, 0, 3) == ([((b"aa",), 0)], 10, 5)


def test_what_comes_after_a_chunk_is_prepared_while_somebody_is_at_that(lake: Lake) -> None:
    lake.start(memory_bytes=16 << 20)
    cold, place = lake.storage.reader, delta_reader._Place(TOPIC, TOPIC_ID, 0, True)

    def there(offset: int) -> bool:
        return cold.cache.find(place.key(cold._files(place, offset).layout), offset) is not None

    key = place.key(cold._files(place, 0).layout)
    _, work, is_mine = cold._claim(key, 0)
    assert is_mine
    assert cold._claim(key, 0) == (None, work, False)
    cold._read_ahead(place, 0)
    assert not there(FILE_ROWS), "nobody knows yet where that begins"
    work.following = cold._following(place, 0, 1)
    cold._read_ahead(place, 0)
    assert [there(offset) for offset in (0, FILE_ROWS)] == [False, True]
    chunk, _ = cold._prepare(place, key.layout, 0, 1, 1, work)
    assert chunk.next_offset == work.following == FILE_ROWS
    assert work.done.is_set()
    assert cold._claim(key, 0)[0] == (chunk, 0)
    assert not cold._preparing


def test_a_cache_that_is_harmed_between_two_reads_is_no_error(lake: Lake) -> None:
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


def test_the_latest_record_is_found_whatever_was_erased_or_has_no_date(lake: Lake) -> None:
    """Statistics describe what was written: a file's largest value may be deleted, or lie below the log start."""
    found = lake.storage.reader.times.max_timestamp(TOPIC, TOPIC_ID, 0, start_offset=0)
    assert found is not None
    assert found[1:] == (COUNT - 1, 3)
    lake.table.delete(f'"offset" >= {COUNT - 10}')
    lake.start()
    assert lake.storage.reader.times.max_timestamp(TOPIC, TOPIC_ID, 0, start_offset=0) == (
        found[0] - 10,
        COUNT - 11,
        3,
    )
    lake.storage.move_log_start(TOPIC, TOPIC_ID, 0, leader_epoch=3, offset=COUNT - 5)
    lake.start()
    assert lake.storage.reader.times.max_timestamp(TOPIC, TOPIC_ID, 0, start_offset=0) is None


def test_who_reads_ahead_outlives_what_nobody_thought_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path)
    monkeypatch.setattr(delta_reader, "AHEAD_BYTES", 1)  # A row group, of which there are several.
    find, tried = ColdReader._files, threading.Semaphore(0)

    def fails_ahead(reader: ColdReader, *where: Any, **how: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return find(reader, *where, **how)
        tried.release()
        raise ValueError("nobody thought of it")

    monkeypatch.setattr(ColdReader, "_files", fails_ahead)
    for _ in range(2):
        assert lake.offsets() == list(range(COUNT))
        assert tried.acquire(timeout=120), "what comes next is prepared no more"
    assert "orders-0: read-ahead from offset" in caplog.text
    assert "nobody thought of it" in caplog.text
