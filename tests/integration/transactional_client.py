"""A transactional producer that is dead when its test says so: one request at a time, and no retries of its own."""

from __future__ import annotations

import time
from typing import Any

from kafka_ds.wire.batch import Record, build_batch
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from kafka_ds.wire.messages.data import PartitionProduceData, TopicProduceData
from kafka_ds.wire.messages.transactions import AddPartitionsToTxnTopic
from tests.integration.raw_client import RawClient

TIMEOUT_S = 20.0
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class TransactionalClient:
    """One producer of one transactional id, in the protocol before KIP-890 or the one since."""

    def __init__(
        self, bootstrap: str, transactional_id: str, topic: str, *, second: bool = False
    ) -> None:
        self._client = RawClient(bootstrap)
        self._id = transactional_id
        self._topic = topic
        self._second = second
        self._sequences: dict[int, int] = {}
        self.producer_id = -1
        self.epoch = -1

    def close(self) -> None:
        self._client.socket.close()

    def begin(self, *, timeout_ms: int = 60_000) -> None:
        """Get a producer id, waiting for whoever must be aborted first."""
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self._id])
        self._client.ask(find, 5)
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=timeout_ms
        )
        answer = self._until_settled(request, 5)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self._goes_on_as(answer.producer_id, answer.producer_epoch)

    def _goes_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def _until_settled(self, request: Any, version: int) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._client.ask(request, version)
            if ErrorCode(answer.error_code) not in RETRIABLE:
                return answer
            assert time.monotonic() < deadline, ErrorCode(answer.error_code)
            time.sleep(0.02)

    def add(self, *partitions: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=self._topic, partitions=list(partitions))
            ],
        )
        answer = self._client.ask(request, 3)
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        return ErrorCode(results[0].partition_error_code)

    def write(self, values: list[bytes], partition: int = 0) -> ErrorCode:
        """Write without asking whether it may: that is the broker's to say."""
        sequence = self._sequences.get(partition, 0)
        now_ms = int(time.time() * 1000)
        batch = build_batch(
            [Record(i, now_ms, b"k", value) for i, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self._id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        answer = self._client.ask(request, 12 if self._second else 11)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self._sequences[partition] = sequence + len(values)
        return code

    def ask_to_end(self, *, committed: bool) -> Any:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return self._client.ask(request, 5 if self._second else 4)

    def end(self, *, committed: bool) -> ErrorCode:
        answer = self.ask_to_end(committed=committed)
        if self._second and answer.error_code == ErrorCode.NONE:
            self._goes_on_as(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def state(self) -> str:
        """What the coordinator says of the transaction."""
        request = DescribeTransactionsRequest(transactional_ids=[self._id])
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            (found,) = self._client.ask(request, 0).transaction_states
            if ErrorCode(found.error_code) not in RETRIABLE:
                state: str = found.transaction_state
                return state
            assert time.monotonic() < deadline
            time.sleep(0.02)
