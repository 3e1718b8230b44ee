"""The ISR: when the leader proposes a change, and what each answer leads to."""

from dataclasses import replace

import pytest

from broker.metadata.events import RECOVERED, RECOVERING, PartitionRegistration
from broker.replica.leader.effects import AdvanceHighWatermark, CountIsrChange, ProposeIsr
from broker.replica.leader.isr import (
    AlterPartitionAnswer,
    CommittedIsr,
    PartitionState,
    PendingExpand,
    PendingShrink,
    Proposal,
)
from broker.replica.leader.state import RETRY_MS, LeaderState
from kafka_ds.protocol.errors import ErrorCode
from tests.unit.replica.leaders import (
    END,
    LAG_MS,
    T0,
    THREE,
    LeadingBroker,
    brokers,
    changed,
    elected,
    fetch,
    leader,
    proposal_of,
)

TWO_IN_SYNC = replace(THREE, isr=(1, 2))
AWAITING = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def expanding() -> tuple[LeaderState, Proposal]:
    """A leader that proposes to add 3 to 1 and 2; all are caught up."""
    partition = elected(TWO_IN_SYNC)
    fetch(partition, 2, END)
    return partition, proposal_of(fetch(partition, 3, END))


def shrinking() -> tuple[LeaderState, Proposal]:
    """A leader that asks to be rid of 3, which never came further than 6."""
    partition = elected(THREE)
    fetch(partition, 3, 6)
    fetch(partition, 2, END, now_ms=T0 + LAG_MS)
    return partition, proposal_of(partition.tick(T0 + LAG_MS + 1))


def answer_to(proposal: Proposal, **changes: object) -> AlterPartitionAnswer:
    """The controller has done as it was asked."""
    done = AlterPartitionAnswer(
        error=ErrorCode.NONE,
        isr=tuple(member for member, _ in proposal.isr),
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch + 1,
    )
    return replace(done, **changes)  # type: ignore[arg-type]


# -- coming in ----------------------------------------------------------------------------------


def test_a_follower_that_has_caught_up_is_proposed_with_its_epochs() -> None:
    partition, proposal = expanding()
    assert proposal == Proposal(
        isr=((1, -1), (2, 102), (3, 103)),
        leader_epoch=4,
        partition_epoch=9,
        leader_recovery_state=RECOVERED,
    )
    assert partition.state == PendingExpand(frozenset({1, 2}), frozenset({1, 2, 3}), proposal)
    assert partition.isr == {1, 2}


def test_one_that_has_the_committed_but_not_the_epochs_start_is_not() -> None:
    """Between the two may lie what an earlier leader has acknowledged."""
    partition = elected(TWO_IN_SYNC, end=10, high=5)
    assert fetch(partition, 3, 5) == ()
    assert fetch(partition, 3, 9) == ()
    assert proposal_of(fetch(partition, 3, 10))


def test_one_that_has_the_epochs_start_but_not_the_committed_is_not() -> None:
    partition = elected(TWO_IN_SYNC)
    partition.appended(20, T0)
    fetch(partition, 2, 15)
    assert partition.high_watermark == 15
    assert fetch(partition, 3, 14) == ()
    assert proposal_of(fetch(partition, 3, 15))


@pytest.mark.parametrize(
    "broker",
    [
        None,
        LeadingBroker(103, fenced=True),
        LeadingBroker(103, in_controlled_shutdown=True),
        LeadingBroker(102),
    ],
)
def test_one_that_the_controller_would_refuse_is_not(broker: LeadingBroker | None) -> None:
    known = brokers()
    if broker is None:
        del known[3]
    else:
        known[3] = broker
    partition = elected(TWO_IN_SYNC, known=known)
    assert fetch(partition, 3, END) == ()
    known[3] = LeadingBroker(103)
    assert proposal_of(fetch(partition, 3, END))


def test_a_fetch_without_a_broker_epoch_is_taken_for_right() -> None:
    partition = elected(TWO_IN_SYNC)
    assert proposal_of(fetch(partition, 3, END, broker_epoch=-1)).isr[-1] == (3, -1)


def test_one_change_at_a_time() -> None:
    partition = elected(replace(THREE, isr=(1,)))
    assert proposal_of(fetch(partition, 2, END)).members == {1, 2}
    assert fetch(partition, 3, END) == ()
    assert partition.tick(T0 + 10 * LAG_MS) == ()


def test_the_one_that_is_being_added_must_have_what_counts() -> None:
    partition, _ = expanding()
    partition.appended(20, T0)
    fetch(partition, 2, 20)
    late = T0 + 5 * LAG_MS
    assert partition.tick(late) == ()
    assert partition.high_watermark == END
    assert fetch(partition, 3, 18, now_ms=late) == (AdvanceHighWatermark(18),)


# -- going out ----------------------------------------------------------------------------------


def test_one_that_is_stuck_is_proposed_to_go() -> None:
    partition = elected(THREE)
    fetch(partition, 2, END)
    assert partition.tick(T0 + LAG_MS) == ()
    late = T0 + LAG_MS + 1
    fetch(partition, 2, END, now_ms=late)
    proposal = proposal_of(partition.tick(late))
    assert proposal.isr == ((1, -1), (2, 102))
    assert partition.state == PendingShrink(frozenset({1, 2, 3}), proposal)


def test_one_that_has_all_is_never_late() -> None:
    partition = elected(THREE)
    fetch(partition, 2, END)
    fetch(partition, 3, END)
    assert partition.tick(T0 + 100 * LAG_MS) == ()


def test_one_that_is_always_a_little_behind_stays() -> None:
    """Each fetch reaches the log end as it was at the previous fetch."""
    partition = elected(replace(THREE, replicas=(1, 2), isr=(1, 2)))
    for round_ in range(20):
        end = partition.effective_end_offset
        partition.appended(end + 5, T0)
        fetch(partition, 2, end, now_ms=T0 + round_ * 400)
        assert partition.tick(T0 + round_ * 400) == ()


def test_one_that_falls_back_ever_more_goes() -> None:
    partition = elected(replace(THREE, replicas=(1, 2), isr=(1, 2)))
    gone = 0
    for round_ in range(1, 8):
        partition.appended(partition.effective_end_offset + 50, T0)
        fetch(partition, 2, END + round_, now_ms=T0 + round_ * 400)
        gone += len(partition.tick(T0 + round_ * 400))
    assert gone == 1


def test_one_that_is_proposed_to_go_holds_the_high_watermark_still() -> None:
    partition, proposal = shrinking()
    assert partition.high_watermark == 6
    effects = partition.alter_partition_answered(proposal, answer_to(proposal), T0 + LAG_MS + 1)
    assert effects == (CountIsrChange(shrunk=True), AdvanceHighWatermark(END))
    assert partition.isr == {1, 2}


def test_the_leader_alone_lags_behind_nobody() -> None:
    partition = elected(replace(THREE, replicas=(1,), isr=(1,)))
    assert partition.tick(T0 + 10 * LAG_MS) == ()


def test_nobody_can_follow_a_recovering_leader_and_nobody_is_late() -> None:
    partition = leader(replace(THREE, leader_recovery_state=RECOVERING))
    assert partition.tick(T0 + 10 * LAG_MS) == ()


# -- answers ------------------------------------------------------------------------------------


def test_success_is_committed_with_its_epoch() -> None:
    partition, proposal = expanding()
    effects = partition.alter_partition_answered(proposal, answer_to(proposal), T0)
    assert effects == (CountIsrChange(expanded=True),)
    assert partition.state == CommittedIsr(frozenset({1, 2, 3}))
    assert partition.partition_epoch == 10
    # What the metadata say of the same change is no news, but for what an answer does not tell.
    same = changed(THREE, replicas=(1, 2, 3, 4))
    assert partition.registration_changed(same, T0) == ()
    assert partition.replicas == (1, 2, 3, 4)


def test_metadata_of_the_same_epoch_do_not_take_back_what_is_asked_for_next() -> None:
    partition, proposal = shrinking()
    done = T0 + LAG_MS + 1
    partition.alter_partition_answered(proposal, answer_to(proposal), done)
    again = proposal_of(fetch(partition, 3, END, now_ms=done))
    partition.registration_changed(changed(TWO_IN_SYNC), done)
    assert partition.state == PendingExpand(frozenset({1, 2}), frozenset({1, 2, 3}), again)


@pytest.mark.parametrize("begin", [expanding, shrinking])
def test_a_success_of_another_epoch_is_none(begin: object) -> None:
    partition, proposal = begin()  # type: ignore[operator]
    state = partition.state
    for wrong in ({"leader_epoch": 5}, {"partition_epoch": 8}):
        effects = partition.alter_partition_answered(proposal, answer_to(proposal, **wrong), T0)
        assert effects == (CountIsrChange(),)
        assert partition.state is state


@pytest.mark.parametrize("code", AWAITING)
@pytest.mark.parametrize("begin", [expanding, shrinking])
def test_an_outdated_proposal_waits_for_metadata(begin: object, code: ErrorCode) -> None:
    partition, proposal = begin()  # type: ignore[operator]
    state = partition.state
    assert partition.alter_partition_answered(proposal, AlterPartitionAnswer(error=code), T0) == (
        CountIsrChange(),
    )
    # It may have been carried out: until then the maximal ISR stays what it is.
    assert partition.state is state
    assert fetch(partition, 3, END) == () or partition.state is state
    partition.registration_changed(changed(THREE, isr=(1, 3)), T0)
    assert partition.state == CommittedIsr(frozenset({1, 3}))


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_was_not_done_for_certain_is_as_before(code: ErrorCode) -> None:
    partition, proposal = expanding()
    partition.appended(20, T0)
    fetch(partition, 2, 20)
    late = T0 + LAG_MS + 1
    effects = partition.alter_partition_answered(proposal, AlterPartitionAnswer(error=code), late)
    assert effects == (CountIsrChange(), AdvanceHighWatermark(20))
    assert partition.state == CommittedIsr(frozenset({1, 2}))
    assert proposal_of(fetch(partition, 3, 20, now_ms=late))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_a_passing_trouble_is_asked_again_soon(code: ErrorCode) -> None:
    partition, proposal = expanding()
    effects = partition.alter_partition_answered(proposal, AlterPartitionAnswer(error=code), T0)
    assert effects == (CountIsrChange(), ProposeIsr(proposal, RETRY_MS))
    partition.alter_partition_answered(proposal, answer_to(proposal), T0)
    assert partition.isr == {1, 2, 3}


def test_metadata_that_come_first_win() -> None:
    partition, proposal = expanding()
    assert partition.registration_changed(changed(TWO_IN_SYNC, isr=(1, 2, 3)), T0) == (
        CountIsrChange(expanded=True),
    )
    assert partition.state == CommittedIsr(frozenset({1, 2, 3}))
    for answer in (
        answer_to(proposal),
        AlterPartitionAnswer(error=ErrorCode.INVALID_UPDATE_VERSION),
    ):
        assert partition.alter_partition_answered(proposal, answer, T0) == ()
    assert partition.isr == {1, 2, 3}


def test_an_answer_to_an_earlier_proposal_says_nothing() -> None:
    partition, first = expanding()
    partition.registration_changed(changed(TWO_IN_SYNC), T0)
    second = proposal_of(fetch(partition, 3, END))
    assert first != second
    state = partition.state
    assert partition.alter_partition_answered(first, answer_to(first), T0) == ()
    assert partition.state is state


# -- the table of isr.py ------------------------------------------------------------------------


def committed() -> tuple[LeaderState, Proposal]:
    partition, proposal = expanding()
    partition.alter_partition_answered(proposal, answer_to(proposal), T0)
    return partition, proposal


@pytest.mark.parametrize(
    ("begin", "kind", "isr", "maximal"),
    [
        (committed, CommittedIsr, {1, 2, 3}, {1, 2, 3}),
        (expanding, PendingExpand, {1, 2}, {1, 2, 3}),
        (shrinking, PendingShrink, {1, 2, 3}, {1, 2, 3}),
    ],
)
def test_what_is_committed_and_what_must_have_a_record(
    begin: object, kind: type[PartitionState], isr: set[int], maximal: set[int]
) -> None:
    partition, _ = begin()  # type: ignore[operator]
    state = partition.state
    assert (type(state), state.isr, state.maximal_isr) == (kind, isr, maximal)


@pytest.mark.parametrize("begin", [committed, expanding, shrinking])
@pytest.mark.parametrize("newer", [changed(THREE, isr=(1, 2)), changed(THREE, leader_epoch=5)])
def test_newer_metadata_end_whatever_is_under_way(
    begin: object, newer: PartitionRegistration
) -> None:
    partition, _ = begin()  # type: ignore[operator]
    partition.registration_changed(replace(newer, partition_epoch=30), T0)
    assert partition.state == CommittedIsr(frozenset(newer.isr))
