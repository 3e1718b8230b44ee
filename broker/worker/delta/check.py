"""Shell: whether the store has what a table names of a partition, and rewriting what it lacks. The copying thread.

- The table is read again: its newest version counts. What other engines replaced or erased is not missing, and what a
  RESTORE removed is left to the operator. A leader asks for the offsets that its local log still has.
- A missing file is rewritten under another name, by a commit that replaces it and changes no data. A range whose commit
  is lost is added; a missing residue file, which is in no commit, is rewritten under its own name.
- If the local log has another number of rows than are missing, nothing is written.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from broker.worker.delta.segments import described
from broker.worker.delta.tables import SharedTable, TopicTables, highest_offset_in_remote_storage
from broker.worker.errors import SegmentNotFound, StorageError
from broker.worker.rpc import LogSegmentData, MissingOffsets
from kafka_ds.delta.commit import Conflict
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, WrittenFile, write_rows
from kafka_ds.topic.index import FileEntry, overlapping_groups
from kafka_ds.topic.names import RESIDUE, data_file
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState

log = logging.getLogger(__name__)

OPERATION = "REPAIR"
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreGap:
    """What is missing, and what is needed to rewrite it."""

    said: MissingOffsets
    rows: range = range(0)
    """How many may be missing: one number, several if some lie below the log start, none if that is not known."""
    files: tuple[FileEntry, ...] = ()
    others: tuple[FileEntry, ...] = ()
    """Files that have other rows between the same offsets."""
    segments: tuple[RemoteLogSegment, ...] = ()
    """Of the missing residue file."""
    segment: RemoteLogSegment | None = None
    """The range whose commit is missing."""


@dataclass(slots=True, kw_only=True)
class StoreCheckResult:
    """The result of a check of the store."""

    highest_offset_in_remote_storage: int
    gaps: list[_StoreGap] = field(default_factory=list)

    @property
    def missing(self) -> list[MissingOffsets]:
        """By offset."""
        return sorted((each.said for each in self.gaps), key=lambda each: each.start_offset)


class StoreCheck:
    """Looks for files, and rewrites them."""

    def __init__(
        self,
        store: Store,
        tables: TopicTables,
        reader: FileReader,
        crash_points: CrashPoints,
        *,
        holds: Callable[[RemoteLogSegment], RemoteLogSegment | None],
        level: int,
        threads: int,
    ) -> None:
        """`holds` is `RemoteStorageManager.holds`; `threads`: how many files are looked for at a time."""
        self._store = store
        self._tables = tables
        self._holds = holds
        self._reader = reader
        self._crash_points = crash_points
        self._level = level
        self._threads = threads

    def forget(self, topic: str) -> None:
        """Read the topic's table again at the next look."""
        self._tables.get(topic).forget()

    def look(
        self,
        where: TopicIdPartition,
        start_offset: int,
        segments: Sequence[RemoteLogSegment],
    ) -> StoreCheckResult:
        """Look for all that holds offsets from `start_offset` on. Raises StorageError, FateUnknown, OSError.

        `segments` are those of the partition that `__remote_log_metadata` knows.
        """
        topic_id, topic, partition = where
        shared = self._tables.get(topic)
        with shared.view(fresh=True) as snapshot:
            end = highest_offset_in_remote_storage(snapshot, topic_id, partition)
            if snapshot is None or snapshot.topic_id != topic_id:
                return StoreCheckResult(highest_offset_in_remote_storage=end)
            low = max(start_offset, log_start := snapshot.log_start(partition) or 0)
            files = snapshot.index.find(partition, low, end) if low <= end else []
            out = [
                each for each in snapshot.missing(partition) if each[1] >= low and each[0] <= end
            ]
            between = {
                each.path: snapshot.index.find(partition, each.min_offset, each.max_offset)
                for each in files
            }
        here = [each for each in segments if each.end_offset >= low and each.start_offset <= end]
        here = [self._completed(each) for each in here if each.state in (STARTED, FINISHED)]
        sizes = self._sizes([each.path for each in files])
        lost = [each for each, size in zip(files, sizes, strict=True) if size != each.size]
        copied = {f"{shared.folder}/{name}" for each in here for name in each.files}
        gaps = [
            self._of_files(each, between, here, end, log_start, copied)
            for each in overlapping_groups(lost)
        ]
        gaps += [_of_restore(max(low, first), last) for first, last in out]
        gaps += self._of_residue(shared.folder, partition, segments, here)
        gaps += [
            _of_commit(each, low)
            for each in here
            if each.state is FINISHED
            and each.row_count > 0
            and each.end_offset <= end
            and not _ends_in(files, each)
            and self._holds(each) is None
            and not self._lies_inside(files, lost, each)
        ]
        return StoreCheckResult(highest_offset_in_remote_storage=end, gaps=gaps)

    def repair(
        self,
        where: TopicIdPartition,
        *,
        leader_epoch: int,
        look: StoreCheckResult,
        sources: Mapping[tuple[int, int], Sequence[LogSegmentData]],
    ) -> None:
        """Rewrite what the look found to be missing, as far as the local log has it.

        `sources` are, by `read_from` and `read_to`, where its batches are. Raises as `look` does.
        """
        topic_id, topic, partition = where
        shared = self._tables.get(topic)
        for gap in look.gaps:
            found = sources.get((gap.said.read_from, gap.said.read_to), ())
            offsets = f"{where}: offsets {gap.said.start_offset}-{gap.said.end_offset}"
            try:
                if gap.segments:
                    self._write_residue(gap, found)
                else:
                    self._write_rows(shared, topic_id, partition, leader_epoch, gap, found)
            except (_RecordsNotInLog, SegmentNotFound, UnreadableFile) as error:
                log.warning("%s cannot be rewritten: %s", offsets, error)
                continue
            except Conflict as conflict:
                raise StorageError(str(conflict)) from conflict
            log.warning(
                "%s were rewritten from the local log: %s was missing", offsets, gap.said.what
            )

    # -- what is missing --------------------------------------------------------------------

    def _lies_inside(
        self, files: Sequence[FileEntry], lost: Sequence[FileEntry], segment: RemoteLogSegment
    ) -> bool:
        """Whether a file that begins before the segment and ends after it has rows of it, as far as that is known."""
        for each in files:
            if each.min_offset < segment.start_offset and segment.end_offset < each.max_offset:
                if each in lost or each.rows == each.max_offset - each.min_offset + 1:
                    return True
                try:
                    offsets = self._offsets([each])
                except UnreadableFile:
                    return True
                if np.any((offsets >= segment.start_offset) & (offsets <= segment.end_offset)):
                    return True
        return False

    def _sizes(self, paths: Sequence[str]) -> list[int | None]:
        if self._threads == 1 or len(paths) < 2:
            return [self._store.size(each) for each in paths]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="check") as pool:
            return list(pool.map(self._store.size, paths))

    def _completed(self, segment: RemoteLogSegment) -> RemoteLogSegment:
        """With what its commit says of it, if it is in the table and that is not known yet."""
        if segment.state is FINISHED:
            return segment
        return self._holds(segment) or segment

    @staticmethod
    def _of_files(
        lost: Sequence[FileEntry],
        between: Mapping[str, Sequence[FileEntry]],
        segments: Sequence[RemoteLogSegment],
        end: int,
        log_start: int,
        copied: Collection[str],
    ) -> _StoreGap:
        """Missing files with offsets between one another; `copied` are those that copies have made."""
        first = min(each.min_offset for each in lost)
        last = max(each.max_offset for each in lost)
        start = max(first, log_start)
        rows = _rows_from(start, first, last, sum(each.rows for each in lost))
        if not all(each.path in copied and each.vector is None for each in lost):
            # Rows may have been erased from it: only their number shows whether the log still has them.
            rows = rows if len(rows) == 1 else range(0)
        paths = {each.path for each in lost}
        others = {other.path: other for each in lost for other in between[each.path]}
        meeting = [e for e in segments if e.start_offset <= last and e.end_offset >= start]
        return _StoreGap(
            said=MissingOffsets(
                start_offset=start,
                end_offset=last,
                what=lost[0].path if len(lost) == 1 else f"{lost[0].path} and {len(lost) - 1} more",
                # Batches lie in one segment as a whole; a file may end within one.
                read_from=min([start, *(each.start_offset for each in meeting)]),
                read_to=max([last, *(each.end_offset for each in meeting)]) if meeting else end,
            ),
            rows=rows,
            files=tuple(lost),
            others=tuple(each for path, each in others.items() if path not in paths),
        )

    def _of_residue(
        self,
        folder: str,
        partition: int,
        segments: Sequence[RemoteLogSegment],
        here: Sequence[RemoteLogSegment],
    ) -> Iterator[_StoreGap]:
        """Each residue file covers consecutive segments that were copied together."""
        wanted = {each.residue for each in here if each.residue}
        if not wanted:
            return
        there = {
            each.path for each in self._store.list(f"{folder}/{RESIDUE}/partition={partition}")
        }
        known = {each.segment_id: each for each in (*segments, *here)}
        for name in sorted(wanted):
            if f"{folder}/{name}" in there:
                continue
            of_it = [each for each in known.values() if each.residue == name]
            of_it.sort(key=lambda each: each.start_offset)
            start, end = of_it[0].start_offset, of_it[-1].end_offset
            yield _StoreGap(
                said=MissingOffsets(
                    start_offset=start,
                    end_offset=end,
                    what=f"{folder}/{name}",
                    read_from=start,
                    read_to=end,
                ),
                segments=tuple(of_it),
            )

    # -- rewriting it -----------------------------------------------------------------------

    def _write_rows(
        self,
        shared: SharedTable,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        gap: _StoreGap,
        sources: Sequence[LogSegmentData],
    ) -> None:
        """A new file with the rows, and one commit that puts it in place of the missing ones."""
        if not gap.rows:
            raise _RecordsNotInLog("how many rows it had is not known")
        if len(gap.rows) > 1:
            _check_whole(gap.said, sources)
        begun_ms = shared.table.begin_ms()
        name = data_file(partition, gap.said.start_offset, uuid_text(new_uuid()))
        path = f"{shared.folder}/{name}"
        written = write_rows(self._store, path, self._rows(gap, sources), level=self._level)
        self._crash_points.at("after_repair_file")
        found = 0 if written is None else written.rows
        try:
            if found not in gap.rows:
                raise _RecordsNotInLog(f"the local log has {found} of its {gap.rows[-1]} rows")
            assert written is not None, "a missing file had rows"
            self._replace(shared, topic_id, partition, leader_epoch, gap, written, begun_ms)
        except (_RecordsNotInLog, Conflict):
            self._store.delete(path)
            raise
        self._crash_points.at("after_repair_commit")

    def _replace(
        self,
        shared: SharedTable,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        gap: _StoreGap,
        written: WrittenFile,
        begun_ms: int,
    ) -> None:
        now_ms = shared.table.log.clock.wall_ms()
        add = written.add(shared.folder, partition, now_ms=now_ms, data_change=not gap.files)
        removes = tuple(each.removal(now_ms, data_change=False) for each in gap.files)
        part = PartitionIntent(
            partition=partition,
            leader_epoch=leader_epoch,
            is_rewrite=bool(gap.files),
            adds=(add,),
            removes=removes,
            segments=() if gap.segment is None else (described(gap.segment),),
        )
        intent = Intent(operation=OPERATION, topic_id=topic_id, partitions=(part,))
        with shared.lock:
            shared.commit(intent, begun_ms=begun_ms)

    def _rows(self, gap: _StoreGap, sources: Sequence[LogSegmentData]) -> Iterator[pa.RecordBatch]:
        """The rows of the missing offsets that no other file has."""
        # Numba takes 100 MiB that a worker without copies does not need.
        from broker.worker.segment_source import RangeSource

        start, end = gap.said.start_offset, gap.said.end_offset
        elsewhere = self._offsets(gap.others)
        for source in sources:
            if source.segment.start_offset > end:
                return
            reader = RangeSource(source)
            for batch in reader.rows():
                offsets = batch.column("offset").to_numpy()
                wanted = (offsets >= start) & (offsets <= end)
                if len(elsewhere):
                    wanted &= ~np.isin(offsets, elsewhere)
                if wanted.any():
                    yield batch.filter(pa.array(wanted))
            if len(gap.rows) > 1 and reader.is_undecodable:
                raise _RecordsNotInLog("the local log has a batch that cannot be decoded")

    def _offsets(self, files: Sequence[FileEntry]) -> np.ndarray:
        parts = [
            self._reader.open(each.path).read(columns=["offset"]).column("offset").to_numpy()
            for each in files
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _write_residue(self, gap: _StoreGap, sources: Sequence[LogSegmentData]) -> None:
        from broker.worker.delta.writer import write_residue_again

        reached = sources[-1].segment.end_offset if sources else -1
        begins = sources[0].segment.start_offset if sources else -1
        if (begins, reached) != (gap.said.start_offset, gap.said.end_offset):
            raise _RecordsNotInLog("the local log does not have all of its batches any more")
        write_residue_again(self._store, gap.said.what, gap.segments, sources)
        self._crash_points.at("after_repair_residue")


class _RecordsNotInLog(Exception):
    """The local log lacks the missing rows."""


def _rows_from(start: int, first: int, last: int, rows: int) -> range:
    """How many of the rows of [first, last] can lie from `start` on; the last offset is one of them."""
    below = max(0, start - first)
    most = min(rows, last - max(start, first) + 1)
    return range(max(1, rows - below), most + 1)


def _check_whole(said: MissingOffsets, sources: Sequence[LogSegmentData]) -> None:
    """Raise _RecordsNotInLog where the local log may lack records that were copied."""
    if not sources or sources[0].segment.start_offset > said.start_offset:
        raise _RecordsNotInLog("the local log begins behind it")
    if sources[-1].segment.end_offset < said.end_offset:
        raise _RecordsNotInLog("the local log does not reach its end")
    if any(each.may_have_gaps for each in sources):
        raise _RecordsNotInLog("how many rows it had is not known, and the log is compacted")


def _of_commit(segment: RemoteLogSegment, low: int) -> _StoreGap:
    """What from `low` on was in a range that was FINISHED, and whose commit another writer has replaced."""
    start = max(low, segment.start_offset)
    return _StoreGap(
        said=MissingOffsets(
            start_offset=start,
            end_offset=segment.end_offset,
            what=f"the commit of attempt {uuid_text(segment.segment_id)}",
            read_from=segment.start_offset,
            read_to=segment.end_offset,
        ),
        rows=_rows_from(start, segment.start_offset, segment.end_offset, segment.row_count),
        segment=segment,
    )


def _of_restore(start_offset: int, end_offset: int) -> _StoreGap:
    """The operator decides whether they are restored: until then the local log keeps them."""
    return _StoreGap(
        said=MissingOffsets(
            start_offset=start_offset,
            end_offset=end_offset,
            what="removed by a RESTORE",
            read_from=start_offset,
            read_to=end_offset,
        )
    )


def _ends_in(files: Sequence[FileEntry], segment: RemoteLogSegment) -> bool:
    """Whether the first or the last row of a file is one of the segment's."""
    return any(
        segment.start_offset <= offset <= segment.end_offset
        for each in files
        for offset in (each.min_offset, each.max_offset)
    )
