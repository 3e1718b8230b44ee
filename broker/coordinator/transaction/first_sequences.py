"""Pure: with which sequence transactional writes may begin in a partition that does not know their producer (KIP-890).

If the first of several writes is refused for a moment, the ones behind it must not pass: they would be out of order for
good. If a client of the second protocol tried first, the first sequence is 0; else it is at most the lowest sequence
that was tried. As Kafka's VerificationStateEntry, it is one entry per producer id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import BatchHeader
from kafka_ds.segments.producers import Producers

# Writes that were tried and never came into the log; the oldest are forgotten first.
TRIED_MAX = 1_000


class _SequenceKey(NamedTuple):
    topic_id: bytes
    partition: int
    producer_id: int


@dataclass(slots=True)
class _VerificationStateEntry:
    """The newest epoch that was tried, its lowest sequence, and whether the first try must begin with 0."""

    epoch: int
    lowest: int
    begins_with_zero: bool


class FirstSequences:
    """The lowest sequences that were tried in partitions that do not know their producers."""

    def __init__(self) -> None:
        self._tried: dict[_SequenceKey, _VerificationStateEntry] = {}

    def tried(
        self,
        topic_id: bytes,
        partition: int,
        header: BatchHeader,
        producers: Producers,
        *,
        begins_with_zero: bool,
    ) -> None:
        """A write has come that may have to wait, or be refused; `begins_with_zero`: by the second protocol."""
        if producers.get(header.producer_id) is not None:
            return
        key = _SequenceKey(topic_id, partition, header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        entry = self._tried.get(key)
        if entry is None:
            self._tried[key] = _VerificationStateEntry(epoch, sequence, begins_with_zero)
            if len(self._tried) > TRIED_MAX:
                del self._tried[next(iter(self._tried))]
        elif epoch > entry.epoch:
            entry.epoch, entry.lowest = epoch, sequence
        elif epoch == entry.epoch:
            entry.lowest = min(entry.lowest, sequence)

    def check(
        self, topic_id: bytes, partition: int, header: BatchHeader, producers: Producers
    ) -> None:
        """Refuse a write that is about to be appended before an earlier one; raises OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if producers.get(header.producer_id) is not None:
            return  # The log knows what comes next.
        entry = self._tried.get(_SequenceKey(topic_id, partition, header.producer_id))
        if entry is None:
            return
        expected = 0 if entry.begins_with_zero else entry.lowest
        if header.base_sequence > expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins with sequence {header.base_sequence}, "
                f"expected is {expected}",
            )

    def appended(self, topic_id: bytes, partition: int, header: BatchHeader) -> None:
        """A write is in the log, which knows from now on what comes next."""
        if self._tried:
            self._tried.pop(_SequenceKey(topic_id, partition, header.producer_id), None)
