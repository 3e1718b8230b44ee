"""Pure: an add action's statistics of a file's rows.

Statistics are a help, not a fact to rely on. If they are absent or cannot be read, the entry is incomplete and the
file's footer is read; the file is never left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kafka_ds.delta.deletion_vector import vector_of
from kafka_ds.delta.file_entry import UNKNOWN, FileEntry
from kafka_ds.delta.names import resolve_path

PARTITION = "partition"


class UnsupportedFile(Exception):
    """A file of the table needs a feature that is not read here; the message names it."""


def entry_of_add(table: str, add: Mapping[str, Any]) -> FileEntry:
    """The file that an add action brings."""
    path = str(add["path"])
    vector = vector_of(table, add.get("deletionVector"))
    rows, low, high, earliest, latest, nulls = _statistics(add.get("stats"))
    return FileEntry(
        path=resolve_path(table, path),
        action_path=path,
        partition=partition_of(add.get("partitionValues")),
        size=int(add.get("size") or 0),
        rows=rows - vector.cardinality if vector is not None and rows >= 0 else rows,
        min_offset=low,
        max_offset=high,
        min_timestamp_ms=earliest,
        max_timestamp_ms=latest,
        null_timestamps=nulls,
        modified_ms=int(add.get("modificationTime") or 0),
        vector=vector,
    )


def partition_of(values: Mapping[str, str | None] | None) -> int:
    """The topic's partition that a file belongs to; -1 in a table that has none."""
    text = (values or {}).get(PARTITION)
    return int(text) if text else -1


def _statistics(text: str | None) -> tuple[int, int, int, int | None, int | None, int]:
    nothing = (UNKNOWN, UNKNOWN, UNKNOWN, None, None, UNKNOWN)
    if not text:
        return nothing
    try:
        stats = json.loads(text)
        low, high = stats.get("minValues") or {}, stats.get("maxValues") or {}
        return (
            int(stats["numRecords"]),
            int(low.get("offset", UNKNOWN)),
            int(high.get("offset", UNKNOWN)),
            milliseconds(low.get("timestamp")),
            milliseconds(high.get("timestamp")),
            int((stats.get("nullCount") or {}).get("timestamp", UNKNOWN)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return nothing


def milliseconds(text: str | None) -> int | None:
    """A time as statistics spell it, rounded down: engines truncate to milliseconds; those of kafka-ds are whole."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)
