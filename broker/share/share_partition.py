"""Pure: a partition as one share group sees it (KIP-932): which records are available, delivered, or done with.

- Records from the start offset up to the next offset lie in runs of one state, without holes. What a reload finds no
  state of was delivered by a leader before and never acknowledged: it is available.
- An acknowledgement changes nothing before its state is written: until then its records belong to their member still,
  but nobody can acknowledge them again, and no lock expires. If the write fails they are as before.
- A record that is rejected, or that is released or whose lock expires after the last delivery that is allowed, is
  archived. In a group with a dead-letter topic it is archiving until it has been written there (KIP-1191).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.share_fetch import AcknowledgementBatch, AcquiredRecords
from kafka_ds.protocol.messages.share_state import StateBatch

NO_MEMBER = ""
NO_WRITE = -1


class RecordState(IntEnum):
    """The states of a record, by Kafka's numbers."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is never delivered again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class AcknowledgeType(IntEnum):
    """What a member says of a record; a gap is an offset without one."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


# A rejected record is undeliverable.
_BECOMES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
}


class FetchedBatch(NamedTuple):
    """The offsets of a record batch that was read; the last one belongs to it."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionConfig:
    """The group's settings; `lock_ms` is how long a member has a record to itself."""

    lock_ms: int
    delivery_count_limit: int
    record_locks_max: int
    may_renew: bool = True
    has_dead_letter_topic: bool = False

    @property
    def undeliverable(self) -> RecordState:
        """What a record becomes that must not be delivered again though nobody has accepted it."""
        return RecordState.ARCHIVING if self.has_dead_letter_topic else RecordState.ARCHIVED

    def alone(self, delivery_count: int, batch_size: int) -> int:
        """How many records that failed so often are delivered, and nothing with them; 0: all, with others.

        From half of the allowed deliveries on one of them may be what its members fail at: each time it is half as
        many of those that came into flight with them, and the last time one.
        """
        limit = max(2, -(-self.delivery_count_limit // 2))
        if delivery_count < limit:
            return 0
        is_last = delivery_count == self.delivery_count_limit - 1 > 1
        return 1 if is_last else max(1, batch_size >> (delivery_count - limit + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireLimits:
    """`records_max` may be exceeded up to the end of a batch, but not if it is strict (KIP-1206)."""

    records_max: int
    batch_size: int
    is_strict: bool = False


class DeadLetters(NamedTuple):
    """Neighbouring records that go to the dead-letter topic; both offsets belong to them."""

    first: int
    last: int
    delivery_count: int
    is_rejected: bool


class StateWrite(NamedTuple):
    """What has to be written; `number` is given back with the outcome."""

    number: int
    batches: list[StateBatch]


class _Records:
    """Neighbouring records in one state; both offsets belong to it."""

    __slots__ = (
        "batch_size",
        "becomes",
        "delivery_count",
        "first",
        "is_rejected",
        "last",
        "lock_ends_ms",
        "member_id",
        "state",
        "write",
    )

    def __init__(self, first: int, last: int, state: RecordState, delivery_count: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        # How many came into flight together, of which these are left.
        self.batch_size = last - first + 1
        # By a member; a reload does not know.
        self.is_rejected = False
        self.member_id = NO_MEMBER
        # By the monotonic clock, while acquired.
        self.lock_ends_ms = 0
        # The write that is under way, and the state once it has succeeded.
        self.write = NO_WRITE
        self.becomes = state

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE

    @property
    def is_acquired(self) -> bool:
        return self.state is RecordState.ACQUIRED and self.write == NO_WRITE

    @property
    def is_complete(self) -> bool:
        """Whether the record is done with, or will be once that is written."""
        return (self.state if self.write == NO_WRITE else self.becomes).is_terminal

    def split_at(self, first: int) -> _Records:
        """Give the records from there on to another run."""
        rest = _Records(first, self.last, self.state, self.delivery_count)
        rest.member_id, rest.lock_ends_ms = self.member_id, self.lock_ends_ms
        rest.write, rest.becomes = self.write, self.becomes
        rest.is_rejected, rest.batch_size = self.is_rejected, self.batch_size
        self.last = first - 1
        return rest

    def is_like(self, other: _Records) -> bool:
        return (
            (self.state, self.delivery_count, self.member_id, self.write)
            == (other.state, other.delivery_count, other.member_id, other.write)
            and (self.becomes, self.is_rejected) == (other.becomes, other.is_rejected)
            and self.lock_ends_ms == other.lock_ends_ms
            and (self.state.is_terminal or self.batch_size == other.batch_size)
        )

    def as_batch(self, state: RecordState) -> StateBatch:
        return StateBatch(
            first_offset=self.first,
            last_offset=self.last,
            delivery_state=state,
            delivery_count=self.delivery_count,
        )

    def free(self, state: RecordState) -> None:
        """Take the lock away."""
        self.state = self.becomes = state
        self.member_id, self.lock_ends_ms, self.write = NO_MEMBER, 0, NO_WRITE
        self.is_rejected = self.is_rejected and state is RecordState.ARCHIVING


class SharePartition:
    """The records in flight of one share partition."""

    def __init__(
        self, start_offset: int, batches: Iterable[StateBatch] = (), *, state_epoch: int = 0
    ) -> None:
        """`batches` are what the share coordinator has, in order and not overlapping."""
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        # The first offset that was never delivered to this group.
        self.next_offset = start_offset
        self._runs: list[_Records] = []
        self._last_write = NO_WRITE
        for each in batches:
            first = max(each.first_offset, start_offset)
            if each.last_offset < self.next_offset:
                continue
            self._append(first, RecordState.AVAILABLE, 0)
            self._append(
                each.last_offset + 1, RecordState(each.delivery_state), each.delivery_count
            )
        self._advance_start()

    # -- what there is ------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many records are delivered, or wait to be delivered again."""
        return self.next_offset - self.start_offset

    @property
    def delivery_complete_count(self) -> int:
        """How many records from the start offset on are done with, or will be once that is written (KIP-1226)."""
        return sum(len(run) for run in self._runs if run.is_complete)

    def next_fetch_offset(self) -> int:
        """The first offset that can be acquired."""
        return next((run.first for run in self._runs if run.is_available), self.next_offset)

    def can_acquire(self, config: SharePartitionConfig) -> bool:
        """Whether a fetch could give anything: released records, or new ones within the limit of locks."""
        if self.next_fetch_offset() < self.next_offset:
            return True
        return self.in_flight < config.record_locks_max

    def next_lock_end_ms(self) -> int | None:
        """When the first lock expires, by the monotonic clock."""
        return min((run.lock_ends_ms for run in self._runs if run.is_acquired), default=None)

    def __iter__(self) -> Iterator[tuple[int, int, RecordState, int]]:
        """First and last offset, state and delivery count of each run."""
        return iter([(run.first, run.last, run.state, run.delivery_count) for run in self._runs])

    # -- delivery -----------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[FetchedBatch],
        *,
        fetch_offset: int,
        limits: AcquireLimits,
        config: SharePartitionConfig,
        now_ms: int,
    ) -> list[AcquiredRecords]:
        """Give a member the records that are available among those that were read from `fetch_offset` on."""
        if not fetched or fetched[-1].last < self.start_offset:
            return []
        first, last = fetched[0].first, fetched[-1].last
        # Nothing is left between the offset and the first batch: the log was compacted.
        for run in self._between(fetch_offset, first - 1):
            if run.is_available:
                run.free(RecordState.ARCHIVED)
        acquired: list[AcquiredRecords] = []
        left = limits.records_max
        for run in self._available(first, last):
            if left <= 0:
                break
            alone = config.alone(run.delivery_count, run.batch_size)
            if alone and acquired:
                left = 0
                break
            if alone or limits.is_strict:
                self._split(run.first + (min(alone, left) if alone else left))
            self._lock(run, member_id, config, now_ms)
            left = 0 if alone else left - len(run)
            _join(acquired, run.first, run.last, run.delivery_count)
        if left > 0 and last >= self.next_offset:
            room = min(left, config.record_locks_max - self.in_flight)
            for begin, end in self._new(fetched, room, limits):
                self._append(end + 1, RecordState.AVAILABLE, 0)
                run = self._runs[-1]
                self._lock(run, member_id, config, now_ms)
                acquired.append(_acquired(begin, end, run.delivery_count))
        self._advance_start()
        return acquired

    def archive(self, batches: Iterable[FetchedBatch], member_id: str) -> None:
        """These records, which the member has just acquired, are never to be delivered: they were aborted."""
        for batch in batches:
            for run in self._between(batch.first, batch.last):
                if run.is_acquired and run.member_id == member_id:
                    run.free(RecordState.ARCHIVED)
        self._advance_start()

    def _available(self, first: int, last: int) -> Iterator[_Records]:
        self._split(first)
        self._split(last + 1)
        index = self._index(first)
        while index < len(self._runs) and self._runs[index].first <= last:
            if self._runs[index].is_available:
                yield self._runs[index]
            index += 1

    def _new(
        self, fetched: Sequence[FetchedBatch], room: int, limits: AcquireLimits
    ) -> Iterator[tuple[int, int]]:
        """The ranges of new records to be acquired, each one a batch of the response."""
        if room <= 0:
            return
        begin = max(self.next_offset, fetched[0].first)
        if begin > self.next_offset:
            self._append(begin, RecordState.ARCHIVED, 0)
        end = begin + room - 1
        if not limits.is_strict:
            end = next((each.last for each in fetched if each.last >= end), fetched[-1].last)
        end = min(end, fetched[-1].last)
        if not limits.is_strict and end - begin >= limits.batch_size:
            for batch in fetched:
                if batch.first <= end and batch.first - begin >= limits.batch_size:
                    yield begin, batch.first - 1
                    begin = batch.first
        yield begin, end

    def _lock(
        self, run: _Records, member_id: str, config: SharePartitionConfig, now_ms: int
    ) -> None:
        run.state = run.becomes = RecordState.ACQUIRED
        run.delivery_count += 1
        run.member_id, run.lock_ends_ms = member_id, now_ms + config.lock_ms

    # -- acknowledgements ---------------------------------------------------------------------------

    def acknowledge(
        self,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        *,
        config: SharePartitionConfig,
        now_ms: int,
    ) -> StateWrite | None:
        """Take a member's acknowledgements, all or none; None if nothing has to be written.

        Raises KafkaError INVALID_RECORD_STATE for records that the member does not have, INVALID_REQUEST for offsets
        that were never delivered.
        """
        for batch in batches:
            self._check(member_id, batch, config)
        write = self._begin_write()
        for batch in batches:
            for first, last, kind in _by_type(batch):
                for run in self._between(first, last):
                    if kind is AcknowledgeType.RENEW:
                        run.lock_ends_ms = now_ms + config.lock_ms
                    else:
                        self._change(run, kind, config, write)
        return write if write.batches else None

    def release(self, member_id: str, *, config: SharePartitionConfig) -> StateWrite | None:
        """A member has left: what it has is available again."""
        write = self._begin_write()
        for run in self._runs:
            if run.is_acquired and run.member_id == member_id:
                self._change(run, AcknowledgeType.RELEASE, config, write)
        return write if write.batches else None

    def expire(self, now_ms: int, *, config: SharePartitionConfig) -> StateWrite | None:
        """Locks that have expired are gone at once, whatever becomes of the write."""
        write = self._begin_write()
        for run in self._runs:
            if run.is_acquired and run.lock_ends_ms <= now_ms:
                self._change(run, AcknowledgeType.RELEASE, config, write)
                run.free(run.becomes)
        self._advance_start()
        return write if write.batches else None

    def dead_letters(self, config: SharePartitionConfig) -> list[DeadLetters]:
        """The records that are archiving. What was rejected before a reload is guessed from the delivery count."""
        return [
            DeadLetters(
                run.first,
                run.last,
                run.delivery_count,
                run.is_rejected or run.delivery_count < config.delivery_count_limit,
            )
            for run in self._runs
            if run.state is RecordState.ARCHIVING
        ]

    def archive_dead_letters(self, letters: Iterable[DeadLetters]) -> StateWrite:
        """These are done with at once, whatever becomes of the write: otherwise they would be written there again."""
        write = self._begin_write()
        for each in letters:
            for run in self._between(each.first, each.last):
                if run.state is RecordState.ARCHIVING:
                    run.free(RecordState.ARCHIVED)
                    write.batches.append(run.as_batch(RecordState.ARCHIVED))
        self._advance_start()
        return write

    def written(self, number: int, *, is_done: bool) -> None:
        """A write has ended: its records are what they were to become, or the member's as before."""
        for run in self._runs:
            if run.write == number:
                if is_done:
                    run.free(run.becomes)
                else:
                    run.write, run.becomes = NO_WRITE, run.state
        self._advance_start()

    def log_start_incremented(self, log_start_offset: int) -> None:
        """Records before the log's start are gone, once dead letters are written of those that are archiving."""
        if log_start_offset > self.start_offset:
            self._append(log_start_offset, RecordState.ARCHIVED, 0)
            for run in self._between(self.start_offset, log_start_offset - 1):
                if RecordState.ARCHIVING not in (run.state, run.becomes):
                    run.free(RecordState.ARCHIVED)
            self._advance_start()

    def _check(
        self, member_id: str, batch: AcknowledgementBatch, config: SharePartitionConfig
    ) -> None:
        if batch.last_offset < self.start_offset:
            return
        if batch.last_offset >= self.next_offset:
            message = "Batch record not found. The last offset in request is past acquired records."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if AcknowledgeType.RENEW in batch.acknowledge_types and not config.may_renew:
            message = "Renewing acquisition locks is not enabled for the group."
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
        for run in self._between(batch.first_offset, batch.last_offset):
            if not run.is_acquired:
                message = (
                    "The batch cannot be acknowledged. The batch is not in the acquired state."
                )
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
            if run.member_id != member_id:
                message = "Member is not the owner of batch record"
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)

    def _begin_write(self) -> StateWrite:
        self._last_write += 1
        return StateWrite(self._last_write, [])

    def _change(
        self, run: _Records, kind: AcknowledgeType, config: SharePartitionConfig, write: StateWrite
    ) -> None:
        state = _BECOMES.get(kind, config.undeliverable)
        if state is RecordState.AVAILABLE and run.delivery_count >= config.delivery_count_limit:
            state = config.undeliverable
        run.write, run.becomes = write.number, state
        run.is_rejected = kind is AcknowledgeType.REJECT
        write.batches.append(run.as_batch(state))

    # -- runs ---------------------------------------------------------------------------------------

    def _append(self, end: int, state: RecordState, delivery_count: int) -> None:
        """Records up to `end`, which does not belong to them, are in flight now."""
        if end > self.next_offset:
            self._runs.append(_Records(self.next_offset, end - 1, state, delivery_count))
            self.next_offset = end

    def _index(self, offset: int) -> int:
        """The run that begins there or later."""
        return bisect_right(self._runs, offset - 1, key=lambda run: run.first)

    def _split(self, offset: int) -> None:
        """Have a run begin there, if the offset is within one."""
        index = self._index(offset)
        if index and self._runs[index - 1].last >= offset:
            self._runs.insert(index, self._runs[index - 1].split_at(offset))

    def _between(self, first: int, last: int) -> list[_Records]:
        """Runs of exactly these records, of those that are in flight."""
        if last < first:
            return []
        self._split(first)
        self._split(last + 1)
        return self._runs[self._index(first) : self._index(last + 1)]

    def _advance_start(self) -> None:
        """Forget what is done with at the beginning, and join neighbours that are alike."""
        done = 0
        while done < len(self._runs):
            run = self._runs[done]
            if run.write != NO_WRITE or not run.state.is_terminal:
                break
            done += 1
        del self._runs[:done]
        self.start_offset = self._runs[0].first if self._runs else self.next_offset
        joined: list[_Records] = []
        for run in self._runs:
            if joined and joined[-1].is_like(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self._runs = joined


def _by_type(batch: AcknowledgementBatch) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Ranges of one type each; a batch with one type alone has it for all its records."""
    kinds = [AcknowledgeType(kind) for kind in batch.acknowledge_types]
    if len(kinds) == 1:
        yield batch.first_offset, batch.last_offset, kinds[0]
        return
    begin = 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] is not kinds[begin]:
            yield batch.first_offset + begin, batch.first_offset + index - 1, kinds[begin]
            begin = index


def _acquired(first: int, last: int, delivery_count: int) -> AcquiredRecords:
    return AcquiredRecords(first_offset=first, last_offset=last, delivery_count=delivery_count)


def _join(acquired: list[AcquiredRecords], first: int, last: int, delivery_count: int) -> None:
    before = acquired[-1] if acquired else None
    if before and (before.last_offset, before.delivery_count) == (first - 1, delivery_count):
        before.last_offset = last
    else:
        acquired.append(_acquired(first, last, delivery_count))
