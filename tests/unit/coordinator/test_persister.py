"""The persister asks each share partition's coordinator, and asks again where there is none yet."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinator import persister as module
from broker.coordinator.persister import SharePersister
from broker.coordinator.share_partition_key import SharePartitionKey
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ReadShareGroupStateResponse
from kafka_ds.protocol.messages.share_state import (
    ReadStatePartition,
    ReadStatePartitionResult,
)
from kafka_ds.protocol.topic_partition import PartitionId
from tests.fakes.cluster import other_brokers
from tests.fakes.network import Respondent
from tests.loops import in_loop
from tests.requests import build

TOPIC = bytes(range(16))
HERE, THERE = 1, 2


class Coordinators:
    """Two brokers: each answers with the code that was last put in, or with a state whose epoch is its id."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.codes: dict[int, list[ErrorCode]] = {HERE: [], THERE: []}
        self.missing: set[int] = set()
        self.topic_errors: list[ErrorCode] = []

    async def ensure(self) -> None:
        if self.topic_errors:
            raise KafkaError(self.topic_errors.pop())

    def leader_of(self, key: str) -> int:
        return HERE if int(key.rpartition(":")[2]) % 2 else THERE

    async def handle(self, request: Any) -> Any:
        return self.answer(HERE, request)

    def answer(self, broker_id: int, request: Any) -> Any:
        (topic,) = request.topics
        self.asked.append((broker_id, [each.partition for each in topic.partitions]))
        code = self.codes[broker_id].pop() if self.codes[broker_id] else ErrorCode.NONE
        if code is ErrorCode.NETWORK_EXCEPTION:
            raise PeerUnreachable("gone")
        results = [
            ReadStatePartitionResult(
                partition=each.partition, error_code=code, state_epoch=broker_id
            )
            for each in topic.partitions
            if each.partition not in self.missing
        ]
        return build(ReadShareGroupStateResponse, topic_id=topic.topic_id, partitions=results)

    def persister(self) -> SharePersister:
        peers = Respondent(lambda request, broker_id, *_: self.answer(broker_id, request))
        runtime: Any = self
        return SharePersister(runtime, other_brokers(peers), self.handle)


def asked_for(*partitions: int) -> dict[PartitionId, ReadStatePartition]:
    return {
        (TOPIC, each): ReadStatePartition(partition=each, leader_epoch=0) for each in partitions
    }


@pytest.fixture
def coordinators(monkeypatch: pytest.MonkeyPatch) -> Coordinators:
    monkeypatch.setattr(module, "BACKOFF_SECONDS_MIN", 0.001)
    return Coordinators()


def test_a_coordinators_key_is_kafkas() -> None:
    assert str(SharePartitionKey("g", TOPIC, 3)) == "g:AAECAwQFBgcICQoLDA0ODw:3"


@in_loop
async def test_each_coordinator_gets_its_partitions(coordinators: Coordinators) -> None:
    results = await coordinators.persister().read_state("g", asked_for(0, 1, 2))
    assert sorted(coordinators.asked) == [(HERE, [1]), (THERE, [0, 2])]
    assert {key[1]: each.state_epoch for key, each in results.items()} == {0: 2, 1: 1, 2: 2}


@in_loop
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
async def test_only_what_may_be_elsewhere_is_asked_again(
    coordinators: Coordinators, code: ErrorCode
) -> None:
    coordinators.codes[THERE] = [code]
    coordinators.codes[HERE] = [ErrorCode.FENCED_LEADER_EPOCH]
    results = await coordinators.persister().read_state("g", asked_for(0, 1))
    assert sorted(coordinators.asked) == [(HERE, [1]), (THERE, [0]), (THERE, [0])]
    assert results[TOPIC, 0].error_code == ErrorCode.NONE
    assert results[TOPIC, 1].error_code == ErrorCode.FENCED_LEADER_EPOCH


@in_loop
async def test_a_topic_that_cannot_be_created_yet_is_waited_for(coordinators: Coordinators) -> None:
    coordinators.topic_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    results = await coordinators.persister().read_state("g", asked_for(1))
    assert results[TOPIC, 1].error_code == ErrorCode.NONE


@in_loop
async def test_the_last_error_is_the_result_when_the_time_is_over(
    coordinators: Coordinators,
) -> None:
    coordinators.codes[THERE] = [ErrorCode.NETWORK_EXCEPTION] * 1_000
    results = await coordinators.persister().read_state("g", asked_for(0))
    assert results[TOPIC, 0].error_code == ErrorCode.NETWORK_EXCEPTION


@in_loop
async def test_a_partition_that_a_coordinator_leaves_out_is_an_error(
    coordinators: Coordinators,
) -> None:
    coordinators.missing = {2}
    results = await coordinators.persister().read_state("g", asked_for(0, 2))
    assert results[TOPIC, 0].error_code == ErrorCode.NONE
    assert results[TOPIC, 2].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
