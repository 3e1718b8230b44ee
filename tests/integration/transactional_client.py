"""A transactional producer that is dead when its test says so: one request at a time, and no retries of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka_ds.protocol.messages.data import PartitionProduceData
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestTopic
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import Record, build_batch
from tests.integration.raw_client import RawClient
from tests.requests import build

TIMEOUT_S = 120
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


class ProducerState:
    """A producer id with its epoch, and the sequence of each partition's next batch."""

    def __init__(self) -> None:
        self.sequences: dict[int, int] = {}
        self.producer_id, self.epoch = -1, -1

    def goes_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def batch(self, values: Sequence[bytes], partition: int) -> bytes:
        """The next batch of this producer for a partition."""
        now_ms = int(time.time() * 1000)
        return build_batch(
            [Record(i, now_ms, b"k", value) for i, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(partition, 0),
            is_transactional=True,
        )

    def has_written(self, values: Sequence[bytes], partition: int) -> None:
        self.sequences[partition] = self.sequences.get(partition, 0) + len(values)


class TransactionalClient(ProducerState):
    """One producer of one transactional id, in the protocol before KIP-890 or the one since."""

    def __init__(
        self, bootstrap: str, transactional_id: str, topic: str, *, second: bool = False
    ) -> None:
        self._client = RawClient(bootstrap)
        self._id = transactional_id
        self._topic = topic
        self._second = second
        super().__init__()

    def close(self) -> None:
        self._client.socket.close()

    def begin(self, *, timeout_ms: int = 60_000) -> None:
        """Get a producer id; waits until an earlier transaction is aborted."""
        self.find_coordinator(1, self._id)
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=timeout_ms
        )
        answer = self._until_settled(request, 5)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.goes_on_as(answer.producer_id, answer.producer_epoch)

    def find_coordinator(self, key_type: int, key: str) -> None:
        """Find the coordinator of a group (0) or a transactional id (1); the first request creates the topic."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        _until_settled(lambda: self._client.ask(request, 5).coordinators[0].error_code)

    def _until_settled(self, request: Any, version: int) -> Any:
        answer: Any = None

        def ask() -> int:
            nonlocal answer
            answer = self._client.ask(request, version)
            return int(answer.error_code)

        _until_settled(ask)
        return answer

    def add(self, *partitions: int) -> ErrorCode:
        request = build(
            AddPartitionsToTxnRequest,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": self._topic, "partitions": list(partitions)}],
        )
        answer = self._client.ask(request, 3)
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        return ErrorCode(results[0].partition_error_code)

    def write(self, values: list[bytes], partition: int = 0) -> ErrorCode:
        """Write without a check on this side: the broker decides whether it may."""
        data = PartitionProduceData(index=partition, records=self.batch(values, partition))
        request = build(
            ProduceRequest,
            transactional_id=self._id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[{"name": self._topic, "partition_data": [data]}],
        )
        answer = self._client.ask(request, 12 if self._second else 11)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.has_written(values, partition)
        return code

    def send_offset(self, group: str, offset: int, topic_id: bytes | None = None) -> ErrorCode:
        """Commit an offset of partition 0 for a group, with the transaction; by the topic's id if there is one."""
        if not self._second:
            joins = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            answer = self._until_settled(joins, 3)
            if answer.error_code != ErrorCode.NONE:
                return ErrorCode(answer.error_code)
        request = build(
            TxnOffsetCommitRequest,
            transactional_id=self._id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            name=self._topic,
            topic_id=topic_id or NO_UUID,
            partition_index=0,
            committed_offset=offset,
            committed_metadata=None,
        )
        version = 3 if not self._second else 5 if topic_id is None else 6

        def ask() -> int:
            (topic,) = self._client.ask(request, version).topics
            assert topic.topic_id == (topic_id or NO_UUID)
            return int(topic.partitions[0].error_code)

        return _until_settled(ask)

    def committed_offset(self, group: str, *, stable: bool) -> int | ErrorCode:
        """The group's offset of partition 0; UNSTABLE_OFFSET_COMMIT if an open transaction may change it."""
        topic = OffsetFetchRequestTopic(name=self._topic, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=stable)
        found: Any = None

        def ask() -> int:
            nonlocal found
            answer = self._client.ask(request, 7)
            if answer.error_code:
                return int(answer.error_code)
            found = answer.topics[0].partitions[0]
            return int(found.error_code)

        code = _until_settled(ask)
        return int(found.committed_offset) if code is ErrorCode.NONE else code

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
            self.goes_on_as(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def state(self) -> str:
        """The transaction's state, as its coordinator describes it."""
        request = DescribeTransactionsRequest(transactional_ids=[self._id])
        found: Any = None

        def ask() -> int:
            nonlocal found
            (found,) = self._client.ask(request, 0).transaction_states
            return int(found.error_code)

        _until_settled(ask)
        state: str = found.transaction_state
        return state


def _until_settled(ask: Callable[[], int]) -> ErrorCode:
    """Ask until there is no retriable error."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        code = ErrorCode(ask())
        if code not in RETRIABLE:
            return code
        assert time.monotonic() < deadline, code
        time.sleep(0.02)
