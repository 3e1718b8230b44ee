"""Shell: merges small files of `__remote_log_metadata` and `__cluster_metadata`; rows and their order stay the same.

A merged file holds the rows of its files, each event once, in the order of (version, sequence). Its commit changes no
data, so readers that follow the events skip it. It names no broker, because a broker looks for its own last commit, and
holds no event, so it conflicts with no record. If another merge has removed one of the files first, the attempt ends.
Replaced files stay until VACUUM.
"""

from __future__ import annotations

import io
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ds.delta.actions import Action, add_action, remove_action
from kafka_ds.delta.commit import Conflict, PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.topic.commit_rules import fields_of
from kafka_ds.topic.events import read_events
from kafka_ds.topic.files.optimize import OptimizeTask, next_merge
from kafka_ds.topic.index import FileEntry
from kafka_ds.topic.names import CLUSTER_METADATA, REMOTE_LOG_METADATA
from kafka_ds.topic.schemas import CLUSTER_METADATA_SCHEMA, REMOTE_LOG_METADATA_SCHEMA

log = logging.getLogger(__name__)

OPERATION = "OPTIMIZE"
# Some hundred bytes each in memory: as many as are held at a time.
EVENTS_MAX = 100_000
# The most files in one commit.
FILES_MAX = 2_000
COMPRESSION_LEVEL = 9
ROWS_PER_GROUP = 1 << 16
SCHEMAS = {
    REMOTE_LOG_METADATA: REMOTE_LOG_METADATA_SCHEMA,
    CLUSTER_METADATA: CLUSTER_METADATA_SCHEMA,
}
ORDERS = {
    REMOTE_LOG_METADATA: (("version", "ascending"), ("sequence", "ascending")),
    # A snapshot in a commit is the state before the commit's own events; both are counted from 0.
    CLUSTER_METADATA: (
        ("version", "ascending"),
        ("kind", "descending"),
        ("sequence", "ascending"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEvents:
    """What one merge did."""

    files: int
    events: int
    version: int


def merge_events(
    events: DeltaLog, *, files_min: int, at: Callable[[str], None] = lambda point: None
) -> list[MergedEvents]:
    """Merge files of one of `SCHEMAS`' tables, so many small files at least; `at` is called each step.

    Raises CommitError if the store failed (the next merge tries again), OSError.
    """
    done: list[MergedEvents] = []
    while True:
        snapshot = TableSnapshot(events)
        snapshot.read()
        task = _next_task(snapshot, files_min)
        if task is None:
            return done
        merged = _merge(snapshot, task, at)
        if merged is None:
            return done
        done.append(merged)


def _next_task(snapshot: TableSnapshot, files_min: int) -> OptimizeTask | None:
    if set(fields_of(snapshot.metadata)) != set(SCHEMAS[snapshot.log.table].names):
        return None  # Others' columns would be lost.
    # Names begin with a version: in its order the events lie in them.
    files = sorted(snapshot.files.values(), key=lambda each: each.path)
    return next_merge(files, rows_max=EVENTS_MAX, files_min=files_min, files_max=FILES_MAX)


def _merge(
    snapshot: TableSnapshot, task: OptimizeTask, at: Callable[[str], None]
) -> MergedEvents | None:
    """One merge; None if another writer was first."""
    events = snapshot.log
    schema, order = SCHEMAS[events.table], ORDERS[events.table]
    parts = [read_events(events.store, each.path, schema) for each in task.files]
    rows = pa.concat_tables(parts).sort_by(list(order))
    places = set(zip(*(rows.column(name).to_pylist() for name, _ in order), strict=True))
    assert len(places) == rows.num_rows, "each event is there once"
    data = _encoded(rows)
    name = (
        f"{task.files[0].path.rpartition('/')[2].partition('-')[0]}-{secrets.token_hex(8)}.parquet"
    )
    change = _change(snapshot, task, name, len(data), rows.num_rows)
    attempt = events.begin(change)
    path = events.path(name)
    events.store.put_durable(path, data)
    at("after_events_file")
    try:
        version = events.commit(attempt, read_version=snapshot.version)
    except Conflict as conflict:
        log.info("%s: merge abandoned: %s", events.table, conflict)
        events.store.delete(path)
        return None
    at("after_events_commit")
    log.info("%s: merged %d event files into one", events.table, len(task.files))
    return MergedEvents(files=len(task.files), events=rows.num_rows, version=version)


def _encoded(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        row_group_size=ROWS_PER_GROUP,
        write_statistics=False,
    )
    return sink.getvalue()


def _change(
    snapshot: TableSnapshot, task: OptimizeTask, name: str, size: int, event_count: int
) -> PlainChange:
    events = snapshot.log
    now_ms = events.clock.wall_ms()
    ours = {each.path for each in task.files}

    def check(version: int, actions: Sequence[Action]) -> None:
        for action in actions:
            gone = action.get("remove")
            if gone and resolve_path(events.table, gone["path"]) in ours:
                raise Conflict(f"version {version} took out {gone['path']}", version=version)
            if "metaData" in action or "protocol" in action:
                raise Conflict(f"version {version} changed the table", version=version)

    add = add_action(
        path=name,
        partition_values={},
        size=size,
        modified_ms=now_ms,
        stats=f'{{"numRecords":{event_count}}}',
        data_change=False,
    )
    removes = [_removal(each, now_ms) for each in task.files]
    info: Mapping[str, Any] = {"merged": len(task.files), "rows": event_count}
    parameters = {"reason": task.reason.value}
    return PlainChange(
        OPERATION, actions=[add, *removes], info=info, check=check, parameters=parameters
    )


def _removal(entry: FileEntry, now_ms: int) -> Action:
    return remove_action(
        path=entry.action_path,
        partition_values={},
        size=entry.size,
        deleted_ms=now_ms,
        data_change=False,
    )
