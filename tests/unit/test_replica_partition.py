"""The leader's view of a partition: every transition of the high watermark, and what may be done."""

from dataclasses import replace

import pytest

from broker.cluster.events import RECOVERED, RECOVERING, PartitionRegistration
from broker.replica.partition import AdvanceHighWatermark, LeaderPartition
from kafka_ds.wire.errors import ErrorCode, KafkaError

ALONE = PartitionRegistration(replicas=(1,), isr=(1,), leader=1, leader_epoch=4, partition_epoch=9)
THREE = PartitionRegistration(
    replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9
)


def leader(
    registration: PartitionRegistration, *, end: int = 10, high: int = 5, min_isr: int = 1
) -> LeaderPartition:
    return LeaderPartition(
        registration,
        node_id=1,
        log_end_offset=end,
        high_watermark=high,
        min_insync_replicas=min_isr,
    )


def changed(registration: PartitionRegistration, **changes: object) -> PartitionRegistration:
    epoch = registration.partition_epoch + 1
    return replace(registration, partition_epoch=epoch, **changes)  # type: ignore[arg-type]


def test_what_a_leader_holds_alone_is_committed_at_once() -> None:
    partition = leader(ALONE)
    assert partition.elected() == (AdvanceHighWatermark(10),)
    assert partition.appended(12) == (AdvanceHighWatermark(12),)
    assert partition.appended(12) == ()
    assert partition.high_watermark == 12


def test_the_high_watermark_is_the_least_end_of_the_isr() -> None:
    partition = leader(THREE)
    assert partition.elected() == ()
    assert partition.fetched(2, 8) == ()
    assert partition.fetched(3, 7) == (AdvanceHighWatermark(7),)
    assert partition.fetched(3, 10) == (AdvanceHighWatermark(8),)
    assert partition.fetched(2, 10) == (AdvanceHighWatermark(10),)


def test_the_high_watermark_never_moves_back() -> None:
    partition = leader(THREE, high=9)
    partition.fetched(2, 3)
    assert partition.fetched(3, 3) == ()
    assert partition.high_watermark == 9


def test_a_follower_outside_the_isr_does_not_count() -> None:
    partition = leader(replace(THREE, isr=(1, 2)))
    assert partition.fetched(3, 0) == ()
    assert partition.fetched(2, 10) == (AdvanceHighWatermark(10),)


def test_a_smaller_isr_may_commit_more() -> None:
    partition = leader(THREE)
    partition.fetched(2, 10)
    partition.fetched(3, 6)
    assert partition.changed(changed(THREE, isr=(1, 2))) == (AdvanceHighWatermark(10),)


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    partition = leader(replace(THREE, isr=(1,)), min_isr=2)
    assert partition.is_under_min_isr
    assert partition.appended(20) == ()
    assert partition.fetched(2, 20) == ()
    effects = partition.changed(changed(THREE, isr=(1, 2)))
    assert effects == (AdvanceHighWatermark(20),)


def test_a_lower_min_isr_may_commit_more() -> None:
    partition = leader(replace(THREE, isr=(1,)), min_isr=2)
    assert partition.configured(1) == (AdvanceHighWatermark(10),)


def test_acks_all_needs_enough_in_sync_replicas() -> None:
    partition = leader(replace(THREE, isr=(1,)), min_isr=2)
    partition.check_append(1)
    with pytest.raises(KafkaError) as refused:
        partition.check_append(-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "requirement of 2" in str(refused.value)


def test_min_isr_asks_for_no_more_than_there_are_replicas() -> None:
    partition = leader(ALONE, min_isr=3)
    partition.check_append(-1)
    assert partition.appended(11) == (AdvanceHighWatermark(11),)


def test_an_older_change_is_no_news() -> None:
    partition = leader(THREE)
    assert partition.changed(replace(THREE, isr=(1,))) == ()
    assert partition.isr == {1, 2, 3}


def test_a_new_epoch_forgets_what_followers_said() -> None:
    partition = leader(THREE)
    partition.fetched(2, 10)
    partition.fetched(3, 10)
    partition.appended(15)
    partition.changed(changed(THREE, leader_epoch=5))
    assert partition.leader_epoch == 5
    assert partition.fetched(2, 15) == ()
    assert partition.fetched(3, 15) == (AdvanceHighWatermark(15),)


def test_a_follower_that_claims_too_much_counts_to_the_end() -> None:
    partition = leader(THREE)
    partition.fetched(2, 99)
    assert partition.fetched(3, 99) == (AdvanceHighWatermark(10),)


def test_a_stranger_is_no_follower() -> None:
    with pytest.raises(KafkaError) as refused:
        leader(ALONE).fetched(7, 3)
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


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
    assert partition.elected() == ()
    for refused in (lambda: partition.check_append(1), lambda: partition.check_epoch(4)):
        with pytest.raises(KafkaError) as error:
            refused()
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_recovered_leader_goes_on_behind_the_lake() -> None:
    recovering = replace(ALONE, leader_recovery_state=RECOVERING)
    partition = leader(recovering)
    partition.restarted(30)
    effects = partition.changed(changed(recovering, leader_recovery_state=RECOVERED))
    assert effects == ()
    assert (partition.high_watermark, partition.log_end_offset) == (30, 30)
    partition.check_append(-1)
    assert partition.appended(31) == (AdvanceHighWatermark(31),)


def test_a_leader_does_not_shrink() -> None:
    partition = leader(ALONE)
    with pytest.raises(AssertionError):
        partition.appended(9)
    with pytest.raises(AssertionError):
        partition.restarted(20)


def test_only_the_leader_has_this_view() -> None:
    with pytest.raises(AssertionError):
        leader(replace(ALONE, leader=2))
