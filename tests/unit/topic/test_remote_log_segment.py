"""The life of a tiered range: every pair of states, and what each method sees in each state."""

from dataclasses import replace
from itertools import product

import pytest

from kafka_ds.topic import remote_log_segment as states
from kafka_ds.topic.remote_log_segment import (
    RemoteLogMetadataCache,
    RemoteLogSegment,
    RemoteLogSegmentState,
    epoch_ranges,
    is_valid_transition,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
TOPIC_ID = bytes(range(16))


def segment(number, start, end, epochs=((0, 0),), state=STARTED):
    chain = [(epoch, max(at, start)) for epoch, at in epochs]
    return RemoteLogSegment(
        topic="orders",
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=bytes([number]) * 16,
        state=state,
        start_offset=start,
        end_offset=end,
        leader_epochs=tuple(chain),
    )


def lived(known, up_to):
    """Events from the first state to `up_to`."""
    path = {STARTED: [STARTED], FINISHED: [STARTED, FINISHED]}
    path[DELETING] = [*path[FINISHED], DELETING]
    path[DELETED] = [*path[DELETING], DELETED]
    return [replace(known, state=state) for state in path[up_to]]


def test_kafkas_ids():
    assert [(state.name, state.value) for state in RemoteLogSegmentState] == [
        ("COPY_SEGMENT_STARTED", 0),
        ("COPY_SEGMENT_FINISHED", 1),
        ("DELETE_SEGMENT_STARTED", 2),
        ("DELETE_SEGMENT_FINISHED", 3),
    ]


def test_every_pair_of_states():
    allowed = {
        (None, STARTED),
        (STARTED, FINISHED),
        (STARTED, DELETING),
        (FINISHED, DELETING),
        (DELETING, DELETED),
        *((state, state) for state in RemoteLogSegmentState),
    }
    for pair in product((None, *RemoteLogSegmentState), RemoteLogSegmentState):
        assert is_valid_transition(*pair) == (pair in allowed), pair


@pytest.mark.parametrize(
    ("state", "found", "highest", "listed"),
    [
        (STARTED, False, False, True),
        (FINISHED, True, True, True),
        (DELETING, False, True, True),
        (DELETED, False, True, False),
    ],
)
def test_what_each_method_sees(state, found, highest, listed):
    known = segment(1, 10, 19)
    segments = RemoteLogMetadataCache(lived(known, state))
    assert (segments.segment(0, 15) is not None) == found
    assert (segments.highest_offset_for_epoch(0) == 19) == highest
    assert bool(segments.list()) == listed
    assert (segments.by_id(known.segment_id) is not None) == listed


def test_repeated_events_change_nothing():
    known = segment(1, 0, 9)
    segments = RemoteLogMetadataCache()
    for event in lived(known, DELETING):
        assert segments.replay(event)
        assert segments.replay(event)
    assert segments.replay(replace(known, state=DELETED))
    assert segments.replay(replace(known, state=DELETED))
    assert not segments.replay(replace(known, state=STARTED))
    assert not segments.replay(replace(known, state=FINISHED))
    assert segments.list() == []


def test_of_what_was_deleted_the_last_are_remembered(monkeypatch):
    monkeypatch.setattr(states, "DELETED_MAX", 3)
    many = [segment(number, 0, 9) for number in range(1, 6)]
    segments = RemoteLogMetadataCache(event for known in many for event in lived(known, DELETED))
    assert [segments.replay(each) for each in reversed(many)] == [False] * 3 + [True] * 2


def test_events_that_no_transition_allows_are_dropped():
    segments = RemoteLogMetadataCache()
    assert not segments.replay(segment(1, 0, 9, state=FINISHED))
    assert not segments.replay(segment(1, 0, 9, state=DELETED))
    for event in lived(segment(2, 0, 9), FINISHED):
        segments.replay(event)
    assert not segments.replay(segment(2, 0, 9, state=STARTED))
    assert segments.segment(0, 5) is not None


def test_a_segment_is_found_by_epoch_and_offset():
    first = segment(1, 0, 99, epochs=((0, 0), (2, 50)))
    second = segment(2, 100, 199, epochs=((2, 100), (3, 150)))
    segments = RemoteLogMetadataCache([*lived(second, FINISHED), *lived(first, FINISHED)])
    assert segments.segment(0, 49).segment_id == first.segment_id
    assert segments.segment(0, 50) is None
    assert segments.segment(2, 50).segment_id == first.segment_id
    assert segments.segment(2, 149).segment_id == second.segment_id
    assert segments.segment(2, 150) is None
    assert segments.segment(3, 199).segment_id == second.segment_id
    assert segments.segment(3, 200) is None
    assert segments.segment(1, 10) is None
    assert [segments.highest_offset_for_epoch(epoch) for epoch in range(5)] == [
        49,
        None,
        149,
        199,
        None,
    ]


def test_a_longer_copy_from_the_same_offset_takes_over():
    short, long = segment(1, 0, 9), segment(2, 0, 19)
    segments = RemoteLogMetadataCache([*lived(short, FINISHED), *lived(long, FINISHED)])
    assert segments.segment(0, 5).segment_id == long.segment_id
    assert len(segments.list()) == 2
    for state in (DELETING, DELETED):
        segments.replay(replace(short, state=state))
    assert segments.segment(0, 5).segment_id == long.segment_id
    assert len(segments.list()) == 1


def test_a_chain_is_cut_to_its_segment():
    assert epoch_ranges(segment(1, 10, 20, epochs=((0, 0), (1, 15), (2, 20)))) == [
        (0, 10, 14),
        (1, 15, 19),
        (2, 20, 20),
    ]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4)])
def test_a_segment_has_offsets(start, end):
    with pytest.raises(AssertionError):
        segment(1, start, end)
