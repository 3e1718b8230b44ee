"""The producer: order and sequences through refusals, lost connections and late answers; its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import NotWritten, Outgoing, Producer, Written
from kafka_ds.client.producer_settings import ProducerSettings
from kafka_ds.client.settings import ClientSettings
from kafka_ds.wire.batch import Record, build_batch, read_header
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import ProduceRequest, ProduceResponse
from kafka_ds.wire.messages.data import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    TopicProduceResponse,
)
from tests.unit.source_broker import CLOSE, ScriptedBroker, scripted

# What a broker does with the next request: a code, or CLOSE.
Fate = Any


class Log:
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
        header = read_header(request.topic_data[0].partition_data[0].records)
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
    return ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[partition])]
    )


def appended_but_unanswered(log: Log, request: ProduceRequest) -> Fate:
    log.append(request)
    return CLOSE


def outgoing(number: int, records: int = 2) -> Outgoing:
    listed = [Record(offset=n, timestamp=0, key=None, value=b"v") for n in range(records)]
    data = build_batch(listed, producer_id=1, producer_epoch=0, base_sequence=number * records)
    return Outgoing(
        topic="t",
        partition=0,
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
    log = Log(fates)
    with scripted(log) as broker:
        made = send(broker)
    assert log.sequences == list(range(0, 16, 2))
    assert made.written == {("t", 0): Written(first_offset=0, last_offset=15, record_count=16)}


def test_a_refusal_for_good_names_the_rows() -> None:
    refused = answer(ErrorCode.INVALID_RECORD, errors=[(1, "no key")])
    with (
        scripted(lambda r: refused if isinstance(r, ProduceRequest) else None) as broker,
        pytest.raises(
            NotWritten, match=r"topic t, partition 0: rows \[1\]: INVALID_RECORD \(no key\)"
        ),
    ):
        send(broker, 1)


def test_out_of_order_without_a_reason_is_final() -> None:
    log = Log([ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
    with scripted(log) as broker, pytest.raises(NotWritten, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        send(broker, 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"delivery_timeout_ms": 1}, r"kafka.delivery.timeout.ms=1; last: NOT_ENOUGH_REPLICAS"),
        (
            {"retries": 2, "enable_idempotence": False},
            r"kafka.retries=2; last: NOT_ENOUGH_REPLICAS",
        ),
    ],
)
def test_patience_ends_and_says_which_setting_did_it(more: dict[str, Any], said: str) -> None:
    log = Log([ErrorCode.NOT_ENOUGH_REPLICAS] * 50)
    with scripted(log) as broker, pytest.raises(NotWritten, match=said):
        send(broker, 1, **more)


def test_without_acks_nobody_is_waited_for() -> None:
    log = Log()

    def silent(request: Any) -> Any:
        from tests.unit.source_broker import SILENCE

        return (log(request), SILENCE)[1] if isinstance(request, ProduceRequest) else None

    with scripted(silent) as broker:
        made = send(broker, 4, acks=0, enable_idempotence=False)
        assert made.written["t", 0].record_count == 8


def test_a_fenced_transaction_says_so_by_its_code() -> None:
    joined: list[Any] = []
    log = Log([ErrorCode.INVALID_PRODUCER_EPOCH])
    with scripted(log) as broker:
        made = producer(broker)
        cluster, settings = made._cluster, made._settings
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
