"""Shell: a table as of one version: its files and numbers, loaded once and followed through the log.

Rules of this file:
- Loaded from the newest complete checkpoint at or below the version, then version by version. If a checkpoint cannot be
  read, the one before it is used.
- Followed by reading the versions that came since, never from what a writer remembers of its own commits. After a pause
  so long that versions may have been cleaned up, it is loaded again: the gap may hold commits of a paused writer.
- Rows that others put into a topic's table are no records: files with such rows are in no reader's index. Once their
  commit is behind a checkpoint, a mark in the table says so, for all versions: another engine's checkpoint may be older
  than the mark.
- A version in which a file has a deletion vector is refused: which of its rows are there is not known here. Versions
  before it can be read, and those in which others have rewritten the file.
- Other engines' actions are taken as they are: encoded or absolute paths, no tags, no statistics (then the footer is
  asked), files of several commits at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kafka_ds.lake.actions import KIND_KEY, TOPIC_ID_KEY, Action, CorruptLog, commit_info, ours_of
from kafka_ds.lake.files.parquet import FileReader, UnreadableFile
from kafka_ds.lake.index.columns import FileMap
from kafka_ds.lake.index.index import FileEntry, FileIndex, ForeignCommit, account
from kafka_ds.lake.index.stats import UnsupportedFile, entry_of_add
from kafka_ds.lake.log.attempt import is_vacuum
from kafka_ds.lake.log.checkpoint import CheckpointState, is_torn, read_checkpoint
from kafka_ds.lake.log.log import DeltaLog, LogClock, LogListing
from kafka_ds.lake.names import (
    AppIdKind,
    app_id,
    complaint_mark,
    parse_app_id,
    quarantined_path,
    resolve_path,
    topic_table,
    undecodable_mark,
)
from kafka_ds.lake.store.store import Store
from kafka_ds.wire.types import NO_UUID, uuid_from_text

# How many of other engines' commits are remembered, newest last.
FOREIGN_COMMITS_MAX = 100
LOADS_MAX = 3


class NoSuchTable(Exception):
    """There is no table at a folder of the lake."""


class NoSuchVersion(Exception):
    """A version of a table was never there, or was cleaned up."""


class TableSnapshot:
    """One table as of `version`."""

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self.version = -1
        self.protocol: Mapping[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.txns: dict[str, int] = {}
        self.files = FileMap()
        """By path, relative to the lake or absolute: engines encode the same path differently."""
        self.vacuumed_ms = 0
        """When a vacuum was last met, or may have been passed over, by a clock that counts sleep."""
        self._seen_ms = 0
        self._vectors: set[str] = set()
        """Files that have a deletion vector."""

    @property
    def configuration(self) -> Mapping[str, str]:
        configuration: Mapping[str, str] = self.metadata.get("configuration", {})
        return configuration

    @property
    def kind(self) -> str | None:
        """What kind of table of ours this is; None if it is not ours."""
        return self.configuration.get(KIND_KEY)

    @property
    def topic_id(self) -> bytes | None:
        """The incarnation of the topic that the rows are of; None where it was deleted, and of other tables."""
        text = self.configuration.get(TOPIC_ID_KEY, "")
        with contextlib.suppress(ValueError):
            found = uuid_from_text(text)
            return None if found == NO_UUID else found
        return None

    def has_file(self, action_path: str) -> bool:
        return resolve_path(self.log.table, action_path) in self.files

    def read(self, version: int | None = None) -> None:
        """Read the table anew as of `version`, or of the newest."""
        began_ms = self.vacuumed_ms = self.log.clock.boot_ms()
        for _ in range(LOADS_MAX):
            listing = self._listing(version)
            if listing.latest < 0:
                raise NoSuchTable(f"{self.log.store.uri(self.log.table)} is no table")
            state = self._checkpoint(listing, version)
            self.version = -1
            self._take(state)
            self.version = state.version
            self._follow(version)
            goal = listing.latest if version is None else version
            if self.version >= goal:
                self._refuse_vectors()
                # Not before all is read: what a read that failed has left is as old as it was.
                self._seen_ms = began_ms
                return
            # A clean-up went through meanwhile, or the version is not there.
        raise NoSuchVersion(f"{self.log.store.uri(self.log.table)}: version {goal} is not there")

    def refresh(self) -> bool:
        """Follow the log to its newest version; whether there was anything new."""
        before, began_ms = self.version, self.log.clock.boot_ms()
        if before < 0 or self.log.is_long_past(self._seen_ms):
            self.read()
            return self.version != before
        self._follow(None)
        self._refuse_vectors()
        self._seen_ms = began_ms
        if self.version == before and self.log.latest_version() > before:
            self.read()
        return self.version != before

    def _refuse_vectors(self) -> None:
        if self._vectors:
            self.version = -1  # All is read anew the next time.
            raise UnsupportedFile(f"{min(self._vectors)} has a deletion vector")

    def _listing(self, version: int | None) -> LogListing:
        hint = self.log.last_checkpoint()
        if hint is not None and (version is None or version >= hint):
            listing = self.log.listing(start=hint)
            if hint in listing.checkpoints:
                return listing
        return self.log.listing()

    def _checkpoint(self, listing: LogListing, version: int | None) -> CheckpointState:
        """The newest readable checkpoint that is not too new.

        Raises CorruptLog where there is none, and OSError where the store does not give one that there is.
        """
        failure: Exception | None = None
        unread: dict[int, list[str]] = {}
        for listed in (listing, None):
            found = (listed or self.log.listing()).checkpoints
            for each in sorted(found, reverse=True):
                if version is not None and each > version:
                    continue
                try:
                    return read_checkpoint(self.log.store, self.log.table, each, found[each])
                except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                    failure, unread[each] = error, found[each]
        if self.log.read_version(0) is None:
            self._raise_if_away(unread, failure)
            raise CorruptLog(f"{self.log.table}: neither a checkpoint nor version 0") from failure
        return CheckpointState()

    def _raise_if_away(
        self, unread: Mapping[int, Sequence[str]], failure: Exception | None
    ) -> None:
        """Tell a store that did not answer from a log that is damaged, which some give up for good."""
        log = self.log
        if not all(is_torn(log.store, log.table, each, unread[each]) for each in unread):
            raise OSError(f"{log.table}: no checkpoint can be read now: {failure}") from failure

    def _take(self, state: CheckpointState) -> None:
        self.protocol, self.metadata = state.protocol, state.metadata
        self.txns = dict(state.txns)
        self.files = FileMap(state.files)
        self._vectors = set(state.vectors)

    def _follow(self, version: int | None) -> None:
        if version is not None and version <= self.version:
            return
        for each, actions in self.log.versions_after(self.version):
            self._apply(each, actions)
            if each == version:
                return

    def _apply(self, version: int, actions: Sequence[Action]) -> None:
        self.version = (
            -1
        )  # Where this fails, half of the version is taken in: all is read anew then.
        try:
            removed, added = self._apply_actions(actions)
            self._applied(version, actions, removed, added)
            if is_vacuum(actions):
                self.vacuumed_ms = self.log.clock.boot_ms()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # JSON, but no action as the protocol has it.
            raise CorruptLog(f"{self.log.table}, version {version}: {error!r}") from error
        self.version = version

    def _apply_actions(
        self, actions: Sequence[Action]
    ) -> tuple[list[FileEntry], dict[str, FileEntry]]:
        removed: list[FileEntry] = []
        added: dict[str, FileEntry] = {}
        vectors: set[str] = set()
        for action in actions:
            if "add" in action:
                entry = entry_of_add(self.log.table, action["add"])
                added[entry.path] = entry
                if action["add"].get("deletionVector"):
                    vectors.add(entry.path)
                # Engines that complete a file's statistics add it once more.
                before = self.files.pop(entry.path, None)
                if before is not None:
                    removed.append(before)
            elif "remove" in action:
                path = resolve_path(self.log.table, action["remove"]["path"])
                gone = self.files.pop(path, None)
                self._vectors.discard(path)
                if gone is not None:
                    removed.append(gone)
            elif "txn" in action:
                self.txns[action["txn"]["appId"]] = action["txn"]["version"]
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
        self.files.update(added)
        self._vectors = (self._vectors - added.keys()) | vectors
        return removed, added

    def _applied(
        self,
        version: int,
        actions: Sequence[Action],
        removed: Sequence[FileEntry],
        added: Mapping[str, FileEntry],
    ) -> None:
        """A version was taken in; for those who keep more than the files."""


class TopicSnapshot(TableSnapshot):
    """A topic's table as of one version, with an index of its files."""

    def __init__(self, log: DeltaLog, topic: str, reader: FileReader | None = None) -> None:
        super().__init__(log)
        self.topic = topic
        self.reader = reader or FileReader(log.store)
        self.index = FileIndex()
        self.foreign_commits: list[ForeignCommit] = []
        self.quarantined: set[str] = set()
        """Files by path whose rows are no records of the topic."""

    @classmethod
    def load(
        cls,
        store: Store,
        topic: str,
        version: int | None = None,
        *,
        clock: LogClock | None = None,
        reader: FileReader | None = None,
    ) -> TopicSnapshot:
        """The table of a topic as of `version`, or of the newest."""
        snapshot = cls(DeltaLog(store, topic_table(topic), clock=clock), topic, reader)
        if version is not None:
            newest = TableSnapshot(snapshot.log)
            # No file of the newest version is looked at.
            with contextlib.suppress(UnsupportedFile):
                newest.read()
            snapshot._take_marks(newest.txns)
        snapshot.read(version)
        return snapshot

    def partitions(self) -> list[int]:
        """The partitions that have rows or had them: where retention took all out, their numbers stay."""
        found = set(self.index.partitions())
        names = [parse_app_id(each) for each in self.txns]
        found.update(
            each.partition
            for each in names
            if each is not None
            and each.kind is AppIdKind.TIERED_END
            and each.topic_id == self.topic_id
        )
        return sorted(found)

    def tiered_end(self, partition: int) -> int | None:
        """The last offset that is in the table, by the number that each copy leaves."""
        return self._number(partition, AppIdKind.TIERED_END)

    def log_start(self, partition: int) -> int | None:
        """The log start offset as far as the table was told."""
        return self._number(partition, AppIdKind.LOG_START)

    def undecodable_to(self, partition: int) -> int:
        """The last offset of the partition's batches that are residue since they cannot be decoded, -1 if none is."""
        topic_id = self.topic_id
        mark = None if topic_id is None else undecodable_mark(topic_id, partition)
        return -1 if mark is None else self.txns.get(mark, -1)

    def leader_epoch(self, partition: int) -> int | None:
        """The highest leader epoch that wrote."""
        return self._number(partition, AppIdKind.LEADER_EPOCH)

    def find(self, partition: int, start_offset: int, end_offset: int) -> list[FileEntry]:
        """The files that may hold offsets of [start_offset, end_offset], by first offset."""
        return self.index.find(partition, start_offset, end_offset)

    def _number(self, partition: int, kind: AppIdKind) -> int | None:
        topic_id = self.topic_id
        return None if topic_id is None else self.txns.get(app_id(topic_id, partition, kind))

    def _take(self, state: CheckpointState) -> None:
        super()._take(state)
        self.foreign_commits = [e for e in self.foreign_commits if e.version <= state.version]
        self._take_marks(self.txns)
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
        marked = self._take_marks(each["txn"]["appId"] for each in actions if "txn" in each)
        if ours_of(actions) is None and (removed or added):
            operation = str(commit_info(actions).get("operation", ""))
            gone = [each for each in removed if each.path not in self.quarantined]
            found = account(version, operation, gone, [self.files[path] for path in added])
            self.foreign_commits = [*self.foreign_commits, found][-FOREIGN_COMMITS_MAX:]
            self.quarantined.update(each.path for each in found.quarantined)
        for entry in (*removed, *(self.files[path] for path in marked if path in self.files)):
            self.index.remove(entry)
        for path in added:
            if path not in self.quarantined:
                self.index.add(self.files[path])

    def complaints(self) -> list[ForeignCommit]:
        """Others' commits that are no erasure and no new layout, and that the table has no mark of."""
        return [
            each
            for each in self.foreign_commits
            if each.complaint and complaint_mark(each.version) not in self.txns
        ]

    def _take_marks(self, app_ids: Iterable[str]) -> set[str]:
        """Files whose quarantine is news."""
        marked = {path for text in app_ids if (path := quarantined_path(text)) is not None}
        news = {resolve_path(self.log.table, path) for path in marked} - self.quarantined
        self.quarantined |= news
        return news

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
        """A file that nobody can look into any more: as if it held what went for it and came in no other."""
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
        """Ask the footers of those files that the log has no statistics for; as they are then."""
        found = []
        for entry in entries:
            if not entry.is_complete:
                entry = self.files[entry.path] = self.reader.facts(entry)
            found.append(entry)
        return found
