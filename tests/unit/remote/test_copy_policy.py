"""Which ranges are copied next, and when local segments may go."""

import itertools
from dataclasses import replace

import pytest

from broker.log.epochs import LeaderEpochs
from broker.log.values import EnrichedLogSegment
from broker.remote.copy_policy import (
    Backoff,
    CopyBacklog,
    CopyLag,
    CopyLimits,
    CopyPhase,
    CopyState,
    CopyView,
    choose,
    pending,
)
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

TOPIC_ID = b"t" * 16


def span(base: int, following: int, size: int = 1000) -> EnrichedLogSegment:
    return EnrichedLogSegment(base_offset=base, next_offset=following, size_bytes=size)


def view(
    closed: list[EnrichedLogSegment],
    *,
    copied: int = -1,
    stable: int = 10**9,
    start: int = 0,
    active: EnrichedLogSegment | None = None,
    partition: int = 0,
    topic_id: bytes = TOPIC_ID,
) -> CopyView:
    return CopyView(
        topic="t",
        topic_id=topic_id,
        partition=partition,
        leader_epoch=5,
        leader_epochs=LeaderEpochs([(2, 0), (4, 12), (5, 20)]),
        copied_offset=copied,
        log_start_offset=start,
        last_stable_offset=stable,
        rolled=closed,
        active=active,
    )


def offsets(ranges: list[RemoteLogSegment]) -> list[tuple[int, int]]:
    return [(each.start_offset, each.end_offset) for each in ranges]


CLOSED = [span(0, 10), span(10, 25), span(25, 26)]


def test_each_closed_segment_is_a_range_oldest_first() -> None:
    assert offsets(pending(view(CLOSED), with_active=False)) == [(0, 9), (10, 24), (25, 25)]


def test_what_is_copied_is_not_copied_again() -> None:
    assert offsets(pending(view(CLOSED, copied=9), with_active=False)) == [(10, 24), (25, 25)]
    assert pending(view(CLOSED, copied=25), with_active=False) == []


def test_a_range_begins_inside_a_segment_when_part_of_it_is_copied() -> None:
    found = pending(view(CLOSED, copied=17), with_active=False)
    assert offsets(found) == [(18, 24), (25, 25)]
    assert (found[0].leader_epoch, found[0].leader_epochs) == (5, ((4, 18), (5, 20)))
    assert found[0].size_bytes == round(1000 * 7 / 15)


def old_and_new() -> CopyView:
    """Segments of 1,000 bytes, a minute old, half a minute, and new; and 500 bytes that are not closed."""
    closed = [
        EnrichedLogSegment(
            base_offset=10 * at,
            next_offset=10 * at + 10,
            size_bytes=1_000,
            max_timestamp_ms=30_000 * at,
        )
        for at in range(3)
    ]
    active = EnrichedLogSegment(base_offset=30, next_offset=35, size_bytes=500)
    return replace(view(closed, active=active), bytes_behind=500)


@pytest.mark.parametrize(
    ("lag_ms", "lag_bytes", "count"),
    [
        # Nothing is held back where either is 0, whatever the other says (KIP-1241).
        (0, None, 4),
        (None, 0, 4),
        (0, 10**9, 4),
        # Old enough, or enough behind.
        (60_000, None, 1),
        (60_001, None, 0),
        (30_000, 10**9, 2),
        (None, 2_500, 1),
        (None, 1_500, 2),
        (60_000, 1_500, 2),
        (10**9, 500, 3),
        (10**9, 501, 2),
        (None, None, 0),
    ],
)
def test_a_lag_holds_back_what_is_young_and_has_little_behind_it(
    lag_ms: int | None, lag_bytes: int | None, count: int
) -> None:
    """And with it all that comes after; the active segment, too, which is never old."""
    lag = CopyLag(now_ms=60_000, lag_ms=lag_ms, lag_bytes=lag_bytes)
    found = pending(replace(old_and_new(), lag=lag), with_active=True)
    assert len(found) == count


def test_nothing_below_the_log_start_is_copied() -> None:
    assert offsets(pending(view(CLOSED, start=12), with_active=False)) == [(12, 24), (25, 25)]


@pytest.mark.parametrize(
    ("stable", "expected"), [(10, [(0, 9)]), (9, []), (24, [(0, 9)]), (25, [(0, 9), (10, 24)])]
)
def test_nothing_at_or_above_the_last_stable_offset_is_copied(
    stable: int, expected: list[tuple[int, int]]
) -> None:
    assert offsets(pending(view(CLOSED, stable=stable), with_active=False)) == expected
    # A closed segment that is not wholly stable is not cut, with lake.max.lag.ms neither: the
    # segment behind it must not be looked at.
    active = span(26, 40)
    assert (
        offsets(pending(view(CLOSED, stable=stable, active=active), with_active=True)) == expected
    )


def test_the_active_segment_is_copied_up_to_the_last_stable_offset() -> None:
    active = span(26, 40)
    found = pending(view(CLOSED, copied=25, stable=33, active=active), with_active=True)
    assert offsets(found) == [(26, 32)]
    assert pending(view(CLOSED, copied=25, stable=33, active=active), with_active=False) == []
    assert pending(view(CLOSED, copied=32, stable=33, active=active), with_active=True) == []
    found = pending(view(CLOSED, copied=32, stable=99, active=active), with_active=True)
    assert offsets(found) == [(33, 39)]


def test_ranges_are_contiguous_whatever_the_offsets() -> None:
    for copied, start, stable in itertools.product(range(-1, 30, 3), (0, 5, 26), range(0, 45, 4)):
        made = view(CLOSED, copied=copied, start=start, stable=stable, active=span(26, 40))
        expected = max(copied + 1, start)
        for each in pending(made, with_active=True):
            assert each.start_offset == expected
            assert each.end_offset < min(stable, 40)
            assert each.size_bytes > 0
            expected = each.end_offset + 1


def candidates(*views: CopyView) -> list[tuple[CopyView, list[RemoteLogSegment]]]:
    return [(each, pending(each, with_active=False)) for each in views]


def test_no_partition_starves() -> None:
    many = [span(i, i + 1, 100) for i in range(50)]
    found = candidates(*(view(many, partition=p) for p in range(4)))
    chosen = choose(found, CopyLimits(bytes_max=1000, ranges_max=100))
    assert [len(each) for each in chosen.values()] == [3, 3, 2, 2]
    chosen = choose(found, CopyLimits(bytes_max=10**9, ranges_max=6))
    assert [len(each) for each in chosen.values()] == [2, 2, 1, 1]
    for each in chosen.values():
        assert [one.start_offset for one in each] == list(range(len(each)))


def test_at_least_one_range_is_taken_however_large() -> None:
    found = candidates(view([span(0, 5, 10**12)]), view([span(0, 5, 10)], partition=1))
    chosen = choose(found, CopyLimits(bytes_max=1000))
    assert [(each.partition, each.size_bytes) for (each,) in chosen.values()] == [(0, 10**12)]


def test_a_large_range_does_not_keep_smaller_ones_of_others_out() -> None:
    found = candidates(
        view([span(0, 5, 600)]),
        view([span(0, 5, 900)], partition=1),
        view([span(0, 5, 300)], partition=2),
    )
    chosen = choose(found, CopyLimits(bytes_max=1000))
    assert [partition for _, partition in chosen] == [0, 2]


def test_nothing_to_do_is_nothing_chosen() -> None:
    assert choose(candidates(view([])), CopyLimits()) == {}


@pytest.mark.parametrize(
    ("pending", "behind"),
    [
        # Steady: all is taken each time.
        ([50, 100, 80, 100], [False] * 4),
        # A burst, or what lay there when the broker started.
        ([20, 900, 800, 700, 650, 600], [False] * 6),
        # More is closed than is copied, until nothing is left over.
        ([100, 120, 140, 130, 110, 90, 120], [False, False, True, True, True, False, False]),
        # What lay there, while as much is closed now and then as a copy takes.
        ([900, 800, 800, 850, 700, 750], [False] * 6),
    ],
)
def test_copies_that_do_not_keep_up_are_told_from_a_burst(
    pending: list[int], behind: list[bool]
) -> None:
    pace, found = CopyBacklog(), []
    for each in pending:
        left = max(0, each - 100)
        found.append(pace.is_behind_with(left))
        pace.copied(left)
    assert found == behind


def test_back_off_doubles_to_its_bound_and_is_forgotten() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1000)
    assert [backoff.failed(0) for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert not backoff.ready(999)
    assert backoff.ready(1000)
    backoff.succeeded()
    assert backoff.failed(0) == 100


def test_nothing_is_copied_or_deleted_before_the_lake_has_answered() -> None:
    state = CopyState()
    assert not state.may_copy(0)
    assert state.next_check_ms(10**9, 0) is None
    state.learnt(99, now_ms=1000)
    assert state.may_copy(1000)
    assert state.copied_offset == 99
    assert state.deletable_offset == -1


def test_local_segments_go_after_the_grace_time() -> None:
    state = CopyState()
    state.learnt(-1, now_ms=0)
    state.copying()
    assert not state.may_copy(0)
    state.finished(9, now_ms=100, commit=(1, "a"))
    state.copying()
    state.finished(24, now_ms=250, commit=(2, "b"))
    assert state.copied_offset == 24
    assert state.next_check_ms(150, 60) == 160
    assert state.aged_offset(159, 60) == -1
    assert state.aged_offset(160, 60) == 9
    assert state.next_check_ms(160, 60) == 0, "at once"
    question = state.question(160, 60)
    assert (question.offset, question.commits, question.is_whole) == (9, ((1, "a"),), False)
    assert state.deletable_offset == -1, "not before the commit is seen again"
    state.checked(question, [])
    assert state.deletable_offset == 9
    assert state.next_check_ms(160, 60) == 310
    question = state.question(310, 60)
    assert (question.offset, question.commits) == (24, ((2, "b"),))
    state.checked(question, [])
    assert state.deletable_offset == 24
    assert state.next_check_ms(10**6, 60) is None


def test_what_the_lake_tells_of_is_looked_for_as_a_whole() -> None:
    """Another leader's copies, those before a restart, and those of a try whose answer was lost."""
    state = CopyState()
    state.learnt(9, now_ms=0)
    question = state.question(60, 60)
    assert (question.offset, question.is_whole) == (9, True)
    state.copying()
    state.finished(19, now_ms=60, is_seen=False)
    state.checked(question, [])
    assert state.deletable_offset == -1, "more was told of meanwhile"
    question = state.question(120, 60)
    assert (question.offset, question.is_whole) == (19, True)
    state.checked(question, [])
    assert state.deletable_offset == 19
    state.copying()
    state.finished(29, now_ms=120, commit=(1, "a"))
    assert not state.question(180, 60).is_whole


def test_nothing_goes_from_the_first_missing_offset_on() -> None:
    state = CopyState()
    state.learnt(29, now_ms=0)
    state.checked(state.question(60, 60), [(10, 19), (25, 29)])
    assert state.deletable_offset == 9
    state.check_backoff.failed(60)
    assert state.may_copy(60), "copies go on"
    state.copying()
    state.finished(39, now_ms=60, commit=(1, "a"))
    assert state.next_check_ms(70, 60) == state.check_backoff.retry_at_ms > 70
    question = state.question(120, 60)
    assert (question.offset, question.is_whole) == (39, True)
    state.checked(question, [(25, 29)])
    assert (state.deletable_offset, state.missing) == (24, [(25, 29)])
    state.checked(state.question(120, 60), [])
    assert (state.deletable_offset, state.missing) == (39, [])
    state.checked(state.question(120, 60), [(5, 5)])
    assert state.deletable_offset == 4, "gone since: what is left stays"


def test_each_offset_that_nobody_can_read_counts_once() -> None:
    """The leader misses what its log has; the worker, what the store lost, wherever it lies."""
    state = CopyState()
    state.missing, state.lost_ranges = [(10, 19), (40, 49)], [(0, 4), (15, 29), (16, 17)]
    assert state.unavailable() == [(0, 4), (10, 29), (40, 49)]


def test_a_lost_end_is_copied_again_and_looked_for() -> None:
    state = CopyState()
    state.learnt(-1, now_ms=0)
    for start in (0, 10, 20):
        state.copying()
        state.finished(start + 9, now_ms=start, commit=(start, "a"))
    before = state.question(100, 60)
    state.lost(9)
    assert (state.copied_offset, state.may_copy(100)) == (9, True)
    state.checked(before, [])
    assert state.deletable_offset == -1, "an answer to what was asked before"
    assert state.question(100, 60).is_whole


def test_the_copied_offset_never_moves_back() -> None:
    state = CopyState()
    state.learnt(50, now_ms=0)
    state.learnt(40, now_ms=1)
    assert state.copied_offset == 50


def test_a_failure_waits_and_so_does_a_conflict() -> None:
    state = CopyState()
    state.learnt(-1, now_ms=0)
    state.copying()
    wait_ms = state.failed(now_ms=0)
    assert not state.may_copy(wait_ms - 1)
    assert state.may_copy(wait_ms)
    state.copying()
    assert state.pause("delta.appendOnly=true", now_ms=wait_ms)
    assert (state.phase, state.is_paused, state.allows_upkeep) == (CopyPhase.READY, True, False)
    longer_ms = state.backoff.retry_at_ms
    assert longer_ms - wait_ms > wait_ms
    assert not state.may_copy(longer_ms - 1)
    assert state.may_copy(longer_ms)
    state.copying()
    assert not state.pause("delta.appendOnly=true", now_ms=longer_ms)
    state.copying()
    state.finished(5, now_ms=10**6)
    assert state.resume()
    assert (state.is_paused, state.allows_upkeep) == (False, True)
    assert not state.resume()
