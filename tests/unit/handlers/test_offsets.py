"""ListOffsets and OffsetForLeaderEpoch through the real codec and log."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
)
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.timestamps import TimestampAndOffset
from kafka_ds.segments.producers import AppendOrigin
from tests.in_process import NOW_MS, InProcess, batch_of, in_process
from tests.loops import in_loop
from tests.requests import build

Answer = tuple[int, int, int, int]


async def offset(
    broker: InProcess, timestamp: int, *, version: int = 11, topic: str = "t", **options: Any
) -> Answer:
    """(error, timestamp, offset, leader epoch)."""
    isolation = options.pop("isolation_level", 0)
    replica = options.pop("replica_id", -1)
    wanted = ListOffsetsPartition(
        partition_index=options.pop("partition", 0), timestamp=timestamp, **options
    )
    request = build(
        ListOffsetsRequest,
        replica_id=replica,
        isolation_level=isolation,
        topics=[{"name": topic, "partitions": [wanted]}],
    )
    response = await broker.ask(request, version)
    (found,) = response.topics[0].partitions
    return found.error_code, found.timestamp, found.offset, found.leader_epoch


@pytest.mark.parametrize("version", range(1, 12))
@in_loop
async def test_every_version(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b", b"c"]))
        epoch = 0 if version >= 4 else -1
        assert await offset(broker, -1, version=version) == (0, -1, 3, epoch)
        assert await offset(broker, -2, version=version) == (0, -1, 0, epoch)
        found = await offset(broker, NOW_MS + 1, version=version)
        assert found == (0, NOW_MS + 1, 1, epoch)
        unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
        if version >= 7:
            assert await offset(broker, -3, version=version) == (0, NOW_MS + 2, 2, epoch)
        else:
            assert await offset(broker, -3, version=version) == unsupported
        expected = (0, -1, 0, epoch) if version >= 8 else unsupported
        assert await offset(broker, -4, version=version) == expected
        expected = (0, -1, -1, -1) if version >= 9 else unsupported
        assert await offset(broker, -5, version=version) == expected
        expected = (0, -1, -1, -1) if version >= 11 else unsupported
        assert await offset(broker, -6, version=version) == expected
        assert await offset(broker, -7, version=version) == unsupported


@in_loop
async def test_times(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        assert await offset(broker, 0) == (0, -1, -1, -1)
        assert await offset(broker, -3) == (0, -1, -1, -1)
        for first in (NOW_MS, NOW_MS + 1000):
            await broker.produce("t", batch_of([b"a"] * 5, timestamp=first))
        assert await offset(broker, 0) == (0, NOW_MS, 0, 0)
        assert await offset(broker, NOW_MS + 3) == (0, NOW_MS + 3, 3, 0)
        assert await offset(broker, NOW_MS + 500) == (0, NOW_MS + 1000, 5, 0)
        assert await offset(broker, NOW_MS + 1004) == (0, NOW_MS + 1004, 9, 0)
        assert await offset(broker, NOW_MS + 1005) == (0, -1, -1, -1)


@in_loop
async def test_isolation_bounds_what_is_found(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"]))
        partition = broker.node.replica_manager.get("t", 0)
        batch = batch_of(
            [b"open"], timestamp=NOW_MS + 50, producer_id=7, producer_epoch=0, base_sequence=0,
            is_transactional=True,
        )  # fmt: skip
        partition.append(
            memoryview(bytearray(batch)), acks=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
        assert (await offset(broker, -1))[2] == 2
        assert (await offset(broker, -1, isolation_level=1))[2] == 1
        assert (await offset(broker, NOW_MS + 50))[2] == 1
        assert await offset(broker, NOW_MS + 50, isolation_level=1) == (0, -1, -1, -1)
        assert (await offset(broker, NOW_MS + 50, isolation_level=1, replica_id=-2))[2] == 1


@in_loop
async def test_what_cannot_be_answered(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        nothing = (-1, -1, -1)
        assert await offset(broker, -1, topic="u") == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            *nothing,
        )
        assert (await offset(broker, -1, partition=5))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await offset(broker, -1, current_leader_epoch=1))[0] == (
            ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        twice = [ListOffsetsPartition(partition_index=0, timestamp=-1)] * 2
        request = build(ListOffsetsRequest, replica_id=-1, name="t", partitions=twice)
        response = await broker.ask(request, 11)
        codes = [each.error_code for each in response.topics[0].partitions]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2


@dataclass
class TierWithTimes:
    """A lake that ends at offset 1."""

    end: int | None = 1
    found: TimestampAndOffset | None = None
    error: ErrorCode | None = None
    asked: list[int] = field(default_factory=list)
    asked_from: list[int] = field(default_factory=list)
    when_asked: Callable[[], None] | None = None
    never: bool = False
    expired: int = 0

    def list_offsets_timeout_ms(self) -> int:
        return 20 if self.never else 60_000

    def listing_expired(self) -> None:
        self.expired += 1

    def highest_offset_in_remote_storage(self, topic_id: bytes, partition: int) -> int | None:
        return self.end

    async def known_highest_offset_in_remote_storage(self, partition: TopicIdPartition) -> int:
        await asyncio.sleep(0)
        if self.error is not None:
            raise KafkaError(self.error)
        return 1

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, *, start_offset: int
    ) -> TimestampAndOffset | None:
        self.asked.append(timestamp_ms)
        self.asked_from.append(start_offset)
        if self.never:
            await asyncio.Future[None]()
        if self.error is not None:
            raise KafkaError(self.error)
        found = self.found
        if self.when_asked is not None:
            self.when_asked()
        return found

    async def max_timestamp(
        self, partition: TopicIdPartition, *, start_offset: int
    ) -> TimestampAndOffset | None:
        return await self.offset_for_timestamp(partition, -3, start_offset=start_offset)


async def with_lake(broker: InProcess, tier: TierWithTimes) -> None:
    """Offsets 0 and 1 are only in the lake, 2 is on disk."""
    await broker.create("t")
    await broker.produce("t", batch_of([b"a", b"b"], timestamp=NOW_MS))
    partition = broker.node.replica_manager.get("t", 0)
    log = partition.log
    log.roll()
    await broker.produce("t", batch_of([b"c"], timestamp=NOW_MS + 100))
    log.segments.discard_oldest(1, broker.node.clock.now_ms())
    from dataclasses import replace

    log.update_config(replace(log.config, remote_storage_enable=True))
    broker.exchange(remote_log_manager=tier)


@pytest.mark.parametrize("end", [1, None])
@in_loop
async def test_the_ends_of_the_tiers(memory_path: Path, end: int | None) -> None:
    async with in_process(memory_path) as broker:
        await with_lake(broker, TierWithTimes(end=end))
        assert await offset(broker, -2) == (0, -1, 0, 0)
        assert await offset(broker, -4) == (0, -1, 2, 0)
        assert await offset(broker, -5) == (0, -1, 1, 0)
        assert await offset(broker, -6) == (0, -1, 2, 0)
        assert await offset(broker, -1) == (0, -1, 3, 0)


@in_loop
async def test_an_empty_lake(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await with_lake(broker, TierWithTimes(end=-1))
        assert await offset(broker, -5) == (0, -1, -1, -1)
        assert await offset(broker, -6) == (0, -1, 0, 0)


@in_loop
async def test_times_are_looked_for_in_the_lake_first(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        tier = TierWithTimes(found=TimestampAndOffset(NOW_MS + 1, 1, 0))
        await with_lake(broker, tier)
        assert await offset(broker, NOW_MS + 1) == (0, NOW_MS + 1, 1, 0)
        tier.found = None
        assert await offset(broker, NOW_MS + 50) == (0, NOW_MS + 100, 2, 0)
        assert tier.asked == [NOW_MS + 1, NOW_MS + 50]
        tier.error = ErrorCode.KAFKA_STORAGE_ERROR
        assert (await offset(broker, NOW_MS))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        tier.end = None
        assert (await offset(broker, -5))[0] == ErrorCode.KAFKA_STORAGE_ERROR


@in_loop
async def test_the_latest_record_is_looked_for_in_both_tiers(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        tier = TierWithTimes(found=TimestampAndOffset(NOW_MS + 99, 1, 0))
        await with_lake(broker, tier)
        assert await offset(broker, -3) == (0, NOW_MS + 100, 2, 0)
        # Of the same time the first, and of a later one the record in the lake.
        for later_ms in (100, 5_000):
            tier.found = TimestampAndOffset(NOW_MS + later_ms, 1, 0)
            assert await offset(broker, -3) == (0, NOW_MS + later_ms, 1, 0)
        tier.found = None
        assert await offset(broker, -3) == (0, NOW_MS + 100, 2, 0)
        tier.error = ErrorCode.KAFKA_STORAGE_ERROR
        assert (await offset(broker, -3))[0] == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("timestamp", [-3, NOW_MS])
@in_loop
async def test_the_lake_is_asked_from_a_log_start_on_that_it_has_not_heard_of(
    memory_path: Path, timestamp: int
) -> None:
    """Also of one that moves while it is asked: what it answers then is below, and there is more above."""
    async with in_process(memory_path) as broker:
        tier = TierWithTimes(found=TimestampAndOffset(NOW_MS + 200, 0, 0))
        await with_lake(broker, tier)
        log = broker.node.replica_manager.get("t", 0).log

        def move() -> None:
            log.advance_log_start_offset(1)
            tier.found, tier.when_asked = TimestampAndOffset(NOW_MS + 150, 1, 0), None

        tier.when_asked = move
        assert await offset(broker, timestamp) == (0, NOW_MS + 150, 1, 0)
        assert tier.asked_from == [0, 1]


@pytest.mark.parametrize("timeout_ms", [0, 10])
@in_loop
async def test_a_lake_that_does_not_answer_is_not_waited_for_for_ever(
    memory_path: Path, timeout_ms: int
) -> None:
    """By the client's own patience (KIP-1075), or by remote.list.offsets.request.timeout.ms."""
    async with in_process(memory_path) as broker:
        tier = TierWithTimes(never=True)
        await with_lake(broker, tier)
        topics = [build(ListOffsetsTopic, name="t", partition_index=0, timestamp=NOW_MS)]
        request = ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=timeout_ms)
        response = await broker.ask(request, 10)
        found = response.topics[0].partitions[0]
        assert (found.error_code, found.offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert tier.expired == 1


@in_loop
async def test_a_time_that_leaves_the_disk_while_it_is_looked_for(memory_path: Path) -> None:
    """Too high an answer would be a hole for who begins to read there."""
    async with in_process(memory_path) as broker:
        tier = TierWithTimes()
        await with_lake(broker, tier)
        log = broker.node.replica_manager.get("t", 0).log
        log.roll()
        await broker.produce("t", batch_of([b"d"], timestamp=NOW_MS + 200))
        log.roll()
        await broker.produce("t", batch_of([b"e"], timestamp=NOW_MS + 300))

        def leave() -> None:
            """From now on the oldest records on disk are only in the lake."""
            gone = log.offset_for_timestamp(0)
            assert gone is not None
            tier.found = gone
            tier.when_asked = None
            log.segments.discard_oldest(1, broker.node.clock.now_ms())

        tier.when_asked = leave
        assert await offset(broker, NOW_MS + 50) == (0, NOW_MS + 100, 2, 0)
        assert len(tier.asked) == 2


@in_loop
async def test_a_time_whose_record_leaves_the_disk_before_the_look(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"], timestamp=NOW_MS))
        log = broker.node.replica_manager.get("t", 0).log
        log.roll()
        await broker.produce("t", batch_of([b"b"], timestamp=NOW_MS + 100))
        tier = TierWithTimes(found=TimestampAndOffset(NOW_MS, 0, 0))
        broker.exchange(remote_log_manager=tier)
        topics = [build(ListOffsetsTopic, name="t", partition_index=0, timestamp=NOW_MS)]
        waiting = broker.begin(ListOffsetsRequest(replica_id=-1, topics=topics), 11)
        log.segments.discard_oldest(1, broker.node.clock.now_ms())
        assert (await waiting.result).topics[0].partitions[0].offset == 0


async def end_of(
    broker: InProcess, epoch: int, *, version: int = 4, current: int = -1, topic: str = "t"
) -> tuple[int, int, int]:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = build(OffsetForLeaderEpochRequest, topics=[{"topic": topic, "partitions": [wanted]}])
    response = await broker.ask(request, version)
    (found,) = response.topics[0].partitions
    assert found.partition == 0
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
@in_loop
async def test_where_epochs_end(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
    async with in_process(memory_path) as broker:
        await broker.produce("t", batch_of([b"c"]))
        assert await end_of(broker, 0, version=version) == (0, 0, 2)
        assert await end_of(broker, 1, version=version) == (0, 1, 3)
        assert await end_of(broker, 2, version=version) == (0, -1, -1)
        assert await end_of(broker, -1, version=version) == (0, -1, -1)
        assert await end_of(broker, 0, version=version, current=1) == (0, 0, 2)
        assert (await end_of(broker, 0, current=0))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await end_of(broker, 0, current=2))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        missing = await end_of(broker, 0, topic="u")
        assert missing == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@in_loop
async def test_a_leader_that_was_deposed_by_a_fence_sends_readers_away(memory_path: Path) -> None:
    """They may have read further at its successor: nothing is out of range, and its end is not the last offset."""
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"]))
        broker.node.replica_manager.get("t", 0).deposed(5)
        codes = {
            (await broker.fetch("t", 9)).error_code,
            (await offset(broker, -1))[0],
            (await end_of(broker, 0))[0],
        }
        assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
