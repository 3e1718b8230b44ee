"""Shell: ranges that a RESTORE removed from a topic's table: counted, added back, or given up, as an operator decides.

Adding back is a commit of the removed files, or of the missing rows in new files; no offset comes twice. It changes
exactly the files that were examined: after any other commit, or another leader's, all is examined again. Giving up is a
commit without files: consumers skip these offsets like erased records. Neither changes where the table ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from kafka_ds.delta.actions import Action, kafka_ds_info, txn_action
from kafka_ds.delta.commit import Conflict, vacuumed_age_ms
from kafka_ds.delta.deletion_vector import DeletionVector, vector_of
from kafka_ds.delta.file_entry import FileEntry
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.store.uri import open_store
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.commit_rules import Intent, PartitionIntent, TopicChange, fields_of
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, WrittenFile, facts_of
from kafka_ds.topic.files.rewrite import rewrite_files
from kafka_ds.topic.missing import MissingFile
from kafka_ds.topic.names import missing_mark, missing_range
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable

log = logging.getLogger(__name__)

ADD_BACK = "ADD BACK"
GIVE_UP = "GIVE UP"
TRIES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedBack:
    """The result for missing ranges."""

    rows: Mapping[int, int] = field(default_factory=dict)
    """How many are in the table again, by partition."""
    missing: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Offsets, both inclusive, that are missing still: their files are not in the store, or cannot be read."""


def missing_ranges(lake_uri: str, topic: str) -> Mapping[int, Sequence[tuple[int, int]]]:
    """The offsets, both inclusive, that a RESTORE removed from a topic's table, by partition."""
    return _ranges(TopicTable(open_store(lake_uri), topic).read())


def add_back(lake_uri: str, topic: str) -> AddedBack:
    """Add back everything that a RESTORE removed from a topic's table, as far as its files exist."""
    table = TopicTable(open_store(lake_uri), topic)
    for _ in range(TRIES_MAX):
        snapshot = table.read()
        work = _RecoveryAttempt(table, snapshot)
        if not work.settled:
            return AddedBack(missing=_ranges(snapshot))
        if work.commit(ADD_BACK):
            return AddedBack(rows=work.rows, missing=_ranges(table.read()))
    raise Conflict(f"{table.folder}: others kept changing the table while rows were added back")


def give_up(lake_uri: str, topic: str) -> Mapping[int, Sequence[tuple[int, int]]]:
    """Give up what a RESTORE removed from a topic's table; returns the offsets that are lost for good."""
    table = TopicTable(open_store(lake_uri), topic)
    for _ in range(TRIES_MAX):
        snapshot = table.read()
        gone = _ranges(snapshot)
        work = _RecoveryAttempt(table, snapshot, adds=False)
        if not gone or work.commit(GIVE_UP):
            return gone
    raise Conflict(f"{table.folder}: others kept changing the table")


def _ranges(snapshot: TopicSnapshot) -> Mapping[int, Sequence[tuple[int, int]]]:
    numbers = sorted({each.range.partition for each in snapshot.missing_files()})
    found = {number: snapshot.missing(number) for number in numbers}
    return {number: spans for number, spans in found.items() if spans}


def _span(missing: MissingFile) -> tuple[int, int]:
    return missing.range.start_offset, missing.range.end_offset


class _RecoveryAttempt:
    """One try at a table as it is now."""

    def __init__(self, table: TopicTable, snapshot: TopicSnapshot, *, adds: bool = True) -> None:
        self._table, self._snapshot = table, snapshot
        self._reader = FileReader(table.log.store)
        self._begun_ms = table.begin_ms()
        self._written: list[str] = []
        """New files, deleted if the commit is not made."""
        self._adds: dict[int, list[Action]] = {}
        self.rows: dict[int, int] = {}
        self.settled: list[MissingFile] = []
        for each in snapshot.missing_files():
            files = self._files(each) if adds else []
            if files is not None:
                self.settled.append(each)
                for file in files:
                    self._add(each.range.partition, file)

    def _files(self, missing: MissingFile) -> Sequence[WrittenFile] | None:
        """The files that bring a missing range back, none if its rows are there; None if they cannot be had."""
        store, span = self._table.log.store, missing.range
        size = store.size(missing.path)
        if not size:
            return None
        try:
            entry = FileEntry(
                path=missing.path,
                action_path=span.action_path,
                partition=span.partition,
                size=size,
                vector=self._vector(missing),
            )
            entry = self._reader.facts(entry)
            if entry.min_offset >= span.start_offset and entry.vector is None:
                found = facts_of(self._reader, entry)
            else:
                rewritten = rewrite_files(
                    store,
                    self._reader,
                    self._table.folder,
                    [entry],
                    attempt=uuid_text(uuid4().bytes),
                    log_start_offset=span.start_offset,
                    file_bytes=None,
                    columns=fields_of(self._snapshot.metadata),
                )
                if not rewritten.files:
                    return ()
                (found,) = rewritten.files
                self._written.append(found.path)
        except UnreadableFile as error:
            log.error(
                "%s: cannot restore offsets %d to %d: %s",
                self._table.folder,
                *_span(missing),
                error,
            )
            return None
        shared = self._snapshot.shared_offsets(
            replace(
                entry,
                path=found.path,
                vector=None,
                rows=found.rows,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
            )
        )
        if shared in (0, found.rows):
            return () if shared else (found,)
        return None  # A part of it is there, or that is unknown: no offset comes twice.

    def _vector(self, missing: MissingFile) -> DeletionVector | None:
        """The deletion vector that a file had when it was removed, which stays: its remove action has it.

        Raises UnreadableFile if the log no longer has that action, and there may have been one.
        """
        table = self._table.folder
        actions = self._table.log.read_version(missing.version)
        for action in actions or ():
            remove = action.get("remove")
            if remove is not None and resolve_path(table, remove["path"]) == missing.path:
                return vector_of(table, remove.get("deletionVector"))
        if self._snapshot.protocol.get("readerFeatures"):
            raise UnreadableFile(
                f"{missing.path}: which of its rows were deleted is no longer known"
            )
        return None

    def _add(self, partition: int, file: WrittenFile) -> None:
        add = file.add(self._table.folder, partition, now_ms=self._table.log.clock.wall_ms())
        self._adds.setdefault(partition, []).append(add)
        self.rows[partition] = self.rows.get(partition, 0) + file.rows

    def commit(self, operation: str) -> bool:
        """Make it visible; False if the table changed meanwhile. Raises TableChanged if nothing may be written."""
        snapshot = self._snapshot
        topic_id = snapshot.topic_id
        assert topic_id is not None, "what is missing is some topic's"
        numbers = {each.range.partition for each in self.settled}
        intent = Intent(
            operation=operation,
            topic_id=topic_id,
            partitions=tuple(
                PartitionIntent(
                    partition=number,
                    leader_epoch=snapshot.leader_epoch(number) or 0,
                    adds=tuple(self._adds.get(number, ())),
                )
                for number in sorted(numbers)
            ),
            actions=tuple(txn_action(text, -1) for text in self._marks()),
        )
        log = self._table.log
        attempt = log.begin(_Undisturbed(intent, snapshot), begun_ms=self._begun_ms)
        try:
            log.commit(attempt, read_version=snapshot.version)
        except Conflict:
            for path in self._written:
                log.store.delete(path)
            return False
        return True

    def _marks(self) -> list[str]:
        """The marks of settled files: a file that came back in part may have older marks."""
        table = self._table.folder
        paths = {each.path for each in self.settled}
        marks = [missing_mark(each.range) for each in self.settled]
        for text, version in self._snapshot.txns.items():
            known = missing_range(text) if version >= 0 else None
            if known is not None and resolve_path(table, known.action_path) in paths:
                marks.append(text)
        return list(dict.fromkeys(marks))


class _Undisturbed(TopicChange):
    """A change of exactly the files that were examined: it fails if any leader commits in between."""

    def check(self, version: int, actions: Sequence[Action]) -> None:
        ours = kafka_ds_info(actions)
        if ours is None or vacuumed_age_ms(actions) is not None or "partitions" not in ours:
            raise Conflict(f"version {version} came between", version=version)
        if any("remove" in each for each in actions):
            raise Conflict(f"version {version} removed files", version=version)
        super().check(version, actions)
        for conflict in self.out.values():
            # The commit records for each partition that nothing is missing any more.
            raise conflict
