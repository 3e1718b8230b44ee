"""Several brokers in one event loop: groups and transactions are coordinated by one and kept by others, and move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.coordinator.transaction.marker_sender import MarkerWriter
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DescribeProducersRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kafka_ds.protocol.messages.data import PartitionProduceData
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
)
from kafka_ds.protocol.messages.groups import JoinGroupRequestProtocol
from kafka_ds.protocol.messages.replicas import (
    ReassignablePartition,
)
from kafka_ds.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic
from kafka_ds.protocol.messages.transaction_admin import DescribeProducersTopicRequest
from kafka_ds.protocol.messages.transactions import (
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequestPartition,
    WritableTxnMarker,
)
from kafka_ds.records.batch import iterate_headers, read_records
from tests.in_process import Cluster, InProcess, in_process_cluster
from tests.integration.transactional_client import RETRIABLE, ProducerState
from tests.loops import in_loop
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


class Transactions(ProducerState):
    """A transactional producer, in the protocol before KIP-890 or in KIP-890's."""

    def __init__(self, cluster: Cluster, transactional_id: str, *, second: bool = False) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self._second = second
        super().__init__()

    async def _ask(self, request: Any, version: int) -> Any:
        return await ask(self._cluster, TRANSACTION_TYPE, self.transactional_id, request, version)

    async def begin(self, *, timeout_ms: int = 60_000) -> None:
        """Get a producer id."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer = await self._ask(request, 5)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.goes_on_as(answer.producer_id, answer.producer_epoch)

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
            self.has_written(values, index)
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
            self.goes_on_as(answer.producer_id, answer.producer_epoch)
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
    elect = build(ElectLeadersRequest, topic=topic, partitions=[index], election_type=0)
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


NONE = ErrorCode.NONE
SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_replication_factor": 3,
    "transaction_state_log_replication_factor": 3,
    "group_initial_rebalance_delay_ms": 60_000,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 100,
    "replica_fetch_backoff_ms": 20,
    "replica_fetch_wait_max_ms": 100,
}
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
protocols = pytest.mark.parametrize("second", [False, True], ids=["KIP-98", "KIP-890"])


async def begun(cluster: Cluster, *, second: bool = False) -> Transactions:
    """A producer with an id."""
    producer = Transactions(cluster, "x", second=second)
    await producer.begin()
    return producer


@asynccontextmanager
async def prepared(folder: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """Topic t with a partition on each broker; who coordinates transactions is 1, groups 2."""
    async with in_process_cluster(folder, 3, **SETTINGS, **settings) as cluster:
        assignments = [
            CreatableReplicaAssignment(partition_index=i, broker_ids=[i + 1]) for i in range(3)
        ]
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[]
        )
        answer = await cluster.controller.ask(CreateTopicsRequest(topics=[topic]), 7)
        assert answer.topics[0].error_code == NONE, answer
        await coordinator(cluster, TRANSACTION_TYPE, "x")
        await coordinator(cluster, GROUP_TYPE, "g")
        await move(cluster, STATE, 0, 1, 2, 3)
        await move(cluster, OFFSETS, 0, 2, 3, 1)
        await cluster.until(
            "everybody to know the topic",
            lambda: all(len(each.node.metadata.topics) == 3 for each in cluster.nodes.values()),
        )
        yield cluster


async def read(cluster: Cluster, index: int, *, isolation_level: int = 1) -> list[bytes | None]:
    """The records that a read_committed consumer gets."""
    broker = leader(cluster, "t", index)
    assert broker is not None
    values: list[bytes | None] = []
    offset = 0
    while True:
        data = await broker.fetch("t", offset, partition=index, isolation_level=isolation_level)
        if not data.records:
            return values
        aborted = {
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or []
        }
        for position, header in iterate_headers(data.records):
            offset = header.next_offset
            if not header.is_control and (header.producer_id, header.base_offset) not in aborted:
                records = read_records(data.records, position, header)
                values += [record.value for record in records]


async def stable(cluster: Cluster) -> None:
    """No transaction is open in any partition."""

    def is_stable() -> bool:
        for index in range(3):
            broker = leader(cluster, "t", index)
            found = None if broker is None else broker.node.replica_manager.find("t", index)
            if found is None or found.last_stable_offset() < found.log.log_end_offset:
                return False
        return True

    await cluster.until("markers everywhere", is_stable)


@in_loop
async def test_one_coordinator_is_named_by_all_and_others_refuse(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        for topic in (STATE, OFFSETS):
            assert len(cluster.controller.node.metadata.topics[topic].partitions[0].replicas) == 3
        assert await coordinator(cluster, TRANSACTION_TYPE, "x") is cluster.nodes[1]
        assert await coordinator(cluster, GROUP_TYPE, "g") is cluster.nodes[2]
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000)
        codes = {n: (await b.ask(request, 5)).error_code for n, b in cluster.nodes.items()}
        assert codes == {1: NONE, 2: ErrorCode.NOT_COORDINATOR, 3: ErrorCode.NOT_COORDINATOR}


@protocols
@in_loop
async def test_a_transaction_ends_on_all_brokers(tmp_path: Path, second: bool) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=second)
        for number, committed in enumerate((True, False)):
            if not second:
                assert await producer.add(0, 1, 2) is NONE
            for index in range(3):
                assert await producer.write(index, b"%d" % number) is NONE
            assert await producer.send_offset("g", 10 + number) is NONE
            assert await producer.end(committed=committed) is NONE
            assert await committed_offset(cluster, "g") == 10
            await stable(cluster)
        for index in range(3):
            assert await read(cluster, index, isolation_level=0) == [b"0", b"1"]
            assert await read(cluster, index) == [b"0"]


@in_loop
async def test_who_did_not_add_a_partition_may_not_write_to_it(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster)
        assert await producer.write(2, b"outside") is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.add(2) is NONE
        assert await producer.write(2, b"inside") is NONE
        former, epoch = Transactions(cluster, "x"), producer.epoch
        await producer.begin()  # Aborts what is open, under a raised epoch.
        former.producer_id, former.epoch = producer.producer_id, epoch
        assert await former.write(1, b"fenced") is ErrorCode.INVALID_PRODUCER_EPOCH
        await stable(cluster)
        assert await read(cluster, 1, isolation_level=0) == []


@in_loop
async def test_batches_that_wait_for_a_coordinator_keep_their_order(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=True)
        waiting = []
        for value in (b"a", b"b", b"c"):
            request, version = producer.produce(producer.batch([value], 2), 2)
            producer.sequences[2] = producer.sequences.get(2, 0) + 1
            waiting.append(asyncio.ensure_future(cluster.nodes[3].ask(request, version)))
        answers = [(await each).responses[0].partition_responses[0] for each in waiting]
        assert [(each.error_code, each.base_offset) for each in answers] == [
            (NONE, 0),
            (NONE, 1),
            (NONE, 2),
        ]
        assert await producer.end(committed=True) is NONE
        await stable(cluster)


@in_loop
async def test_what_was_verified_before_a_marker_is_not_written_behind_it(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster)
        assert await producer.add(2) is NONE
        request, version = producer.produce(producer.batch([b"late"], 2), 2)
        writing = asyncio.ensure_future(cluster.nodes[3].ask(request, version))
        await asyncio.sleep(0)  # The question is on its way.
        assert cluster.nodes[3].node.transactions.add_partitions_to_txn.pending
        code = await write_marker(cluster.nodes[3], producer, coordinator_epoch=100)
        assert code == NONE
        answer = (await writing).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE
        await stable(cluster)


@in_loop
async def test_a_write_waits_for_the_end_of_the_transaction_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka (KAFKA-18575). A refused one would come again after the client's backoff, in each transaction."""
    patience = {"add_partitions_to_txn_retry_backoff_max_ms": 60_000}
    async with prepared(tmp_path, **patience) as cluster:
        producer = await begun(cluster, second=True)
        for index in (0, 2):
            assert await producer.write(index, b"first") is NONE
        with monkeypatch.context() as broken:
            broken.setattr(MarkerWriter, "write", lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER)
            assert await producer.end(committed=True) is NONE
            writing = []
            for index in (0, 2):  # The coordinator leads the first.
                request, version = producer.produce(producer.batch([b"second"], index), index)
                answer = cluster.nodes[index + 1].ask(request, version)
                writing.append(asyncio.ensure_future(answer))
            for index in (0, 2):
                joins = cluster.nodes[index + 1].node.transactions.add_partitions_to_txn
                await cluster.until("the question", lambda joins=joins: bool(joins.pending))
        codes = [(await each).responses[0].partition_responses[0].error_code for each in writing]
        assert codes == [NONE, NONE]
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        assert [await read(cluster, index) for index in (0, 2)] == [[b"first", b"second"]] * 2


@in_loop
async def test_a_marker_of_the_transaction_before_refuses_no_write_of_the_next(
    tmp_path: Path,
) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=True)
        request, version = producer.produce(producer.batch([b"v"], 2), 2)
        writing = asyncio.ensure_future(cluster.nodes[3].ask(request, version))
        await asyncio.sleep(0)  # The question is on its way.
        state = cluster.nodes[1].node.replica_manager.find(STATE, 0)
        assert state is not None
        epoch = state.leader.leader_epoch
        assert await write_marker(cluster.nodes[3], producer, coordinator_epoch=epoch) is NONE
        answer = (await writing).responses[0].partition_responses[0]
        assert answer.error_code == NONE
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        assert await read(cluster, 2) == [b"v"]


async def write_marker(
    broker: InProcess,
    producer: Transactions,
    *,
    coordinator_epoch: int,
    transaction_version: int = 0,
) -> ErrorCode:
    """A marker for t-2 from a coordinator of this epoch."""
    marker = build(
        WritableTxnMarker,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
        topics=[{"name": "t", "partition_indexes": [2]}],
    )
    answer = await broker.ask(WriteTxnMarkersRequest(markers=[marker]), 2)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


@in_loop
async def test_markers_of_a_former_coordinator_and_of_a_former_transaction_are_fenced(
    tmp_path: Path,
) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=True)
        assert await producer.write(2, b"first") is NONE
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        state = cluster.nodes[1].node.replica_manager.find(STATE, 0)
        assert state is not None
        epoch = state.leader.leader_epoch
        broker = cluster.nodes[3]
        code = await write_marker(broker, producer, coordinator_epoch=epoch - 1)
        assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        code = await write_marker(broker, producer, coordinator_epoch=epoch, transaction_version=2)
        assert code is NONE, "a marker that comes twice does no harm"
        assert await producer.write(2, b"second") is NONE
        code = await write_marker(broker, producer, coordinator_epoch=epoch, transaction_version=2)
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH, "its transaction is not the open one"
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        assert await read(cluster, 2) == [b"first", b"second"]


@protocols
@in_loop
async def test_the_next_coordinator_completes_what_was_decided(
    tmp_path: Path, second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=second)
        if not second:
            assert await producer.add(0, 1, 2) is NONE
        for index in range(3):
            assert await producer.write(index, b"v") is NONE
        assert await producer.send_offset("g", 7) is NONE
        with monkeypatch.context() as broken:
            broken.setattr(MarkerWriter, "write", lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER)
            assert await producer.end(committed=True) is NONE
            found = cluster.nodes[1].node.transactions.find("x")
            assert found is not None and found.state.is_decided
            await move(cluster, STATE, 0, 3, 2, 1)
        await stable(cluster)
        assert await committed_offset(cluster, "g") == 7
        assert [await read(cluster, index) for index in range(3)] == [[b"v"]] * 3
        former = cluster.nodes[1].node.transactions
        assert not [*former.states()], "of which nothing is left"
        if not second:
            assert await producer.end(committed=True) is NONE, "said again by who came after"


@in_loop
async def test_an_open_transaction_goes_on_with_the_next_coordinator(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=True)
        assert await producer.write(1, b"before") is NONE
        await move(cluster, STATE, 0, 2, 3, 1)
        await move(cluster, OFFSETS, 0, 3, 1, 2)
        assert await producer.write(2, b"after") is NONE
        assert await producer.send_offset("g", 3) is NONE
        await move(cluster, OFFSETS, 0, 1, 2, 3)
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        assert await committed_offset(cluster, "g") == 3
        assert await read(cluster, 1) == [b"before"]
        assert await read(cluster, 2) == [b"after"]


@in_loop
async def test_an_open_transaction_is_timed_out_by_the_next_coordinator(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        producer = Transactions(cluster, "x")
        await producer.begin(timeout_ms=1_000)
        assert await producer.add(2) is NONE
        assert await producer.write(2, b"never") is NONE
        await move(cluster, STATE, 0, 2, 3, 1)
        await stable(cluster)
        assert await read(cluster, 2) == []
        assert await producer.end(committed=True) is ErrorCode.PRODUCER_FENCED


@in_loop
async def test_each_replica_tells_of_its_producers(tmp_path: Path) -> None:
    """What `kafka-transactions find-hanging --broker-id` asks of one broker."""
    async with prepared(tmp_path) as cluster:
        producer = await begun(cluster, second=True)
        assert await producer.send_offset("g", 3) is NONE

        async def told(broker: InProcess, topic: str) -> tuple[int, list[int]]:
            wanted = DescribeProducersTopicRequest(name=topic, partition_indexes=[0])
            answer = await broker.ask(DescribeProducersRequest(topics=[wanted]), 0)
            found = answer.topics[0].partitions[0]
            return found.error_code, [each.producer_id for each in found.active_producers]

        for broker in cluster.nodes.values():
            assert await told(broker, OFFSETS) == (NONE, [producer.producer_id])
        assert await told(cluster.nodes[2], "t") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


@in_loop
async def test_a_former_coordinator_confirms_nothing(tmp_path: Path) -> None:
    """It had said of the transaction before that it was committed, and took the next one's end for a repeat."""
    async with prepared(tmp_path, request_timeout_ms=2_000) as cluster:
        producer = await begun(cluster)
        assert await producer.add(2) is NONE
        assert await producer.write(2, b"first") is NONE
        assert await producer.end(committed=True) is NONE
        await stable(cluster)
        former = cluster.nodes.pop(1)
        await former.cut_off()
        await cluster.until("another one", lambda: leader(cluster, STATE, 0) is not None)
        assert await producer.add(2) is NONE
        assert await producer.write(2, b"second") is NONE
        end = EndTxnRequest(
            transactional_id="x",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=True,
        )
        answer = await former.ask(end, 4)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await producer.end(committed=False) is NONE
        await cluster.until("the end", lambda: nothing_is_open(cluster.nodes[3]))
        assert await read(cluster, 2) == [b"first"]


def nothing_is_open(broker: InProcess) -> bool:
    """Whether no transaction is open in t-2."""
    found = broker.node.replica_manager.find("t", 2)
    return found is not None and found.last_stable_offset() == found.log.log_end_offset


@in_loop
async def test_members_that_wait_are_told_of_a_move(tmp_path: Path) -> None:
    async with prepared(tmp_path) as cluster:
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        joining = asyncio.ensure_future(cluster.nodes[2].ask(request, 3))
        await asyncio.sleep(0.05)
        assert not joining.done()
        await move(cluster, OFFSETS, 0, 3, 1, 2)
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        refused = await cluster.nodes[2].ask(request, 3)
        assert refused.error_code == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_a_commit_is_in_the_log_or_refused_when_its_coordinator_goes(tmp_path: Path) -> None:
    """Whoever was told that an offset is committed finds it, at whatever moment the coordinator moved."""
    async with prepared(tmp_path) as cluster:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=""
        )
        promised = -1

        async def commit(offset: int) -> None:
            nonlocal promised
            partition.committed_offset = offset
            request = build(
                OffsetCommitRequest,
                group_id="g",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[{"name": "t", "partitions": [partition]}],
            )
            broker = leader(cluster, OFFSETS, 0)
            if broker is None:
                return
            answer: Any = await broker.ask(request, 8)
            if answer.topics[0].partitions[0].error_code == NONE:
                promised = offset

        for turn, replicas in enumerate(((3, 1, 2), (1, 2, 3), (2, 3, 1))):
            moving = asyncio.ensure_future(move(cluster, OFFSETS, 0, *replicas))
            offset = turn * 1_000
            while not moving.done():
                await commit(offset)
                offset += 1
                await asyncio.sleep(0)
            await moving
            assert await committed_offset(cluster, "g") >= promised
        assert promised > 0
        assert await commit_offset(cluster, "g", 5_000) is NONE
        assert await committed_offset(cluster, "g") == 5_000
