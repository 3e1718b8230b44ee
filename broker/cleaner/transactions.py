"""Pure: transactions during log cleaning, by KIP-98 and, for markers, KAFKA-5415.

- Data of aborted transactions is removed at once: read_committed consumers never see it.
- A marker stays as long as a batch of its transaction does, even an empty one, as it tells how the transaction ended.
  After that it is removed after delete.retention.ms, like a tombstone.
- The transaction index of a cleaned segment lists the aborted transactions of which batches remain.
- Only transactional and control batches are passed, in offset order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kafka_ds.segments.index import AbortedTxn


class CleanedTransactions:
    """The open transactions at the current offset."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """`aborted` are the entries of the transaction indexes of the cleaned range."""
        self._to_come = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, AbortedTxn] = {}
        self._with_batches: set[int] = set()
        self._committed: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """The entries for the cleaned segment's transaction index; the caller clears it."""

    def data(self, producer_id: int, last_offset: int) -> bool:
        """Process a transactional batch; whether it is aborted."""
        self._begin_up_to(last_offset)
        if producer_id in self._aborted:
            self._with_batches.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def marker(self, producer_id: int, last_offset: int, *, aborted: bool | None) -> bool:
        """Process a control batch; whether no batch of its transaction remains. `aborted` None: unknown type."""
        self._begin_up_to(last_offset)
        if aborted is None:
            return False
        if not aborted:
            is_empty = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_empty
        ended = self._aborted.pop(producer_id, None)
        if ended is None or producer_id not in self._with_batches:
            return True
        self._with_batches.discard(producer_id)
        self.kept.append(ended)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            entry = self._to_come.popleft()
            self._aborted.setdefault(entry.producer_id, entry)
