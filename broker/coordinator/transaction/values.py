"""Pure: inputs and outputs of the machine of transactions.

Rules of this file: values only. A transaction is never changed but replaced: `changed` returns the next one and checks
the step against the table of states. What the log does not keep (`last_producer_epoch`) is lost with a coordinator, as
in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from broker.coordinator.transaction.states import VALID_PREVIOUS, TransactionState
from kafka_ds.protocol.topic_partition import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
EPOCH_MAX = 2**15 - 1
# The first and last transaction protocols (KIP-890): the second raises the epoch with every end.
TRANSACTION_VERSION_0 = 0
TRANSACTION_VERSION_2 = 2


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """What is known of a transactional id: one record of `__transaction_state`."""

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
    client_version: int = TRANSACTION_VERSION_0

    def changed(self, state: TransactionState, **changes: Any) -> TransactionMetadata:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The settings of all transactions, under Kafka's names, with its defaults."""

    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    add_partitions_to_txn_retry_backoff_ms: int = 20
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_load_buffer_size: int = 5 * 1024 * 1024
    transaction_state_log_min_isr: int = 2
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_segment_bytes: int = 100 * 1024 * 1024
    is_replication_factor_set: bool = False
