"""Fetch requests that wait: what wakes them, when, and that nothing is left of those who go."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.log.log import Log
from broker.server.dispatch import Waiting
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteTopicsRequest, FetchRequest
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.records.batch import ControlType, end_transaction_marker
from tests.in_process import NOW_MS, InProcess, batch_of, fetch_request, in_process, values_of
from tests.loops import in_loop, pass_time, turns
from tests.requests import build


async def park(broker: InProcess, request: FetchRequest, version: int = 12) -> asyncio.Task[Any]:
    """A request that has to wait; decoded, with the time that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = broker.begin(request, version)
    assert isinstance(waiting, Waiting), "answered at once"

    async def answer() -> tuple[Any, float]:
        return await waiting.result, (loop.time() - began) * 1000

    task = asyncio.ensure_future(answer())
    await asyncio.sleep(0.005)
    assert not task.done()
    return task


@in_loop
async def test_an_append_wakes_who_waits_at_the_end(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=5000))
        await broker.produce("t", batch_of([b"a"]))
        response, took_ms = await task
        assert values_of(b"".join(response.responses[0].partitions[0].records)) == [b"a"]
        assert took_ms < 500


@in_loop
async def test_the_answer_comes_when_the_time_is_over(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=60))
        response, took_ms = await task
        assert 55 <= took_ms < 500
        data = response.responses[0].partitions[0]
        assert (data.error_code, data.high_watermark, data.records) == (0, 0, b"")
        assert not broker.node.replica_manager.get("t", 0).watchers


@in_loop
async def test_min_bytes_are_gathered_over_partitions(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        batch = batch_of([b"v" * 100])
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)]
        request = fetch_request("t", 0, max_wait_ms=5000, min_bytes=3 * len(batch), more=more)
        task = await park(broker, request)
        for partition in (0, 1):
            await broker.produce("t", batch, partition=partition)
            await asyncio.sleep(0.005)
            assert not task.done()
        await broker.produce("t", batch, partition=0)
        response, took_ms = await task
        assert took_ms < 1000
        assert [len(b"".join(p.records)) for p in response.responses[0].partitions] == [
            2 * len(batch),
            len(batch),
        ]


@in_loop
async def test_what_was_there_when_it_was_parked_counts_too(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        batch = batch_of([b"v" * 100])
        await broker.produce("t", batch, partition=0)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)]
        request = fetch_request("t", 0, max_wait_ms=60_000, min_bytes=2 * len(batch), more=more)
        task = await park(broker, request)
        await broker.produce("t", batch, partition=1)
        await turns()
        assert task.done()
        response, _ = await task
        assert [len(b"".join(p.records)) for p in response.responses[0].partitions] == [
            len(batch),
            len(batch),
        ]


@in_loop
async def test_enough_is_answered_at_once(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"]))
        for options in ({"min_bytes": 1}, {"min_bytes": 0}, {"min_bytes": -1}):
            answer = broker.begin(fetch_request("t", 0, max_wait_ms=5000, **options), 12)
            assert not isinstance(answer, Waiting)
        assert not isinstance(broker.begin(fetch_request("t", 1, max_wait_ms=0), 12), Waiting)
        nothing = FetchRequest(max_wait_ms=5000, min_bytes=1, topics=[])
        assert not isinstance(broker.begin(nothing, 12), Waiting)


@in_loop
async def test_an_error_is_not_waited_with(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        answer = broker.begin(fetch_request("t", 9, max_wait_ms=5000), 12)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@in_loop
async def test_a_full_partition_is_not_waited_with(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        batch = batch_of([b"v" * 100])
        for _ in range(2):
            await broker.produce("t", batch)
        request = fetch_request(
            "t", 0, max_wait_ms=5000, min_bytes=9999, partition_max_bytes=len(batch)
        )
        assert not isinstance(broker.begin(request, 12), Waiting)


@in_loop
async def test_a_reader_of_an_older_segment_does_not_wait(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a"]))
        broker.node.replica_manager.get("t", 0).log.roll()
        await broker.produce("t", batch_of([b"b"]))
        request = fetch_request("t", 0, max_wait_ms=5000, min_bytes=9999)
        answer = broker.begin(request, 12)
        assert not isinstance(answer, Waiting)


@in_loop
async def test_deleting_the_topic_wakes_who_waits(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t")
        named = await park(broker, fetch_request("t", 0, max_wait_ms=5000))
        request = fetch_request("", 0, max_wait_ms=5000, topic_id=topic_id)
        identified = await park(broker, request, version=13)
        delete = build(DeleteTopicsRequest, topics=[{"topic_id": topic_id}], timeout_ms=1000)
        await broker.ask(delete, 6)
        for task, code in (
            (named, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (identified, ErrorCode.UNKNOWN_TOPIC_ID),
        ):
            response, took_ms = await task
            assert response.responses[0].partitions[0].error_code == code
            assert took_ms < 1000


@in_loop
async def test_stopping_wakes_who_waits(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=5000))
        broker.node.replica_manager.stop()
        response, _ = await task
        code = response.responses[0].partitions[0].error_code
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_loop
async def test_who_hangs_up_is_forgotten(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=5000))
        partition = broker.node.replica_manager.get("t", 0)
        assert partition.watchers
        task.cancel()
        await asyncio.sleep(0.005)
        assert not partition.watchers
        await broker.produce("t", batch_of([b"a"]))


@in_loop
async def test_a_commit_wakes_a_committed_reader_and_not_before(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=5000, isolation_level=1))
        broker.append_own(

            batch_of([b"a"], producer_id=7, producer_epoch=0, base_sequence=0,
                     is_transactional=True),
        )  # fmt: skip
        await turns()
        assert not task.done()
        broker.append_own(

            end_transaction_marker(ControlType.COMMIT, timestamp=NOW_MS, producer_id=7,
                                   producer_epoch=0, coordinator_epoch=0),
        )  # fmt: skip
        response, _ = await task
        assert response.responses[0].partitions[0].last_stable_offset == 2


@in_loop
async def test_many_appends_of_one_turn_become_one_answer(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        task = await park(broker, fetch_request("t", 0, max_wait_ms=5000))
        partition = broker.node.replica_manager.get("t", 0)
        for _ in range(5):
            partition.append(memoryview(bytearray(batch_of([b"a"]))), acks=1, now_ms=NOW_MS)
        response, _ = await task
        assert len(values_of(b"".join(response.responses[0].partitions[0].records))) == 5


@in_loop
async def test_waiting_costs_nothing(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        request = fetch_request("t", 0, max_wait_ms=60_000)
        tasks = [await park(broker, request) for _ in range(50)]
        looked: list[Log] = []
        read = Log.read

        def counting(log: Log, *args: Any, **named: Any) -> Any:
            looked.append(log)
            return read(log, *args, **named)

        monkeypatch.setattr(Log, "read", counting)
        for _ in range(50):
            await pass_time(1)
        assert not looked
        assert not any(task.done() for task in tasks)
        await broker.produce("t", batch_of([b"a"]))
        for task in tasks:
            response, _ = await task
            records = b"".join(response.responses[0].partitions[0].records)
            assert values_of(records) == [b"a"]
        assert len(looked) == 50
