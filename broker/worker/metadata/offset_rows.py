"""Pure: a broker's checkpoint of partitions' and groups' offsets as rows of `__offsets`.

Ids are texts, times milliseconds, -1 where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]

_PARTITION_COLUMNS = (
    "topic", "topic_id", "partition", "leader_epoch", "log_start_offset", "local_log_start_offset",
    "last_stable_offset", "high_watermark", "log_end_offset", "size_bytes",
)  # fmt: skip
_GROUP_COLUMNS = ("group_id", "protocol_type", "generation")
_OFFSET_COLUMNS = (
    "group_id", "topic", "topic_id", "partition", "committed_offset", "committed_leader_epoch", "metadata",
    "commit_time", "expire_timestamp",
)  # fmt: skip


def rows_of(partitions: Iterable[list[Any]], shards: Iterable[str], now_ms: int) -> Iterable[Row]:
    """The checkpoint as rows of `__offsets`, without the broker's column."""
    for each in partitions:
        yield _row("partition", _PARTITION_COLUMNS, each, {"event_time": now_ms})
    for text in shards:
        index, epoch, groups, offsets = json.loads(text)
        coordinated = {
            "event_time": now_ms,
            "coordinator_partition": index,
            "coordinator_epoch": epoch,
        }
        for each in groups:
            yield _row("group", _GROUP_COLUMNS, each, coordinated)
        for each in offsets:
            yield _row("offset", _OFFSET_COLUMNS, each, coordinated)


def _row(kind: str, names: tuple[str, ...], values: list[Any], more: Mapping[str, Any]) -> Row:
    return {"kind": kind, **more, **dict(zip(names, values, strict=True))}
