"""Shell: what was done to a topic's table, out of the commits of its Delta log.

Rules of this file: it reads the newest commits and nothing else; the first that is no longer there ends the list, as
commits are deleted once a checkpoint has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ds.delta.log import DeltaLog

if TYPE_CHECKING:
    from kafka_ds.delta.actions import Action
    from kafka_ds.delta.store.store import Store


def history(store: Store, table: str, limit: int) -> list[dict[str, Any]]:
    """At most so many commits, the newest first; none where there is no table. Raises OSError."""
    log = DeltaLog(store, table)
    rows: list[dict[str, Any]] = []
    version = log.latest_version()
    while version >= 0 and len(rows) < limit:
        actions = log.read_version(version)
        if actions is None:
            break
        rows.append(_row(version, actions))
        version -= 1
    return rows


def _row(version: int, actions: list[Action]) -> dict[str, Any]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for action in actions:
        for kind, content in action.items():
            by_kind.setdefault(kind, []).append(content)
    (info, *_) = by_kind.get("commitInfo") or [{}]
    added = by_kind.get("add", [])
    return {
        "version": version,
        "timestamp": info.get("timestamp"),
        "operation": info.get("operation"),
        "parameters": info.get("operationParameters"),
        "rows": _number(info.get("operationMetrics"), "numOutputRows", "numDeletedRows"),
        "files_added": len(added),
        "bytes_added": sum(each.get("size", 0) for each in added),
        "files_removed": len(by_kind.get("remove", [])),
    }


def _number(metrics: Any, *names: str) -> int | None:
    """The first of these metrics that there is; engines write them as text."""
    if not isinstance(metrics, dict):
        return None
    found = (str(metrics[name]) for name in names if metrics.get(name) is not None)
    return next((int(text) for text in found if text.isdigit()), None)
