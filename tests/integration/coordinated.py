"""Clients of coordinators in a cluster in one event loop: each request goes to the coordinator until it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka_ds.protocol.messages.data import PartitionProduceData
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
)
from kafka_ds.protocol.messages.replicas import (
    ReassignablePartition,
)
from kafka_ds.protocol.messages.transactions import (
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequestPartition,
)
from kafka_ds.records.batch import Record, build_batch
from tests.in_process import NOW_MS, Cluster, InProcess
from tests.integration.transactional_client import RETRIABLE
from tests.requests import build

GROUP_TYPE, TRANSACTION_TYPE = 0, 1
TIMEOUT_S = 120


async def coordinator(cluster: Cluster, key_type: int, key: str) -> InProcess:
    """The coordinator, as the first broker that answers names it."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            asked = next(iter(cluster.nodes.values()))
            found = (await asked.ask(request, 5)).coordinators[0]
            if found.error_code == ErrorCode.NONE and found.node_id in cluster.nodes:
                return cluster.nodes[found.node_id]
            await asyncio.sleep(0.02)


async def ask(cluster: Cluster, key_type: int, key: str, request: Any, version: int) -> Any:
    """The first answer of a coordinator without a retriable error."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            broker = await coordinator(cluster, key_type, key)
            answer = await broker.ask(request, version)
            if code_of(answer) not in RETRIABLE:
                return answer
            await asyncio.sleep(0.02)


def code_of(answer: Any) -> ErrorCode:
    """The first error code in an answer of any of these APIs."""
    if getattr(answer, "error_code", 0):
        return ErrorCode(answer.error_code)
    for topic in (
        *getattr(answer, "results_by_topic_v3_and_below", ()),
        *getattr(answer, "topics", ()),
    ):
        for each in getattr(topic, "results_by_partition", None) or topic.partitions:
            is_added = hasattr(each, "partition_error_code")
            code = ErrorCode(each.partition_error_code if is_added else each.error_code)
            if code is not ErrorCode.NONE:
                return code
    return ErrorCode.NONE


class Transactions:
    """A transactional producer, in the protocol before KIP-890 or in KIP-890's."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, second: bool = False) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self._second = second
        self._sequences: dict[int, int] = {}
        self.producer_id, self.epoch = -1, -1

    async def _ask(self, request: Any, version: int) -> Any:
        return await ask(self._cluster, TRANSACTION_TYPE, self.transactional_id, request, version)

    async def begin(self, *, timeout_ms: int = 60_000) -> None:
        """Get a producer id."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer = await self._ask(request, 5)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self._goes_on_as(answer.producer_id, answer.producer_epoch)

    def _goes_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def add(self, *indexes: int) -> ErrorCode:
        """Add partitions of the topic t to the transaction."""
        topic = AddPartitionsToTxnTopic(name="t", partitions=list(indexes))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        return code_of(await self._ask(request, 3))

    def batch(self, values: Sequence[bytes], index: int) -> bytes:
        """The next batch of this producer for a partition."""
        return build_batch(
            [Record(i, NOW_MS, None, value) for i, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(index, 0),
            is_transactional=True,
        )

    def produce(self, batch: bytes, index: int) -> tuple[ProduceRequest, int]:
        """The request with a batch, and its version."""
        data = PartitionProduceData(index=index, records=batch)
        request = build(
            ProduceRequest,
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[{"name": "t", "partition_data": [data]}],
        )
        return request, 12 if self._second else 11

    async def write(self, index: int, *values: bytes) -> ErrorCode:
        """Append one batch at the partition's leader."""
        request, version = self.produce(self.batch(values, index), index)
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                broker = leader(self._cluster, "t", index)
                if broker is not None:
                    answer = await broker.ask(request, version)
                    code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
                    if code not in RETRIABLE:
                        break
                await asyncio.sleep(0.02)
        if code is ErrorCode.NONE:
            self._sequences[index] = self._sequences.get(index, 0) + len(values)
        return code

    async def send_offset(self, group: str, offset: int) -> ErrorCode:
        """Commit an offset of t-0 with the transaction."""
        if not self._second:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            assert code_of(await self._ask(added, 3)) is ErrorCode.NONE
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = build(
            TxnOffsetCommitRequest,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[{"name": "t", "partitions": [partition]}],
        )
        version = 5 if self._second else 4
        return code_of(await ask(self._cluster, GROUP_TYPE, group, request, version))

    async def end(self, *, committed: bool) -> ErrorCode:
        """End the transaction."""
        answer = await self.ask_to_end(committed=committed)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and self._second:
            self._goes_on_as(answer.producer_id, answer.producer_epoch)
        return code

    async def ask_to_end(self, *, committed: bool) -> Any:
        """The answer to EndTxn."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return await self._ask(request, 5 if self._second else 4)


def leader(cluster: Cluster, topic: str, index: int) -> InProcess | None:
    """The broker that leads a partition according to itself."""
    for broker in cluster.nodes.values():
        if broker.node.replica_manager.find(topic, index) is not None:
            return broker
    return None


async def move(cluster: Cluster, topic: str, index: int, *replicas: int) -> None:
    """Reassign a partition to its replicas in another order, and let the first of them lead."""
    partition = ReassignablePartition(partition_index=index, replicas=list(replicas))
    request = build(
        AlterPartitionReassignmentsRequest, topics=[{"name": topic, "partitions": [partition]}]
    )
    answer = await cluster.controller.ask(request, 0)
    assert answer.error_code == ErrorCode.NONE, answer
    wanted = cluster.nodes[replicas[0]]
    elect = build(
        ElectLeadersRequest,
        topic_partitions=[{"topic": topic, "partitions": [index]}],
        election_type=0,
    )
    async with asyncio.timeout(TIMEOUT_S):
        while leader(cluster, topic, index) is not wanted:
            await cluster.controller.ask(elect, 2)
            await asyncio.sleep(0.02)


async def commit_offset(cluster: Cluster, group: str, offset: int) -> ErrorCode:
    """Commit an offset of t-0 for a group without members."""
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = build(
        OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": [partition]}],
    )
    return code_of(await ask(cluster, GROUP_TYPE, group, request, 8))


async def committed_offset(cluster: Cluster, group: str) -> int:
    """The committed offset of t-0, after open transactions that may change it (KIP-447)."""
    request = build(
        OffsetFetchRequest,
        group_id=group,
        topics=[{"name": "t", "partition_indexes": [0]}],
        require_stable=True,
    )
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await ask(cluster, GROUP_TYPE, group, request, 7)
            found = answer.topics[0].partitions[0]
            if found.error_code == ErrorCode.NONE:
                offset: int = found.committed_offset
                return offset
            await asyncio.sleep(0.02)
