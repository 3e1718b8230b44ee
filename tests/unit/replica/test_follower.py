"""The follower's decisions: which answers count, how far a log is cut, what a fetch session sends."""

from __future__ import annotations

import pytest

from broker.log.epochs import LeaderEpochs
from broker.replica.fetcher.fetchers import fetcher_id_of
from broker.replica.fetcher.session import FetchSessionClient
from broker.replica.follower.state import FetchState, FollowerAction, FollowerState
from broker.replica.follower.truncation import (
    OutOfRangeAction,
    Truncation,
    out_of_range_action,
    truncation_for,
)
from broker.replica.session_epochs import EPOCH_MAX, INITIAL_EPOCH
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.protocol.topic_partition import TopicPartition

# The follower has epoch 1 in [0, 10), 3 in [10, 20), 5 in [20, 30).
EPOCHS = ((1, 0), (3, 10), (5, 20))
END = 30


def following(*, end: int = END, epoch: int = 5, watermark: int = 12) -> FollowerState:
    follower = FollowerState(high_watermark=watermark)
    follower.follow(2, 7, log_end_offset=end, last_epoch=epoch)
    return follower


@pytest.mark.parametrize(
    ("epoch", "end_offset", "offset", "is_complete"),
    [
        (5, 25, 25, True),  # the leader's end of our last epoch
        (5, 30, 30, True),  # nothing to cut
        (5, 44, 30, True),  # the leader has more: nothing to cut
        (3, 15, 15, True),  # an epoch before, which both know, and of which the leader has less
        (3, 22, 20, True),  # of which the leader has more than we: our own end of it
        (
            4,
            22,
            20,
            False,
        ),  # one that we do not know: to where our next smaller ends, and ask again (KIP-279)
        (2, 12, 10, False),
        (0, 0, 0, True),  # older than all of ours: whatever it wrote ended where ours begin
        (9, 50, 30, True),  # an answer for a later epoch than asked for: no epoch of ours says more
        (-1, 17, 17, True),  # a leader that knows of no epochs
        (-1, 99, 30, True),
        (-1, -1, 12, True),  # nothing known at all: what is committed
    ],
)
def test_how_far_a_log_is_cut(epoch: int, end_offset: int, offset: int, is_complete: bool) -> None:
    cut = truncation_for(
        LeaderEpochEnd(epoch=epoch, end_offset=end_offset),
        LeaderEpochs(EPOCHS),
        log_end_offset=END,
        high_watermark=12,
    )
    assert cut == Truncation(offset=offset, is_complete=is_complete)


def test_a_log_without_epochs_is_cut_to_the_leaders_end() -> None:
    cut = truncation_for(
        LeaderEpochEnd(epoch=4, end_offset=22),
        LeaderEpochs(),
        log_end_offset=END,
        high_watermark=12,
    )
    assert cut == Truncation(offset=22, is_complete=True)


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "recovery"),
    [
        (0, 29, OutOfRangeAction.TRUNCATE),
        (31, 40, OutOfRangeAction.RESTART),
        (0, 30, OutOfRangeAction.GO_ON),
        (30, 40, OutOfRangeAction.GO_ON),
    ],
)
def test_an_offset_that_the_leader_does_not_have(
    leader_start: int, leader_end: int, recovery: OutOfRangeAction
) -> None:
    found = out_of_range_action(
        log_end_offset=END, leader_end_offset=leader_end, leader_start_offset=leader_start
    )
    assert found is recovery


def test_with_an_epoch_to_compare_it_fetches_at_once_and_without_one_it_cuts_first() -> None:
    assert following().state is FetchState.FETCHING
    assert following(epoch=-1).state is FetchState.TRUNCATING
    follower = following()
    follower.truncate_before_fetching()
    assert follower.state.name == "TRUNCATING"
    follower.truncated(20, 3, is_complete=False)
    assert (follower.state, follower.fetch_position.fetch_offset) == (FetchState.TRUNCATING, 20)
    follower.truncated(10, 1)
    assert follower.state.name == "FETCHING"
    assert follower.high_watermark == 10  # what is not there any more is not committed here


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, FollowerAction.APPEND),
        (ErrorCode.OFFSET_OUT_OF_RANGE, FollowerAction.OUT_OF_RANGE),
        (ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, FollowerAction.TIERED),
        (ErrorCode.FENCED_LEADER_EPOCH, FollowerAction.FAIL),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FollowerAction.RETRY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FollowerAction.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_ID, FollowerAction.RETRY),
        (ErrorCode.INCONSISTENT_TOPIC_ID, FollowerAction.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, FollowerAction.RETRY),
        (ErrorCode.KAFKA_STORAGE_ERROR, FollowerAction.RETRY),
        (30_000, FollowerAction.RETRY),
    ],
)
def test_what_an_answer_asks_for(code: int, verdict: FollowerAction) -> None:
    assert following().action_for(code, is_diverging=False) is verdict


def test_a_diverging_epoch_is_cut_to_and_not_appended() -> None:
    assert following().action_for(ErrorCode.NONE, is_diverging=True) is FollowerAction.TRUNCATE


def test_an_answer_counts_for_its_question_alone() -> None:
    follower = following()
    position = follower.fetch_position
    assert follower.is_current(position)
    follower.appended(31, 5, 12)
    assert not follower.is_current(position)  # it came twice
    follower = following()
    follower.truncated(20, 3)
    assert not follower.is_current(position)  # the log was cut meanwhile
    follower = following()
    follower.follow(3, 8, log_end_offset=END, last_epoch=5)
    assert not follower.is_current(position)  # another leader's
    follower = following()
    follower.fail()
    assert not follower.is_current(position)


def test_the_high_watermark_is_the_least_of_both_and_never_goes_back() -> None:
    follower = following(watermark=12)
    assert follower.appended(35, 5, 33)
    assert (follower.high_watermark, follower.lag, follower.is_caught_up) == (33, 0, True)
    assert follower.appended(36, 5, 90)
    assert (follower.high_watermark, follower.lag, follower.is_caught_up) == (36, 54, False)
    assert not follower.appended(40, 5, 20)  # a new leader that has not heard of all yet
    assert follower.high_watermark == 36


def test_a_follower_that_was_held_back_is_not_due_before_its_time() -> None:
    follower = following()
    follower.delay(1_000)
    assert not follower.is_due(999)
    assert follower.is_ready(1_000)
    follower.fail()
    assert not follower.is_due(2_000)
    follower.follow(2, 7, log_end_offset=END, last_epoch=5)  # new metadata
    assert follower.is_ready(0)


def test_a_leader_that_has_not_heard_yet_is_asked_again_soon_and_then_later() -> None:
    follower = following()
    waits = [follower.backoff_ms(ErrorCode.NOT_LEADER_OR_FOLLOWER, 100) for _ in range(6)]
    assert waits == [10, 20, 40, 80, 100, 100]
    assert follower.backoff_ms(ErrorCode.UNKNOWN_LEADER_EPOCH, 1) == 1
    assert follower.backoff_ms(ErrorCode.KAFKA_STORAGE_ERROR, 100) == 100
    follower.follow(2, 7, log_end_offset=END, last_epoch=5)
    assert follower.backoff_ms(ErrorCode.UNKNOWN_LEADER_EPOCH, 100) == 10
    follower.appended(END, 5, END)
    assert follower.backoff_ms(ErrorCode.NOT_LEADER_OR_FOLLOWER, 100) == 10


# -- sessions ---------------------------------------------------------------------------------------

A, B, C = (b"a" * 16, 0), (b"a" * 16, 1), (b"c" * 16, 0)


def wanted(offset: int) -> FetchPartition:
    return FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)


def test_a_session_sends_what_has_changed_and_forgets_what_is_not_wanted() -> None:
    session = FetchSessionClient()
    first = session.request({A: wanted(1), B: wanted(2)})
    assert (first.session_id, first.session_epoch, set(first.to_send)) == (0, 0, {A, B})
    assert session.answered(ErrorCode.NONE, 77, [A, B])
    second = session.request({A: wanted(1), B: wanted(3), C: wanted(4)})
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert set(second.to_send) == {B, C}
    assert session.answered(ErrorCode.NONE, 77, [])
    third = session.request({B: wanted(3), C: wanted(4)})
    assert (third.session_epoch, dict(third.to_send), third.to_forget) == (2, {}, [A])
    assert session.answered(ErrorCode.NONE, 77, [C])


def test_a_leader_without_sessions_is_asked_in_full_each_time() -> None:
    session = FetchSessionClient()
    for offset in range(3):
        request = session.request({A: wanted(offset)})
        assert request.session_epoch == INITIAL_EPOCH
        assert session.answered(ErrorCode.NONE, 0, [A])


def opened() -> FetchSessionClient:
    session = FetchSessionClient()
    session.request({A: wanted(1), B: wanted(2)})
    assert session.answered(ErrorCode.NONE, 77, [A, B])
    session.request({A: wanted(2), B: wanted(2)})
    return session


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 77),
    ],
)
def test_an_error_begins_a_new_session_and_closes_one_that_may_still_be_there(
    code: ErrorCode, session_id: int
) -> None:
    session = opened()
    assert not session.answered(code, 0, [])
    request = session.request({A: wanted(2), B: wanted(2)})
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert set(request.to_send) == {A, B}


def test_an_answer_for_what_was_not_asked_is_not_used() -> None:
    session = opened()
    assert not session.answered(ErrorCode.NONE, 77, [C])
    assert session.request({A: wanted(2)}).session_epoch == INITIAL_EPOCH
    session = FetchSessionClient()
    session.request({A: wanted(1), B: wanted(2)})
    assert not session.answered(ErrorCode.NONE, 77, [A])  # half of a full answer
    assert session.request({A: wanted(2)}).session_epoch == INITIAL_EPOCH


def test_no_answer_begins_a_new_session() -> None:
    session = opened()
    session.failed()
    request = session.request({A: wanted(2)})
    assert (request.session_id, request.session_epoch) == (77, 0)


def test_the_epoch_of_a_session_wraps_to_one() -> None:
    session = opened()
    session.epoch = EPOCH_MAX
    assert session.answered(ErrorCode.NONE, 77, [])
    assert session.request({A: wanted(2), B: wanted(2)}).session_epoch == 1


# -- which fetcher ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "partition", "fetchers", "expected"),
    [
        # Of Java: Math.abs(31 * "orders".hashCode() + 3) % 4, and so on.
        ("a", 0, 4, (31 * 97) % 4),
        ("ab", 7, 5, (31 * (97 * 31 + 98) + 7) % 5),
        ("", 5, 3, 2),
        ("polygenelubricants", 0, 7, 0),  # the hash is the one number without a magnitude
    ],
)
def test_the_fetcher_of_a_partition_is_kafkas(
    topic: str, partition: int, fetchers: int, expected: int
) -> None:
    assert fetcher_id_of(TopicPartition(topic, partition), fetchers) == expected


def test_one_fetcher_has_all() -> None:
    partitions = [TopicPartition("t", index) for index in range(50)]
    assert {fetcher_id_of(each, 1) for each in partitions} == {0}
    assert {fetcher_id_of(each, 4) for each in partitions} == {0, 1, 2, 3}
