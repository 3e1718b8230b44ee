"""Shell: remote storage as Delta tables: files written durably, then one commit for many partitions.

The table decides: a range is tiered if and only if a commit of its table says so; no row elsewhere and no file's
presence counts. A commit carries the attempts that it makes visible, so that after a crash it is known which of them
won. An attempt whose commit's fate is unknown is committed again with the same bytes before anything else happens to
that table.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from broker.worker.cache.disk_cache import DiskCache
from broker.worker.copy_semaphore import CopySemaphore
from broker.worker.delta.aux_state import AuxStateReader
from broker.worker.delta.check import StoreCheck
from broker.worker.delta.committed_attempts import CommittedAttempts
from broker.worker.delta.optimizer import TableOptimizer
from broker.worker.delta.reader import ColdReader
from broker.worker.delta.residue import ResidueFiles
from broker.worker.delta.segments import (
    DATA_SUFFIX,
    CopyCommit,
    WrittenFiles,
    completed,
    described,
    named_after,
)
from broker.worker.delta.tables import SharedTable, TopicTables, highest_offset_in_remote_storage
from broker.worker.delta.tiered_extent import (
    TieredExtent,
    drop_residue,
    removals,
    residue_of,
    tiered_extent_of,
)
from broker.worker.errors import CommitLost, FileMissing, StorageError
from broker.worker.maintenance import TableMaintenance
from broker.worker.rpc import LogSegmentData, TieredState, TierSettings
from kafka_ds.delta.actions import kafka_ds_info
from kafka_ds.delta.commit import Conflict
from kafka_ds.delta.log import LogClock, SystemLogClock
from kafka_ds.delta.store.store import Store
from kafka_ds.ipc.shared_memory import WorkerMemory
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import (
    FilesRemoved,
    Intent,
    LeaderEpochFenced,
    LogStartIncremented,
    PartitionIntent,
    TableChanged,
    TopicIdChanged,
    objection,
)
from kafka_ds.topic.files.parquet import FileReader, WrittenFile
from kafka_ds.topic.load import forget_load, owner_file
from kafka_ds.topic.names import LOADS, deleted_mark, loaded_mark, loaded_partition
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

log = logging.getLogger(__name__)

OPERATION = "TIER"
LOAD = "LOAD"
SET_LOG_START = "SET LOG START"
FENCE = "FENCE"
DELETE = "DELETE"
# Conflicts that waiting does not resolve: this leader, or this incarnation of the topic, writes no more.
FINAL_CONFLICTS = (TopicIdChanged, LeaderEpochFenced, TableChanged)
TRIES_MAX = 3
# The footer of a 64 MiB file takes half a MiB of memory.
FOOTERS_MAX = 32


class RemoteStorageManager:
    """The tables of the topics under one lake."""

    def __init__(
        self,
        store: Store,
        settings: TierSettings,
        crash_points: CrashPoints,
        *,
        clock: LogClock | None = None,
        cache: DiskCache | None = None,
        memory: WorkerMemory | None = None,
        was_deleted: Callable[[bytes], bool] = lambda topic_id: False,
        threads: int = 1,
    ) -> None:
        """`threads`: how many files are looked for in the store at a time."""
        self._store = store
        self._settings = settings
        self._crash_points = crash_points
        self._clock = clock or SystemLogClock()
        reader = FileReader(store, footers_max=FOOTERS_MAX)
        self._tables = TopicTables(
            store,
            reader,
            self._clock,
            log_retention_ms=settings.lake_log_retention_ms,
            was_deleted=was_deleted,
        )
        self.reader = ColdReader(store, self._tables, reader, settings, cache, memory)
        self.aux_state = AuxStateReader(self._tables, reader, ResidueFiles(store))
        self.optimizer = TableOptimizer(  # Another thread's than the one that copies.
            store, self._tables, settings, crash_points, clock=self._clock
        )
        self.check = StoreCheck(
            store,
            self._tables,
            reader,
            crash_points,
            holds=self.holds,
            level=settings.lake_compression_level,
            threads=threads,
        )
        self._decided = CommittedAttempts()
        self._semaphore = CopySemaphore(settings.lake_copy_threads)
        self._large = CopySemaphore(settings.lake_copy_threads)
        self._lost: set[bytes] = set()
        """Attempts at ranges that another attempt holds: their files may be deleted."""

    def state(self, partition: TopicIdPartition) -> TieredState:
        """How far a partition is tiered: all else follows from it."""
        return self.states(partition.topic, partition.topic_id, [partition.partition])[0]

    def states(self, topic: str, topic_id: bytes, partitions: Sequence[int]) -> list[TieredState]:
        """The same for several partitions of a topic from one read of the table."""
        with self._tables.get(topic).view(fresh=True) as snapshot:
            if snapshot is None or snapshot.topic_id != topic_id:
                return [
                    TieredState(highest_offset_in_remote_storage=-1, log_start_offset=0)
                    for _ in partitions
                ]
            conflict = objection(snapshot.protocol, snapshot.metadata)
            return [
                TieredState(
                    highest_offset_in_remote_storage=highest_offset_in_remote_storage(
                        snapshot, topic_id, each
                    ),
                    log_start_offset=snapshot.log_start(each) or 0,
                    leader_epoch=-1 if (epoch := snapshot.leader_epoch(each)) is None else epoch,
                    conflict=conflict or "",
                )
                for each in partitions
            ]

    # -- copying ----------------------------------------------------------------------------

    def write(
        self,
        sources: Sequence[LogSegmentData],
        loaded: Sequence[WrittenFile] = (),
        *,
        loaded_count: int = 0,
    ) -> WrittenFiles:
        """Make the files of consecutive segments of one partition durable, but not visible.

        They share files; or `loaded` are theirs, one each, which a bulk load of `loaded_count` partitions has written.
        Raises SegmentNotFound, StorageError.
        """
        first = sources[0].segment
        table = self._tables.get(first.topic)
        # Before anything is written: until the table has this topic's id, a deletion may remove any file in it.
        table.claim(first.topic_id)
        # Numba takes 100 MiB that a worker without copies does not need.
        from broker.worker.delta.writer import SMALL_BYTES_MAX, take_over, write_ranges

        if loaded:
            return take_over(
                self._store,
                table.folder,
                sources,
                loaded,
                loaded_count=loaded_count,
                begun_ms=self._clock.boot_ms(),
            )
        is_small = sum(each.segment.size_bytes for each in sources) <= SMALL_BYTES_MAX
        # Small ranges of many partitions wait for the store together. Large ones wait their turn, which bounds memory.
        with nullcontext() if is_small else self._large:
            return write_ranges(
                self._store,
                table.folder,
                sources,
                file_bytes=self._settings.lake_file_bytes,
                level=self._settings.lake_compression_level,
                begun_ms=self._clock.boot_ms(),
                semaphore=self._semaphore,
                crash_points=self._crash_points,
            )

    def commit(self, topic: str, topic_id: bytes, written: Sequence[WrittenFiles]) -> CopyCommit:
        """Make files visible in one commit; a partition drops out as a whole if another writer was first.

        Raises StorageError, CommitError, ForeignTable.
        """
        shared = self._tables.get(topic)
        self._decided.forget()
        is_load = any(each.loaded_count for each in written)
        intent = Intent(
            operation=LOAD if is_load else OPERATION,
            topic_id=topic_id,
            partitions=tuple(_intent(shared, each) for each in written),
        )
        try:
            with shared.lock:
                done = shared.commit(intent, begun_ms=min(each.begun_ms for each in written))
        except Conflict as conflict:
            return _outcome({each.segments[0].partition: conflict for each in written})
        return _outcome(done.out, (done.version, done.attempt.commit_id))

    def expect(
        self, topic: str, topic_id: bytes, loaded: Mapping[int, Sequence[WrittenFile]]
    ) -> None:
        """Check that the files of a bulk load (by partition) can be committed: they are there, and nothing else is.

        Raises StorageError, also where the table is not this topic's.
        """
        table = self._tables.get(topic)
        table.claim(topic_id)
        with table.view(fresh=True) as snapshot:
            assert snapshot is not None, "a table that was claimed is there"
            ends = {
                each: highest_offset_in_remote_storage(snapshot, topic_id, each)
                for each in loaded
                if loaded_mark(topic_id, each) not in snapshot.txns
            }
        for partition, end in ends.items():
            if end >= 0:
                raise StorageError(
                    f"offsets up to {end} of partition {partition} are in the table, and not from its bulk "
                    "load: a broker of an earlier version has led it; delete the topic"
                )
            listed = self._store.list(f"{table.folder}/partition={partition}")
            there = {each.path: each.size for each in listed}
            for each in loaded[partition]:
                if there.get(each.path) != each.size:
                    raise StorageError(f"{each.path} of its bulk load is not in the lake")

    def not_loaded(self, topic: str, topic_id: bytes, partitions: Collection[int]) -> list[int]:
        """Those of the partitions that may lack what the topic's bulk load wrote for them."""
        with self._tables.get(topic).view(fresh=True) as snapshot:
            if snapshot is None or snapshot.topic_id != topic_id:
                return list(partitions)
            # One mark tells of all partitions that the load did not know.
            counts = {
                partition: count
                for text, count in snapshot.txns.items()
                if (partition := loaded_partition(text, topic_id)) is not None
            }
        least = min(counts.values(), default=None)
        return [
            each for each in partitions if each not in counts and (least is None or each < least)
        ]

    def set_log_start(self, partition: TopicIdPartition, *, leader_epoch: int, offset: int) -> None:
        """Record durably that a partition begins there; never backwards, and not for an earlier epoch.

        Raises StorageError, CommitError, ForeignTable.
        """
        topic_id, topic, number = partition
        shared = self._tables.get(topic)
        shared.claim(topic_id)
        part = PartitionIntent(partition=number, leader_epoch=leader_epoch, log_start_offset=offset)
        intent = Intent(
            operation=SET_LOG_START,
            topic_id=topic_id,
            partitions=(part,),
            parameters={"partition": str(number), "offset": str(offset)},
        )
        with shared.lock:
            try:
                shared.commit(intent)
            except (LogStartIncremented, LeaderEpochFenced, TopicIdChanged) as conflict:
                # It begins there or further up already, or this leader may not write any more: nothing is left to do.
                log.info("%s: log start offset not incremented: %s", shared.folder, conflict)
            except Conflict as conflict:
                # Until an operator has undone that: the caller asks again.
                raise StorageError(str(conflict)) from conflict

    def fence(
        self,
        topic: str,
        topic_id: bytes,
        leader_epochs: Mapping[int, int],
        *,
        loaded_count: int = 0,
    ) -> None:
        """From now on refuse commits of earlier leader epochs to these partitions (number → epoch).

        `loaded_count`: they have what a bulk load of so many partitions wrote; those without rows are marked, too.
        Raises StorageError, also where a later epoch is there; CommitError, ForeignTable.
        """
        shared = self._tables.get(topic)
        # Without a table, a leader of an earlier epoch may be about to create it.
        shared.claim(topic_id)
        with shared.lock, shared.view(fresh=True) as snapshot:
            assert snapshot is not None, "a table that was claimed is there"
            parts = tuple(
                PartitionIntent(partition=partition, leader_epoch=epoch, loaded_count=loaded_count)
                for partition, epoch in leader_epochs.items()
                if snapshot.leader_epoch(partition) != epoch
                or (loaded_count and loaded_mark(topic_id, partition) not in snapshot.txns)
            )
            if not parts:
                return
            intent = Intent(operation=FENCE, topic_id=topic_id, partitions=parts)
            try:
                out = shared.commit(intent).out
            except Conflict as conflict:
                raise StorageError(str(conflict)) from conflict
            if out:
                raise StorageError("; ".join(map(str, out.values())))

    def extent(self, partition: TopicIdPartition) -> TieredExtent:
        """Where the partition begins, as of now."""
        topic_id, topic, number = partition
        with self._tables.get(topic).view(fresh=True) as snapshot:
            return tiered_extent_of(snapshot, topic_id, number)

    def remove_below(self, partition: TopicIdPartition, *, leader_epoch: int, offset: int) -> int:
        """Remove all files that hold nothing at or above an offset, in one step; returns how many.

        `offset` is at most `TieredExtent.horizon`: the log start was moved before. Removed files stay in the store
        until VACUUM, for readers of older versions. Raises StorageError (also for an earlier leader epoch than one that
        wrote), CommitError, ForeignTable.
        """
        topic_id, topic, number = partition
        shared = self._tables.get(topic)
        with shared.lock:
            count = self._remove_below(shared, topic_id, number, leader_epoch, offset)
        self._crash_points.at("after_remove")
        drop_residue(self._store, shared.folder, topic_id, number, offset)
        self._crash_points.at("after_residue_removed")
        return count

    def _remove_below(
        self, shared: SharedTable, topic_id: bytes, partition: int, leader_epoch: int, offset: int
    ) -> int:
        """Commit removes only; if another engine replaces files meanwhile, they are looked up again."""
        for _ in range(TRIES_MAX):
            now_ms = self._clock.wall_ms()
            with shared.view(fresh=True) as snapshot:
                removes = removals(snapshot, topic_id, partition, offset, now_ms=now_ms)
            if not removes:
                return 0
            part = PartitionIntent(partition=partition, leader_epoch=leader_epoch, removes=removes)
            intent = Intent(
                operation=DELETE,
                topic_id=topic_id,
                partitions=(part,),
                parameters={"partition": str(partition), "belowOffset": str(offset)},
            )
            try:
                shared.commit(intent)
            except FilesRemoved as conflict:
                log.info(
                    "%s: looking up expired files again: %s",
                    shared.folder,
                    conflict,
                )
            except Conflict as conflict:
                raise StorageError(str(conflict)) from conflict
            else:
                return len(removes)
        raise StorageError(f"{shared.folder}: other writers keep replacing the files to be removed")

    # -- after a crash ----------------------------------------------------------------------

    def holds(self, segment: RemoteLogSegment) -> RemoteLogSegment | None:
        """Whether an unfinished attempt became visible: the attempt completed as committed, or None.

        Completed without a file where the log was cleaned up: this attempt or another at its range became visible.
        Raises FateUnknown while a commit of it is open.
        """
        table = self._tables.get(segment.topic)
        with table.lock:
            table.table.settle()
            with table.view(fresh=True) as snapshot:
                if (
                    highest_offset_in_remote_storage(snapshot, segment.topic_id, segment.partition)
                    < segment.end_offset
                ):
                    return None
                assert snapshot is not None
                decided = self._decided.attempts(table.table.log, snapshot.version, segment)
                if decided is None:
                    # What is left of its files in the table is known: none if others replaced them, or it lost.
                    return replace(
                        segment, files=named_after(segment, table.folder, snapshot.files)
                    )
        for each in decided:
            if each["id"] == uuid_text(segment.segment_id):
                return completed(segment, each)
        self._lost.add(segment.segment_id)
        return None

    def verify(self, segment: RemoteLogSegment) -> None:
        """Check that each file of a committed range is there; FileMissing names one that is not.

        A file that another writer has replaced since by a commit is not missing.
        """
        table = self._tables.get(segment.topic)
        residue = [segment.residue] if segment.residue else []
        names = [f"{table.folder}/{name}" for name in (*segment.files, *residue)]
        missing = [name for name in names if not self._store.size(name)]
        if not missing:
            return
        with table.view(fresh=True) as snapshot:
            if snapshot is not None and segment.end_offset < (
                snapshot.log_start(segment.partition) or 0
            ):
                return  # Retention has removed it.
            for name in missing:
                # OPTIMIZE and VACUUM by other engines are legal: the rows are in other files by now.
                if snapshot is None or name in snapshot.files or not name.endswith(DATA_SUFFIX):
                    raise FileMissing(f"{name} is committed but not in the store")

    def confirm(self, topic: str, commit: tuple[int, str]) -> None:
        """Read a commit back; CommitLost if its version is another writer's by now.

        Some writers check whether a version is there, and then rename over it. The cached state of the table is dropped
        then, and read again.
        """
        table = self._tables.get(topic)
        version, commit_id = commit
        with table.lock:
            delta_log = table.table.log
            actions = delta_log.read_version(version)
            if actions is not None:
                is_there = (kafka_ds_info(actions) or {}).get("commitId") == commit_id
            else:
                # Cleaned up, together with what a checkpoint has of it.
                is_there = any(each >= version for each in delta_log.listing().checkpoints)
            if not is_there:
                table.forget()
                raise CommitLost(
                    f"{table.folder}: version {version} is now another writer's: the commit is lost"
                )

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Whether this incarnation of the topic is known to be deleted: nothing of it is committed any more."""
        with self._tables.get(topic).view(fresh=True) as snapshot:
            if snapshot is None:
                return False
            others = snapshot.topic_id not in (None, topic_id)
            return others or deleted_mark(topic_id) in snapshot.txns

    def discard(self, segment: RemoteLogSegment) -> bool:
        """Remove the files of an attempt that never became visible and never will.

        False: that is not certain yet, and nothing is removed.
        """
        deleted = self.is_deleted(segment.topic, segment.topic_id)
        if segment.segment_id not in self._lost and not deleted:
            return False
        table = self._tables.get(segment.topic)
        attempt = uuid_text(segment.segment_id)
        folders = (f"partition={segment.partition}", f"_residue/partition={segment.partition}")
        for folder in folders:
            for entry in self._store.list(f"{table.folder}/{folder}"):
                if attempt in entry.path:
                    self._store.delete(entry.path)
        self._lost.discard(segment.segment_id)
        return True

    def delete_topic(self, topic: str, topic_id: bytes) -> None:
        """Remove every record of this incarnation of a topic; a new topic of that name is left alone."""
        table = self._tables.get(topic)
        residue = self._store.list(f"{table.folder}/_residue")
        if table.retire(topic_id):
            log.info("deleted the rows of %s (%s)", topic, uuid_text(topic_id))
            self._crash_points.at("after_topic_retired")
        else:
            residue = residue_of(self._store, residue, topic_id, table.was_retired(topic_id))
        # VACUUM skips it; what was listed before the id was cleared is all of this topic.
        for entry in residue:
            self._store.delete(entry.path)
        for load in self._store.folders(LOADS):
            with suppress(FileNotFoundError):
                if self._store.read(owner_file(load)) == uuid_text(topic_id).encode():
                    forget_load(self._store, load)
        self.reader.forget(topic, topic_id)
        self.aux_state.forget(topic)
        self._tables.forget(topic)

    def maintain(self, topic: str, maintenance: TableMaintenance) -> None:
        """Checkpoints and log clean-up, so that commits stay fast."""
        # A folder that is not a table of kafka-ds raises here, before anything in it is touched.
        table = self._tables.get(topic)
        with table.view(fresh=False) as snapshot:
            if snapshot is None:
                return
            # Before a checkpoint hides the commits in question.
            if snapshot.marks_due():
                table.table.mark_complaints()
            version = snapshot.version
        maintenance.look_after(table.folder, version)

    def complaints(self) -> int:
        """The commits found so far in which other engines added rows to topics' tables."""
        return self._tables.complaints()


def _intent(shared: SharedTable, written: WrittenFiles) -> PartitionIntent:
    now_ms, segments = shared.table.log.clock.wall_ms(), written.segments
    partition = segments[0].partition
    return PartitionIntent(
        partition=partition,
        leader_epoch=segments[-1].leader_epoch,
        start_offset=segments[0].start_offset,
        end_offset=segments[-1].end_offset,
        adds=tuple(each.add(shared.folder, partition, now_ms=now_ms) for each in written.files),
        leader_log_start=written.leader_log_start,
        undecodable_to=written.undecodable_to,
        loaded_count=written.loaded_count,
        segments=tuple(described(each) for each in segments),
    )


def _outcome(out: Mapping[int, Conflict], commit: tuple[int, str] | None = None) -> CopyCommit:
    return CopyCommit(
        dropped={partition: str(conflict) for partition, conflict in out.items()},
        final=frozenset(
            partition
            for partition, conflict in out.items()
            if isinstance(conflict, FINAL_CONFLICTS)
        ),
        commit=commit,
    )
