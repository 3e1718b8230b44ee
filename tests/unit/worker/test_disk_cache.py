"""The cache of cold reads on disk: found, kept over restarts, torn, switched off; readers and what goes under them."""

import errno
import logging
import threading
from pathlib import Path
from random import Random

import pytest

from broker.worker.cache.chunk_files import (
    ChunkKey,
    CorruptChunkFile,
    decode_chunk,
    encode_chunk,
    file_name,
)
from broker.worker.cache.chunk_files import parse_file_name as parse
from broker.worker.cache.chunks import BatchChunk
from broker.worker.cache.disk_cache import OVERHEAD_BYTES, WRITES_MAX, DiskCache
from kafka_ds.process.system import SystemClock, SystemDisk
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.processes import wait_until

FOLDER = "/log/remote-log-index-cache"
KIB = 1024


def key(
    partition: int = 0, layout: str = "00000000000000aa", *, committed: bool = True
) -> ChunkKey:
    return ChunkKey(
        topic_id=b"t" * 16, partition=partition, committed_only=committed, layout=layout
    )


def chunk(first: int, *, batches: int = 3, size: int = 100, span: int = 10) -> BatchChunk:
    return BatchChunk(
        first,
        tuple(bytes([at]) * size for at in range(batches)),
        tuple(first + span * (at + 1) for at in range(batches)),
    )


class CacheDesk:
    """A cache over a disk and a clock that a test holds; its thread's work is done by the test."""

    def __init__(self, bytes_max: int = 1 << 20, ttl_ms: int = -1) -> None:
        self.disk, self.clock = MemoryDisk(), ManualClock()
        self.limits = {"bytes_max": bytes_max, "ttl_ms": ttl_ms}
        self.restart()

    def restart(self) -> None:
        self.disk.now_ms = self.clock.ms
        self.cache = DiskCache(self.disk, self.clock, FOLDER, **self.limits)
        self.cache.load()
        self.cache.work()

    def keep(self, of: ChunkKey, made: BatchChunk) -> None:
        """As a read does that had to make it twice."""
        for _ in range(2):
            if self.cache.find(of, made.first_offset) is None:
                self.cache.offer(of, made)
                self.disk.now_ms = self.clock.ms
                self.cache.work()

    def files(self) -> list[str]:
        return sorted(self.disk.list_names(FOLDER))


def test_the_second_time_it_is_read_it_is_there() -> None:
    desk = CacheDesk()
    assert desk.cache.find(key(), 0) is None
    desk.cache.offer(key(), chunk(0))
    desk.cache.work()
    assert desk.files() == []
    assert desk.cache.find(key(), 0) is None
    desk.cache.offer(key(), chunk(0))
    desk.cache.work()
    assert desk.cache.find(key(), 0) == (chunk(0), 0)
    # From the middle of a batch its reader gets the whole of it.
    assert desk.cache.find(key(), 19) == (chunk(0), 1)
    assert desk.cache.find(key(), 30) is None
    assert desk.cache.find(key(1), 0) is None
    assert desk.cache.find(key(committed=False), 0) is None
    assert (desk.cache.counts.hits, desk.cache.counts.misses) == (2, 5)
    assert desk.cache.counts.size_bytes == 300 + OVERHEAD_BYTES


def test_names_and_files_say_what_they_are() -> None:
    for of in (key(), key(7, committed=False)):
        name = file_name(of, 5, 35)
        assert parse(name) == (of, 5, 35)
        data = b"".join(encode_chunk(of, chunk(5)))
        assert decode_chunk(of.name(5), data) == chunk(5)
        with pytest.raises(CorruptChunkFile):
            decode_chunk(of.name(6), data)
        for at in range(len(data)):
            with pytest.raises(CorruptChunkFile):
                decode_chunk(of.name(5), data[:at])
            torn = bytearray(data)
            torn[at] ^= 0x40
            with pytest.raises(CorruptChunkFile):
                decode_chunk(of.name(5), bytes(torn))
    assert parse("x.batches") is parse(name + ".tmp") is parse("45_x.index") is None


def test_it_survives_restarts_and_what_was_half_done_does_not() -> None:
    desk = CacheDesk(ttl_ms=60_000)
    desk.keep(key(), chunk(0))
    desk.keep(key(), chunk(30))
    path = f"{FOLDER}/{desk.files()[0]}"
    for suffix in (".tmp", ".deleted"):
        desk.disk.open(path + suffix, create=True).close()
    desk.disk.open(f"{FOLDER}/not-ours", create=True).close()
    desk.clock.ms += 30_000
    desk.restart()
    assert len(desk.files()) == 3
    assert desk.cache.find(key(), 0) == (chunk(0), 0)
    desk.clock.ms += 40_000
    desk.cache.work()
    # Its age is the file's, for what nobody has read since.
    assert desk.cache.find(key(), 30) is None
    assert desk.cache.find(key(), 0) == (chunk(0), 0)


@pytest.mark.parametrize("harm", ["torn", "empty", "zeros", "another's"])
def test_a_file_that_is_not_what_it_was_is_noticed(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = CacheDesk()
    desk.keep(key(), chunk(0))
    desk.keep(key(1), chunk(0))
    mine, other = (f"{FOLDER}/{name}" for name in desk.files())
    size = desk.disk.size(mine)
    data = {
        "torn": desk.disk.read_file(mine)[: size // 2],
        "empty": b"",
        "zeros": bytes(size),
        "another's": desk.disk.read_file(other),
    }[harm]
    file = desk.disk.open(mine)
    file.truncate(0)
    file.write(data, 0)
    file.close()
    desk.restart()
    with caplog.at_level(logging.WARNING):
        assert desk.cache.find(key(), 0) is None
    assert "deleting the corrupt file" in caplog.text
    desk.cache.work()
    assert len(desk.files()) == 1
    assert desk.cache.find(key(1), 0) == (chunk(0), 0)
    desk.keep(key(), chunk(0))
    assert desk.cache.find(key(), 0) == (chunk(0), 0)


@pytest.mark.parametrize("operation", ["open", "write", "rename", "unlink", "all"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_switched_off_and_said_once(
    operation: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    desk = CacheDesk(bytes_max=2 * (OVERHEAD_BYTES + 300), ttl_ms=1_000)
    desk.keep(key(), chunk(0))
    desk.disk.failing_with = number
    desk.disk.failing.add(operation)
    desk.disk.broken |= {"/log"} if operation == "all" else set()
    with caplog.at_level(logging.WARNING):
        desk.keep(key(), chunk(100))
        desk.cache.find(key(), 0)
        desk.clock.ms += 5_000
        desk.cache.work()
    assert desk.cache.counts.is_off
    assert desk.cache.find(key(), 0) is None
    desk.keep(key(), chunk(200))
    assert caplog.text.count("disabled the cache of cold reads") == 1
    # The next worker tries again.
    desk.disk.failing.clear()
    desk.disk.broken.clear()
    desk.restart()
    desk.keep(key(), chunk(0))
    assert desk.cache.find(key(), 0) == (chunk(0), 0)


@pytest.mark.parametrize("operation", ["open", "write"])
def test_a_disk_that_is_full_gets_back_what_the_cache_had(operation: str) -> None:
    """It is the logs' disk: they need the room, and nobody will look into these files again."""
    desk = CacheDesk()
    desk.keep(key(), chunk(0))
    desk.keep(key(1), chunk(0))
    desk.disk.open(f"{FOLDER}/not-ours", create=True).close()
    desk.disk.failing_with = errno.ENOSPC
    desk.disk.failing.add(operation)
    desk.keep(key(), chunk(100))
    assert desk.cache.counts.is_off and desk.cache.counts.size_bytes == 0
    assert desk.files() == ["not-ours"]


def test_a_chunk_that_is_let_go_and_taken_again_before_it_was_written_is_kept() -> None:
    desk = CacheDesk(bytes_max=300 + OVERHEAD_BYTES)
    # Each in its turn is worth more than the other, and there is room for one.
    for partition, times in ((0, 2), (1, 3), (0, 2)):
        for _ in range(times):
            assert desk.cache.find(key(partition), 0) is None
        desk.cache.offer(key(partition), chunk(0))
    desk.cache.work()
    assert desk.cache.find(key(), 0) == (chunk(0), 0)
    assert len(desk.files()) == 1
    assert desk.cache.counts.size_bytes == 300 + OVERHEAD_BYTES


def test_a_folder_that_cannot_be_made_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    desk = CacheDesk()
    desk.disk.broken.add("/log")
    with caplog.at_level(logging.WARNING):
        desk.restart()
    assert "disabled the cache of cold reads" in caplog.text
    assert desk.cache.find(key(), 0) is None


def test_what_others_have_written_anew_is_not_found_and_goes() -> None:
    """After OPTIMIZE or DELETE by key the table's files have other names: erased records do not come back."""
    desk = CacheDesk()
    desk.keep(key(), chunk(0))
    desk.keep(key(), chunk(30))
    anew = key(layout="00000000000000bb")
    assert desk.cache.find(anew, 15) is None
    desk.cache.work()
    assert [parse(name)[1] for name in desk.files()] == [30]  # type: ignore[index]
    desk.keep(anew, chunk(30, size=50))
    assert desk.cache.find(anew, 30) == (chunk(30, size=50), 0)
    assert desk.cache.find(key(), 30) is None
    assert len(desk.files()) == 1


def test_a_topic_is_forgotten() -> None:
    desk = CacheDesk()
    for partition in range(3):
        desk.keep(key(partition), chunk(0))
    desk.cache.forget(b"other-topic-id--")
    assert len(desk.files()) == 3
    desk.cache.forget(b"t" * 16)
    desk.cache.work()
    assert (desk.files(), desk.cache.counts.size_bytes) == ([], 0)


def test_the_bound_holds_on_disk() -> None:
    room = 4 * (OVERHEAD_BYTES + 10 * KIB)
    desk = CacheDesk(bytes_max=room)
    for at in range(12):
        for _ in range(2 + at):
            desk.cache.find(key(), 100 * at)
        desk.keep(key(), chunk(100 * at, batches=1, size=10 * KIB))
        on_disk = sum(desk.disk.size(f"{FOLDER}/{name}") for name in desk.files())
        assert on_disk <= desk.cache.counts.size_bytes <= room
    assert len(desk.files()) == 4
    desk.limits["bytes_max"] = room // 2
    desk.restart()
    assert len(desk.files()) == 2


def test_what_is_being_read_is_hidden_first_and_deleted_when_its_reader_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = CacheDesk()
    desk.keep(key(), chunk(0))
    (name,) = desk.files()
    read_file = desk.disk.read_file

    def forgotten_meanwhile(path: str) -> bytes:
        data = read_file(path)
        desk.cache.forget(b"t" * 16)
        desk.cache.work()
        assert desk.files() == [f"{name}.deleted"]
        return data

    monkeypatch.setattr(desk.disk, "read_file", forgotten_meanwhile)
    assert desk.cache.find(key(), 0) == (chunk(0), 0)
    desk.cache.work()
    assert desk.files() == []


def test_chunks_that_come_faster_than_the_disk_takes_them_are_let_go() -> None:
    desk = CacheDesk()
    for at in range(WRITES_MAX + 5):
        for _ in range(2):
            desk.cache.find(key(), 100 * at)
        desk.cache.offer(key(), chunk(100 * at))
    desk.cache.work()
    assert len(desk.files()) == WRITES_MAX


def test_many_readers_at_once_get_what_is_theirs(tmp_path: Path) -> None:
    """With its thread at work, little room, and topics that go."""
    cache = DiskCache(SystemDisk(), SystemClock(), str(tmp_path), bytes_max=100_000, ttl_ms=-1)
    cache.start()
    keys = [key(partition) for partition in range(3)]
    chunks = {at: chunk(at, batches=2, size=5_000, span=5) for at in range(0, 300, 10)}
    wrong: list[int] = []

    def read(seed: int) -> None:
        random = Random(seed)
        for _ in range(400):
            of, at = random.choice(keys), min(290, int(random.expovariate(1 / 40)) // 10 * 10)
            found = cache.find(of, at)
            if found is None:
                cache.offer(of, chunks[at])
            elif found != (chunks[at], 0):
                wrong.append(at)
            if random.random() < 0.005:
                cache.forget(of.topic_id)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert not cache.counts.is_off
    assert cache.counts.size_bytes <= 100_000

    def size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:  # Its thread has just deleted it.
            return 0

    def is_done() -> bool:
        return sum(map(size, tmp_path.iterdir())) <= cache.counts.size_bytes

    wait_until("what its thread has to do", is_done)


def test_a_smaller_cache_deletes_what_has_no_room_and_a_larger_one_takes_more() -> None:
    size = chunk(0).size_bytes + OVERHEAD_BYTES
    desk = CacheDesk(bytes_max=3 * size)
    for first in (0, 30, 60):
        desk.keep(key(), chunk(first))
    assert len(desk.files()) == 3
    desk.cache.resize(size)
    desk.cache.work()
    assert [desk.cache.find(key(), first) is not None for first in (0, 30, 60)] == [
        False,
        False,
        True,
    ]
    assert len(desk.files()) == 1
    desk.cache.resize(2 * size)
    desk.keep(key(), chunk(90))
    assert len(desk.files()) == 2
    desk.cache.resize(0)
    desk.cache.work()
    desk.keep(key(), chunk(120))
    assert desk.files() == []
