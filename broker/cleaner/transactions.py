"""Pure: what happens to transactions when a log is cleaned.

By KIP-98, and KAFKA-5415 for the markers:
- Data of an aborted transaction goes at once: read_committed consumers never see it.
- A marker stays as long as a batch of its transaction does, even an empty one: otherwise a reader could not tell how
  the transaction ended. Only then may it go, and only after delete.retention.ms, as tombstones do.
- The transaction index of the cleaned log names those aborted transactions whose batches the run met.
- Batches come in the order of their offsets, and only transactional and control batches come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kafka_ds.segments.index import AbortedTxn


class CleanedTransactions:
    """Which transactions are under way at a place of the log."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """`aborted`: all whose batches or markers may be met, from the transaction indexes."""
        self._to_come = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, AbortedTxn] = {}
        self._with_batches: set[int] = set()
        self._committed: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """The aborted transactions that the index of the cleaned segment has to name; for the caller to empty."""

    def data(self, producer_id: int, last_offset: int) -> bool:
        """A batch of a transaction is met; whether its records may go because it was aborted."""
        self._begin_up_to(last_offset)
        if producer_id in self._aborted:
            self._with_batches.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def marker(self, producer_id: int, last_offset: int, *, aborted: bool | None) -> bool:
        """Process a control batch; whether nothing is left of what it ended. None: an unknown type."""
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
