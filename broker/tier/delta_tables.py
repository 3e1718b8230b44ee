"""Shell: the topics' tables as the tier holds them: one followed snapshot each, made and claimed when needed.

Rules of this file: a table is never restarted. The first copy makes it, with the topic's id in its
configuration; a deleted topic clears the id and leaves a mark for it, so that a leader that slept through
the deletion never claims the table back; a recreated topic goes on in the same log under its new id.
A snapshot is followed under its table's lock; what is handed out of it does not change.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from broker.tier.spi import FateUnknownError, StorageError
from kafka_ds.lake.actions import KIND_KEY, TOPIC_ID_KEY, Action, remove_action, txn_action
from kafka_ds.lake.attempt import CommitError, Conflict, FateUnknown, PlainChange
from kafka_ds.lake.log import DeltaLog, ForeignTable, LogClock
from kafka_ds.lake.names import AppIdKind, app_id, topic_table
from kafka_ds.lake.parquet import FileReader
from kafka_ds.lake.snapshot import NoSuchTable, TopicSnapshot
from kafka_ds.lake.store import Store
from kafka_ds.lake.tables import (
    TOPIC_PARTITION_COLUMNS,
    TOPIC_SCHEMA,
    delta_schema_json,
    topic_table_properties,
)
from kafka_ds.wire.types import uuid_text

TOPIC_KIND = "topic"
CLAIMS_MAX = 5
# A reader looks for new versions so often, and whenever it needs what it does not find.
FOLLOW_SECONDS = 1.0


class TopicTable:
    """One topic's table."""

    def __init__(self, store: Store, topic: str, reader: FileReader, clock: LogClock) -> None:
        self.topic = topic
        self.lock = threading.RLock()
        self.name = topic_table(topic)
        self.log = DeltaLog(store, self.name, clock=clock)
        self._snapshot = TopicSnapshot(self.log, topic, reader)
        self._followed = 0.0

    @contextmanager
    def view(self, *, fresh: bool) -> Iterator[TopicSnapshot | None]:
        """The table as of now (`fresh`) or of a moment ago; None where there is none."""
        with self.lock:
            now = time.monotonic()
            if fresh or now - self._followed >= FOLLOW_SECONDS or self._snapshot.version < 0:
                self._follow()
                self._followed = now
            yield self._snapshot if self._snapshot.version >= 0 else None

    def _follow(self) -> None:
        try:
            if self._snapshot.version < 0:
                self._snapshot.read()
            else:
                self._snapshot.refresh()
        except NoSuchTable:
            return

    def claim(self, topic_id: bytes) -> None:
        """Make the table this incarnation's; StorageError where it is another's that is still there."""
        with self.lock:
            for _ in range(CLAIMS_MAX):
                with self.view(fresh=True) as snapshot:
                    if snapshot is None:
                        self._create(topic_id)
                    elif snapshot.topic_id == topic_id:
                        return
                    else:
                        self._take_over(snapshot, topic_id)
            raise StorageError(f"{self.name}: others claim the table at the same time")

    def _create(self, topic_id: bytes) -> None:
        try:
            self.log.create(
                schema_json=delta_schema_json(TOPIC_SCHEMA),
                partition_columns=TOPIC_PARTITION_COLUMNS,
                configuration={
                    **topic_table_properties(),
                    KIND_KEY: TOPIC_KIND,
                    TOPIC_ID_KEY: uuid_text(topic_id),
                },
            )
        except ForeignTable as error:
            raise StorageError(str(error)) from error
        except CommitError as error:
            raise StorageError(f"{self.name} cannot be made: {error}") from error

    def _take_over(self, snapshot: TopicSnapshot, topic_id: bytes) -> None:
        """Write our id into a table whose topic was deleted."""
        if snapshot.kind != TOPIC_KIND:
            raise StorageError(f"{self.name} is a table, but not one of a topic of ours")
        if deleted_mark(topic_id) in snapshot.txns:
            raise StorageError(f"{self.name}: the topic of this id was deleted")
        if snapshot.topic_id is not None:
            raise StorageError(
                f"{self.name} holds the rows of topic id {uuid_text(snapshot.topic_id)}, "
                "whose deletion is awaited"
            )
        self._commit_metadata(
            snapshot, "CLAIM", {**snapshot.configuration, TOPIC_ID_KEY: uuid_text(topic_id)}, []
        )

    def delete(self, topic_id: bytes, *, now_ms: int) -> bool:
        """Remove all rows of this incarnation and clear its id; False where the table is not its."""
        with self.lock:
            for _ in range(CLAIMS_MAX):
                with self.view(fresh=True) as snapshot:
                    if snapshot is None or snapshot.topic_id != topic_id:
                        return False
                    kept = {k: v for k, v in snapshot.configuration.items() if k != TOPIC_ID_KEY}
                    removes = [
                        remove_action(
                            path=each.action_path,
                            partition_values={"partition": str(each.partition)},
                            size=each.size,
                            deleted_ms=now_ms,
                        )
                        for each in snapshot.files.values()
                    ]
                    mark = txn_action(deleted_mark(topic_id), 1, now_ms)
                    if self._commit_metadata(snapshot, "DELETE TOPIC", kept, [*removes, mark]):
                        return True
            raise StorageError(f"{self.name}: others commit at the same time")

    def _commit_metadata(
        self,
        snapshot: TopicSnapshot,
        operation: str,
        configuration: Mapping[str, str],
        more: Sequence[Action],
    ) -> bool:
        """Commit new metadata, on exactly this version; False where somebody was faster."""

        def check(version: int, actions: Sequence[Action]) -> None:
            raise Conflict(f"version {version} came between", version=version)

        metadata = {"metaData": _plain_metadata(snapshot.metadata, configuration)}
        change = PlainChange(operation, actions=[metadata, *more], check=check)
        try:
            self.log.commit(self.log.begin(change), read_version=snapshot.version)
        except Conflict:
            return False
        except FateUnknown as error:
            raise FateUnknownError(str(error)) from error
        except CommitError as error:
            raise StorageError(str(error)) from error
        return True


class TopicTables:
    """The tables of all topics that were asked for."""

    def __init__(self, store: Store, reader: FileReader, clock: LogClock) -> None:
        self._store = store
        self._reader = reader
        self._clock = clock
        self._tables: dict[str, TopicTable] = {}
        self._lock = threading.Lock()

    def get(self, topic: str) -> TopicTable:
        """The table of a topic, whether or not it is there yet."""
        with self._lock:
            table = self._tables.get(topic)
            if table is None:
                table = TopicTable(self._store, topic, self._reader, self._clock)
                self._tables[topic] = table
            return table


def _plain_metadata(
    metadata: Mapping[str, Any], configuration: Mapping[str, str]
) -> dict[str, Any]:
    """Metadata as a commit spells it, also where it was read from a checkpoint (nulls, lists of pairs)."""
    known = {name: value for name, value in metadata.items() if value is not None}
    form = known.get("format") or {}
    known["format"] = {
        "provider": form.get("provider", "parquet"),
        "options": dict(form.get("options") or ()),
    }
    return {**known, "configuration": dict(configuration)}


def deleted_mark(topic_id: bytes) -> str:
    """The application id whose presence says that the topic of this id was deleted."""
    return f"{uuid_text(topic_id)}-deleted"


def tiered_end(snapshot: TopicSnapshot | None, topic_id: bytes, partition: int) -> int:
    """The last offset of a partition in the table, -1 where there is none of this incarnation."""
    if snapshot is None or snapshot.topic_id != topic_id:
        return -1
    end = snapshot.txns.get(app_id(topic_id, partition, AppIdKind.TIERED_END))
    return -1 if end is None else end
