"""Shell: the history of a topic's table, from its Delta log.

Only the newest commits are read. The list ends at the first missing one, as commits are deleted after a checkpoint.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kafka_ds.delta.log import DeltaLog

if TYPE_CHECKING:
    from kafka_ds.delta.actions import Action
    from kafka_ds.delta.store.store import Store

TEXT_MAX = 2_000
_NUMBER = re.compile("[0-9]{1,19}")


def history(store: Store, table: str, limit: int) -> list[dict[str, Any]]:
    """At most `limit` commits, newest first; empty without a table. Raises OSError, CorruptLog."""
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
    """A row of the history; commits of other engines may have any form."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for action in actions:
        for kind, content in action.items():
            if isinstance(content, dict):
                by_kind.setdefault(kind, []).append(content)
    (info, *_) = by_kind.get("commitInfo") or [{}]
    added = by_kind.get("add", [])
    parameters = info.get("operationParameters")
    return {
        "version": version,
        "timestamp": _number(info, "timestamp"),
        "operation": _text(info.get("operation")),
        "parameters": {name: _text(value) for name, value in parameters.items()}
        if isinstance(parameters, dict)
        else None,
        "rows": _number(info.get("operationMetrics"), "numOutputRows", "numDeletedRows"),
        "files_added": len(added),
        "bytes_added": sum(_number(each, "size") or 0 for each in added),
        "files_removed": len(by_kind.get("remove", [])),
    }


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} …"


def _number(values: Any, *names: str) -> int | None:
    """The first of these that is a number; some engines write numbers as text."""
    if not isinstance(values, dict):
        return None
    found = (str(values[name]) for name in names if values.get(name) is not None)
    return next((int(text) for text in found if _NUMBER.fullmatch(text)), None)
