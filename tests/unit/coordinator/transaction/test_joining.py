"""Writes that wait for a coordinator's answer: each hears of it, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    PendingVerification,
    TransactionalWriter,
    TransactionSupportedOperation,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.segments.producers import Producers
from tests.fakes.logs import ScriptedLog
from tests.loops import in_loop


@dataclass(eq=False)
class _Partition:
    """What is asked of a partition."""

    log: object
    topic: str = "t"
    partition: int = 0
    is_lost: bool = False


@in_loop
async def test_a_mistake_with_one_write_does_not_keep_the_others_waiting() -> None:
    asking = PendingVerification()

    def mistaken() -> None:
        raise AssertionError("ours")

    first = asyncio.ensure_future(asking.before(mistaken))
    second = asyncio.ensure_future(asking.before(lambda: "written"))
    await asyncio.sleep(0)
    asking.answered(None)
    with pytest.raises(KafkaError) as refused:
        await first
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert await second == "written"


@in_loop
async def test_a_mistake_of_ours_is_in_the_log_and_the_client_asks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nowhere: Any = None
    joins = AddPartitionsToTxnManager(nowhere, nowhere, 1, BrokerConfig())
    writer = TransactionalWriter("x", ProducerIdAndEpoch(1, 0), TransactionSupportedOperation.JOINS)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    answer.set_exception(AssertionError("ours"))
    refused = joins.result_of(nowhere, writer, PendingVerification(), answer)
    assert refused is not None and refused.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (TransactionSupportedOperation.JOINS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (TransactionSupportedOperation.ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
@in_loop
async def test_a_marker_that_may_be_of_the_transaction_before_is_no_reason_to_give_up(
    support: TransactionSupportedOperation, expected: ErrorCode
) -> None:
    """The answer is so late that nobody has the patience to ask again: the client may, if it joins by writing."""
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    elsewhere: Any = SimpleNamespace(leader_of=lambda _: 2, leader_epoch_of=lambda _: 0)
    sender: Any = SimpleNamespace(send=lambda *_: answer)
    log = ScriptedLog(TopicIdPartition(bytes(16), "t", 0), producers=Producers())
    partition: Any = _Partition(log)
    settings = BrokerConfig(add_partitions_to_txn_retry_backoff_max_ms=0)
    joins = AddPartitionsToTxnManager(elsewhere, sender, 1, settings)
    asking = joins.join(partition, "x", ProducerIdAndEpoch(1, 0), support)
    assert asking is not None
    write = asyncio.ensure_future(asking.before(lambda: "written"))
    joins.marked(partition, 1)
    answer.set_result(ErrorCode.NONE)
    with pytest.raises(KafkaError) as refused:
        await write
    assert refused.value.code is expected
