"""Pure: with which sequence transactional writes may begin in a partition that does not know their producer (KIP-890).

If the first of several writes is refused for a moment, the ones behind it must not pass: it would be out of order for
good. A client of the second protocol begins each transaction with 0; of others no later sequence than the lowest
that was tried may be the first.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.log.producers import Producers
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import BatchHeader

# Writes that were tried and never came into the log; the oldest are forgotten first.
TRIED_MAX = 1_000


class _Key(NamedTuple):
    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int


class FirstSequences:
    """The lowest sequences that were tried in partitions that do not know their producers."""

    def __init__(self) -> None:
        self._lowest: dict[_Key, int] = {}

    def tried(
        self, topic_id: bytes, partition: int, header: BatchHeader, producers: Producers
    ) -> None:
        """A write has come that may have to wait, or be refused."""
        if producers.get(header.producer_id) is not None:
            return
        key = _Key(topic_id, partition, header.producer_id, header.producer_epoch)
        lowest = self._lowest.get(key, header.base_sequence)
        self._lowest[key] = min(lowest, header.base_sequence)
        if len(self._lowest) > TRIED_MAX:
            del self._lowest[next(iter(self._lowest))]

    def check(
        self,
        topic_id: bytes,
        partition: int,
        header: BatchHeader,
        producers: Producers,
        *,
        begins_with_zero: bool,
    ) -> None:
        """Refuse a write that is about to be appended before an earlier one; raises OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if producers.get(header.producer_id) is not None:
            return  # The log knows what comes next.
        key = _Key(topic_id, partition, header.producer_id, header.producer_epoch)
        expected = 0 if begins_with_zero else self._lowest.get(key, header.base_sequence)
        if header.base_sequence > expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins with sequence {header.base_sequence}, "
                f"expected is {expected}",
            )

    def appended(self, topic_id: bytes, partition: int, header: BatchHeader) -> None:
        """A write is in the log, which knows from now on what comes next."""
        if self._lowest:
            key = _Key(topic_id, partition, header.producer_id, header.producer_epoch)
            self._lowest.pop(key, None)
