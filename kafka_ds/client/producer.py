"""Shell: sends sealed batches to their partitions' leaders, several requests in flight, each batch once and in order.

A batch keeps its sequence (KIP-98) and is sent again unchanged: a broker that has it says so. After a batch has failed,
nothing later is sent to its partition until all requests in flight have been answered; then all failed batches are sent
again, in order. Retriable errors, lost connections and late answers are retried until ``delivery.timeout.ms`` is over.
The queue is bounded: `send` waits for answers. Every error names the topic, the partition and the rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.connection import Connection
from kafka_ds.client.producer_settings import ProducerSettings
from kafka_ds.errors import BrokerTimeout, BrokerUnreachable, ClientError, NotDelivered
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ProduceRequest, ProduceResponse
from kafka_ds.protocol.messages.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import NO_SEQUENCE, build_batch, read_header, read_records
from kafka_ds.records.sequences import sequence_after

__all__ = ["NotDelivered", "Outgoing", "Producer", "Written"]

# By name and not by id (KIP-516), and in transactions by the first protocol, in which partitions are added.
PRODUCE_VERSION_MAX: Final = 12
PRODUCE_IN_TRANSACTIONS_VERSION_MAX: Final = 11
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
NO_OFFSET: Final = -1

_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# What is wrong with the producer or its transaction, whichever rows are written.
_OF_TRANSACTION: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
Address = tuple[str, int]


@dataclass(slots=True, kw_only=True, eq=False)
class Outgoing:
    """One sealed batch on its way; ``describe`` names its rows (or those at these places) for errors."""

    topic: str
    partition: int
    data: bytes | bytearray
    record_count: int
    describe: Callable[[Iterable[int]], str]
    number: int = 0
    first_record: int = 0
    """Of a part: how many records of the batch come before it."""
    deadline: float = 0.0
    attempts: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True, kw_only=True)
class Written:
    """What a partition took: the first and last offset, and how many records (others' may lie between)."""

    first_offset: int
    last_offset: int
    record_count: int


@dataclass(slots=True)
class _Lane:
    """A partition's batches: those that wait, those that came back, and how many are under way."""

    waiting: deque[Outgoing] = field(default_factory=deque)
    failed: list[Outgoing] = field(default_factory=list)
    under_way: int = 0
    count: int = 0
    address: Address | None = None
    """To whom those under way were sent."""

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and not self.failed


@dataclass(slots=True)
class _Link:
    """A connection to a leader and the requests under way on it."""

    connection: Connection
    requests: deque[list[Outgoing]] = field(default_factory=deque)


class Producer:
    """Not for use by several threads at once.

    Parameters
    ----------
    transactional_id
        With it every batch is part of the open transaction of that id; ``join`` is called with partitions before the
        first batch goes there.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        transactional_id: str | None = None,
        join: Callable[[set[TopicPartition]], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self._transactional_id = transactional_id
        self._join = join
        self._joined: set[TopicPartition] = set()
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._links: dict[Address, _Link] = {}
        self.waiting_bytes = 0
        self._failures = 0
        self._bytes_max: dict[str, int] = {}
        self.written: dict[TopicPartition, Written] = {}

    @property
    def is_transactional(self) -> bool:
        """Whether batches are part of a transaction."""
        return self._transactional_id is not None

    def batch_bytes_max(self, topic: str) -> int | None:
        """How many bytes a batch for this topic may have, as far as refusals show; None if none was refused."""
        return self._bytes_max.get(topic)

    def send(self, batch: Outgoing) -> None:
        """Hand over a batch; it is under way, waits, or (where too much waits) answers are waited for."""
        lane = self._lanes.setdefault(batch.topic_partition, _Lane())
        batch.number, lane.count = lane.count, lane.count + 1
        batch.deadline = time.monotonic() + self.settings.delivery_timeout_ms / 1_000
        lane.waiting.append(batch)
        self.waiting_bytes += len(batch.data)
        while self.waiting_bytes > WAITING_BYTES_MAX:
            self.step()

    def flush(self) -> None:
        """Until every batch was taken.

        Raises:
            NotDelivered: one was not, and no retry would mend that, or ``delivery.timeout.ms`` is over.
            KafkaError: this producer is fenced, or its transaction has ended.
        """
        while self.step():
            pass

    def push(self) -> None:
        """Send what can be sent without waiting for an answer."""
        self._dispatch()

    def close(self) -> None:
        """Close the connections; requests in flight are dropped."""
        for link in self._links.values():
            link.connection.close()
        self._links.clear()

    # -- sending --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Send what can be sent, then take one answer; False where nothing is left to do."""
        self._dispatch()
        links = [link for link in self._links.values() if link.requests]
        back = {k: lane for k, lane in self._lanes.items() if lane.failed and not lane.under_way}
        if back:
            self._again(back)
        elif links:
            self._receive(min(links, key=lambda link: link.requests[0][0].deadline))
        return any(lane.waiting or lane.failed or lane.under_way for lane in self._lanes.values())

    def _dispatch(self) -> None:
        self._join_new()
        by_leader: dict[Address, list[_Lane]] = {}
        for key, lane in self._lanes.items():
            if not lane.ready:
                continue
            address = self.cluster.leader_address(key)
            # What the former leader has not answered comes first: it may come back, and a new leader would see a gap.
            if not lane.under_way or lane.address == address:
                lane.address = address
                by_leader.setdefault(address, []).append(lane)
        for address, lanes in by_leader.items():
            self._fill(address, lanes)

    def _join_new(self) -> None:
        if self._join is None:
            return
        new = {key for key, lane in self._lanes.items() if lane.ready} - self._joined
        if new:
            self._join(new)
            self._joined |= new

    def _fill(self, address: Address, lanes: list[_Lane]) -> None:
        in_flight_max = self.settings.max_in_flight_requests_per_connection
        while any(lane.ready for lane in lanes):
            link = self._links.get(address)
            if link is not None and len(link.requests) >= in_flight_max:
                return
            if link is not None and not link.requests and not link.connection.idle:
                link.connection.close()
                link = None
            batches = self._next(lanes)
            try:
                if link is None:
                    connection = self.cluster.new_connection(address)
                    link = self._links[address] = _Link(connection)
                self._post(link, batches)
            except (BrokerUnreachable, BrokerTimeout) as problem:
                self._came_back(batches, problem)
                self._lost(address, problem)
                return

    def _next(self, lanes: list[_Lane]) -> list[Outgoing]:
        """One batch a partition, as many as a request may hold, and one at least."""
        batches: list[Outgoing] = []
        room = self.settings.max_request_size
        for lane in lanes:
            if lane.ready and (not batches or len(lane.waiting[0].data) <= room):
                batch = lane.waiting.popleft()
                lane.under_way += 1
                room -= len(batch.data)
                batches.append(batch)
        return batches

    def _post(self, link: _Link, batches: list[Outgoing]) -> None:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            batch.attempts += 1
            data = PartitionProduceData(index=batch.partition, records=memoryview(batch.data))
            topics.setdefault(batch.topic, []).append(data)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self.settings.acks,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=n, partition_data=d) for n, d in topics.items()],
        )
        in_transaction = self._transactional_id is not None
        ceiling = PRODUCE_IN_TRANSACTIONS_VERSION_MAX if in_transaction else PRODUCE_VERSION_MAX
        if self.settings.acks == 0:
            # No broker answers, so where it went, or whether it did, is unknown.
            link.connection.send(request, ceiling, answered=False)
            for batch in batches:
                self._complete(batch, NO_OFFSET)
            return
        link.connection.send(request, ceiling)
        link.requests.append(batches)

    # -- answers --------------------------------------------------------------------------------

    def _receive(self, link: _Link) -> None:
        address = next(a for a, other in self._links.items() if other is link)
        try:
            response: ProduceResponse = link.connection.receive()
        except (BrokerUnreachable, BrokerTimeout) as problem:
            self._lost(address, problem)
            return
        batches = {batch.topic_partition: batch for batch in link.requests.popleft()}
        for topic in response.responses:
            for answer in topic.partition_responses:
                self._answered(batches.pop(TopicPartition(topic.name, answer.index)), answer)
        assert not batches, "an answer to each batch"

    def _answered(self, batch: Outgoing, answer: PartitionProduceResponse) -> None:
        code = ErrorCode(answer.error_code)
        lane = self._lanes[batch.topic_partition]
        if code in _DONE:
            if self._transactional_id is not None and answer.base_offset == NO_OFFSET:
                # A duplicate of long ago. The decision about the attempt needs its offset.
                raise NotDelivered(
                    f"{_place(batch)}: written, but the broker does not return the offset"
                )
            self._complete(batch, answer.base_offset)
            self._failures = 0
        elif code.retriable or (code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.failed):
            # Out of order is what follows a batch that failed.
            self._came_back([batch], KafkaError(code, answer.error_message))
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(batch)
        elif self._transactional_id is not None and code in _OF_TRANSACTION:
            raise KafkaError(code, f"{_place(batch)}: {answer.error_message or 'refused'}")
        else:
            raise self._refused(batch, code, answer)

    def _refused(
        self, batch: Outgoing, code: ErrorCode, answer: PartitionProduceResponse
    ) -> NotDelivered:
        places = [error.batch_index for error in answer.record_errors] or range(batch.record_count)
        reasons = [error.batch_index_error_message for error in answer.record_errors]
        reason = next(filter(None, [*reasons, answer.error_message]), "")
        return NotDelivered(
            f"{_place(batch)}: {batch.describe(places)}: {code.name}{f' ({reason})' if reason else ''}"
        )

    def _complete(self, batch: Outgoing, base_offset: int) -> None:
        self._lanes[batch.topic_partition].under_way -= 1
        self.waiting_bytes -= len(batch.data)
        last = base_offset + batch.record_count - 1 if base_offset != NO_OFFSET else NO_OFFSET
        before = self.written.get(batch.topic_partition)
        if before is None:
            self.written[batch.topic_partition] = Written(
                first_offset=base_offset, last_offset=last, record_count=batch.record_count
            )
        else:
            before.last_offset = max(before.last_offset, last)
            before.record_count += batch.record_count

    # -- trouble --------------------------------------------------------------------------------

    def _lost(self, address: Address, problem: Exception) -> None:
        link = self._links.pop(address, None)
        if link is None:
            return
        link.connection.close()
        for batches in link.requests:
            self._came_back(batches, problem)

    def _came_back(self, batches: list[Outgoing], problem: Exception) -> None:
        settings = self.settings
        for batch in batches:
            lane = self._lanes[batch.topic_partition]
            lane.under_way -= 1
            late = time.monotonic() >= batch.deadline
            if late or batch.attempts > settings.retries:
                option = (
                    f"kafka.delivery.timeout.ms={settings.delivery_timeout_ms}"
                    if late
                    else f"kafka.retries={settings.retries}"
                )
                raise NotDelivered(
                    f"{_place(batch)}: {batch.describe(range(batch.record_count))}: not taken within "
                    f"{option}; last: {problem}"
                ) from problem
            lane.failed.append(batch)

    def _split(self, batch: Outgoing) -> None:
        """Have parts of it sent, in its place."""
        lane, size_bytes = self._lanes[batch.topic_partition], len(batch.data)
        limit = min(self._bytes_max.get(batch.topic, size_bytes), size_bytes // 2)
        self._bytes_max[batch.topic] = limit
        lane.under_way -= 1
        self.waiting_bytes -= size_bytes
        first = 0
        for data, count in _split(batch.data, limit):
            lane.failed.append(
                Outgoing(
                    topic=batch.topic,
                    partition=batch.partition,
                    data=data,
                    record_count=count,
                    describe=_further(batch.describe, first),
                    number=batch.number,
                    first_record=batch.first_record + first,
                    deadline=batch.deadline,
                )
            )
            self.waiting_bytes += len(data)
            first += count

    def _again(self, back: dict[TopicPartition, _Lane]) -> None:
        """All requests to that broker are answered: failed batches go again, in order, to the present leader."""
        # A batch that was never sent is a part of one that was too large: its leader is well, and what came behind it
        # failed for that alone.
        troubled = {k: lane for k, lane in back.items() if all(b.attempts for b in lane.failed)}
        if troubled:
            self._failures += 1
            client = self.settings.client
            pause_ms = client.retry_backoff_ms * 2 ** min(self._failures - 1, 10)
            time.sleep(min(pause_ms, client.retry_backoff_max_ms) / 1_000)
        for key, lane in back.items():
            lane.failed.sort(key=lambda batch: (batch.number, batch.first_record))
            lane.waiting.extendleft(reversed(lane.failed))
            lane.failed.clear()
            if key in troubled:
                self._find_leader(key, lane)

    def _find_leader(self, key: TopicPartition, lane: _Lane) -> None:
        """Look it up again, for as long as the first batch may wait (``max.block.ms`` bounds first look-ups)."""
        batch = lane.waiting[0]
        while True:
            try:
                self.cluster.leader_address(key, refresh=True)
                return
            except ClientError as problem:
                if isinstance(problem, BrokerTimeout) and time.monotonic() < batch.deadline:
                    continue
                raise NotDelivered(
                    f"{_place(batch)}: {batch.describe(range(batch.record_count))}: {problem}"
                ) from problem


def _further(
    describe: Callable[[Iterable[int]], str], first: int
) -> Callable[[Iterable[int]], str]:
    return lambda places: describe([first + place for place in places])


def _place(batch: Outgoing) -> str:
    return f"topic {batch.topic}, partition {batch.partition}"


def _split(data: bytes | bytearray, bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """The batch as two parts at least, each with its number of records: about ``bytes_max`` bytes, where alike.

    Sequences go on where the last part's end (KIP-98): a broker takes each record once, and what follows stays.
    """
    header, records = read_header(data), read_records(data)
    assert len(records) > 1, "a record cannot be split"
    parts = min(len(records), max(2, -(-len(data) // max(1, bytes_max))))
    start = 0
    for part in range(1, parts + 1):
        end = len(records) * part // parts
        sequence = header.base_sequence
        part_of_batch = build_batch(
            [each._replace(offset=n) for n, each in enumerate(records[start:end])],
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence if sequence == NO_SEQUENCE else sequence_after(sequence, start),
            is_transactional=header.is_transactional,
        )
        yield part_of_batch, end - start
        start = end
