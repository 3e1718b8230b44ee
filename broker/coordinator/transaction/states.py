"""Pure: the states of a transaction, and the steps between them.

Rules of this file: numbers and names are Kafka's: the number is in the log, the name is shown to operators. The table
says from which states a state may be reached, as in Kafka's TransactionState; any other step is our own bug, and an
assertion.
"""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """How far a transactional id's transaction is: (number in the log, name)."""

    EMPTY = (0, "Empty")
    """There is a producer, and nothing has been written by it."""
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
    """The transactional id has expired; never in the log, where a tombstone says it."""
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")
    """The epoch is being raised above that of the producer that is to be aborted; never in the log."""

    @property
    def number(self) -> int:
        """What stands for the state in the log."""
        return self.value[0]

    @property
    def shown(self) -> str:
        """What operators are shown."""
        return self.value[1]

    @property
    def is_decided(self) -> bool:
        """Whether markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_in_log(self) -> bool:
        """Whether records say this; the others are passed through in memory only."""
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
