"""Pure: a broker's checkpoint of partitions, groups and share groups' states as rows of `__offsets`.

Ids are texts, times milliseconds, -1 where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from broker.worker.rpc import (
    OffsetsCheckpoint,
    PartitionOffsets,
    PublishedGroup,
    PublishedOffset,
    PublishedPartition,
    PublishedShareState,
)

TableRow = dict[str, Any]

_GROUP_COLUMNS = ("group_id", "group_type", "protocol_type", "generation")
_OFFSET_COLUMNS = (
    "group_id", "topic", "topic_id", "partition", "committed_offset", "committed_leader_epoch", "metadata",
    "commit_time", "expire_timestamp",
)  # fmt: skip

_STATE_COLUMNS = (
    "group_id", "topic_id", "partition", "leader_epoch", "start_offset", "state_epoch", "delivery_complete_count",
    "state_batches",
)  # fmt: skip
_BATCH_COLUMNS = ("first_offset", "last_offset", "delivery_state", "delivery_count")
_PUBLISHED = {
    "partition": PublishedPartition,
    "group": PublishedGroup,
    "offset": PublishedOffset,
    "share_state": PublishedShareState,
}
# Columns that are called otherwise than the fields.
_FIELDS = {
    "event_time": "event_time_ms",
    "commit_time": "commit_time_ms",
    "expire_timestamp": "expire_time_ms",
}


def rows_of(
    partitions: Iterable[PartitionOffsets], shards: Iterable[str], now_ms: int
) -> Iterable[TableRow]:
    """The checkpoint as rows of `__offsets`, without the broker's column."""
    for each in partitions:
        yield {"kind": "partition", "event_time": now_ms, **asdict(each)}
    for text in shards:
        index, epoch, groups, offsets, states = json.loads(text)
        coordinated = {
            "event_time": now_ms,
            "coordinator_partition": index,
            "coordinator_epoch": epoch,
        }
        for each in groups:
            yield _row("group", _GROUP_COLUMNS, each, coordinated)
        for each in offsets:
            yield _row("offset", _OFFSET_COLUMNS, each, coordinated)
        for *each, batches in states:
            named = [dict(zip(_BATCH_COLUMNS, batch, strict=True)) for batch in batches]
            yield _row("share_state", _STATE_COLUMNS, [*each, named], coordinated)


def checkpoint_of(rows: Sequence[TableRow]) -> OffsetsCheckpoint:
    """The rows of `__offsets` that are valid, as what they say."""
    found: dict[str, list[Any]] = {kind: [] for kind in _PUBLISHED}
    for row in rows:
        found[row["kind"]].append(_published(_PUBLISHED[row["kind"]], row))
    return OffsetsCheckpoint(
        partitions=found["partition"],
        groups=found["group"],
        offsets=found["offset"],
        share_states=found["share_state"],
    )


def _published(kind: Any, row: TableRow) -> object:
    """The row's columns as the fields of the class; what is null there has a default here."""
    values = {_FIELDS.get(name, name): value for name, value in row.items() if value is not None}
    if "state_batches" in values:
        values["state_batches"] = [
            tuple(batch[name] for name in _BATCH_COLUMNS) for batch in values["state_batches"]
        ]
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})


def _row(kind: str, names: tuple[str, ...], values: list[Any], more: Mapping[str, Any]) -> TableRow:
    return {"kind": kind, **more, **dict(zip(names, values, strict=True))}
