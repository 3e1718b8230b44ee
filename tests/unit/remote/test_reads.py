"""Cold reads: how many run at a time, how many may wait, and the rate above which they are shed (KIP-405, KIP-956)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.remote.metrics import ThreadIdleRatio, TierMetrics
from broker.remote.quota import COPY_TIMES, RemoteQuota
from broker.remote.reads import RemoteReads
from broker.remote.remote_log_manager import RemoteLogManager
from broker.worker.rpc import UNBOUNDED, CacheCounts, MaxTimestamp, ReadAnswer
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.fakes.clock import ManualClock
from tests.fakes.network import Respondent
from tests.fakes.settings import tier_settings
from tests.in_process import batch_of, fetch_request, in_process, values_of
from tests.loops import in_loop, pass_time, turns, until
from tests.unit.handlers.tiered_topics import tiered

FIND = MaxTimestamp(partition=TopicIdPartition(b"i" * 16, "t", 0), start_offset=0)


def reads_of(
    worker: Any,
    metrics: TierMetrics,
    *,
    threads: int = 2,
    pending_max: int = 5,
    clock: ManualClock | None = None,
) -> RemoteReads:
    return RemoteReads(
        worker,
        threads=threads,
        pending_max=pending_max,
        clock=clock or ManualClock(1_000),
        metrics=metrics,
    )


@in_loop
async def test_turns_and_queue_are_bounded() -> None:
    metrics, worker = TierMetrics(), Respondent()
    reads = reads_of(worker, metrics, threads=2, pending_max=3)
    tasks = [asyncio.ensure_future(reads.send(FIND)) for _ in range(5)]
    await turns()
    assert (len(worker.waiting), metrics.reads_waiting) == (2, 3)
    with pytest.raises(KafkaError) as refused:
        await reads.send(FIND)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    worker.waiting[0].set_result(7)
    await turns()
    assert (tasks[0].result(), len(worker.waiting), metrics.reads_waiting) == (7, 3, 2)
    for at in (1, 2, 3, 4):
        worker.waiting[at].set_result(at)
        await turns()
    assert [task.result() for task in tasks] == [7, 1, 2, 3, 4]
    assert (metrics.reads_waiting, metrics.reader_times.count) == (0, 5)


@in_loop
async def test_the_number_of_turns_changes_while_reads_run() -> None:
    worker = Respondent()
    reads = reads_of(worker, TierMetrics(), threads=1, pending_max=9)
    tasks = [asyncio.ensure_future(reads.send(FIND)) for _ in range(8)]
    await turns()
    assert len(worker.waiting) == 1
    reads.configure(4)
    await turns()
    assert len(worker.waiting) == 4
    reads.configure(2)
    for at in (0, 1):
        worker.waiting[at].set_result(at)
        await turns()
    assert len(worker.waiting) == 4, "two turns are too many"
    worker.waiting[2].set_result(2)
    await turns()
    assert len(worker.waiting) == 5
    reads.configure(3)
    await turns()
    assert len(worker.waiting) == 6
    for at in range(3, 8):
        worker.waiting[at].set_result(at)
        await turns()
    assert [task.result() for task in tasks] == list(range(8))


@in_loop
async def test_who_gives_up_waits_no_more_but_the_worker_s_turn_is_kept() -> None:
    metrics, worker = TierMetrics(), Respondent()
    reads = reads_of(worker, metrics, threads=1)
    asked, waiting, patient = (asyncio.ensure_future(reads.send(FIND)) for _ in range(3))
    await turns()
    asked.cancel()
    waiting.cancel()
    await turns()
    assert (asked.cancelled(), waiting.cancelled()) == (True, True)
    # The worker is at it still: nobody else is asked before it is done, whatever comes of it.
    assert (len(worker.waiting), metrics.reads_waiting) == (1, 1)
    worker.waiting[0].set_exception(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE))
    await turns()
    worker.waiting[1].set_result(3)
    assert await patient == 3
    assert len(worker.waiting) == 2


@in_loop
async def test_how_idle_the_turns_are_is_told() -> None:
    clock, worker = ManualClock(1_000), Respondent()
    metrics = TierMetrics(readers=ThreadIdleRatio(2))
    reads = reads_of(worker, metrics, clock=clock)
    metrics.readers.idle(1.0)
    task = asyncio.ensure_future(reads.send(FIND))
    await turns()
    clock.ms += 10_000
    assert metrics.readers.idle(11.0) == pytest.approx(1 - 10 / (11 * 2))
    worker.waiting[0].set_result(0)
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
async def test_beyond_the_quota_cold_reads_are_shed_and_others_are_not(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        tier = await tiered(broker, sheds=True)
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


@in_loop
async def test_what_is_not_there_in_time_is_an_answer_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """remote.fetch.max.wait.ms; the worker's turn is kept, and who asks again finds what it has found."""
    settings = tier_settings(remote_fetch_max_wait_ms=5, remote_log_reader_threads=1)
    manager = RemoteLogManager(settings, ManualClock())
    answer: asyncio.Future[ReadAnswer] = asyncio.get_running_loop().create_future()
    worker = Respondent(lambda _: answer)
    monkeypatch.setattr(manager.worker, "send", worker.send)
    place = (TopicIdPartition(b"i" * 16, "t", 0), 7)
    assert await manager.read(*place, max_bytes=100) is None
    assert await manager.read(*place, max_bytes=100) is None
    # The second one waited for its turn, and went.
    assert (len(worker.asked), manager.metrics.fetches_expired) == (1, 2)
    answer.set_result(ReadAnswer(chunks=[b"abc"]))
    await turns()
    read = await manager.read(*place, max_bytes=100)
    assert read == [b"abc"]
    assert manager.metrics.topics.of("t").fetch_bytes == 3


@in_loop
async def test_bytes_of_cold_reads_use_up_the_quota_which_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tier_settings(remote_log_manager_fetch_max_bytes_per_second=1_000)
    clock = ManualClock()
    manager = RemoteLogManager(settings, clock, lambda: settings)
    worker = Respondent(lambda _: ReadAnswer(chunks=[bytes(4_000)]))
    monkeypatch.setattr(manager.worker, "send", worker.send)
    assert not manager.sheds_reads()
    await manager.read(TopicIdPartition(b"i" * 16, "t", 0), 7, max_bytes=100)
    assert manager.sheds_reads()
    settings = replace(settings, remote_log_manager_fetch_max_bytes_per_second=4_000)
    assert not manager.sheds_reads()
    settings = replace(settings, remote_log_manager_fetch_max_bytes_per_second=1_000)
    clock.ms += 4_000
    assert not manager.sheds_reads()


@in_loop
async def test_several_cold_partitions_of_one_request_are_read_side_by_side(
    memory_path: Path,
) -> None:
    """With those that are on disk, in one answer; one that is late keeps no other from its records."""
    async with in_process(memory_path) as broker:
        await tiered(broker)
        log = broker.node.replica_manager.get("t", 1).log
        log.roll()
        await broker.produce("t", batch_of([b"later"]), partition=1)
        log.segments.discard_oldest(1, broker.node.clock.now_ms())
        begun: list[int] = []

        class FakeLake:
            def sheds_reads(self) -> bool:
                return False

            async def read(self, partition: TopicIdPartition, *_: Any, **__: Any) -> Any:
                begun.append(partition.partition)
                await until(lambda: len(begun) >= 2)
                if partition.partition == 0:
                    return None
                return [batch_of([b"cold-1"])]

        broker.exchange(remote_log_manager=FakeLake())
        more = [
            FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=500),
        ]
        request = fetch_request("t", 0, max_wait_ms=5000, partition_max_bytes=500, more=more)
        request.topics += fetch_request("t", 2).topics
        response = await broker.ask(request, 12)
        late, cold = response.responses[0].partitions
        (hot,) = response.responses[1].partitions
        assert (late.error_code, late.high_watermark, bytes(late.records)) == (0, 3, b"")
        assert values_of(cold.records) == [b"cold-1"]
        assert values_of(hot.records) == [b"hot"]


def test_the_worker_s_counts_go_on_over_its_restarts() -> None:
    metrics = TierMetrics()
    for hits, misses in ((1, 2), (5, 2), (0, 1), (4, 1)):
        metrics.cached(CacheCounts(hits=hits, misses=misses, size_bytes=10 * hits))
    assert metrics.cache == {"hits": 9, "misses": 3, "size_bytes": 40, "is_off": 0}
