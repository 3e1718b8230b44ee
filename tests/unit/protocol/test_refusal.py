"""Derived refusals: they can be written in every version, and carry the error everywhere a client looks."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.registry import REGISTRY, Served
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import decode_response, encode_response
from kafka_ds.protocol.messages import (
    RESPONSES,
    CreatePartitionsRequest,
    FindCoordinatorRequest,
    OffsetDeleteRequest,
)
from kafka_ds.protocol.messages.topics import CreatePartitionsTopic
from kafka_ds.protocol.refusal import answer_of, refusal_of, refusals_of, without_elements
from kafka_ds.protocol.types import fields_of
from tests.wire.random_messages import random_message

SERVED = list(REGISTRY)
CODE = ErrorCode.INVALID_REQUEST
# What of the request is found again in its refusal: paths in both, by the names of the fields.
NAMED = {
    "Produce": [
        ("topic_data.name", "responses.name"),
        ("topic_data.topic_id", "responses.topic_id"),
        ("topic_data.partition_data.index", "responses.partition_responses.index"),
    ],
    "Fetch": [
        ("topics.topic", "responses.topic"),
        ("topics.topic_id", "responses.topic_id"),
        ("topics.partitions.partition", "responses.partitions.partition_index"),
    ],
    "ListOffsets": [
        ("topics.name", "topics.name"),
        ("topics.partitions.partition_index", "topics.partitions.partition_index"),
    ],
    "Metadata": [("topics.name", "topics.name"), ("topics.topic_id", "topics.topic_id")],
    "OffsetCommit": [
        ("topics.name", "topics.name"),
        ("topics.topic_id", "topics.topic_id"),
        ("topics.partitions.partition_index", "topics.partitions.partition_index"),
    ],
    "OffsetFetch": [
        ("topics.name", "topics.name"),
        ("topics.partition_indexes", "topics.partitions.partition_index"),
        ("groups.group_id", "groups.group_id"),
    ],
    "FindCoordinator": [("coordinator_keys", "coordinators.key")],
    "JoinGroup": [("member_id", "member_id")],
    "DescribeGroups": [("groups", "groups.group_id")],
    "DeleteGroups": [("groups_names", "results.group_id")],
    "ConsumerGroupDescribe": [("group_ids", "groups.group_id")],
    "OffsetDelete": [
        ("topics.name", "topics.name"),
        ("topics.partitions.partition_index", "topics.partitions.partition_index"),
    ],
    "OffsetForLeaderEpoch": [
        ("topics.topic", "topics.topic"),
        ("topics.partitions.partition", "topics.partitions.partition"),
    ],
    "AddPartitionsToTxn": [
        ("v3_and_below_topics.name", "results_by_topic_v3_and_below.name"),
        (
            "v3_and_below_topics.partitions",
            "results_by_topic_v3_and_below.results_by_partition.partition_index",
        ),
    ],
    "TxnOffsetCommit": [
        ("topics.name", "topics.name"),
        ("topics.partitions.partition_index", "topics.partitions.partition_index"),
    ],
    "WriteTxnMarkers": [
        ("markers.producer_id", "markers.producer_id"),
        ("markers.topics.name", "markers.topics.name"),
        ("markers.topics.partition_indexes", "markers.topics.partitions.partition_index"),
    ],
    "DescribeProducers": [
        ("topics.name", "topics.name"),
        ("topics.partition_indexes", "topics.partitions.partition_index"),
    ],
    "DescribeTransactions": [("transactional_ids", "transaction_states.transactional_id")],
    "CreateTopics": [("topics.name", "topics.name")],
    "DeleteTopics": [
        ("topics.name", "responses.name"),
        ("topics.topic_id", "responses.topic_id"),
        ("topic_names", "responses.name"),
    ],
    "DeleteRecords": [
        ("topics.name", "topics.name"),
        ("topics.partitions.partition_index", "topics.partitions.partition_index"),
    ],
    "CreatePartitions": [("topics.name", "results.name")],
    "DescribeTopicPartitions": [("topics.name", "topics.name")],
    "DescribeConfigs": [
        ("resources.resource_type", "results.resource_type"),
        ("resources.resource_name", "results.resource_name"),
    ],
    "AlterConfigs": [
        ("resources.resource_type", "responses.resource_type"),
        ("resources.resource_name", "responses.resource_name"),
    ],
    "IncrementalAlterConfigs": [
        ("resources.resource_type", "responses.resource_type"),
        ("resources.resource_name", "responses.resource_name"),
    ],
    "AlterReplicaLogDirs": [
        ("dirs.topics.name", "results.topic_name"),
        ("dirs.topics.partitions", "results.partitions.partition_index"),
    ],
    "ElectLeaders": [
        ("topic_partitions.topic", "replica_election_results.topic"),
        ("topic_partitions.partitions", "replica_election_results.partition_result.partition_id"),
    ],
    "AlterClientQuotas": [
        ("entries.entity.entity_type", "entries.entity.entity_type"),
        ("entries.entity.entity_name", "entries.entity.entity_name"),
    ],
    "AlterUserScramCredentials": [
        ("deletions.name", "results.user"),
        ("upsertions.name", "results.user"),
    ],
}
# As many answers as questions, which have no names.
COUNTED = {"CreateAcls": ("creations", "results"), "DeleteAcls": ("filters", "filter_results")}
# Version 1 of DescribeLogDirs has an error for each directory only: none at all says that it is refused, as in Kafka.
SILENT = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}


def at(value: Any, path: str) -> Iterator[Any]:
    """What stands at the end of a path of names, in all elements of the lists on the way."""
    if isinstance(value, list):
        for item in value:
            yield from at(item, path)
    elif not path:
        yield value
    elif value is not None:
        first, _, rest = path.partition(".")
        yield from at(getattr(value, first), rest)


def errors_in(value: Any, version: int) -> Iterator[int]:
    """The errors of a response, in the fields that this version has."""
    if isinstance(value, list):
        for item in value:
            yield from errors_in(item, version)
    elif hasattr(value, "__slots__"):
        for field in fields_of(type(value)):
            inner = getattr(value, field.name)
            if not field.name.endswith("error_code"):
                yield from errors_in(inner, version)
            elif version in field.versions and field.name != "topic_config_error_code":
                yield inner


def refused(served: Served, request: Any, version: int) -> Any:
    """The refusal as its client reads it."""
    response = refusal_of(request, version, CODE, "why")
    whole = b"".join(bytes(part) for part in encode_response(response, version, 7))
    _, decoded = decode_response(RESPONSES[served.api_key], memoryview(whole)[4:], version)
    return decoded


@pytest.mark.parametrize("served", SERVED, ids=lambda served: served.name)
def test_every_refusal_says_why_wherever_its_client_looks(served: Served) -> None:
    chance = Random(served.api_key)
    for version in range(served.lowest, served.highest + 1):
        told = 0
        for _ in range(20):
            request = random_message(served.request, version, chance, sizes=[1, 5])
            if getattr(request, "acks", 1) == 0:
                assert refusal_of(request, version, CODE) is None
                continue
            response = refused(served, request, version)
            errors = list(errors_in(response, version))
            assert set(errors) <= {CODE}
            told += len(errors)
            for asked, answered in NAMED.get(served.name, ()):
                wanted = {each or "" for each in at(request, asked)}
                assert wanted <= {each or "" for each in at(response, answered)}, asked
            if served.name in COUNTED:
                asked, answered = COUNTED[served.name]
                assert len(getattr(request, asked)) == len(getattr(response, answered))
        assert bool(told) is not ((served.name, version) in SILENT), version


def test_what_has_one_name_is_answered_once() -> None:
    topic = CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[topic, topic], timeout_ms=1, validate_only=False)
    (result,) = refusal_of(request, 3, CODE, "why").results
    assert (result.name, result.error_code, result.error_message) == ("t", CODE, "why")


def test_elements_are_refused_beside_an_answer_that_is_none() -> None:
    keys = ["a", "b"]
    refusals = refusals_of(FindCoordinatorRequest, "coordinator_keys", keys, 4, CODE)
    assert [(each.key, each.error_code, each.host) for each in refusals] == [
        ("a", CODE, ""), ("b", CODE, "")
    ]  # fmt: skip
    assert answer_of(FindCoordinatorRequest, "coordinator_keys", 4) == "coordinators"
    response = without_elements(OffsetDeleteRequest, 0)
    assert (response.error_code, response.topics) == (ErrorCode.NONE, [])
