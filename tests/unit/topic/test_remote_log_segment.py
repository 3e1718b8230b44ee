"""The life of a tiered range: every pair of states, and what each method sees in each state."""

from dataclasses import replace
from itertools import product

import pytest

from kafka_ds.topic import remote_log_segment as states
from kafka_ds.topic.remote_log_segment import (
    RemoteLogMetadataCache,
    RemoteLogSegment,
    RemoteLogSegmentState,
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
    ("state", "listed"), [(STARTED, True), (FINISHED, True), (DELETING, True), (DELETED, False)]
)
def test_what_each_method_sees(state, listed):
    known = segment(1, 10, 19)
    segments = RemoteLogMetadataCache(lived(known, state))
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
    assert [each.state for each in segments.list()] == [FINISHED]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4)])
def test_a_segment_has_offsets(start, end):
    with pytest.raises(AssertionError):
        segment(1, start, end)
