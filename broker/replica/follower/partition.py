"""Shell: one partition that this broker follows: its log, the follower's view of it, and its readers.

It performs what `FollowerState` decides, in the event loop's thread only. Consumers can read up to its own high
watermark, which is one fetch behind the leader's (KIP-392). The log derives everything else from the appended batches,
as on the leader. An error of its log concerns this partition only, until the metadata change.
"""

from __future__ import annotations

from broker.log.log import NOTHING_REMOTE, Log
from broker.log.values import READ_COMMITTED, RemoteLogAuxState
from broker.replica.follower.state import FetchPosition, FollowerState
from broker.replica.follower.truncation import truncation_for
from broker.replica.watcher import Watcher
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages.data import FetchPartition, FetchPartitionData
from kafka_ds.segments.index import AbortedTxn


class FollowerPartition:
    """A partition of this broker that another one leads."""

    __slots__ = (
        "_sent_position",
        "_truncations",
        "_truncations_written",
        "_is_lost",
        "_fetch_partition",
        "_watchers",
        "follower",
        "has_lost_records",
        "key",
        "partition",
        "is_unflushed",
        "log",
        "topic",
        "topic_id",
        "_last_logged_error",
    )

    def __init__(
        self, log: Log, follower: FollowerState, *, has_lost_records: bool = False
    ) -> None:
        """`has_lost_records`: the log holds less than it is known to have held, and has not been filled up since."""
        self.topic = log.topic
        self.partition = log.partition
        # Its key in fetchers.
        self.key = log.topic_partition
        self.topic_id = log.topic_id
        self.log = log
        self.follower = follower
        self.has_lost_records = has_lost_records
        # The last logged reason for a retry, and its level.
        self._last_logged_error: tuple[int, str] | None = None
        self._truncations = self._truncations_written = 0
        self._watchers: dict[Watcher[FollowerPartition], None] = {}
        self._is_lost = False
        self._sent_position: FetchPosition | None = None
        self._fetch_partition: FetchPartition | None = None
        # Whether flush.messages demands a flush before a fetch reports these records to the leader.
        self.is_unflushed = self._must_flush()
        log.update_high_watermark(follower.high_watermark)

    # -- reading ------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Everything below is known here to be committed."""
        return self.follower.high_watermark

    def last_stable_offset(self) -> int:
        """Everything below is committed and belongs to no open transaction."""
        return self.log.last_stable_offset(self.follower.high_watermark)

    def fetchable_end(self, isolation_level: int) -> int:
        """How far a consumer may read."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset()
        return self.follower.high_watermark

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that a read_committed consumer must skip in [start, end)."""
        return self.log.aborted_transactions(start, end) if end > start else []

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above this one and where it ends; -1 and -1 where none is known."""
        return self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a reader that names another leader epoch (KIP-320)."""
        if current_leader_epoch in (-1, self.follower.leader_epoch):
            return
        if current_leader_epoch < self.follower.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def watch(self, watcher: Watcher[FollowerPartition]) -> None:
        """Notify this watcher of everything that happens to the partition."""
        assert not self._is_lost, "nothing more happens to a lost partition"
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher[FollowerPartition]) -> None:
        """Stop notifying this reader."""
        self._watchers.pop(watcher, None)

    @property
    def is_lost(self) -> bool:
        """Whether it is no longer followed here."""
        return self._is_lost

    @property
    def is_fetchable(self) -> bool:
        """Whether it may be fetched: its log is as durable as demanded."""
        return not (
            self._is_lost or self._truncations_written < self._truncations or self.is_unflushed
        )

    def stop_following(self) -> None:
        """This broker no longer follows the partition."""
        self._is_lost = True
        watchers = tuple(self._watchers)
        self._watchers.clear()
        for watcher in watchers:
            watcher.lost(self)

    # -- what holds it back -------------------------------------------------------------------

    def set_error(self, level: int, what: str) -> bool:
        """An error holds the partition back; returns whether it is new, and is to be logged."""
        is_new = self._last_logged_error != (level, what)
        self._last_logged_error = level, what
        return is_new

    def recovered(self) -> tuple[int, str] | None:
        """The error that held the partition back is over; returns it."""
        trouble, self._last_logged_error = self._last_logged_error, None
        return trouble

    # -- following ----------------------------------------------------------------------------

    def follow(self, leader: int, leader_epoch: int) -> None:
        """Follow this leader from the log's end."""
        log = self.log
        self.follower.follow(
            leader,
            leader_epoch,
            log_end_offset=log.log_end_offset,
            last_epoch=log.leader_epochs.latest_epoch,
        )

    def to_fetch_partition(self, max_bytes: int) -> FetchPartition:
        """The partition in a fetch request; the same object as long as nothing has happened."""
        position, log = self.follower.fetch_position, self.log
        wanted = self._fetch_partition
        if (
            wanted is None
            or position is not self._sent_position
            or wanted.log_start_offset != log.log_start_offset
            or wanted.high_watermark != self.follower.high_watermark
        ):
            self._sent_position = position
            self._fetch_partition = wanted = FetchPartition(
                partition=self.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=log.log_start_offset,
                partition_max_bytes=max_bytes,
                high_watermark=self.follower.high_watermark,
            )
        return wanted

    def append(self, data: FetchPartitionData, leader_epoch: int, now_ms: int) -> int:
        """Append a response's records, take its high watermark and log start; returns the bytes of records.

        Raises KafkaError: CORRUPT_MESSAGE, the records are damaged; KAFKA_STORAGE_ERROR, the disk refused them.
        """
        follower, log = self.follower, self.log
        assert follower.fetch_offset == log.log_end_offset, "a follower reads at its log's end"
        appended, before = 0, log.log_end_offset
        try:
            if data.records:
                appended = log.append_as_follower(
                    memoryview(data.records), leader_epoch=leader_epoch, now_ms=now_ms
                )
        finally:
            if log.log_end_offset < before:  # It begins with a batch that began earlier.
                follower.truncated(log.log_end_offset, log.leader_epochs.latest_epoch)
            self.is_unflushed = self._must_flush()
            self._update_offsets(data)
        return appended

    def _update_offsets(self, data: FetchPartitionData) -> None:
        follower, log = self.follower, self.log
        moved = follower.appended(
            log.log_end_offset, log.leader_epochs.latest_epoch, data.high_watermark
        )
        log.update_high_watermark(follower.high_watermark)
        if follower.is_caught_up:
            self.has_lost_records = False
        if log.log_start_offset < data.log_start_offset <= follower.high_watermark:
            log.advance_log_start_offset(data.log_start_offset)
        if moved:
            for watcher in tuple(self._watchers):
                watcher.advanced(self)

    def flushed(self) -> None:
        """A flush has ended well."""
        self.is_unflushed = self._must_flush()

    def _must_flush(self) -> bool:
        return self.log.unflushed_count >= self.log.config.flush_messages

    @property
    def is_truncation_unwritten(self) -> bool:
        """Whether appends must wait, because the recovery point on disk is still above the truncated end."""
        return self._truncations_written < self._truncations

    @property
    def truncations(self) -> int:
        """The number of truncations that must be recorded on disk."""
        return self._truncations

    def truncation_begun(self) -> None:
        """A truncation must be recorded on disk first."""
        self._truncations += 1

    def truncations_written(self, truncations: int) -> None:
        """This many truncations are recorded on disk."""
        self._truncations_written = max(self._truncations_written, truncations)

    # -- truncation: a lowered recovery point has to be written first ------------------------

    def truncate(self, leader: LeaderEpochEnd) -> None:
        """Truncate to what the leader has, as far as its answer shows."""
        log = self.log
        truncation = truncation_for(
            leader,
            log.leader_epochs,
            log_end_offset=log.log_end_offset,
            high_watermark=self.follower.high_watermark,
        )
        self.truncate_to(truncation.offset, is_complete=truncation.is_complete)

    def truncate_to(self, offset: int, *, is_complete: bool = True) -> None:
        """Truncate the log to an offset. After an OSError the leader is asked again from the log's end."""
        try:
            self.log.truncate_to(offset)
        except OSError:
            self._update_after_truncation(is_complete=False)
            raise
        self._update_after_truncation(is_complete=is_complete)

    def restart_at(
        self,
        offset: int,
        aux_state: RemoteLogAuxState = NOTHING_REMOTE,
        *,
        log_start_offset: int = 0,
    ) -> None:
        """Drop the log and start over at an offset, with this state of what came before; OSError as `truncate_to`."""
        try:
            self.log.restart_at(offset, aux_state)
        except OSError:
            self._update_after_truncation(is_complete=False)
            raise
        # All below is committed: the leader has deleted it, or it is in the lake.
        self.follower.committed_up_to(offset)
        self._update_after_truncation(is_complete=True)
        if self.log.log_start_offset < log_start_offset <= offset:
            self.log.advance_log_start_offset(log_start_offset)

    def _update_after_truncation(self, *, is_complete: bool) -> None:
        log, follower = self.log, self.follower
        follower.truncated(
            log.log_end_offset, log.leader_epochs.latest_epoch, is_complete=is_complete
        )
        log.update_high_watermark(follower.high_watermark)
