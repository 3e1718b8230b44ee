"""Shell: completes committed decisions: a marker in each partition, here or elsewhere, then the completing record.

- A marker counts when it is below the high watermark. A decision is never given up while its coordinator is led here: a
  partition that cannot take its marker is asked again, a deleted one needs none. Otherwise the next leader does it.
- A fenced marker is dropped: there is a newer transaction, or a newer coordinator, which completes this one.
- One of KIP-890's protocol that finds a transaction of its epoch open is late: INVALID_PRODUCER_EPOCH (KIP-1228).
- What can be written at once is written before the answer goes out: the next transaction finds this one complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from broker.coordinator.request_sender import RequestSender, found_in
from broker.coordinator.runtime import CoordinatorContext
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    TRANSACTION_VERSION_2,
    TransactionMetadata,
    WriteMarkers,
)
from broker.metadata.events import NO_LEADER
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.crash_points import CrashPoints
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
            transaction_version=decided.client_version,
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
            indexes = by_marker.setdefault(item.marker, {}).setdefault(item.where.topic, [])
            indexes.append(item.where.partition)
        return WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.committed,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in topics.items()
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


_LOGGER = logging.getLogger(__name__)

MARKER_RETRY_SECONDS = 0.1
# After an internal error, which may repeat.
BEGIN_AGAIN_SECONDS = 1.0
# How many markers are written before other tasks get their turn.
MARKERS_AT_ONCE = 100

MarkerOutcome: TypeAlias = ErrorCode | Awaitable[ErrorCode]
Context: TypeAlias = CoordinatorContext[TransactionCoordinatorShard]


class TransactionMarkerChannelManager:
    """Completes the decided transactions of all coordinators of this broker."""

    def __init__(self, markers: MarkerSender, crash_points: CrashPoints) -> None:
        self._markers = markers
        self._crash_points = crash_points
        self._tasks: set[asyncio.Task[None]] = set()
        # What decided transactions still need, for the metrics.
        self.markers_left = 0
        self.ends_left = 0

    def perform(self, context: Context, effect: WriteMarkers) -> None:
        """Write what can be written at once, and the rest in a task; after an error it starts again."""
        self._crash_points.at("after_prepare")
        try:
            self._write(context, effect.transaction)
        except Exception:
            self._begin_again(context, effect.transaction)
            raise

    def _write(self, context: Context, decided: TransactionMetadata) -> None:
        if not context.is_active:
            return
        marker = TxnMarkerEntry.of(decided, context.coordinator_epoch)
        listed = sorted(decided.partitions)
        outcomes = self._write_some(marker, listed[:MARKERS_AT_ONCE])
        left = listed[MARKERS_AT_ONCE:]
        if left or any(code is not ErrorCode.NONE for code in outcomes.values()):
            work = self._write_all(context, decided, marker, outcomes, left)
            self._begin(context, decided, work)
        else:
            self._complete(context, decided)

    def stop(self) -> None:
        """Write nothing more."""
        for task in tuple(self._tasks):
            task.cancel()

    def _begin(
        self, context: Context, decided: TransactionMetadata, work: Coroutine[Any, Any, None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, context, decided))

    def _ended(
        self, context: Context, decided: TransactionMetadata, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        where, error = context.partition.log.name, task.exception()
        _LOGGER.error("%s: internal error with %s", where, decided.transactional_id, exc_info=error)
        self._begin_again(context, decided)

    def _begin_again(self, context: Context, decided: TransactionMetadata) -> None:
        """Only this broker completes it, until another one leads the coordinator's partition."""

        async def again() -> None:
            await asyncio.sleep(BEGIN_AGAIN_SECONDS)
            self._write(context, decided)

        if context.is_active:
            self._begin(context, decided, again())

    def _write_some(
        self, marker: TxnMarkerEntry, listed: Iterable[TopicPartition]
    ) -> dict[TopicPartition, MarkerOutcome]:
        outcomes: dict[TopicPartition, MarkerOutcome] = {}
        for where in listed:
            outcome = self._markers.write(marker, where)
            if not isinstance(outcome, ErrorCode):
                outcome = asyncio.ensure_future(outcome)
            outcomes[where] = outcome
            self._crash_points.at("after_marker")
        return outcomes

    async def _write_all(
        self,
        context: Context,
        decided: TransactionMetadata,
        marker: TxnMarkerEntry,
        outcomes: dict[TopicPartition, MarkerOutcome],
        left: list[TopicPartition],
    ) -> None:
        """Ask every partition until it has its marker; then the transaction is complete."""
        while True:
            await asyncio.sleep(0)
            while left and context.is_active:
                outcomes |= self._write_some(marker, left[:MARKERS_AT_ONCE])
                left = left[MARKERS_AT_ONCE:]
                await asyncio.sleep(0)
            for where, outcome in outcomes.items():
                code = outcome if isinstance(outcome, ErrorCode) else await outcome
                if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    # Another broker coordinates this: it has loaded the decision, and completes it.
                    self._fenced(decided, where, code)
                    return
                if code in FENCED:
                    self._fenced(decided, where, code)
                elif not is_settled(code):
                    left.append(where)
            if not left or not context.is_active:
                break
            outcomes = {}
            await self._wait_with(left)
        self._complete(context, decided)

    async def _wait_with(self, left: list[TopicPartition]) -> None:
        self.markers_left += len(left)
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.markers_left -= len(left)

    def _fenced(self, decided: TransactionMetadata, where: TopicPartition, code: ErrorCode) -> None:
        """A newer producer or coordinator has ended this there: nothing is left to do for this partition."""
        _LOGGER.warning("%s in %s-%d: %s", decided.transactional_id, *where, code.name)

    def _complete(
        self, context: Context, decided: TransactionMetadata, *, is_again: bool = False
    ) -> None:
        self._crash_points.at("after_markers")
        error = context.run(lambda shard, now_ms: shard.markers_written(decided, now_ms))
        if error is not None:
            if not is_again:
                _LOGGER.warning("%s cannot be completed yet: %s", decided.transactional_id, error)
            self._begin(context, decided, self._complete_later(context, decided))

    async def _complete_later(self, context: Context, decided: TransactionMetadata) -> None:
        self.ends_left += 1
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.ends_left -= 1
        self._complete(context, decided, is_again=True)
