"""Batches kept ready for consumers that read on."""

from dataclasses import replace

from broker.worker.cache.chunks import BatchChunk, ChunkCache


def chunk(first: int, sizes: list[int], span: int = 10) -> BatchChunk:
    return BatchChunk(
        first,
        tuple(bytes(size) for size in sizes),
        tuple(first + span * (i + 1) for i in range(len(sizes))),
    )


def test_what_fits_is_taken_and_where_it_lies() -> None:
    made = chunk(0, [5, 5, 5])
    assert [made.end_of(0, size) for size in (1, 10, 14, 1000)] == [0, 2, 2, 3]
    assert made.end_of(2, 1000) == 3
    assert made.slice(0, 2) == ((bytes(5), bytes(5)), None)
    assert (made.next_offset, made.size_bytes) == (30, 15)
    shared = replace(made, shared_at=64)
    assert (shared.slice(1, 3).shared_at, shared.slice(1, 3).size_bytes) == (69, 10)


def test_a_chunk_is_found_where_a_consumer_goes_on() -> None:
    cache = ChunkCache(100)
    made = chunk(100, [5, 5, 5])
    cache.put("a", made)
    assert cache.find("a", 100) == (made, 0)
    assert cache.find("a", 120) == (made, 2)
    assert cache.find("a", 105) is None
    assert cache.find("a", 130) is None
    assert cache.find("b", 100) is None


def test_an_answer_goes_on_in_the_next_chunk_if_it_is_there() -> None:
    cache = ChunkCache(100)
    first = BatchChunk(0, (b"aa", b"bb"), (5, 10), 0)
    assert cache.slices("a", first, 0, 100) == ([first.slice(0, 2)], 10, 10)
    cache.put("a", BatchChunk(10, (b"cc", b"dd"), (15, 20), 64))
    assert cache.slices("a", first, 1, 4) == ([((b"bb",), 2), ((b"cc",), 64)], 20, 15)
    assert cache.slices("a", first, 0, 100)[1:] == (20, 20)
    # The first batch at least, and no part of any.
    assert cache.slices("a", first, 1, 1) == ([((b"bb",), 2)], 10, 10)
    assert cache.slices("a", first, 0, 3) == ([((b"aa",), 0)], 10, 5)


def test_what_was_used_least_recently_goes() -> None:
    cache = ChunkCache(30)
    for first in (0, 100, 200):
        cache.put("a", chunk(first, [10]))
    cache.find("a", 0)
    cache.put("a", chunk(300, [10]))
    assert cache.find("a", 100) is None
    assert cache.find("a", 0) is not None
    assert cache.size_bytes == 30


def test_one_chunk_may_be_larger_than_the_bound() -> None:
    cache = ChunkCache(10)
    cache.put("a", chunk(0, [50]))
    assert cache.find("a", 0) is not None
    cache.put("a", chunk(100, [5]))
    assert cache.find("a", 0) is None
    assert cache.size_bytes == 5


def test_a_chunk_that_overlaps_takes_over_its_offsets() -> None:
    cache = ChunkCache(100)
    cache.put("a", chunk(0, [5, 5]))
    newer = chunk(10, [7])
    cache.put("a", newer)
    assert cache.find("a", 10) == (newer, 0)
    cache.put("a", chunk(0, [6, 6]))
    assert cache.find("a", 10) == (chunk(0, [6, 6]), 1)


def test_an_owner_is_forgotten() -> None:
    cache = ChunkCache(100)
    cache.put("a", chunk(0, [5]))
    cache.put("b", chunk(0, [5]))
    cache.forget("a")
    assert cache.find("a", 0) is None
    assert cache.find("b", 0) is not None
    assert cache.size_bytes == 5


def test_the_oldest_is_let_go_until_nothing_is_left() -> None:
    cache = ChunkCache(100)
    for first in (0, 100):
        cache.put("a", chunk(first, [5]))
    assert cache.drop_oldest()
    assert (cache.find("a", 0), cache.size_bytes) == (None, 5)
    assert cache.drop_oldest()
    assert not cache.drop_oldest()
