"""Shell: one partition's transaction coordinator at work: events in, records into the log, answers and markers out.

Rules of this file:
- An event runs from the machine's decision to its record without yielding: decide, append, replay. Its consequences,
  answer and markers alike, wait until the record is below the high watermark: a decision that could be lost with its
  leader must not be visible in any partition.
- Markers that can be written at once are written before the answer goes out: so the next transaction of the same
  producer finds this one complete and need not ask twice. The others, for partitions led elsewhere, are retried until
  they are done.
- An answer that waits longer than request.timeout.ms becomes COORDINATOR_NOT_AVAILABLE: the client asks again, and the
  appended record stays, for it may still be committed. The same holds if a full disk did not let it be flushed: its
  consequences still follow, or a decided transaction would never end.
- `broker.coordinating.lead` refuses requests while the log is read and after the leadership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from broker.coordinating.lead import Lead
from broker.coordinating.loads import Loads, State
from broker.crash_points import CrashPoints
from broker.replica.leader.hosted import HostedPartition
from broker.seams import Clock
from broker.transactions.markers import FENCED, Marker, MarkerSender, is_settled
from broker.transactions.records import decode_record, encode_record
from broker.transactions.shard import TransactionShard
from broker.transactions.values import Result, TopicPartition, Transaction, TransactionSettings
from kafka_ds.wire.batch import BatchHeader, Record, build_batch, read_records
from kafka_ds.wire.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

MARKER_RETRY_SECONDS = 0.1
# How many markers are written, and how many transactional ids forgotten, before others get their turn.
MARKERS_AT_ONCE = 100
EXPIRED_AT_ONCE = 200

Event = Callable[[TransactionShard, int], Result]
Outcome = ErrorCode | Awaitable[ErrorCode]


class TransactionRunner:
    """The coordinator of one partition of `__transaction_state`, for as long as it is led here."""

    def __init__(
        self,
        partition: HostedPartition,
        settings: TransactionSettings,
        markers: MarkerSender,
        *,
        timeout_ms: int,
        clock: Clock,
        loads: Loads,
        crash_points: CrashPoints,
    ) -> None:
        self.partition = partition
        self.lead = Lead(
            partition,
            clock=clock,
            loads=loads,
            load_bytes=settings.transaction_state_log_load_buffer_size,
        )
        self.shard = TransactionShard(settings)
        self._markers = markers
        self._timeout_seconds = timeout_ms / 1_000
        self._clock = clock
        self._crash_points = crash_points
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        # What decided transactions still want, for the metrics.
        self.markers_left = 0
        self.ends_left = 0

    @property
    def is_closed(self) -> bool:
        """Whether this coordinator will never take a request again."""
        return self.lead.state is State.CLOSED

    @property
    def coordinator_epoch(self) -> int:
        """Under which markers are written: that of this lead."""
        return self.partition.leader.leader_epoch

    # -- beginning and ending -----------------------------------------------------------------------

    def start(self) -> None:
        """Read the log; one without records is read at once."""
        self.partition.watch(self)
        self.lead.begin(self._replay_batch, self._loaded)

    def _loaded(self) -> None:
        for effect in self.shard.loaded():
            self._after_commit(partial(self._write_markers, effect.transaction))

    def _replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        records = [] if header.is_control else read_records(data, position, header)
        for record in records:
            known = decode_record(record.key or b"", record.value)
            if known is not None:
                self.shard.replay(*known)
        return len(records)

    def close(self) -> None:
        """Take no more requests; the partition answers those that wait."""
        self.lead.end()
        self.partition.unwatch(self)
        for task in tuple(self._tasks):
            task.cancel()

    def advanced(self, partition: HostedPartition) -> None:
        """The high watermark has moved. Requests that wait for it wait with the partition."""

    def lost(self, partition: HostedPartition) -> None:
        """Another broker leads the partition, or none does."""
        self.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOGGER.error(
                "%s: a mistake of ours", self.partition.log.name, exc_info=task.exception()
            )

    # -- events -------------------------------------------------------------------------------------

    def look(self) -> TransactionShard:
        """The machine, for questions that change nothing; raises KafkaError."""
        self.lead.check()
        return self.shard

    def submit(self, event: Event) -> Any:
        """The answer to an event, or a future that will have it; raises KafkaError."""
        shard = self.look()
        try:
            result = event(shard, self._clock.now_ms())
        except KafkaError as error:
            # The decision rests on records that may not be committed yet: if they may be lost it must not be answered.
            return self._after_commit(partial(_refuse, error))
        return self._perform(result)

    def tick(self, now_ms: int, *, expire: bool) -> None:
        """Abort transactions that are open for too long and, if asked, forget unused transactional ids."""
        if self.lead.refusal is not None:
            return
        try:
            for result in self.shard.timed_out(now_ms):
                assert result.stored is not None
                _LOGGER.info("%s has timed out: aborting", result.transactional_id)
                self._perform(result)
        except KafkaError as error:
            self._say_that_it_takes_nothing(error)
        if expire:
            self._begin(self._expire(now_ms))

    async def _expire(self, now_ms: int) -> None:
        """Forget unused transactional ids. There may be very many, if they were all made at the same time."""
        try:
            for number, result in enumerate(self.shard.expired(now_ms), 1):
                self._perform(result)
                if not number % EXPIRED_AT_ONCE:
                    await asyncio.sleep(0)
        except KafkaError as error:
            self._say_that_it_takes_nothing(error)

    def _say_that_it_takes_nothing(self, error: KafkaError) -> None:
        _LOGGER.warning("%s takes no records: %s", self.partition.log.name, error)

    def _perform(self, result: Result) -> Any:
        """Append and replay; the answer, or what will be one when the record is committed."""
        if result.transactional_id is not None:
            self._append(result.transactional_id, result.stored)
            self.shard.replay(result.transactional_id, result.stored)
        return self._after_commit(partial(self._follow, result))

    def _follow(self, result: Result) -> Any:
        """Do what follows from a committed record; raises where the answer is an error."""
        for effect in result.effects:
            self._crash_points.at("after_prepare")
            self._write_markers(effect.transaction)
        if isinstance(result.response, KafkaError):
            raise result.response
        return result.response

    def _append(self, transactional_id: str, transaction: Transaction | None) -> None:
        now_ms = self._clock.now_ms()
        self.lead.append(
            build_batch([Record(0, now_ms, *encode_record(transactional_id, transaction))])
        )

    def _after_commit(self, follow: Callable[[], Any]) -> Any:
        """What `follow` gives when all that was appended is committed: at once if it is, else by a future."""
        if self.partition.is_acknowledged(self.lead.written, -1):
            return follow()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._when_committed(self.lead.written, answer, follow)
        late = self._loop.call_later(self._timeout_seconds, _give_up, answer)
        answer.add_done_callback(lambda _: late.cancel())
        return answer

    def _when_committed(
        self, offset: int, answer: asyncio.Future[Any], follow: Callable[[], Any]
    ) -> None:
        def acknowledged(done: asyncio.Future[None]) -> None:
            if _is_full_disk(done.exception()) and not self.partition.is_lost:
                _refuse_answer(answer, KafkaError(ErrorCode.NOT_COORDINATOR))
                self._when_committed(offset, answer, follow)
            else:
                _settle(answer, follow, done)

        self.partition.acknowledgement(offset, -1).add_done_callback(acknowledged)

    # -- markers ------------------------------------------------------------------------------------

    def _write_markers(self, decided: Transaction) -> None:
        """Write what can be written at once, and go on with the rest in a task."""
        if self.lead.refusal is not None:
            return  # The new leader finds the decision and does this.
        marker = Marker.of(decided, self.coordinator_epoch)
        listed = sorted(decided.partitions)
        outcomes = self._write_some(marker, listed[:MARKERS_AT_ONCE])
        left = listed[MARKERS_AT_ONCE:]
        if left or any(code is not ErrorCode.NONE for code in outcomes.values()):
            self._begin(self._write_all(decided, marker, outcomes, left))
        else:
            self._complete(decided)

    def _write_some(
        self, marker: Marker, listed: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Outcome]:
        outcomes: dict[TopicPartition, Outcome] = {}
        for where in listed:
            outcome = self._markers.write(marker, where)
            if not isinstance(outcome, ErrorCode):
                outcome = asyncio.ensure_future(outcome)
            outcomes[where] = outcome
            self._crash_points.at("after_marker")
        return outcomes

    async def _write_all(
        self,
        decided: Transaction,
        marker: Marker,
        outcomes: dict[TopicPartition, Outcome],
        left: list[TopicPartition],
    ) -> None:
        """Ask every partition until it has its marker; then the transaction is complete."""
        while True:
            await asyncio.sleep(0)
            while left:
                outcomes |= self._write_some(marker, left[:MARKERS_AT_ONCE])
                left = left[MARKERS_AT_ONCE:]
                await asyncio.sleep(0)
            for where, outcome in outcomes.items():
                code = outcome if isinstance(outcome, ErrorCode) else await outcome
                if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    # Another broker coordinates this: it has found the decision, and completes it.
                    self._fenced(decided, where, code)
                    return
                if code in FENCED:
                    self._fenced(decided, where, code)
                elif not is_settled(code):
                    left.append(where)
            if not left:
                break
            outcomes = {}
            await self._wait_with(left)
        self._complete(decided)

    async def _wait_with(self, left: list[TopicPartition]) -> None:
        self.markers_left += len(left)
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.markers_left -= len(left)

    def _fenced(self, decided: Transaction, where: TopicPartition, code: ErrorCode) -> None:
        """A newer producer or coordinator has ended this there: nothing is left to do for this partition."""
        _LOGGER.warning("%s in %s-%d: %s", decided.transactional_id, *where, code.name)

    def _complete(self, decided: Transaction, *, is_again: bool = False) -> None:
        self._crash_points.at("after_markers")
        if self.lead.refusal is not None:
            return
        try:
            self._perform(self.shard.markers_written(decided, self._clock.now_ms()))
        except KafkaError as error:
            if not is_again:
                _LOGGER.warning("%s cannot be completed yet: %s", decided.transactional_id, error)
            self._begin(self._complete_later(decided))

    async def _complete_later(self, decided: Transaction) -> None:
        self.ends_left += 1
        try:
            await asyncio.sleep(MARKER_RETRY_SECONDS)
        finally:
            self.ends_left -= 1
        self._complete(decided, is_again=True)


def _refuse(error: KafkaError) -> Any:
    raise error


def _give_up(answer: asyncio.Future[Any]) -> None:
    _refuse_answer(answer, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def _is_full_disk(error: BaseException | None) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR


def _refuse_answer(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # Nobody asked for what time has brought about.


def _settle(
    answer: asyncio.Future[Any], follow: Callable[[], Any], acknowledged: asyncio.Future[None]
) -> None:
    """Let follow what waited for a commit, and give its answer to who still waits."""
    error: BaseException | None = acknowledged.exception()
    lost = isinstance(error, KafkaError) and error.code is not _TOO_FEW_REPLICAS
    value = None
    if lost:
        error = KafkaError(ErrorCode.NOT_COORDINATOR)
    else:
        # Committed, though with fewer replicas than wanted: what follows from it follows.
        try:
            value = follow()
        except KafkaError as refused:
            error = refused
        else:
            error = error and KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if error is not None:
        _refuse_answer(answer, error)
    elif not answer.done():
        answer.set_result(value)


_TOO_FEW_REPLICAS = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
