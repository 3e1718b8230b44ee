"""One partition's transaction coordinator at work: a log that takes nothing for a moment, and much to do at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker import broker_server
from broker.config.broker import BrokerConfig
from broker.coordinator.result import Instant, ProducerIdAndEpoch
from broker.coordinator.runtime import partition_for
from broker.coordinator.transaction import marker_channel_manager as marker_channel
from broker.coordinator.transaction.marker_sender import MarkerSender
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import TransactionState as S
from broker.log.directories.log_manager import LogManager
from broker.replica.leader import partition as leader_partition
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    EndTxnRequest,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.in_process import batch_of, in_process, produce_request
from tests.loops import in_loop, until
from tests.unit.coordinator.transaction.transaction_desk import apply, begin, in_state

PATIENCE_SECONDS = 20


def fail_one_flush(partition: LeaderPartition) -> None:
    """The next flush finds the disk full; what was appended stays in the log."""
    log = partition.log

    def fail(then: Any = None) -> None:
        del log.flush
        asyncio.get_running_loop().call_soon(then, OSError("no space left"))

    log.flush = fail  # type: ignore[method-assign, assignment]


@pytest.mark.interpreted
@in_loop
async def test_what_a_full_disk_did_not_flush_counts_once_there_is_room(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is appended: an idempotent producer sends the same again, which is in the log."""
    monkeypatch.setattr(leader_partition, "FLUSH_RETRY_SECONDS", 0)
    async with in_process(memory_path) as broker:
        await broker.create("t", flush_messages=1)
        partition = broker.node.replica_manager.get("t", 0)
        fail_one_flush(partition)
        answer = await broker.produce("t", batch_of([b"a"]))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: partition.high_watermark == 1)


@pytest.mark.interpreted
@in_loop
async def test_a_decision_that_a_full_disk_did_not_flush_is_carried_out(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_partition, "FLUSH_RETRY_SECONDS", 0)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        partition = broker.node.replica_manager.get("__transaction_state", partition_for("x", 1))
        partition.log.update_config(replace(partition.log.config, flush_messages=1))
        fail_one_flush(partition)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=True
        )
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE, "once it is flushed"
        transactions = broker.node.transactions
        await until(lambda: transactions.find("x").state is S.COMPLETE_COMMIT)
        assert broker.node.replica_manager.get("t", 0).log.log_end_offset == 1, "a marker"


@pytest.mark.interpreted
@in_loop
async def test_nothing_is_verified_that_may_be_forgotten(memory_path: Path) -> None:
    """The next coordinator may not know of the partition: it would never get a marker, and the write stay open."""
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t", 2)
        who = ProducerIdAndEpoch(await begin(broker), 0)
        partition = broker.node.replica_manager.get("__transaction_state", 0)
        partition.log.update_config(replace(partition.log.config, flush_messages=1))
        flushed: list[Any] = []
        partition.log.flush = lambda then=None, **_: flushed.append(then)  # type: ignore[method-assign]
        transactions, added = broker.node.transactions, TopicPartition("t", 1)
        asked = [
            transactions.add_partitions("x", who, [added]),
            transactions.verify("x", who, added),
            transactions.verify("x", who, TopicPartition("t", 9)),
        ]
        await asyncio.sleep(0)
        assert [each.done() for each in asked] == [False] * 3
        del partition.log.flush
        partition.log.flush(then=flushed.pop())
        assert [await asked[0], await asked[1]] == [None, None]
        with pytest.raises(KafkaError, match="TRANSACTION_ABORTABLE"):
            await asked[2]
        assert transactions.verify("x", who, added) is None, "at once, as it is committed"


def test_many_unused_ids_are_forgotten_in_turns_and_none_that_is_used_meanwhile() -> None:
    settings = BrokerConfig()
    shard, now = (
        TransactionCoordinatorShard(settings),
        Instant(settings.transactional_id_expiration_ms + 1, 0),
    )
    shard.loaded(now)
    unused = [in_state(S.EMPTY, transactional_id=f"id {n}", updated_ms=0) for n in range(5)]
    for each in unused:
        shard.replay(each.transactional_id, each)
    assert shard.tick(now) is None, "it is looked for them at intervals"
    interval_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
    later = Instant(now.now_ms, interval_ms)
    assert shard.next_due_ms() <= interval_ms
    for _ in range(2):
        apply(shard, shard.tick(later))
    assert len(shard) == 3 and shard.next_due_ms() == 0, "there is more to do"
    shard.replay("id 4", replace(unused[4], updated_ms=now.now_ms))
    for _ in range(2):
        apply(shard, shard.tick(later))
    assert shard.tick(later) is None
    assert [each.transactional_id for each in shard] == ["id 4"]


def test_what_a_log_does_not_take_is_tried_again_with_the_next_look() -> None:
    settings = BrokerConfig()
    shard = TransactionCoordinatorShard(settings)
    for name in ("x", "y"):
        shard.replay(name, in_state(S.ONGOING, transactional_id=name, started_ms=0, timeout_ms=1))
    shard.loaded(Instant(0, 0))
    due = Instant(10, settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
    refused = shard.tick(due)
    assert refused is not None and refused.lines
    assert shard.written(refused, ErrorCode.COORDINATOR_NOT_AVAILABLE, due) is None
    assert shard.tick(due) is None
    again = Instant(20, 2 * due.monotonic_ms)
    assert [apply(shard, shard.tick(again)) for _ in range(2)] == [None, None]
    assert {each.state for each in shard} == {S.PREPARE_ABORT}


@in_loop
async def test_an_end_that_cannot_be_written_for_long_is_one_line_in_the_log(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marker_channel, "MARKER_RETRY_SECONDS", 0)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        transactions = broker.node.transactions
        refusals, append = iter(range(5)), LeaderPartition.append

        def refuse(partition: LeaderPartition, *args: Any, **more: Any) -> Any:
            if (
                partition.topic == "__transaction_state"
                and transactions.find("x").state is S.PREPARE_COMMIT
                and next(refusals, None) is not None
            ):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return append(partition, *args, **more)

        monkeypatch.setattr(LeaderPartition, "append", refuse)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=True
        )
        assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE
        await until(lambda: transactions.find("x").state is S.COMPLETE_COMMIT)
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


@pytest.mark.parametrize("nth", [1, 2])
@in_loop
async def test_markers_are_begun_again_after_a_mistake_of_ours(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nth: int
) -> None:
    """Nobody else would: the first time before the answer is given, the second time while it is done later."""
    monkeypatch.setattr(marker_channel, "BEGIN_AGAIN_SECONDS", 0)
    monkeypatch.setattr(marker_channel, "MARKER_RETRY_SECONDS", 0)
    write, calls = MarkerSender.write, iter(range(1, 1_000))

    def fail(sender: MarkerSender, *given: Any) -> Any:
        call = next(calls)
        if call == nth:
            raise AssertionError("ours")
        return ErrorCode.LEADER_NOT_AVAILABLE if call == 1 else write(sender, *given)

    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        monkeypatch.setattr(MarkerSender, "write", fail)
        end = EndTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=0, committed=True
        )
        answer = (await broker.ask(end, 3)).error_code
        assert answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE if nth == 1 else ErrorCode.NONE)
        transactions = broker.node.transactions
        await until(lambda: transactions.find("x").state is S.COMPLETE_COMMIT)
        partition = broker.node.replica_manager.get("t", 0)
        assert partition.last_stable_offset() == partition.log.log_end_offset == 1
    wrong = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert wrong == ["__transaction_state-0: Unexpected error while performing an effect for x"]


@in_loop
async def test_a_decision_in_a_log_that_opens_late_is_carried_out(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client asks, and nothing changes in the cluster's metadata."""
    state = "__transaction_state"
    end = EndTxnRequest(transactional_id="x", producer_id=0, producer_epoch=0, committed=True)
    with monkeypatch.context() as away:
        async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
            await broker.create("t")
            end.producer_id = await begin(broker)
            away.setattr(MarkerSender, "write", lambda *_: ErrorCode.LEADER_NOT_AVAILABLE)
            assert (await broker.ask(end, 3)).error_code == ErrorCode.NONE
    create, refusals = LogManager.create, iter(range(2))

    def opens_late(logs: LogManager, place: TopicPartition, *given: Any, **more: Any) -> Any:
        if place.topic == state and next(refusals, None) is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return create(logs, place, *given, **more)

    monkeypatch.setattr(LogManager, "create", opens_late)
    monkeypatch.setattr(broker_server, "TICK_SECONDS", 0.01)
    async with in_process(memory_path, transaction_state_log_num_partitions=1) as broker:
        assert broker.node.replica_manager.find(state, 0) is None
        partition = broker.node.replica_manager.get("t", 0)
        await until(lambda: partition.log.log_end_offset == 1)
