"""One partition's transaction coordinator at work: a log that takes nothing for a moment, and much to do at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.coordinating.placement import partition_for
from broker.replica.leader import hosted
from broker.replica.leader.hosted import HostedPartition
from broker.transactions import runner
from broker.transactions.states import TransactionState as S
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from kafka_ds.wire.messages.transactions import AddPartitionsToTxnTopic
from tests.in_process import InProcess, batch_of, in_process, produce_request
from tests.loops import in_loop

PATIENCE_SECONDS = 20


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


def fail_one_flush(partition: HostedPartition) -> None:
    """The next flush finds the disk full; what was appended stays in the log."""
    log = partition.log

    def fail(then: Any = None) -> None:
        del log.flush
        asyncio.get_running_loop().call_soon(then, OSError("no space left"))

    log.flush = fail  # type: ignore[method-assign, assignment]


@in_loop
async def test_what_a_full_disk_did_not_flush_counts_once_there_is_room(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is appended: an idempotent producer sends the same again, which is in the log."""
    monkeypatch.setattr(hosted, "FLUSH_RETRY_SECONDS", 0)
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)
        fail_one_flush(partition)
        answer = await broker.produce("t", batch_of([b"a"]))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await eventually(lambda: partition.high_watermark == 1)


@in_loop
async def test_a_decision_that_a_full_disk_did_not_flush_is_carried_out(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "FLUSH_RETRY_SECONDS", 0)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        partition = broker.node.replica_manager.get("__transaction_state", partition_for("x", 1))
        partition.log.update_config(replace(partition.log.config, flush_messages=1))
        fail_one_flush(partition)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=True
        )
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NOT_COORDINATOR
        transactions = broker.node.transactions
        await eventually(lambda: transactions.find("x").state is S.COMPLETE_COMMIT)
        assert broker.node.replica_manager.get("t", 0).log.log_end_offset == 1, "a marker"


@in_loop
async def test_many_unused_ids_are_forgotten_in_turns_and_none_that_is_used_meanwhile(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "EXPIRED_AT_ONCE", 2)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        await begin(broker)
        coordinator = broker.node.transactions.topic.runner_of("x")
        shard, now_ms = coordinator.shard, broker.node.clock.now_ms()
        unused = [
            replace(shard.find("x"), transactional_id=f"id {n}", state=S.EMPTY, updated_ms=0)
            for n in range(5)
        ]
        for each in unused:
            shard.replay(each.transactional_id, each)
        coordinator.tick(now_ms, expire=True)
        await asyncio.sleep(0)
        assert len(shard) == 4
        shard.replay("id 4", replace(unused[4], updated_ms=now_ms))
        await eventually(lambda: len(shard) == 2)
        assert {each.transactional_id for each in shard} == {"x", "id 4"}


@in_loop
async def test_an_end_that_cannot_be_written_for_long_is_one_line_in_the_log(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "MARKER_RETRY_SECONDS", 0)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        transactions = broker.node.transactions
        lead = transactions.topic.runner_of("x").lead
        append, refusals = lead.append, iter(range(5))

        def refuse(batch: bytes | bytearray) -> int:
            if (
                transactions.find("x").state is S.PREPARE_COMMIT
                and next(refusals, None) is not None
            ):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return append(batch)

        monkeypatch.setattr(lead, "append", refuse)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=True
        )
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE
        await eventually(lambda: transactions.find("x").state is S.COMPLETE_COMMIT)
        assert next(refusals, None) is None
        assert [each.args[0] for each in caplog.records if "completed yet" in each.msg] == ["x"]


@in_loop
async def test_a_transaction_that_began_by_a_write_is_ended_by_an_old_request_too(
    memory_path: Path,
) -> None:
    """Its markers were dropped, as if they were late: consumers never saw anything behind it again."""
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=False
        )
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE
        batch = batch_of(
            [b"a"],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        request = produce_request("t", batch)
        request.transactional_id = "x"
        (written,) = (await broker.ask(request, 12)).responses[0].partition_responses
        assert written.error_code == ErrorCode.NONE
        end.committed = True
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE
        partition = broker.node.replica_manager.get("t", 0)
        assert partition.last_stable_offset() == partition.log.log_end_offset


async def begin(broker: InProcess) -> int:
    """A transaction that has a partition; its producer's id."""
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
    assert (await broker.ask(find, 5)).coordinators[0].error_code == ErrorCode.NONE
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    producer_id: int = (await broker.ask(init, 4)).producer_id
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    added = await broker.ask(add, 3)
    topic = added.results_by_topic_v3_and_below[0]
    assert topic.results_by_partition[0].partition_error_code == ErrorCode.NONE
    return producer_id
