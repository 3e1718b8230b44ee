"""Members of consumer groups of the simulated cluster: they join, own partitions, commit, and are away at times.

After any error a member joins again as a new one. If its last request is still on its way, that request then belongs
to a generation that is over. A member asks for the offsets where a generation begins on the connection on which it
joined: any other broker may be a former coordinator, which knows less.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AddOffsetsToTxnRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
)
from kafka_ds.protocol.messages.groups import (
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequestAssignment,
)
from kafka_ds.protocol.messages.transactions import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.sim.clients import TROUBLE, Client, Partition, TransactionalProducer
from tests.sim.ledger import Ledger
from tests.sim.readers import READ_COMMITTED, Consumer
from tests.sim.wire import WireConnection

SESSION_MS = 2_000
REBALANCE_MS = 2_000
JOIN_SECONDS = 6.0
GROUP = 0
# How often a member is away, sometimes for longer than its session.
AWAY = 0.08
AWAY_SECONDS_MAX = 5.0
REST_SECONDS = 0.2
# The part of its transactions that a transformer aborts; then it reads the same records again.
ABORTED = 0.15
# A coordinator's errors for members that are gone or of another generation.
_GROUP_GOES_ON = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class Again(Exception):
    """The member has to join again."""


class SimMember(Client):
    """Reads the partitions that it owns and commits its offsets."""

    def __init__(
        self,
        *args: Any,
        group: str,
        topic: str,
        partitions: int,
        ledger: Ledger,
        reader: Callable[[Partition], Consumer],
    ) -> None:
        super().__init__(*args)
        self.group = group
        self.ledger = ledger
        self._topic = topic
        self._partitions = partitions
        self._reader = reader
        self._member_id = ""
        self._generation = -1
        self._connection: WireConnection | None = None
        self._owned: dict[int, Consumer] = {}
        self._committed: dict[int, int] = {}

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Be a member until `is_over`."""
        while not is_over():
            try:
                await self._join()
                while not is_over():
                    await self._round()
                    await asyncio.sleep(self.random.random() * REST_SECONDS)
            except Again:
                pass
            except TROUBLE:
                self._connection, self._member_id = None, ""
            self._owned.clear()
            await self.pause()
        await self._leave()

    async def _may_be_away(self) -> None:
        if self.random.random() < AWAY:
            await asyncio.sleep(self.random.random() * AWAY_SECONDS_MAX)

    # -- joining -----------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Join a generation, and learn at which offsets the owned partitions begin."""
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._find()
        name = self._topic.encode()
        subscription = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        answer = await self._asked(request, 5, JOIN_SECONDS)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            raise Again
        self._check(answer.error_code)
        self._member_id, self._generation = answer.member_id, answer.generation_id
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            assignments=self._assign(sorted(each.member_id for each in answer.members)),
        )
        answer = await self._asked(request, 3, JOIN_SECONDS)
        self._check(answer.error_code)
        mine = [int(each) for each in bytes(answer.assignment).decode().split()]
        self.ledger.owns(self.group, self._generation, self._member_id, mine)
        await self._begin_at(mine)

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """The leader's assignment of all members; empty from any other member."""
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=" ".join(map(str, range(i, self._partitions, len(members)))).encode(),
            )
            for i, member in enumerate(members)
        ]

    async def _begin_at(self, indexes: list[int]) -> None:
        known = self.ledger.promised(self.group)
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=self._topic, partition_indexes=indexes)],
            require_stable=True,
        )
        while indexes:
            answer = await self._asked(request, 7)
            self._check(answer.error_code)
            found = answer.topics[0].partitions
            codes = {ErrorCode(each.error_code) for each in found}
            if ErrorCode.UNSTABLE_OFFSET_COMMIT in codes:
                await self._heartbeat()
                await self.pause()
                continue
            for each in found:
                self._check(each.error_code)
                self.ledger.began(
                    self.group, self._generation, each.partition_index, each.committed_offset, known
                )
                consumer = self._reader((self._topic, each.partition_index))
                consumer.position = max(each.committed_offset, 0)
                self._owned[each.partition_index] = consumer
                self._committed[each.partition_index] = each.committed_offset
            return

    async def _find(self) -> WireConnection:
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[self.group])
        answer = (await self.ask_any(request, 4)).coordinators[0]
        if answer.error_code != ErrorCode.NONE:
            raise Again
        # A connection of its own, so that no other request is in the way.
        return await WireConnection.connect(self.network, answer.host, answer.port)

    async def _leave(self) -> None:
        """Send a LeaveGroup; it may not arrive."""
        if self._connection is None or not self._member_id:
            return
        leaving = [MemberIdentity(member_id=self._member_id)]
        self._member_id = ""
        try:
            await self._asked(LeaveGroupRequest(group_id=self.group, members=leaving), 3)
        except TROUBLE:
            self._connection = None

    # -- being a member ----------------------------------------------------------------------------

    async def _round(self) -> None:
        await self._heartbeat()
        for index, consumer in tuple(self._owned.items()):
            since = len(consumer.read)
            await consumer.poll()
            await self._may_be_away()
            if consumer.position != max(self._committed[index], 0):
                await self._take(index, consumer.position, consumer.read[since:])
                self._committed[index] = consumer.position

    async def _take(self, index: int, offset: int, records: list[tuple[int, bytes]]) -> None:
        place = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=self._topic, partitions=[place])],
        )
        answer = await self._asked(request, 7)
        self._check(answer.topics[0].partitions[0].error_code)
        self.ledger.committed(self.group, self._generation, index, offset)

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
        )
        self._check((await self._asked(request, 3)).error_code)

    async def _asked(self, request: Any, version: int, seconds: float | None = None) -> Any:
        if self._connection is None:
            raise ConnectionError("no coordinator")
        waits = self.patience_seconds if seconds is None else seconds
        return await self._connection.ask(request, version, seconds=waits)

    def _check(self, error_code: int) -> None:
        code = ErrorCode(error_code)
        if code is ErrorCode.NONE:
            return
        if code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._member_id = ""
        if code not in _GROUP_GOES_ON:
            assert code.retriable, f"{self.group}: {code.name}"
            self._connection = None
        raise Again


class Transformer(SimMember):
    """Writes one record to another topic for each record that it reads, exactly once (KIP-447)."""

    def __init__(
        self, *args: Any, producer: TransactionalProducer, target: str, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._producer = producer
        self._target = target
        self._is_ready = False

    async def _join(self) -> None:
        if not self._is_ready:
            await self._producer.begin()
            self._is_ready = True
        await super()._join()

    async def _take(self, index: int, offset: int, records: list[tuple[int, bytes]]) -> None:
        producer = self._producer
        # If anything fails from here on, the open transaction is aborted first.
        self._is_ready = False
        target = (self._target, index)
        if records:
            values = [f"{index}:{place}".encode() for place, _ in records]
            if not await producer.take_part([target]):
                raise Again
            number = self.ledger.next_transaction()
            place = (producer.transactional_id, number)
            if not await producer.send(target, len(values), transaction=place, values=values):
                raise Again
            await self._may_be_away()
        await self._send_offsets(index, offset)
        await self._may_be_away()
        commit = self.random.random() > ABORTED
        if not await producer.end(commit=commit) or not commit:
            raise Again
        self.ledger.committed(self.group, self._generation, index, offset)
        self._is_ready = True

    async def _send_offsets(self, index: int, offset: int) -> None:
        producer = self._producer
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=self.group,
        )
        answer = await producer.settled(request, 3)
        if answer.error_code != ErrorCode.NONE:
            raise Again
        place = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=None
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[TxnOffsetCommitRequestTopic(name=self._topic, partitions=[place])],
        )
        answer = await self._asked(commit, 3)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is not ErrorCode.NONE:
            # The member was fenced by its coordinator, or its generation is over.
            raise Again


def reader_of(
    client: tuple[Any, ...], isolation: int = READ_COMMITTED
) -> Callable[[Partition], Consumer]:
    """A function that makes the reader of an owned partition; `client` has the arguments of `Client`."""
    return lambda partition: Consumer(*client, partition=partition, isolation_level=isolation)
