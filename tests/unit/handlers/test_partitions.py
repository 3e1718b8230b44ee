"""CreatePartitions: which topics grow, and which requests are refused."""

from pathlib import Path
from typing import Any

import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import CreatePartitionsRequest
from kafka_ds.protocol.messages.topics import CreatePartitionsAssignment, CreatePartitionsTopic
from tests.in_process import InProcess, batch_of, in_process, values_of
from tests.loops import in_loop


def topic(name: str, count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=each) for each in replicas]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments or None)


async def grow(
    broker: InProcess, *topics: CreatePartitionsTopic, version: int = 3, only: bool = False
) -> Any:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=5000, validate_only=only)
    return (await broker.ask(request, version)).results


@pytest.mark.parametrize("version", range(4))
@in_loop
async def test_a_topic_grows_and_keeps_what_it_had(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        await broker.produce("t", batch_of([b"old"]), partition=1)
        (answer,) = await grow(broker, topic("t", 4), version=version)
        assert (answer.name, answer.error_code, answer.error_message) == ("t", 0, None)
        assert list(broker.node.metadata.topics["t"].partitions) == [0, 1, 2, 3]
        assert (await broker.produce("t", batch_of([b"new"]), partition=3)).error_code == 0
    async with in_process(memory_path) as broker:
        assert list(broker.node.metadata.topics["t"].partitions) == [0, 1, 2, 3]
        for partition, value in ((1, b"old"), (3, b"new")):
            data = await broker.fetch("t", 0, partition=partition)
            assert values_of(data.records) == [value]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic("t", 2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -1), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (topic("t", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", 3, [2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", 3, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@in_loop
async def test_what_is_refused_stops_no_other(
    memory_path: Path, wanted: CreatePartitionsTopic, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        await broker.create("u", 1)
        refused, grown = await grow(broker, wanted, topic("u", 2, [1]))
        assert (refused.error_code, grown.error_code) == (code, 0)
        assert len(broker.node.metadata.topics["t"].partitions) == 2
        assert len(broker.node.metadata.topics["u"].partitions) == 2


@in_loop
async def test_a_topic_twice(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        (answer,) = await grow(broker, topic("t", 2), topic("t", 3))
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_validate_only_creates_nothing(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        (right,) = await grow(broker, topic("t", 2), only=True)
        (wrong,) = await grow(broker, topic("t", 1), only=True)
        assert (right.error_code, wrong.error_code) == (0, ErrorCode.INVALID_PARTITIONS)
        assert len(broker.node.metadata.topics["t"].partitions) == 1
