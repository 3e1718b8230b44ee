"""Shell: a topic's table as of one version, with an index of its files, and other engines' changes.

- Rows that others add to the table are no records: files with such rows are in no reader's index. Once their commit is
  behind a checkpoint, a mark in the table shows it, for all versions; a mark of version -1 takes it back.
- A file that the table had before, and that comes back (RESTORE), holds the records that it held.
- What a RESTORE removed is missing (`missing.py`), unlike what was erased.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.delta.actions import OURS, Action, CorruptLog, commit_info, kafka_ds_info
from kafka_ds.delta.checkpoint import CheckpointState
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.forgotten_numbers import forgotten_number
from kafka_ds.topic.index import UNKNOWN, FileEntry, FileIndex, ForeignCommit, account
from kafka_ds.topic.missing import RESTORE, MissingFile, joined, removed_by_restore, still_missing
from kafka_ds.topic.names import (
    DATA_FILE_PATTERN,
    AppIdKind,
    MissingRange,
    app_id,
    complaint_mark,
    is_data_file,
    is_deleted_mark,
    missing_mark,
    missing_range,
    parse_app_id,
    quarantine_mark,
    quarantined_path,
    topic_id_of,
    topic_table,
    undecodable_mark,
)

# How many of other engines' commits are remembered, newest last.
FOREIGN_COMMITS_MAX = 100


class TopicSnapshot(TableSnapshot):
    """A topic's table as of one version, with an index of its files."""

    def __init__(self, log: DeltaLog, topic: str, reader: FileReader | None = None) -> None:
        super().__init__(log, reads_vectors=True)
        self.topic = topic
        self.reader = reader or FileReader(log.store)
        self.index = FileIndex()
        self.foreign_commits: list[ForeignCommit] = []
        self.quarantined: set[str] = set()
        """Files by path whose rows are no records of the topic."""
        self._missing: dict[str, MissingFile] = {}
        """Files that a RESTORE removed, by path."""
        self._gone: set[str] = set()
        """Other engines' removed files, as far as the log still has them."""
        self._newest_txns: Mapping[str, int] = {}
        """Those of the newest version, if an older one is read: their marks hold for it."""

    @classmethod
    def load(
        cls,
        store: Store,
        topic: str,
        version: int | None = None,
        *,
        clock: LogClock | None = None,
    ) -> TopicSnapshot:
        """The table of a topic as of `version`, or of the newest."""
        snapshot = cls(DeltaLog(store, topic_table(topic), clock=clock), topic)
        if version is not None:
            newest = TableSnapshot(snapshot.log, reads_vectors=True)
            newest.read()
            snapshot._newest_txns = newest.txns
            snapshot._apply_marks(newest.txns.items())
        snapshot.read(version)
        return snapshot

    @property
    def topic_id(self) -> bytes | None:
        """The incarnation of the topic that the rows are of; None where it was deleted."""
        return topic_id_of(self.configuration)

    def partitions(self) -> list[int]:
        """The partitions that have rows or had them: their `txn` actions stay if retention removed all."""
        found = set(self.index.partitions())
        names = [parse_app_id(each) for each in self.txns]
        found.update(
            each.partition
            for each in names
            if each is not None
            and each.kind is AppIdKind.HIGHEST_OFFSET
            and each.topic_id == self.topic_id
        )
        return sorted(found)

    def highest_offset_in_remote_storage(self, partition: int) -> int | None:
        """The last offset that is in the table, by the number that each copy leaves."""
        return self._number(partition, AppIdKind.HIGHEST_OFFSET)

    def log_start(self, partition: int) -> int | None:
        """The log start offset, as far as the table has it."""
        return self._number(partition, AppIdKind.LOG_START)

    def undecodable_to(self, partition: int) -> int:
        """The last offset of the partition's batches that are residue since they cannot be decoded, -1 if none is."""
        topic_id = self.topic_id
        mark = None if topic_id is None else undecodable_mark(topic_id, partition)
        return -1 if mark is None else self.txns.get(mark, -1)

    def leader_epoch(self, partition: int) -> int | None:
        """The highest leader epoch that wrote."""
        return self._number(partition, AppIdKind.LEADER_EPOCH)

    def missing(self, partition: int) -> Sequence[tuple[int, int]]:
        """The tiered ranges, both ends inclusive, that a RESTORE removed from the table and that are still missing."""
        if not self._missing:
            return ()
        topic_id, start = self.topic_id, self.log_start(partition) or 0
        spans = [each.range for each in self._missing.values()]
        return joined(
            (max(start, each.start_offset), each.end_offset)
            for each in spans
            if (each.topic_id, each.partition) == (topic_id, partition) and each.end_offset >= start
        )

    def missing_files(self) -> list[MissingFile]:
        """The files that a RESTORE removed and that are still missing, by partition and offset."""
        return sorted(
            (each for each in self._missing.values() if each.range.topic_id == self.topic_id),
            key=lambda each: (each.range.partition, each.range.start_offset),
        )

    def _number(self, partition: int, kind: AppIdKind) -> int | None:
        topic_id = self.topic_id
        return None if topic_id is None else self.txns.get(app_id(topic_id, partition, kind))

    def _complaint_of(self, state: CheckpointState) -> str | None:
        topic_id = topic_id_of(state.metadata["configuration"])
        return forgotten_number(topic_id, state.files, state.txns)

    def _hides(self, state: CheckpointState) -> bool:
        if super()._hides(state):
            return True
        # Spark makes a checkpoint of each RESTORE at once: what it removed would be taken for erased.
        with contextlib.suppress(CorruptLog):
            info = commit_info(self.log.read_version(state.version) or ())
            return info.get("operation") == RESTORE and OURS not in info
        return False

    def _load_checkpoint(self, state: CheckpointState) -> None:
        super()._load_checkpoint(state)
        self.foreign_commits = [e for e in self.foreign_commits if e.version <= state.version]
        self._gone = set(_of_others(state, self.log.table))
        self._missing = {}
        self._apply_marks(self.txns.items())
        for path in [each for each in self._missing if each in self.files]:
            del self._missing[path]
        columns = state.files
        lacking = columns.incomplete()
        quarantined = [columns.place(path) for path in self.quarantined]
        out = {*lacking, *(each for each in quarantined if each is not None)}
        self.index = FileIndex.of_columns(columns, without=out)
        for entry in self._completed([columns[at] for at in lacking]):
            if entry.path not in self.quarantined:
                self.index.add(entry)

    def _applied(
        self,
        version: int,
        actions: Sequence[Action],
        removed: Sequence[FileEntry],
        added: Mapping[str, FileEntry],
    ) -> None:
        self._complete_added(version, removed, added)
        txns = [each["txn"] for each in actions if "txn" in each]
        marked = self._apply_marks((each["appId"], each["version"]) for each in txns)
        for entry in (*removed, *(self.files[path] for path in marked if path in self.files)):
            self.index.remove(entry)
        if kafka_ds_info(actions) is None and (removed or added):
            operation = str(commit_info(actions).get("operation", ""))
            gone = [each for each in removed if each.path not in self.quarantined]
            come = [self.files[path] for path in added]
            found = account(version, operation, gone, come, is_back=self._is_back)
            self.foreign_commits = [*self.foreign_commits, found][-FOREIGN_COMMITS_MAX:]
            self.quarantined.update(each.path for each in found.quarantined)
        self._gone.update(each.path for each in removed if not is_data_file(each.path))
        for path in added:
            self._missing.pop(path, None)
        for path in {**added, **dict.fromkeys(marked)}:
            if path not in self.quarantined and path in self.files:
                self.index.add(self.files[path])
        if kafka_ds_info(actions) is None and commit_info(actions).get("operation") == RESTORE:
            self._restored(version, removed, [self.files[path] for path in added])

    def _restored(
        self, version: int, removed: Sequence[FileEntry], added: Sequence[FileEntry]
    ) -> None:
        """Another version's files are the table's now."""
        left = (still_missing(each, added) for each in self._missing.values())
        self._missing = {each.path: each for each in left if each is not None}
        gone = [
            each
            for each in removed
            if each.path not in self.quarantined and each.path not in self.files
        ]
        ends = {
            number: max((each.max_offset for each in self.index.files(number)), default=UNKNOWN)
            for number in {each.partition for each in gone}
        }
        if self.topic_id is not None:
            missing = removed_by_restore(version, self.topic_id, gone, ends)
            self._missing.update((each.path, each) for each in missing)

    def _is_back(self, entry: FileEntry) -> bool:
        """Whether a file that came was in the table before, and holds no offset that is in another file of it."""
        return entry.path not in self.quarantined and self._is_genuine(entry)

    def _is_genuine(self, entry: FileEntry) -> bool:
        end = self.highest_offset_in_remote_storage(entry.partition)
        if end is None or entry.max_offset > end:
            return False
        folder = f"{self.log.table}/partition={entry.partition}/{entry.min_offset:020d}-"
        is_ours = entry.path.startswith(folder) and is_data_file(entry.path)
        if not is_ours and entry.path not in self._gone:
            return False
        return self._is_of_this_topic(entry) and self.shared_offsets(entry) == 0

    def _is_of_this_topic(self, entry: FileEntry) -> bool:
        """Whether no earlier topic of the same name wrote a file: the commit that added it shows that."""
        if not any(is_deleted_mark(each) for each in self.txns):
            return True
        for version in reversed(self.log.listing().commits):
            actions = self.log.read_version(version) or ()
            ours = kafka_ds_info(actions)
            if ours is not None and any(
                resolve_path(self.log.table, each["add"]["path"]) == entry.path
                for each in actions
                if "add" in each
            ):
                topic_id = self.topic_id
                return topic_id is not None and ours.get("topicId") == uuid_text(topic_id)
        return False

    def shared_offsets(self, entry: FileEntry) -> int | None:
        """How many offsets of a file are in another one; None where that cannot be known.

        Spans may interleave, as other engines pack files by size.
        """
        others = self.index.find(entry.partition, entry.min_offset, entry.max_offset)
        others = [each for each in others if each.path != entry.path]
        if not others:
            return 0
        try:
            own, *found = (self._offsets(each, entry) for each in (entry, *others))
        except (FileNotFoundError, UnreadableFile):
            return None
        return int(np.isin(own, np.concatenate(found)).sum())

    def _offsets(self, entry: FileEntry, span: FileEntry) -> NDArray[np.int64]:
        """The offsets of a file that lie within another's."""
        low, high = span.min_offset, span.max_offset
        rows, _ = self.reader.read(
            entry.path,
            start_offset=low,
            end_offset=high,
            columns=("offset",),
            vector=entry.vector,
        )
        found: NDArray[np.int64] = rows.column("offset").to_numpy()
        return found

    def complaints(self) -> list[ForeignCommit]:
        """Others' commits that are no erasure and no rewrite, and that the table has no mark of."""
        return [
            each
            for each in self.foreign_commits
            if each.complaint and complaint_mark(each.version) not in self.txns
        ]

    def marks_due(self) -> dict[str, int]:
        """The marks that the table needs for others' commits, for readers that begin behind a checkpoint: txn →
        version.

        A file that is quarantined though it is genuine, as earlier releases did with what a RESTORE brought back, is
        released: only those of kafka-ds are certain to be.
        """
        due: dict[str, int] = {}
        for each in self.complaints():
            due[complaint_mark(each.version)] = each.version
            due |= {quarantine_mark(file.action_path): each.version for file in each.quarantined}
        for path in self.quarantined:
            entry = self.files.get(path)
            if entry is not None and is_data_file(path) and self._is_genuine(entry):
                due[quarantine_mark(entry.action_path)] = -1
        missing = {missing_mark(each.range): each.version for each in self._missing.values()}
        due |= {text: at for text, at in missing.items() if self.txns.get(text) != at}
        due |= {
            text: -1
            for text, at in self.txns.items()
            if at >= 0 and text not in missing and missing_range(text) is not None
        }
        return due

    def _apply_marks(self, txns: Iterable[tuple[str, int]]) -> set[str]:
        """Files whose quarantine, or its end, has no mark yet."""
        news: set[str] = set()
        for text, version in txns:
            if (missing := missing_range(text)) is not None:
                self._apply_missing(missing, version)
            if (spelled := quarantined_path(text)) is None:
                continue
            path = resolve_path(self.log.table, spelled)
            version = self._newest_txns.get(text, version)
            if (version >= 0) != (path in self.quarantined):
                self.quarantined ^= {path}
                news.add(path)
        return news

    def _apply_missing(self, missing: MissingRange, version: int) -> None:
        path = resolve_path(self.log.table, missing.action_path)
        if version >= 0:
            self._missing[path] = MissingFile(range=missing, path=path, version=version)
        elif (known := self._missing.get(path)) is not None and known.range == missing:
            # Only if the mark is of this loss: a file that went missing twice may have a mark of each time.
            del self._missing[path]

    def _complete_added(
        self, version: int, removed: Sequence[FileEntry], added: Mapping[str, FileEntry]
    ) -> None:
        """Complete what came. A file may have been vacuumed by now if the table does without it since."""
        gone = []
        for entry in added.values():
            try:
                self._completed([entry])
            except UnreadableFile as error:
                is_there = not isinstance(error.__cause__, FileNotFoundError)
                if is_there or not self._goes_after(version, entry.path):
                    raise
                gone.append(entry)
        for entry in gone:
            self.files[entry.path] = self._assumed(entry, removed, added)

    def _goes_after(self, version: int, path: str) -> bool:
        """Whether a later version removes a file."""
        return any(
            "remove" in action and resolve_path(self.log.table, action["remove"]["path"]) == path
            for _, actions in self.log.versions_after(version)
            for action in actions
        )

    def _assumed(
        self, entry: FileEntry, removed: Sequence[FileEntry], added: Mapping[str, FileEntry]
    ) -> FileEntry:
        """A file that can no longer be read: as if it held the removed rows and no others."""
        before = [
            each
            for each in removed
            if each.partition == entry.partition
            and each.rows > 0
            and each.path not in self.quarantined
        ]
        others = [self.files[path] for path in added]
        known = sum(max(0, each.rows) for each in others if each.partition == entry.partition)
        rows = sum(each.rows for each in before) - known
        if rows <= 0:
            return replace(entry, rows=0)
        return replace(
            entry,
            rows=rows,
            min_offset=min(each.min_offset for each in before),
            max_offset=max(each.max_offset for each in before),
        )

    def _completed(self, entries: Iterable[FileEntry]) -> list[FileEntry]:
        """Read the footers of files for which the log has no statistics; as they are then."""
        found = []
        for entry in entries:
            if not entry.is_complete:
                entry = self.files[entry.path] = self.reader.facts(entry)
            found.append(entry)
        return found


def _of_others(state: CheckpointState, table: str) -> Iterator[str]:
    """The tombstones of other engines' files; those of kafka-ds are known by their names."""
    for paths in state.removed:
        others = paths.filter(pc.invert(pc.match_substring_regex(paths, DATA_FILE_PATTERN)))
        yield from (resolve_path(table, path) for path in others.to_pylist())
