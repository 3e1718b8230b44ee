"""The leader's view of a partition: every transition of the high watermark, and what may be done."""

from dataclasses import replace

import pytest

from broker.metadata.events import RECOVERED, RECOVERING
from broker.replica.leader.effects import AdvanceHighWatermark
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.unit.replica.leaders import (
    ALONE,
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
)


def test_what_a_leader_holds_alone_is_committed_at_once() -> None:
    partition = leader(ALONE)
    assert partition.elected(END, T0) == (AdvanceHighWatermark(10),)
    assert partition.appended(12, T0) == (AdvanceHighWatermark(12),)
    assert partition.appended(12, T0) == ()
    assert partition.high_watermark == 12


def test_the_high_watermark_is_the_least_end_of_the_isr() -> None:
    partition = leader(THREE)
    assert partition.elected(END, T0) == ()
    assert fetch(partition, 2, 8) == ()
    assert fetch(partition, 3, 7) == (AdvanceHighWatermark(7),)
    assert fetch(partition, 3, 10) == (AdvanceHighWatermark(8),)
    assert fetch(partition, 2, 10) == (AdvanceHighWatermark(10),)


def test_the_high_watermark_never_moves_back() -> None:
    partition = elected(THREE, high=9)
    fetch(partition, 2, 3)
    assert fetch(partition, 3, 3) == ()
    assert partition.high_watermark == 9


def test_the_high_watermark_is_never_below_what_the_lake_holds() -> None:
    """A new leader's followers have told nothing yet; what was copied was committed."""
    partition = leader(THREE)
    partition.elected(END, T0)
    assert partition.lake_reaches(8) == (AdvanceHighWatermark(8),)
    assert partition.lake_reaches(7) == ()
    assert partition.lake_reaches(END + 5) == (AdvanceHighWatermark(END),), "not beyond its log"
    assert fetch(partition, 2, 9) == ()
    assert partition.high_watermark == END


def test_what_is_not_durable_here_is_not_committed_though_followers_have_it() -> None:
    partition = elected(THREE)
    for replica in (2, 3):
        partition.fetched(
            replica, fetch_offset=14, log_start_offset=0, leader_log_end_offset=14, now_ms=T0
        )
    assert partition.high_watermark == 10
    assert partition.appended(12, T0) == (AdvanceHighWatermark(12),)
    assert partition.appended(15, T0) == (AdvanceHighWatermark(14),)


def test_a_follower_outside_the_isr_that_lags_does_not_count() -> None:
    partition = elected(replace(THREE, isr=(1, 2)))
    assert fetch(partition, 3, 0) == ()
    assert fetch(partition, 2, 10) == (AdvanceHighWatermark(10),)


def test_one_outside_the_isr_that_is_caught_up_and_may_join_counts() -> None:
    """It may be in the controller's ISR before this leader learns so (KIP-497)."""
    known = brokers()
    partition = elected(replace(THREE, isr=(1, 2)), known=known)
    known[3].fenced = True
    fetch(partition, 3, 10)
    known[3].fenced = False
    partition.appended(20, T0)
    assert fetch(partition, 2, 20, now_ms=T0 + LAG_MS) == (AdvanceHighWatermark(10),)
    # Caught up no more, it holds nobody up.
    assert partition.tick(T0 + LAG_MS) == ()
    assert AdvanceHighWatermark(20) in partition.tick(T0 + LAG_MS + 1)


@pytest.mark.parametrize(
    "broker",
    [
        LeadingBroker(103, fenced=True),
        LeadingBroker(103, in_controlled_shutdown=True),
        LeadingBroker(104),
    ],
)
def test_one_that_could_not_join_holds_nothing_back(broker: LeadingBroker) -> None:
    known = brokers()
    partition = elected(replace(THREE, isr=(1, 2)), known=known)
    known[3].fenced = True
    fetch(partition, 3, 10)
    known[3] = broker
    partition.appended(20, T0)
    assert fetch(partition, 2, 20) == (AdvanceHighWatermark(20),)


def test_a_smaller_isr_may_commit_more() -> None:
    partition = elected(THREE)
    fetch(partition, 2, 10)
    fetch(partition, 3, 6)
    late = T0 + LAG_MS + 1
    effects = partition.registration_changed(changed(THREE, isr=(1, 2)), late)
    assert effects == (AdvanceHighWatermark(10),)


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    partition = elected(replace(THREE, isr=(1,)), min_isr=2)
    assert partition.is_under_min_isr
    assert partition.appended(20, T0) == ()
    assert AdvanceHighWatermark(20) not in fetch(partition, 2, 20)
    effects = partition.registration_changed(changed(THREE, isr=(1, 2)), T0)
    assert AdvanceHighWatermark(20) in effects


def test_a_lower_min_isr_may_commit_more() -> None:
    partition = elected(replace(THREE, isr=(1,)), min_isr=2)
    assert partition.configured(1, T0) == (AdvanceHighWatermark(10),)


def test_acks_all_needs_enough_in_sync_replicas() -> None:
    partition = elected(replace(THREE, isr=(1,)), min_isr=2)
    partition.check_append(1)
    with pytest.raises(KafkaError) as refused:
        partition.check_append(-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "requirement of 2" in str(refused.value)


def test_an_acknowledgement_needs_them_still() -> None:
    partition = elected(THREE, min_isr=2)
    partition.check_acknowledgement()
    partition.registration_changed(changed(THREE, isr=(1,)), T0)
    with pytest.raises(KafkaError) as refused:
        partition.check_acknowledgement()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    # One that is being added counts: the records wait for it as well.
    fetch(partition, 2, 10)
    partition.check_acknowledgement()


def test_min_isr_asks_for_no_more_than_there_are_replicas() -> None:
    partition = leader(ALONE, min_isr=3)
    partition.check_append(-1)
    assert partition.appended(11, T0) == (AdvanceHighWatermark(11),)


def test_what_is_shown_of_the_isr() -> None:
    partition = elected(THREE, min_isr=2)
    assert (partition.is_at_min_isr, partition.is_under_min_isr) == (False, False)
    assert not partition.is_under_replicated
    partition.registration_changed(changed(THREE, isr=(1, 2)), T0)
    assert (partition.is_at_min_isr, partition.is_under_replicated) == (True, True)
    adding = replace(THREE, isr=(1, 2), adding_replicas=(3,), partition_epoch=20)
    partition.registration_changed(adding, T0)
    assert not partition.is_under_replicated


def test_an_older_change_is_no_news() -> None:
    partition = leader(THREE)
    assert partition.registration_changed(replace(THREE, isr=(1,), partition_epoch=8), T0) == ()
    assert partition.isr == {1, 2, 3}


def test_a_new_epoch_forgets_what_followers_said() -> None:
    partition = elected(THREE)
    fetch(partition, 2, 10)
    fetch(partition, 3, 10)
    partition.appended(15, T0)
    partition.registration_changed(changed(THREE, leader_epoch=5), T0)
    partition.elected(15, T0)
    assert partition.leader_epoch == 5
    assert fetch(partition, 2, 15) == ()
    assert fetch(partition, 3, 15) == (AdvanceHighWatermark(15),)


def test_nothing_is_committed_on_the_word_of_an_earlier_epoch() -> None:
    partition = elected(THREE)
    fetch(partition, 2, 10)
    fetch(partition, 3, 6)
    late = T0 + LAG_MS + 1
    assert partition.registration_changed(changed(THREE, isr=(1, 2), leader_epoch=5), late) == ()
    assert partition.high_watermark == 6


def test_the_latest_offset_is_not_known_until_followers_have_spoken() -> None:
    partition = elected(THREE)
    assert partition.is_high_watermark_behind
    fetch(partition, 2, 10)
    fetch(partition, 3, 9)
    assert partition.is_high_watermark_behind
    partition.appended(20, T0)
    fetch(partition, 3, 10)
    assert not partition.is_high_watermark_behind


def test_a_stranger_is_no_follower() -> None:
    for ask in (
        lambda partition: fetch(partition, 7, 3),
        lambda partition: partition.check_follower(7, -1),
    ):
        with pytest.raises(KafkaError) as refused:
            ask(leader(ALONE))
        assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_fetch_of_before_a_restart_says_nothing() -> None:
    known = brokers()
    partition = elected(THREE, known=known)
    known[2] = LeadingBroker(202, fenced=True)
    with pytest.raises(KafkaError) as refused:
        fetch(partition, 2, 10, broker_epoch=102)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.follower(2).log_end_offset == -1  # type: ignore[union-attr]
    fetch(partition, 2, 8, broker_epoch=202)
    fetch(partition, 2, 9, broker_epoch=-1)  # A version that does not tell.
    fetch(partition, 2, 9, broker_epoch=203)  # It knows of its registration before we do.


def test_the_low_watermark_is_that_of_the_living() -> None:
    known = brokers()
    partition = elected(THREE, known=known)
    assert partition.low_watermark(7) == -1
    fetch(partition, 2, 10, log_start_offset=7)
    fetch(partition, 3, 10, log_start_offset=4)
    assert partition.low_watermark(7) == 4
    known[3].fenced = True
    assert partition.low_watermark(7) == 7
    del known[3], known[2]
    assert partition.low_watermark(9) == 9


def test_where_a_consumer_may_be_sent() -> None:
    partition = elected(replace(THREE, isr=(1, 2)))
    fetch(partition, 2, 8, log_start_offset=3)
    fetch(partition, 3, 8, log_start_offset=3)

    def candidates(offset: int) -> list[int]:
        return [replica for replica, _ in partition.in_sync_followers(offset)]

    assert [candidates(offset) for offset in (2, 3, 8, 9)] == [[], [2], [2], []]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (4, None),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_reader_of_another_epoch_is_told(epoch: int, code: ErrorCode | None) -> None:
    partition = leader(ALONE)
    if code is None:
        partition.check_epoch(epoch)
        return
    with pytest.raises(KafkaError) as refused:
        partition.check_epoch(epoch)
    assert refused.value.code is code


def test_a_recovering_leader_takes_and_gives_nothing() -> None:
    partition = leader(replace(ALONE, leader_recovery_state=RECOVERING))
    assert partition.is_recovering
    assert partition.elected(END, T0) == ()
    for refused in (lambda: partition.check_append(1), lambda: partition.check_epoch(4)):
        with pytest.raises(KafkaError) as error:
            refused()
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_recovered_leader_goes_on_behind_the_lake() -> None:
    recovering = replace(ALONE, leader_recovery_state=RECOVERING)
    partition = leader(recovering)
    partition.restarted(30)
    effects = partition.registration_changed(
        changed(recovering, leader_recovery_state=RECOVERED), T0
    )
    assert effects == ()
    assert (partition.high_watermark, partition.effective_end_offset) == (30, 30)
    partition.check_append(-1)
    assert partition.appended(31, T0) == (AdvanceHighWatermark(31),)


def test_a_leader_does_not_shrink() -> None:
    partition = leader(ALONE)
    with pytest.raises(AssertionError):
        partition.appended(9, T0)
    with pytest.raises(AssertionError):
        partition.restarted(20)


def test_only_the_leader_has_this_view() -> None:
    with pytest.raises(AssertionError):
        leader(replace(ALONE, leader=2))
