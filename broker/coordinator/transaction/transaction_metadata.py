"""Pure: the metadata of a transactional id, its states, and its record in `__transaction_state`.

- Metadata is never changed but replaced: `transition_to` returns the next one and checks the step by Kafka's table.
- Numbers and names of states are Kafka's. The value's version is 1, which Kafka reads since 3.5: with it the previous
  producer id survives a restart. What the log does not keep (`last_producer_epoch`) is lost with a coordinator.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_transactions import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.topic_partition import TopicPartition


class TransactionState(Enum):
    """The state of a transactional id: (number in the log, name)."""

    EMPTY = (0, "Empty")
    """There is a producer, and it has written nothing."""
    ONGOING = (1, "Ongoing")
    """Partitions belong to the transaction, and it has not been decided."""
    PREPARE_COMMIT = (2, "PrepareCommit")
    """Decided, for good: markers are being written."""
    PREPARE_ABORT = (3, "PrepareAbort")
    """Decided, for good: markers are being written."""
    COMPLETE_COMMIT = (4, "CompleteCommit")
    """All markers are written."""
    COMPLETE_ABORT = (5, "CompleteAbort")
    """All markers are written."""
    DEAD = (6, "Dead")
    """The transactional id has expired; never in the log, where a tombstone takes its place."""
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")
    """The epoch is being raised above that of the producer that is to be aborted; never in the log."""

    @property
    def number(self) -> int:
        """The number of the state in the log."""
        return self.value[0]

    @property
    def shown(self) -> str:
        """The state's name for operators."""
        return self.value[1]

    @property
    def is_decided(self) -> bool:
        """Whether markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_in_log(self) -> bool:
        """Whether records have this state; the others are passed through in memory only."""
        return self not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)

    @property
    def may_expire(self) -> bool:
        """Whether a transactional id that is not used may be forgotten."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


_BETWEEN = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)
VALID_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _BETWEEN,
    TransactionState.ONGOING: _BETWEEN | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # An abort may end a transaction that has no partitions yet (KIP-890), so it follows every rest.
    TransactionState.PREPARE_ABORT: _BETWEEN
    | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _BETWEEN,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}
BY_NUMBER = {state.number: state for state in TransactionState}
BY_NAME = {state.shown: state for state in TransactionState}


NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
EPOCH_MAX = 2**15 - 1
# Of a producer with two-phase commit (KIP-939): the form in which Kafka's log says so.
NO_TIMEOUT_MS = 2**31 - 1
# The first and last transaction protocols (KIP-890): the second raises the epoch with every end.
TRANSACTION_VERSION_0 = 0
TRANSACTION_VERSION_2 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The metadata of a transactional id: one record of `__transaction_state`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = TRANSACTION_VERSION_0

    def transition_to(self, state: TransactionState, **changes: Any) -> TransactionMetadata:
        """The transaction in its next state."""
        assert self.state in VALID_PREVIOUS[state], f"{self.state.shown} → {state.shown}"
        return replace(self, state=state, **changes)

    def changed_epoch(self, epoch: int, *, last_epoch: int) -> TransactionMetadata:
        """The same producer with another epoch."""
        return replace(self, producer_epoch=epoch, last_producer_epoch=last_epoch)

    def changed_producer(
        self, producer_id: int, epoch: int, *, last_epoch: int | None = None
    ) -> TransactionMetadata:
        """Another producer id, as the epochs of the one before are used up."""
        return replace(
            self,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=self.last_producer_epoch if last_epoch is None else last_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give; the last one is kept for fencing."""
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def is_commit(self) -> bool:
        """Whether the transaction was decided to be a commit."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether this epoch must not be raised for a producer any more."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """To be done once the decision is committed: a marker into each partition of the transaction."""

    transaction: TransactionMetadata

    @property
    def key(self) -> str:
        """Whose it is."""
        return self.transaction.transactional_id


class TransactionRecord(NamedTuple):
    """One record of `__transaction_state`; without a transaction it is a tombstone."""

    transactional_id: str
    transaction: TransactionMetadata | None


VALUE_VERSION = 1


def encode_record(
    transactional_id: str, transaction: TransactionMetadata | None
) -> tuple[bytes, bytes | None]:
    """Key and value of a transactional id's record; without a transaction it is a tombstone."""
    key = encode_key(TransactionLogKey(transactional_id=transactional_id))
    if transaction is None:
        return key, None
    partitions = None
    if transaction.state is not TransactionState.EMPTY:
        partitions = [
            PartitionsSchema(topic=topic, partition_ids=numbers)
            for topic, numbers in by_topic(transaction.partitions).items()
        ]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_transaction_version,
    )
    return key, encode_value(value, VALUE_VERSION)


def decode_record(key: bytes, value: bytes | None) -> tuple[str, TransactionMetadata | None] | None:
    """The metadata in a record; None for one of another type. Raises MalformedFrame."""
    known = decode_key(key)
    if known is None:
        return None
    if value is None:
        return known.transactional_id, None
    found = decode_value(value)
    state = BY_NUMBER.get(found.transaction_status)
    if state is None:
        raise MalformedFrame(f"transaction status {found.transaction_status} is not known")
    transaction = TransactionMetadata(
        transactional_id=known.transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        updated_ms=found.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in found.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        started_ms=found.transaction_start_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        client_transaction_version=found.client_transaction_version,
    )
    return known.transactional_id, transaction


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Partitions under their topics, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        found[topic].append(partition)
    return found
