"""What the sink's driver asks of brokers, where they do not answer at once."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.sink.deciding import Deciding
from kafka_ds.sink.options import SinkOptionError, parse_sink_options
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    MetadataRequest,
)
from kafka_ds.wire.messages.configs import DescribeConfigsResourceResult, DescribeConfigsResult
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


def prepare(*answers: Any) -> int:
    """How many of the answers to questions about the topic's settings are taken."""
    left = list(answers)

    def script(request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return broker.metadata(name=TOPIC)
        assert isinstance(request, DescribeConfigsRequest)
        return left.pop(0)

    with scripted(script) as broker:
        given = {
            "kafka.bootstrap.servers": f"127.0.0.1:{broker.port}",
            "kafka.retry.backoff.ms": "1",
            "topic": "t",
            "transactionalIdPrefix": "p",
            "decisionsTopic": TOPIC,
        }
        options = parse_sink_options(given, stream=True)
        with Cluster(options.producer.client) as cluster:
            Deciding(cluster, options).prepare()
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
