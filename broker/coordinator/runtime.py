"""Shell: a topic whose partitions' leaders are coordinators (of groups, of transactions), and each of them at work.

- A key (a group, a transactional id) is coordinated by the leader of its partition; others answer NOT_COORDINATOR. The
  topic's number of partitions decides where a key is, not the setting, and never changes once the topic exists.
- An event runs from the shard's decision to its consequences without yielding: decide, append, replay, say so.
- No reply goes out, and no effect is performed, before everything that was appended up to its event is committed.
- A context that has lost its leadership never comes back; the next leadership has a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from broker.coordinator.loads import CoordinatorState, Loads
from broker.coordinator.result import (
    NO_RESPONSE,
    CoordinatorResult,
    Instant,
    ProducerIdAndEpoch,
    Reply,
    Ticket,
)
from broker.java_hash import SIGN, java_hash
from broker.log.replay import LoadFailed, replay_log
from broker.membership.internal_topics import InternalTopic
from broker.metadata.events import NO_LEADER, PartitionRegistration
from broker.metadata.image import MetadataImage
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Record,
    build_batch,
)
from kafka_ds.segments.producers import AppendOrigin

_LOGGER = logging.getLogger(__name__)

RECOVERY_POLL_SECONDS = 0.05
PROGRESS_EVERY_MS = 5_000
# How many deadlines are handled, and how many records written for them, before other tasks get their turn.
TICKS_AT_ONCE = 20
TICKED_RECORDS_MAX = 500
# Room for what surrounds a record's key and value in a batch.
RECORD_OVERHEAD_BYTES = 40
NO_PRODUCER_ID = -1
_NOBODY: Ticket = -1

# Kafka's errors of coordinators, for those of an append.
_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def partition_for(key: str, partitions: int) -> int:
    """The partition of a group's or a transactional id, of so many.

    By Java's hash of a string: the groups in a data directory of Apache Kafka must be found here again.
    """
    value = java_hash(key)
    # Kafka's Utils.abs: the one number whose magnitude does not fit becomes 0.
    return (0 if value == -SIGN else abs(value)) % partitions


class CoordinatorShard(Protocol):
    """The shard of one partition: decides, and changes its replicated state in `replay` alone."""

    def replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        """Replay a batch of the log; returns the number of records. Raises CorruptRecord or MalformedFrame."""
        ...

    def loaded(self, now: Instant) -> CoordinatorResult:
        """The whole log has been replayed."""
        ...

    def handle(self, event: Any, ticket: Ticket, now: Instant) -> CoordinatorResult:
        """Decide the outcome of an event of the shard's own kind. A KafkaError refuses it."""
        ...

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        ...

    def replay(self, key: Any, value: Any, *, record_offset: int, producer_id: int) -> None:
        """Replay a record that is in the log: a pair, as `records` have it."""
        ...

    def written(
        self, result: CoordinatorResult, code: ErrorCode | None, now: Instant
    ) -> CoordinatorResult | None:
        """Decide what follows, if the result is `storing` or its records could not be appended (they have a code)."""
        ...

    def next_due_ms(self) -> int | None:
        """When, by the monotonic clock, `tick` has something to do."""
        ...

    def tick(self, now: Instant) -> CoordinatorResult | None:
        """Do the first thing that is due; None if nothing is."""
        ...


S = TypeVar("S", bound=CoordinatorShard)


@dataclass(slots=True)
class _Uncommitted:
    """Replies and effects that wait until an offset is committed; its replies only for a limited time."""

    offset: int
    deadline_ms: int
    effects: tuple[Any, ...]
    replies: Sequence[Reply]


class CoordinatorContext(Generic[S]):
    """The coordinator of one partition, for as long as this broker leads it.

    - While the log is read, requests get COORDINATOR_LOAD_IN_PROGRESS. If it cannot be read or understood they get
      COORDINATOR_NOT_AVAILABLE, since the state may be old; once the partition is not led here, NOT_COORDINATOR.
    - A reply that waits longer than the timeout becomes COORDINATOR_NOT_AVAILABLE: the client asks again. The record
      stays, for it may still be committed, and so do its effects.
    - With fewer in-sync replicas than min.insync.replicas by the time of the commit a reply becomes
      COORDINATOR_NOT_AVAILABLE, too, as for a producer with acks=all.
    """

    def __init__(
        self,
        partition: LeaderPartition,
        shard: S,
        *,
        clock: Clock,
        loads: Loads,
        load_bytes: int,
        commit_timeout_ms: int,
        perform: Callable[[CoordinatorContext[S], Any], None] | None = None,
    ) -> None:
        """`load_bytes` are read at once; `loads` counts how long reading takes; `perform` performs an effect."""
        self.partition = partition
        self.shard = shard
        self._name = partition.log.name
        self._clock = clock
        self._loads = loads
        self._load_bytes = load_bytes
        self._commit_timeout_ms = commit_timeout_ms
        self._perform_effect = perform
        self._loop = asyncio.get_running_loop()
        # The offset of the last record that this coordinator knows.
        self.last_written_offset = -1
        # Why requests are refused; None: they are not.
        self._refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._loading: asyncio.Task[None] | None = None
        # Events of this broker that came while the log was being read.
        self._deferred: list[Any] = []
        self._next_ticket = 0
        # Waiting clients; None while the request is still being handled.
        self.open: dict[Ticket, asyncio.Future[Any] | None] = {}
        self._at_once: Any = NO_RESPONSE
        self._uncommitted: deque[_Uncommitted] = deque()
        self._completing: asyncio.Handle | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    @property
    def state(self) -> CoordinatorState:
        """The coordinator's state, as Kafka's metrics name it."""
        match self._refusal:
            case None:
                return CoordinatorState.ACTIVE
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return CoordinatorState.LOADING
            case ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return CoordinatorState.FAILED
            case _:
                return CoordinatorState.CLOSED

    @property
    def is_active(self) -> bool:
        """Whether requests are accepted."""
        return self._refusal is None

    @property
    def is_closed(self) -> bool:
        """Whether this coordinator will never accept a request again."""
        return self._refusal is ErrorCode.NOT_COORDINATOR

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch under which this coordinator writes."""
        return self.partition.leader.leader_epoch

    # -- start and end ------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the log; one without records is read at once."""
        log = self.partition.log
        self.partition.watch(self)
        if log.log_end_offset == log.log_start_offset and not self.partition.leader.is_recovering:
            self._loaded()
            return
        self._loading = self._loop.create_task(self._load(), name=f"load {log.name}")
        self._loading.add_done_callback(self._load_ended)

    async def _load(self) -> None:
        partition, log = self.partition, self.partition.log
        while partition.leader.is_recovering:
            await asyncio.sleep(RECOVERY_POLL_SECONDS)
        began_ms = logged_ms = self._clock.monotonic_ms()
        level = logging.DEBUG  # There are fifty and more.
        reading = replay_log(log, self.shard.replay_batch, load_bytes=self._load_bytes)
        try:
            async for offset in reading:
                now_ms = self._clock.monotonic_ms()
                if now_ms - logged_ms >= PROGRESS_EVERY_MS:
                    logged_ms, level = now_ms, logging.INFO
                    how_far = f"offset {offset} of {log.log_end_offset}"
                    took_ms = now_ms - began_ms
                    _LOGGER.info(
                        "Loading metadata from %s: %s after %d ms", log.name, how_far, took_ms
                    )
        except (LoadFailed, KafkaError, OSError) as error:
            _LOGGER.error("Failed to load metadata from %s: %s", log.name, error)
            self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(error, OSError):
                log.failed_to_read(error)
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        self._loads.loaded(took_ms, self._clock.monotonic_ms())
        end = log.log_end_offset
        _LOGGER.log(
            level,
            "Finished loading of metadata from %s with epoch %d up to offset %d in %d ms",
            log.name, self.coordinator_epoch, end, took_ms,
        )  # fmt: skip
        self._loaded()

    def _load_ended(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled() and task.exception() is not None:
            self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            _LOGGER.error(
                "%s: Unexpected error while loading metadata", self._name, exc_info=task.exception()
            )

    def _loaded(self) -> None:
        self.last_written_offset = self.partition.log.log_end_offset - 1
        self._refusal = None
        self._warn(self._perform(self.shard.loaded(self._now()), None))
        deferred, self._deferred = self._deferred, []
        for event in deferred:
            try:
                self._warn(self.run(event))
            except Exception:  # The others count all the same, and requests are accepted.
                _LOGGER.exception("%s: Unexpected error in a deferred event", self._name)
        self._arm()

    def close(self) -> None:
        """Accept nothing more, and fail all that waits."""
        self._refusal = ErrorCode.NOT_COORDINATOR
        self.partition.unwatch(self)
        for handle in (self._loading, self.timer, self._completing):
            if handle is not None:
                handle.cancel()
        self.timer = self._completing = None
        self._uncommitted.clear()
        for ticket in tuple(self.open):
            self._reply(Reply(ticket, KafkaError(ErrorCode.NOT_COORDINATOR)))

    def lost(self, partition: LeaderPartition) -> None:
        """Another broker leads the partition, or none does."""
        self.close()

    # -- events -------------------------------------------------------------------------------------

    def check(self) -> S:
        """The shard, for questions that change nothing; raises KafkaError while requests are refused."""
        if self._refusal is not None:
            raise KafkaError(self._refusal)
        return self.shard

    def submit(self, event: Any) -> Any:
        """Handle a client's request; returns the response, or a future that will have it. Raises KafkaError."""
        self.check()
        ticket = self._next_ticket
        self._next_ticket += 1
        self.open[ticket] = None
        self._at_once = NO_RESPONSE
        try:
            self._warn(self._perform(self._handle(event, ticket), ticket))
        except BaseException:
            self.open.pop(ticket, None)
            raise
        finally:
            self._arm()
        if self._at_once is NO_RESPONSE:
            future = self.open[ticket] = self._loop.create_future()
            return future
        if isinstance(self._at_once, KafkaError):
            raise self._at_once
        return self._at_once

    def _handle(self, event: Any, ticket: Ticket) -> CoordinatorResult:
        try:
            return self.shard.handle(event, ticket, self._now())
        except KafkaError as error:
            # It rests on records that may not be committed yet: if they may be lost it must not be answered.
            return CoordinatorResult(response=error)

    def run(self, event: Any) -> KafkaError | None:
        """Handle an event that no client waits for; returns the error, for the caller to log, if it failed.

        It is deferred while the log is read, and dropped once the partition is not coordinated here.
        """
        if self.state is CoordinatorState.LOADING:
            self._deferred.append(event)
        if not self.is_active:
            return None
        try:
            return self._perform(self.shard.handle(event, _NOBODY, self._now()), None)
        except KafkaError as error:
            return error
        finally:
            self._arm()

    def appended_by_others(self) -> None:
        """The partition's log got records (markers) that this coordinator did not append, but counts on from now."""
        self.last_written_offset = self.partition.log.log_end_offset - 1

    def tick(self) -> None:
        """Do what is due by now, or some of it."""
        self.timer = None
        self._give_up_late(self._clock.monotonic_ms())
        written = 0
        try:
            for _ in range(TICKS_AT_ONCE):
                result = self.shard.tick(self._now()) if self.is_active else None
                if result is None:
                    break
                self._warn(self._perform(result, None))
                written += len(result.records)
                if written >= TICKED_RECORDS_MAX:
                    break
        finally:
            self._arm()  # An error in one deadline must not keep the others from coming up.

    def _now(self) -> Instant:
        return Instant(self._clock.now_ms(), self._clock.monotonic_ms())

    def _arm(self) -> None:
        """Wake up when something is due; a timer that is too early does no harm."""
        next_ms = self.shard.next_due_ms() if self.is_active else None
        if self._uncommitted:
            answer_ms = next((each.deadline_ms for each in self._uncommitted if each.replies), None)
            if next_ms is None or (answer_ms is not None and answer_ms < next_ms):
                next_ms = answer_ms
        if next_ms is None or (self.timer is not None and self._timer_ms <= next_ms):
            return
        if self.timer is not None:
            self.timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(next_ms - self._clock.monotonic_ms(), 0)
        self.timer = self._loop.call_later(delay_ms / 1000, self.tick)

    # -- records ------------------------------------------------------------------------------------

    def _perform(self, result: CoordinatorResult, ticket: Ticket | None) -> KafkaError | None:
        """Append, replay, report, then effects and replies; returns the error of an append that failed.

        `ticket` is that of the request, if it is one.
        """
        failed: KafkaError | None = None
        while True:
            error = self._append(result)
            failed = failed or error
            code = None if error is None else error.code
            for line in result.lines if code is None else ():
                level = logging.WARNING if line.is_warning else logging.INFO
                _LOGGER.log(level, "%s", line.text, extra=line.fields)
            follows = None
            if code is not None or result.storing is not None:
                follows = self.shard.written(result, code, self._now())
            replies = result.replies
            if ticket is not None and result.response is not NO_RESPONSE:
                replies = (*replies, Reply(ticket, result.response))
            if code is not None:
                # Others get the shard's decision about them; the asking client gets the failure.
                replies = tuple(
                    Reply(r.ticket, KafkaError(code)) if r.ticket == ticket else r for r in replies
                )
            self._complete_when_committed(result.effects if code is None else (), replies)
            if follows is None:
                return failed
            result = follows

    def _append(self, result: CoordinatorResult) -> KafkaError | None:
        """Append the records and replay them; returns the error for clients if that fails.

        All of them or none: half of a decision (a group that moves to another protocol) is no valid state.
        """
        if not result.records:
            return None
        try:
            first_offset = self._append_batches(bytearray().join(self._batches(result)))
        except KafkaError as error:
            return error
        producer_id = NO_PRODUCER_ID if result.producer is None else result.producer.producer_id
        for offset, record in enumerate(result.records, first_offset):
            self.shard.replay(*record, record_offset=offset, producer_id=producer_id)
        return None

    def _warn(self, error: KafkaError | None) -> None:
        if error is not None:
            _LOGGER.warning("%s: cannot append: %s", self._name, error)

    def _append_batches(self, batches: bytearray) -> int:
        """Append batches; returns the offset of the first record. Raises KafkaError with a coordinator's error code."""
        try:
            info = self.partition.append(
                memoryview(batches),
                acks=-1,
                now_ms=self._clock.now_ms(),
                origin=AppendOrigin.COORDINATOR,
            )
        except KafkaError as error:
            code = _COORDINATOR_ERRORS.get(error.code, error.code)
            raise KafkaError(code, error.message) from error
        except OSError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        self.last_written_offset = info.last_offset
        return info.first_offset

    def _batches(self, result: CoordinatorResult) -> Iterator[bytes]:
        """The records in as many batches as the topic's limit demands; usually one."""
        limit = self.partition.log.config.max_message_bytes // 2
        batch: list[tuple[bytes, bytes | None]] = []
        size = 0
        for record in result.records:
            key, value = self.shard.encode(record)
            bytes_more = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if batch and size + bytes_more > limit:
                yield self._batch(batch, result.producer)
                batch, size = [], 0
            batch.append((key, value))
            size += bytes_more
        yield self._batch(batch, result.producer)

    def _batch(
        self, records: Sequence[tuple[bytes, bytes | None]], producer: ProducerIdAndEpoch | None
    ) -> bytes:
        now_ms = self._clock.now_ms()
        return build_batch(
            [Record(i, now_ms, key, value) for i, (key, value) in enumerate(records)],
            producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.producer_epoch,
            is_transactional=producer is not None,
        )

    # -- waiting for the commit --------------------------------------------------------------------

    def _complete_when_committed(self, effects: tuple[Any, ...], replies: Sequence[Reply]) -> None:
        """Perform effects and reply once all that is written up to now is below the high watermark."""
        if not effects and not replies:
            return
        offset = self.last_written_offset
        if not self._uncommitted and offset < self.partition.high_watermark:
            self._complete(effects, replies)
            return
        deadline_ms = self._clock.monotonic_ms() + self._commit_timeout_ms
        self._uncommitted.append(_Uncommitted(offset, deadline_ms, effects, replies))

    def advanced(self, partition: LeaderPartition) -> None:
        """The high watermark has moved: complete what waited for it."""
        while self._uncommitted and self._uncommitted[0].offset < partition.high_watermark:
            if self._uncommitted[0].effects:
                # They append to other partitions, and to this one: not in the midst of its advance.
                if self._completing is None:
                    self._completing = self._loop.call_soon(self._complete_committed)
                return
            self._complete_first()

    def _complete_committed(self) -> None:
        self._completing = None
        while self._uncommitted and self._uncommitted[0].offset < self.partition.high_watermark:
            self._complete_first()

    def _complete_first(self) -> None:
        entry = self._uncommitted.popleft()
        replies = entry.replies
        try:
            self.partition.leader.check_acknowledgement()
        except KafkaError:
            # Committed, though with fewer replicas than demanded: its effects follow.
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            replies = [Reply(reply.ticket, error) for reply in replies]
        self._complete(entry.effects, replies)

    def _complete(self, effects: tuple[Any, ...], replies: Sequence[Reply]) -> None:
        for effect in effects:
            assert self._perform_effect is not None, "a shard without effects"
            try:
                self._perform_effect(self, effect)
            except Exception:  # Committed, so the client may ask again; requests that wait behind it must be answered.
                _LOGGER.exception(
                    "%s: Unexpected error while performing an effect for %s", self._name, effect.key
                )
                error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                replies = [Reply(reply.ticket, error) for reply in replies]
        for reply in replies:
            self._reply(reply)

    def _give_up_late(self, now_ms: int) -> None:
        """Reply to requests that have waited too long; effects still wait."""
        for entry in self._uncommitted:
            if entry.deadline_ms > now_ms:
                break
            replies, entry.replies = entry.replies, ()
            for reply in replies:
                self._reply(Reply(reply.ticket, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        while self._uncommitted and not (
            self._uncommitted[0].effects or self._uncommitted[0].replies
        ):
            self._uncommitted.popleft()

    def _reply(self, reply: Reply) -> None:
        future = self.open.pop(reply.ticket, NO_RESPONSE)
        if future is NO_RESPONSE:
            return  # An event without a client, or a cancelled request.
        if future is None:
            self._at_once = reply.response
        elif future.done():
            pass  # The client has disconnected.
        elif isinstance(reply.response, KafkaError):
            future.set_exception(reply.response)
        else:
            future.set_result(reply.response)


class CoordinatorRuntime(Generic[S]):
    """The coordinators of all partitions of a topic that this broker leads."""

    def __init__(
        self,
        topic: InternalTopic,
        *,
        partitions: ReplicaManager,
        image: MetadataImage,
        begin: Callable[[LeaderPartition], CoordinatorContext[S]],
    ) -> None:
        """`image` is the published one; `begin` makes the coordinator of a partition."""
        self.name = topic.name
        self._partitions = partitions
        self._image = image
        self._begin = begin
        self._topic = topic
        self._contexts: dict[int, CoordinatorContext[S]] = {}

    def start(self) -> None:
        """Load the partitions that this broker leads; each refuses requests until it is loaded."""
        for _ in self.led_here():
            pass

    def stop(self) -> None:
        """Accept nothing more, and fail all that waits."""
        self._topic.stop()
        for context in self._contexts.values():
            context.close()

    async def ensure(self) -> None:
        """Create the topic if it does not exist; raises COORDINATOR_NOT_AVAILABLE if that fails."""
        await self._topic.ensure()

    @property
    def is_there(self) -> bool:
        """Whether there is a topic to coordinate."""
        return self.name in self._image.topics

    def partition_of(self, key: str) -> int | None:
        """The partition that keeps the key; None while there is no topic."""
        topic = self._image.topics.get(self.name)
        return None if topic is None else partition_for(key, len(topic.partitions))

    def leader_of(self, key: str) -> int:
        """The broker that coordinates a key, as far as this one knows; NO_LEADER where there is none."""
        kept = self._registration(key)
        return NO_LEADER if kept is None else kept.leader

    def leader_epoch_of(self, key: str) -> int:
        """The leader epoch of the key's coordinator, as far as this broker knows."""
        kept = self._registration(key)
        return NO_LEADER_EPOCH if kept is None else kept.leader_epoch

    def _registration(self, key: str) -> PartitionRegistration | None:
        partition = self.partition_of(key)
        return None if partition is None else self._image.partition(self.name, partition)

    def context_of(self, key: str) -> CoordinatorContext[S]:
        """The coordinator of a key; raises NOT_COORDINATOR if another broker has it."""
        partition = self.partition_of(key)
        context = None if partition is None else self.context(partition)
        if context is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return context

    def context(self, partition: int) -> CoordinatorContext[S] | None:
        """The coordinator of a partition; None where this broker does not lead it."""
        context = self._contexts.get(partition)
        if context is not None and not context.is_closed:
            return context
        led = self._partitions.find(self.name, partition)
        if led is None:
            # An ended coordinator's state is of no use, and may be large.
            self._contexts.pop(partition, None)
            return None
        context = self._contexts[partition] = self._begin(led)
        context.start()
        return context

    def led_here(self) -> Iterator[CoordinatorContext[S]]:
        """The coordinators of all partitions that this broker leads now."""
        topic = self._image.topics.get(self.name)
        for partition in topic.partitions if topic is not None else ():
            context = self.context(partition)
            if context is not None:
                yield context

    def begun(self) -> Iterator[CoordinatorContext[S]]:
        """The coordinators that were started here and may not have ended; starts none."""
        return iter(tuple(self._contexts.values()))
