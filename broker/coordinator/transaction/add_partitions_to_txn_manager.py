"""Shell: checks before an append that a transactional write belongs to an open transaction (KIP-890).

- If the transaction is open in the log nothing is asked; else its coordinator is, here or by AddPartitionsToTxn. Later
  writes of the same producer wait behind the first.
- No write may arrive after its transaction's marker: a marker that comes meanwhile voids the answer, and while the log
  knows a newer coordinator than the metadata no coordinator is asked. For a client that joins by writing the question
  is repeated once: the marker may be of the transaction before (KAFKA-18575); else it writes again
  (CONCURRENT_TRANSACTIONS).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from broker.config.broker import BrokerConfig
from broker.coordinator.request_sender import RequestSender, found_in
from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.runtime import CoordinatorRuntime
from broker.coordinator.transaction.first_sequences import FirstSequences
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import TRANSACTION_VERSION_2
from broker.metadata.events import NO_LEADER
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kafka_ds.protocol.messages.transactions import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)


class TransactionSupportedOperation(IntEnum):
    """What a client's version supports of KIP-890."""

    NOTHING = 0
    ABORTABLE = 1
    """The error TRANSACTION_ABORTABLE."""
    JOINS = 2
    """That a write joins the transaction."""


def support_of(version: int, first_that_joins: int) -> TransactionSupportedOperation:
    """What a version supports; the one before the first that joins knows the error."""
    if version >= first_that_joins:
        return TransactionSupportedOperation.JOINS
    return (
        TransactionSupportedOperation.ABORTABLE
        if version == first_that_joins - 1
        else TransactionSupportedOperation.NOTHING
    )


# The coordinator cannot answer now, or is behind this broker's metadata: a write that is retried.
_NOT_NOW = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
# How many writes may wait for one answer; a producer has five under way.
WAITING_MAX = 1_000


class TransactionalWriter(NamedTuple):
    """The writer: a transactional id's producer, and its client's support of KIP-890."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    support: TransactionSupportedOperation


@dataclass(frozen=True, slots=True)
class PartitionToVerify:
    """The question whether a partition belongs to a writer's transaction, to another broker."""

    writer: TransactionalWriter
    where: TopicPartition

    @property
    def group(self) -> Hashable:
        """Responses name transactions by their transactional id."""
        return self.writer.transactional_id

    @property
    def content(self) -> Hashable:
        """The transaction, and whether the partition is to be added."""
        return self.writer.producer, self.writer.support is TransactionSupportedOperation.JOINS


class AddPartitionsToTxnRequests:
    """AddPartitionsToTxn between brokers, of many transactions at once."""

    def request(self, items: Sequence[PartitionToVerify]) -> AddPartitionsToTxnRequest:
        """Each transaction with its partitions."""
        by_writer: dict[str, tuple[TransactionalWriter, dict[str, list[int]]]] = {}
        for item in items:
            writer, where = item.writer, item.where
            _, topics = by_writer.setdefault(writer.transactional_id, (writer, {}))
            topics.setdefault(where.topic, []).append(where.partition)
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=writer.transactional_id,
                    producer_id=writer.producer.producer_id,
                    producer_epoch=writer.producer.producer_epoch,
                    verify_only=writer.support is not TransactionSupportedOperation.JOINS,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=partitions)
                        for name, partitions in topics.items()
                    ],
                )
                for writer, topics in by_writer.values()
            ]
        )

    def answers(
        self, items: Sequence[PartitionToVerify], response: AddPartitionsToTxnResponse
    ) -> Iterable[ErrorCode]:
        """The coordinator's answer for each."""
        codes: dict[Hashable, int] = {
            (each.transactional_id, topic.name, partition.partition_index): (
                partition.partition_error_code
            )
            for each in response.results_by_transaction
            for topic in each.topic_results
            for partition in topic.results_by_partition
        }
        # What is not answered may be asked again.
        otherwise = response.error_code or ErrorCode.NETWORK_EXCEPTION
        wanted = ((each.writer.transactional_id, *each.where) for each in items)
        return found_in(codes, wanted, otherwise=otherwise)


class PendingVerification:
    """A question whose answer writes wait for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], None], Callable[[KafkaError], None]]] = []
        # Whether a marker came to the partition meanwhile.
        self.is_over = False

    def then(self, passed: Callable[[], None], refused: Callable[[KafkaError], None]) -> None:
        """Call one of these when the answer is there, after those that came before."""
        if len(self._waiting) >= WAITING_MAX:
            message = "too many writes wait for a coordinator"
            refused(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message))
        else:
            self._waiting.append((passed, refused))

    async def before(self, do: Callable[[], Any]) -> Any:
        """Runs `do` when it may be done, in the turn of the answer, and returns its result; raises KafkaError."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def passed() -> None:
            try:
                given = do()
            except KafkaError as error:
                refused(error)
            else:
                if not answer.done():
                    answer.set_result(given)

        def refused(error: KafkaError) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.then(passed, refused)
        given = await answer
        return await given if isinstance(given, Awaitable) else given

    def answered(self, error: KafkaError | None) -> None:
        """Let all pass, or none."""
        for passed, refused in self._waiting:
            if error is not None:
                refused(error)
                continue
            try:
                passed()
            except Exception:  # The others must be answered all the same, or they wait for ever.
                _LOGGER.exception(
                    "internal error while appending a write that has waited for its transaction"
                )
                refused(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))


class AddPartitionsToTxnManager:
    """Asks coordinators, here and elsewhere, whether writes belong to transactions."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionCoordinatorShard],
        sender: RequestSender[PartitionToVerify],
        node_id: int,
        settings: BrokerConfig,
    ) -> None:
        self._runtime = runtime
        self._sender = sender
        self._node_id = node_id
        self._backoff_s = settings.add_partitions_to_txn_retry_backoff_ms / 1000
        self._patience_s = settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        self.pending: dict[tuple[LeaderPartition, ProducerIdAndEpoch], PendingVerification] = {}
        self.first_sequences = FirstSequences()

    def join(
        self,
        partition: LeaderPartition,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        support: TransactionSupportedOperation,
    ) -> PendingVerification | None:
        """Let a write pass that belongs to its producer's open transaction: now (None), or when it is known.

        Raises KafkaError for others.
        """
        pending = self.pending.get((partition, producer)) if self.pending else None
        if pending is not None:
            return pending
        if partition.log.producers.is_in_transaction(*producer):
            return None
        writer = TransactionalWriter(transactional_id, producer, support)
        try:
            answer = self.verify(partition, writer)
        except KafkaError as error:
            raise KafkaError(_code_for_client(error.code, support), error.message) from None
        if answer is None:
            return None
        pending = self.pending[partition, producer] = PendingVerification()
        if support is TransactionSupportedOperation.JOINS:
            answer = self._patiently(partition, writer, pending, answer)
        task = asyncio.ensure_future(answer)
        task.add_done_callback(partial(self._answered, partition, writer, pending))
        return pending

    async def _patiently(
        self,
        partition: LeaderPartition,
        writer: TransactionalWriter,
        pending: PendingVerification,
        answer: Awaitable[object],
    ) -> ErrorCode:
        """The coordinator's answer, the last one if it is asked again; raises KafkaError for others."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        while True:
            code = await _code_in(answer)
            is_ending = code is ErrorCode.CONCURRENT_TRANSACTIONS
            is_in_doubt = code is ErrorCode.NONE and pending.is_over
            if not (is_ending or is_in_doubt) or partition.is_lost or loop.time() >= until:
                return code
            if is_ending:
                await asyncio.sleep(self._backoff_s)
            pending.is_over = False
            again = self.verify(partition, writer)
            if again is None:
                return ErrorCode.NONE
            answer = again

    def marked(self, where: LeaderPartition, producer_id: int) -> None:
        """A marker ends the producer's transaction there."""
        for (partition, producer), pending in self.pending.items():
            if partition is where and producer.producer_id == producer_id:
                pending.is_over = True

    def _check_epoch(self, partition: LeaderPartition, writer: TransactionalWriter) -> None:
        found = partition.log.producers.get(writer.producer.producer_id)
        if found is None:
            return
        epoch = self._runtime.leader_epoch_of(writer.transactional_id)
        if epoch < found.coordinator_epoch:
            message = "another broker coordinates the transaction by now"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def verify(
        self, partition: LeaderPartition, writer: TransactionalWriter
    ) -> Awaitable[object] | None:
        """Ask the coordinator whether the partition belongs to the transaction; None if it is known to.

        What is returned will have an error code, or raise KafkaError as this does.
        """
        self._check_epoch(partition, writer)
        where = TopicPartition(partition.topic, partition.partition)
        leader = self._runtime.leader_of(writer.transactional_id)
        if leader not in (self._node_id, NO_LEADER):
            return self._sender.send(leader, PartitionToVerify(writer, where))
        transactional_id, producer = writer.transactional_id, writer.producer
        context = self._runtime.context_of(transactional_id)
        if writer.support is not TransactionSupportedOperation.JOINS:
            known = context.submit(lambda shard, _: shard.verify(transactional_id, producer, where))
            return known if isinstance(known, Awaitable) else None
        try:
            answer = context.submit(
                lambda shard, now_ms: shard.add_partitions(
                    transactional_id,
                    producer,
                    [where],
                    now_ms=now_ms,
                    client_transaction_version=TRANSACTION_VERSION_2,
                )
            )
        except KafkaError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            return _at_once(error.code)
        return answer if isinstance(answer, Awaitable) else None

    def _answered(
        self,
        partition: LeaderPartition,
        writer: TransactionalWriter,
        pending: PendingVerification,
        answer: asyncio.Future[object],
    ) -> None:
        del self.pending[partition, writer.producer]
        pending.answered(self.result_of(partition, writer, pending, answer))

    def result_of(
        self,
        partition: LeaderPartition,
        writer: TransactionalWriter,
        pending: PendingVerification,
        answer: asyncio.Future[object],
    ) -> KafkaError | None:
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION)
        if not answer.cancelled():
            raised = answer.exception()
            if isinstance(raised, KafkaError):
                error = raised
            elif raised is None:
                error = KafkaError(_code(answer.result()))
            else:
                _LOGGER.error("internal error while verifying transactions", exc_info=raised)
        if error.code is not ErrorCode.NONE:
            return KafkaError(_code_for_client(error.code, writer.support), error.message)
        if partition.is_lost:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if pending.is_over and writer.support is TransactionSupportedOperation.JOINS:
            message = "a transaction has ended meanwhile, this one or the one before"
            return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        if pending.is_over:
            message = "the transaction has ended meanwhile"
            return KafkaError(
                _code_for_client(ErrorCode.TRANSACTION_ABORTABLE, writer.support), message
            )
        return None


def _code(answer: object) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else ErrorCode.NONE


async def _code_in(answer: Awaitable[object]) -> ErrorCode:
    try:
        return _code(await answer)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        return error.code


async def _at_once(code: ErrorCode) -> ErrorCode:
    return code


def _code_for_client(code: ErrorCode, support: TransactionSupportedOperation) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupportedOperation.NOTHING:
        return ErrorCode.INVALID_TXN_STATE
    if code in _NOT_NOW:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if (
        code is ErrorCode.CONCURRENT_TRANSACTIONS
        and support is not TransactionSupportedOperation.JOINS
    ):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
