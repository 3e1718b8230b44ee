"""Clients of the simulated cluster: they retry as Kafka's do, and note what they were promised.

Every value that is sent is unique, so that a reader's records can be compared with what was sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.data import (
    PartitionProduceData,
    TopicProduceData,
)
from kafka_ds.protocol.messages.transactions import AddPartitionsToTxnTopic
from kafka_ds.records.batch import Record, build_batch
from tests.sim.network import SimNetwork
from tests.sim.wire import WireConnection

TROUBLE = (ConnectionError, TimeoutError, MalformedFrame)
EPOCH_MS = 1_700_000_000_000
# How long a client waits for an answer before it gives the connection up. Its request may be carried out all the same.
PATIENCE_SECONDS = (10.0, 10.0, 2.0, 0.4)

Partition = tuple[str, int]


@dataclass(slots=True)
class Promise:
    """A batch that a producer has sent."""

    values: list[bytes]
    partition: Partition
    # The offset of the first record; None: not known whether the batch was appended.
    offset: int | None = None
    transaction: int | None = None


@dataclass(slots=True)
class History:
    """What all clients together were promised."""

    promises: list[Promise] = field(default_factory=list)
    # By number: True committed, False aborted, None unknown.
    outcomes: dict[int, bool | None] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    # The producers with sequence numbers. A batch of any other producer may still be appended after it gave up waiting.
    ordered: set[bytes] = field(default_factory=set)

    def sending(self, promise: Promise) -> None:
        """Take note of a batch before it is sent."""
        self.promises.append(promise)

    def record(self, delta: int, now_ms: int, value: bytes) -> Record:
        """The record that a producer sends with this value."""
        return Record(delta, now_ms, value, value)


class Client:
    """Finds leaders and coordinators, and keeps connections."""

    def __init__(
        self, network: SimNetwork, bootstrap: list[tuple[str, int]], random: Random
    ) -> None:
        self.network = network
        self.random = random
        self._bootstrap = bootstrap
        self._connections: dict[tuple[str, int], WireConnection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, int] = {}
        # The newest leader epoch that the client knows: metadata with an older one are ignored (KIP-320).
        self._epochs: dict[Partition, int] = {}
        self.patience_seconds = random.choice(PATIENCE_SECONDS)

    async def connection(self, address: tuple[str, int]) -> WireConnection:
        found = self._connections.get(address)
        if found is None or not found.is_open:
            found = await WireConnection.connect(self.network, *address)
            self._connections[address] = found
        return found

    async def ask_any(self, request: Any, version: int) -> Any:
        """Ask any broker, chosen at random."""
        places = list(dict.fromkeys([*self._brokers.values(), *self._bootstrap]))
        address = self.random.choice(places)
        return await self.ask(await self.connection(address), request, version)

    async def ask(self, connection: WireConnection, request: Any, version: int) -> Any:
        """Ask, with this client's patience."""
        return await connection.ask(request, version, seconds=self.patience_seconds)

    async def leader(self, partition: Partition) -> WireConnection:
        """A connection to the partition's leader, once the brokers name one."""
        while (address := self._brokers.get(self._leaders.get(partition, -1))) is None:
            await self.refresh(partition[0])
            if self._leaders.get(partition, -1) not in self._brokers:
                await asyncio.sleep(0.1 + self.random.random() * 0.2)
        return await self.connection(address)

    async def broker(self, node_id: int) -> WireConnection | None:
        """A connection to this broker, if the client's metadata have its address."""
        address = self._brokers.get(node_id)
        return await self.connection(address) if address is not None else None

    def leader_id(self, partition: Partition) -> int:
        """The leader in this client's metadata; -1 if it knows none."""
        return self._leaders.get(partition, -1)

    async def refresh(self, topic: str) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        try:
            answer = await self.ask_any(request, 9)
        except TROUBLE:
            return
        self._brokers = {b.node_id: (b.host, b.port) for b in answer.brokers}
        for found in answer.topics:
            for each in found.partitions:
                partition = topic, each.partition_index
                if each.leader_epoch >= self._epochs.get(partition, -1):
                    self._epochs[partition] = each.leader_epoch
                    if each.leader_id in self._brokers:
                        self._leaders[partition] = each.leader_id

    def epoch(self, partition: Partition) -> int:
        """The leader epoch that this client knows."""
        return self._epochs.get(partition, -1)

    def forget(self, partition: Partition) -> None:
        """Forget the partition's leader, so that it is looked up again."""
        self._leaders.pop(partition, None)

    async def pause(self) -> None:
        await asyncio.sleep(0.05 + self.random.random() * 0.1)

    async def coordinator(self, transactional_id: str) -> WireConnection:
        while True:
            try:
                request = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
                answer = (await self.ask_any(request, 4)).coordinators[0]
                if answer.error_code == ErrorCode.NONE:
                    return await self.connection((answer.host, answer.port))
            except TROUBLE:
                pass
            await self.pause()


class Producer(Client):
    """A producer that sends to one partition after the other; idempotent if it has a producer id."""

    # How long a broker may take to acknowledge.
    timeout_ms = 5_000

    def __init__(self, *args: Any, name: str, history: History, acks: int = -1) -> None:
        super().__init__(*args)
        self.name = name
        self.history = history
        self.acks = acks
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[Partition, int] = {}
        self._count = 0

    async def become_idempotent(self) -> None:
        self.history.ordered.add(self.name.encode())
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        while True:
            try:
                answer = await self.ask_any(request, 4)
                if answer.error_code == ErrorCode.NONE:
                    self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                    self._sequences.clear()
                    return
            except TROUBLE:
                pass
            await self.pause()

    async def send(
        self,
        partition: Partition,
        size: int,
        *,
        transaction: tuple[str, int] | None = None,
        values: list[bytes] | None = None,
    ) -> bool:
        """Send one batch until it is acknowledged (True) or given up (False).

        If `values` are given, the caller checks them, and not the history.
        """
        if values is None:
            values = [f"{self.name}-{self._count + i}".encode() for i in range(size)]
            promise = self._promise(partition, values, transaction)
        else:
            promise = Promise(values, partition)
        self._count += size
        request = self._request(partition, values, transaction)
        while True:
            code, offset = await self._try(partition, request)
            if code is ErrorCode.NONE:
                promise.offset = offset
                self._sequences[partition] = self._sequences.get(partition, 0) + size
                return True
            if code is not None and not code.retriable:
                self.history.trouble.append(f"{self.name} {partition}: {code.name}")
                return False
            if self.producer_id < 0:
                # Without sequence numbers it must not send twice; the batch may have been appended or not.
                return False
            self.forget(partition)
            await self.pause()

    def _promise(
        self, partition: Partition, values: list[bytes], transaction: tuple[str, int] | None
    ) -> Promise:
        promise = Promise(values, partition)
        if transaction is not None:
            promise.transaction = transaction[1]
        self.history.sending(promise)
        return promise

    def _request(
        self, partition: Partition, values: list[bytes], transaction: tuple[str, int] | None
    ) -> ProduceRequest:
        now_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
        batch = build_batch(
            [self.history.record(i, now_ms, value) for i, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0) if self.producer_id >= 0 else -1,
            is_transactional=transaction is not None,
        )
        data = PartitionProduceData(index=partition[1], records=batch)
        return ProduceRequest(
            transactional_id=transaction[0] if transaction else None,
            acks=self.acks,
            timeout_ms=self.timeout_ms,
            topic_data=[TopicProduceData(name=partition[0], partition_data=[data])],
        )

    async def _try(
        self, partition: Partition, request: ProduceRequest
    ) -> tuple[ErrorCode | None, int]:
        try:
            answer = await self.ask(await self.leader(partition), request, 11)
        except TROUBLE:
            return None, -1
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return ErrorCode.NONE, -1
        return code, result.base_offset


class TransactionalProducer(Producer):
    """A producer of transactions over several partitions; it aborts some of them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.transactional_id = f"tx-{self.name}"

    async def begin(self) -> None:
        """Get a producer id. The coordinator ends a transaction that was open."""
        self.history.ordered.add(self.name.encode())
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=30_000
        )
        answer = await self.settled(request, 4)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def settled(self, request: Any, version: int) -> Any:
        """The first answer of the coordinator without a retriable error."""
        while True:
            try:
                coordinator = await self.coordinator(self.transactional_id)
                answer = await self.ask(coordinator, request, version)
            except TROUBLE:
                await self.pause()
                continue
            codes = (
                {ErrorCode(answer.error_code)} if hasattr(answer, "error_code") else _codes(answer)
            )
            if not any(code.retriable for code in codes):
                return answer
            await self.pause()

    async def run_transaction(self, partitions: list[Partition], *, commit: bool) -> None:
        """Run one transaction from its first record to its end."""
        number = len(self.history.outcomes)
        self.history.outcomes[number] = False
        if not await self.take_part(partitions):
            await self.begin()
            return
        for partition in partitions:
            place = (self.transactional_id, number)
            if not await self.send(partition, self.random.randint(1, 5), transaction=place):
                await self.begin()
                return
        # Unknown from the first EndTxn on, until it is answered.
        self.history.outcomes[number] = None if commit else False
        if await self.end(commit=commit):
            self.history.outcomes[number] = commit
        else:
            await self.begin()

    async def take_part(self, partitions: list[Partition]) -> bool:
        """Add these partitions to the transaction, at the coordinator."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        return _codes(await self.settled(request, 3)) == {ErrorCode.NONE}

    async def end(self, *, commit: bool) -> bool:
        """End the transaction; False if this is refused, and then its outcome is unknown."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.settled(request, 3)
        if answer.error_code != ErrorCode.NONE:
            self.history.trouble.append(f"{self.name}: EndTxn {ErrorCode(answer.error_code).name}")
        return bool(answer.error_code == ErrorCode.NONE)


def _codes(answer: Any) -> set[ErrorCode]:
    return {
        ErrorCode(result.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
