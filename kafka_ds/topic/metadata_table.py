"""Pure: the table of the cluster's metadata: its columns, its properties, its epochs.

Nothing here needs Arrow: the broker's process, which creates the table, does without it.
"""

from __future__ import annotations

import json
from typing import NamedTuple

KIND = "cluster-metadata"
# An epoch is a version and a place within its commit in one number that only grows.
COMMIT_EVENTS_MAX = 1 << 20
NO_BROKER_EPOCH = -1

_ARRAY = {"type": "array", "elementType": "integer", "containsNull": True}
COLUMNS: dict[str, object] = {
    "event_id": "string",
    "version": "long",
    "sequence": "integer",
    "event_time": "timestamp",
    "kind": "string",
    "type": "string",
    "controller_epoch": "integer",
    "broker_id": "integer",
    "broker_epoch": "long",
    "topic": "string",
    "topic_id": "string",
    "partition": "integer",
    "leader": "integer",
    "leader_epoch": "integer",
    "partition_epoch": "integer",
    "replicas": _ARRAY,
    "isr": _ARRAY,
    "elr": _ARRAY,
    "payload": "string",
}

# An engine that writes a checkpoint would delete all commits older than a week with it: the records since the last
# snapshot, of a cluster in which little happens. Only the worker knows which commits have to stay.
EXPIRED_LOG_CLEANUP = "delta.enableExpiredLogCleanup"
PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": "100",
    EXPIRED_LOG_CLEANUP: "false",
}


class MetadataPosition(NamedTuple):
    """The place of an event: the table's version, and its number within that commit."""

    version: int
    sequence: int

    @property
    def epoch(self) -> int:
        """A number that grows with the position: what a broker epoch is made of."""
        return self.version * COMMIT_EVENTS_MAX + self.sequence


def schema_json() -> str:
    """The schema as Delta's metaData action spells it."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in COLUMNS.items()
    ]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
