"""Pure: which log is cleaned next, and how far: the rules of Kafka's `LogCleanerManager` and `Cleaner`.

Clean is what an earlier run has covered, dirty what came since. Cleaning ends before the active segment, the last
stable offset, the first segment with a record younger than min.compaction.lag.ms, and, of a log that is copied to the
lake, where the copied part ends (docs/decisions/0019-tables-of-compacted-topics.md). A log is due when its share of
dirty bytes is above min.cleanable.dirty.ratio, or a dirty record is older than max.compaction.lag.ms (KIP-354).
Neighbouring segments are merged while they fit into segment.bytes, segment.index.bytes and 2^31 offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from broker.log.config import UNLIMITED, LogConfig
from kafka_ds.segments.index import RELATIVE_OFFSET_MAX


class LogToClean(NamedTuple):
    """A segment, the last one is active. Times may have to be looked up, so they are asked for; -1: none."""

    base_offset: int
    size_bytes: int
    first_ms: Callable[[], int]
    newest_ms: Callable[[], int]


class LogState(NamedTuple):
    """A log, as it is now."""

    segments: Sequence[LogToClean]
    cleaned_offset: int | None
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    copied_end_offset: int | None = None
    """Of a log that is copied to the lake: where the copied part ends."""


class Cleanable(NamedTuple):
    """What could be cleaned of a log now."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    """For how long max.compaction.lag.ms has been exceeded."""
    not_believed: int | None
    """The remembered offset, if it is not one of the log's."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether it is due for cleaning."""
        is_overdue = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return is_overdue or self.ratio > config.min_cleanable_dirty_ratio


def cleanable(log: LogState, config: LogConfig, now_ms: int) -> Cleanable:
    """How far a log may be cleaned."""
    remembered, not_believed = log.cleaned_offset, None
    if remembered is None:
        first_dirty = log.log_start_offset
    elif log.log_start_offset <= remembered <= log.log_end_offset:
        first_dirty = remembered
    else:
        first_dirty, not_believed = log.log_start_offset, remembered
    closed, active = log.segments[:-1], log.segments[-1]
    dirty = () if first_dirty >= active.base_offset else closed[_floor(closed, first_dirty) :]
    bound = min(log.last_stable_offset, active.base_offset)
    if log.copied_end_offset is not None:
        bound = min(bound, log.copied_end_offset)
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        young = (each.base_offset for each in dirty if each.newest_ms() > youngest_ms)
        bound = min(bound, next(young, bound))
    bound = max(bound, first_dirty)
    # Whole segments only: the one that holds the bound is not cleaned.
    end = _floor(log.segments, bound)
    first_uncleanable = log.segments[end].base_offset
    begin = _floor(log.segments, min(first_dirty, first_uncleanable))
    return Cleanable(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=max(first_uncleanable, first_dirty),
        clean_bytes=sum(each.size_bytes for each in closed if each.base_offset < first_dirty),
        cleanable_bytes=sum(each.size_bytes for each in log.segments[begin:end]),
        overdue_ms=_overdue_ms(dirty, config, now_ms),
        not_believed=not_believed,
    )


def _floor(segments: Sequence[LogToClean], offset: int) -> int:
    """The index of the segment that holds an offset, of the first one if all begin above it."""
    below = sum(each.base_offset <= offset for each in segments)
    return max(below - 1, 0)


def _overdue_ms(dirty: Iterable[LogToClean], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms >= UNLIMITED:
        return 0
    times = (each.first_ms() for each in dirty)
    oldest_ms = min((time_ms for time_ms in times if time_ms > 0), default=now_ms)
    return max(now_ms - config.max_compaction_lag_ms - oldest_ms, 0)


class Measured(NamedTuple):
    """A segment to clean, and its sizes. `next_offset`: where the following segment begins."""

    base_offset: int
    next_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group(segments: Sequence[Measured], config: LogConfig) -> list[list[Measured]]:
    """Which neighbours become one segment."""
    groups: list[list[Measured]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(neighbours: Sequence[Measured], segment: Measured, config: LogConfig) -> bool:
    together = (*neighbours, segment)
    spanned = segment.next_offset - 1 - neighbours[0].base_offset
    return (
        sum(each.size_bytes for each in together) <= config.segment_bytes
        and sum(each.index_bytes for each in together) <= config.segment_index_bytes
        and sum(each.time_index_bytes for each in together) <= config.segment_index_bytes
        and (segment.size_bytes == 0 or spanned <= RELATIVE_OFFSET_MAX)
    )
