"""Which epoch owns which offsets, against a model that writes and truncates a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.lake.lineage import EpochRange, Lineage

CHAIN = Lineage(((0, 0), (2, 10), (5, 40)))


def test_epochs_of_offsets():
    assert [CHAIN.epoch_of(each) for each in (0, 9, 10, 39, 40, 10_000)] == [0, 0, 2, 2, 5, 5]
    assert Lineage(((3, 7),)).epoch_of(6) is None
    assert CHAIN.is_visible(2, 10)
    assert not CHAIN.is_visible(0, 10)


def test_ranges_are_cut():
    def spans(*bounds):
        return [(each.epoch, each.start_offset, each.end_offset) for each in CHAIN.ranges(*bounds)]

    assert spans() == [(0, 0, 9), (2, 10, 39), (5, 40, None)]
    assert spans(5, 12) == [(0, 5, 9), (2, 10, 12)]
    assert spans(45, 50) == [(5, 45, 50)]
    assert spans(45) == [(5, 45, None)]
    assert spans(50, 45) == []
    assert next(CHAIN.ranges(0, 3)) == EpochRange(epoch=0, start_offset=0, end_offset=3)


def test_a_segments_chain_starts_where_the_segment_does():
    assert CHAIN.slice(5, 45) == ((0, 5), (2, 10), (5, 40))
    assert CHAIN.slice(12, 13) == ((2, 12),)


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


def test_the_answer_to_offsets_for_leader_epoch():
    assert CHAIN.end_offset_for(5, 100) == (5, 100)
    assert CHAIN.end_offset_for(6, 100) == (-1, -1)
    assert CHAIN.end_offset_for(4, 100) == (2, 40)
    assert CHAIN.end_offset_for(2, 100) == (2, 40)
    assert CHAIN.end_offset_for(0, 100) == (0, 10)
    assert Lineage(((3, 7),)).end_offset_for(1, 100) == (1, 7)
    assert Lineage().end_offset_for(0, 100) == (-1, -1)


def test_divergence():
    assert CHAIN.divergence(Lineage(((0, 0), (2, 10))), 39) is None
    assert CHAIN.divergence(Lineage(((0, 0), (2, 10))), 40) == 40
    assert CHAIN.divergence(Lineage(((0, 0), (3, 10))), 100) == 10
    assert CHAIN.divergence(Lineage(((2, 20), (5, 40))), 100) is None
    assert CHAIN.divergence(Lineage(), 100) is None


def test_what_a_segment_must_look_like_to_be_of_this_history():
    assert CHAIN.holds(((0, 5), (2, 10)), 5, 20)
    assert CHAIN.holds(((2, 10),), 10, 39)
    assert not CHAIN.holds(((2, 10),), 10, 40)
    assert not CHAIN.holds(((1, 5), (2, 10)), 5, 20)
    assert not CHAIN.holds((), 5, 20)
    late = CHAIN.start_from(15)
    assert late.entries == ((2, 15), (5, 40))
    assert late.holds(((0, 5), (2, 10)), 5, 20)
    assert not late.holds(((0, 5),), 5, 9)


def test_truncation():
    assert CHAIN.truncate_to(40).entries == ((0, 0), (2, 10))
    assert CHAIN.truncate_to(41) == CHAIN
    assert CHAIN.truncate_to(0) == Lineage()
    assert CHAIN.start_from(40).entries == ((5, 40),)
    assert CHAIN.start_from(0) == CHAIN
    assert Lineage(((3, 7),)).start_from(2).entries == ((3, 7),)


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=12)


@given(steps)
def test_a_log_that_is_written_and_truncated(history):
    """The model keeps the epoch of each offset; the chain must agree about every one of them."""
    model: list[int] = []
    lineage = Lineage()
    for epoch, (truncate, amount) in enumerate(history):
        if truncate:
            del model[max(0, len(model) - amount) :]
            lineage = lineage.truncate_to(len(model))
        else:
            lineage = lineage.assign(epoch, len(model))
            model.extend([epoch] * amount)
    for offset, epoch in enumerate(model):
        assert lineage.epoch_of(offset) == epoch
    if model:
        covered = list(lineage.ranges(0, len(model) - 1))
        assert sum(each.end_offset - each.start_offset + 1 for each in covered) == len(model)
