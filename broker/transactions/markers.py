"""Shell: the markers that end a transaction, written into the partitions that this broker leads.

Rules of this file:
- A marker is written when it is below the high watermark; until then the transaction is not complete.
- A partition that exists no more needs no marker. One that cannot take it now will be asked again, for as long as it
  takes: a decision is never given up. Only who was fenced (a newer producer epoch, a newer coordinator) leaves it.
- A marker in `__consumer_offsets` is told to the groups at once: offsets of the transaction count from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.coordinating.topic import Partitions
from broker.groups.placement import TOPIC as OFFSETS_TOPIC
from broker.log.values import AppendOrigin
from broker.seams import Clock
from broker.transactions.values import TopicPartition, Transaction
from kafka_ds.wire.batch import ControlType, end_transaction_marker
from kafka_ds.wire.errors import ErrorCode, KafkaError

# A newer epoch of the producer, or a newer coordinator, has been there: its markers count.
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)

OffsetsMarked = Callable[[int, int, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What is written into each partition of a transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool

    @staticmethod
    def of(decided: Transaction, coordinator_epoch: int) -> Marker:
        """The marker of a decided transaction."""
        return Marker(
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            committed=decided.is_commit,
        )


class MarkerWriter:
    """Writes markers."""

    def __init__(self, partitions: Partitions, clock: Clock, offsets_marked: OffsetsMarked) -> None:
        """`offsets_marked` is told partition, producer id and whether it was a commit."""
        self._partitions = partitions
        self._clock = clock
        self._offsets_marked = offsets_marked

    def write(self, marker: Marker, where: TopicPartition) -> ErrorCode | Awaitable[ErrorCode]:
        """Append a marker; what came of it, once that is committed."""
        try:
            partition = self._partitions.get(where.topic, where.partition)
            batch = end_transaction_marker(
                ControlType.COMMIT if marker.committed else ControlType.ABORT,
                timestamp=self._clock.now_ms(),
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
            )
            info = partition.append(
                memoryview(bytearray(batch)),
                acks=-1,
                now_ms=self._clock.now_ms(),
                origin=AppendOrigin.COORDINATOR,
            )
        except KafkaError as error:
            return error.code
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if where.topic == OFFSETS_TOPIC:
            self._offsets_marked(where.partition, marker.producer_id, marker.committed)
        if partition.is_acknowledged(info.last_offset, -1):
            return ErrorCode.NONE
        return _outcome(partition.acknowledgement(info.last_offset, -1))


async def _outcome(acknowledged: asyncio.Future[None]) -> ErrorCode:
    try:
        await acknowledged
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def is_settled(code: ErrorCode) -> bool:
    """Whether the partition needs no further try."""
    return code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
