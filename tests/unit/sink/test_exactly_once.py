"""What the sink's driver asks of brokers, where they do not answer at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.fetch import CompletedFetch
from kafka_ds.errors import BatchCommitUnfinished, OptionError
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
)
from kafka_ds.protocol.messages.configs import DescribeConfigsResourceResult, DescribeConfigsResult
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsTopicResponse,
)
from kafka_ds.records.batch import Codec, Record, build_batch
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.exactly_once import ExactlyOnceCommitter
from kafka_ds.sink.options import SinkOptions, parse_sink_options
from kafka_ds.sink.protocol import BatchAttempt, Span
from kafka_ds.sink.writer import TransactionalSink
from tests.fakes.scripted_broker import CLOSE, scripted
from tests.requests import build

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
            ExactlyOnceCommitter(cluster, given).prepare()
    return len(answers) - len(left)


@pytest.mark.parametrize("first", [CLOSE, described("", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
def test_a_broker_that_goes_while_the_topic_of_decisions_is_checked_ends_no_micro_batch(
    first: Any,
) -> None:
    assert prepare(first, described("compact")) == 2


def test_a_topic_that_forgets_decisions_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match=r"cleanup.policy=delete and would delete commit records"):
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
                found = build(ListOffsetsTopicResponse, name=TOPIC, partition_index=0, offset=0)
                return ListOffsetsResponse(topics=[found])

    with scripted(script) as broker:
        columns = check_columns({"value": "binary"}, "t")
        sink = TransactionalSink(options(broker.port), columns)
        sink.recover()
        sink.commit([], 0)
        checks = [each for each in broker.seen if isinstance(each, DescribeConfigsRequest)]
    assert len(checks) == 1


# -- what became of a decided attempt ---------------------------------------------------------------

SPAN = Span(topic="t", partition=0, first_offset=10, last_offset=14, record_count=5)
ATTEMPT = BatchAttempt(transactional_id="p-0-0", producer_id=7, epoch=3, spans=(SPAN,))


def was_aborted(monkeypatch: pytest.MonkeyPatch, left: Sequence[int], *, aborted: bool) -> bool:
    """What is found out of a log that still holds these of the attempt's records, in a batch each."""
    batches = b"".join(
        build_batch(
            [Record(offset=offset, timestamp=0, key=b"k", value=b"v")],
            codec=Codec.NONE,
            producer_id=ATTEMPT.producer_id,
            producer_epoch=ATTEMPT.epoch,
            base_sequence=offset,
            is_transactional=True,
        )
        for offset in left
    )

    def fetch(*_: Any, **__: Any) -> Iterator[CompletedFetch]:
        hidden = ((ATTEMPT.producer_id, SPAN.first_offset, SPAN.last_offset),) if aborted else ()
        yield CompletedFetch(records=memoryview(batches), start=0, aborted=hidden)

    monkeypatch.setattr(ExactlyOnceCommitter, "fetch", fetch)
    given = options(1)
    with Cluster(given.producer.client) as cluster:
        return ExactlyOnceCommitter(cluster, given).is_aborted(ATTEMPT)


def test_a_committed_attempt_whose_ends_were_compacted_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its transactional id has expired, or been used again, so that nothing but its records tells how it ended."""
    assert not was_aborted(monkeypatch, [12], aborted=False)
    assert was_aborted(monkeypatch, [12], aborted=True)


def test_an_attempt_of_which_nothing_is_left_is_not_taken_for_an_aborted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        BatchCommitUnfinished, match=r"is unknown.*t-0 \[10, 15\).*new 'transaction"
    ):
        was_aborted(monkeypatch, [], aborted=False)
