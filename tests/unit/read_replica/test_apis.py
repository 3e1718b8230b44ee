"""What a read-only broker answers, API by API."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker.handlers import records  # noqa: F401 - registers what is served
from broker.read_replica.apis import IS_READ_ONLY, READS, read_only_registry
from broker.registry import NO_CLIENT, REGISTRY, RequestContext
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import RequestHeader
from kafka_ds.protocol.messages import (
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import api_key_of
from tests.fakes.cluster import image_of, registration_of
from tests.fakes.kafka_broker import broker_of

HERE = 101
BROKER = broker_of(metadata=image_of(registration_of(HERE)))
# What is answered in another way than by other brokers.
OWN = {"Fetch", "FindCoordinator", "ListOffsets", "OffsetForLeaderEpoch"}


async def know_nothing(named: list[TopicPartition]) -> None:
    """Nobody asks the lake."""


def context_of(request: type, version: int | None = None) -> RequestContext:
    served = REGISTRY.get(api_key_of(request))
    assert served is not None
    header = RequestHeader(served.api_key, version or served.highest, 0, "me")
    return RequestContext(header, "10.0.0.1", "PLAINTEXT", BROKER, NO_CLIENT)


def refused(name: str, request: Any, context: RequestContext) -> KafkaError:
    served = next(each for each in read_only_registry(know_nothing) if each.name == name)
    with pytest.raises(KafkaError) as error:
        served.handler(request, context)
    return error.value


def test_every_api_is_served_and_what_changes_something_is_refused() -> None:
    registry = read_only_registry(know_nothing)
    assert len(registry) == len(REGISTRY)
    names = {each.name for each in REGISTRY}
    assert names >= READS
    for was, now in zip(REGISTRY, registry, strict=True):
        assert (was.name, was.advertised, was.lowest, was.highest) == (
            now.name, now.advertised, now.lowest, now.highest,
        )  # fmt: skip
        assert (was.handler is now.handler) is (was.name in READS)
        if was.name in READS | OWN:
            continue
        # A refusal needs nothing of the request, but for its class and one id.
        bare = object.__new__(was.request)
        if was.name == "InitProducerId":
            bare.transactional_id = None
        with pytest.raises(KafkaError) as error:
            now.handler(bare, context_of(was.request))
        assert error.value.message == IS_READ_ONLY
        assert error.value.code in (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        )


def test_refusals_are_those_of_the_thing_that_a_request_is_about() -> None:
    produce = object.__new__(ProduceRequest)
    context = context_of(ProduceRequest)
    assert refused("Produce", produce, context).code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for transactional_id, code in (
        (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("t", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ):
        init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
        context = context_of(InitProducerIdRequest)
        assert refused("InitProducerId", init, context).code is code


def test_a_client_is_named_once_for_each_api(caplog: pytest.LogCaptureFixture) -> None:
    registry = read_only_registry(know_nothing)
    served = registry.get(api_key_of(ProduceRequest))
    assert served is not None
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(KafkaError):
                served.handler(object.__new__(ProduceRequest), context_of(ProduceRequest))
    assert [each.getMessage() for each in caplog.records] == [
        f"refused Produce of client me at 10.0.0.1: {IS_READ_ONLY}"
    ]


def test_brokers_do_not_fetch_here() -> None:
    request = FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[])
    error = refused("Fetch", request, context_of(FetchRequest, 11))
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_this_broker_coordinates_groups_and_nothing_else() -> None:
    served = read_only_registry(know_nothing).get(api_key_of(FindCoordinatorRequest))
    assert served is not None
    for version in (3, 6):
        for key_type, node_id, code in ((0, HERE, 0), (1, -1, 53), (2, -1, 53)):
            request = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])
            answer = served.handler(request, context_of(FindCoordinatorRequest, version))
            found = answer.coordinators[0] if version == 6 else answer
            assert (found.node_id, found.error_code) == (node_id, code)


def test_epochs_are_known_before_offsets_are_answered() -> None:
    asked: list[list[TopicPartition]] = []

    async def know(named: list[TopicPartition]) -> None:
        asked.append(named)

    served = read_only_registry(know).get(api_key_of(ListOffsetsRequest))
    assert served is not None
    request = ListOffsetsRequest(replica_id=-1, topics=[])
    answer = asyncio.run(served.handler(request, context_of(ListOffsetsRequest)))
    assert (answer.topics, asked) == ([], [[]])


def test_metadata_are_answered_by_the_handler_of_every_broker() -> None:
    served = read_only_registry(know_nothing).get(api_key_of(MetadataRequest))
    assert served is not None
    answer = served.handler(MetadataRequest(topics=None), context_of(MetadataRequest))
    assert [each.node_id for each in answer.brokers] == [HERE]
    assert answer.controller_id == HERE
