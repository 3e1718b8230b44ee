"""Pure: the table of the cluster's metadata: its columns, its properties, its name.

Rules of this file: it repeats `kafka_ds.topic.schemas` for the broker's process, which creates the table but must not
load the library that describes it there (139 MiB); a test compares the two.
"""

from __future__ import annotations

import json

KIND = "cluster-metadata"

_ARRAY = {"type": "array", "elementType": "integer", "containsNull": True}
_COLUMNS: dict[str, object] = {
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

# An engine that writes a checkpoint would take all commits of before a week with it: the decisions since the last
# snapshot, of a cluster in which little happens. Only the worker knows which commits have to stay.
EXPIRED_LOG_CLEANUP = "delta.enableExpiredLogCleanup"
PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": "100",
    EXPIRED_LOG_CLEANUP: "false",
}


def schema_json() -> str:
    """The schema as Delta's metaData action spells it."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in _COLUMNS.items()
    ]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
