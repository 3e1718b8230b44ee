"""Pure: the share partitions of one partition of `__share_group_state`: all decisions (KIP-932).

- A share partition has a state only from the request of its group's coordinator that initializes it until the one that
  deletes it. Leaders of a lower leader epoch are fenced, and writes of a lower state epoch.
- A snapshot record begins the state, and follows so many updates. Records before the oldest last snapshot are of no
  use: at intervals the log's start moves there, and a share partition at rest gets a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from broker.config.broker import BrokerConfig
from broker.coordinator.result import CoordinatorResult, Instant, Ticket
from broker.coordinator.share.share_group_offset import (
    NO_COUNT,
    NO_OFFSET,
    ShareGroupOffset,
    combine,
)
from broker.coordinator.share_partition_key import SharePartitionKey
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted_share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareStateKey,
    ShareStateValue,
    ShareUpdateKey,
    ShareUpdateValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.messages.share_state import (
    DeleteStatePartition,
    InitializeStatePartition,
    ReadStatePartition,
    ReadStatePartitionResult,
    ReadStateSummaryPartitionResult,
    StatePartitionResult,
    WriteStatePartition,
)
from kafka_ds.records.batch import BatchHeader, read_records

# Kafka's defaults of share.coordinator.state.topic.prune.interval.ms and of
# share.coordinator.cold.partition.snapshot.interval.ms, settings that it keeps to itself.
PRUNE_INTERVAL_MS = 300_000
COLD_PARTITION_SNAPSHOT_INTERVAL_MS = 300_000

# What is asked of the shard: one of its methods, called with the time.
ShareStateOperation: TypeAlias = Callable[["ShareCoordinatorShard", int], CoordinatorResult]
ShareStateRecord: TypeAlias = tuple[ShareStateKey, ShareStateValue | None]


@dataclass(frozen=True, slots=True)
class PruneLog:
    """Effect: records below this offset are of no use."""

    offset: int

    @property
    def key(self) -> str:
        """For log lines."""
        return f"pruning up to offset {self.offset}"


class ShareCoordinatorShard:
    """The share partitions of one partition's keys."""

    def __init__(self, settings: BrokerConfig, image: MetadataImage) -> None:
        """`image` is the published one."""
        self._settings = settings
        self._image = image
        self._states: dict[SharePartitionKey, ShareGroupOffset] = {}
        # Since the last snapshot, whose offset is here, too.
        self._updates: dict[SharePartitionKey, int] = {}
        self._snapshot_offsets: dict[SharePartitionKey, int] = {}
        self._end_offset = self._pruned_to = 0
        self._due_ms = 0

    # -- the log ------------------------------------------------------------------------------------

    def replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        """Replay a batch of the log; returns the number of records. Raises CorruptRecord or MalformedFrame."""
        records = [] if header.is_control else read_records(data, position, header)
        for record in records:
            key = decode_key(record.key or b"")
            if key is not None:
                value = None if record.value is None else decode_value(key, record.value)
                self.replay(key, value, record_offset=record.offset)
        return len(records)

    def encode(self, record: ShareStateRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        key, value = record
        return encode_key(key), None if value is None else encode_value(value)

    def replay(
        self,
        key: ShareStateKey,
        value: ShareStateValue | None,
        *,
        record_offset: int,
        producer_id: int = -1,
    ) -> None:
        """A record is in the log; a snapshot without a value is a tombstone."""
        self._end_offset = record_offset + 1
        known = SharePartitionKey(key.group_id, key.topic_id, key.partition)
        if isinstance(value, ShareSnapshotValue):
            self._states[known] = ShareGroupOffset.of_snapshot(value)
            self._snapshot_offsets[known] = record_offset
            self._updates[known] = 0
        elif isinstance(value, ShareUpdateValue):
            # Without a snapshot it was deleted: the log's start has moved into the midst of its records.
            if known in self._states:
                self._states[known] = self._states[known].merge(value)
                self._updates[known] += 1
        elif isinstance(key, ShareSnapshotKey):
            for kept in (self._states, self._snapshot_offsets, self._updates):
                kept.pop(known, None)

    def loaded(self, now: Instant) -> CoordinatorResult:
        """The whole log has been replayed."""
        self._due_ms = now.monotonic_ms + PRUNE_INTERVAL_MS
        return CoordinatorResult()

    def handle(self, event: ShareStateOperation, ticket: Ticket, now: Instant) -> CoordinatorResult:
        """Decide the outcome of a request; raises KafkaError."""
        return event(self, now.now_ms)

    def written(
        self, result: CoordinatorResult, code: ErrorCode | None, now: Instant
    ) -> CoordinatorResult | None:
        """Nothing follows, whether the records could be appended or not."""
        return None

    def __iter__(self) -> Iterator[tuple[SharePartitionKey, ShareGroupOffset]]:
        return iter(tuple(self._states.items()))

    @property
    def is_empty(self) -> bool:
        """Whether there is no state."""
        return not self._states

    @property
    def pruned_to(self) -> int:
        """The offset up to which the log was last pruned, or 0."""
        return self._pruned_to

    # -- requests -----------------------------------------------------------------------------------

    def initialize_state(
        self, key: SharePartitionKey, wanted: InitializeStatePartition, now_ms: int
    ) -> CoordinatorResult:
        """Begin a state; what a state of no higher epoch had is forgotten."""
        _check_no_negative(partition_id=key.partition, state_epoch=wanted.state_epoch)
        self._check_partition(key)
        state = self._states.get(key)
        if state is not None:
            _check_state_epoch(state, wanted.state_epoch)
        begun = ShareGroupOffset(
            snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
            state_epoch=wanted.state_epoch,
            leader_epoch=0 if state is None else state.leader_epoch,
            start_offset=wanted.start_offset,
            delivery_complete_count=0 if wanted.start_offset != NO_OFFSET else NO_COUNT,
            created_ms=now_ms,
            written_ms=now_ms,
            batches=(),
        )
        return CoordinatorResult(
            records=(_snapshot(key, begun),),
            response=StatePartitionResult(partition=key.partition),
        )

    def read_state(
        self, key: SharePartitionKey, wanted: ReadStatePartition, now_ms: int
    ) -> CoordinatorResult:
        """The state. A leader of a new epoch is written down first, so that the one before is fenced."""
        _check_no_negative(partition_id=key.partition, leader_epoch=wanted.leader_epoch)
        state = self._known(key, "Read")
        _check_leader_epoch(state, wanted.leader_epoch)
        self._check_partition(key)
        response = ReadStatePartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=list(state.batches),
        )
        if wanted.leader_epoch == state.leader_epoch:
            return CoordinatorResult(response=response)
        claimed = WriteStatePartition(
            partition=key.partition,
            state_epoch=state.state_epoch,
            leader_epoch=wanted.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            state_batches=[],
        )
        return CoordinatorResult(records=(self._record(key, claimed, now_ms),), response=response)

    def write_state(
        self, key: SharePartitionKey, wanted: WriteStatePartition, now_ms: int
    ) -> CoordinatorResult:
        """Write what has changed."""
        _check_no_negative(
            partition_id=key.partition,
            leader_epoch=wanted.leader_epoch,
            state_epoch=wanted.state_epoch,
        )
        state = self._known(key, "Write")
        _check_leader_epoch(state, wanted.leader_epoch)
        _check_state_epoch(state, wanted.state_epoch)
        self._check_partition(key)
        return CoordinatorResult(
            records=(self._record(key, wanted, now_ms),),
            response=StatePartitionResult(partition=key.partition),
        )

    def delete_state(
        self, key: SharePartitionKey, wanted: DeleteStatePartition, now_ms: int
    ) -> CoordinatorResult:
        """Forget a state, if there is one."""
        _check_no_negative(partition_id=key.partition)
        self._check_partition(key)
        return CoordinatorResult(
            records=(_tombstone(key),) if key in self._states else (),
            response=StatePartitionResult(partition=key.partition),
        )

    def read_state_summary(
        self, key: SharePartitionKey, wanted: ReadStatePartition, now_ms: int
    ) -> CoordinatorResult:
        """The epochs and offsets of a state, which need not exist."""
        _check_no_negative(partition_id=key.partition)
        self._check_partition(key)
        state = self._states.get(key)
        if state is None:
            response = ReadStateSummaryPartitionResult(
                partition=key.partition, start_offset=NO_OFFSET
            )
        else:
            response = ReadStateSummaryPartitionResult(
                partition=key.partition,
                state_epoch=state.state_epoch,
                leader_epoch=state.leader_epoch,
                start_offset=state.start_offset,
                delivery_complete_count=state.delivery_complete_count,
            )
        return CoordinatorResult(response=response)

    def forget_topics(self, topic_ids: Iterable[bytes], now_ms: int) -> CoordinatorResult:
        """Topics were deleted."""
        deleted = frozenset(topic_ids)
        return CoordinatorResult(
            records=tuple(_tombstone(key) for key in self._states if key.topic_id in deleted)
        )

    def _record(
        self, key: SharePartitionKey, wanted: WriteStatePartition, now_ms: int
    ) -> ShareStateRecord:
        """An update, or the snapshot that replaces the updates before."""
        state = self._states[key]
        count = wanted.delivery_complete_count
        # A write that comes late takes nothing back (Kafka 4.4).
        if wanted.start_offset < state.start_offset:
            count = state.delivery_complete_count
        elif wanted.start_offset == state.start_offset:
            count = max(count, state.delivery_complete_count)
        start_offset = max(wanted.start_offset, state.start_offset)
        update = ShareUpdateValue(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=wanted.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=count,
            state_batches=list(combine(wanted.state_batches, start_offset)),
        )
        limit = self._settings.share_coordinator_snapshot_update_records_per_snapshot
        if self._updates[key] < limit:
            named = ShareUpdateKey(
                group_id=key.group_id, topic_id=key.topic_id, partition=key.partition
            )
            return named, update
        merged = state.merge(update)
        return _snapshot(
            key,
            replace(
                merged,
                snapshot_epoch=state.snapshot_epoch + 1,
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )

    def _known(self, key: SharePartitionKey, operation: str) -> ShareGroupOffset:
        state = self._states.get(key)
        if state is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return state

    def _check_partition(self, key: SharePartitionKey) -> None:
        topic = self._image.topics_by_id.get(key.topic_id)
        if topic is None or key.partition not in topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # -- time ---------------------------------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When, by the monotonic clock, `tick` has something to do."""
        return self._due_ms

    def tick(self, now: Instant) -> CoordinatorResult | None:
        """Write snapshots of share partitions at rest, and have the log pruned up to the oldest last snapshot.

        Topics that were deleted while no coordinator heard of it are forgotten.
        """
        if now.monotonic_ms < self._due_ms:
            return None
        self._due_ms = now.monotonic_ms + PRUNE_INTERVAL_MS
        redundant = min(self._snapshot_offsets.values(), default=self._end_offset)
        effects = (PruneLog(redundant),) if redundant > self._pruned_to else ()
        self._pruned_to = redundant
        gone = {key.topic_id for key in self._states} - self._image.topics_by_id.keys()
        forgotten = self.forget_topics(gone, now.now_ms).records
        return CoordinatorResult(
            records=(*self._cold_snapshots(now.now_ms), *forgotten), effects=effects
        )

    def _cold_snapshots(self, now_ms: int) -> Iterator[ShareStateRecord]:
        """Snapshots of states at rest, unless all are at rest already: they would only follow each other."""
        if all(state.created_ms != state.written_ms for state in self._states.values()):
            return
        for key, state in self._states.items():
            if now_ms - state.written_ms >= COLD_PARTITION_SNAPSHOT_INTERVAL_MS:
                epoch = state.snapshot_epoch + 1
                yield _snapshot(key, replace(state, snapshot_epoch=epoch, written_ms=now_ms))


def _check_no_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            text = f"The {name.replace('_', ' ')} cannot be a negative number."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _check_leader_epoch(state: ShareGroupOffset, leader_epoch: int) -> None:
    if leader_epoch < state.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)


def _check_state_epoch(state: ShareGroupOffset, state_epoch: int) -> None:
    if state_epoch < state.state_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)


def _snapshot(key: SharePartitionKey, state: ShareGroupOffset) -> ShareStateRecord:
    return _snapshot_key(key), state.snapshot()


def _tombstone(key: SharePartitionKey) -> ShareStateRecord:
    return _snapshot_key(key), None


def _snapshot_key(key: SharePartitionKey) -> ShareSnapshotKey:
    return ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
