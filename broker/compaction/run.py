"""Shell: one cleaning of one log: sends the segments to the child process and swaps in what it has written.

Only the event loop changes the log. If the log is truncated or deleted meanwhile, `Compaction.end` aborts the run; it
also aborts if the log becomes tiered, as its segments may be being copied. Each group of segments is swapped when it is
written, and the folder is synced before the next, so an aborted run loses nothing. The cleaner checkpoint moves when
all groups are swapped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from broker.cleaner.rpc import (
    NO_OFFSET,
    AbortJob,
    Cleaned,
    CleanerSettings,
    CleanJob,
    CleanSegments,
    EndJob,
    LastRecord,
    SourceSegment,
)
from broker.compaction.metrics import RunCounters
from broker.compaction.policy import Cleanable, SegmentSizes, group
from broker.log.log import Log
from broker.log.segment.segment import Segment
from broker.log.segment.trash import keep_open
from kafka_ds.ipc.request import A, Request, SendToWorker
from kafka_ds.process.seams import Disk
from kafka_ds.segments import names

# Runs a function in a thread.
InThread: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]


class CleaningAborted(Exception):
    """The log was truncated, deleted, closed or became tiered while it was cleaned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningResult:
    """The result of a run."""

    counters: RunCounters
    records_read: int
    records_kept: int
    without_key: int
    end_offset: int


class CleaningRun:
    """One cleaning of one log."""

    def __init__(
        self,
        number: int,
        log: Log,
        plan: Cleanable,
        settings: CleanerSettings,
        *,
        send: SendToWorker,
        disk: Disk,
        in_thread: InThread,
        abort: Callable[[Request[None]], None],
    ) -> None:
        """`abort` sends a request without waiting for its answer."""
        self._number = number
        self._log = log
        self._plan = plan
        self._settings = settings
        self._send = send
        self._disk = disk
        self._in_thread = in_thread
        self._abort = abort
        self._is_aborted = False
        self._copies_to_lake = log.config.copies_to_lake

    async def clean(self, now_ms: int) -> CleaningResult:
        """Clean the log; raises CleaningAborted, WorkerLost, WorkerFailed or OSError."""
        compaction = self._log.compaction
        assert not compaction.is_running
        compaction.begin(self._stop)
        try:
            return await self._clean(now_ms)
        except Exception as error:
            if self._is_aborted:
                raise CleaningAborted(self._log.name) from error
            raise
        finally:
            compaction.ended(self._stop)
            self._abort(EndJob(job=self._number))

    def _stop(self) -> None:
        self._is_aborted = True
        self._abort(AbortJob(job=self._number))

    def _check(self) -> None:
        if self._is_aborted or self._log.config.copies_to_lake is not self._copies_to_lake:
            raise CleaningAborted(self._log.name)

    async def _clean(self, now_ms: int) -> CleaningResult:
        log = self._log
        segments = self._segments_below(self._plan.first_uncleanable_offset)
        mapped = await self._answer_to(self._job(segments, now_ms))
        written, done = 0, []
        below = [each for each in segments if each.base_offset < mapped.end_offset]
        by_base = {segment.base_offset: segment for segment in below}
        for neighbours in group([self._sizes(each) for each in below], log.config):
            old = [by_base[each.base_offset] for each in neighbours]
            sources = [_source(each) for each in old]
            cleaned = await self._answer_to(CleanSegments(job=self._number, segments=sources))
            await self._swap(old, cleaned)
            written += cleaned.size_bytes
            done.append(cleaned)
        self._check()
        log.compaction.cleaned_to(mapped.end_offset)
        return CleaningResult(
            counters=RunCounters(
                bytes_read=sum(each.bytes_read for each in done),
                bytes_written=written,
                buffer_used=mapped.buffer_used,
            ),
            records_read=sum(each.records_read for each in done),
            records_kept=sum(each.records_kept for each in done),
            without_key=sum(each.without_key for each in done),
            end_offset=mapped.end_offset,
        )

    async def _answer_to(self, request: Request[A]) -> A:
        self._check()
        answer = await self._send(request)
        self._check()
        return answer

    async def _swap(self, old: Sequence[Segment], cleaned: Cleaned) -> None:
        log = self._log
        keep_open(old)  # First, as it may run out of file descriptors.
        log.replace_segments(old, cleaned.size_bytes)
        directory = log.directory
        await self._in_thread(lambda: self._disk.sync_directory(directory))

    def _segments_below(self, offset: int) -> list[Segment]:
        return [each for each in self._log.segments.all if each.base_offset < offset]

    def _sizes(self, segment: Segment) -> SegmentSizes:
        return SegmentSizes(
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            index_bytes=self._size_of(segment.file_path(names.OFFSET_INDEX)),
            time_index_bytes=self._size_of(segment.file_path(names.TIME_INDEX)),
        )

    def _size_of(self, path: str) -> int:
        return self._disk.size(path) if self._disk.exists(path) else 0

    def _job(self, segments: Sequence[Segment], now_ms: int) -> CleanJob:
        log, plan = self._log, self._plan
        end_offset = plan.first_uncleanable_offset
        first_offset = segments[0].base_offset if segments else end_offset
        return CleanJob(
            number=self._number,
            directory=log.directory,
            segments=tuple(_source(segment) for segment in segments),
            first_dirty_offset=plan.first_dirty_offset,
            first_uncleanable_offset=end_offset,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            # Records below it are read from the lake, which is not compacted.
            keeps_tombstones=log.log_start_offset < log.local_log_start_offset,
            index_interval_bytes=log.config.index_interval_bytes,
            aborted=tuple(log.aborted_transactions(first_offset, end_offset)),
            last_records=tuple(
                LastRecord(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    last_data_offset=(
                        producer.batches[-1].last_offset if producer.batches else NO_OFFSET
                    ),
                )
                for producer_id, producer in log.producers
            ),
            settings=self._settings,
        )


def _source(segment: Segment) -> SourceSegment:
    return SourceSegment(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
    )
