"""Shell: OPTIMIZE: rewrites a topic's files where that helps readers, and replaces them in one commit.

`kafka_ds.topic.files.optimize` decides what is to be done. Files are written while the table is in use; its lock is
held for the commit alone. The commit is fenced as a copy's is, by topic id and leader epoch, and each file that it
replaces must still be there. If another writer replaced or erased rows of one meanwhile, the new files are deleted, and
the next look begins with what is there then. The old files stay in the store until VACUUM: for plans and consumers
about to read them, and to rewrite a new file that was lost before its commit, for which each one is checked after it.
For readers that follow the table the commit changes no data. A single thread.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from broker.worker.delta.check import OPERATION as REPAIR
from broker.worker.delta.lost_files import lost_files, origin_of
from broker.worker.delta.tables import SharedTable, TopicTables
from broker.worker.errors import StorageError
from broker.worker.rpc import Optimized, TierSettings
from kafka_ds.delta.actions import Action
from kafka_ds.delta.commit import Conflict
from kafka_ds.delta.log import LogClock
from kafka_ds.delta.statistics import entry_of_add
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import PartitionId, TopicIdPartition, TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import FilesRemoved, Intent, PartitionIntent, fields_of
from kafka_ds.topic.expiration import NO_LIMIT
from kafka_ds.topic.files.optimize import (
    LevelChoice,
    OptimizeReason,
    OptimizeRules,
    OptimizeTask,
    days_kept,
    next_task,
)
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, WrittenFile
from kafka_ds.topic.files.rewrite import NotRewritable, RewrittenFiles, is_optimized, rewrite_files
from kafka_ds.topic.index import FileEntry

log = logging.getLogger(__name__)

OPERATION = "OPTIMIZE"
# The most that one request does: its answer says that there is more.
TASKS_MAX = 20
SECONDS_MAX = 5.0
# How often files are written again that are gone once their commit is made.
TRIES_MAX = 3
# For other engines' files: a forgotten one is examined once more.
FILES_KNOWN_MAX = 100_000
FOOTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilesState:
    """What is known of a partition's files as of one version."""

    files: Sequence[FileEntry]
    log_start: int
    columns: tuple[str, ...]
    missing_offsets: int
    retention_ms: int


class TableOptimizer:
    """Rewrites the files of partitions, one after the other."""

    def __init__(
        self,
        store: Store,
        tables: TopicTables,
        settings: TierSettings,
        crash_points: CrashPoints,
        *,
        clock: LogClock,
    ) -> None:
        self._store = store
        self._tables = tables
        self._reader = FileReader(store, footers_max=FOOTERS_MAX)
        self._rules = OptimizeRules(
            file_bytes=settings.lake_maintenance_file_bytes,
            files_min=settings.lake_maintenance_min_files,
            expired_ratio=min(1.0, settings.lake_maintenance_expired_ratio),
        )
        self._levels = LevelChoice(
            lowest=settings.lake_compression_level,
            highest=settings.lake_maintenance_compression_level,
        )
        self._crash_points = crash_points
        self._clock = clock
        self._looked_for: set[PartitionId] = set()
        """Partitions, by topic id, whose files were all checked in the store, when written or later."""
        self._lost: dict[PartitionId, list[FileEntry]] = {}
        """By partition: files that the store lacked, and that cannot be rewritten."""
        self._optimized: set[str] = set()
        """Other engines' files that were examined."""
        self.passed_over: set[str] = set()
        """Files that cannot be read or rewritten; each is logged once, unless there are very many."""

    def optimize(
        self,
        where: TopicIdPartition,
        *,
        leader_epoch: int,
        retention_ms: int = NO_LIMIT,
        rewrites_any_expired: bool = False,
        merges_any: bool = False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> Optimized:
        """Do a bounded part of the work; `goes_on` is asked before each step that matters.

        `retention_ms` is the topic's. `rewrites_any_expired`: a file is rewritten for a single expired row, whatever
        the ratio is; `merges_any`: two small files are merged, whatever number is otherwise waited for. Raises
        StorageError, also for an earlier leader epoch than one that wrote; FateUnknown, OSError.
        """
        topic_id, topic, partition = where
        shared = self._tables.get(topic)
        began, done = time.monotonic(), Optimized()
        is_done, has_expired, missing_offsets = False, True, 0
        rules = replace(self._rules, expired_ratio=0.0) if rewrites_any_expired else self._rules
        rules = replace(rules, files_min=2) if merges_any else rules
        self._look_for_files(shared, topic_id, partition, leader_epoch)
        lost_ranges = self._lost_ranges(shared, topic_id, partition)
        for _ in range(TASKS_MAX):
            if not goes_on() or time.monotonic() - began > SECONDS_MAX:
                break
            state = self._look(shared, topic_id, partition, retention_ms)
            missing_offsets = 0 if state is None else state.missing_offsets
            task = self._task(state, rules)
            if state is None or task is None:
                is_done, has_expired = True, state is not None and self._has_expired(state)
                break
            done = done.plus(self._rewrite(shared, topic_id, leader_epoch, task, state, goes_on))
        return replace(
            done,
            is_done=is_done,
            has_expired=has_expired,
            missing_offsets=missing_offsets,
            lost_ranges=lost_ranges,
            milliseconds=round((time.monotonic() - began) * 1000),
        )

    def _look(
        self, shared: SharedTable, topic_id: bytes, partition: int, retention_ms: int = NO_LIMIT
    ) -> _FilesState | None:
        with shared.view(fresh=True) as snapshot:
            if snapshot is None or snapshot.topic_id != topic_id:
                return None
            return _FilesState(
                files=snapshot.index.files(partition),
                log_start=snapshot.log_start(partition) or 0,
                columns=tuple(fields_of(snapshot.metadata)),
                missing_offsets=sum(
                    last - first + 1 for first, last in snapshot.missing(partition)
                ),
                retention_ms=retention_ms,
            )

    def _has_expired(self, state: _FilesState) -> bool:
        start = state.log_start
        return any(
            each.min_offset < start <= each.max_offset and each.path not in self.passed_over
            for each in state.files
        )

    def _task(self, state: _FilesState | None, rules: OptimizeRules) -> OptimizeTask | None:
        """The next thing to rewrite, as far as the files can be read."""
        while state is not None:
            # A file that cannot be read is skipped: the next look goes on.
            with suppress(UnreadableFile):
                return next_task(
                    state.files,
                    log_start_offset=state.log_start,
                    rules=rules,
                    is_optimized=self._is_optimized,
                    passed_over=self.passed_over,
                )
        return None

    def _is_optimized(self, entry: FileEntry) -> bool:
        if entry.path in self._optimized:
            return True
        try:
            found = is_optimized(self._reader, entry)
        except UnreadableFile as error:
            self._pass_over([entry], error)
            raise
        if found:
            if len(self._optimized) >= FILES_KNOWN_MAX:
                self._optimized.clear()
            self._optimized.add(entry.path)
        return found

    def _pass_over(self, files: Sequence[FileEntry], error: Exception) -> None:
        """Leave these files as they are, so that the others do not wait. Raises if the store is unavailable."""
        if isinstance(error.__cause__, OSError) and self._is_away(files[0].path):
            raise StorageError(str(error)) from error
        log.warning(
            "skipped %d files from %s on, which cannot be rewritten: %s",
            len(files),
            files[0].path,
            error,
        )
        if len(self.passed_over) >= FILES_KNOWN_MAX:
            self.passed_over.clear()
        self.passed_over.update(each.path for each in files)

    def _is_away(self, path: str) -> bool:
        """Whether the store does not return a file that it may have."""
        try:
            self._store.read_range(path, 0, 1)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def _rewrite(
        self,
        shared: SharedTable,
        topic_id: bytes,
        leader_epoch: int,
        task: OptimizeTask,
        state: _FilesState,
        goes_on: Callable[[], bool],
    ) -> Optimized:
        begun_ms = shared.table.begin_ms()
        attempt = uuid_text(new_uuid())
        file_bytes = None if task.reason is OptimizeReason.SMALL else self._rules.file_bytes
        try:
            rewritten = self._write(shared, task.files, file_bytes, state, attempt)
        except (NotRewritable, UnreadableFile, pa.ArrowException) as error:
            named = [each for each in task.files if str(error).startswith(each.path)]
            self._pass_over(named or task.files, error)
            return Optimized()
        self._crash_points.at("after_optimize_files")
        if not goes_on():
            self._discard(shared, task.files, attempt)
            return Optimized()
        return self._replace(
            shared, topic_id, leader_epoch, task, rewritten, begun_ms, state, attempt
        )

    def _write(
        self,
        shared: SharedTable,
        files: Sequence[FileEntry],
        file_bytes: int | None,
        state: _FilesState,
        attempt: str,
    ) -> RewrittenFiles:
        """New files with the rows of the old ones. Raises NotRewritable, UnreadableFile, ArrowException, OSError."""
        kept = days_kept(files, state.retention_ms, self._clock.wall_ms())
        try:
            return rewrite_files(
                self._store,
                self._reader,
                shared.folder,
                files,
                attempt=attempt,
                log_start_offset=state.log_start,
                file_bytes=file_bytes,
                columns=state.columns,
                level=replace(self._levels, days_kept=kept),
            )
        except (NotRewritable, UnreadableFile, pa.ArrowException, OSError):
            # Usually a full disk: no commit was tried, and each new try would leave as many files again.
            self._discard(shared, files, attempt)
            raise

    def _replace(
        self,
        shared: SharedTable,
        topic_id: bytes,
        leader_epoch: int,
        task: OptimizeTask,
        rewritten: RewrittenFiles,
        begun_ms: int,
        state: _FilesState,
        attempt: str,
    ) -> Optimized:
        """Commit: replace the old files by the new ones, or do nothing."""
        folder, place = shared.folder, (topic_id, task.files[0].partition)
        intent = self._intent(folder, topic_id, leader_epoch, task, rewritten, state.log_start)
        self._crash_points.at("before_optimize_commit")
        # Until the new files were checked: the answer may be lost, or the store unavailable.
        self._looked_for.discard(place)
        try:
            with shared.lock:
                shared.commit(intent, begun_ms=begun_ms)
        except Conflict as conflict:
            # Each version that was tried is another writer's: this commit is not in the table and never will be.
            self._discard(shared, task.files, attempt)
            if not isinstance(conflict, FilesRemoved):
                raise StorageError(str(conflict)) from conflict
            log.info("%s: OPTIMIZE abandoned: %s", folder, conflict)
            return Optimized(lost=1)
        self._crash_points.at("after_optimize_commit")
        new = [_entry(folder, place[1], each) for each in rewritten.files]
        if lost := self._lost_of(new):
            self._write_again(shared, topic_id, leader_epoch, task.files, new, lost, state)
        self._looked_for.add(place)
        return Optimized(
            files_before=len(task.files),
            files_after=len(rewritten.files),
            bytes_before=task.size_bytes,
            bytes_after=sum(each.size for each in rewritten.files),
            rows=rewritten.rows,
            expired_rows=rewritten.expired_rows,
            boundary_bytes=task.size_bytes if rewritten.expired_rows else 0,
            reasons={task.reason.value: 1},
        )

    # -- new files that are lost ------------------------------------------------------------

    def _look_for_files(
        self, shared: SharedTable, topic_id: bytes, partition: int, leader_epoch: int
    ) -> None:
        """Check each file of a partition, once: an earlier worker may have died right after a commit."""
        place = (topic_id, partition)
        if place in self._looked_for:
            return
        state = self._look(shared, topic_id, partition)
        lost = (
            () if state is None else lost_files(self._store, shared.folder, partition, state.files)
        )
        again: set[str] = set()
        self._lost.pop(place, None)
        for each in lost:
            assert state is not None, "a file of it is lost"
            if each.path in again:
                continue
            origin = origin_of(self._store, shared.table.log, each.path)
            new = [] if origin is None else [e for e in state.files if e.path in origin.new]
            why = "is missing, and so are the files that it was rewritten from"
            if (
                origin is not None
                and len(new) == len(origin.new)
                and not any(e.vector for e in new)
            ):
                try:
                    old = [self._reader.facts(entry) for entry in origin.old]
                except UnreadableFile as error:
                    why = f"is missing, and what it was rewritten from is damaged: {error}"
                else:
                    again |= origin.new
                    self._write_again(shared, topic_id, leader_epoch, old, new, [each.path], state)
                    continue
            where = f"{TopicPartition(shared.table.topic, partition)}: {each.path}"
            log.error(
                "%s with offsets %d to %d %s",
                where,
                each.min_offset,
                each.max_offset,
                why,
            )
            self._lost.setdefault(place, []).append(each)
        if len(self._looked_for) >= FILES_KNOWN_MAX:
            self._looked_for.clear()
        self._looked_for.add(place)

    def _lost_ranges(
        self, shared: SharedTable, topic_id: bytes, partition: int
    ) -> list[tuple[int, int]]:
        """First and last offsets of lost files that the table still names and that were not replaced."""
        lost = self._lost.get((topic_id, partition), [])
        state = self._look(shared, topic_id, partition) if lost else None
        if state is None:
            return []
        named = {each.path for each in state.files}
        return [
            (max(each.min_offset, state.log_start), each.max_offset)
            for each in lost
            if each.path in named
            and each.max_offset >= state.log_start
            and self._store.size(each.path) != each.size
        ]

    def _lost_of(self, new: Sequence[FileEntry]) -> list[str]:
        """The new files that the store lacks: they may have been deleted while no version named them."""
        return [each.path for each in new if self._store.size(each.path) != each.size]

    def _write_again(
        self,
        shared: SharedTable,
        topic_id: bytes,
        leader_epoch: int,
        old: Sequence[FileEntry],
        new: Sequence[FileEntry],
        lost: Sequence[str],
        state: _FilesState,
    ) -> None:
        """Replace new files, some of which are lost, by others of the same rows, as long as the old files are there."""
        for _ in range(TRIES_MAX):
            new = self._written_again(shared, topic_id, leader_epoch, old, new, lost, state)
            if not (lost := self._lost_of(new)):
                return
        raise StorageError(f"{shared.folder}: files are deleted as soon as they are written")

    def _written_again(
        self,
        shared: SharedTable,
        topic_id: bytes,
        leader_epoch: int,
        old: Sequence[FileEntry],
        new: Sequence[FileEntry],
        lost: Sequence[str],
        state: _FilesState,
    ) -> list[FileEntry]:
        begun_ms, attempt = shared.table.begin_ms(), uuid_text(new_uuid())
        file_bytes = None if len(new) == 1 else self._rules.file_bytes
        names = ", ".join(lost)
        try:
            again = self._write(shared, old, file_bytes, state, attempt)
        except (NotRewritable, UnreadableFile, pa.ArrowException) as error:
            log.error("%s is missing, and cannot be rewritten: %s", names, error)
            raise StorageError(f"{names} is missing, and cannot be rewritten: {error}") from error
        self._crash_points.at("after_repair_file")
        partition = new[0].partition
        task = OptimizeTask(OptimizeReason.LOST, tuple(new))
        intent = self._intent(shared.folder, topic_id, leader_epoch, task, again, state.log_start)
        try:
            with shared.lock:
                shared.commit(intent, begun_ms=begun_ms)
        except Conflict as conflict:
            self._discard(shared, old, attempt)
            log.error("%s is missing, and was not rewritten: %s", names, conflict)
            raise StorageError(str(conflict)) from conflict
        self._crash_points.at("after_repair_commit")
        log.warning("%s was rewritten from the old files: it was missing", names)
        return [_entry(shared.folder, partition, each) for each in again.files]

    def _intent(
        self,
        folder: str,
        topic_id: bytes,
        leader_epoch: int,
        task: OptimizeTask,
        rewritten: RewrittenFiles,
        log_start: int,
    ) -> Intent:
        now_ms, partition = self._clock.wall_ms(), task.files[0].partition
        part = PartitionIntent(
            partition=partition,
            leader_epoch=leader_epoch,
            is_rewrite=True,
            adds=tuple(_add(folder, partition, each, now_ms) for each in rewritten.files),
            removes=tuple(
                each.removal(now_ms, data_change=each.min_offset < log_start) for each in task.files
            ),
        )
        return Intent(
            operation=REPAIR if task.reason is OptimizeReason.LOST else OPERATION,
            topic_id=topic_id,
            partitions=(part,),
            parameters={"partition": str(partition), "reason": task.reason.value},
        )

    def _discard(self, shared: SharedTable, files: Sequence[FileEntry], attempt: str) -> None:
        """Delete files that are in no commit and never will be."""
        folder = f"{shared.folder}/partition={files[0].partition}"
        for entry in self._store.list(folder):
            if entry.path.endswith(f"-{attempt}.parquet"):
                self._store.delete(entry.path)


def _add(folder: str, partition: int, file: WrittenFile, now_ms: int) -> Action:
    return file.add(folder, partition, now_ms=now_ms, data_change=False)


def _entry(folder: str, partition: int, file: WrittenFile) -> FileEntry:
    return entry_of_add(folder, _add(folder, partition, file, 0)["add"])
