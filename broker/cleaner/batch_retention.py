"""Shell: the retention of whole batches, before their records are compared with the key table.

As in Kafka's `Cleaner` (KIP-98, KIP-534) most batches have no flags, and each of their records is checked. A batch is
retained even if empty if it is an active producer's last data batch (it has the last sequence) or the last one of the
cleaned part (it marks the end). A producer's last record that is a marker is retained, as its epoch fences. It is a
shell only because of numpy arrays; it does no I/O.
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
    """For each batch, whether its keys are ignored: control batches and aborted batches."""
    rows = buffer.rows
    marks = np.zeros(len(rows), np.uint8)
    last_offsets = buffer.last_offsets
    for index in _transactional(rows):
        row = rows[index]
        if int(row[decoder.ATTRIBUTES]) & CONTROL_FLAG:
            _ends_empty_transaction(buffer, row, int(last_offsets[index]), transactions)
            marks[index] = 1
        else:
            producer_id = int(row[decoder.PRODUCER_ID])
            marks[index] = transactions.data(producer_id, int(last_offsets[index]))
    return marks


def _transactional(rows: NDArray[np.int64]) -> list[int]:
    kinds = rows[:, decoder.ATTRIBUTES] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)
    found: list[int] = np.flatnonzero(kinds).tolist()
    return found


def _ends_empty_transaction(
    buffer: ReadBuffer, row: Any, last_offset: int, transactions: CleanedTransactions
) -> bool:
    """Whether no batch remains of the transaction that a control batch ended."""
    if not row[decoder.RECORD_COUNT]:
        return True  # It was retained only for the producer's epoch.
    start = int(row[decoder.POSITION])
    batch = buffer.data[start : start + int(row[decoder.SIZE])].tobytes()
    try:
        aborted: bool | None = read_marker(batch, read_header(batch)).aborted
    except CorruptRecord:
        aborted = None
    return transactions.marker(int(row[decoder.PRODUCER_ID]), last_offset, aborted=aborted)


class BatchRetention:
    """Computes the retention flags of batches; they must come in offset order."""

    def __init__(
        self,
        transactions: CleanedTransactions,
        last_records: Sequence[LastRecord],
        *,
        end_offset: int,
        now_ms: int,
    ) -> None:
        """`end_offset` is the end of the cleaned part."""
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
        """The retention flags (of `kafka_ds.records.compaction`) of each batch."""
        rows, last_offsets = buffer.rows, buffer.last_offsets
        flags = np.zeros(len(rows), np.uint8)
        flags[last_offsets + 1 == self._end_offset] |= compaction.RETAIN_EMPTY
        for index in self._last_of_producers(rows, last_offsets):
            if self._last_data[int(last_offsets[index])] == rows[index, decoder.PRODUCER_ID]:
                flags[index] |= compaction.RETAIN_EMPTY
        for index in _transactional(rows):
            flags[index] |= self._of_transaction(buffer, rows[index], int(last_offsets[index]))
        return flags

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
        flag = 0
        if _ends_empty_transaction(buffer, row, last_offset, self._transactions):
            flag = compaction.EMPTY_TRANSACTION
            horizon_ms = int(row[decoder.BASE_TIMESTAMP])
            if attributes & DELETE_HORIZON_FLAG and horizon_ms <= self._now_ms:
                flag |= compaction.DISCARD
        if self._fencing_epochs.get(producer_id) == int(row[decoder.PRODUCER_EPOCH]):
            flag |= compaction.RETAIN_EMPTY
        return flag
