"""Shell: decides about each batch as a whole, before its records are looked at.

As in Kafka's `Cleaner` (KIP-98, KIP-534) most batches have no orders: their records are judged one by one. Only
batches of transactions, markers, last batches of active producers and the last batch of the cleaned part are handled
here. The last data batch of a producer that is still active stays, even if it becomes empty: it has the producer's last
sequence. If a producer's last record is a marker, the marker stays: it has the epoch, which fences. The last batch of
the cleaned part stays, even if it becomes empty, so that the end of that part is known. It is a shell only because of
its numpy arrays; nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.cleaner.read_buffers import ReadBuffer
from broker.cleaner.rpc import NO_OFFSET, LastRecord
from broker.cleaner.transactions import CleanedTransactions
from kafka_ds.records import compaction, decoder
from kafka_ds.records.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    TRANSACTIONAL_FLAG,
    CorruptRecord,
    read_header,
)
from kafka_ds.records.marker import read_marker


def skipped(buffer: ReadBuffer, transactions: CleanedTransactions) -> NDArray[np.uint8]:
    """Of each batch whether its keys do not count: it is a control batch, or aborted."""
    rows = buffer.rows
    marks = np.zeros(len(rows), np.uint8)
    last_offsets = buffer.last_offsets
    for index in _unusual(rows):
        row = rows[index]
        if int(row[decoder.ATTRIBUTES]) & CONTROL_FLAG:
            _is_marker_of_nothing(buffer, row, int(last_offsets[index]), transactions)
            marks[index] = 1
        else:
            producer_id = int(row[decoder.PRODUCER_ID])
            marks[index] = transactions.data(producer_id, int(last_offsets[index]))
    return marks


def _unusual(rows: NDArray[np.int64]) -> list[int]:
    kinds = rows[:, decoder.ATTRIBUTES] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)
    found: list[int] = np.flatnonzero(kinds).tolist()
    return found


def _is_marker_of_nothing(
    buffer: ReadBuffer, row: Any, last_offset: int, transactions: CleanedTransactions
) -> bool:
    """Whether nothing is left of the transaction that a control batch ended."""
    if not row[decoder.RECORD_COUNT]:
        return True  # It was kept for its producer's epoch alone.
    start = int(row[decoder.POSITION])
    batch = buffer.data[start : start + int(row[decoder.SIZE])].tobytes()
    try:
        aborted: bool | None = read_marker(batch, read_header(batch)).aborted
    except CorruptRecord:
        aborted = None
    return transactions.marker(int(row[decoder.PRODUCER_ID]), last_offset, aborted=aborted)


class BatchRetention:
    """Gives each batch its orders, in the order of offsets."""

    def __init__(
        self,
        transactions: CleanedTransactions,
        last_records: Sequence[LastRecord],
        *,
        end_offset: int,
        now_ms: int,
    ) -> None:
        """`end_offset`: where the part ends that is being cleaned."""
        self._transactions = transactions
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._last_data = {
            record.last_data_offset: record.producer_id
            for record in last_records
            if record.last_data_offset != NO_OFFSET
        }
        self._last_data_offsets = np.array(sorted(self._last_data), np.int64)
        self._fencing_epochs = {
            record.producer_id: record.producer_epoch
            for record in last_records
            if record.last_data_offset == NO_OFFSET
        }

    def of(self, buffer: ReadBuffer) -> NDArray[np.uint8]:
        """Bits of `compacting` for each batch."""
        rows, last_offsets = buffer.rows, buffer.last_offsets
        orders = np.zeros(len(rows), np.uint8)
        orders[last_offsets + 1 == self._end_offset] |= compaction.RETAIN_EMPTY
        for index in self._last_of_producers(rows, last_offsets):
            if self._last_data[int(last_offsets[index])] == rows[index, decoder.PRODUCER_ID]:
                orders[index] |= compaction.RETAIN_EMPTY
        for index in _unusual(rows):
            orders[index] |= self._of_transaction(buffer, rows[index], int(last_offsets[index]))
        return orders

    def _last_of_producers(
        self, rows: NDArray[np.int64], last_offsets: NDArray[np.int64]
    ) -> list[int]:
        if not len(self._last_data_offsets):
            return []
        places = np.searchsorted(self._last_data_offsets, last_offsets)
        places[places == len(self._last_data_offsets)] = 0
        is_last = self._last_data_offsets[places] == last_offsets
        found: list[int] = np.flatnonzero(is_last & (rows[:, decoder.PRODUCER_ID] >= 0)).tolist()
        return found

    def _of_transaction(self, buffer: ReadBuffer, row: Any, last_offset: int) -> int:
        producer_id, attributes = int(row[decoder.PRODUCER_ID]), int(row[decoder.ATTRIBUTES])
        if not attributes & CONTROL_FLAG:
            is_aborted = self._transactions.data(producer_id, last_offset)
            return compaction.DISCARD if is_aborted else 0
        order = 0
        if _is_marker_of_nothing(buffer, row, last_offset, self._transactions):
            order = compaction.EMPTY_TRANSACTION
            horizon_ms = int(row[decoder.BASE_TIMESTAMP])
            if attributes & DELETE_HORIZON_FLAG and horizon_ms <= self._now_ms:
                order |= compaction.DISCARD
        if self._fencing_epochs.get(producer_id) == int(row[decoder.PRODUCER_EPOCH]):
            order |= compaction.RETAIN_EMPTY
        return order
