"""Pure: the lines of a Delta commit, as values in and out.

Reader version 1 and writer version 2, the protocol that every engine reads; an action is a dict with one key, as in the
log. kafka-ds' own data is in the commitInfo under `kafkaDs`, which other engines ignore.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka_ds.version import VERSION

Action = dict[str, Any]

MIN_READER_VERSION = 1
MIN_WRITER_VERSION = 2
ENGINE = f"kafka-ds/{VERSION}"
OURS = "kafkaDs"
# The kind of a kafka-ds table, in its configuration.
KIND_KEY = "kafkaDs.kind"
DAY_MS = 86_400_000
# With this property an engine's checkpoint drops each `txn` whose time is longer ago than that, or that has none: those
# of kafka-ds must outlive any retention. The last second of the year 9999.
TXN_RETENTION_KEY = "delta.setTransactionRetentionDuration"
NEVER_EXPIRES_MS = 253_402_300_799_000
LOG_RETENTION_MS_MIN = 7 * DAY_MS


class CorruptLog(Exception):
    """A file of a table's log does not hold what it must; the message names it."""


def protocol_action() -> Action:
    """The oldest protocol: no feature that a reader must know."""
    return {
        "protocol": {
            "minReaderVersion": MIN_READER_VERSION,
            "minWriterVersion": MIN_WRITER_VERSION,
        }
    }


def metadata_action(
    *,
    table_id: str,
    schema_json: str,
    partition_columns: Sequence[str],
    configuration: Mapping[str, str],
    created_ms: int,
) -> Action:
    """The table's schema, partitioning, properties."""
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_json,
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration),
            "createdTime": created_ms,
        }
    }


def add_action(
    *,
    path: str,
    partition_values: Mapping[str, str],
    size: int,
    modified_ms: int,
    stats: str,
    data_change: bool = True,
) -> Action:
    """A file is added; `path` is already encoded."""
    add = {
        "path": path,
        "partitionValues": dict(partition_values),
        "size": size,
        "modificationTime": modified_ms,
        "dataChange": data_change,
        "stats": stats,
    }
    return {"add": add}


def remove_action(
    *,
    path: str,
    partition_values: Mapping[str, str],
    size: int,
    deleted_ms: int,
    data_change: bool = True,
    rows: int = -1,
    vector: Mapping[str, Any] | None = None,
) -> Action:
    """A file is removed from the table; `path` and `vector` (its deletion vector) as its add action spelled them.

    `rows`: how many are left of it, -1: not known.
    """
    remove: dict[str, Any] = {
        "path": path,
        "deletionTimestamp": deleted_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(partition_values),
        "size": size,
    }
    deleted = 0
    if vector is not None:
        remove["deletionVector"], deleted = dict(vector), vector["cardinality"]
    if rows >= 0:
        remove["stats"] = json.dumps({"numRecords": rows + deleted})
    return {"remove": remove}


def txn_action(app_id: str, version: int) -> Action:
    """A number that the table keeps for an application, and for good."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": NEVER_EXPIRES_MS}}


def commit_info_action(
    *,
    timestamp_ms: int,
    operation: str,
    read_version: int,
    actions: Sequence[Action],
    parameters: Mapping[str, str],
    ours: Mapping[str, Any],
) -> Action:
    """The commitInfo: the writer, the operation, and kafka-ds' own data.

    `read_version` is the one that it was decided on, -1 if there was none.
    """
    files = [each.get("add") or each["remove"] for each in actions if _is_of_file(each)]
    changes = any(each["dataChange"] for each in files)
    info: dict[str, Any] = {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": dict(parameters),
        **({"readVersion": read_version} if read_version >= 0 else {}),
        # As Delta has it: what changes no rows need not be seen in order.
        "isolationLevel": "Serializable" if changes or not files else "SnapshotIsolation",
        "isBlindAppend": all("add" in each or "txn" in each for each in actions),
        "engineInfo": ENGINE,
    }
    if files:
        info["operationMetrics"] = _metrics(actions)
    return {"commitInfo": {**info, OURS: dict(ours)}}


def _is_of_file(action: Action) -> bool:
    return "add" in action or "remove" in action


def _metrics(actions: Sequence[Action]) -> dict[str, str]:
    """What a commit did to files, under Delta's names: of a write, or of a DELETE or an OPTIMIZE if files are
    removed.
    """
    adds = [each["add"] for each in actions if "add" in each]
    removes = [each["remove"] for each in actions if "remove" in each]
    added_bytes, rows = sum(each["size"] for each in adds), _rows(adds)
    if not removes:
        found = {"numFiles": len(adds), "numOutputBytes": added_bytes, "numOutputRows": rows}
    else:
        found = {
            "numAddedFiles": len(adds),
            "numAddedBytes": added_bytes,
            "numRemovedFiles": len(removes),
            "numRemovedBytes": sum(each["size"] for each in removes),
        }
        if any(each["dataChange"] for each in removes):
            before = _rows(removes)
            gone = None if before is None or rows is None else before - rows
            found |= {"numDeletedRows": gone, "numCopiedRows": rows}
    return {name: str(number) for name, number in found.items() if number is not None}


def _rows(files: Sequence[Mapping[str, Any]]) -> int | None:
    """How many rows files have, without those that a vector deletes; None if one of them has no count."""
    counts = [json.loads(each.get("stats") or "{}").get("numRecords") for each in files]
    deleted = sum((each.get("deletionVector") or {}).get("cardinality", 0) for each in files)
    return None if None in counts else sum(counts) - deleted


def encode_actions(actions: Iterable[Action]) -> bytes:
    """The body of a commit file."""
    lines = (json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def decode_actions(body: bytes, name: str) -> list[Action]:
    """The actions of a commit file; CorruptLog names the file if it holds anything else.

    No engine commits nothing: an empty file lost its content in a power failure, and nothing else has it.
    """
    actions = []
    try:
        for line in body.splitlines():
            if line.strip():
                action = json.loads(line)
                if not isinstance(action, dict):
                    raise ValueError("a line is not an object")
                actions.append(action)
    except ValueError as error:
        raise CorruptLog(f"{name}: {error}") from error
    if not actions:
        raise CorruptLog(
            f"{name} is empty: its writer's machine lost power before the file was on the disk; restore or remove it"
        )
    return actions


def commit_info(actions: Iterable[Action]) -> Mapping[str, Any]:
    """The commitInfo of a version; empty if its writer left none."""
    for action in actions:
        info = action.get("commitInfo")
        if isinstance(info, dict):
            return info
    return {}


def kafka_ds_info(actions: Iterable[Action]) -> Mapping[str, Any] | None:
    """kafka-ds' own data in a commit, None for the commits of other engines."""
    ours = commit_info(actions).get(OURS)
    return ours if isinstance(ours, dict) else None


def interval_ms(text: str) -> int | None:
    """Milliseconds of a table property such as `interval 7 days`; None if it cannot be read."""
    words = text.lower().removeprefix("interval ").split()
    units = {
        "week": 7 * DAY_MS,
        "day": DAY_MS,
        "hour": 3_600_000,
        "minute": 60_000,
        "second": 1000,
        "millisecond": 1,
    }
    total = 0
    if not words or len(words) % 2:
        return None
    for count, unit in zip(words[::2], words[1::2], strict=True):
        factor = units.get(unit.rstrip("s"))
        if factor is None or not count.isdecimal():
            return None
        total += int(count) * factor
    return total
