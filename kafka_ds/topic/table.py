"""Shell: a topic's table as its writer holds it: created, followed, committed to, given up.

A table is never created twice: deleting a topic is a commit that removes all files, clears the topic id and leaves a
mark, and a later topic of the name continues in the same log under its own id. A commit is checked against the newest
known state, then against each version that comes between (`commit_rules.py`). A folder that holds something else is
refused, and never written to. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_ds.delta.actions import (
    KIND_KEY,
    Action,
    CorruptLog,
    interval_ms,
    txn_action,
)
from kafka_ds.delta.commit import Attempt, Conflict, FilesMayBeGone, PlainChange
from kafka_ds.delta.log import DeltaLog, ForeignTable, LogClock
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.delta.snapshot import NoSuchTable, NoSuchVersion, TableSnapshot
from kafka_ds.delta.statistics import UnsupportedFile
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.protocol.types import NO_UUID, uuid_text
from kafka_ds.topic.commit_rules import Intent, TableChanged, TopicChange, TopicIdChanged, objection
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.names import TOPIC_ID_KEY, deleted_mark, is_data_file, topic_id_of, topic_table
from kafka_ds.topic.schemas import (
    LOG_RETENTION_MS,
    TOPIC_PARTITION_COLUMNS,
    TOPIC_SCHEMA,
    topic_table_properties,
)
from kafka_ds.topic.snapshot import TopicSnapshot

TOPIC_KIND = "topic"
CREATE = "CREATE TOPIC"
ADOPT = "ADOPT TOPIC"
RETIRE = "DELETE TOPIC"
QUARANTINE = "QUARANTINE"
TRIES_MAX = 20
# Errors of reading a log, or the footers of files, that hold anything else than a topic's table does.
UNREADABLE = (
    CorruptLog,
    NoSuchVersion,
    UnsupportedFile,
    UnreadableFile,
    KeyError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCopy:
    """A commit that is in the table."""

    version: int
    out: Mapping[int, Conflict]
    """The partitions that were dropped from it, and why."""
    attempt: Attempt


class TopicTable:
    """The table of one topic."""

    def __init__(
        self,
        store: Store,
        topic: str,
        *,
        clock: LogClock | None = None,
        reader: FileReader | None = None,
        log_retention_ms: int = LOG_RETENTION_MS,
    ) -> None:
        """`log_retention_ms` is set when the table is created here."""
        self.topic = topic
        self.folder = topic_table(topic)
        self.log = DeltaLog(store, self.folder, clock=clock)
        self._table = TableWriter(self.log)
        self._log_retention_ms = log_retention_ms
        self._reader = reader
        self.snapshot = TopicSnapshot(self.log, topic, reader)

    def open(self, topic_id: bytes) -> TopicSnapshot:
        """Create the table, or take over one that its last topic left; returns the snapshot as of now.

        Raises ForeignTable if the folder holds something else, TopicIdChanged if the table belongs to another
        incarnation of the topic, TableChanged if its rules are not known.
        """
        assert topic_id != NO_UUID, "a topic has an id"
        self.settle()
        self.log.create(
            schema_json=delta_schema_json(TOPIC_SCHEMA),
            partition_columns=TOPIC_PARTITION_COLUMNS,
            configuration=_configuration(topic_table_properties(self._log_retention_ms), topic_id),
            operation=CREATE,
            # A bulk load comes before its topic; another may have failed.
            passes=is_data_file,
        )
        for _ in range(TRIES_MAX):
            self.read()
            if self.snapshot.topic_id is not None:
                break
            if deleted_mark(topic_id) in self.snapshot.txns:
                raise TopicIdChanged(
                    f"{self._where()}: the topic with id {uuid_text(topic_id)} was deleted"
                )
            self._change_metadata(self.snapshot, ADOPT, topic_id)
        if self.snapshot.topic_id != topic_id:
            found = uuid_text(self.snapshot.topic_id or NO_UUID)
            raise TopicIdChanged(
                f"{self._where()} belongs to topic id {found}, not {uuid_text(topic_id)}"
            )
        complaint = objection(self.snapshot.protocol, self.snapshot.metadata)
        if complaint:
            raise TableChanged(f"{self._where()}: {complaint}")
        return self.snapshot

    def read(self) -> TopicSnapshot:
        """The newest state of an existing table; raises NoSuchTable or ForeignTable."""
        try:
            self.snapshot.refresh()
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        self._check_kind(self.snapshot)
        retention = interval_ms(
            self.snapshot.configuration.get("delta.logRetentionDuration", "interval 30 days")
        )
        self.log.update_log_retention(retention or 0)
        return self.snapshot

    def _unopened(self) -> TableSnapshot:
        """The newest state without reading any file: they may be damaged, or the store silent. Raises as `read`."""
        found = TableSnapshot(self.log, reads_vectors=True)
        try:
            found.read()
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        self._check_kind(found)
        return found

    def _unreadable(self, error: Exception) -> ForeignTable:
        return ForeignTable(f"{self._where()} is no table that can be read: {error}")

    def _check_kind(self, snapshot: TableSnapshot) -> None:
        if snapshot.kind != TOPIC_KIND:
            raise ForeignTable(f"{self._where()} holds a table that is not a topic's")

    def begin_ms(self) -> int:
        """The time to begin a commit's files at, by the clock that `commit` measures their age with."""
        return self.log.clock.boot_ms()

    def settle(self) -> None:
        """Find out the outcome of a commit whose answer was lost; raises FateUnknown while that is unknown."""
        self._table.settle()

    def commit(self, intent: Intent, *, begun_ms: int) -> CommittedCopy:
        """Commit an intent, or those of its partitions that nothing in between has ended.

        Raises Conflict if nothing is left of it, CommitError if no end could be reached; both decide whether its files
        may be deleted.
        """
        self.settle()
        self.read()
        # The attempt looks at the versions from here on; those before were read just now, or long ago.
        change = TopicChange(intent, self.snapshot)
        if change.has_files and begun_ms <= self.snapshot.gone_before_ms:
            raise FilesMayBeGone(f"{self._where()} was vacuumed while this commit's files waited")
        attempt = self._table.begin(change, begun_ms=begun_ms)
        version = self._table.commit(attempt, read_version=self.snapshot.version)
        self.read()
        return CommittedCopy(version=version, out=dict(change.out), attempt=attempt)

    def mark_complaints(self) -> int:
        """Write marks for others' files without records; returns their number.

        A reader that begins with a checkpoint does not see those commits.
        """
        self.settle()
        marks = self.snapshot.marks_due()
        if not marks:
            return 0
        actions = [txn_action(mark, version) for mark, version in marks.items()]
        attempt = self._table.begin(PlainChange(QUARANTINE, actions=actions))
        self._table.commit(attempt, read_version=self.snapshot.version)
        self.read()
        return len(marks)

    def retire(self, topic_id: bytes) -> bool:
        """Remove all rows of a deleted topic, and its id; False if that was done before.

        Raises TopicIdChanged if the table belongs to another incarnation meanwhile.
        """
        self.settle()
        for _ in range(TRIES_MAX):
            try:
                there = self._unopened()
            except NoSuchTable:
                return False
            owner = topic_id_of(there.configuration)
            if owner is None:
                self._forget_rows()
                return False
            if owner != topic_id:
                raise TopicIdChanged(f"{self._where()} belongs to topic id {uuid_text(owner)}")
            mark = txn_action(deleted_mark(topic_id), 1)
            if self._change_metadata(there, RETIRE, NO_UUID, [*self._removals(there), mark]):
                self._forget_rows()
                return True
        raise ContendedTable(
            f"{self._where()}: files were added {TRIES_MAX} times while all were removed"
        )

    def was_retired(self, topic_id: bytes) -> bool:
        """Whether the rows of that deleted topic were removed. Raises ForeignTable."""
        try:
            return deleted_mark(topic_id) in self._unopened().txns
        except NoSuchTable:
            return False

    def _forget_rows(self) -> None:
        """Forget what was known of the rows."""
        self.snapshot = TopicSnapshot(self.log, self.topic, self._reader)

    def _removals(self, there: TableSnapshot) -> list[Action]:
        deleted_ms = self.log.clock.wall_ms()
        return [entry.removal(deleted_ms) for entry in there.files.values()]

    def _change_metadata(
        self, there: TableSnapshot, operation: str, topic_id: bytes, actions: Sequence[Action] = ()
    ) -> bool:
        """Give the table another topic id; False if another writer committed meanwhile."""
        metadata = dict(there.metadata)
        metadata["configuration"] = _configuration(there.configuration, topic_id)
        change = PlainChange(
            operation, actions=[{"metaData": metadata}, *actions], check=_end_at_any
        )
        try:
            self._table.commit(self._table.begin(change), read_version=there.version)
        except Conflict:
            return False
        return True

    def _where(self) -> str:
        return self.log.store.uri(self.folder)


class ContendedTable(Exception):
    """Other writers kept changing the table while it was given up."""


def _end_at_any(version: int, actions: Sequence[Action]) -> None:
    """A change of the table itself: made on exactly the state that was read."""
    for action in actions:
        if not action.keys() <= {"commitInfo"}:
            raise TableChanged(f"version {version} came between", version=version)


def _configuration(before: Mapping[str, str], topic_id: bytes) -> dict[str, str]:
    text = "" if topic_id == NO_UUID else uuid_text(topic_id)
    return {**before, KIND_KEY: TOPIC_KIND, TOPIC_ID_KEY: text}
