"""Shell: one partition's log: append, read, roll, flush, retain.

Rules of this file: only the event loop's thread changes a log. Reads return slices of files that
stay open, so that they may be read anywhere later. Whatever waits for a disk goes to Background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from broker.log.config import LogConfig
from broker.log.values import (
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    FileSlice,
    LogRead,
    SegmentView,
    TimestampOffset,
)
from broker.seams import Background, Clock, Disk

NO_UUID = bytes(16)


class Log:
    """One partition's log. Offsets are contiguous, each segment is one file of batches."""

    topic: str
    partition: int
    topic_id: bytes
    directory: str
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    highest_offset_in_remote_storage: int
    on_roll: Callable[[Log], None] | None
    on_flush: Callable[[Log, BaseException | None], None] | None
    """Called in the event loop when a flush is done (`recovery_point` has moved) or has failed: an
    append that flush.messages makes wait for the disk is acknowledged by this."""

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
    ) -> Self:
        """Open or create the log in `directory` (the partition's own folder), recovering it."""
        raise NotImplementedError

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that is on the local disk."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Check, stamp in place and write; raises KafkaError, after which nothing has changed."""
        raise NotImplementedError

    def read(
        self, offset: int, *, max_bytes: int, upper_bound_offset: int, min_one_batch: bool
    ) -> LogRead:
        """Find the whole batches from the one that holds `offset` up to the bound.

        Raises OFFSET_OUT_OF_RANGE outside [local_log_start_offset, log_end_offset].
        """
        raise NotImplementedError

    def pread(self, part: FileSlice) -> bytes | bytearray | None:
        """The bytes of a slice, or None where reading them would wait for the disk."""
        raise NotImplementedError

    def pread_blocking(self, part: FileSlice) -> bytes:
        """The bytes of a slice; for a thread."""
        raise NotImplementedError

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided, and its marker below the high watermark."""
        raise NotImplementedError

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start_offset, end_offset)."""
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time, in the local segments."""
        raise NotImplementedError

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The record of the greatest timestamp (ListOffsets -3), in the local segments."""
        raise NotImplementedError

    def assign_leader_epoch(self, epoch: int) -> None:
        """Say that this epoch's leader writes from the log's end on (OffsetForLeaderEpoch)."""
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: int, *, log_start_offset: int) -> None:
        """Drop every local segment and go on at `offset`: what lies below is in the lake alone.

        `log_start_offset` is the lake's (at most `offset`). The files go as deleted segments do.
        """
        raise NotImplementedError

    def roll(self) -> None:
        """Close the active segment and begin one at the log's end."""
        raise NotImplementedError

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll if segment.ms has passed."""
        raise NotImplementedError

    def closed_segments(self) -> list[SegmentView]:
        """The local segments that take no more appends, oldest first."""
        raise NotImplementedError

    def update_high_watermark(self, high_watermark: int) -> None:
        """Tell what is committed: nothing above is deleted, decided transactions settle."""
        raise NotImplementedError

    def advance_log_start_offset(self, offset: int) -> None:
        """Move the log's beginning (DeleteRecords, or the tier's retention); never backwards."""
        raise NotImplementedError

    def delete_local_segments(self, now_ms: int) -> list[int]:
        """Delete what retention allows; returns the base offsets that went."""
        raise NotImplementedError

    def flush(self, up_to: int | None = None) -> None:
        """Make everything below `up_to` (default: the end) durable, in Background."""
        raise NotImplementedError

    def update_config(self, config: LogConfig) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Flush and close; the next open may skip recovery if the manager says so."""
        raise NotImplementedError
