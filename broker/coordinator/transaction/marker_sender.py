"""Shell: writes transaction markers, here or where their partitions are led.

- A marker counts when it is below the high watermark.
- A fenced marker is dropped: there is a newer transaction, or a newer coordinator, which completes this one.
- One of KIP-890's protocol that finds a transaction of its epoch open is late: INVALID_PRODUCER_EPOCH (KIP-1228).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from broker.coordinator.request_sender import RequestSender, found_in
from broker.coordinator.transaction.transaction_metadata import (
    TRANSACTION_VERSION_2,
    TransactionMetadata,
)
from broker.metadata.events import NO_LEADER
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka_ds.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import ControlType, end_transaction_marker
from kafka_ds.segments.producers import AppendOrigin

# The partition has seen a newer epoch of the producer: this transaction is over.
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})

# The groups of a partition take a transaction's end: partition, producer id, whether it commits.
CompleteTransaction = Callable[[int, int, bool], None]
Marked = Callable[[LeaderPartition, int], None]
MarkerOutcome: TypeAlias = ErrorCode | Awaitable[ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnMarkerEntry:
    """What is written into each partition of a transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int

    @staticmethod
    def of(decided: TransactionMetadata, coordinator_epoch: int) -> TxnMarkerEntry:
        """The marker of a decided transaction."""
        return TxnMarkerEntry(
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            committed=decided.is_commit,
            transaction_version=decided.client_transaction_version,
        )


class MarkerWriter:
    """Writes markers into partitions that are led here."""

    def __init__(
        self,
        partitions: ReplicaManager,
        clock: Clock,
        complete_transaction: CompleteTransaction,
        marked: Marked,
    ) -> None:
        """`complete_transaction` is for markers in `__consumer_offsets`, `marked` for every marker."""
        self._partitions = partitions
        self._clock = clock
        self._complete_transaction = complete_transaction
        self._marked = marked

    def write(
        self, marker: TxnMarkerEntry, where: TopicPartition
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """Append a marker; returns its outcome, once that is committed."""
        try:
            partition = self._partitions.get(where.topic, where.partition)
            _check_late(marker, partition)
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
        self._marked(partition, marker.producer_id)
        if where.topic == GROUP_METADATA_TOPIC_NAME:
            self._complete_transaction(where.partition, marker.producer_id, marker.committed)
        if partition.is_acknowledged(info.last_offset, -1):
            return ErrorCode.NONE
        return _outcome(partition.acknowledgement(info.last_offset, -1))


def _check_late(marker: TxnMarkerEntry, partition: LeaderPartition) -> None:
    if marker.transaction_version < TRANSACTION_VERSION_2:
        return
    if partition.log.producers.is_in_transaction(marker.producer_id, marker.producer_epoch):
        message = f"producer {marker.producer_id} has begun another transaction since"
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)


async def _outcome(acknowledged: asyncio.Future[None]) -> ErrorCode:
    try:
        await acknowledged
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PendingMarker:
    """A marker for a partition that another broker leads."""

    marker: TxnMarkerEntry
    where: TopicPartition

    @property
    def group(self) -> Hashable:
        """Responses name markers by their producer."""
        return self.marker.producer_id

    @property
    def content(self) -> Hashable:
        """Identifies the marker."""
        return self.marker


class WriteTxnMarkersRequests:
    """WriteTxnMarkers to one broker, of many transactions at once."""

    def request(self, items: Sequence[PendingMarker]) -> WriteTxnMarkersRequest:
        """Each marker with its partitions."""
        by_marker: dict[TxnMarkerEntry, dict[str, list[int]]] = {}
        for item in items:
            partitions = by_marker.setdefault(item.marker, {}).setdefault(item.where.topic, [])
            partitions.append(item.where.partition)
        return WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.committed,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=partitions)
                        for name, partitions in topics.items()
                    ],
                )
                for marker, topics in by_marker.items()
            ]
        )

    def answers(
        self, items: Sequence[PendingMarker], response: WriteTxnMarkersResponse
    ) -> Iterable[ErrorCode]:
        """The outcome of each; a missing one is unknown, and asked again."""
        codes: dict[Hashable, int] = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        wanted = ((each.marker.producer_id, *each.where) for each in items)
        return found_in(codes, wanted, otherwise=ErrorCode.UNKNOWN_SERVER_ERROR)


class MarkerSender:
    """Writes markers wherever their partitions are led now."""

    def __init__(
        self,
        here: MarkerWriter,
        sender: RequestSender[PendingMarker],
        image: MetadataImage,
        node_id: int,
    ) -> None:
        """`image` is the published one."""
        self._here = here
        self._sender = sender
        self._image = image
        self._node_id = node_id

    def write(
        self, marker: TxnMarkerEntry, where: TopicPartition
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """Have a marker written; returns its outcome, once that is committed."""
        partition = self._image.partition(where.topic, where.partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.leader == self._node_id:
            return self._here.write(marker, where)
        if partition.leader == NO_LEADER:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return self._written_elsewhere(
            self._sender.send(partition.leader, PendingMarker(marker, where))
        )

    async def _written_elsewhere(self, answer: Awaitable[ErrorCode]) -> ErrorCode:
        code = await answer
        # Only this broker's metadata decide whether the partition exists: the other one's may be older.
        is_unknown = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_unknown else code


def is_settled(code: ErrorCode) -> bool:
    """Whether the partition needs no further try."""
    return code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
