"""Pure: which log is cleaned next, and how far: the rules of Kafka's `LogCleanerManager` and `Cleaner`.

The clean part was covered by an earlier run, the dirty part is newer. Cleaning ends before the active segment, the last
stable offset, the first segment with a record younger than min.compaction.lag.ms and, in a tiered log, the tiered end
(docs/decisions/0019-tables-of-compacted-topics.md). A log is due if its dirty ratio is above
min.cleanable.dirty.ratio or a dirty record is older than max.compaction.lag.ms (KIP-354). Adjacent segments are merged
while they fit into segment.bytes, segment.index.bytes and 2^31 offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from broker.log.config import UNLIMITED, LogConfig
from kafka_ds.segments.index import RELATIVE_OFFSET_MAX


class SegmentState(NamedTuple):
    """A segment; the last one is active. Times are functions, as they may need a read; -1: none."""

    base_offset: int
    size_bytes: int
    first_ms: Callable[[], int]
    newest_ms: Callable[[], int]


class LogState(NamedTuple):
    """The current state of a log."""

    segments: Sequence[SegmentState]
    cleaned_offset: int | None
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    copied_end_offset: int | None = None
    """The tiered end of a tiered log."""


class Cleanable(NamedTuple):
    """The cleanable part of a log."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    """By how much max.compaction.lag.ms is exceeded."""
    invalid_checkpoint: int | None
    """The checkpointed offset, if it is outside the log."""

    @property
    def ratio(self) -> float:
        """The dirty ratio."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether it is due for cleaning."""
        is_overdue = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return is_overdue or self.ratio > config.min_cleanable_dirty_ratio


def cleanable(log: LogState, config: LogConfig, now_ms: int) -> Cleanable:
    """The cleanable part of a log."""
    checkpointed, invalid_checkpoint = log.cleaned_offset, None
    if checkpointed is None:
        first_dirty = log.log_start_offset
    elif log.log_start_offset <= checkpointed <= log.log_end_offset:
        first_dirty = checkpointed
    else:
        first_dirty, invalid_checkpoint = log.log_start_offset, checkpointed
    rolled, active = log.segments[:-1], log.segments[-1]
    dirty = () if first_dirty >= active.base_offset else rolled[_floor(rolled, first_dirty) :]
    bound = min(log.last_stable_offset, active.base_offset)
    if log.copied_end_offset is not None:
        bound = min(bound, log.copied_end_offset)
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        young = (each.base_offset for each in dirty if each.newest_ms() > youngest_ms)
        bound = min(bound, next(young, bound))
    bound = max(bound, first_dirty)
    # Whole segments only: the one that contains the bound is not cleaned.
    end = _floor(log.segments, bound)
    first_uncleanable = log.segments[end].base_offset
    begin = _floor(log.segments, min(first_dirty, first_uncleanable))
    return Cleanable(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=max(first_uncleanable, first_dirty),
        clean_bytes=sum(each.size_bytes for each in rolled if each.base_offset < first_dirty),
        cleanable_bytes=sum(each.size_bytes for each in log.segments[begin:end]),
        overdue_ms=_overdue_ms(dirty, config, now_ms),
        invalid_checkpoint=invalid_checkpoint,
    )


def _floor(segments: Sequence[SegmentState], offset: int) -> int:
    """The index of the segment that contains an offset, or of the first one."""
    below = sum(each.base_offset <= offset for each in segments)
    return max(below - 1, 0)


def _overdue_ms(dirty: Iterable[SegmentState], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms >= UNLIMITED:
        return 0
    times = (each.first_ms() for each in dirty)
    oldest_ms = min((time_ms for time_ms in times if time_ms > 0), default=now_ms)
    return max(now_ms - config.max_compaction_lag_ms - oldest_ms, 0)


class SegmentSizes(NamedTuple):
    """A segment to clean and its file sizes; `next_offset` is the base offset of the next segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group(segments: Sequence[SegmentSizes], config: LogConfig) -> list[list[SegmentSizes]]:
    """Group adjacent segments that are merged into one."""
    groups: list[list[SegmentSizes]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(neighbours: Sequence[SegmentSizes], segment: SegmentSizes, config: LogConfig) -> bool:
    together = (*neighbours, segment)
    spanned = segment.next_offset - 1 - neighbours[0].base_offset
    return (
        sum(each.size_bytes for each in together) <= config.segment_bytes
        and sum(each.index_bytes for each in together) <= config.segment_index_bytes
        and sum(each.time_index_bytes for each in together) <= config.segment_index_bytes
        and (segment.size_bytes == 0 or spanned <= RELATIVE_OFFSET_MAX)
    )
