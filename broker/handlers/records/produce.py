"""Shell: Produce 3-13: batches into logs.

- Each partition of a request succeeds or fails by itself; it has one batch of magic 2.
- acks=0 has no answer, 1 is answered when the leader has the batch, -1 when all in-sync replicas have it; anything else
  is INVALID_REQUIRED_ACKS. With acks=0 an error closes the connection, as in Kafka: a client can see nothing else.
- acks=-1 with fewer in-sync replicas than min.insync.replicas (or than all replicas, if there are fewer):
  NOT_ENOUGH_REPLICAS, and nothing is written; NOT_ENOUGH_REPLICAS_AFTER_APPEND if they became too few after the append.
- The answer comes at once, unless flush.messages demands an fsync, replicas have to follow, or the topic is diskless:
  then acks=1 and -1 wait until the lake has the batch, and NOT_ENOUGH_REPLICAS says that too much waits for the store.
  It comes within the request's timeout, or is REQUEST_TIMED_OUT; the event loop is not blocked.
- A duplicate of an idempotent producer is answered with the first one's offset (the last five batches are known).
- The records fit their batch's header, or it is INVALID_RECORD; compressed ones are decompressed for that. If records
  lack a key (compaction) or have a time that is not allowed (message.timestamp.before.max.ms, .after.max.ms), their
  batch is INVALID_RECORD or, for one wrong time, INVALID_TIMESTAMP, and record_errors names them.
- Threads validate and recompress (compression.type) what takes long before it is appended, in order for each
  partition. Where too much waits for them: NOT_ENOUGH_REPLICAS, on which clients try again.
- Errors of the log: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
  UNSUPPORTED_FOR_MESSAGE_FORMAT, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR.
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID. No topic is created here:
  Metadata does that.

Versions: 0-2 are advertised for old librdkafka and answered with UNSUPPORTED_VERSION (KAFKA-18659, KIP-896);
5 log_start_offset; 7 zstd, before it UNSUPPORTED_COMPRESSION_TYPE (KIP-110); 8 record_errors and error_message
(KIP-467); 9 flexible; 10 the current leader with NOT_LEADER_OR_FOLLOWER (KIP-951); 11-12 transactions (KIP-890);
13 topic ids (KIP-516).
Transactional batches belong to an open transaction: up to version 11 their partition must have been added to it
(INVALID_TXN_STATE, in 11 TRANSACTION_ABORTABLE), from 12 on the write adds it. In a partition that does not know their
producer they begin with sequence 0 (12 on), or the lowest that was tried; OUT_OF_ORDER_SEQUENCE_NUMBER.
Left out: record_errors beyond the first thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, NamedTuple

from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.add_partitions_to_txn_manager import (
    PendingVerification,
    support_of,
)
from broker.handlers.common import LEADERSHIP_ERRORS, endpoints_of, leader_of
from broker.log.validation import TakesLong
from broker.log.values import AppendInfo
from broker.metadata.topic_names import INTERNAL_TOPICS
from broker.registry import RequestContext, serves
from broker.replica.leader.batch_preparer import BatchPreparer
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.protocol.errors import ErrorCode, KafkaError, RecordsRefused
from kafka_ds.protocol.messages import ProduceRequest, ProduceResponse
from kafka_ds.protocol.messages.data import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceResponse,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
)

FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_THAT_JOINS = 12
ADMIN_CLIENT = "__admin_client"
# The low byte of the attributes, which holds codec and kind.
_KIND_POSITION = ATTRIBUTES_POSITION + 1


class ProducePartitionStatus(NamedTuple):
    """The outcome of one partition's batches, and what their answer waits for."""

    response: PartitionProduceResponse
    done: asyncio.Future[None]


@serves(ProduceRequest, versions="3-13", advertised="0-13", pipelined=True)
def produce(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | None | Awaitable[ProduceResponse | None]:
    """Append each batch to its partition."""
    acks = request.acks
    if acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    broker = context.broker
    by_id = context.header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    append = Appender(broker.replica_manager, context, acks, request.transactional_id)
    responses = []
    for topic in request.topic_data:
        name: str | None = topic.name
        if by_id:
            known = broker.metadata.topics_by_id.get(topic.topic_id)
            name = known.name if known is not None else None
        responses.append(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[append(name, data) for data in topic.partition_data],
            )
        )
    response = ProduceResponse(responses=responses)
    if append.failed is not None:
        _name_leaders(response, context)
        if acks == 0:
            raise _untraced(append.failed)
    if append.unacknowledged:
        return _delayed_produce(response, append, request.timeout_ms, context)
    return response if acks else None


class Appender:
    """Appends the batches of one request."""

    __slots__ = (
        "_context",
        "_now_ms",
        "_preparer",
        "_replicas",
        "_transactional_id",
        "acks",
        "failed",
        "unacknowledged",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        context: RequestContext,
        acks: int,
        transactional_id: str | None,
    ) -> None:
        self._transactional_id = transactional_id
        self._replicas = replicas
        self._preparer: BatchPreparer = context.broker.preparer
        self._context = context
        self.acks = acks
        self._now_ms = context.broker.clock.now_ms()
        self.failed: KafkaError | None = None
        self.unacknowledged: list[ProducePartitionStatus] = []

    def __call__(self, topic: str | None, data: PartitionProduceData) -> PartitionProduceResponse:
        """Append one batch, or refuse it."""
        partition: LeaderPartition | None = None
        try:
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            partition = self._replicas.get(topic, data.index)
            records = data.records
            if records is None or len(records) < HEADER_BYTES:
                raise KafkaError(ErrorCode.INVALID_RECORD, _NO_BATCH)
            kind = records[_KIND_POSITION]
            if kind & (TRANSACTIONAL_FLAG | CODEC_MASK) or topic in INTERNAL_TOPICS:
                self._check_unusual(topic, kind)
            if self._preparer.must_wait(partition, records):
                return self._append_later(partition, records)
            pending = self.join_transaction(partition, records)
            if pending is not None:
                return self._append_later(partition, records, pending)
            info = self.append_now(partition, records)
        except TakesLong:
            assert partition is not None, "it was to append"
            return self._append_later(partition, records)
        except KafkaError as error:
            self.failed = _untraced(error)
            if partition is not None:
                partition.counters.refused(len(data.records or b""), error)
            return _refused(data.index, error, partition)
        response = PartitionProduceResponse(
            index=data.index,
            base_offset=info.first_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
        if self.acks and not partition.is_acknowledged(info.last_offset, self.acks):
            done = partition.acknowledgement(info.last_offset, self.acks)
            self.unacknowledged.append(ProducePartitionStatus(response, done))
        return response

    def _append_later(
        self,
        partition: LeaderPartition,
        records: memoryview,
        pending: PendingVerification | None = None,
    ) -> PartitionProduceResponse:
        """Append one batch when its transaction has admitted it, or it is prepared; the response is filled in then."""
        # When the request has timed out its memory is used for another one, while the batch may count yet.
        records = memoryview(bytearray(records))
        later = _DeferredAppend(self, partition, len(records))
        self.unacknowledged.append(ProducePartitionStatus(later.response, later.done))
        if pending is not None:
            pending.then(partial(later.append, records, is_prepared=False), later.refuse)
        else:
            self.prepare(partition, records, later)
        return later.response

    def prepare(
        self, partition: LeaderPartition, records: memoryview, later: _DeferredAppend
    ) -> None:
        """Prepare one batch in a thread, and continue then."""
        self._preparer.submit(
            partition, records, self._now_ms, append=later.prepared, refuse=later.refuse
        )

    def append_late(
        self, partition: LeaderPartition, records: memoryview, *, is_prepared: bool
    ) -> AppendInfo:
        """Append a batch that had to wait; raises KafkaError, or TakesLong."""
        if self._replicas.get(partition.topic, partition.partition) is not partition:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # A new topic of the same name.
        if not is_prepared and self._preparer.must_wait(partition, records):
            raise TakesLong  # One that waited for the same answer does, and must not be overtaken.
        return self.append_now(partition, records, is_prepared=is_prepared)

    def append_now(
        self, partition: LeaderPartition, records: memoryview, *, is_prepared: bool = False
    ) -> AppendInfo:
        """Append a batch that waits for nothing; raises KafkaError, or TakesLong."""
        if records[_KIND_POSITION] & TRANSACTIONAL_FLAG:
            return self._append_in_transaction(partition, records, is_prepared=is_prepared)
        return partition.append(
            records, acks=self.acks, now_ms=self._now_ms, is_prepared=is_prepared
        )

    def _check_unusual(self, topic: str, kind: int) -> None:
        """Refuse a batch for reasons outside of it."""
        header = self._context.header
        if kind & CODEC_MASK == Codec.ZSTD and header.api_version < FIRST_VERSION_WITH_ZSTD:
            message = f"Produce requests with version {header.api_version} are not allowed to use ZStandard"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if topic in INTERNAL_TOPICS and header.client_id != ADMIN_CLIENT:
            message = f"Cannot append to internal topic {topic}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)

    def join_transaction(
        self, partition: LeaderPartition, records: Any
    ) -> PendingVerification | None:
        """Refuse a write outside of its producer's open transaction; since version 12 it joins by writing (KIP-890).

        None: it belongs to none, or may be appended now; else when this has been answered.
        """
        if not records[_KIND_POSITION] & TRANSACTIONAL_FLAG:
            return None
        if self._transactional_id is None:
            message = "a transactional batch without a transactional id"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
        header = BatchHeader._make(HEADER.unpack_from(records))
        add_partitions_to_txn, log = (
            self._context.broker.transactions.add_partitions_to_txn,
            partition.log,
        )
        version = self._context.header.api_version
        add_partitions_to_txn.first_sequences.tried(
            partition.topic_id,
            partition.partition,
            header,
            log.producers,
            begins_with_zero=version >= FIRST_VERSION_THAT_JOINS,
        )
        return add_partitions_to_txn.join(
            partition,
            self._transactional_id,
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            support_of(version, FIRST_VERSION_THAT_JOINS),
        )

    def _append_in_transaction(
        self, partition: LeaderPartition, records: memoryview, *, is_prepared: bool = False
    ) -> AppendInfo:
        """Append a transactional batch, unless it would overtake its producer's first one in this partition (KIP-890).

        Raises KafkaError.
        """
        firsts = self._context.broker.transactions.add_partitions_to_txn.first_sequences
        header = BatchHeader._make(HEADER.unpack_from(records))
        topic_id, number = partition.topic_id, partition.partition
        firsts.check(topic_id, number, header, partition.log.producers)
        info = partition.append(
            records, acks=self.acks, now_ms=self._now_ms, is_prepared=is_prepared
        )
        firsts.appended(topic_id, number, header)
        return info


class _DeferredAppend:
    """A batch that is appended, or refused, later."""

    __slots__ = ("_appender", "_partition", "_size", "done", "response")

    def __init__(self, appender: Appender, partition: LeaderPartition, size: int) -> None:
        self._appender = appender
        self._partition = partition
        self._size = size
        self.response = PartitionProduceResponse(index=partition.partition, base_offset=-1)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve_exception)

    def refuse(self, error: KafkaError) -> None:
        error = error.with_traceback(None)
        self._appender.failed = _untraced(error)
        self._partition.counters.refused(self._size, error)
        refused = _refused(self._partition.partition, error, self._partition)
        self.response.log_start_offset = refused.log_start_offset
        self.response.record_errors = refused.record_errors
        if not self.done.done():
            self.done.set_exception(error)

    def prepared(self, records: memoryview) -> None:
        """The batch is prepared; it may have to join its transaction yet."""
        try:
            pending = self._appender.join_transaction(self._partition, records)
        except KafkaError as error:
            self.refuse(error)
            return
        if pending is None:
            self.append(records, is_prepared=True)
        else:
            pending.then(partial(self.append, records, is_prepared=True), self.refuse)

    def append(self, records: memoryview, *, is_prepared: bool) -> None:
        appender, partition, response = self._appender, self._partition, self.response
        try:
            info = appender.append_late(partition, records, is_prepared=is_prepared)
        except TakesLong:
            appender.prepare(partition, records, self)
            return
        except KafkaError as error:
            self.refuse(error)
            return
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time_ms
        response.log_start_offset = info.log_start_offset
        if appender.acks and not partition.is_acknowledged(info.last_offset, appender.acks):
            acknowledged = partition.acknowledgement(info.last_offset, appender.acks)
            acknowledged.add_done_callback(partial(_pass_on, self.done))
        elif not self.done.done():
            self.done.set_result(None)


_NO_BATCH = "a produced partition holds exactly one record batch"
# The log has validated the batch: Kafka then returns the log start with the error, so that clients see what expired.
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def _untraced(error: KafkaError) -> KafkaError:
    """The same without its traceback, for whoever keeps it: a traceback keeps its frames and so the request, 100 MiB at
    most.

    An exception kept by a frame of its own traceback stays until garbage is collected.
    """
    return KafkaError(error.code, error.message)


def _refused(
    partition: int, error: KafkaError, led: LeaderPartition | None = None
) -> PartitionProduceResponse:
    response = refusal(PartitionProduceResponse, partition, error.code, error.message)
    if led is not None and error.code not in _WITHOUT_LOG_START:
        response.log_start_offset = led.log.log_start_offset
    if isinstance(error, RecordsRefused):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=message)
            for place, message in error.records.items()
        ]
    return response


def _name_leaders(response: ProduceResponse, context: RequestContext) -> None:
    """Send clients that asked the wrong broker to the leader."""
    image = context.broker.metadata
    leaders = []
    for topic in response.responses:
        name = topic.name
        if topic.topic_id != NO_UUID:
            known = image.topics_by_id.get(topic.topic_id)
            name = known.name if known is not None else ""
        for partition in topic.partition_responses:
            if partition.error_code in LEADERSHIP_ERRORS:
                partition.current_leader = leader_of(image, name, partition.index)
                if partition.current_leader is not None:
                    leaders.append(partition.current_leader)
    if leaders:
        response.node_endpoints = endpoints_of(image, context.listener, leaders)


def _pass_on(done: asyncio.Future[None], acknowledged: asyncio.Future[None]) -> None:
    """Answer requests that wait for an append's acknowledgement."""
    if done.done():
        return
    error = None if acknowledged.cancelled() else acknowledged.exception()
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """The produce request may have been cancelled: then its result is ignored."""
    if not done.cancelled():
        done.exception()


async def _delayed_produce(
    response: ProduceResponse, append: Appender, timeout_ms: int, context: RequestContext
) -> ProduceResponse | None:
    """Wait until every append counts, or is known not to."""
    waiting = append.unacknowledged
    await asyncio.wait([each.done for each in waiting], timeout=max(timeout_ms, 0) / 1000)
    if not append.acks:
        if append.failed is not None:
            raise _untraced(append.failed)
        return None
    for refused, done in waiting:
        error: BaseException | None
        if done.done():
            error = done.exception()
        else:
            done.cancel()
            error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        if isinstance(error, KafkaError):
            refused.error_code = error.code
            refused.error_message = error.message
            refused.base_offset = -1
    if append.failed is not None:
        _name_leaders(response, context)
    return response
