"""Fetch by replicas: what followers get, what the leader learns from it, and which replica consumers are sent to."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from broker.replica.serving.fetch_manager import LEADER_THROTTLED_REPLICAS
from broker.server.dispatch import Waiting
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteRecordsRequest, FetchRequest, ListOffsetsRequest
from kafka_ds.protocol.messages.data import FetchReplicaState
from kafka_ds.protocol.messages.offsets import ListOffsetsTopic
from kafka_ds.protocol.messages.topics import DeleteRecordsTopic
from tests.in_process import (
    NOW_MS,
    InProcess,
    batch_of,
    fetch_request,
    in_process,
    produce_request,
    values_of,
)
from tests.loops import in_loop, turns
from tests.requests import build
from tests.unit.replica.follower_desk import EPOCH, FollowerDesk, desk


async def written(broker: InProcess, *values: bytes) -> None:
    for value in values:
        answer = await broker.produce("t", batch_of([value]), acks=1)
        assert answer.error_code == ErrorCode.NONE


async def park(broker: InProcess, request: FetchRequest, version: int = 18) -> asyncio.Task[Any]:
    waiting = broker.begin(request, version)
    assert isinstance(waiting, Waiting), "answered at once"
    task = asyncio.ensure_future(waiting.result)
    await asyncio.sleep(0.005)
    assert not task.done()
    return task


def data_of(response: Any) -> Any:
    return response.responses[0].partitions[0]


@in_loop
async def test_a_follower_reads_to_the_end_and_its_fetches_commit(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a", b"b")
        assert (await broker.fetch("t", 0)).records == b""
        first = await leader.fetch(2, 0)
        assert values_of(first.records) == [b"a", b"b"]
        assert first.high_watermark == 0
        await leader.fetch(3, 1)
        # The answer has the high watermark that follows from the question.
        assert (await leader.fetch(2, 2, fields={"high_watermark": 0})).high_watermark == 1
        assert values_of((await broker.fetch("t", 0)).records) == [b"a"]
        leader.partition.tick()
        assert not leader.proposals.asked


@pytest.mark.parametrize("version", [4, 11, 14, 15, 18])
@in_loop
async def test_followers_of_every_version(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a")
        if version < 15:
            who: dict[str, Any] = {"replica_id": 2}
        else:
            who = {"replica_state": FetchReplicaState(replica_id=2, replica_epoch=EPOCH + 2)}
        name = "t" if version < 13 else ""
        request = fetch_request(name, 1, topic_id=leader.topic_id, **who)
        response = await broker.ask(request, version)
        assert data_of(response).error_code == ErrorCode.NONE
        follower = leader.partition.leader.follower(2)
        assert follower is not None
        assert follower.log_end_offset == 1
        assert follower.broker_epoch == (EPOCH + 2 if version >= 15 else -1)


@in_loop
async def test_who_may_not_follow(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a")

        async def code(replica: int, offset: int = 0, **options: Any) -> ErrorCode:
            return ErrorCode((await leader.fetch(replica, offset, **options)).error_code)

        assert await code(7) is ErrorCode.UNKNOWN_LEADER_EPOCH
        stale = FetchReplicaState(replica_id=2, replica_epoch=EPOCH)
        assert await code(2, replica_state=stale) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code(2, 5) is ErrorCode.OFFSET_OUT_OF_RANGE
        epochs = {"current_leader_epoch": 0}
        assert await code(2, fields=epochs) is ErrorCode.FENCED_LEADER_EPOCH
        epochs = {"current_leader_epoch": 9}
        assert await code(2, fields=epochs) is ErrorCode.UNKNOWN_LEADER_EPOCH
        follower = leader.partition.leader.follower(2)
        assert follower is not None
        assert follower.broker_epoch is None


@in_loop
async def test_a_log_that_diverges_says_nothing_of_its_follower(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a")
        await leader.replicate((1, 2, 3))
        await written(broker, b"b")
        fields = {"last_fetched_epoch": 1}
        data = await leader.fetch(2, 2, fields=fields)
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, 1)
        assert bytes(data.records) == b""
        follower = leader.partition.leader.follower(2)
        assert follower is not None
        assert follower.broker_epoch is None


@in_loop
async def test_what_is_in_the_lake_alone_is_not_for_followers(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1,))
        await written(broker, b"a")
        log = leader.partition.log
        log.roll()
        await written(broker, b"b")
        log.segments.discard_oldest(1, broker.node.clock.now_ms())
        data = await leader.fetch(2, 0)
        assert data.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
        assert values_of((await leader.fetch(2, 1)).records) == [b"b"]


# -- waiting ------------------------------------------------------------------------------------


@in_loop
async def test_an_append_wakes_followers_before_it_is_committed(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        task = await park(broker, leader.request(2, 0, max_wait_ms=5000))
        consumer = await park(broker, fetch_request("t", 0, max_wait_ms=5000), 12)
        await written(broker, b"a")
        data = data_of(await asyncio.wait_for(task, 2))
        assert values_of(b"".join(data.records)) == [b"a"]
        assert not consumer.done()
        for replica in (2, 3):
            await leader.fetch(replica, 1, fields={"high_watermark": 0})
        data = data_of(await asyncio.wait_for(consumer, 2))
        assert values_of(b"".join(data.records)) == [b"a"]


@in_loop
async def test_a_follower_hears_of_the_high_watermark_at_once(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a")
        behind = {"high_watermark": 0}
        task = await park(broker, leader.request(2, 1, max_wait_ms=5000, fields=behind))
        answer = broker.begin(leader.request(3, 1, max_wait_ms=5000, fields=behind), 18)
        # The second one has moved it: it is told without waiting, and the first one is woken.
        assert data_of(answer).high_watermark == 1
        assert data_of(await asyncio.wait_for(task, 2)).high_watermark == 1
        # Who knows it already waits for more.
        waiting = await park(broker, leader.request(2, 1, max_wait_ms=5000))
        waiting.cancel()


@in_loop
async def test_a_parked_fetch_speaks_of_when_it_came(memory_path: Path) -> None:
    """Or a follower that has gone would seem to be there for as long as its fetch is parked."""
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        task = await park(broker, leader.request(2, 0, max_wait_ms=30))
        before = leader.partition.leader.follower(2)
        await task
        assert leader.partition.leader.follower(2) is before


@in_loop
async def test_followers_are_told_when_the_partition_is_led_elsewhere(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        task = await park(broker, leader.request(2, 0, max_wait_ms=5000))
        leader.partition.lose()
        await asyncio.wait_for(task, 2)


# -- who is in sync, and what waits for it ---------------------------------------------------------


@in_loop
async def test_acks_all_waits_for_all_in_sync(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, min_insync_replicas=2)
        waiting = broker.begin(produce_request("t", batch_of([b"a"])), 9)
        assert isinstance(waiting, Waiting)
        done = asyncio.ensure_future(waiting.result)
        await leader.fetch(2, 1)
        await asyncio.sleep(0)
        assert not done.done()
        await leader.fetch(3, 1, fields={"high_watermark": 0})
        response = await asyncio.wait_for(done, 2)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@in_loop
async def test_too_few_in_sync(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, min_insync_replicas=2)
        waiting = broker.begin(produce_request("t", batch_of([b"a"])), 9)
        await leader.replicate((1,))
        refused = await broker.produce("t", batch_of([b"b"]))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        # What was written before is told so once it is committed after all.
        await leader.replicate((1, 2))
        await leader.fetch(2, 1, fields={"high_watermark": 0})
        response = await asyncio.wait_for(waiting.result, 2)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@in_loop
async def test_one_that_has_caught_up_is_proposed(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1, 2))
        await written(broker, b"a")
        await leader.fetch(2, 1, fields={"high_watermark": 0})
        await leader.fetch(3, 0)
        assert len(leader.proposals.asked) == 0 or leader.proposals.asked[0].members == {
            1,
            2,
            3,
        }
        await leader.fetch(3, 1)
        (asked,) = leader.proposals.asked
        assert asked.isr == ((1, -1), (2, EPOCH + 2), (3, EPOCH + 3))


# -- throttling (KIP-73) ----------------------------------------------------------------------------


async def throttled(leader: FollowerDesk, listed: str, rate: str = "1") -> None:
    node = leader.broker.node
    node.metadata.topics["t"].configs[LEADER_THROTTLED_REPLICAS] = listed
    config = replace(node.config, leader_replication_throttled_rate=int(rate))
    node.dynamic_config.current = config


@pytest.mark.parametrize(
    ("listed", "replica", "is_held"),
    [("*", 3, True), ("0:1", 3, True), ("0:3,1:1", 3, False), ("", 3, False), ("*", 2, False)],
)
@in_loop
async def test_a_throttled_follower_gets_no_more_than_the_rate(
    memory_path: Path, listed: str, replica: int, is_held: bool
) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1, 2))
        await throttled(leader, listed)
        await written(broker, b"a", b"b")
        half = len(batch_of([b"a"]))
        first = await leader.fetch(replica, 0, partition_max_bytes=half)
        assert values_of(first.records) == [b"a"]
        second = await leader.fetch(replica, 1, fields={"high_watermark": 5})
        assert second.error_code == ErrorCode.NONE
        assert values_of(second.records) == ([] if is_held else [b"b"])
        if is_held:
            task = await park(broker, leader.request(replica, 1, max_wait_ms=200))
            assert data_of(await task).records == b""
            await throttled(leader, listed, rate="1000000")
            assert values_of((await leader.fetch(replica, 1)).records) == [b"b"]


# -- the nearest replica (KIP-392) ---------------------------------------------------------------------


@in_loop
async def test_a_consumer_is_sent_to_its_rack(memory_path: Path) -> None:
    settings = {"replica_selector_class": RACK_AWARE_SELECTOR, "broker_rack": "rack-1"}
    async with in_process(memory_path, **settings) as broker:
        leader = await desk(broker)
        await written(broker, b"a")
        for replica in (2, 3):
            await leader.fetch(replica, 1, fields={"high_watermark": 0})

        async def sent_to(rack: str, offset: int = 0, version: int = 12) -> tuple[int, list[Any]]:
            request = fetch_request("t", offset, rack_id=rack, max_wait_ms=5000)
            data = data_of(await broker.ask(request, version))
            assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 1)
            return data.preferred_read_replica, values_of(data.records)

        assert await sent_to("rack-2") == (2, [])
        assert await sent_to("rack-3", 1) == (3, [])
        assert await sent_to("rack-1") == (-1, [b"a"])
        assert await sent_to("nowhere") == (-1, [b"a"])
        assert await sent_to("") == (-1, [b"a"])
        assert await sent_to("rack-2", version=10) == (-1, [b"a"])
        # Who does not have it, is out of sync, fenced, or cannot be reached is not named.
        await written(broker, b"b")
        await leader.fetch(3, 2)
        leader.register(2, rack="rack-3")
        assert await sent_to("rack-3") == (3, [])
        leader.register(3, rack="rack-3", fenced=True)
        assert await sent_to("rack-3") == (2, [])
        leader.register(2, rack="rack-3", endpoints=())
        assert await sent_to("rack-3") == (-1, [b"a"])


@pytest.mark.parametrize("selector", [None, LEADER_SELECTOR])
@in_loop
async def test_nobody_is_sent_anywhere_unless_asked_for(
    memory_path: Path, selector: str | None
) -> None:
    settings = {} if selector is None else {"replica_selector_class": selector}
    async with in_process(memory_path, **settings) as broker:
        leader = await desk(broker)
        await written(broker, b"a")
        for replica in (2, 3):
            await leader.fetch(replica, 1, fields={"high_watermark": 0})
        data = await broker.fetch("t", 0, rack_id="rack-2")
        assert (data.preferred_read_replica, values_of(data.records)) == (-1, [b"a"])


# -- what clients are told while followers have yet to speak ---------------------------------------------


async def listed(broker: InProcess, timestamp: int, version: int, **fields: Any) -> tuple[int, int]:
    topic = build(ListOffsetsTopic, name="t", partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(**{"replica_id": -1, "topics": [topic], **fields})
    (found,) = (await broker.ask(request, version)).topics[0].partitions
    return found.error_code, found.offset


@in_loop
async def test_the_latest_offset_is_not_known_at_first(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a", b"b")
        await leader.replicate((1, 2, 3))
        for timestamp in (-1, 0, -3, NOW_MS):
            found = await listed(broker, timestamp, 7)
            assert found == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), timestamp
        assert (await listed(broker, -1, 4))[0] == ErrorCode.LEADER_NOT_AVAILABLE
        assert await listed(broker, -2, 7) == (ErrorCode.NONE, 0)
        assert await listed(broker, -1, 7, replica_id=2) == (ErrorCode.NONE, 2)
        for replica in (2, 3):
            await leader.fetch(replica, 2, fields={"high_watermark": 0})
        await written(broker, b"c")
        assert await listed(broker, -1, 7) == (ErrorCode.NONE, 2)
        assert await listed(broker, 0, 7) == (ErrorCode.NONE, 0)
        assert await listed(broker, NOW_MS + 9, 7) == (ErrorCode.NONE, -1)


def deleting(offset: int, timeout_ms: int) -> DeleteRecordsRequest:
    topic = build(DeleteRecordsTopic, name="t", partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


@in_loop
async def test_records_are_deleted_when_no_replica_has_them(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a", b"b")
        for replica in (2, 3):
            await leader.fetch(replica, 2, fields={"high_watermark": 0})
        waiting = broker.begin(deleting(1, 5000), 2)
        assert isinstance(waiting, Waiting)
        task = asyncio.ensure_future(waiting.result)
        moved = {"log_start_offset": 1}
        await leader.fetch(2, 2, fields=moved)
        await turns()
        assert not task.done()
        assert (await leader.fetch(3, 2, fields=moved)).log_start_offset == 1
        (result,) = (await asyncio.wait_for(task, 2)).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 1)


@in_loop
async def test_a_replica_that_is_late_and_one_that_is_gone(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker)
        await written(broker, b"a", b"b")
        for replica in (2, 3):
            await leader.fetch(replica, 2, fields={"high_watermark": 0})
        (late,) = (await broker.ask(deleting(1, 20), 2)).topics[0].partitions
        assert (late.error_code, late.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert leader.partition.log.log_start_offset == 1
        leader.register(3, fenced=True)
        await leader.fetch(2, 2, fields={"log_start_offset": 1})
        (done,) = (await broker.ask(deleting(1, 20), 2)).topics[0].partitions
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 1)
