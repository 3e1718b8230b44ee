"""The producer: order and sequences through refusals, lost connections and late answers; its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from os import urandom
from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import OutgoingBatch, Producer, WrittenRange
from kafka_ds.client.producer_settings import ProducerSettings
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import BrokerUnreachable, NotDelivered
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import MetadataResponse, ProduceRequest, ProduceResponse
from kafka_ds.protocol.messages.data import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
)
from kafka_ds.records.batch import Codec, Record, build_batch, read_header, read_records
from tests.fakes.scripted_broker import CLOSE, TOPIC_ID, ScriptedBroker, scripted
from tests.requests import build

# What a broker does with the next request: a code, or CLOSE.
Fate = Any


class LeaderLog:
    """Partition 0 of topic ``t``, as a leader keeps it: by sequence, each batch once."""

    def __init__(self, fates: Iterable[Fate] = ()) -> None:
        self.fates = list(fates)
        self.sequences: list[int] = []
        self.next_sequence = 0
        self.acks: list[int] = []

    def __call__(self, request: Any) -> Any:
        if not isinstance(request, ProduceRequest):
            return None
        self.acks.append(request.acks)
        fate = self.fates.pop(0) if self.fates else ErrorCode.NONE
        if callable(fate):
            fate = fate(self, request)
        if fate is CLOSE:
            return CLOSE
        if fate != ErrorCode.NONE:
            return answer(fate)
        return answer(*self.append(request))

    def append(self, request: ProduceRequest) -> tuple[ErrorCode, int]:
        return self.take(request.topic_data[0].partition_data[0])

    def take(self, given: PartitionProduceData) -> tuple[ErrorCode, int]:
        header = read_header(given.records)
        if header.base_sequence < self.next_sequence:
            return ErrorCode.NONE, header.base_sequence
        if header.base_sequence > self.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self.sequences.append(header.base_sequence)
        self.next_sequence += header.record_count
        return ErrorCode.NONE, header.base_sequence


def answer(
    code: ErrorCode, base_offset: int = -1, errors: Sequence[tuple[int, str]] = ()
) -> ProduceResponse:
    listed = [
        BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m) for i, m in errors
    ]
    partition = PartitionProduceResponse(
        index=0, error_code=code, base_offset=base_offset, record_errors=listed
    )
    return build(ProduceResponse, responses=[{"name": "t", "partition_responses": [partition]}])


def appended_but_unanswered(log: LeaderLog, request: ProduceRequest) -> Fate:
    log.append(request)
    return CLOSE


def outgoing(number: int, records: int = 2, *, partition: int = 0) -> OutgoingBatch:
    listed = [Record(offset=n, timestamp=0, key=None, value=b"v") for n in range(records)]
    data = build_batch(listed, producer_id=1, producer_epoch=0, base_sequence=number * records)
    return OutgoingBatch(
        topic="t",
        partition=partition,
        data=data,
        record_count=records,
        describe=lambda places: f"rows {[number * records + p for p in places]}",
    )


def producer(broker: ScriptedBroker, **more: Any) -> Producer:
    client = ClientSettings(
        bootstrap_servers=(("127.0.0.1", broker.port),),
        default_api_timeout_ms=60_000,
        retry_backoff_ms=1,
        retry_backoff_max_ms=5,
    )
    settings = {"delivery_timeout_ms": 60_000, **more}
    return Producer(Cluster(client), ProducerSettings(client=client, **settings))


def send(broker: ScriptedBroker, count: int = 8, **more: Any) -> Producer:
    made = producer(broker, **more)
    for number in range(count):
        made.send(outgoing(number))
        made.push()
    made.flush()
    made.close()
    return made


@pytest.mark.parametrize(
    "fates",
    [
        [],
        [ErrorCode.NOT_LEADER_OR_FOLLOWER],
        [
            ErrorCode.NONE,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ],
        [CLOSE],
        [ErrorCode.NONE, CLOSE, CLOSE],
        [appended_but_unanswered],
        [
            ErrorCode.NONE,
            appended_but_unanswered,
            ErrorCode.REQUEST_TIMED_OUT,
            appended_but_unanswered,
        ],
    ],
)
def test_each_batch_is_appended_once_and_in_order(fates: list[Fate]) -> None:
    log = LeaderLog(fates)
    with scripted(log) as broker:
        made = send(broker)
    assert log.sequences == list(range(0, 16, 2))
    assert made.written == {("t", 0): WrittenRange(first_offset=0, last_offset=15, record_count=16)}


def test_a_refusal_for_good_names_the_rows() -> None:
    refused = answer(ErrorCode.INVALID_RECORD, errors=[(1, "no key")])
    with (
        scripted(lambda r: refused if isinstance(r, ProduceRequest) else None) as broker,
        pytest.raises(
            NotDelivered, match=r"topic t, partition 0: rows \[1\]: INVALID_RECORD \(no key\)"
        ),
    ):
        send(broker, 1)


def test_out_of_order_without_a_reason_is_final() -> None:
    log = LeaderLog([ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
    with scripted(log) as broker, pytest.raises(NotDelivered, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        send(broker, 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"delivery_timeout_ms": 1},
            r"kafka.delivery.timeout.ms=1; last error: NOT_ENOUGH_REPLICAS",
        ),
        (
            {"retries": 2, "enable_idempotence": False},
            r"kafka.retries=2; last error: NOT_ENOUGH_REPLICAS",
        ),
    ],
)
def test_patience_ends_and_says_which_setting_did_it(more: dict[str, Any], said: str) -> None:
    log = LeaderLog([ErrorCode.NOT_ENOUGH_REPLICAS] * 50)
    with scripted(log) as broker, pytest.raises(NotDelivered, match=said):
        send(broker, 1, **more)


def test_without_acks_nobody_is_waited_for() -> None:
    log = LeaderLog()

    def silent(request: Any) -> Any:
        from tests.fakes.scripted_broker import SILENCE

        return (log(request), SILENCE)[1] if isinstance(request, ProduceRequest) else None

    with scripted(silent) as broker:
        made = send(broker, 4, acks=0, enable_idempotence=False)
        assert made.written["t", 0].record_count == 8


def test_a_leader_that_is_long_in_coming_is_waited_for_as_long_as_a_batch_may_take() -> None:
    """`delivery.timeout.ms` says how long that is; asking for the leader gives up earlier, by `max.block.ms`."""
    log = LeaderLog([ErrorCode.NOT_LEADER_OR_FOLLOWER])
    asked = [0]

    def script(request: Any) -> Any:
        if isinstance(request, ProduceRequest):
            return log(request)
        asked[0] += 1
        if 1 < asked[0] < 40:
            return broker.metadata(error_code=ErrorCode.LEADER_NOT_AVAILABLE)
        return None

    with scripted(script) as broker:
        made = producer(broker)
        client = replace(made.settings.client, default_api_timeout_ms=10)
        made = Producer(Cluster(client), replace(made.settings, client=client))
        made.send(outgoing(0))
        made.flush()
        made.close()
    assert log.sequences == [0]


def test_a_fenced_transaction_says_so_by_its_code() -> None:
    joined: list[Any] = []
    log = LeaderLog([ErrorCode.INVALID_PRODUCER_EPOCH])
    with scripted(log) as broker:
        made = producer(broker)
        cluster, settings = made.cluster, made.settings
        made = Producer(cluster, settings, transactional_id="id", join=joined.append)
        made.send(outgoing(0))
        with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH: topic t, partition 0"):
            made.flush()
        made.close()
    assert joined == [{("t", 0)}]


def test_a_request_holds_no_more_than_it_may() -> None:
    """Each batch goes by itself where two would be too much, five requests at most under way."""
    seen: list[int] = []

    def script(request: Any) -> Any:
        if isinstance(request, ProduceRequest):
            seen.append(sum(len(p.records) for t in request.topic_data for p in t.partition_data))
            return answer(ErrorCode.NONE, 0)
        return None

    with scripted(script) as broker:
        send(broker, 3, max_request_size=100)
    assert len(seen) == 3


class MovedTopic:
    """Topic ``t`` of two partitions: both go from the first of two brokers to the second when one is written to."""

    def __init__(self) -> None:
        self.logs = (LeaderLog(), LeaderLog())
        self.leader = 1
        self.brokers = tuple(ScriptedBroker(partial(self._answer, n)) for n in (1, 2))

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    def _answer(self, asked: int, request: Any) -> Any:
        if not isinstance(request, ProduceRequest):
            return self._metadata()
        self.leader = 2
        found: list[PartitionProduceResponse] = []
        for given in request.topic_data[0].partition_data:
            code, base_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            if asked == self.leader:
                code, base_offset = self.logs[given.index].take(given)
            found.append(
                PartitionProduceResponse(
                    index=given.index, error_code=code, base_offset=base_offset
                )
            )
        return build(ProduceResponse, responses=[{"name": "t", "partition_responses": found}])

    def _metadata(self) -> MetadataResponse:
        return build(
            MetadataResponse,
            brokers=[
                {"node_id": n, "host": "127.0.0.1", "port": broker.port}
                for n, broker in enumerate(self.brokers, 1)
            ],
            name="t",
            topic_id=TOPIC_ID,
            partitions=[
                {
                    "partition_index": n,
                    "leader_id": self.leader,
                    "leader_epoch": 0,
                    "replica_nodes": [1, 2],
                    "isr_nodes": [1, 2],
                }
                for n in (0, 1)
            ],
        )


def test_a_new_leader_gets_no_batch_before_those_that_the_former_one_has_not_answered() -> None:
    """Another partition's refusal says that both have moved, and this one's batches are still under way."""
    topic = MovedTopic()
    try:
        made = producer(topic.brokers[0], max_in_flight_requests_per_connection=2)
        made.send(outgoing(0))
        made.push()
        for number in range(4):
            made.send(outgoing(number, partition=1))
            made.push()
        made.flush()
        made.close()
    finally:
        topic.close()
    assert [log.sequences for log in topic.logs] == [[0], [0, 2, 4, 6]]


def test_a_broker_whose_first_answers_are_not_kafkas_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a connection is made, as while its requests are answered: it may be a proxy's page about a restart."""
    log, tries = LeaderLog(), [0]
    connect = Cluster.new_connection

    def garbled_once(cluster: Cluster, address: tuple[str, int]) -> Any:
        tries[0] += 1
        if tries[0] == 2:
            raise BrokerUnreachable("answered SaslHandshakeRequest with an HTML page")
        return connect(cluster, address)

    monkeypatch.setattr(Cluster, "new_connection", garbled_once)
    with scripted(log) as broker:
        send(broker, 2)
    assert log.sequences == [0, 2]


class NarrowLog(LeaderLog):
    """Partition 0 of a topic with a small ``max.message.bytes``; it keeps what is written."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.bytes_max = bytes_max
        self.values: list[bytes | None] = []
        self.refused = 0

    def take(self, given: PartitionProduceData) -> tuple[ErrorCode, int]:
        assert given.records is not None
        if len(given.records) > self.bytes_max:
            self.refused += 1
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        code, base_offset = super().take(given)
        if code == ErrorCode.NONE:
            self.values += [record.value for record in read_records(given.records)]
        return code, base_offset

    def __call__(self, request: Any) -> Any:
        return answer(*self.append(request)) if isinstance(request, ProduceRequest) else None


def large(number: int, codec: Codec, *, is_transactional: bool = False) -> OutgoingBatch:
    """Ten records that are 1,000 bytes and more."""
    first = 10 * number
    listed = [Record(n, 5, b"k", b"%03d" % (first + n) + urandom(97)) for n in range(10)]
    data = build_batch(
        listed,
        codec=codec,
        producer_id=1,
        producer_epoch=0,
        base_sequence=first,
        is_transactional=is_transactional,
    )
    return OutgoingBatch(
        topic="t",
        partition=0,
        data=data,
        record_count=10,
        describe=lambda places: f"rows {[first + place for place in places]}",
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_batch_that_is_too_large_for_its_topic_is_split(
    codec: Codec, transactional_id: str | None
) -> None:
    """As Java's producer does it; the records, their order and their sequences stay what they were."""
    log = NarrowLog(400)
    with scripted(log) as broker:
        made = producer(broker)
        made = Producer(made.cluster, made.settings, transactional_id=transactional_id)
        for number in range(20):
            made.send(large(number, codec, is_transactional=transactional_id is not None))
            made.push()
        made.flush()
        made.close()
    assert [int(value[:3]) for value in log.values if value is not None] == list(range(200))
    assert log.next_sequence == 200
    assert made.written["t", 0] == WrittenRange(first_offset=0, last_offset=199, record_count=200)
    assert made.waiting_bytes == 0
    limit = made.batch_bytes_max("t")
    assert limit is not None and limit <= 400
    assert made.batch_bytes_max("another") is None


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_record_that_is_too_large_for_its_topic_is_named(transactional_id: str | None) -> None:
    with scripted(NarrowLog(100)) as broker:
        made = producer(broker)
        made = Producer(made.cluster, made.settings, transactional_id=transactional_id)
        made.send(large(3, Codec.NONE, is_transactional=transactional_id is not None))
        with pytest.raises(
            NotDelivered, match=r"topic t, partition 0: rows \[30\]: MESSAGE_TOO_LARGE"
        ):
            made.flush()
        made.close()
