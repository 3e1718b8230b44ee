"""Shell: sends complete batches to their partitions' leaders, with several requests in flight, exactly once, in order.

A retry sends the same bytes with the same sequence (KIP-98), so that a broker recognises a duplicate. After a batch has
failed, nothing is sent to its partition until all requests in flight have been answered; then all failed batches are
sent again, in order. Retriable errors, disconnects and timeouts are retried until ``delivery.timeout.ms`` expires.
The queue is bounded: if it is full, `send` waits for responses. Errors name the topic, the partition and the rows.
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

__all__ = ["NotDelivered", "OutgoingBatch", "Producer", "WrittenRange"]

# The last version with topic names instead of ids (KIP-516), and the last of the first transaction protocol.
PRODUCE_VERSION_MAX: Final = 12
PRODUCE_IN_TRANSACTIONS_VERSION_MAX: Final = 11
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
NO_OFFSET: Final = -1

_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# Errors of the producer or its transaction, not of the rows.
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
class OutgoingBatch:
    """A complete batch to be sent; ``describe`` names the rows at these indexes for errors."""

    topic: str
    partition: int
    data: bytes | bytearray
    record_count: int
    describe: Callable[[Iterable[int]], str]
    number: int = 0
    first_record: int = 0
    """The index of its first record in the batch that it was split from."""
    deadline: float = 0.0
    attempts: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True, kw_only=True)
class WrittenRange:
    """The first and last offset written to a partition, and the number of records (others' may be in between)."""

    first_offset: int
    last_offset: int
    record_count: int


@dataclass(slots=True)
class _PartitionQueue:
    """A partition's batches: those that wait, those that failed, and how many are in flight."""

    waiting: deque[OutgoingBatch] = field(default_factory=deque)
    failed: list[OutgoingBatch] = field(default_factory=list)
    in_flight: int = 0
    count: int = 0
    address: Address | None = None
    """The leader to which those in flight were sent."""

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and not self.failed


@dataclass(slots=True)
class _NodeConnection:
    """A connection to a leader and the requests in flight on it."""

    connection: Connection
    requests: deque[list[OutgoingBatch]] = field(default_factory=deque)


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
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._nodes: dict[Address, _NodeConnection] = {}
        self.waiting_bytes = 0
        self._failures = 0
        self._bytes_max: dict[str, int] = {}
        self.written: dict[TopicPartition, WrittenRange] = {}

    @property
    def is_transactional(self) -> bool:
        """Whether batches are part of a transaction."""
        return self._transactional_id is not None

    def batch_bytes_max(self, topic: str) -> int | None:
        """The batch size to which MESSAGE_TOO_LARGE has led for this topic; None without that error."""
        return self._bytes_max.get(topic)

    def send(self, batch: OutgoingBatch) -> None:
        """Enqueue a batch; while the queue is full, send and wait for responses."""
        queue = self._queues.setdefault(batch.topic_partition, _PartitionQueue())
        batch.number, queue.count = queue.count, queue.count + 1
        batch.deadline = time.monotonic() + self.settings.delivery_timeout_ms / 1_000
        queue.waiting.append(batch)
        self.waiting_bytes += len(batch.data)
        while self.waiting_bytes > WAITING_BYTES_MAX:
            self.step()

    def flush(self) -> None:
        """Send until every batch is acknowledged.

        Raises:
            NotDelivered: a batch was rejected, or ``delivery.timeout.ms`` expired.
            KafkaError: this producer is fenced, or its transaction has ended.
        """
        while self.step():
            pass

    def push(self) -> None:
        """Send what can be sent without waiting for a response."""
        self._dispatch()

    def close(self) -> None:
        """Close the connections; requests in flight are dropped."""
        for node in self._nodes.values():
            node.connection.close()
        self._nodes.clear()

    # -- sending --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Send what can be sent, then receive one response; False if nothing is left to do."""
        self._dispatch()
        nodes = [node for node in self._nodes.values() if node.requests]
        back = {
            k: queue for k, queue in self._queues.items() if queue.failed and not queue.in_flight
        }
        if back:
            self._retry(back)
        elif nodes:
            self._receive(min(nodes, key=lambda node: node.requests[0][0].deadline))
        return any(
            queue.waiting or queue.failed or queue.in_flight for queue in self._queues.values()
        )

    def _dispatch(self) -> None:
        self._join_new()
        by_leader: dict[Address, list[_PartitionQueue]] = {}
        for key, queue in self._queues.items():
            if not queue.ready:
                continue
            address = self.cluster.leader_address(key)
            # Requests in flight to the former leader may still fail: a new leader would see a gap in the sequences.
            if not queue.in_flight or queue.address == address:
                queue.address = address
                by_leader.setdefault(address, []).append(queue)
        for address, queues in by_leader.items():
            self._fill(address, queues)

    def _join_new(self) -> None:
        if self._join is None:
            return
        new = {key for key, queue in self._queues.items() if queue.ready} - self._joined
        if new:
            self._join(new)
            self._joined |= new

    def _fill(self, address: Address, queues: list[_PartitionQueue]) -> None:
        in_flight_max = self.settings.max_in_flight_requests_per_connection
        while any(queue.ready for queue in queues):
            node = self._nodes.get(address)
            if node is not None and len(node.requests) >= in_flight_max:
                return
            if node is not None and not node.requests and not node.connection.idle:
                node.connection.close()
                node = None
            batches = self._next(queues)
            try:
                if node is None:
                    connection = self.cluster.new_connection(address)
                    node = self._nodes[address] = _NodeConnection(connection)
                self._post(node, batches)
            except (BrokerUnreachable, BrokerTimeout) as problem:
                self._batches_failed(batches, problem)
                self._disconnected(address, problem)
                return

    def _next(self, queues: list[_PartitionQueue]) -> list[OutgoingBatch]:
        """The first batch of each partition, as many as fit into a request, and at least one."""
        batches: list[OutgoingBatch] = []
        room = self.settings.max_request_size
        for queue in queues:
            if queue.ready and (not batches or len(queue.waiting[0].data) <= room):
                batch = queue.waiting.popleft()
                queue.in_flight += 1
                room -= len(batch.data)
                batches.append(batch)
        return batches

    def _post(self, node: _NodeConnection, batches: list[OutgoingBatch]) -> None:
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
            # There is no response, so the offset is unknown.
            node.connection.send(request, ceiling, answered=False)
            for batch in batches:
                self._complete(batch, NO_OFFSET)
            return
        node.connection.send(request, ceiling)
        node.requests.append(batches)

    # -- responses ------------------------------------------------------------------------------

    def _receive(self, node: _NodeConnection) -> None:
        address = next(a for a, other in self._nodes.items() if other is node)
        try:
            response: ProduceResponse = node.connection.receive()
        except (BrokerUnreachable, BrokerTimeout) as problem:
            self._disconnected(address, problem)
            return
        batches = {batch.topic_partition: batch for batch in node.requests.popleft()}
        for topic in response.responses:
            for answer in topic.partition_responses:
                self._answered(batches.pop(TopicPartition(topic.name, answer.index)), answer)
        assert not batches, "an answer to each batch"

    def _answered(self, batch: OutgoingBatch, answer: PartitionProduceResponse) -> None:
        code = ErrorCode(answer.error_code)
        queue = self._queues[batch.topic_partition]
        if code in _DONE:
            if self._transactional_id is not None and answer.base_offset == NO_OFFSET:
                # A duplicate of which the broker has forgotten the offset, which the commit of the micro-batch needs.
                raise NotDelivered(
                    f"{_place(batch)}: written, but the broker does not return the offset"
                )
            self._complete(batch, answer.base_offset)
            self._failures = 0
        elif code.retriable or (code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.failed):
            # After a failed batch the following ones are out of order.
            self._batches_failed([batch], KafkaError(code, answer.error_message))
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(batch)
        elif self._transactional_id is not None and code in _OF_TRANSACTION:
            raise KafkaError(code, f"{_place(batch)}: {answer.error_message or 'refused'}")
        else:
            raise self._refused(batch, code, answer)

    def _refused(
        self, batch: OutgoingBatch, code: ErrorCode, answer: PartitionProduceResponse
    ) -> NotDelivered:
        places = [error.batch_index for error in answer.record_errors] or range(batch.record_count)
        reasons = [error.batch_index_error_message for error in answer.record_errors]
        reason = next(filter(None, [*reasons, answer.error_message]), "")
        return NotDelivered(
            f"{_place(batch)}: {batch.describe(places)}: {code.name}{f' ({reason})' if reason else ''}"
        )

    def _complete(self, batch: OutgoingBatch, base_offset: int) -> None:
        self._queues[batch.topic_partition].in_flight -= 1
        self.waiting_bytes -= len(batch.data)
        last = base_offset + batch.record_count - 1 if base_offset != NO_OFFSET else NO_OFFSET
        before = self.written.get(batch.topic_partition)
        if before is None:
            self.written[batch.topic_partition] = WrittenRange(
                first_offset=base_offset, last_offset=last, record_count=batch.record_count
            )
        else:
            before.last_offset = max(before.last_offset, last)
            before.record_count += batch.record_count

    # -- errors and retries ---------------------------------------------------------------------

    def _disconnected(self, address: Address, problem: Exception) -> None:
        node = self._nodes.pop(address, None)
        if node is None:
            return
        node.connection.close()
        for batches in node.requests:
            self._batches_failed(batches, problem)

    def _batches_failed(self, batches: list[OutgoingBatch], problem: Exception) -> None:
        settings = self.settings
        for batch in batches:
            queue = self._queues[batch.topic_partition]
            queue.in_flight -= 1
            late = time.monotonic() >= batch.deadline
            if late or batch.attempts > settings.retries:
                option = (
                    f"kafka.delivery.timeout.ms={settings.delivery_timeout_ms}"
                    if late
                    else f"kafka.retries={settings.retries}"
                )
                raise NotDelivered(
                    f"{_place(batch)}: {batch.describe(range(batch.record_count))}: not delivered within "
                    f"{option}; last error: {problem}"
                ) from problem
            queue.failed.append(batch)

    def _split(self, batch: OutgoingBatch) -> None:
        """Replace a batch by parts of it."""
        queue, size_bytes = self._queues[batch.topic_partition], len(batch.data)
        limit = min(self._bytes_max.get(batch.topic, size_bytes), size_bytes // 2)
        self._bytes_max[batch.topic] = limit
        queue.in_flight -= 1
        self.waiting_bytes -= size_bytes
        first = 0
        for data, count in _split(batch.data, limit):
            queue.failed.append(
                OutgoingBatch(
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

    def _retry(self, back: dict[TopicPartition, _PartitionQueue]) -> None:
        """Enqueue failed batches again, in order, for the present leader; none of their partitions' are in flight."""
        # A batch without attempts is a part of a batch that was too large, which needs no backoff and no new leader.
        erroneous = {k: queue for k, queue in back.items() if all(b.attempts for b in queue.failed)}
        if erroneous:
            self._failures += 1
            client = self.settings.client
            pause_ms = client.retry_backoff_ms * 2 ** min(self._failures - 1, 10)
            time.sleep(min(pause_ms, client.retry_backoff_max_ms) / 1_000)
        for key, queue in back.items():
            queue.failed.sort(key=lambda batch: (batch.number, batch.first_record))
            queue.waiting.extendleft(reversed(queue.failed))
            queue.failed.clear()
            if key in erroneous:
                self._find_leader(key, queue)

    def _find_leader(self, key: TopicPartition, queue: _PartitionQueue) -> None:
        """Look up the leader again, until the first batch's deadline."""
        batch = queue.waiting[0]
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


def _place(batch: OutgoingBatch) -> str:
    return f"topic {batch.topic}, partition {batch.partition}"


def _split(data: bytes | bytearray, bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """At least two parts of a batch of about ``bytes_max`` bytes, each with its number of records.

    The records keep their sequences (KIP-98), so the batches that follow stay in order.
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
