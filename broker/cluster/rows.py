"""Pure: the events of a commit as rows of the table `__cluster_metadata`, for SQL.

Rules of this file: one row an event, and one a piece of a snapshot (`kind` tells them apart; a snapshot repeats what is
known, so history is read from the events and "now" from either). Order is (version, sequence), never time. `payload` is
the event's whole JSON; the columns before it are drawn out of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.cluster.image import Position

EVENT = "event"
SNAPSHOT = "snapshot"
_SNAPSHOT_TYPE = "Snapshot"
_DRAWN_OUT = (
    "controller_epoch", "broker_id", "broker_epoch", "topic", "topic_id", "partition", "leader", "leader_epoch",
    "partition_epoch", "replicas", "isr", "elr",
)  # fmt: skip


def rows_of_commit(version: int, commit_info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that a version's commitInfo stands for; none where it holds no events.

    `event_time` is in milliseconds. Ids are text, as in the event.
    """
    ours = commit_info.get("kafkaDs")
    events = ours.get("events") if isinstance(ours, dict) else None
    if not isinstance(ours, dict) or not isinstance(events, list):
        return []
    time_ms, epoch = commit_info.get("timestamp"), ours.get("controllerEpoch")
    return [
        {
            "event_id": f"{version}-{sequence}" + ("-snapshot" if kind == SNAPSHOT else ""),
            "version": version,
            "sequence": sequence,
            "event_time": time_ms,
            "kind": kind,
            "type": event.get("type"),
            **_drawn_out(event, epoch, Position(version, sequence)),
            "payload": json.dumps(event, separators=(",", ":")),
        }
        for kind, sequence, event in _numbered(events)
    ]


def _numbered(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Kind, sequence and event; a snapshot at the beginning counts for itself."""
    rest = events
    if events and events[0].get("type") == _SNAPSHOT_TYPE:
        rest = events[1:]
        for sequence, event in enumerate(events[0]["events"]):
            yield SNAPSHOT, sequence, event
    for sequence, event in enumerate(rest):
        yield EVENT, sequence, event


def _drawn_out(event: Mapping[str, Any], epoch: object, position: Position) -> dict[str, Any]:
    row = {name: event.get(name) for name in _DRAWN_OUT}
    if row["controller_epoch"] is None:
        row["controller_epoch"] = epoch
    if event.get("type") == "RegisterBroker" and row["broker_epoch"] == -1:
        row["broker_epoch"] = position.epoch
    return row
