"""What a broker says to transactional clients of both protocols: the one before KIP-890 and the one since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DescribeProducersRequest,
    ListTransactionsRequest,
    MetadataRequest,
    WriteTxnMarkersRequest,
)
from kafka_ds.protocol.messages.transaction_admin import DescribeProducersTopicRequest
from kafka_ds.protocol.messages.transactions import WritableTxnMarker
from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.integration.raw_client import RawClient
from tests.integration.transactional_client import TransactionalClient
from tests.processes import BrokerProcess, running_broker
from tests.requests import build
from tests.topics import create_topic

NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("protocol")
    with running_broker(folder, {"transaction.state.log.num.partitions": 3}) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: BrokerProcess) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    create_topic(broker.bootstrap, name, partitions=2)
    return name


@pytest.fixture
def client(broker: BrokerProcess, topic: str) -> Iterator[TransactionalClient]:
    made = TransactionalClient(broker.bootstrap, f"id-{topic}", topic)
    made.begin()
    yield made
    made.close()


@pytest.fixture
def second(broker: BrokerProcess, topic: str) -> Iterator[TransactionalClient]:
    made = TransactionalClient(broker.bootstrap, f"id-{topic}", topic, second=True)
    made.begin()
    yield made
    made.close()


def test_only_what_was_added_may_be_written(
    broker: BrokerProcess, topic: str, client: TransactionalClient
) -> None:
    assert client.write([b"outside"]) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.add(0) is NONE
    assert client.write([b"inside"]) is NONE
    assert client.write([b"outside"], 1) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.end(committed=True) is NONE
    assert client.write([b"behind"]) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.end(committed=True) is NONE, "said again"
    assert client.end(committed=False) is ErrorCode.INVALID_TXN_STATE
    assert read_uncommitted["librdkafka"](broker.bootstrap, topic) == [b"inside"]


def test_a_partition_that_does_not_exist_joins_nothing(client: TransactionalClient) -> None:
    assert client.add(7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.add(0, 7) is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert client.state() == "Empty"


def test_a_write_joins_and_each_end_raises_the_epoch(
    broker: BrokerProcess, topic: str, second: TransactionalClient
) -> None:
    for i, committed in enumerate((True, False, True)):
        assert second.epoch == i
        assert second.write([b"%d" % i]) is NONE
        assert second.write([b"%d+" % i]) is NONE
        assert second.end(committed=committed) is NONE
    assert second.epoch == 3
    assert second.end(committed=False) is NONE, "an abort of nothing"
    assert second.epoch == 4
    assert second.end(committed=True) is ErrorCode.INVALID_TXN_STATE
    assert read_committed["librdkafka"](broker.bootstrap, topic) == [b"0", b"0+", b"2", b"2+"]


def test_offsets_are_committed_by_the_id_of_the_topic(
    broker: BrokerProcess, topic: str, second: TransactionalClient
) -> None:
    """TxnOffsetCommit since version 6 (KIP-1319)."""
    asking = RawClient(broker.bootstrap)
    known = asking.ask(build(MetadataRequest, topics=[{"name": topic}]), 12).topics[0].topic_id
    second.find_coordinator(0, group := f"group of {topic}")
    assert second.send_offset(group, 5, new_uuid()) is ErrorCode.UNKNOWN_TOPIC_ID
    assert second.send_offset(group, 7, known) is NONE
    assert second.end(committed=True) is NONE
    assert second.committed_offset(group, stable=True) == 7


def test_what_comes_late_from_the_transaction_before_is_fenced(
    broker: BrokerProcess, topic: str, second: TransactionalClient
) -> None:
    assert second.write([b"first"]) is NONE
    producer_id, epoch = second.producer_id, second.epoch
    assert second.end(committed=True) is NONE
    late = TransactionalClient(broker.bootstrap, f"id-{topic}", topic, second=True)
    late.producer_id, late.epoch, late.sequences = producer_id, epoch, {0: 1}
    assert late.write([b"late"]) is ErrorCode.INVALID_PRODUCER_EPOCH
    repeated = late.ask_to_end(committed=True)
    assert (repeated.error_code, repeated.producer_epoch) == (NONE, epoch + 1)
    late.close()
    assert read_uncommitted["librdkafka"](broker.bootstrap, topic) == [b"first"]


def test_an_operator_ends_a_transaction_that_hangs(
    broker: BrokerProcess, topic: str, client: TransactionalClient
) -> None:
    assert client.add(0) is NONE
    assert client.write([b"hangs"]) is NONE
    with RawClient(broker.bootstrap) as raw:
        wanted = DescribeProducersTopicRequest(name=topic, partition_indexes=[0, 7])
        described = raw.ask(DescribeProducersRequest(topics=[wanted]), 0).topics[0].partitions
        assert described[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (found,) = described[0].active_producers
        assert (found.producer_id, found.current_txn_start_offset) == (client.producer_id, 0)
        codes = [
            raw.ask(_marker(topic, client, coordinator_epoch, epoch), 1)
            .markers[0]
            .topics[0]
            .partitions[0]
            .error_code
            for coordinator_epoch, epoch in ((5, client.epoch), (4, client.epoch), (5, -1))
        ]
        assert codes == [
            NONE,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
        ]
    assert read_committed["librdkafka"](broker.bootstrap, topic) == []
    assert read_uncommitted["librdkafka"](broker.bootstrap, topic) == [b"hangs"]


def _marker(
    topic: str, client: TransactionalClient, coordinator_epoch: int, epoch: int
) -> WriteTxnMarkersRequest:
    marker = build(
        WritableTxnMarker,
        producer_id=client.producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[{"name": topic, "partition_indexes": [0]}],
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def test_transactions_are_listed_by_state_producer_and_age(
    broker: BrokerProcess, topic: str, client: TransactionalClient
) -> None:
    assert client.add(0) is NONE
    mine = f"id-{topic}"

    def listed(**filters: object) -> tuple[bool, list[str]]:
        given = {"state_filters": [], "producer_id_filters": [], **filters}
        with RawClient(broker.bootstrap) as raw:
            answer = raw.ask(ListTransactionsRequest(**given), 2)  # type: ignore[arg-type]
        ids = [each.transactional_id for each in answer.transaction_states]
        return mine in ids, answer.unknown_state_filters

    assert listed() == (True, [])
    assert listed(state_filters=["Ongoing", "Nonsense"]) == (True, ["Nonsense"])
    assert listed(state_filters=["Empty"]) == (False, [])
    assert listed(producer_id_filters=[client.producer_id]) == (True, [])
    assert listed(producer_id_filters=[10**9]) == (False, [])
    assert listed(duration_filter=60_000) == (False, [])
    assert listed(transactional_id_pattern="") == (True, [])
    assert listed(transactional_id_pattern=f"{mine[:3]}.*") == (True, [])
    assert listed(transactional_id_pattern=mine[:3]) == (False, []), "it matches as a whole"
    with RawClient(broker.bootstrap) as raw:
        request = build(ListTransactionsRequest, transactional_id_pattern="(a")
        assert raw.ask(request, 2).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
