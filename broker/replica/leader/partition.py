"""Shell: one partition that this broker leads: its log, the leader's view of it, and its watchers.

It performs what `LeaderState` decides, in the event loop's thread only. With flush.messages an append counts once the
disk has it, and later appends with it; one to a diskless partition once the write-ahead log has it. Watchers are
called, never polled: when more may be read, or when this broker no longer serves the partition. Before any change that
a lookup may show, `_changing` notifies the sessions in which the partition is idle; a session checks by itself whether
the log's start or the metadata have changed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, assert_never

from broker.log.log import Log
from broker.log.values import READ_COMMITTED, AppendInfo, LogRead, RemoteLogAuxState
from broker.metadata.events import PartitionRegistration
from broker.replica.leader.alter_partition import AlterPartitionManager
from broker.replica.leader.effects import AdvanceHighWatermark, CountIsrChange, Effects, ProposeIsr
from broker.replica.leader.isr import AlterPartitionAnswer, Proposal
from broker.replica.leader.replica_state import SessionReader
from broker.replica.leader.state import LeaderState
from broker.replica.topic_metrics import TopicCounters
from broker.replica.watcher import Watcher
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.batch import HEADER, HEADER_BYTES, BatchHeader
from kafka_ds.segments.index import AbortedTxn
from kafka_ds.segments.producers import AppendOrigin

if TYPE_CHECKING:
    from broker.diskless.write_ahead_log import WriteAheadLog
    from broker.remote.remote_log_manager import RemoteLogManager

_LOGGER = logging.getLogger(__name__)

# How long after it began clients' requests wait for a leader that compares its log with the lake. It is mostly done
# within one second. Where the store is away it takes longer than a client waits for an answer, and what comes behind
# such a request on its connection would wait, too.
RECOVERY_SECONDS_MAX = 5.0
# How long after a flush failed on a full disk the next one is tried.
FLUSH_RETRY_SECONDS = 1.0
_DEPOSED = "another broker leads it by now"


class LeaderPartition:
    """A partition of this broker."""

    __slots__ = (
        "_pending_acknowledgements",
        "_began_ms",
        "_clock",
        "_deletions",
        "_flush_again",
        "_log_end_watchers",
        "_is_deposed",
        "_is_lost",
        "_recovery",
        "alter_partition",
        "idle_sessions",
        "is_switching",
        "_ends_transactions",
        "lake_log_start",
        "_remote_log_manager",
        "_unflushed_since",
        "_wal",
        "watchers",
        "changes",
        "counters",
        "partition",
        "leader",
        "log",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        leader: LeaderState,
        counters: TopicCounters | None = None,
        *,
        clock: Clock,
        alter_partition: AlterPartitionManager | None = None,
        remote_log_manager: RemoteLogManager | None = None,
        wal: WriteAheadLog | None = None,
    ) -> None:
        """`counters` are those of the partition's topic; without `alter_partition` there must be no followers.

        `remote_log_manager` copies rolled segments; `wal` has what a diskless partition's producers get acknowledged.
        """
        self.counters = counters if counters is not None else TopicCounters()
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = log.topic_id
        self.log = log
        self.leader = leader
        self._clock = clock
        self.alter_partition = alter_partition
        self._remote_log_manager = remote_log_manager
        self.watchers: dict[Watcher[LeaderPartition], None] = {}
        # The watchers that read up to the log's end.
        self._log_end_watchers: dict[Watcher[LeaderPartition], None] = {}
        self.idle_sessions: dict[SessionReader, Callable[[LeaderPartition], None]] = {}
        # How often anything has happened that a lookup may show.
        self.changes = 0
        self._pending_acknowledgements: dict[PendingAcknowledgement, None] = {}
        self._deletions: dict[asyncio.Future[int], int] = {}
        # Where the lake says that the partition begins, as far as that is known.
        self.lake_log_start = 0
        self._unflushed_since: int | None = None
        self._flush_again: asyncio.TimerHandle | None = None
        self._wal = wal
        self._is_lost = self._is_deposed = False
        self._began_ms = clock.monotonic_ms()
        self._recovery: asyncio.Future[None] | None = None
        # Whether it takes no appends in this epoch, as it becomes diskless or replicated; and whether it takes those
        # that belong to transactions which are open.
        self.is_switching = self._ends_transactions = False
        log.update_high_watermark(leader.high_watermark)

    # -- reading ------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self.leader.high_watermark

    def last_stable_offset(self) -> int:
        """Everything below is committed and belongs to no open transaction."""
        return self.log.last_stable_offset(self.leader.high_watermark)

    def fetchable_end(self, isolation_level: int) -> int:
        """How far a consumer may read."""
        if isolation_level == READ_COMMITTED:
            return self.log.last_stable_offset(self.leader.high_watermark)
        return self.leader.high_watermark

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that a read_committed consumer must skip in [start, end)."""
        return self.log.aborted_transactions(start, end) if end > start else []

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above this one and where it ends; -1 and -1 where none is known."""
        return self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a reader that names another leader epoch (KIP-320), and all once another broker leads."""
        self.leader.check_epoch(current_leader_epoch)
        if self._is_deposed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _DEPOSED)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset belongs to, or -1."""
        return self.log.leader_epochs.epoch_for_offset(offset)

    # -- appending ----------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        is_prepared: bool = False,
    ) -> AppendInfo:
        """Append as the leader; raises KafkaError, or TakesLong, after which nothing has changed.

        `is_prepared`: a producer's batch has been through `prepare_in_thread`, as it must if that takes long.
        """
        leader, log = self.leader, self.log
        leader.check_append(acks)
        if self.is_switching and not self._ends_transaction(records, origin):
            kind = "replicated" if self.is_diskless else "diskless"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"it is becoming {kind}")
        if self._wal is not None:
            self._check_wal(self._wal, origin)
        self._changing()
        active = log.active
        try:
            info = log.append(
                records,
                leader_epoch=leader.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                is_prepared=is_prepared,
                at_once=True,
            )
        finally:
            if log.active is not active and self._remote_log_manager is not None:
                self._remote_log_manager.segment_rolled(log)
        self.counters.appended(info.last_offset - info.first_offset + 1, len(records))
        if not info.duplicate:
            if self._wal is not None:
                self._wal.appended(self, info.first_offset, log.log_end_offset, info.size_bytes)
            elif self._unflushed_since is None and not self._must_flush():
                self._perform(leader.appended(log.log_end_offset, self._clock.monotonic_ms()))
            elif self._unflushed_since is None:
                self._unflushed_since = info.first_offset
                log.flush(then=self._flushed)
            if self._log_end_watchers:
                self._wake(self._log_end_watchers)
        return info

    def _must_flush(self) -> bool:
        """Whether flush.messages demands a flush before what was appended counts."""
        log = self.log
        return log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def _flushed(self, error: BaseException | None) -> None:
        """A flush has ended: durable records count; what was appended meanwhile is flushed next."""
        log = self.log
        if self._unflushed_since is None or self._is_lost:
            return
        if error is not None:
            self._unflushed_since = None
            self._fail(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            if log.storage_error is None and self._flush_again is None:
                loop = asyncio.get_running_loop()
                self._flush_again = loop.call_later(FLUSH_RETRY_SECONDS, self._flush_left)
            return
        durable = log.recovery_point
        if durable > self._unflushed_since:
            self._unflushed_since = None if durable >= log.log_end_offset else durable
            end_offset = max(durable, self.leader.effective_end_offset)
            self._changing()
            self._perform(self.leader.appended(end_offset, self._clock.monotonic_ms()))
            self._settle_all()
        if self._unflushed_since is not None:
            log.flush(then=self._flushed)

    def _flush_left(self) -> None:
        """Flush what does not count yet, unless a flush is in progress."""
        self._flush_again = None
        if self._is_lost or self._unflushed_since is not None:
            return
        if self.leader.effective_end_offset < self.log.log_end_offset:
            self._unflushed_since = self.leader.effective_end_offset
            self.log.flush(then=self._flushed)

    # -- recovering -----------------------------------------------------------------------------

    @property
    def recovery(self) -> asyncio.Future[None] | None:
        """What clients' requests wait for while the log is compared with the lake; None if they need not.

        They are handled when it is done: the leader leads, or is lost, or takes too long, and they are refused.
        """
        if not self.leader.is_recovering or self._is_lost:
            return None
        if self._recovery is None:
            left_s = RECOVERY_SECONDS_MAX - (self._clock.monotonic_ms() - self._began_ms) / 1_000
            if left_s <= 0:
                return None
            loop = asyncio.get_running_loop()
            self._recovery = loop.create_future()
            timer = loop.call_later(left_s, self._end_recovery)
            self._recovery.add_done_callback(lambda _: timer.cancel())
        return None if self._recovery.done() else self._recovery

    def _end_recovery(self) -> None:
        if self._recovery is not None and not self._recovery.done():
            self._recovery.set_result(None)

    # -- diskless -------------------------------------------------------------------------------

    @property
    def is_diskless(self) -> bool:
        """Whether the partition's records are acknowledged once the write-ahead log has them."""
        return self.leader.is_diskless

    @property
    def key(self) -> PartitionId:
        """The partition."""
        return self.topic_id, self.partition

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this broker leads."""
        return self.leader.leader_epoch

    def begin_switch(self, *, ends_transactions: bool = False) -> None:
        """Take no more appends in this leader epoch: what there is is put, and then it is diskless in a later one.

        Or it is copied, and then it is replicated. `ends_transactions`: those that are open may go on to their ends, as
        nothing of them is copied before.
        """
        self._changing()
        self.is_switching, self._ends_transactions = True, ends_transactions

    def _ends_transaction(self, records: memoryview, origin: AppendOrigin) -> bool:
        if not self._ends_transactions or len(records) < HEADER_BYTES:
            return False
        header = BatchHeader._make(HEADER.unpack_from(records))
        is_marker = origin is AppendOrigin.COORDINATOR
        return is_marker or self.log.producers.is_in_transaction(
            header.producer_id, header.producer_epoch
        )

    def give_up_switch(self) -> None:
        """Take appends as before. Nobody must have been asked for the switch in this epoch."""
        self.is_switching = False
        self._changing()

    def _check_wal(self, wal: WriteAheadLog, origin: AppendOrigin) -> None:
        if self._is_deposed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _DEPOSED)
        if origin is AppendOrigin.CLIENT:
            wal.check_room()

    def read_appended(self, offset: int, max_bytes: int) -> LogRead:
        """Whole batches up to the log's end. Raises OSError, KafkaError."""
        log = self.log
        return log.read(
            offset,
            max_bytes=max_bytes,
            upper_bound_offset=log.log_end_offset,
            min_one_batch=True,
        )

    def failed_to_put(self, error: Exception) -> None:
        """What was appended is never put: the log's directory counts as failed, so that another broker leads."""
        _LOGGER.error(
            "%s: unable to put offsets from %d on into the write-ahead log: %s",
            self.log.name, self.leader.effective_end_offset, error,
        )  # fmt: skip
        self._is_deposed = True
        self.log.failed_to_read(
            error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
        )
        self._fail(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def wal_has(self, first_offset: int, end_offset: int) -> None:
        """The write-ahead log has these records; they count if it has all before them."""
        counted, end_offset = (
            self.leader.effective_end_offset,
            min(end_offset, self.log.log_end_offset),
        )
        if self._is_lost or end_offset <= counted:
            return
        if first_offset > counted:
            if self.leader.is_recovering:
                return  # Of an earlier attempt to take over: this one puts it again.
            raise AssertionError(f"offsets {counted} to {first_offset - 1} were left out")
        self._changing()
        self._perform(self.leader.appended(end_offset, self._clock.monotonic_ms()))
        self._settle_all()

    def deposed(self, leader_epoch: int) -> None:
        """Another broker leads in this epoch, says its fence: what is not acknowledged never will be."""
        _LOGGER.info(
            "%s: the write-ahead log was fenced by the leader of epoch %d: leading no more; not acknowledged were %d "
            "offsets from %d on",
            self.log.name, leader_epoch, self.log.log_end_offset - self.leader.effective_end_offset,
            self.leader.effective_end_offset,
        )  # fmt: skip
        self._changing()
        self._is_deposed = True
        self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)

    def restart_at(self, offset: int, aux_state: RemoteLogAuxState) -> None:
        """Empty the local log and go on at an offset, with what the lake says, for a take-over. Raises OSError."""
        self._changing()
        self.log.restart_at(offset, aux_state)
        self.leader.restarted(offset)
        self.log.update_high_watermark(offset)

    def take_over(self, records: memoryview, now_ms: int) -> None:
        """Append batches of earlier leaders, and put them again. Raises KafkaError."""
        assert self._wal is not None
        log, first = self.log, self.log.log_end_offset
        epoch = self.leader.leader_epoch
        size = log.append_as_follower(records, leader_epoch=epoch, now_ms=now_ms)
        if log.log_end_offset > first:
            self._wal.appended(self, first, log.log_end_offset, size, is_again=True)

    # -- acknowledging --------------------------------------------------------------------------

    def is_acknowledged(self, last_offset: int, acks: int) -> bool:
        """Whether an append up to this offset may be answered now."""
        leader = self.leader
        return last_offset < (leader.high_watermark if acks == -1 else leader.effective_end_offset)

    def acknowledgement(self, last_offset: int, acks: int) -> asyncio.Future[None]:
        """Done once an append up to this offset may be answered, or failed with a KafkaError."""
        waiting = PendingAcknowledgement(
            last_offset, acks, asyncio.get_running_loop().create_future()
        )
        if self._is_lost:
            waiting.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        # It may have been reached before.
        elif not self._settle(waiting):
            self._pending_acknowledgements[waiting] = None
        waiting.future.add_done_callback(lambda _: self._forget(waiting))
        return waiting.future

    def _forget(self, waiting: PendingAcknowledgement) -> None:
        if not waiting.future.cancelled():
            waiting.future.exception()  # The produce request may have been cancelled.
        self._pending_acknowledgements.pop(waiting, None)

    def _settle(self, waiting: PendingAcknowledgement) -> bool:
        """Answer a producer's append, if its outcome is known."""
        if not self.is_acknowledged(waiting.last_offset, waiting.acks):
            return False
        try:
            if waiting.acks == -1:
                self.leader.check_acknowledgement()
        except KafkaError as error:
            waiting.fail(error)
        else:
            if not waiting.future.done():
                waiting.future.set_result(None)
        return True

    def _settle_all(self) -> None:
        for waiting in tuple(self._pending_acknowledgements):
            if self._settle(waiting):
                del self._pending_acknowledgements[waiting]

    # -- events -------------------------------------------------------------------------------

    def elected(self) -> None:
        """Begin the leader's epoch at the end of the log; records that the disk lacks count once they are flushed."""
        self._changing()
        if self._flush_again is None and self._wal is None:
            self._flush_left()
        self._perform(self.leader.elected(self.log.log_end_offset, self._clock.monotonic_ms()))
        if self.is_diskless:
            # Deleted records are taken over like others.
            self.log.advance_log_start_offset(min(self.lake_log_start, self.high_watermark))
        if self._recovery is not None:
            self._end_recovery()
            self._recovery = None
            self._wake(self.watchers)

    def lake_reaches(self, next_offset: int) -> None:
        """The high watermark is never below the lake's end: segments up to there may have been deleted."""
        self._perform(self.leader.lake_reaches(next_offset))

    def lake_begins(self, log_start_offset: int) -> None:
        """The topic's table has this log start, which each later leader goes by."""
        self.lake_log_start = log_start_offset
        self._settle_deletions()

    def registration_changed(self, registration: PartitionRegistration) -> None:
        """The metadata describe the partition; with a new leader epoch `elected` must follow."""
        self._changing()
        if registration.leader_epoch > self.leader.leader_epoch:
            self.is_switching = False
        if self._wal is not None and registration.leader_epoch > self.leader.leader_epoch:
            # What is not acknowledged may be missing in what this leader takes over.
            self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            self._wal.forget(self)
            self._is_deposed = False
        self._perform(self.leader.registration_changed(registration, self._clock.monotonic_ms()))

    def configured(self, min_insync_replicas: int) -> None:
        """The topic's min.insync.replicas is now this."""
        self._changing()
        self._perform(self.leader.configured(min_insync_replicas, self._clock.monotonic_ms()))

    def update_follower_fetch_state(
        self, replica_id: int, *, fetch_offset: int, log_start_offset: int, broker_epoch: int
    ) -> None:
        """A follower fetches from this offset, which is within the log; raises as `LeaderState.fetched` does."""
        for reader in tuple(self.idle_sessions):
            # The follower has opened another session, or has none.
            if reader.replica_id == replica_id:
                self.remove_idle(reader)
        effects = self.leader.fetched(
            replica_id,
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            leader_log_end_offset=self.log.log_end_offset,
            now_ms=self._clock.monotonic_ms(),
            broker_epoch=broker_epoch,
        )
        if effects:
            self._perform(effects)
        if self._deletions:
            self._settle_deletions()

    def tick(self) -> None:
        """Look for followers that lag; to be called every half replica.lag.time.max.ms."""
        self._perform(self.leader.tick(self._clock.monotonic_ms()))
        if self._deletions:
            self._settle_deletions()

    def _perform(self, effects: Effects) -> None:
        if effects:
            self._changing()
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    self.log.update_high_watermark(offset)
                    if self.watchers:
                        self._wake(self.watchers)
                    if self._pending_acknowledgements:
                        self._settle_all()
                case ProposeIsr():
                    self._propose_isr(effect)
                case CountIsrChange():
                    self._isr_updated(effect)
                case _:
                    assert_never(effect)

    # -- the ISR --------------------------------------------------------------------------------

    def _propose_isr(self, effect: ProposeIsr) -> None:
        leader, isr = self.leader, effect.proposal.members
        _LOGGER.info(
            "%s: %s ISR from %s to %s. Leader: (highWatermark: %d, endOffset: %d)",
            self.log.name,
            "Shrinking" if isr < set(leader.isr) else "Expanding",
            _listed(leader.isr),
            _listed(isr),
            self.high_watermark,
            self.log.log_end_offset,
        )
        if effect.after_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(effect.after_ms / 1000, self._submit, effect.proposal)
        else:
            self._submit(effect.proposal)

    def _submit(self, proposal: Proposal) -> None:
        if self._is_lost or not self.leader.awaits(proposal):
            return  # Metadata have overtaken it.
        assert self.alter_partition is not None, "nobody asks the controller"
        answer = self.alter_partition.submit(self.topic_id, self.partition, proposal)
        answer.add_done_callback(partial(self._alter_partition_completed, proposal))

    def _alter_partition_completed(
        self, proposal: Proposal, future: asyncio.Future[AlterPartitionAnswer]
    ) -> None:
        if not (self._is_lost or future.cancelled()):
            self.answered(proposal, future.result())

    def answered(self, proposal: Proposal, answer: AlterPartitionAnswer) -> None:
        """The controller has answered a proposal."""
        if answer.error is not ErrorCode.NONE:
            _LOGGER.info(
                "%s: Failed to alter partition: %s", self.log.name, answer.error.name,
            )  # fmt: skip
        now_ms = self._clock.monotonic_ms()
        self._changing()
        self._perform(self.leader.alter_partition_answered(proposal, answer, now_ms))

    def _isr_updated(self, effect: CountIsrChange) -> None:
        assert self.alter_partition is not None
        self.alter_partition.count(effect)
        if effect.expanded or effect.shrunk:
            leader = self.leader
            _LOGGER.info(
                "%s: ISR updated to %s and version updated to %d",
                self.log.name, _listed(leader.isr), leader.partition_epoch,
            )  # fmt: skip

    # -- watchers -----------------------------------------------------------------------------

    def _wake(self, watchers: dict[Watcher[LeaderPartition], None]) -> None:
        for watcher in tuple(watchers):
            watcher.advanced(self)

    # -- deleting records -----------------------------------------------------------------------

    def low_watermark(self) -> int:
        """The lowest log start of all live replicas, this one included; -1 while one is unknown.

        Of a diskless partition, whose log is a cache, or is about to be one, the one that its table has.
        """
        start, is_cache = self.log.log_start_offset, self.is_diskless or self.is_switching
        return self.leader.low_watermark(min(start, self.lake_log_start) if is_cache else start)

    def deletion(self, offset: int) -> asyncio.Future[int]:
        """Done once the low watermark has reached this offset, with it; or failed."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._is_lost:
            done.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return done
        self._deletions[done] = offset
        done.add_done_callback(lambda _: self._deletions.pop(done, None))
        self._settle_deletions()
        return done

    def _settle_deletions(self) -> None:
        low = self.low_watermark()
        for done, offset in tuple(self._deletions.items()):
            if low >= offset and not done.done():
                done.set_result(low)

    # -- idle partitions ----------------------------------------------------------------------

    def add_idle(self, reader: SessionReader, activated: Callable[[LeaderPartition], None]) -> None:
        """Call `activated` before something happens; for a follower only if the leader's `may_be_idle` allows."""
        self.idle_sessions[reader] = activated
        if reader.replica_id >= 0:
            self.leader.follower_idle(reader)

    def remove_idle(self, reader: SessionReader) -> None:
        """Look this partition up for the session again."""
        self._activate(reader, self.idle_sessions.pop(reader))

    def _changing(self) -> None:
        """Something is about to happen that a lookup may show."""
        self.changes += 1
        if self.idle_sessions:
            idle, self.idle_sessions = self.idle_sessions, {}
            for reader, activated in idle.items():
                self._activate(reader, activated)

    def _activate(
        self, reader: SessionReader, activated: Callable[[LeaderPartition], None]
    ) -> None:
        if reader.replica_id >= 0:
            self.leader.follower_active(reader.replica_id)
        activated(self)

    # -- waiting ------------------------------------------------------------------------------

    def watch(self, watcher: Watcher[LeaderPartition], *, to_log_end: bool = False) -> None:
        """Notify this watcher of everything that happens to the partition; of appends if it reads to the log's end."""
        assert not self._is_lost, "nothing more happens to a lost partition"
        self.watchers[watcher] = None
        if to_log_end:
            self._log_end_watchers[watcher] = None

    def unwatch(self, watcher: Watcher[LeaderPartition]) -> None:
        """Stop notifying this watcher."""
        self.watchers.pop(watcher, None)
        if self._log_end_watchers:
            self._log_end_watchers.pop(watcher, None)

    def lose(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """This broker no longer serves the partition; requests that wait for an append get this code."""
        if self._is_lost:
            return
        self._changing()
        self._is_lost = True
        if self._flush_again is not None:
            self._flush_again.cancel()
            self._flush_again = None
        if self._wal is not None:
            self._wal.forget(self)
        self._fail(code, None)
        self._end_recovery()
        watchers = tuple(self.watchers)
        self.watchers.clear()
        self._log_end_watchers.clear()
        for watcher in watchers:
            watcher.lost(self)

    @property
    def watcher_count(self) -> int:
        """How many fetches wait for more."""
        # A fetch that watched before another one of its session made the partition idle counts once.
        return len(
            {*self.watchers, *chain.from_iterable(each.parked for each in self.idle_sessions)}
        )

    @property
    def pending_acknowledgement_count(self) -> int:
        """How many appends wait to count."""
        return len(self._pending_acknowledgements)

    @property
    def is_lost(self) -> bool:
        """Whether this broker no longer serves the partition."""
        return self._is_lost

    def _fail(self, code: ErrorCode, message: str | None) -> None:
        failed, self._pending_acknowledgements = self._pending_acknowledgements, {}
        for waiting in failed:
            waiting.fail(KafkaError(code, message))
        for done in tuple(self._deletions):
            if not done.done():
                done.set_exception(KafkaError(code, message))


class PendingAcknowledgement:
    """An append that waits for its last offset: to be committed, or with acks=1 to count on the leader."""

    __slots__ = ("acks", "future", "last_offset")

    def __init__(self, last_offset: int, acks: int, future: asyncio.Future[None]) -> None:
        self.last_offset = last_offset
        self.acks = acks
        self.future = future

    def fail(self, error: KafkaError) -> None:
        """The offset will not count as this producer demanded."""
        if not self.future.done():
            self.future.set_exception(error)


def _listed(members: Iterable[int]) -> str:
    return ",".join(map(str, sorted(members)))
