"""Shell: the topics' tables as tiered storage holds them: one each, followed under its lock.

`kafka_ds.topic.table` defines a table and who may write to it. Here are the lock with which several threads use a
table, how often it is followed, and which of its errors may pass by themselves.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from broker.worker.errors import StorageError
from kafka_ds.delta.commit import Conflict, FateUnknown, VersionsGone
from kafka_ds.delta.log import ForeignTable, LogClock
from kafka_ds.delta.snapshot import NoSuchTable
from kafka_ds.delta.statistics import UnsupportedFile
from kafka_ds.delta.store.store import Store
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.topic.commit_rules import Intent, TableChanged, TopicIdChanged
from kafka_ds.topic.files.parquet import FileReader
from kafka_ds.topic.names import AppIdKind, app_id
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import CommittedCopy, ContendedTable, TopicTable

log = logging.getLogger(__name__)

# How often a reader looks for new versions; it also does when it misses something.
FOLLOW_SECONDS = 1.0
TRIES_MAX = 3


class SharedTable:
    """One topic's table, for several threads."""

    def __init__(self, table: TopicTable, was_deleted: Callable[[bytes], bool]) -> None:
        self._was_deleted = was_deleted
        self.lock = threading.RLock()
        self.table = table
        self.folder = self.table.folder
        self._followed = 0.0
        self._claimed: bytes | None = None
        """The topic that may write to it; another process may have created the table."""
        self._reported_version = -1
        self._missing: dict[int, Sequence[tuple[int, int]]] = {}
        """By partition, as logged last."""
        self.complaints = 0
        """Other engines' commits that added rows, as far as they were read here."""

    @contextmanager
    def view(self, *, fresh: bool) -> Iterator[TopicSnapshot | None]:
        """The table now (`fresh`) or a moment ago; None if there is none."""
        with self.lock:
            now = time.monotonic()
            snapshot: TopicSnapshot | None = self.table.snapshot
            if fresh or now - self._followed >= FOLLOW_SECONDS or self.table.snapshot.version < 0:
                snapshot = self._read()
                self._complain()
                self._followed = now
            yield snapshot

    def forget(self) -> None:
        """Read everything again at the next look: versions that were read have been replaced."""
        with self.lock:
            self.table.snapshot.forget()

    def _read(self) -> TopicSnapshot | None:
        try:
            return self.table.read()
        except NoSuchTable:
            return None

    def _complain(self) -> None:
        """Log once for each commit in which another writer added rows that are no records."""
        for each in self.table.snapshot.complaints():
            if each.version > self._reported_version:
                self._reported_version = each.version
                self.complaints += 1
                log.error(
                    "%s: version %d (%s) by another engine: %s; quarantined: %s, no consumer gets their rows",
                    self.folder,
                    each.version,
                    each.operation or "no operation named",
                    each.complaint,
                    counted(len(each.quarantined), "file"),
                )

        self._report_missing(self.table.snapshot)

    def _report_missing(self, snapshot: TopicSnapshot) -> None:
        """Log once for each partition from which a RESTORE removed ranges, and once when they are back."""
        versions = {each.range.partition: each.version for each in snapshot.missing_files()}
        for partition in sorted({*self._missing, *versions}):
            spans = snapshot.missing(partition)
            if list(spans) == list(self._missing.get(partition, ())):
                continue
            name = str(TopicPartition(self.table.topic, partition))
            if spans:
                log.error(
                    "%s: version %d of the table (RESTORE) removed %s: %s; consumers get "
                    "KAFKA_STORAGE_ERROR there until they are restored or given up (docs/how-to/repair-the-lake.md)",
                    name,
                    versions[partition],
                    counted(sum(last - first + 1 for first, last in spans), "tiered offset"),
                    ", ".join(f"{first} to {last}" for first, last in spans),
                )
            else:
                log.warning("%s: no tiered offsets are missing any more", name)
            self._missing[partition] = spans

    def commit(self, intent: Intent, *, begun_ms: int | None = None) -> CommittedCopy:
        """Commit an intent whose files, if it has any, were begun at `begun_ms`; the caller holds the lock.

        Raises Conflict if nothing is left of it, StorageError, CommitError, ForeignTable.
        """
        begun_ms = self.table.begin_ms() if begun_ms is None else begun_ms
        for _ in range(TRIES_MAX):
            try:
                return self.table.commit(intent, begun_ms=begun_ms)
            except VersionsGone as error:
                if not error.attempt.files_may_be_deleted:
                    raise FateUnknown(str(error), error.attempt) from error
            except NoSuchTable as error:
                raise StorageError(str(error)) from error
        raise StorageError(f"{self.folder}: its log was cleaned up during the commit")

    def claim(self, topic_id: bytes) -> None:
        """Create the table, or make sure that this incarnation of the topic may write to it."""
        with self.lock:
            if self._claimed == self.table.snapshot.topic_id == topic_id:
                return
            try:
                self._open(topic_id)
                self._claimed = topic_id
            except TableChanged as conflict:
                # Each commit decides what may be written in spite of that, such as a fence.
                log.warning("The definition of the table was changed: %s", conflict)
            except Conflict as error:
                # A table whose last topic is not deleted yet, too: its deletion is on its way.
                raise StorageError(str(error)) from error

    def _open(self, topic_id: bytes) -> None:
        """Open the table, also if a topic that was deleted while its table was created left its id in it.

        Only the cluster's events decide that a topic is deleted: the asking broker may have been paused. The deleted
        topic may also be the asking one: it had no table when its rows were deleted, and must not get one after that.
        """
        try:
            snapshot = self.table.open(topic_id)
            if not snapshot.files and self._was_deleted(topic_id):
                self.table.retire(topic_id)
                self.table.open(topic_id)
        except TopicIdChanged:
            former = self.table.snapshot.topic_id
            if former in (None, topic_id) or not self._was_deleted(former):
                raise
            log.warning("%s: taking over the table that a deleted topic left behind", self.folder)
            self.table.retire(former)
            self.table.open(topic_id)

    def retire(self, topic_id: bytes) -> bool:
        """Remove all rows of a deleted topic; False if it has none (any more)."""
        with self.lock:
            try:
                return self.table.retire(topic_id)
            except ForeignTable as error:
                if isinstance(error.__cause__, UnsupportedFile):
                    # The rows are there, and an operator can undo what prevents their removal.
                    raise
                return False
            except Conflict:
                return False
            except ContendedTable as error:
                raise StorageError(str(error)) from error

    def was_retired(self, topic_id: bytes) -> bool:
        """Whether the rows of that deleted topic were removed, as far as the table can be read."""
        with self.lock, suppress(ForeignTable):
            return self.table.was_retired(topic_id)
        return False


class TopicTables:
    """The tables of all topics used so far."""

    def __init__(
        self,
        store: Store,
        reader: FileReader,
        clock: LogClock,
        *,
        log_retention_ms: int,
        was_deleted: Callable[[bytes], bool] = lambda topic_id: False,
    ) -> None:
        """`was_deleted` says whether the topic of that id is deleted for good."""
        self._was_deleted = was_deleted
        self._log_retention_ms = log_retention_ms
        self._store = store
        self._reader = reader
        self._clock = clock
        self._tables: dict[str, SharedTable] = {}
        self._complaints = 0
        """Of forgotten tables."""
        self._lock = threading.Lock()

    def complaints(self) -> int:
        """Commits in which other writers added rows, of all topics used so far."""
        with self._lock:
            return self._complaints + sum(each.complaints for each in self._tables.values())

    def forget(self, topic: str) -> None:
        """The topic is deleted: forget its table, unless a new topic of the same name uses it now."""
        with self._lock:
            table = self._tables.get(topic)
        if table is None:
            return
        with table.lock:
            is_left = table.table.snapshot.topic_id is None
        with self._lock:
            # A thread that still holds it goes on with it: the table's log decides, not what is remembered here.
            if is_left and self._tables.get(topic) is table:
                self._complaints += table.complaints
                del self._tables[topic]

    def get(self, topic: str) -> SharedTable:
        """The table of a topic, whether or not it is there yet."""
        with self._lock:
            table = self._tables.get(topic)
            if table is None:
                made = TopicTable(
                    self._store,
                    topic,
                    clock=self._clock,
                    reader=self._reader,
                    log_retention_ms=self._log_retention_ms,
                )
                table = self._tables[topic] = SharedTable(made, self._was_deleted)
            return table


def highest_offset_in_remote_storage(
    snapshot: TopicSnapshot | None, topic_id: bytes, partition: int
) -> int:
    """The last offset of a partition in the table, -1 if it has none of this incarnation."""
    if snapshot is None or snapshot.topic_id != topic_id:
        return -1
    end = snapshot.txns.get(app_id(topic_id, partition, AppIdKind.HIGHEST_OFFSET))
    return -1 if end is None else end
