"""Chunks of cold reads and the shared memory that holds them: what is evicted to make room."""

import os
from typing import Any

import pytest

from broker.worker.cache.chunks import BatchChunk
from broker.worker.delta.reader import ColdReader
from kafka_ds.ipc import shared_memory
from kafka_ds.ipc.shared_memory import BrokerMemory, WorkerMemory
from tests.fakes.settings import tier_settings

CHUNK_BYTES = 1024
OWNER = "a partition"


class CachedReader:
    """A reader's cache, and memory for four chunks."""

    def __init__(self) -> None:
        broker = BrokerMemory(4 * CHUNK_BYTES)
        self.memory = WorkerMemory(os.dup(broker.fd))
        broker.close_fd()
        settings = tier_settings(lake_reader_cache_bytes=1 << 20)
        nothing: Any = None
        self.cold = ColdReader(nothing, nothing, nothing, settings, memory=self.memory)

    def add(self, first_offset: int, size_bytes: int = CHUNK_BYTES) -> bool:
        """Place a chunk and keep it; whether it lies in the shared memory."""
        made = BatchChunk(first_offset, (bytes(size_bytes),), (first_offset + 10,))
        chunk = self.cold.builder.placed(made)
        self.cold.cache.put(OWNER, chunk)
        return chunk.shared_at is not None

    def there(self) -> list[int]:
        return sorted(first_offset for _, first_offset in self.cold.cache)

    def lease(self, first_offset: int) -> int:
        found = self.cold.cache.find(OWNER, first_offset)
        assert found is not None
        return self.memory.lease(found[0].slice(0, 1).batches)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> CachedReader:
    monkeypatch.setattr(shared_memory, "SLACK_BYTES", 0)
    return CachedReader()


def test_what_is_leased_and_what_lies_elsewhere_is_kept_as_it_would_make_no_room(
    reader: CachedReader,
) -> None:
    assert [reader.add(first) for first in (0, 10, 20, 30)] == [True] * 4
    leases = [reader.lease(first) for first in (0, 10, 20, 30)]
    twice = reader.lease(10)
    assert [reader.add(first) for first in (40, 50, 60)] == [False] * 3
    assert reader.there() == [0, 10, 20, 30, 40, 50, 60]
    reader.memory.end(leases[1:3])
    assert reader.add(70), "the oldest that is nobody's any more made room"
    assert reader.there() == [0, 10, 30, 40, 50, 60, 70]
    reader.memory.end([twice, 999])
    assert reader.add(80)
    assert reader.there() == [0, 30, 40, 50, 60, 70, 80]


def test_what_is_larger_than_the_memory_drives_nothing_out(reader: CachedReader) -> None:
    assert [reader.add(first) for first in (0, 10)] == [True] * 2
    assert not reader.add(20, 4 * CHUNK_BYTES + 1)
    assert reader.there() == [0, 10, 20]
    assert reader.add(30, 3 * CHUNK_BYTES)


def test_where_letting_go_frees_nothing_it_is_given_up(reader: CachedReader) -> None:
    assert [reader.add(first) for first in (0, 10, 20, 30)] == [True] * 4
    # As those do that are on their way to the disk: their views are no lease.
    held = [reader.cold.cache.find(OWNER, first) for first in (0, 10, 20, 30)]
    assert not reader.add(40)
    assert reader.there() == [20, 30, 40]
    del held
