"""A share partition's rules, one by one; `test_model` has them all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.share.share_partition import (
    AcquireLimits,
    FetchedBatch,
    RecordState,
    SharePartition,
    SharePartitionConfig,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.share_fetch import AcknowledgementBatch
from kafka_ds.protocol.messages.share_state import StateBatch

CONFIG = SharePartitionConfig(lock_ms=30_000, delivery_count_limit=2, record_locks_max=100)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
ME, OTHER = "me", "other"


def acquire(
    partition: SharePartition,
    *batches: tuple[int, int],
    member: str = ME,
    now_ms: int = 0,
    config: SharePartitionConfig = CONFIG,
    **limits: Any,
) -> list[tuple[int, int, int]]:
    acquired = partition.acquire(
        member,
        [FetchedBatch(*each) for each in batches],
        fetch_offset=partition.next_fetch_offset(),
        limits=AcquireLimits(**{"records_max": 1_000, "batch_size": 1_000} | limits),
        config=config,
        now_ms=now_ms,
    )
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in acquired]


def acknowledge(
    partition: SharePartition,
    first: int,
    last: int,
    *kinds: int,
    member: str = ME,
    now_ms: int = 0,
    config: SharePartitionConfig = CONFIG,
    is_done: bool = True,
) -> list[tuple[int, int, int, int]]:
    batch = AcknowledgementBatch(
        first_offset=first, last_offset=last, acknowledge_types=list(kinds)
    )
    write = partition.acknowledge(member, [batch], config=config, now_ms=now_ms)
    if write is None:
        return []
    partition.written(write.number, is_done=is_done)
    return [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in write.batches
    ]


def code_of(partition: SharePartition, first: int, last: int, *kinds: int, **given: Any) -> int:
    before = list(partition)
    with pytest.raises(KafkaError) as caught:
        acknowledge(partition, first, last, *kinds, **given)
    assert list(partition) == before or len(list(partition)) >= len(before)
    return caught.value.code


def test_accepted_records_move_the_start() -> None:
    partition = SharePartition(0)
    assert acquire(partition, (0, 4), (5, 9)) == [(0, 9, 1)]
    assert acknowledge(partition, 0, 6, ACCEPT) == [(0, 6, 2, 1)]
    assert (partition.start_offset, partition.next_offset, partition.in_flight) == (7, 10, 3)
    assert acquire(partition, (5, 9)) == []
    assert acknowledge(partition, 7, 9, ACCEPT, REJECT, GAP) == [
        (7, 7, 2, 1),
        (8, 8, 4, 1),
        (9, 9, 4, 1),
    ]
    assert (partition.start_offset, list(partition)) == (10, [])


def test_released_records_come_again_until_the_limit_of_deliveries() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 2))
    assert acknowledge(partition, 0, 2, RELEASE) == [(0, 2, RecordState.AVAILABLE, 1)]
    assert partition.next_fetch_offset() == 0
    assert acquire(partition, (0, 2), member=OTHER) == [(0, 2, 2)]
    assert acknowledge(partition, 1, 1, RELEASE, member=OTHER) == [(1, 1, RecordState.ARCHIVED, 2)]
    assert partition.delivery_complete_count == 1


def test_locks_expire_and_can_be_renewed() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 3))
    assert partition.next_lock_end_ms() == 30_000
    assert acknowledge(partition, 2, 3, RENEW, now_ms=20_000) == []
    assert partition.expire(29_999, config=CONFIG) is None
    write = partition.expire(30_000, config=CONFIG)
    assert write is not None and [(b.first_offset, b.last_offset) for b in write.batches] == [
        (0, 1)
    ]
    assert code_of(partition, 0, 0, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(partition, 2, 3, ACCEPT) == [(2, 3, 2, 1)]
    assert acquire(partition, (0, 3)) == [(0, 1, 2)]


def test_nobody_acknowledges_what_is_not_theirs() -> None:
    partition = SharePartition(5)
    acquire(partition, (5, 9))
    assert code_of(partition, 5, 9, ACCEPT, member=OTHER) == ErrorCode.INVALID_RECORD_STATE
    assert code_of(partition, 8, 10, ACCEPT) == ErrorCode.INVALID_REQUEST
    no_renewal = SharePartitionConfig(
        lock_ms=1, delivery_count_limit=5, record_locks_max=9, may_renew=False
    )
    assert code_of(partition, 5, 5, RENEW, config=no_renewal) == ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(partition, 0, 4, ACCEPT) == [], "before the start offset: done with"


def test_a_failed_write_leaves_the_records_to_their_member() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 3))
    batch = AcknowledgementBatch(first_offset=0, last_offset=3, acknowledge_types=[ACCEPT])
    write = partition.acknowledge(ME, [batch], config=CONFIG, now_ms=0)
    assert write is not None and partition.delivery_complete_count == 4
    assert code_of(partition, 0, 3, ACCEPT) == ErrorCode.INVALID_RECORD_STATE, "under way"
    assert partition.expire(99_000, config=CONFIG) is None
    partition.written(write.number, is_done=False)
    assert partition.start_offset == partition.delivery_complete_count == 0
    assert acknowledge(partition, 0, 3, ACCEPT) and partition.start_offset == 4


def test_limits_end_with_a_batch_unless_they_are_strict() -> None:
    partition = SharePartition(0)
    batches = [(0, 3), (4, 7), (8, 11)]
    assert acquire(partition, *batches, records_max=5) == [(0, 7, 1)]
    assert acquire(partition, *batches, records_max=2, is_strict=True) == [(8, 9, 1)]
    assert acquire(partition, *batches) == [(10, 11, 1)]
    partition = SharePartition(0)
    assert acquire(partition, *batches, batch_size=4) == [(0, 3, 1), (4, 7, 1), (8, 11, 1)]
    acknowledge(partition, 0, 11, RELEASE)
    assert acquire(partition, *batches, records_max=2, is_strict=True) == [(0, 1, 2)]


def test_no_more_records_are_in_flight_than_there_are_locks() -> None:
    config = SharePartitionConfig(lock_ms=1, delivery_count_limit=5, record_locks_max=4)
    partition = SharePartition(0)
    acquire(partition, (0, 2), (3, 5), config=config)
    assert partition.in_flight == 6 and not partition.can_acquire(config)
    assert acquire(partition, (6, 7), config=config) == []
    acknowledge(partition, 2, 2, RELEASE)
    assert partition.can_acquire(config)
    assert acquire(partition, (0, 2), (3, 5), config=config) == [(2, 2, 2)]


def test_offsets_that_the_log_has_no_more_are_passed_over() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 9))
    acknowledge(partition, 0, 9, RELEASE)
    # Compacted: nothing is left before 6, nor after 12 up to 20.
    assert acquire(partition, (6, 12), (21, 22)) == [(6, 9, 2), (10, 22, 1)]
    assert partition.start_offset == 6
    partition.log_start_incremented(11)
    assert partition.start_offset == 11
    assert acknowledge(partition, 6, 10, ACCEPT) == []
    partition.log_start_incremented(40)
    assert (partition.start_offset, partition.next_fetch_offset(), partition.in_flight) == (
        40,
        40,
        0,
    )


@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_archiving_outlives_its_records(is_written: bool) -> None:
    config = replace(CONFIG, has_dead_letter_topic=True)
    partition = SharePartition(0)
    acquire(partition, (0, 9))
    rejected = AcknowledgementBatch(first_offset=2, last_offset=3, acknowledge_types=[REJECT])
    write = partition.acknowledge(ME, [rejected], config=config, now_ms=0)
    assert write is not None
    if is_written:
        partition.written(write.number, is_done=True)
    partition.log_start_incremented(6)
    partition.written(write.number, is_done=True)
    partition.log_start_incremented(12)
    assert partition.next_fetch_offset() == 12
    letters = partition.dead_letters(config)
    assert [(each.first, each.last) for each in letters] == [(2, 3)]
    partition.archive_dead_letters(letters)
    assert (partition.start_offset, partition.in_flight) == (12, 0)


def test_aborted_records_are_archived_as_they_are_acquired() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 1), member=OTHER)
    assert acquire(partition, (2, 5)) == [(2, 5, 1)]
    partition.archive([FetchedBatch(0, 3)], ME)
    assert list(partition) == [
        (0, 1, RecordState.ACQUIRED, 1),
        (2, 3, RecordState.ARCHIVED, 1),
        (4, 5, RecordState.ACQUIRED, 1),
    ]


def test_a_member_that_leaves_releases_what_it_has() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 1))
    acquire(partition, (2, 3), member=OTHER)
    write = partition.release(ME, config=CONFIG)
    assert write is not None
    partition.written(write.number, is_done=True)
    assert list(partition) == [(0, 1, RecordState.AVAILABLE, 1), (2, 3, RecordState.ACQUIRED, 1)]
    assert partition.release(ME, config=CONFIG) is None


def test_what_a_reload_finds_no_state_of_is_available() -> None:
    kept = [
        StateBatch(first_offset=0, last_offset=1, delivery_state=2, delivery_count=1),
        StateBatch(first_offset=4, last_offset=5, delivery_state=0, delivery_count=1),
        StateBatch(first_offset=8, last_offset=9, delivery_state=4, delivery_count=2),
    ]
    partition = SharePartition(0, kept)
    assert (partition.start_offset, partition.next_fetch_offset(), partition.next_offset) == (
        2,
        2,
        10,
    )
    assert acquire(partition, (0, 9), (10, 10)) == [(2, 3, 1), (4, 5, 2), (6, 7, 1), (10, 10, 1)]


def test_records_that_failed_often_are_delivered_in_ever_smaller_numbers() -> None:
    config = SharePartitionConfig(lock_ms=1, delivery_count_limit=6, record_locks_max=100)
    partition = SharePartition(0)
    for delivery in (1, 2, 3):
        assert acquire(partition, (0, 7), config=config) == [(0, 7, delivery)]
        acknowledge(partition, 0, 7, RELEASE, config=config)
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(0, 3, 4)], "half, and no others"
    acknowledge(partition, 0, 3, RELEASE, config=config)
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(0, 1, 5)], "a quarter"
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(2, 3, 5)]
    acknowledge(partition, 0, 1, RELEASE, config=config)
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(0, 0, 6)], "the last time"
    acknowledge(partition, 2, 3, ACCEPT, config=config)
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(1, 1, 6)]
    assert acquire(partition, (0, 7), (8, 9), config=config) == [(4, 7, 4)]
    assert acquire(partition, (8, 9), config=config) == [(8, 9, 1)]


WITH_TOPIC = replace(CONFIG, has_dead_letter_topic=True)


def test_undeliverable_records_are_archiving_until_they_are_dead_letters() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 4), config=WITH_TOPIC)
    kinds = (REJECT, REJECT, RELEASE, GAP, ACCEPT)
    written = acknowledge(partition, 0, 4, *kinds, config=WITH_TOPIC)
    assert [(first, state) for first, _, state, _ in written] == [
        (0, RecordState.ARCHIVING), (2, RecordState.AVAILABLE), (3, RecordState.ARCHIVED),
        (4, RecordState.ACKNOWLEDGED),
    ]  # fmt: skip
    assert acquire(partition, (0, 4), now_ms=10) == [(2, 2, 2)]
    write = partition.expire(10 + CONFIG.lock_ms, config=WITH_TOPIC)
    assert write is not None
    letters = partition.dead_letters(WITH_TOPIC)
    assert letters == [(0, 1, 1, True), (2, 2, 2, False)]
    assert (partition.start_offset, partition.delivery_complete_count) == (0, 2)
    assert code_of(partition, 0, 0, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    done = partition.archive_dead_letters(letters)
    assert [(each.first_offset, each.delivery_state) for each in done.batches][-1] == (2, 4)
    assert (partition.start_offset, partition.dead_letters(WITH_TOPIC)) == (5, [])
    partition.written(done.number, is_done=False)
    assert partition.start_offset == 5, "whatever becomes of the write"


def test_a_rejection_that_failed_is_none() -> None:
    partition = SharePartition(0)
    acquire(partition, (0, 0), config=WITH_TOPIC)
    acknowledge(partition, 0, 0, REJECT, config=WITH_TOPIC, is_done=False)
    assert partition.dead_letters(WITH_TOPIC) == []
    acknowledge(partition, 0, 0, RELEASE, config=WITH_TOPIC)
    assert acquire(partition, (0, 0), config=WITH_TOPIC) == [(0, 0, 2)]
    acknowledge(partition, 0, 0, RELEASE, config=WITH_TOPIC)
    assert partition.dead_letters(WITH_TOPIC) == [(0, 0, 2, False)]


def test_a_new_leader_goes_on_with_what_was_archiving() -> None:
    kept = [
        StateBatch(first_offset=0, last_offset=1, delivery_state=3, delivery_count=1),
        StateBatch(first_offset=2, last_offset=2, delivery_state=3, delivery_count=2),
    ]
    partition = SharePartition(0, kept)
    assert partition.next_fetch_offset() == 3
    # Why is not written down; the delivery count tells.
    assert partition.dead_letters(CONFIG) == [(0, 1, 1, True), (2, 2, 2, False)]
