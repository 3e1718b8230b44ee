"""What coordinators of groups and of transactions share: loading their logs, and the metrics of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.coordinator import runtime
from broker.coordinator.loads import WINDOW_MS, CoordinatorState, LoadMetrics, Loads
from broker.coordinator.transaction.metrics import LATE, LATE_AFTER_MS, late_samples
from broker.log.replay import replay_log
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
)
from tests.in_process import NOW_MS, InProcess, batch_of, in_process
from tests.loops import in_loop
from tests.requests import build

SETTINGS = {
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    # Less than a record: batches are read one by one.
    "offsets_load_buffer_size": 1,
    "transaction_state_log_load_buffer_size": 1,
}
GROUPS = "kafka_server_group_coordinator_metrics"
TRANSACTIONS = "kafka_server_transaction_coordinator_metrics"
METRICS = LoadMetrics("t.server:type=test-metrics", "tests", states_are_ours=True)


def seen(broker: InProcess, prefix: str) -> dict[str, float]:
    return {
        "/".join((metric.name.removeprefix(f"{prefix}_"), *labels)): value
        for metric, labels, value in broker.owner.metrics.samples()
        if metric.name.startswith(prefix) and not hasattr(value, "count")
    }


async def settled(ask: Any) -> Any:
    for _ in range(1_000):
        answer = await ask()
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer
        await asyncio.sleep(0.01)
    raise TimeoutError("the log is not read yet")


async def commit(broker: InProcess, offset: int) -> Any:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = build(
        OffsetCommitRequest,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": [partition]}],
    )
    return (await broker.ask(request, 9)).topics[0].partitions[0]


async def begin(broker: InProcess) -> Any:
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000)
    return await broker.ask(request, 5)


async def begin_both(broker: InProcess) -> None:
    await broker.create("t")
    for key_type, key in ((0, "g"), (1, "x")):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        assert (await broker.ask(request, 5)).coordinators[0].error_code == 0
    for offset in range(3):
        assert (await commit(broker, offset)).error_code == 0
        assert (await begin(broker)).error_code == 0


@in_loop
async def test_loading_is_logged_and_measured(
    memory_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        await begin_both(broker)
        for prefix in (GROUPS, TRANSACTIONS):
            found = seen(broker, prefix)
            assert found["num_partitions/active"] == 2
            assert "partition_load_time_max" not in found, "nothing had to be read"
    monkeypatch.setattr(runtime, "PROGRESS_EVERY_MS", 0)
    with caplog.at_level(logging.INFO, logger=runtime.__name__):
        async with in_process(memory_path, **SETTINGS) as broker:
            assert (await settled(lambda: commit(broker, 3))).error_code == 0
            assert (await settled(lambda: begin(broker))).error_code == 0
            for prefix in (GROUPS, TRANSACTIONS):
                found = seen(broker, prefix)
                assert found["num_partitions/active"] == 2
                assert 0 <= found["partition_load_time_avg"] <= found["partition_load_time_max"]
    said = [record.getMessage() for record in caplog.records]
    for topic in ("__consumer_offsets", "__transaction_state"):
        mine = [text for text in said if topic in text]
        assert [": offset 1 of 3 after" in text for text in mine].count(True) == 1
        assert "up to offset 3" in mine[-1]


@in_loop
async def test_a_log_that_cannot_be_read_is_counted_as_failed(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        await begin_both(broker)
    may_read = asyncio.Event()

    async def fails(*args: Any, **more: Any) -> AsyncIterator[int]:
        await may_read.wait()
        async for offset in replay_log(*args, **more):
            yield offset
        raise OSError("a bad sector")

    monkeypatch.setattr(runtime, "replay_log", fails)
    async with in_process(memory_path, **SETTINGS) as broker:
        loading = seen(broker, GROUPS)
        assert (loading["num_partitions/loading"], loading["num_partitions/active"]) == (1, 1)
        may_read.set()
        not_available = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await settled(lambda: begin(broker))).error_code == not_available
        assert (await settled(lambda: commit(broker, 9))).error_code == not_available
        for prefix in (GROUPS, TRANSACTIONS):
            assert seen(broker, prefix)["num_partitions/failed"] == 1


def test_loads_count_for_as_long_as_in_kafka() -> None:
    loads = Loads()
    states = [CoordinatorState.ACTIVE, CoordinatorState.LOADING, CoordinatorState.CLOSED]

    def values(now_ms: int) -> list[float]:
        return [float(value) for _, _, value in METRICS.samples(loads, states, now_ms)]

    assert values(0) == [1, 1, 0]
    loads.loaded(30, 1_000)
    loads.loaded(10, 2_000)
    assert values(2_000) == [30, 20, 1, 1, 0]
    assert values(2_000 + WINDOW_MS) == [10, 10, 1, 1, 0]
    assert values(2_001 + WINDOW_MS) == [1, 1, 0]


@in_loop
async def test_a_partition_with_a_transaction_that_hangs_is_late(memory_path: Path) -> None:
    async with in_process(memory_path, **SETTINGS) as broker:
        await begin_both(broker)
        partition = broker.node.replica_manager.get("t", 0)
        plain = batch_of([b"a"], producer_id=7, producer_epoch=0, base_sequence=0)
        open_one = batch_of(
            [b"b"], producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        for batch in (plain, open_one):
            partition.log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=NOW_MS)

        def late(passed_ms: int) -> float:
            ((metric, _, value),) = late_samples(
                [partition], now_ms=NOW_MS + passed_ms, max_timeout_ms=900_000
            )
            assert metric is LATE
            return float(value)

        assert late(900_000 + LATE_AFTER_MS) == 0
        assert late(900_001 + LATE_AFTER_MS) == 1
        assert seen(broker, "kafka_server_replicamanager_partitionswithlate")
