"""Cold reads: so many at once, so many that wait, and a rate beyond which they are shed (KIP-405, KIP-956)."""

import asyncio
from pathlib import Path

import pytest

from broker.tier.metrics import TierMetrics
from broker.tier.quota import COPY_TIMES, RemoteQuota
from broker.tier.remote_reads import RemoteReads
from broker.tier.settings import UNBOUNDED
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages.data import FetchPartition
from tests.fakes.memory_disk import ManualClock
from tests.in_process import batch_of, fetch_request, in_process, values_of
from tests.loops import in_loop, pass_time, turns
from tests.unit.test_handlers_fetch import tiered


class Worker:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[int]] = []

    async def ask(self) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer


@in_loop
async def test_turns_and_queue_are_bounded() -> None:
    metrics, worker = TierMetrics(), Worker()
    reads = RemoteReads(2, 3, ManualClock(1_000), metrics)
    tasks = [asyncio.ensure_future(reads.ask(worker.ask)) for _ in range(5)]
    await turns()
    assert (len(worker.asked), metrics.reads_waiting) == (2, 3)
    with pytest.raises(KafkaError) as refused:
        await reads.ask(worker.ask)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    worker.asked[0].set_result(7)
    await turns()
    assert (tasks[0].result(), len(worker.asked), metrics.reads_waiting) == (7, 3, 2)
    for at in (1, 2, 3, 4):
        worker.asked[at].set_result(at)
        await turns()
    assert [task.result() for task in tasks] == [7, 1, 2, 3, 4]
    assert (metrics.reads_waiting, metrics.reader_times.count) == (0, 5)


@in_loop
async def test_who_gives_up_waits_no_more_but_the_worker_s_turn_is_kept() -> None:
    metrics, worker = TierMetrics(), Worker()
    reads = RemoteReads(1, 5, ManualClock(1_000), metrics)
    asked, waiting, patient = (asyncio.ensure_future(reads.ask(worker.ask)) for _ in range(3))
    await turns()
    asked.cancel()
    waiting.cancel()
    await turns()
    assert (asked.cancelled(), waiting.cancelled()) == (True, True)
    # The worker is at it still: nobody else is asked before it is done, whatever comes of it.
    assert (len(worker.asked), metrics.reads_waiting) == (1, 1)
    worker.asked[0].set_exception(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE))
    await turns()
    worker.asked[1].set_result(3)
    assert await patient == 3
    assert len(worker.asked) == 2


@in_loop
async def test_how_idle_the_turns_are_is_told() -> None:
    clock, metrics, worker = ManualClock(1_000), TierMetrics(), Worker()
    reads = RemoteReads(2, 5, clock, metrics)
    metrics.readers.idle(1.0)
    task = asyncio.ensure_future(reads.ask(worker.ask))
    await turns()
    clock.ms += 10_000
    assert metrics.readers.idle(11.0) == pytest.approx(1 - 10 / (11 * 2))
    worker.asked[0].set_result(0)
    await task
    assert metrics.reader_times.total_s == pytest.approx(10)
    assert metrics.readers.idle(200.0) == 1.0


def test_the_quota_is_kafka_s_sampled_rate() -> None:
    quota = RemoteQuota(lambda: 1_000, COPY_TIMES, windows=11, window_seconds=1)
    assert quota.throttle_time_ms(0) == 0
    quota.record(1_000, 0)
    assert quota.throttle_time_ms(10) == 0
    quota.record(2_000, 500)
    # 3,000 bytes in what counts as one second: two more until that is the rate.
    assert quota.throttle_time_ms(500) == 2_000
    assert quota.throttle_time_ms(2_500) == 500
    assert quota.throttle_time_ms(3_000) == 0
    averages = {metric.bean: value for metric, _, value in quota.samples(3_000)}
    assert list(averages.values()) == [1_250, 2_000]
    assert all(name.startswith("kafka.server:type=RemoteLogManager") for name in averages)
    assert [value for _, _, value in quota.samples(200_000)] == [0.0, 0]


def test_what_is_behind_the_window_holds_nothing_back() -> None:
    quota = RemoteQuota(lambda: 1_000, COPY_TIMES, windows=3, window_seconds=1)
    quota.record(1_000_000, 0)
    assert quota.throttle_time_ms(1_000) == 2_000
    assert quota.throttle_time_ms(3_000) == 0


def test_a_rate_without_bound_costs_nothing() -> None:
    quota = RemoteQuota(lambda: UNBOUNDED, COPY_TIMES, windows=11, window_seconds=1)
    quota.record(10**15, 0)
    assert quota.throttle_time_ms(1) == 0


@in_loop
async def test_beyond_the_quota_cold_reads_are_shed_and_others_are_not(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        tier = await tiered(broker, monkeypatch, sheds=True)
        more = [FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=500)]
        response = await broker.ask(fetch_request("t", 0, max_wait_ms=5000, more=more), 12)
        cold, hot = response.responses[0].partitions
        assert (cold.error_code, cold.high_watermark, bytes(cold.records)) == (0, 3, b"")
        assert values_of(hot.records) == [b"other"]
        assert tier.asked == []
        # Alone it waits as one that has nothing; what is appended to the partition does not wake it, time does.
        waiting = asyncio.ensure_future(broker.ask(fetch_request("t", 0, max_wait_ms=30_000), 12))
        await turns()
        await broker.produce("t", batch_of([b"hotter"]))
        await turns()
        assert not waiting.done()
        tier.sheds = False
        await pass_time(31)
        data = (await waiting).responses[0].partitions[0]
        assert values_of(data.records) == [b"cold", b"colder"]
        monkeypatch.setattr(broker.node, "tier", None)
