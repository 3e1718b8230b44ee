"""Shell: makes the cluster's events rows of `__cluster_metadata`, for SQL, soon after they were committed.

The commitInfo of the controllers' commits is the source; each event becomes a row exactly once: the commit that adds
rows moves the table's `txn` `materialised-to`, which two workers cannot both move from the same place. A row carries
the version of the controller's commit and the event's place in it. A topic's rows are deleted before its TopicDeleted
becomes a row and after it, or a commit marks the deletion as due (another `txn`), and it is tried again.
"""

import io
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from broker.worker.errors import STORE_ERRORS, StorageError
from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata.event_files import EventMerging
from broker.worker.rpc import TierSettings
from kafka_ds.delta.actions import Action, add_action, commit_info, kafka_ds_info, txn_action
from kafka_ds.delta.commit import APPEND_MODE, Conflict, PlainChange
from kafka_ds.delta.log import DeltaLog, SystemLogClock
from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.file_rows import read_rows
from kafka_ds.topic.metadata_table import (
    EXPIRED_LOG_CLEANUP,
    NO_BROKER_EPOCH,
    PROPERTIES,
    MetadataPosition,
)
from kafka_ds.topic.names import CLUSTER_METADATA, ID_CHARACTERS
from kafka_ds.topic.schemas import CLUSTER_METADATA_SCHEMA

log = logging.getLogger(__name__)

OPERATION = "WRITE"
APP_ID = "materialised-to"
# The `txn` of a deletion that failed, before its topic's id and name. 1: still due; 0: done.
LEFT = "kafkaDs-undeleted-"
EVENT_KIND = "event"
SNAPSHOT_KIND = "snapshot"
SNAPSHOT_TYPE = "Snapshot"
TOPIC_DELETED_TYPE = "TopicDeleted"
VERSIONS_MAX = 1_000
TRIES_MAX = 5
# After so many failed deletions in a step the others are left to the next one.
FAILURES_MAX = 3
_NameAndId = tuple[str, bytes]  # By name and id.
# Columns drawn out of an event, which is flat.
COLUMNS = (
    "controller_epoch", "broker_id", "broker_epoch", "topic", "topic_id", "partition", "leader", "leader_epoch",
    "partition_epoch", "replicas", "isr", "elr",
)  # fmt: skip


class Materialiser:
    """Follows the cluster's metadata log and adds rows to its table."""

    def __init__(
        self,
        store: Store,
        settings: TierSettings,
        crash_points: CrashPoints,
        delete_topic: Callable[[str, bytes], None],
    ) -> None:
        self._store = store
        clock = SystemLogClock()
        self._merging = EventMerging(store, CLUSTER_METADATA, settings, crash_points, clock)
        self._crash_points = crash_points
        self.delete_topic = delete_topic
        self._log = DeltaLog(store, CLUSTER_METADATA)
        self._table = TableWriter(self._log)
        self._snapshot = TableSnapshot(self._log)
        self._snapshot_event_version = 0
        self._turn = 0
        # The topics that the rows of these files delete, for whoever creates a table.
        self._asking = threading.Lock()
        self._asked = TableSnapshot(DeltaLog(store, CLUSTER_METADATA))
        self._rows_asked: set[str] = set()
        self._deleted: set[str] = set()

    def materialise(self, version: int) -> int:
        """Make rows of all events up to `version` at least; returns the version reached."""
        for _ in range(TRIES_MAX):
            self._table.settle()
            self._snapshot.refresh()
            done = self._done()
            if done < version:
                self._step(done, min(self._snapshot.version, done + VERSIONS_MAX))
            elif self._left():
                self._step(done, done)
            else:
                return done
        raise StorageError(f"{CLUSTER_METADATA}: rows cannot be added now")

    def maintain(self, maintenance: TableMaintenance) -> None:
        """Checkpoints, clean-up, merges. A starting broker reads the commits back to the last snapshot."""
        if self._snapshot.version >= 0:
            maintenance.look_after(
                CLUSTER_METADATA, self._snapshot.version, keep_from=self._needed_from
            )
            self._merging.look()

    def _needed_from(self) -> int:
        """From which version on the log's clean-up keeps the commits: those without rows stay as well."""
        return min(self._last_snapshot_version(), self._done() + 1)

    def _last_snapshot_version(self) -> int:
        """The version of the last commit that begins with a snapshot, 0 if there is none.

        It is looked for here: a worker that makes rows of a few commits and ends mostly meets none.
        """
        for version in range(self._snapshot.version, self._snapshot_event_version, -1):
            actions = self._log.read_version(version)
            if actions is None:
                break
            listed = (kafka_ds_info(actions) or {}).get("events")
            if _begins_with_snapshot(listed):
                self._snapshot_event_version = version
                break
        return self._snapshot_event_version

    def _done(self) -> int:
        """Up to which version all events are rows, -1 if none is. Found in the rows if another engine dropped the
        `txn`.
        """
        done = self._snapshot.txns.get(APP_ID, -1)
        if done < 0 and len(self._snapshot.files):
            versions = self._columns(self._snapshot.files, ["version"])
            done = self._snapshot.txns[APP_ID] = max(row["version"] for row in versions)
            log.warning(
                "%s: another engine removed the txn action of %s; its rows show that events up to version %d are there",
                CLUSTER_METADATA,
                APP_ID,
                done,
            )
        return done

    def was_deleted(self, topic_id: bytes) -> bool:
        """Whether the rows say that a topic was deleted, as of now. Any thread; the first reads all rows."""
        with self._asking:
            with suppress(NoSuchTable):  # Then no event was ever written.
                self._asked.refresh()
            fresh = self._asked.files.keys() - self._rows_asked
            for row in self._columns(fresh, ["type", "topic_id"]):
                if row["type"] == TOPIC_DELETED_TYPE:
                    self._deleted.add(row["topic_id"])
            self._rows_asked = {*self._asked.files}
            return uuid_text(topic_id) in self._deleted

    def _columns(self, files: Iterable[str], names: list[str]) -> Iterator[dict[str, Any]]:
        """Some columns of the rows of these files."""
        for path in files:
            yield from read_rows(self._store.read(path), names).to_pylist()

    def _left(self) -> list[_NameAndId]:
        """The topics whose deletion failed; another one comes first each time."""
        found = [
            (
                app_id[len(LEFT) + ID_CHARACTERS + 1 :],
                uuid_from_text(app_id[len(LEFT) :][:ID_CHARACTERS]),
            )
            for app_id, number in self._snapshot.txns.items()
            if app_id.startswith(LEFT) and number
        ]
        self._turn += 1
        first = self._turn % max(1, len(found))
        return found[first:] + found[:first]

    def _delete(self, topics: Iterable[_NameAndId]) -> dict[_NameAndId, str]:
        """Remove the rows of deleted topics; returns why that failed. Some errors end it: the store may not answer."""
        failures: dict[_NameAndId, str] = {}
        for each in topics:
            failures[each] = "not tried now"
            if len(failures) > FAILURES_MAX:
                continue
            try:
                self.delete_topic(*each)
            except STORE_ERRORS as error:
                failures[each] = str(error)
                log.warning(
                    "%s: rows of %s cannot be deleted: %s", CLUSTER_METADATA, each[0], error
                )
            else:
                del failures[each]
        return failures

    def _step(self, done: int, last: int) -> None:
        """One commit: the rows of the events after `done`, how far they reach, and which deletions are still due.

        Raises StorageError, after that, if any is due.
        """
        rows: list[dict[str, Any]] = []
        fresh: list[_NameAndId] = []
        for version in range(done + 1, last + 1):
            actions = self._log.read_version(version)
            if actions is None:
                log.warning(
                    "%s: version %d was cleaned up before its events became rows",
                    CLUSTER_METADATA,
                    version,
                )
                continue
            rows.extend(self._rows(version, actions))
            fresh.extend(_deleted_in(actions))
        left = self._left()
        failures = self._delete([*fresh, *left])
        marks = {each: 1 for each in fresh if each in failures}
        marks |= {each: 0 for each in left if each not in failures}
        if last > done or marks:
            self._append(rows, marks, last)
        # Once more: a broker that had not learnt of it may have created the topic's table since, and found no such row.
        again = self._delete(each for each in fresh if each not in failures)
        if again:
            self._snapshot.refresh()
            self._append([], dict.fromkeys(again, 1), self._done())
        failures |= again
        if failures:
            why = "; ".join(f"{topic}: {why}" for (topic, _), why in failures.items())
            raise StorageError(f"{CLUSTER_METADATA}: deletions are still due: {why}")

    def _append(
        self,
        rows: list[dict[str, Any]],
        marks: Mapping[_NameAndId, int],
        last: int,
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions_out: list[Action] = [txn_action(APP_ID, last)]
        for (topic, topic_id), mark in marks.items():
            actions_out.append(txn_action(f"{LEFT}{uuid_text(topic_id)}-{topic}", mark))
        if rows:
            actions_out.insert(0, self._write(rows, last, now_ms))
        actions_out += self._forbid_cleanup()
        self._crash_points.at("before_materialise")
        change = PlainChange(
            OPERATION, actions=actions_out, check=_end_at_others, parameters=APPEND_MODE
        )
        # Of a conflict: another worker made these rows; they are read before the next try.
        with suppress(Conflict):
            self._table.commit(self._table.begin(change), read_version=self._snapshot.version)
        self._crash_points.at("after_materialise")

    def _forbid_cleanup(self) -> list[Action]:
        """The property that stops other engines from cleaning up the log, unless it is set already."""
        said = self._snapshot.configuration
        if EXPIRED_LOG_CLEANUP in said:
            return []
        configuration = {**said, EXPIRED_LOG_CLEANUP: PROPERTIES[EXPIRED_LOG_CLEANUP]}
        return [{"metaData": {**self._snapshot.metadata, "configuration": configuration}}]

    def _rows(self, version: int, actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
        ours = kafka_ds_info(actions) or {}
        listed, controller_epoch = ours.get("events"), ours.get("controllerEpoch")
        if not isinstance(listed, list):
            return
        moment_ms = commit_info(actions).get("timestamp", 0)
        if _begins_with_snapshot(listed):
            self._snapshot_event_version = max(self._snapshot_event_version, version)
            for sequence, event in enumerate(listed[0].get("events", ())):
                yield _row(event, SNAPSHOT_KIND, version, sequence, moment_ms)
            listed = listed[1:]
        for sequence, event in enumerate(listed):
            decided = {"controller_epoch": controller_epoch, **event}
            if event.get("broker_epoch") == NO_BROKER_EPOCH:
                decided["broker_epoch"] = MetadataPosition(version, sequence).epoch
            yield _row(decided, EVENT_KIND, version, sequence, moment_ms) | {
                "payload": _json(event)
            }

    def _write(self, rows: list[dict[str, Any]], last: int, now_ms: int) -> Action:
        sink = io.BytesIO()
        table = pa.Table.from_pylist(rows, CLUSTER_METADATA_SCHEMA)
        pq.write_table(
            table, sink, compression="zstd", use_dictionary=False, write_statistics=False
        )
        name = f"{last:020d}-{secrets.token_hex(8)}.parquet"
        self._store.put_durable(self._log.path(name), sink.getvalue())
        return add_action(
            path=name,
            partition_values={},
            size=len(sink.getvalue()),
            modified_ms=now_ms,
            stats=f'{{"numRecords":{len(rows)}}}',
        )


def _deleted_in(actions: Sequence[Action]) -> Iterator[_NameAndId]:
    """The topics, by name and id, that a commit's events delete."""
    listed = (kafka_ds_info(actions) or {}).get("events")
    for event in listed if isinstance(listed, list) else ():
        if event.get("type") == TOPIC_DELETED_TYPE:
            yield event["topic"], uuid_from_text(event["topic_id"])


def _begins_with_snapshot(listed: object) -> bool:
    """Whether a commit's events begin with the state before them."""
    return isinstance(listed, list) and bool(listed) and listed[0].get("type") == SNAPSHOT_TYPE


def _end_at_others(version: int, actions: Sequence[Action]) -> None:
    """Commits of events do not conflict; another worker's move of the `txn` does, and so may this property."""
    for action in actions:
        if action.get("txn", {}).get("appId") == APP_ID:
            raise Conflict(f"version {version} already made rows of the events", version=version)
        if "metaData" in action:
            raise Conflict(f"version {version} changed the table", version=version)


def _row(
    event: Mapping[str, Any], kind: str, version: int, sequence: int, moment_ms: int
) -> dict[str, Any]:
    row = {name: event[name] for name in COLUMNS if event.get(name) is not None}
    if "controller_id" in event:
        row["broker_id"] = event["controller_id"]
    return {
        **row,
        "event_id": uuid_text(new_uuid()),
        "version": version,
        "sequence": sequence,
        "event_time": moment_ms * 1000,
        "kind": kind,
        "type": event.get("type"),
        "payload": _json(event),
    }


def _json(event: Mapping[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
