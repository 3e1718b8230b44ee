"""Shell: one partition's log: append, read, roll, truncate, flush, retain (Kafka's UnifiedLog).

Only the event loop's thread changes a log. The tuple of segments is replaced, never changed, and files stay open for
file.delete.delay.ms, so that a read may finish in any thread. An append checks, stamps and writes, and only then
changes anything in memory: a failure has changed nothing, or, if a failed write cannot be removed, ends all appends. A
truncation happens as a whole or not at all, from the end: after a kill in the middle less is deleted, or all. Waiting
for the disk (fsync, unlink) goes to Background; `recovery_point` moves when it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from broker.log.compaction import Compaction
from broker.log.config import LogConfig
from broker.log.durability import Durability, FlushCallback
from broker.log.epochs_file import EpochsFile
from broker.log.own_batches import AppendPosition, accept
from broker.log.recovery.leftovers import offsets_of
from broker.log.recovery.recovery import LoadedLog, load, load_producers
from broker.log.retention import RetentionLimits
from broker.log.segment import lookup
from broker.log.segment.scan import headers
from broker.log.segment.segment import Segment
from broker.log.segments import LogSegments
from broker.log.validation import check_client_batch, prepare, too_large_for_segment
from broker.log.values import (
    AppendInfo,
    EnrichedLogSegment,
    LogRead,
    RemoteLogAuxState,
)
from kafka_ds.process.seams import Background, Clock, Disk
from kafka_ds.process.system import InlineBackground
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition, TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    set_log_append_time,
    stamp,
)
from kafka_ds.records.timestamps import TimestampAndOffset
from kafka_ds.segments import names
from kafka_ds.segments.files import replace, unlink_if_there
from kafka_ds.segments.index import AbortedTxn
from kafka_ds.segments.producers import AppendOrigin, Before, CorruptSnapshot, Producers, record_own

# A truncation reads the headers of at most such an end to know which producers it concerns.
TRUNCATED_BYTES_MAX = 4 << 20

NOTHING_REMOTE = RemoteLogAuxState()

_LOGGER = logging.getLogger(__name__)


def _nobody(_folder: str, _error: OSError) -> None:
    """A log that belongs to no manager."""


class Log:
    """One partition's log. Offsets ascend, with no gaps except those of compaction."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        background: Background,
        loaded: LoadedLog,
        identity: tuple[str, int, bytes],
        report: Callable[[str, OSError], None],
    ) -> None:
        self.topic, self.partition, self.topic_id = identity
        self.topic_partition = TopicPartition(self.topic, self.partition)
        self.name = str(self.topic_partition)
        self.directory = directory
        self.config = config
        self.leader_epochs, self.producers = loaded.epochs, loaded.producers
        self.log_start_offset, self.log_end_offset = loaded.log_start_offset, loaded.log_end_offset
        # The least entry of log-start-offset-checkpoint: a start of the broker begins there, whatever happens.
        self.durable_log_start_offset = loaded.log_start_offset
        # What its recovery has dropped, and up to where it is known to have reached before.
        self.dropped, self.known_end_offset = loaded.dropped, loaded.known_end_offset
        self._high_watermark: int | None = None
        self.highest_offset_in_remote_storage = -1
        self._disk = disk
        self._clock = clock
        # Its files; changed as a whole when it moves (`exchange_files`).
        self.durability = Durability(
            self.name, directory, background, loaded.recovery_point, clock.now_ms(), report
        )
        self.segments = LogSegments(
            disk, background, directory, loaded.segments, self.durability.fail
        )
        self.active = self.segments.active
        self.compaction = Compaction()
        self.epochs_file = EpochsFile(disk, directory, loaded.epochs, is_dirty=loaded.epochs_dirty)
        self._is_changed = not loaded.was_clean or loaded.epochs_dirty
        self._is_closed = self._is_abandoned = False

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        *,
        topic: str,
        partition: int,
        topic_id: bytes = NO_UUID,
        clean_shutdown: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        background: Background | None = None,
        report: Callable[[str, OSError], None] = _nobody,
    ) -> Self:
        """Open or create the log in `directory` (the partition's own folder), recovering it.

        `report` is called for each disk error with the log's folder; the caller gets the error, too.
        """
        loaded = load(
            disk,
            directory,
            config,
            now_ms=clock.now_ms(),
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        chosen = background or InlineBackground()
        identity = topic, partition, topic_id
        return cls(directory, config, disk, clock, chosen, loaded, identity, report)

    # -- state ---------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def invalid_message_bytes(self) -> int:
        """How much of the segments no reader can read, as far as one has tried: behind what is no batch."""
        found = (
            each.size_bytes - each.invalid_from
            for each in self.segments.all
            if each.invalid_from is not None
        )
        return sum(found)

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that is on the local disk."""
        return max(self.log_start_offset, self.first_base_offset)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest local segment."""
        return self.segments.all[0].base_offset

    @property
    def unflushed_count(self) -> int:
        return self.log_end_offset - self.recovery_point

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """Its partition by name and id."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    def assign_topic_id(self, topic_id: bytes) -> None:
        """The log's topic, whose id was not known, has this one."""
        self.topic_id = topic_id

    # -- appending ------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        is_prepared: bool = False,
        at_once: bool = False,
    ) -> AppendInfo:
        """Check, stamp in place and write. If it raises KafkaError or TakesLong, nothing has changed.

        The caller applies flush.messages: the log would make its event loop wait. `is_prepared`: the caller has
        prepared the batch. `at_once`: raise TakesLong if preparing it takes long.
        """
        if origin is not AppendOrigin.CLIENT:
            return self._append_records(records, leader_epoch, now_ms, origin)
        config = self.config
        if is_prepared:
            header = check_client_batch(records, config)
        else:
            records, header = prepare(records, config, now_ms, at_once=at_once)
        size = len(records)
        if size > config.segment_bytes:
            raise too_large_for_segment(size, config)
        if header.producer_id >= 0:
            earlier = self.producers.check(header, origin)
            if earlier is not None:
                time_ms = earlier.timestamp_ms if config.uses_log_append_time else -1
                first, last = earlier.first_offset, earlier.last_offset
                return AppendInfo(first, last, time_ms, self.log_start_offset, True, size)
        first_offset = self.log_end_offset
        time_ms = -1
        if config.uses_log_append_time:
            header = set_log_append_time(records, 0, header, now_ms)
            time_ms = now_ms
        stamp(records, 0, base_offset=first_offset, leader_epoch=leader_epoch)
        header = header.at(first_offset, leader_epoch)
        self.write(records, (header,), now_ms)
        if header.producer_id >= 0:
            self.producers.update(header)
        last_offset = self.log_end_offset - 1
        return AppendInfo(first_offset, last_offset, time_ms, self.log_start_offset, False, size)

    def _append_records(
        self, records: memoryview, leader_epoch: int, now_ms: int, origin: AppendOrigin
    ) -> AppendInfo:
        """Append batches that a leader (their offsets stay) or this broker made."""
        if records.readonly:
            records = memoryview(bytearray(records))
        first_offset = self.log_end_offset
        place = AppendPosition(first_offset, leader_epoch, now_ms)
        batches = accept(records, self.producers, self.config, origin, place)
        if batches:
            first_offset = batches[0].header.base_offset
            self.write(records, [batch.header for batch in batches], now_ms)
            for batch in batches:
                aborted = record_own(batch, self.producers)
                if aborted is not None:
                    self.active.aborted.append(aborted)
        is_timed = self.config.uses_log_append_time and origin is not AppendOrigin.REPLICATION
        last_offset, start_offset = self.log_end_offset - 1, self.log_start_offset
        time_ms = now_ms if is_timed else -1
        return AppendInfo(first_offset, last_offset, time_ms, start_offset, False, len(records))

    def append_as_follower(self, records: memoryview, *, leader_epoch: int, now_ms: int) -> int:
        """Append the leader's batches, none of a later epoch than `leader_epoch`; returns their bytes.

        Raises KafkaError: CORRUPT_MESSAGE for damage and for offsets that go back, KAFKA_STORAGE_ERROR for a disk
        error. What came before stays appended.
        """
        appended = 0
        for run in runs(records, leader_epoch, self.config.segment_bytes):
            self._make_room_below(run)
            self._append_records(run, leader_epoch, now_ms, AppendOrigin.REPLICATION)
            appended += len(run)
        return appended

    def _make_room_below(self, run: memoryview) -> None:
        """Move an empty log's beginning down to the first offset of the batch that holds it.

        DeleteRecords may leave a leader's log start within a batch, and batches come whole.
        """
        header = BatchHeader._make(HEADER.unpack_from(run))
        end = self.log_end_offset
        is_empty = end == self.local_log_start_offset and not self.size_bytes
        if is_empty and header.base_offset < end <= header.last_offset:
            self.restart_at(header.base_offset)

    def write(
        self, records: memoryview, headers: tuple[BatchHeader, ...] | list[BatchHeader], now_ms: int
    ) -> None:
        """Write validated batches at the log's end. Raises KafkaError of a log directory that has failed."""
        if self.durability.storage_error is not None:
            self.durability.check()
        self._is_changed = True
        last = headers[-1]
        segment = self.active
        try:
            if segment.should_roll(
                self.config, self.name, size=len(records), last=last, now_ms=now_ms
            ):
                segment = self._roll(headers[0].base_offset)
            _ = segment.aborted.entries  # Once a marker is written, nothing may fail.
            segment.write(records)
        except OSError as error:
            if segment.is_damaged:
                self.durability.fail(error)
            raise self.durability.unavailable(error) from error
        for header in headers:
            segment.note(header)
            if header.leader_epoch > self.leader_epochs.latest_epoch:
                self.assign_leader_epoch(header.leader_epoch, header.base_offset)
        self.log_end_offset = last.next_offset

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Record at which offset a leader epoch begins; a new leader does so before it appends."""
        if self.leader_epochs.assign(epoch, start_offset):
            self._epochs_changed()

    def _epochs_changed(self) -> None:
        self._is_changed = True
        self.epochs_file.mark_dirty()

    # -- reading --------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        may_wait: bool = True,
    ) -> LogRead:
        """Find the whole batches from the one that holds `offset` up to the bound.

        Raises OFFSET_OUT_OF_RANGE outside [local_log_start_offset, log_end_offset], and, unless
        it may wait, BlockingIOError where the disk is needed to find the batch: ask in a thread.
        """
        segments = self.segments.all
        end_offset = self.log_end_offset
        first_offset = max(self.log_start_offset, segments[0].base_offset)
        if not first_offset <= offset <= end_offset:
            problem = f"{self.name}: offset {offset} is not in [{first_offset}, {end_offset}]"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, problem)
        bound = min(upper_bound_offset, end_offset)
        if offset >= bound:
            return LogRead((), 0, offset)
        if offset < segments[-1].base_offset:
            self.segments.note_use(segments[lookup.segment_index(segments, offset)])
        return lookup.read(
            segments,
            offset,
            max_bytes=max_bytes,
            bound=bound,
            min_one_batch=min_one_batch,
            may_wait=may_wait,
        )

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: every transaction below it has its marker below the high watermark."""
        return self.producers.last_stable_offset(high_watermark, self.log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [start_offset, end_offset)."""
        return lookup.aborted(self.segments.all, start_offset, end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """The first record at or after a time, in the local segments."""
        segments = self.segments.all
        return lookup.first_at_or_after(segments, timestamp_ms, self.local_log_start_offset)

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (ListOffsets -3), in the local segments."""
        return lookup.latest(self.segments.all)

    # -- rolling --------------------------------------------------------------------------------

    def roll(self) -> None:
        """Roll the active segment and begin one at the log's end; an empty segment stays."""
        if self.active.size_bytes:
            try:
                self._roll(self.log_end_offset)
            except OSError as error:
                raise self.durability.unavailable(error) from error

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll if the active segment is older than segment.ms."""
        due = not self._is_closed and self.active.is_due(self.config, self.name, now_ms)
        if due:
            self.roll()
        return due

    def _roll(self, base_offset: int) -> Segment:
        """Begin a segment at `base_offset`, the end of the log or (for a follower) beyond it."""
        if self.active.size_bytes:
            self._take_snapshot(base_offset)
        self._is_changed = True
        try:
            new = self.segments.begin(base_offset, self.config, self._clock.now_ms())
        except OSError:
            if base_offset > self.log_end_offset:
                # The leader writes what is missing in between, of which it knows nothing.
                unlink_if_there(self._disk, self._snapshot_at(base_offset))
            raise
        self.active = new
        # Also if the write that needs it fails: there is nothing in between, and nothing may be written there.
        self.log_end_offset = base_offset
        self.flush(base_offset)
        _LOGGER.info("%s: Rolled new log segment at offset %d", self.name, base_offset)
        return new

    def _take_snapshot(self, offset: int) -> None:
        data = self.producers.encode_snapshot(self._clock.now_ms())
        replace(self._disk, self._snapshot_at(offset), data, durable=False)

    def _snapshot_at(self, offset: int) -> str:
        return f"{self.directory}/{names.file_name(offset, names.PRODUCER_SNAPSHOT)}"

    # -- durability -----------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self.durability.recovery_point

    @property
    def storage_error(self) -> OSError | None:
        """The error that put this log out of service, if any."""
        return self.durability.storage_error

    def failed_to_read(self, error: OSError) -> None:
        """A reader met a disk error."""
        self.durability.report(error)

    def flush(
        self, up_to: int | None = None, *, wait: bool = False, then: FlushCallback | None = None
    ) -> None:
        """Make all below `up_to` (the end) durable, in Background unless waiting; `then` is called with the outcome."""
        target = self.log_end_offset if up_to is None else up_to
        now_ms = self._clock.now_ms()
        self.durability.flush(self._prepare_sync, target, now_ms, wait=wait, then=then)

    def _prepare_sync(self, target: int) -> Callable[[], None]:
        return self.segments.syncing(self.recovery_point, target, self.epochs_file.writing())

    # -- retention -----------------------------------------------------------------------------

    def update_high_watermark(self, high_watermark: int) -> None:
        """Set the committed end; nothing above is deleted. Until set, everything counts as committed."""
        self._high_watermark = high_watermark
        self.producers.on_high_watermark_updated(high_watermark)

    @property
    def committed_offset(self) -> int:
        """The high watermark; the log end offset if none was set."""
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    def raise_known_end_offset(self, offset: int) -> None:
        """The log is known to have reached this offset before the start."""
        self.known_end_offset = max(self.known_end_offset, offset)

    def log_start_offset_checkpointed(self, offset: int) -> None:
        """log-start-offset-checkpoint has this offset now, and no write of it is under way."""
        self.durable_log_start_offset = offset

    def update_highest_offset_in_remote_storage(self, offset: int) -> None:
        """Local retention may delete up to there; a lower offset than before means that the lake has lost records."""
        self.highest_offset_in_remote_storage = offset

    def set_back(self, by_ms: int) -> None:
        """The clock was set back: all that was begun before was begun as long ago as it was."""
        self.segments.trash.set_back(by_ms)
        self.durability.set_back(by_ms)
        self.active.set_back(by_ms)

    def delete_local_segments(self, now_ms: int) -> list[int]:
        """Delete what retention allows, while nothing is cleaned; returns the base offsets of the deleted segments.

        A tiered log may begin below its first segment, so that a restart cannot derive its start from the segments:
        what the lake does not have is deleted once the checkpoint of log starts records that.
        """
        tiered = self.highest_offset_in_remote_storage
        limits = RetentionLimits(self.log_start_offset, self.committed_offset, tiered)
        count = self.segments.count_deletable(self.config, limits, now_ms)
        if not count or self.compaction.is_running:
            return []
        if count == len(self.segments.all):
            self.roll()  # There is always an active segment.
        is_tiered = self.config.remote_storage_enable
        if is_tiered:
            if not self.config.moves_to_lake:
                self._move_start(self.segments.all[count].base_offset)
            known = max(min(self.log_start_offset, self.durable_log_start_offset), tiered + 1)
            count = sum(each.next_offset <= known for each in self.segments.all[:count])
        gone = self.segments.discard_oldest(count, now_ms + self.config.file_delete_delay_ms)
        if not is_tiered:
            self._move_start(self.segments.all[0].base_offset)
        if gone:
            _LOGGER.info(
                "%s: Deleted segments with base offsets %s due to retention; the %s at %d now",
                self.name, gone, "local log starts" if is_tiered else "log starts",
                self.segments.all[0].base_offset,
            )  # fmt: skip
        return gone

    def advance_log_start_offset(self, offset: int) -> None:
        """Move the log's beginning (DeleteRecords, or the lake's retention); never backwards.

        Segments below it are deleted by the next retention run.
        """
        if offset > self.committed_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is above the high watermark",
            )
        self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.producers.forget_transactions_below(offset)
        if self.leader_epochs.truncate_from_start(offset):
            self._epochs_changed()

    # -- truncating -----------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Truncate the batches that hold `offset` or a later one. Raises OSError, CorruptIndex: nothing has changed.

        If that lowers the recovery point, also if it raises, that has to be written before anything is appended
        (`manager.checkpoint_recovery_points`): new records are not durable, and what a recovery point covers is
        trusted.
        """
        if offset < self.first_base_offset:
            self.truncate_fully_and_start_at(offset)
        elif offset < self.log_end_offset:
            self._truncate_to(offset)
        elif self.leader_epochs.truncate_from_end(self.log_end_offset):
            self._epochs_changed()  # A leader that wrote nothing.

    def _truncate_to(self, offset: int) -> None:
        before, left = self._known_before(offset), self.segments.without(offset)
        end, found = left[-1].next_offset, self.producers
        if before is None:
            found = load_producers(
                self._disk, self.directory, left, end_offset=end, scanned_from=None
            )
            found.go_on_with_silence_of(self.producers)
        # A snapshot of what is truncated must not be taken for one of what is written there later.
        snapshots = offsets_of(self._disk, self.directory, names.PRODUCER_SNAPSHOT)
        due_ms = self._clock.now_ms() + self.config.file_delete_delay_ms
        self.segments.truncate(left, due_ms, snapshots=[each for each in snapshots if each > end])
        if before is not None:
            found.restore(before)
        self._restart_at_end(found)

    def _known_before(self, offset: int) -> Before | None:
        """What `Producers.restore` needs once all from `offset` on is truncated; None if the log must be read.

        Reading takes up to a segment's headers, while the event loop waits. Usually a follower truncates only the last
        few batches, and the last five of most producers are remembered: those that are left were known before.
        """
        active = self.active
        if offset <= active.base_offset:
            return None
        position = active.position_of(offset)
        if active.size_bytes - position > TRUNCATED_BYTES_MAX:
            return None
        gone = [header for _, header in headers(active.file.read, position, active.size_bytes)]
        return self.producers.before(offset, gone)

    def truncate_fully_and_start_at(
        self, offset: int, state: RemoteLogAuxState = NOTHING_REMOTE
    ) -> None:
        """Continue at an offset without all that is local: at the lake's end, above it. Raises as `truncate_to`."""
        now_ms = self._clock.now_ms()
        known = _producers_of(state, now_ms)
        found = Producers.decode_snapshot(known, now_ms) if known else Producers()
        found.go_on_with_silence_of(self.producers)
        gone = offsets_of(self._disk, self.directory, names.PRODUCER_SNAPSHOT)
        self.segments.discard_all(offset, self.config, now_ms, snapshots=gone, known=known)
        if not self.config.remote_storage_enable:
            self.log_start_offset = offset
        self._restart_at_end(found)
        for epoch, start_offset in state.leader_epochs:
            self.leader_epochs.assign(epoch, start_offset)
        self.epochs_file.write_now()  # No batch has them.

    def restart_at(self, offset: int, state: RemoteLogAuxState = NOTHING_REMOTE) -> None:
        """Continue at an offset, with `state` as all that is known of what is before; raises as `truncate_to`."""
        # Truncated first, so that the forgotten epochs are then on disk, too.
        self.truncate_to(self.first_base_offset)
        self.leader_epochs.clear()
        self.truncate_fully_and_start_at(offset, state)

    def _restart_at_end(self, producers: Producers) -> None:
        self._epochs_changed()
        self.active, self.producers = self.segments.active, producers
        self.log_end_offset = end = self.active.next_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_log_start_offset = min(self.durable_log_start_offset, self.log_start_offset)
        self.durability.lower_to(
            self.active.base_offset
        )  # Otherwise the truncated records may come back.
        self.compaction.truncate_to(end)
        if self._high_watermark is not None:
            self._high_watermark = min(self._high_watermark, end)
        self.leader_epochs.truncate_from_end(end)

    # -- the files ------------------------------------------------------------------------------

    def replace_segments(self, old: Sequence[Segment], size_bytes: int) -> None:
        """Replace rolled segments by the cleaned one; after an OSError the log is out of service."""
        now_ms = self._clock.now_ms()
        try:
            self.segments.replace(
                old, size_bytes, now_ms, now_ms + self.config.file_delete_delay_ms
            )
        except OSError as error:
            self.durability.fail(error)
            raise

    def renamed(self, directory: str) -> None:
        """The log's folder was renamed."""
        self.directory = self.durability.directory = directory
        self.segments.renamed(directory)
        self.epochs_file.renamed(directory)

    def skip_to(self, offset: int) -> None:
        """Of a copy: end where its log ends, if compaction removed everything in between."""
        self.active = self.segments.begin(offset, self.config, self._clock.now_ms())
        self.log_end_offset = offset
        self._is_changed = True

    def copy_start_of(self, log: Log) -> None:
        """Of a copy: copy its log's start, and all leader epochs, also those without a record, or without one left."""
        self.log_start_offset = log.log_start_offset
        if self.leader_epochs.entries == log.leader_epochs.entries:
            return
        self.leader_epochs.clear()
        for epoch, start_offset in log.leader_epochs.entries:
            self.assign_leader_epoch(epoch, start_offset)
        self.epochs_file.mark_dirty()
        self.epochs_file.write_now()  # Not all of them are in batches of the copy.

    def exchange_files(self, copy: Log) -> None:
        """Continue in the files of a copy with the same offsets and epochs, which are this log's from then on.

        Holders of the log object keep it: no caller must be notified. A sync in progress concerns the old files: it
        moves no recovery point of the new ones.
        """
        assert copy.log_end_offset == self.log_end_offset
        assert copy.leader_epochs.entries == self.leader_epochs.entries
        self.compaction.end()
        self.directory, copy.directory = copy.directory, self.directory
        self.segments, copy.segments = copy.segments, self.segments
        self.active, copy.active = copy.active, self.active
        self.leader_epochs, copy.leader_epochs = copy.leader_epochs, self.leader_epochs
        self.epochs_file, copy.epochs_file = copy.epochs_file, self.epochs_file
        self.durability, copy.durability = copy.durability, self.durability
        mine, its = self.durable_log_start_offset, copy.durable_log_start_offset
        self.durable_log_start_offset, copy.durable_log_start_offset = its, mine
        self._is_changed = copy._is_changed = True

    def rolled_segments(
        self, from_offset: int = 0, limit: int | None = None
    ) -> list[EnrichedLogSegment]:
        """The rolled local segments that end above an offset, oldest first."""
        return self.segments.rolled(from_offset, limit)

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        for segment in self.segments.all:
            segment.update_config(config)

    def tick(self, now_ms: int) -> None:
        """Do what is due by time, except retention: flush, unlink."""
        if self.segments.trash.is_waiting:
            self.segments.trash.purge(now_ms)
        durability = self.durability
        if self.log_end_offset == durability.recovery_point or durability.storage_error is not None:
            return
        if now_ms - durability.last_sync_ms >= self.config.flush_ms:
            self.flush()

    def abandon(self) -> None:
        """The log is deleted: nothing more is written, and readers keep the files until `close`."""
        self._is_abandoned = True
        self.compaction.end()
        self.durability.close()
        self.epochs_file.close()

    def close(self) -> bool:
        """Make everything durable and close the files; returns whether that succeeded."""
        if self._is_closed:
            return self.storage_error is None
        self.compaction.end()
        try:
            if self._is_changed and self.storage_error is None and not self._is_abandoned:
                self.active.become_inactive()
                if self.log_end_offset > self.first_base_offset:
                    self._take_snapshot(self.log_end_offset)
                self.durability.lower_to(self.active.base_offset)
                self.flush(wait=True)
                self.epochs_file.writing()()  # There was nothing to flush.
        except (OSError, KafkaError):
            return False
        finally:
            self._is_closed = True
            self.durability.close()
            self.segments.close()
        return self.storage_error is None


def runs(records: memoryview, leader_epoch: int, run_bytes_max: int) -> Iterator[memoryview]:
    """Runs of a leader's whole batches up to `run_bytes_max` each (at least one batch), before the first too new.

    A batch of a later epoch is not appended, nor anything after it: between request and answer the log may have been
    truncated for another leader (KAFKA-18723). A partial batch at the end of an answer is dropped.
    """
    begin = position = 0
    while len(records) - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(records, position))
        size = header.batch_length + LOG_OVERHEAD_BYTES
        if size < HEADER_BYTES:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes")
        if position + size > len(records) or header.leader_epoch > leader_epoch:
            break
        if position + size - begin > run_bytes_max and position > begin:
            yield records[begin:position]
            begin = position
        position += size
    if position > begin:
        yield records[begin:position]


def _producers_of(state: RemoteLogAuxState, now_ms: int) -> bytes:
    """The producers at the lake's end as a log's own snapshot, empty if none are known; they count as active now.

    Every transaction below that end was decided before it was copied, but its marker may lie above. If those markers
    are lost, none is open in the snapshot. A follower gets the markers from its leader, and must then know which
    records they end. A damaged snapshot counts as missing.
    """
    if not state.producer_snapshot:
        return b""
    try:
        producers = Producers.decode_snapshot(state.producer_snapshot)
    except CorruptSnapshot:
        return b""
    if not state.has_markers_to_come:
        producers.forget_open_transactions()
    return producers.encode_snapshot(now_ms)
