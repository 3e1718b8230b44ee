"""Shell: one partition's coordinator at work: requests and time in, records into the log, answers out.

Rules of this file:
- An event runs from the machine's decision to the end of its consequences without yielding: decide, append, replay,
  report. The machine decides what a failed append means; clients get one of Kafka's coordinator errors for it.
- No answer goes out before everything that was appended up to its event is below the high watermark. An answer that
  waits longer than offsets.commit.timeout.ms becomes COORDINATOR_NOT_AVAILABLE: the client asks again.
- `broker.coordinating.lead` refuses requests while the log is read and after the leadership.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker.coordinating.lead import Lead
from broker.coordinating.loads import Loads, State
from broker.groups.consumer.topology import Topology
from broker.groups.loading import replay_batch
from broker.groups.records import encode_record
from broker.groups.shard import GroupShard, Request, TopicsDeleted
from broker.groups.state import Count
from broker.groups.values import (
    NO_PRODUCER_ID,
    Client,
    CoordinatorRecord,
    Downgrading,
    GroupSettings,
    Instant,
    Producer,
    RemovingGroups,
    Reply,
    Result,
    Storing,
    StoringAssignment,
    Ticket,
    Upgrading,
)
from broker.replica.leader.hosted import HostedPartition
from broker.seams import Clock
from kafka_ds.wire.batch import NO_PRODUCER_EPOCH, Record, build_batch
from kafka_ds.wire.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

# How many deadlines are dealt with, and how many records written for them, before others get their turn.
TICKS_AT_ONCE = 20
TICKED_RECORDS_MAX = 500
# Room for what stands around a record's key and value in a batch.
RECORD_OVERHEAD_BYTES = 40

_NOBODY: Ticket = -1
_OURSELVES = Client("", "", 0)


class Uncommitted(NamedTuple):
    """An answer that must wait until an offset is committed, but not for ever."""

    offset: int
    deadline_ms: int
    reply: Reply


class ShardRunner:
    """The coordinator of one partition of `__consumer_offsets`, for as long as it is led here."""

    def __init__(
        self,
        partition: HostedPartition,
        settings: GroupSettings,
        *,
        clock: Clock,
        loads: Loads,
        new_id: Callable[[], str],
        topology: Topology | None = None,
        counts: Counter[Count] | None = None,
    ) -> None:
        self.partition = partition
        self.lead = Lead(
            partition,
            clock=clock,
            loads=loads,
            load_bytes=settings.offsets_load_buffer_size,
        )
        self.shard = GroupShard(settings, new_id, topology, counts)
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Topics that went while the log was being read.
        self._deleted: list[tuple[str, bytes]] = []
        self._next_ticket = 0
        # Who waits; None while the request is still being handled.
        self._open: dict[Ticket, asyncio.Future[Any] | None] = {}
        self._at_once: Any = _NOT_YET
        self._uncommitted: deque[Uncommitted] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether requests are taken."""
        return self.lead.state is State.ACTIVE

    @property
    def is_closed(self) -> bool:
        """Whether this coordinator will never take a request again."""
        return self.lead.state is State.CLOSED

    # -- beginning and ending -----------------------------------------------------------------------

    def start(self) -> None:
        """Read the log; one without records is read at once."""
        self.partition.watch(self)
        self.lead.begin(partial(replay_batch, self.shard), self._loaded)

    def _loaded(self) -> None:
        self._perform(self.shard.loaded(self._now()), None)
        if self._deleted:
            self.topics_deleted(self._deleted)
        self._arm()

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Take nothing more, and tell all who wait."""
        self.lead.end()
        self.partition.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._uncommitted.clear()
        for ticket in tuple(self._open):
            self._answer(Reply(ticket, KafkaError(code)))

    # -- events -------------------------------------------------------------------------------------

    def submit(self, request: Request, client: Client) -> Any:
        """The response, or a future that will have it; raises KafkaError."""
        self.lead.check()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._open[ticket] = None
        self._at_once = _NOT_YET
        try:
            self._perform(self.shard.handle(request, client, ticket, self._now()), ticket)
        except BaseException:
            self._open.pop(ticket, None)
            raise
        finally:
            self._arm()
        if self._at_once is _NOT_YET:
            future = self._open[ticket] = self._loop.create_future()
            return future
        if isinstance(self._at_once, KafkaError):
            raise self._at_once
        return self._at_once

    def topics_deleted(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Forget the offsets of topics that are gone."""
        if self.lead.state is State.LOADING:
            self._deleted.extend(topics)
        elif self.is_active:
            request = TopicsDeleted(topics=tuple(topics))
            self._perform(self.shard.handle(request, _OURSELVES, _NOBODY, self._now()), None)
            self._arm()

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to the partition's log; while that is being read, reading will find it."""
        if self.is_active:
            self.lead.written = self.partition.log.log_end_offset - 1
            self.shard.replay_end_of_transaction(producer_id, committed=committed)

    def _tick(self) -> None:
        self._timer = None
        self._give_up_late(self._clock.monotonic_ms())
        written = 0
        try:
            for _ in range(TICKS_AT_ONCE):
                result = self.shard.tick(self._now())
                if result is None:
                    break
                self._perform(result, None)
                written += len(result.records)
                if written >= TICKED_RECORDS_MAX:
                    break
        finally:
            self._arm()  # one deadline that goes wrong must not keep the others from coming up

    def _now(self) -> Instant:
        return Instant(self._clock.now_ms(), self._clock.monotonic_ms())

    def _arm(self) -> None:
        """Wake up when something is due; a timer that is too early does no harm."""
        due = [self.shard.next_due_ms()] if self.is_active else []
        if self._uncommitted:
            due.append(self._uncommitted[0].deadline_ms)
        next_ms = min((each for each in due if each is not None), default=None)
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(next_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    # -- consequences -------------------------------------------------------------------------------

    def _perform(self, result: Result, ticket: Ticket | None) -> None:
        """Append, replay, say so, answer; `ticket` is that of the request, if it is one."""
        while True:
            code = self._append(result)
            replies: Sequence[Reply] = result.replies
            if result.storing is None:
                follows = None
            elif code is None:
                follows = self.shard.stored(result, self._now())
                _log_change(result.storing)
            else:
                follows = self.shard.not_stored(result, code, self._now())
            if code is not None:
                # Others learn what the machine has decided about them; who asked, that it failed.
                replies = [
                    Reply(r.ticket, KafkaError(code)) if r.ticket == ticket else r for r in replies
                ]
            self._answer_when_committed(replies)
            if follows is None:
                return
            result = follows

    def _append(self, result: Result) -> ErrorCode | None:
        """Append the records and replay them; the error that clients are told where that fails.

        All of them or none: half of what was decided (a group that moves to another protocol) is no state of anything.
        """
        if not result.records:
            return None
        try:
            batches = b"".join(self._batches(result.records, result.producer))
            first_offset = self.lead.append(batches)
        except KafkaError as error:
            _LOGGER.warning("%s takes no records: %s", self.partition.log.name, error)
            return error.code
        producer_id = NO_PRODUCER_ID if result.producer is None else result.producer.producer_id
        for offset, record in enumerate(result.records, first_offset):
            self.shard.replay(
                record.key, record.value, record_offset=offset, producer_id=producer_id
            )
        return None

    def _batches(
        self, records: Sequence[CoordinatorRecord], producer: Producer | None
    ) -> Iterator[bytes]:
        """The records in as many batches as the topic's limit asks for; as a rule one."""
        limit = self.partition.log.config.max_message_bytes // 2
        batch: list[tuple[bytes, bytes | None]] = []
        size = 0
        for record in records:
            key, value = encode_record(record)
            bytes_more = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if batch and size + bytes_more > limit:
                yield self._batch(batch, producer)
                batch, size = [], 0
            batch.append((key, value))
            size += bytes_more
        yield self._batch(batch, producer)

    def _batch(
        self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None
    ) -> bytes:
        now_ms = self._clock.now_ms()
        return build_batch(
            [Record(i, now_ms, key, value) for i, (key, value) in enumerate(records)],
            producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.producer_epoch,
            is_transactional=producer is not None,
        )

    # -- answers ------------------------------------------------------------------------------------

    def _answer_when_committed(self, replies: Sequence[Reply]) -> None:
        """Give answers out once all that is written up to now is below the high watermark."""
        if not replies:
            return
        if self.lead.written < self.partition.high_watermark:
            for reply in replies:
                self._answer(reply)
            return
        deadline_ms = self._clock.monotonic_ms() + self._settings.offsets_commit_timeout_ms
        self._uncommitted.extend(Uncommitted(self.lead.written, deadline_ms, r) for r in replies)

    def _answer(self, reply: Reply) -> None:
        future = self._open.pop(reply.ticket, _NOT_YET)
        if future is _NOT_YET:
            return  # nobody asked, or it was given up
        if future is None:
            self._at_once = reply.response
        elif future.done():
            pass  # the client is gone
        elif isinstance(reply.response, KafkaError):
            future.set_exception(reply.response)
        else:
            future.set_result(reply.response)

    def _give_up_late(self, now_ms: int) -> None:
        while self._uncommitted and self._uncommitted[0].deadline_ms <= now_ms:
            late = self._uncommitted.popleft()
            self._answer(Reply(late.reply.ticket, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)))

    def advanced(self, partition: HostedPartition) -> None:
        """The high watermark has moved: what waited for it may be answered."""
        committed = partition.high_watermark
        while self._uncommitted and self._uncommitted[0].offset < committed:
            self._answer(self._uncommitted.popleft().reply)

    def lost(self, partition: HostedPartition) -> None:
        """Another broker leads the partition, or none does."""
        self.close()


def _log_change(storing: Storing | None) -> None:
    """One line where a group has begun a generation, or is gone."""
    if isinstance(storing, StoringAssignment):
        _LOGGER.info(
            "group %s: generation %d with %d members",
            storing.group_id,
            storing.generation_id,
            len(storing.assignments),
            extra={"group": storing.group_id, "generation": storing.generation_id},
        )
    elif isinstance(storing, RemovingGroups):
        for group_id in storing.group_ids:
            _LOGGER.info("group %s was removed", group_id, extra={"group": group_id})
    elif isinstance(storing, Upgrading | Downgrading):
        now_is = "consumer" if isinstance(storing, Upgrading) else "classic"
        _LOGGER.info(
            "group %s has the %s protocol now",
            storing.group_id,
            now_is,
            extra={"group": storing.group_id},
        )


class _NotYet:
    """The type of the marker for "no answer yet": None is one."""


_NOT_YET: Any = _NotYet()
