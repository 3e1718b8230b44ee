"""Batches kept ready for consumers that read on."""

from broker.tier.pieces import Piece, PieceCache


def piece(first: int, sizes: list[int], span: int = 10) -> Piece:
    return Piece(
        first,
        tuple(bytes(size) for size in sizes),
        tuple(first + span * (i + 1) for i in range(len(sizes))),
    )


def test_at_least_one_batch_is_taken_and_then_what_fits() -> None:
    made = piece(0, [5, 5, 5])
    assert made.take(0, 1) == ((bytes(5),), 1)
    assert made.take(0, 10) == ((bytes(5), bytes(5)), 2)
    assert made.take(2, 1000) == ((bytes(5),), 3)
    assert (made.next_offset, made.size_bytes) == (30, 15)


def test_a_piece_is_found_where_a_consumer_goes_on() -> None:
    cache = PieceCache(100)
    made = piece(100, [5, 5, 5])
    cache.put("a", made)
    assert cache.find("a", 100) == (made, 0)
    assert cache.find("a", 120) == (made, 2)
    assert cache.find("a", 105) is None
    assert cache.find("a", 130) is None
    assert cache.find("b", 100) is None


def test_what_was_used_least_recently_goes() -> None:
    cache = PieceCache(30)
    for first in (0, 100, 200):
        cache.put("a", piece(first, [10]))
    cache.find("a", 0)
    cache.put("a", piece(300, [10]))
    assert cache.find("a", 100) is None
    assert cache.find("a", 0) is not None
    assert cache.size_bytes == 30


def test_one_piece_may_be_larger_than_the_bound() -> None:
    cache = PieceCache(10)
    cache.put("a", piece(0, [50]))
    assert cache.find("a", 0) is not None
    cache.put("a", piece(100, [5]))
    assert cache.find("a", 0) is None
    assert cache.size_bytes == 5


def test_a_piece_that_overlaps_takes_over_its_offsets() -> None:
    cache = PieceCache(100)
    cache.put("a", piece(0, [5, 5]))
    newer = piece(10, [7])
    cache.put("a", newer)
    assert cache.find("a", 10) == (newer, 0)
    cache.put("a", piece(0, [6, 6]))
    assert cache.find("a", 10) == (piece(0, [6, 6]), 1)


def test_an_owner_is_forgotten() -> None:
    cache = PieceCache(100)
    cache.put("a", piece(0, [5]))
    cache.put("b", piece(0, [5]))
    cache.forget("a")
    assert cache.find("a", 0) is None
    assert cache.find("b", 0) is not None
    assert cache.size_bytes == 5
