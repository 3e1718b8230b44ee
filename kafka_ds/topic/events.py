"""Shell: `__remote_log_metadata`: the events in the lives of tiered ranges, as a Delta table.

- Events are appended in groups: one small Parquet file, one commit. Their order is (version, sequence), which the
  rows carry: a try at another version therefore writes its file again.
- Read-your-writes: what `append` returned for is in the table; `follow` gives every event once, in order.
- Files that were merged (dataChange=false; `event_files`) hold nothing new.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ds.delta.actions import KIND_KEY, Action, add_action
from kafka_ds.delta.commit import APPEND_MODE, Attempt, Fate
from kafka_ds.delta.log import DeltaLog, ForeignTable, LogClock
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.file_rows import read_rows
from kafka_ds.topic.names import REMOTE_LOG_METADATA
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState
from kafka_ds.topic.schemas import REMOTE_LOG_METADATA_SCHEMA, system_table_properties

EVENTS_KIND = "remote-log-metadata"
OPERATION = "WRITE"
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED.name


class RemoteLogEvents:
    """The table of tiered ranges' events, as one broker writes and follows it."""

    def __init__(self, store: Store, *, clock: LogClock | None = None) -> None:
        self._store = store
        self.log = DeltaLog(store, REMOTE_LOG_METADATA, clock=clock)
        self._table = TableWriter(self.log)
        self._snapshot = TableSnapshot(self.log)
        self._followed = -1
        self._seen_ms = 0

    def open(self) -> None:
        """Make the table where there is none; ForeignTable where the folder holds something else."""
        self.log.create(
            schema_json=delta_schema_json(REMOTE_LOG_METADATA_SCHEMA),
            partition_columns=(),
            configuration={**system_table_properties(), KIND_KEY: EVENTS_KIND},
        )
        self._snapshot.read()
        if self._snapshot.kind != EVENTS_KIND:
            where = self._store.uri(self.log.table)
            raise ForeignTable(f"{where} holds a table that is not the tier's")

    def append(
        self, events: Sequence[RemoteLogSegment], *, info: Mapping[str, Any] | None = None
    ) -> list[RemoteLogSegment]:
        """Make events durable, in this order, in one commit, after `settle`; as they are in the table.

        `info` goes into the commitInfo: what the writer wants to find there without reading rows.
        """
        assert events, "events to append"
        change = _EventsChange(self.log, events, info or {})
        latest = self.log.latest_version()
        assert latest >= 0, "opened before"
        attempt = self._table.begin(change)
        version = self._table.commit(attempt, read_version=latest)
        self._delete_files(attempt)
        return change.at(version)

    def settle(self) -> bool:
        """Find out what became of an append whose answer was lost; False if there is none. Raises FateUnknown."""
        attempt = self._table.settle()
        if attempt is None:
            return False
        self._delete_files(attempt)
        return True

    def _delete_files(self, attempt: Attempt) -> None:
        """Delete the files of versions that are others'; what stays is an orphan, which upkeep removes."""
        assert isinstance(attempt.change, _EventsChange), "an attempt of this table"
        for tried, fate in attempt.tried_versions.items():
            if fate is Fate.TAKEN:
                with suppress(OSError):
                    self._store.delete(attempt.change.paths[tried])

    def follow(self) -> list[RemoteLogSegment]:
        """The events since the last call, at first all of them, in their order."""
        if self._followed < 0:
            return self._read_all()
        began_ms = self.log.clock.boot_ms()
        if self.log.is_long_past(self._seen_ms):
            return self._read_since()
        found: list[RemoteLogSegment] = []
        reached = self._followed
        for version, actions in self.log.versions_after(self._followed):
            for action in actions:
                add = action.get("add")
                if add and add.get("dataChange", True):
                    path = resolve_path(self.log.table, add["path"])
                    found.extend(_events_of(read_events(self._store, path)))
            reached = version
        # Not before all is read: where a read fails, what was found so far is not returned.
        self._followed = reached
        self._seen_ms = began_ms
        if not found and self.log.latest_version() > self._followed:
            return self._read_since()
        return sorted(found, key=_order)

    def _read_since(self) -> list[RemoteLogSegment]:
        """What is new, out of the files: the versions in between may have been cleaned up."""
        before = self._followed
        return [each for each in self._read_all() if each.version > before]

    def _read_all(self) -> list[RemoteLogSegment]:
        began_ms = self.log.clock.boot_ms()
        self._snapshot.read()
        found: list[RemoteLogSegment] = []
        for path in self._snapshot.files:
            found.extend(_events_of(read_events(self._store, path)))
        # Not before all is read, as above.
        self._followed, self._seen_ms = self._snapshot.version, began_ms
        return sorted(found, key=_order)


class _EventsChange:
    """An append: writes its file for each version that it tries."""

    operation = OPERATION
    parameters: Mapping[str, str] = APPEND_MODE
    has_files = False

    def __init__(
        self, log: DeltaLog, events: Sequence[RemoteLogSegment], info: Mapping[str, Any]
    ) -> None:
        self._log = log
        self._events = list(events)
        self._info = info
        self.paths: dict[int, str] = {}
        # Many may try a version that one of them wins.
        self._token = secrets.token_hex(8)

    def at(self, version: int) -> list[RemoteLogSegment]:
        return [
            replace(event, version=version, sequence=sequence)
            for sequence, event in enumerate(self._events)
        ]

    def check(self, version: int, actions: Sequence[Action]) -> None:
        """Nothing that others append stands in the way."""

    def actions(self, version: int) -> Sequence[Action]:
        data = encode_events(self.at(version))
        name = f"{version:020d}-{self._token}.parquet"
        self.paths[version] = self._log.path(name)
        self._log.store.put_durable(self.paths[version], data)
        return [
            add_action(
                path=name,
                partition_values={},
                size=len(data),
                modified_ms=self._log.clock.wall_ms(),
                stats=f'{{"numRecords":{len(self._events)}}}',
            )
        ]

    def info(self) -> Mapping[str, Any]:
        return {**self._info, "events": len(self._events)}


def _order(event: RemoteLogSegment) -> tuple[int, int]:
    return (event.version, event.sequence)


def encode_events(events: Iterable[RemoteLogSegment]) -> bytes:
    """Events as a Parquet file."""
    rows = pa.Table.from_pylist([_row(each) for each in events], REMOTE_LOG_METADATA_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def _row(event: RemoteLogSegment) -> dict[str, Any]:
    return {
        "event_id": uuid_text(event.event_id),
        "version": event.version,
        "sequence": event.sequence,
        "event_time": event.event_time_ms * 1000,
        "topic": event.topic,
        "topic_id": uuid_text(event.topic_id),
        "partition": event.partition,
        "segment_id": uuid_text(event.segment_id),
        "state": event.state.name,
        "start_offset": event.start_offset,
        "end_offset": event.end_offset,
        "leader_epochs": [
            {"epoch": epoch, "start_offset": start} for epoch, start in event.leader_epochs
        ],
        "max_timestamp": event.max_timestamp_ms,
        "size_bytes": event.size_bytes,
        "lake_bytes": event.lake_bytes,
        "row_count": event.row_count,
        "broker_id": event.broker_id,
        "leader_epoch": event.leader_epoch,
        "files": list(event.files),
        "residue": event.residue,
    }


def residue_of_segments(store: Store, topic: str) -> set[str]:
    """The residue files of a topic's segments that ever were FINISHED, relative to its table."""
    snapshot = TableSnapshot(DeltaLog(store, REMOTE_LOG_METADATA))
    snapshot.read()
    found: set[str] = set()
    for path in snapshot.files:
        rows = read_rows(store.read(path), ["topic", "state", "residue"])
        for row in rows.to_pylist():
            if row["topic"] == topic and row["state"] != STARTED and row["residue"]:
                found.add(row["residue"])
    return found


def read_events(
    store: Store, path: str, schema: pa.Schema = REMOTE_LOG_METADATA_SCHEMA
) -> pa.Table:
    """The rows of one of the table's files; `schema` is the table's."""
    rows = read_rows(store.read(path))
    return rows.select(schema.names).cast(schema)


def _events_of(rows: pa.Table) -> list[RemoteLogSegment]:
    times = rows.column("event_time").cast(pa.int64()).to_pylist()
    plain = rows.drop_columns(["event_time"]).to_pylist()
    return [_event(row, time) for row, time in zip(plain, times, strict=True)]


def _event(row: Mapping[str, Any], event_time_us: int) -> RemoteLogSegment:
    return RemoteLogSegment(
        topic=row["topic"],
        topic_id=uuid_from_text(row["topic_id"]),
        partition=row["partition"],
        segment_id=uuid_from_text(row["segment_id"]),
        state=RemoteLogSegmentState[row["state"]],
        start_offset=row["start_offset"],
        end_offset=row["end_offset"],
        leader_epochs=tuple((each["epoch"], each["start_offset"]) for each in row["leader_epochs"]),
        max_timestamp_ms=row["max_timestamp"],
        size_bytes=row["size_bytes"],
        lake_bytes=row["lake_bytes"],
        row_count=row["row_count"],
        broker_id=row["broker_id"],
        leader_epoch=row["leader_epoch"],
        files=tuple(row["files"] or ()),
        residue=row["residue"],
        event_id=uuid_from_text(row["event_id"]),
        event_time_ms=event_time_us // 1000,
        version=row["version"],
        sequence=row["sequence"],
    )
