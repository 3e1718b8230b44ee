"""Pure: which task reads which offsets from where: the plan of one scan.

Planning asks nothing: all that is known comes in (`PartitionView`) and a plan comes out; the same view gives the same
plan. The tier boundary is the tiered end of the pinned snapshot: below it the table is read, from it on the leader's
log, so each wanted offset is read in exactly one place. Ranges are offsets, never counts of rows, because compaction,
aborted transactions and erasure leave holes that are no loss. Offsets that are in neither place are lost, and reported
range by range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.filters.intervals import ALL, NONE, Intervals
from kafka_ds.source.filters.predicate import Predicate

if TYPE_CHECKING:
    from kafka_ds.delta.deletion_vector import DeletionVector

# Bytes of Parquet a task reads, about: as many as Spark gives a task of its own file sources, halved since the rows are
# several times as large when decoded.
TASK_LAKE_BYTES: Final = 64 * 1024 * 1024
# How many times as large rows are out of their files, about.
UNPACKED: Final = 4
# The assumed size of a record in the brokers' log if nothing is known of it.
HOT_RECORD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A data file of the pinned snapshot, with its statistics (None for missing ones)."""

    path: str
    size_bytes: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    vector: DeletionVector | None = None
    """Its deletion vector, by the address of that one's file."""

    def may_hold_times(self, wanted: Intervals | None) -> bool:
        """Whether a row of the file can have one of these times."""
        if wanted is None or self.min_timestamp_us is None or self.max_timestamp_us is None:
            return True
        return wanted.overlaps(self.min_timestamp_us, self.max_timestamp_us + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeView:
    """What the pinned version of a topic's table holds of one partition: every offset of [start, end)."""

    version: int
    start: int
    end: int
    files: tuple[LakeFile, ...] = ()
    find: Callable[[int, int], Iterable[LakeFile]] | None = None
    """Returns the files that may hold offsets of [start, end): instead of `files`, which may be very many."""
    missing: Intervals = NONE
    """Offsets whose records a RESTORE removed from the table: they are not erased, and are in no other place."""

    def within(self, wanted: Intervals) -> list[LakeFile]:
        """The files that may hold wanted offsets, each once."""
        if self.find is None:
            return [f for f in self.files if wanted.overlaps(f.first_offset, f.last_offset + 1)]
        met = {file.path: file for start, end in wanted for file in self.find(start, end)}
        return list(met.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """All that is known of one topic partition: what is wanted, and who holds which offsets.

    ``start`` and ``end`` bound what is wanted. The brokers serve [log_start, log_end); a partition without brokers
    (``tiers`` = remote) has an empty range there. ``floor`` is where hot rows can begin to match the requested times,
    and ``epochs`` where they can have a requested leader epoch. ``reads_table``: what the topic's table holds
    (``lake``) is read from there, which may be nothing yet.
    """

    topic: str
    partition: int
    topic_id: bytes
    start: int
    end: int
    log_start: int
    log_end: int
    leader_epoch: int = -1
    lake: LakeView | None = None
    floor: int = 0
    epochs: Intervals = ALL
    epoch_max: int | None = None
    reads_table: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFileSlice:
    """The rows of one file whose offsets are wanted."""

    path: str
    offsets: Intervals
    vector: DeletionVector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRange:
    """Rows that the pinned version of the table holds, in these files."""

    version: int
    files: tuple[TableFileSlice, ...]
    epoch_max: int | None = None
    """A row of a later leader epoch is none of the plan's: its log was truncated since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRange:
    """Rows of [start, end) that the leader is asked for, whose epoch was ``leader_epoch`` when the plan was made."""

    start: int
    end: int
    leader_epoch: int
    is_beside_table: bool = False
    """Whether the plan reads the topic's table as well, which has what compaction removes from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTask:
    """Pieces of one topic partition in the order of offsets; a Spark partition reads some (`input_partitions`)."""

    topic: str
    partition: int
    topic_id: bytes
    ranges: tuple[ColdRange | HotRange, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Wanted offsets that exist neither in the lake nor on a broker."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tasks of a scan, and the wanted offsets that are lost."""

    tasks: tuple[ScanTask, ...]
    lost: tuple[LostRange, ...]
    weights: tuple[int, ...] = ()
    """About how many bytes each of the tasks reads."""
    file_count: int = 0
    file_bytes: int = 0
    """What the wanted offsets take of the files, about."""
    cold_offsets: int = 0
    hot_offsets: int = 0

    def describe(self, partitions: int) -> str:
        """For ``explain``: ``2 tasks, 3 files of 4096 bytes, 100 cold and 20 hot offsets``."""
        return (
            f"{partitions} tasks, {self.file_count} files of {self.file_bytes} bytes, "
            f"{self.cold_offsets} cold and {self.hot_offsets} hot offsets"
        )

    def size_bytes(self, hot_offset_bytes: float) -> int:
        """About how large all rows are, decoded, given the size of a record in the brokers' log."""
        return UNPACKED * self.file_bytes + ceil(self.hot_offsets * hot_offset_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One partition's offsets that tasks have to visit, separated by where they lie."""

    view: PartitionView
    cold: Intervals
    hot: Intervals
    files: tuple[LakeFile, ...]

    @property
    def offsets(self) -> Intervals:
        return self.cold.union(self.hot)

    @property
    def file_bytes(self) -> int:
        return self._file_bytes(self.cold)

    def bytes_of(self, piece: Intervals) -> int:
        """About how many bytes these of its offsets are."""
        cold = self._file_bytes(piece.intersect(self.cold))
        return cold + HOT_RECORD_BYTES * piece.intersect(self.hot).count

    def _file_bytes(self, cold: Intervals) -> int:
        return sum(bytes_within(file, cold) for file in self.files)


def plan_scan(
    views: Sequence[PartitionView],
    predicate: Predicate,
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    task_bytes: int = TASK_LAKE_BYTES,
) -> Plan:
    """Assign every wanted offset to exactly one task.

    A partition is split when its files are too many bytes for a task or when it has more offsets than
    ``max_records_per_partition``; if there are fewer tasks than ``min_partitions`` then, these are split again in
    proportion to their offsets. Without a lake the tasks are those of Spark's own Kafka source.
    """
    shares: list[_Share] = []
    lost: list[LostRange] = []
    for view in views:
        if predicate.selects_partition(view.topic, view.partition):
            share, missing = _share(view, predicate)
            lost += missing
            if share.offsets:
                shares.append(share)
    pieces = [
        (share, piece)
        for share in shares
        for piece in share.offsets.split(_parts(share, max_records_per_partition, task_bytes))
    ]
    if min_partitions is not None and len(pieces) < min_partitions:
        parts = _at_least([piece.count for _, piece in pieces], min_partitions)
        pieces = [
            (share, smaller)
            for (share, piece), count in zip(pieces, parts, strict=True)
            for smaller in piece.split(count)
        ]
    return Plan(
        tasks=tuple(_task(share, piece) for share, piece in pieces),
        lost=tuple(lost),
        weights=tuple(share.bytes_of(piece) for share, piece in pieces),
        file_count=sum(len(share.files) for share in shares),
        file_bytes=sum(share.file_bytes for share in shares),
        cold_offsets=sum(share.cold.count for share in shares),
        hot_offsets=sum(share.hot.count for share in shares),
    )


def _share(view: PartitionView, predicate: Predicate) -> tuple[_Share, list[LostRange]]:
    lake = view.lake
    asked = predicate.offsets().clip(view.start, view.end)
    gone = missing_within(view, asked)
    wanted = asked.minus(gone) if gone else asked
    in_lake = Intervals.of((lake.start, lake.end)) if lake is not None else NONE
    at_leader = Intervals.of((view.log_start, view.log_end))
    cold = wanted.intersect(in_lake)
    hot = wanted.minus(in_lake)
    missing = hot.minus(at_leader)
    # Floor and epochs are the leader's knowledge, which need not reach back to what the table holds.
    hot = hot.intersect(at_leader).clip(view.floor, view.end).intersect(view.epochs)
    files: tuple[LakeFile, ...] = ()
    if lake is not None and cold:
        files = tuple(f for f in lake.within(cold) if f.may_hold_times(predicate.timestamp))
        # Offsets that no file holds need no visit: they are compacted, erased, aborted or pruned away.
        held = Intervals.of(*((file.first_offset, file.last_offset + 1) for file in files))
        cold = cold.intersect(held)
    lost = [
        LostRange(topic=view.topic, partition=view.partition, start=start, end=end)
        for start, end in (missing.union(gone) if gone else missing)
    ]
    return _Share(view=view, cold=cold, hot=hot, files=files), lost


def missing_within(view: PartitionView, wanted: Intervals) -> Intervals:
    """Those of the wanted offsets that a RESTORE removed from the table."""
    if view.lake is None or not view.lake.missing:
        return NONE
    return wanted.intersect(view.lake.missing).clip(view.lake.start, view.lake.end)


def _parts(share: _Share, max_records: int | None, task_bytes: int) -> int:
    parts = max(1, -(-share.file_bytes // task_bytes))
    if max_records is not None:
        parts = max(parts, -(-share.offsets.count // max_records))
    return parts


def bytes_within(file: LakeFile, wanted: Intervals) -> int:
    """The bytes of the file that the wanted offsets take, as if its rows were spread evenly."""
    span = file.last_offset + 1 - file.first_offset
    return file.size_bytes * wanted.clip(file.first_offset, file.last_offset + 1).count // span


def _at_least(counts: Sequence[int], wanted: int) -> list[int]:
    """How many parts of each piece make about ``wanted`` of all, in proportion to their offsets.

    Pieces too small to be split are left out of the proportion, and halves are rounded up, both as in Spark's own Kafka
    source.
    """
    total = sum(counts)
    whole = [_rounded(count, wanted, total) <= 1 for count in counts]
    rest = total - sum(count for count, single in zip(counts, whole, strict=True) if single)
    share = max(1, wanted - sum(whole))
    return [
        1 if single else max(1, _rounded(count, share, rest))
        for count, single in zip(counts, whole, strict=True)
    ]


def _rounded(count: int, parts: int, total: int) -> int:
    """``count / total * parts``, halves up: in floats, where Spark's own rounding errors are."""
    return floor(count / total * parts + 0.5)


def _task(share: _Share, offsets: Intervals) -> ScanTask:
    pieces: list[ColdRange | HotRange] = []
    cold = offsets.intersect(share.cold)
    if cold:
        assert share.view.lake is not None
        piece = ColdRange(
            version=share.view.lake.version,
            files=_slices(share.files, cold),
            epoch_max=share.view.epoch_max,
        )
        pieces.append(piece)
    pieces += [
        HotRange(
            start=start,
            end=end,
            leader_epoch=share.view.leader_epoch,
            is_beside_table=share.view.reads_table,
        )
        for start, end in offsets.intersect(share.hot)
    ]
    # A hot range may lie below the table's (tiering that began late): a task reads in the order of offsets.
    pieces.sort(key=_first_offset)
    return ScanTask(
        topic=share.view.topic,
        partition=share.view.partition,
        topic_id=share.view.topic_id,
        ranges=tuple(pieces),
    )


def _slices(files: Iterable[LakeFile], wanted: Intervals) -> tuple[TableFileSlice, ...]:
    ordered = sorted(files, key=lambda file: (file.first_offset, file.path))
    cut = ((file, wanted.clip(file.first_offset, file.last_offset + 1)) for file in ordered)
    return tuple(
        TableFileSlice(path=file.path, offsets=offsets, vector=file.vector)
        for file, offsets in cut
        if offsets
    )


def _first_offset(piece: ColdRange | HotRange) -> int:
    return piece.files[0].offsets.start if isinstance(piece, ColdRange) else piece.start
