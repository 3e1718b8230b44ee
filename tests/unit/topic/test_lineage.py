"""Which epoch owns which offsets, and where two logs differ, against logs that hold the epoch of each offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.topic.lineage import Lineage

CHAIN = Lineage(((0, 0), (2, 10), (5, 40)))


def test_epochs_of_offsets():
    assert [CHAIN.epoch_of(each) for each in (0, 9, 10, 39, 40, 10_000)] == [0, 0, 2, 2, 5, 5]
    assert Lineage(((3, 7),)).epoch_of(6) is None


def test_assigning():
    assert Lineage().assign(0, 0).assign(1, 0).entries == ((1, 0),)
    assert CHAIN.assign(5, 99) == CHAIN
    assert CHAIN.assign(6, 40).entries == ((0, 0), (2, 10), (6, 40))
    assert CHAIN.assign(7, 5).entries == ((0, 0), (7, 5))
    assert Lineage.of([(0, 0), (1, 5), (2, 5)]).entries == ((0, 0), (2, 5))


@pytest.mark.parametrize("entries", [((1, 0), (1, 5)), ((1, 0), (0, 5)), ((0, 5), (1, 5))])
def test_a_chain_rises(entries):
    with pytest.raises(AssertionError):
        Lineage(entries)


def test_divergence():
    assert CHAIN.divergence(Lineage(((0, 0), (2, 10))), 39) is None
    assert CHAIN.divergence(Lineage(((0, 0), (2, 10))), 40) == 40
    assert CHAIN.divergence(Lineage(((0, 0), (3, 10))), 100) == 10
    assert CHAIN.divergence(Lineage(((2, 20), (5, 40))), 100) is None
    assert CHAIN.divergence(Lineage(), 100) is None


# How many offsets each epoch has written, and where the log begins now.
logs = st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 5))


def written(log: tuple[list[int], int]) -> tuple[Lineage, dict[int, int]]:
    """The chain of such a log, and the epoch of each of its offsets."""
    counts, start_offset = log
    epochs = [epoch for epoch, count in enumerate(counts) for _ in range(count)]
    known = {offset: epoch for offset, epoch in enumerate(epochs) if offset >= start_offset}
    starts = [(epoch, max(sum(counts[:epoch]), start_offset)) for epoch in range(len(counts))]
    return Lineage.of(each for each in starts if each[1] in known), known


@given(logs, logs)
def test_two_logs_differ_at_the_first_offset_that_both_hold_of_different_epochs(one, other):
    chain, epochs = written(one)
    second, others = written(other)
    assert all(chain.epoch_of(offset) == epoch for offset, epoch in epochs.items())
    both = sorted(epochs.keys() & others.keys())
    if both:
        differing = [offset for offset in both if epochs[offset] != others[offset]]
        assert chain.divergence(second, both[-1]) == (differing[0] if differing else None)
