"""A share coordinator's decisions: fencing, snapshots and updates, and what of the log is of no use."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator.result import CoordinatorResult, Instant
from broker.coordinator.share.shard import (
    COLD_PARTITION_SNAPSHOT_INTERVAL_MS,
    PRUNE_INTERVAL_MS,
    PruneLog,
    ShareCoordinatorShard,
)
from broker.coordinator.share.share_group_offset import combine
from broker.coordinator.share_partition_key import SharePartitionKey
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted_share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
)
from kafka_ds.protocol.messages.share_state import (
    DeleteStatePartition,
    InitializeStatePartition,
    ReadStatePartition,
    StateBatch,
    WriteStatePartition,
)
from kafka_ds.records.batch import Record, build_batch, read_header
from tests.fakes.cluster import image_of

TOPIC = bytes(range(16))
KEY = SharePartitionKey("g", TOPIC, 0)
OTHER = SharePartitionKey("g", TOPIC, 1)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
NOW = 1_000_000


class ShardLog:
    """A shard and the log that it writes."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.settings = replace(
            BrokerConfig(),
            share_coordinator_snapshot_update_records_per_snapshot=updates_per_snapshot,
        )
        self.image = image_of(topics={("t", TOPIC): 2})
        self.shard = self.new_shard()
        self.records: list[tuple[Any, Any]] = []

    def new_shard(self) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(self.settings, self.image)

    def take(self, result: CoordinatorResult) -> Any:
        for record in result.records:
            self.records.append(record)
            self.shard.replay(*record, record_offset=len(self.records) - 1)
        return result.response

    def read_again(self, since: int = 0) -> ShareCoordinatorShard:
        """What another broker makes of the log that begins there."""
        shard = self.new_shard()
        for offset, record in enumerate(self.records[since:], since):
            key, value = shard.encode(record)
            batch = build_batch([Record(offset, NOW, key, value)])
            assert shard.replay_batch(batch, 0, read_header(batch)) == 1
        return shard

    def initialize(self, key: SharePartitionKey = KEY, *, epoch: int = 0, start: int = 0) -> Any:
        wanted = InitializeStatePartition(
            partition=key.partition, state_epoch=epoch, start_offset=start
        )
        return self.take(self.shard.initialize_state(key, wanted, NOW))

    def read(self, *, leader_epoch: int, key: SharePartitionKey = KEY) -> Any:
        wanted = ReadStatePartition(partition=key.partition, leader_epoch=leader_epoch)
        return self.take(self.shard.read_state(key, wanted, NOW))

    def write(self, *batches: StateBatch, key: SharePartitionKey = KEY, **changes: int) -> Any:
        fields = {"state_epoch": 0, "leader_epoch": 0, "start_offset": -1} | changes
        wanted = WriteStatePartition(partition=key.partition, state_batches=list(batches), **fields)
        return self.take(self.shard.write_state(key, wanted, NOW))

    def state(self, key: SharePartitionKey = KEY) -> Any:
        return dict(self.shard)[key]


def batch(first: int, last: int, state: int, count: int = 1) -> StateBatch:
    return StateBatch(
        first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
    )


def code_of(action: Any, **given: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        action(**given)
    return caught.value.code


def test_what_was_never_initialized_is_neither_read_nor_written() -> None:
    log = ShardLog()
    assert code_of(log.read, leader_epoch=0) is ErrorCode.INVALID_REQUEST
    assert code_of(log.write) is ErrorCode.INVALID_REQUEST
    wanted = ReadStatePartition(partition=0, leader_epoch=-1)
    summary = log.shard.read_state_summary(KEY, wanted, NOW).response
    assert (summary.start_offset, summary.delivery_complete_count) == (-1, -1)
    assert log.take(log.shard.delete_state(KEY, DeleteStatePartition(partition=0), NOW))
    assert not log.records


def test_a_state_is_written_and_read() -> None:
    log = ShardLog()
    log.initialize(start=5)
    log.write(batch(5, 9, ACKNOWLEDGED), batch(12, 14, AVAILABLE), delivery_complete_count=5)
    log.write(start_offset=10, delivery_complete_count=0)
    answer = log.read(leader_epoch=0)
    assert (answer.start_offset, answer.state_batches) == (10, [batch(12, 14, AVAILABLE)])
    wanted = ReadStatePartition(partition=0, leader_epoch=-1)
    summary = log.shard.read_state_summary(KEY, wanted, NOW).response
    assert (summary.start_offset, summary.delivery_complete_count) == (10, 0)


@pytest.mark.parametrize("updates_per_snapshot", [0, 500])
def test_a_write_that_comes_late_takes_nothing_back(updates_per_snapshot: int) -> None:
    """As in Kafka 4.4: the start offset does not go back, nor the count of what is complete behind it."""
    log = ShardLog(updates_per_snapshot)
    log.initialize(start=5)
    for start, count, is_now in (
        (5, 3, (5, 3)),
        (5, 2, (5, 3)),
        (-1, 9, (5, 3)),
        (8, 1, (8, 1)),
        (5, 7, (8, 1)),
    ):
        log.write(start_offset=start, delivery_complete_count=count)
        state = log.state()
        assert (state.start_offset, state.delivery_complete_count) == is_now
    assert dict(log.read_again()) == {KEY: log.state()}


def test_negative_numbers_are_refused() -> None:
    log = ShardLog()
    nowhere = SharePartitionKey("g", TOPIC, -1)
    for action, more in (
        (log.initialize, {}),
        (log.read, {"leader_epoch": 0}),
        (log.write, {}),
    ):
        assert code_of(action, key=nowhere, **more) is ErrorCode.INVALID_REQUEST
    wanted = ReadStatePartition(partition=-1, leader_epoch=0)
    for refused in (
        lambda: log.shard.read_state_summary(nowhere, wanted, NOW),
        lambda: log.shard.delete_state(nowhere, DeleteStatePartition(partition=-1), NOW),
    ):
        assert code_of(refused) is ErrorCode.INVALID_REQUEST
    assert code_of(log.initialize, epoch=-1) is ErrorCode.INVALID_REQUEST
    log.initialize()
    assert code_of(log.read, leader_epoch=-1) is ErrorCode.INVALID_REQUEST
    for each in ({"leader_epoch": -1}, {"state_epoch": -1}):
        assert code_of(log.write, **each) is ErrorCode.INVALID_REQUEST


def test_a_leader_fences_those_before_it_when_it_reads() -> None:
    log = ShardLog()
    log.initialize()
    log.write(batch(0, 1, AVAILABLE), leader_epoch=3)
    # The epoch of a write that is accepted is not remembered, as in Kafka: leaders read first.
    log.read(leader_epoch=4)
    assert len(log.records) == 3
    log.read(leader_epoch=4)
    assert len(log.records) == 3, "nothing new to write down"
    assert code_of(log.read, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert code_of(log.write, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    log.write(batch(0, 1, ACKNOWLEDGED), leader_epoch=4)
    assert log.state().batches == (batch(0, 1, ACKNOWLEDGED),)


def test_a_state_that_begins_again_fences_writes_of_the_one_before() -> None:
    log = ShardLog()
    log.initialize(epoch=1, start=3)
    log.read(leader_epoch=7)
    log.write(batch(3, 4, AVAILABLE), state_epoch=1, leader_epoch=7)
    log.initialize(epoch=2, start=0)
    assert log.state().batches == () and log.state().start_offset == 0
    assert code_of(log.write, state_epoch=1, leader_epoch=7) is ErrorCode.FENCED_STATE_EPOCH
    assert code_of(log.initialize, epoch=1) is ErrorCode.FENCED_STATE_EPOCH
    assert code_of(log.read, leader_epoch=6) is ErrorCode.FENCED_LEADER_EPOCH


def test_partitions_that_are_not_there_are_refused() -> None:
    log = ShardLog()
    gone = SharePartitionKey("g", TOPIC, 7)
    assert code_of(log.initialize, key=gone) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    log.initialize()
    log.image.topics_by_id.clear()
    assert code_of(log.write) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_snapshot_follows_so_many_updates_and_has_all_that_they_say() -> None:
    log = ShardLog(updates_per_snapshot=2)
    log.initialize()
    for offset in range(5):
        log.write(batch(offset, offset, ACKNOWLEDGED))
    kinds = [type(key) for key, _ in log.records]
    snapshot, update = ShareSnapshotKey, ShareUpdateKey
    assert kinds == [snapshot, update, update, snapshot, update, update]
    third = log.records[3][1]
    assert isinstance(third, ShareSnapshotValue)
    assert (third.snapshot_epoch, third.state_batches) == (1, [batch(0, 2, ACKNOWLEDGED)])
    for since in (0, 3):
        assert dict(log.read_again(since))[KEY].batches == (batch(0, 4, ACKNOWLEDGED),)


def test_a_deleted_state_is_forgotten_and_deleted_topics_are() -> None:
    log = ShardLog()
    log.initialize()
    log.initialize(OTHER)
    log.take(log.shard.delete_state(KEY, DeleteStatePartition(partition=0), NOW))
    assert list(dict(log.shard)) == list(dict(log.read_again())) == [OTHER]
    log.take(log.shard.forget_topics([TOPIC], NOW))
    assert not dict(log.shard) and not dict(log.read_again())


def tick(log: ShardLog, at_ms: int) -> CoordinatorResult:
    result = log.shard.tick(Instant(NOW + at_ms, at_ms))
    assert result is not None
    log.take(result)
    return result


def test_topics_that_were_deleted_before_the_log_was_loaded_are_forgotten_in_time() -> None:
    log = ShardLog()
    log.initialize()
    del log.image.topics_by_id[TOPIC]
    log.shard = log.read_again()
    log.shard.loaded(Instant(NOW, 0))
    tick(log, PRUNE_INTERVAL_MS)
    assert not dict(log.shard) and not dict(log.read_again())


def test_the_log_is_pruned_up_to_the_oldest_last_snapshot() -> None:
    log = ShardLog(updates_per_snapshot=1)
    log.shard.loaded(Instant(NOW, 0))
    assert log.shard.tick(Instant(NOW, PRUNE_INTERVAL_MS - 1)) is None
    log.initialize()
    log.initialize(OTHER)
    for offset in range(4):
        log.write(batch(offset, offset, ACKNOWLEDGED))
    # The other one rests since offset 1: it gets a snapshot, and with the next turn what is before goes.
    assert tick(log, PRUNE_INTERVAL_MS).effects == (PruneLog(1),)
    assert COLD_PARTITION_SNAPSHOT_INTERVAL_MS == PRUNE_INTERVAL_MS
    pruned = tick(log, 2 * PRUNE_INTERVAL_MS)
    ((kept,),) = (pruned.effects,)
    assert kept.offset > 1
    assert dict(log.read_again(kept.offset)) == dict(log.shard)
    assert tick(log, 3 * PRUNE_INTERVAL_MS).records == (), "all rest"


def test_a_log_of_tombstones_is_pruned_whole() -> None:
    log = ShardLog()
    log.initialize()
    log.take(log.shard.delete_state(KEY, DeleteStatePartition(partition=0), NOW))
    assert tick(log, PRUNE_INTERVAL_MS).effects == (PruneLog(2),)


def test_combined_batches_say_of_each_offset_what_is_strongest() -> None:
    for seed in range(200):
        check_combined(Random(seed))


def check_combined(random: Random) -> None:
    batches, start = [], random.choice([-1, 0, 7])
    for _ in range(random.randint(0, 8)):
        first = random.randint(0, 20)
        state = random.choice([AVAILABLE, ACKNOWLEDGED, ARCHIVED])
        batches.append(batch(first, first + random.randint(0, 6), state, random.randint(1, 3)))
    combined = combine(batches, start)
    expected = {
        offset: max(
            (each.delivery_count, each.delivery_state)
            for each in batches
            if each.first_offset <= offset <= each.last_offset
        )
        for each in batches
        for offset in range(max(each.first_offset, start), each.last_offset + 1)
    }
    found = {
        offset: (each.delivery_count, each.delivery_state)
        for each in combined
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    assert found == expected
    assert sum(each.last_offset - each.first_offset + 1 for each in combined) == len(expected)
    for one, following in zip(combined, combined[1:], strict=False):
        assert one.last_offset < following.first_offset
        said = (one.delivery_count, one.delivery_state)
        assert one.last_offset + 1 < following.first_offset or said != (
            following.delivery_count,
            following.delivery_state,
        )
