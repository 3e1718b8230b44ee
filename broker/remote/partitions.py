"""Shell: the partitions that this broker leads, as tiered storage sees them: logs, and the lake's state of each.

The bridge between a log and `copy_policy`: it asks a log for its segments and turns a chosen range into the worker's
request. It decides nothing and waits for nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.values import EnrichedLogSegment
from broker.remote.copy_policy import (
    NO_LAG,
    CopyLag,
    CopyState,
    CopyView,
    pending,
    range_to_copy,
)
from broker.worker.rpc import LogSegmentData
from kafka_ds.protocol.topic_partition import PartitionId, TopicIdPartition, TopicPartition
from kafka_ds.topic.expiration import NO_LIMIT
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

_LOGGER = logging.getLogger(__name__)


# The first segments of a long backlog are enough: one copy has room for other partitions' ranges, too.
SEGMENTS_MAX = 64


@dataclass(slots=True, kw_only=True, eq=False)
class TieredPartition:
    """One led partition."""

    log: Log
    leader_epoch: int
    last_stable_offset: Callable[[], int]
    lake_reaches: Callable[[int], None] = lambda next_offset: None
    """Called with the offset below which the lake held all records when the leadership began."""
    lake_begins: Callable[[int], None] = lambda log_start_offset: None
    """Called with the log start that the lake has, each time that it is asked."""
    state: CopyState = field(default_factory=CopyState)
    lake_log_start: int | None = None
    """Where the lake says that the partition begins; None before it was asked."""
    deleted_below: int = 0
    """The log start that DeleteRecords set under this leadership."""
    has_wal: bool = False
    """Whether it is diskless now, whatever its topic is to be."""

    @property
    def is_diskless(self) -> bool:
        """Whether it is diskless, or is to be."""
        return self.has_wal or self.log.config.lake_diskless

    @property
    def retention_ms(self) -> int:
        """How long records are kept; NO_LIMIT where none is deleted for its age."""
        config = self.log.config
        return config.retention_ms if config.deletes_old else NO_LIMIT

    @property
    def key(self) -> PartitionId:
        """Topic id and partition."""
        return (self.log.topic_id, self.log.partition)

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.topic_partition

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """By name and id."""
        return self.log.topic_id_partition

    @property
    def name(self) -> str:
        """For log lines."""
        return self.log.name

    def lost(self, offset: int) -> None:
        """The lake's end has moved back to there: the log keeps what is behind it until it is copied again."""
        self.state.lost(offset)
        self.log.update_highest_offset_in_remote_storage(self.state.deletable_offset)

    def update_lake_log_start(self, offset: int) -> None:
        """The lake says that the partition begins there."""
        self.lake_log_start = offset
        self.lake_begins(offset)

    def records_deleted(self, log_start_offset: int) -> None:
        """DeleteRecords has moved the log's start there."""
        self.deleted_below = log_start_offset

    def raise_lake_log_start(self, offset: int) -> None:
        """The lake has moved its log start there, unless it is beyond that already."""
        self.update_lake_log_start(max(self.lake_log_start or 0, offset))

    def view(self, *, with_active: bool, now_ms: int) -> tuple[CopyView, list[RemoteLogSegment]]:
        """What may be copied now: the first ones of many rolled segments. `now_ms`: wall clock."""
        log, start = self.log, self.state.copied_offset + 1
        lag = _copy_lag(log.config, now_ms)
        rolled = log.rolled_segments(start, SEGMENTS_MAX)
        active = None
        with_active = with_active and len(rolled) < SEGMENTS_MAX
        if with_active:
            base = max(rolled[-1].next_offset if rolled else start, log.local_log_start_offset)
            active = EnrichedLogSegment(
                base_offset=base,
                next_offset=log.log_end_offset,
                size_bytes=self._bytes_from(base),
            )
        view = self._view(rolled, active, lag)
        if not log.config.copies_to_lake:
            return view, []
        found = pending(view, with_active=with_active)
        if (
            found
            and len(rolled) == SEGMENTS_MAX
            and found[-1].end_offset + 1 == rolled[-1].next_offset
        ):
            view = replace(view, bytes_beyond=_bytes_beyond(log, view))
        return view, found

    def _view(
        self,
        rolled: Sequence[EnrichedLogSegment],
        active: EnrichedLogSegment | None = None,
        lag: CopyLag = NO_LAG,
    ) -> CopyView:
        behind = 0
        if rolled and not lag.is_none:
            offset, segments = rolled[-1].next_offset, self.log.segments.all
            behind = sum(each.size_bytes for each in segments if each.base_offset >= offset)
        return CopyView(
            topic=self.log.topic,
            topic_id=self.log.topic_id,
            partition=self.log.partition,
            leader_epoch=self.leader_epoch,
            leader_epochs=self.log.leader_epochs,
            copied_offset=self.state.copied_offset,
            log_start_offset=self.log.log_start_offset,
            last_stable_offset=self.last_stable_offset(),
            rolled=rolled,
            active=active,
            lag=lag,
            bytes_behind=behind,
        )

    def only_local_bytes(self) -> int:
        """Bytes of the log that are not in the lake, including segments that are there in part."""
        return self._bytes_from(max(self.state.copied_offset + 1, self.log.local_log_start_offset))

    def _bytes_from(self, offset: int) -> int:
        """Bytes of the log from an offset on, which is on the disk; nothing is read."""
        log, end = self.log, self.log.log_end_offset
        if offset >= end:
            return 0
        found = log.read(
            offset, max_bytes=log.size_bytes, upper_bound_offset=end, min_one_batch=True
        )
        return found.size_bytes

    def lineage(self, end_offset: int | None = None) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) of the leader epochs from the log's start on, to its end or another one."""
        end = self.log.log_end_offset if end_offset is None else end_offset
        return self.log.leader_epochs.between(self.log.log_start_offset, end)

    def sources(self, start: int, end: int) -> list[LogSegmentData]:
        """Where the batches of copied offsets lie, as far as they are still on the disk."""
        start = max(start, self.log.local_log_start_offset)
        view = self._view([])
        ranges = [
            range_to_copy(
                view, max(start, each.base_offset), min(end, each.next_offset - 1), size_bytes=1
            )
            for each in self.log.segments.all
            if each.next_offset > start and each.base_offset <= end
        ]
        return self.locate(ranges) if ranges else []

    def locate(self, ranges: Sequence[RemoteLogSegment]) -> list[LogSegmentData]:
        """Where the worker finds the batches of these ranges; the list ends at the first that has left the disk."""
        rolled = self.log.rolled_segments(ranges[0].start_offset, len(ranges))
        found: list[LogSegmentData] = []
        for each in ranges:
            start = each.start_offset
            segment = next((e for e in rolled if e.base_offset <= start < e.next_offset), None)
            whole = (
                segment is not None
                and segment.base_offset == start
                and segment.next_offset == each.end_offset + 1
            )
            made = self._whole(each, segment) if segment and whole else self._part(each, segment)
            if made is None:
                break
            found.append(made)
        return found

    def _whole(self, chosen: RemoteLogSegment, segment: EnrichedLogSegment) -> LogSegmentData:
        """A rolled segment from its first batch to its last."""
        return self._data(chosen, segment, segment.path, 0, segment.size_bytes)

    def _part(
        self, chosen: RemoteLogSegment, segment: EnrichedLogSegment | None
    ) -> LogSegmentData | None:
        """A part of a segment; the segment's index finds where it begins."""
        read = self.log.read(
            chosen.start_offset,
            max_bytes=self.log.size_bytes,
            upper_bound_offset=chosen.end_offset + 1,
            min_one_batch=True,
        )
        if not read.slices:
            if segment is None or not self.log.config.is_compacted:
                return None
            # Compaction has removed all that was left to copy.
            return self._data(chosen, segment, segment.path, segment.size_bytes, 0)
        first = read.slices[0]
        path = self.log.segments.path_of(first.file, chosen.start_offset)
        return self._data(chosen, segment, path, first.position, first.size_bytes)

    def _data(
        self,
        chosen: RemoteLogSegment,
        segment: EnrichedLogSegment | None,
        path: str,
        position: int,
        size_bytes: int,
    ) -> LogSegmentData:
        next_offset = chosen.end_offset + 1
        is_rolled = segment is not None and segment.next_offset == next_offset
        snapshot = (segment.producer_snapshot or b"") if segment is not None and is_rolled else b""
        if next_offset == self.log.log_end_offset:
            # Its reader takes the epochs for known when it reads.
            snapshot = self.log.producers.encode_snapshot()
        aborted = self.log.aborted_transactions(chosen.start_offset, next_offset)
        return LogSegmentData(
            segment=replace(chosen, size_bytes=size_bytes),
            lineage=self.lineage(next_offset),
            path=path,
            position=position,
            aborted=tuple(each[:3] for each in aborted),
            producer_snapshot=snapshot,
            log_start_offset=self.log.log_start_offset,
            may_have_gaps=self.log.config.is_compacted,
        )


def _copy_lag(config: LogConfig, now_ms: int) -> CopyLag:
    """remote.copy.lag.ms and .bytes; -1 means the local retention, which may be unlimited."""
    limits = []
    for lag, kept in (
        (config.remote_copy_lag_ms, config.effective_local_retention_ms),
        (config.remote_copy_lag_bytes, config.effective_local_retention_bytes),
    ):
        limit = kept if lag == -1 else lag
        limits.append(None if limit < 0 else limit)
    return CopyLag(now_ms=now_ms, lag_ms=limits[0], lag_bytes=limits[1])


def _bytes_beyond(log: Log, view: CopyView) -> int:
    """Bytes of further rolled segments, beyond those in the view, that may be copied."""
    offset, found, behind = view.rolled[-1].next_offset, 0, view.bytes_behind
    for each in log.segments.all[:-1]:
        if each.base_offset < offset:
            continue
        behind -= each.size_bytes
        if each.next_offset > view.last_stable_offset:
            break
        if not view.lag.is_none and view.lag.holds_back(each.largest_timestamp(), behind):
            break
        found += each.size_bytes
    return found


def sources_of(
    chosen: Mapping[PartitionId, Sequence[RemoteLogSegment]],
    tiered: Mapping[PartitionId, TieredPartition],
    compression: str,
    failed: Callable[[TieredPartition], None],
) -> tuple[list[LogSegmentData], list[TieredPartition]]:
    """The worker's request for the chosen ranges, and the partitions in it.

    A log that cannot be read is left out, and `failed` is called.
    """
    sources: list[LogSegmentData] = []
    taking_part: list[TieredPartition] = []
    for key, ranges in chosen.items():
        one = tiered[key]
        try:
            found = one.locate(ranges)
        except Exception:
            _LOGGER.exception("Cannot read the log of %s, not copying it for now", one.name)
            failed(one)
            continue
        if found:
            taking_part.append(one)
            sources += (replace(each, compression=compression) for each in found)
    return sources, taking_part
