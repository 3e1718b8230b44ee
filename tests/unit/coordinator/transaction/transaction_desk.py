"""A machine of transactions in any state, and requests to it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator.result import CoordinatorResult, ProducerIdAndEpoch
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AddPartitionsToTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.in_process import InProcess
from tests.requests import build

S = TransactionState
X = "x"
NOW = 1_000_000
TIMEOUT_MS = 60_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdAndEpoch(7, 3)
SETTINGS = BrokerConfig()
V1, V2 = 0, 2


def shard_with(transaction: TransactionMetadata | None = None) -> TransactionCoordinatorShard:
    shard = TransactionCoordinatorShard(SETTINGS)
    if transaction is not None:
        shard.replay(X, transaction)
    return shard


def in_state(state: TransactionState, **changes: Any) -> TransactionMetadata:
    partitions = {P0} if state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT) else set()
    fields: dict[str, Any] = {
        "transactional_id": X,
        "producer_id": ME.producer_id,
        "producer_epoch": ME.producer_epoch,
        "timeout_ms": TIMEOUT_MS,
        "state": state,
        "updated_ms": NOW,
        "started_ms": NOW,
        "partitions": frozenset(partitions),
    }
    return TransactionMetadata(**fields | changes)


def apply(shard: TransactionCoordinatorShard, result: CoordinatorResult) -> Any:
    for record in result.records:
        shard.replay(*record)
    return result.response


def init(
    shard: TransactionCoordinatorShard, expected: ProducerIdAndEpoch | None = None, **given: Any
) -> Any:
    given = {"timeout_ms": TIMEOUT_MS, "now_ms": NOW, "spare_producer_id": 50} | given
    return apply(shard, shard.init_producer_id(X, given.pop("timeout_ms"), expected, **given))


def end(
    shard: TransactionCoordinatorShard,
    committed: bool,
    version: int = V1,
    who: ProducerIdAndEpoch = ME,
) -> Any:
    result = shard.end(
        X,
        who,
        committed=committed,
        client_transaction_version=version,
        now_ms=NOW,
        spare_producer_id=50,
    )
    return apply(shard, result)


def state_of(shard: TransactionCoordinatorShard) -> TransactionState:
    found = shard.find(X)
    assert found is not None
    return found.state


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def complete(shard: TransactionCoordinatorShard) -> None:
    decided = shard.find(X)
    assert decided is not None
    apply(shard, shard.markers_written(decided, NOW))


async def begin(broker: InProcess) -> int:
    """A transaction that has a partition; its producer's id."""
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
    assert (await broker.ask(find, 5)).coordinators[0].error_code == ErrorCode.NONE
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    producer_id: int = (await broker.ask(init, 4)).producer_id
    add = build(
        AddPartitionsToTxnRequest,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": "t", "partitions": [0]}],
    )
    added = await broker.ask(add, 3)
    topic = added.results_by_topic_v3_and_below[0]
    assert topic.results_by_partition[0].partition_error_code == ErrorCode.NONE
    return producer_id
