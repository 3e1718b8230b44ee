"""What the sink's driver asks of brokers, where they do not answer at once."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.deciding import Deciding
from kafka_ds.sink.options import SinkOptionError, SinkOptions, parse_sink_options
from kafka_ds.sink.writer import TransactionalSink
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
)
from kafka_ds.wire.messages.configs import DescribeConfigsResourceResult, DescribeConfigsResult
from kafka_ds.wire.messages.offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from tests.unit.source.source_broker import CLOSE, scripted

TOPIC = "decisions"


def described(policy: str, code: ErrorCode = ErrorCode.NONE) -> DescribeConfigsResponse:
    config = DescribeConfigsResourceResult(
        name="cleanup.policy", value=policy, read_only=False, is_sensitive=False, synonyms=[]
    )
    result = DescribeConfigsResult(
        error_code=code, error_message=None, resource_type=2, resource_name=TOPIC, configs=[config]
    )
    return DescribeConfigsResponse(results=[result])


def options(port: int) -> SinkOptions:
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.retry.backoff.ms": "1",
        "topic": "t",
        "transactionalIdPrefix": "p",
        "decisionsTopic": TOPIC,
    }
    return parse_sink_options(given, stream=True)


def prepare(*answers: Any) -> int:
    """How many of the answers to questions about the topic's settings are taken."""
    left = list(answers)

    def script(request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return broker.metadata(name=TOPIC)
        assert isinstance(request, DescribeConfigsRequest)
        return left.pop(0)

    with scripted(script) as broker:
        given = options(broker.port)
        with Cluster(given.producer.client) as cluster:
            Deciding(cluster, given).prepare()
    return len(answers) - len(left)


@pytest.mark.parametrize("first", [CLOSE, described("", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
def test_a_broker_that_goes_while_the_topic_of_decisions_is_checked_ends_no_micro_batch(
    first: Any,
) -> None:
    assert prepare(first, described("compact")) == 2


def test_a_topic_that_forgets_decisions_is_refused_at_once() -> None:
    with pytest.raises(SinkOptionError, match=r"cleanup.policy=delete and would forget decisions"):
        prepare(described("delete"))
    assert prepare(described("", ErrorCode.TOPIC_AUTHORIZATION_FAILED)) == 1


def test_a_commit_checks_the_topic_of_decisions_once() -> None:
    """Spark makes a writer for it, which looks for what is left to finish, and then has it commit."""

    def script(request: Any) -> Any:
        match request:
            case MetadataRequest():
                return broker.metadata(name=TOPIC)
            case DescribeConfigsRequest():
                return described("compact")
            case ListOffsetsRequest():
                place = ListOffsetsPartitionResponse(partition_index=0, offset=0)
                found = ListOffsetsTopicResponse(name=TOPIC, partitions=[place])
                return ListOffsetsResponse(topics=[found])

    with scripted(script) as broker:
        columns = check_columns({"value": "binary"}, "t")
        sink = TransactionalSink(options(broker.port), columns)
        sink.recover()
        sink.commit([], 0)
        checks = [each for each in broker.seen if isinstance(each, DescribeConfigsRequest)]
    assert len(checks) == 1
