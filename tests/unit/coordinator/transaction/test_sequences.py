"""A transaction's first writes in a partition: none overtakes the one that was refused for a moment (KIP-890)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.coordinator.transaction.first_sequences import TRIED_MAX, FirstSequences
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import BatchHeader, read_header
from kafka_ds.segments.producers import Producers
from tests.in_process import InProcess, batch_of, in_process, produce_request
from tests.loops import in_loop
from tests.unit.coordinator.transaction.transaction_desk import begin


async def write(broker: InProcess, producer_id: int, sequence: int, version: int) -> ErrorCode:
    request = produce_request("t", transactional(producer_id, sequence))
    request.transactional_id = "x"
    response = await broker.ask(request, version)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def transactional(producer_id: int, sequence: int, epoch: int = 0) -> Any:
    return batch_of(
        [b"a"],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


@in_loop
async def test_a_client_that_joins_by_writing_begins_with_sequence_0(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        refused = await write(broker, producer_id, 1, 12)
        assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in range(3):
            assert await write(broker, producer_id, sequence, 12) is ErrorCode.NONE


@in_loop
async def test_a_write_behind_one_that_could_not_be_looked_up_waits_for_it(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        monkeypatch.setattr(TransactionCoordinatorShard, "verify", loading)
        await refused_once(broker, producer_id, monkeypatch)


@pytest.mark.interpreted
@in_loop
async def test_a_write_behind_one_that_was_not_appended_waits_for_it(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction was known, but there were too few replicas for a moment."""
    async with in_process(memory_path) as broker:
        await broker.create("t")
        producer_id = await begin(broker)
        monkeypatch.setattr(LeaderPartition, "append", too_few)
        await refused_once(broker, producer_id, monkeypatch)
        firsts, topic = (
            broker.node.transactions.add_partitions_to_txn.first_sequences,
            broker.node.metadata.topics["t"],
        )
        # The log knows what comes next, and nobody else.
        firsts.check(topic.topic_id, 0, header(producer_id, 99), Producers())


async def refused_once(broker: InProcess, producer_id: int, patched: pytest.MonkeyPatch) -> None:
    """As it is patched, nothing is written: the next batch waits for the first."""
    assert await write(broker, producer_id, 7, 11) is ErrorCode.NOT_ENOUGH_REPLICAS
    patched.undo()
    refused = await write(broker, producer_id, 8, 11)
    assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in (7, 8):
        assert await write(broker, producer_id, sequence, 11) is ErrorCode.NONE


def loading(*_: object) -> None:
    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def too_few(*_: object, **__: object) -> None:
    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)


def test_what_was_tried_is_not_remembered_for_ever() -> None:
    firsts, nobody = FirstSequences(), Producers()
    for producer_id in range(TRIED_MAX + 1):
        firsts.tried(b"t", 0, header(producer_id, 3), nobody, begins_with_zero=False)
    firsts.check(b"t", 0, header(0, 4), nobody)
    with pytest.raises(KafkaError):
        firsts.check(b"t", 0, header(1, 4), nobody)


def test_who_tried_first_says_with_what_a_producer_begins() -> None:
    """Also for a newer epoch of an older client: Apache Kafka keeps one entry per producer id."""
    firsts, nobody = FirstSequences(), Producers()
    firsts.tried(b"t", 0, header(1, 0), nobody, begins_with_zero=True)
    firsts.tried(b"t", 0, header(1, 1, epoch=1), nobody, begins_with_zero=False)
    with pytest.raises(KafkaError):
        firsts.check(b"t", 0, header(1, 1, epoch=1), nobody)
    firsts.check(b"t", 0, header(1, 0, epoch=1), nobody)


def test_a_newer_epoch_begins_where_it_likes() -> None:
    firsts, nobody = FirstSequences(), Producers()
    firsts.tried(b"t", 0, header(1, 3), nobody, begins_with_zero=False)
    firsts.tried(b"t", 0, header(1, 7, epoch=1), nobody, begins_with_zero=False)
    firsts.check(b"t", 0, header(1, 7, epoch=1), nobody)


def header(producer_id: int, sequence: int, epoch: int = 0) -> BatchHeader:
    return read_header(bytes(transactional(producer_id, sequence, epoch)))
