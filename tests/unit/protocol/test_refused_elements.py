"""Elements of a response that are refused by themselves: derived, they are byte for byte those written out here."""

from collections.abc import Callable
from typing import Any

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.registry import REGISTRY
from kafka_ds.protocol import messages
from kafka_ds.protocol.codec import encode
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    cluster,
    configs,
    consumer_groups,
    data,
    group_admin,
    group_offsets,
    offsets,
    quorum,
    topics,
    transaction_admin,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import NO_UUID

CODE = ErrorCode.INVALID_REQUEST
ID = b"i" * 16
SERVED = {messages.RESPONSES[each.api_key]: each for each in REGISTRY}
BY_ID_ALONE = 12
"""The first version of Metadata that asks for a topic by its id alone."""

# What is refused, the element in full, and the response with it.
ELEMENTS: list[tuple[Any, Any, Callable[[Any], Any]]] = [
    (
        offsets.ListOffsetsPartition(partition_index=7, timestamp=3),
        offsets.ListOffsetsPartitionResponse(partition_index=7, error_code=CODE),
        lambda it: messages.ListOffsetsResponse(
            topics=[offsets.ListOffsetsTopicResponse(name="t", partitions=[it])]
        ),
    ),
    (
        7,
        data.PartitionProduceResponse(
            index=7, error_code=CODE, base_offset=-1, error_message="why"
        ),
        lambda it: messages.ProduceResponse(
            responses=[data.TopicProduceResponse(name="t", topic_id=ID, partition_responses=[it])]
        ),
    ),
    (
        7,
        quorum.DescribeQuorumResponsePartitionData(
            partition_index=7,
            error_code=CODE,
            error_message="why",
            leader_id=-1,
            leader_epoch=-1,
            high_watermark=-1,
            current_voters=[],
            observers=[],
        ),
        lambda it: messages.DescribeQuorumResponse(
            topics=[quorum.DescribeQuorumResponseTopicData(topic_name="t", partitions=[it])]
        ),
    ),
    (
        "t",
        quorum.DescribeTopicPartitionsResponseTopic(
            error_code=CODE, name="t", topic_id=NO_UUID, partitions=[]
        ),
        lambda it: messages.DescribeTopicPartitionsResponse(topics=[it]),
    ),
    (
        "t",
        cluster.MetadataResponseTopic(error_code=CODE, name="t", topic_id=NO_UUID, partitions=[]),
        lambda it: messages.MetadataResponse(brokers=[], topics=[it]),
    ),
    (
        cluster.MetadataRequestTopic(topic_id=ID, name=None),
        cluster.MetadataResponseTopic(error_code=CODE, name=None, topic_id=ID, partitions=[]),
        lambda it: messages.MetadataResponse(brokers=[], topics=[it]),
    ),
    (
        configs.DescribeConfigsResource(
            resource_type=2, resource_name="t", configuration_keys=None
        ),
        configs.DescribeConfigsResult(
            error_code=CODE, error_message="why", resource_type=2, resource_name="t", configs=[]
        ),
        lambda it: messages.DescribeConfigsResponse(results=[it]),
    ),
    (
        topics.DeleteRecordsPartition(partition_index=7, offset=3),
        topics.DeleteRecordsPartitionResult(partition_index=7, low_watermark=-1, error_code=CODE),
        lambda it: messages.DeleteRecordsResponse(
            topics=[topics.DeleteRecordsTopicResult(name="t", partitions=[it])]
        ),
    ),
    (
        7,
        transaction_admin.PartitionResponse(
            partition_index=7, error_code=CODE, error_message="why", active_producers=[]
        ),
        lambda it: messages.DescribeProducersResponse(
            topics=[transaction_admin.TopicResponse(name="t", partitions=[it])]
        ),
    ),
    (
        messages.ListTransactionsRequest(state_filters=["x"], producer_id_filters=[]),
        messages.ListTransactionsResponse(
            error_code=CODE, unknown_state_filters=[], transaction_states=[]
        ),
        lambda it: it,
    ),
    (
        "g",
        consumer_groups.ConsumerGroupDescribeResponseDescribedGroup(
            error_code=CODE,
            error_message="why",
            group_id="g",
            group_state="",
            assignor_name="",
            members=[],
        ),
        lambda it: messages.ConsumerGroupDescribeResponse(groups=[it]),
    ),
    (
        "g",
        group_admin.DescribedGroup(
            error_code=CODE,
            error_message="why",
            group_id="g",
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        ),
        lambda it: messages.DescribeGroupsResponse(groups=[it]),
    ),
    (
        group_offsets.OffsetFetchRequestTopics(name="t", topic_id=ID, partition_indexes=[7]),
        group_offsets.OffsetFetchResponseTopics(
            name="t",
            topic_id=ID,
            partitions=[
                group_offsets.OffsetFetchResponsePartitions(
                    partition_index=7, committed_offset=-1, metadata="", error_code=CODE
                )
            ],
        ),
        lambda it: messages.OffsetFetchResponse(
            topics=[],
            groups=[group_offsets.OffsetFetchResponseGroup(group_id="g", topics=[it])],
        ),
    ),
    (
        "g",
        cluster.Coordinator(
            key="g", node_id=-1, host="", port=-1, error_code=CODE, error_message="why"
        ),
        lambda it: messages.FindCoordinatorResponse(
            node_id=-1, host="", port=-1, coordinators=[it]
        ),
    ),
]


@pytest.mark.parametrize(
    ("source", "whole", "response_with"),
    ELEMENTS,
    ids=[type(each[1]).__name__ for each in ELEMENTS],
)
def test_a_refused_element_is_the_whole_one(
    source: Any, whole: Any, response_with: Callable[[Any], Any]
) -> None:
    derived = refusal(type(whole), source, CODE, getattr(whole, "error_message", None))
    wanted, response = response_with(whole), response_with(derived)
    served = SERVED[type(response)]
    lowest = BY_ID_ALONE if getattr(whole, "name", "") is None else served.lowest
    for version in range(lowest, served.highest + 1):
        assert encode(response, version) == encode(wanted, version), version
