"""Readers of the simulated cluster: of leaders and of followers, with fetch sessions and without."""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FetchRequest, ListOffsetsRequest
from kafka_ds.protocol.messages.data import FetchPartition, FetchPartitionData, FetchTopic
from kafka_ds.protocol.messages.offsets import LATEST, ListOffsetsPartition, ListOffsetsTopic
from kafka_ds.records.batch import BatchHeader, Record, iterate_headers, read_records
from tests.sim.clients import TROUBLE, Client, Partition

READ_COMMITTED = 1
NO_BROKER = -1
FETCH_VERSION = 12
# How often a reader goes back to the leader, as Kafka's consumer does after metadata.max.age.ms.
HOME_AGAIN = 0.05


class Session:
    """A fetch session: what this reader has told a broker (KIP-227)."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.id = 0
        self.epoch = 0
        self.told: tuple[int, int] | None = None


class Consumer(Client):
    """Reads one partition from its start."""

    def __init__(
        self,
        *args: Any,
        partition: Partition,
        isolation_level: int,
        rack: str = "",
        has_sessions: bool = False,
    ) -> None:
        """`rack`: read from the nearest replica (KIP-392)."""
        super().__init__(*args)
        self.partition = partition
        self.isolation_level = isolation_level
        self.position = 0
        self.read: list[tuple[int, bytes]] = []
        self._rack = rack
        self._has_sessions = has_sessions
        self._session = Session(NO_BROKER)
        self._preferred = NO_BROKER

    async def poll(self) -> None:
        """Fetch once; after an error wait a moment."""
        if self.random.random() < HOME_AGAIN:
            self._preferred = NO_BROKER
        asked, data = self._preferred, None
        try:
            data = await self._fetch()
        except TROUBLE:
            self._session = Session(NO_BROKER)
            await self._elsewhere()
        if data is None:
            return
        code = ErrorCode(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and asked == NO_BROKER:
            await self.out_of_range()
            return
        if code is not ErrorCode.NONE:
            await self._elsewhere()
            return
        self._preferred = data.preferred_read_replica
        if self._preferred == NO_BROKER:
            self._preferred = asked
        self._take(data)

    async def out_of_range(self) -> None:
        """The leader does not have the next offset."""
        raise AssertionError(f"{self.partition}: {self.position} is out of range")

    def seen(self, record: Record, header: BatchHeader) -> None:
        """Called with each record that was read."""

    async def _elsewhere(self) -> None:
        if self._preferred == NO_BROKER:
            self.forget(self.partition)
        self._preferred = NO_BROKER
        await self.pause()

    async def _fetch(self) -> FetchPartitionData | None:
        leader = await self.leader(self.partition)
        broker = self.leader_id(self.partition)
        nearest = await self.broker(self._preferred)
        if nearest is not None:
            leader, broker = nearest, self._preferred
        if broker != self._session.broker or not self._has_sessions:
            self._session = Session(broker)
        session = self._session
        telling = (self.position, self.epoch(self.partition))
        request = FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=self.isolation_level,
            session_id=session.id,
            session_epoch=session.epoch if self._has_sessions else -1,
            topics=self._wanted(*telling) if telling != session.told else [],
            rack_id=self._rack,
        )
        session.told = telling
        answer = await self.ask(leader, request, FETCH_VERSION)
        if answer.error_code != ErrorCode.NONE:
            self._session = Session(NO_BROKER)
            return None
        session.id = answer.session_id
        session.epoch = session.epoch + 1 if session.id else 0
        if not session.id:
            session.told = None
        for topic in answer.responses:
            found: FetchPartitionData = topic.partitions[0]
            if found.error_code != ErrorCode.NONE:
                # The broker reports an error once, until the session tells it the partition again.
                session.told = None
            return found
        return None

    def _wanted(self, position: int, epoch: int) -> list[FetchTopic]:
        topic, index = self.partition
        wanted = FetchPartition(
            partition=index,
            current_leader_epoch=epoch,
            fetch_offset=position,
            partition_max_bytes=1 << 20,
        )
        return [FetchTopic(topic=topic, partitions=[wanted])]

    def _take(self, data: FetchPartitionData) -> None:
        records = memoryview(data.records or b"")
        aborted = sorted(
            (each.first_offset, each.producer_id) for each in data.aborted_transactions or []
        )
        open_aborts: set[int] = set()
        for position, header in iterate_headers(records):
            last = header.base_offset + header.last_offset_delta
            while aborted and aborted[0][0] <= last:
                open_aborts.add(aborted.pop(0)[1])
            if header.is_control:
                open_aborts.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborts):
                self._keep(records, position, header)
            self.position = max(self.position, last + 1)

    def _keep(self, records: memoryview, position: int, header: BatchHeader) -> None:
        for record in read_records(records, position, header):
            if record.offset >= self.position:
                assert record.value is not None
                self.seen(record, header)
                self.read.append((record.offset, bytes(record.value)))

    async def end_offset(self) -> int | None:
        """The end of the partition for this reader; None if the leader does not answer."""
        return await self.offset_at(LATEST)

    async def offset_at(self, timestamp: int) -> int | None:
        """The offset from ListOffsets for a time, `EARLIEST` or `LATEST`; None if it is not answered."""
        topic, index = self.partition
        try:
            leader = await self.leader(self.partition)
        except TROUBLE:
            self.forget(self.partition)
            return None
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self.isolation_level,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index,
                            current_leader_epoch=self.epoch(self.partition),
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        try:
            answer = await self.ask(leader, request, 5)
        except TROUBLE:
            self.forget(self.partition)
            return None
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            self.forget(self.partition)
            return None
        offset: int = found.offset
        return offset
