"""Pure: a broker's checkpoint of partitions, groups and share groups' states as rows of `__offsets`.

Ids are texts, times milliseconds, -1 where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
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

# Of a group that a broker published before it told the type.
CLASSIC = "classic"
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
    by_kind: dict[str, list[TableRow]] = {
        "partition": [],
        "group": [],
        "offset": [],
        "share_state": [],
    }
    for row in rows:
        by_kind[row["kind"]].append(row)
    return OffsetsCheckpoint(
        partitions=[
            PublishedPartition(
                topic=row["topic"],
                topic_id=row["topic_id"],
                partition=row["partition"],
                log_start_offset=row["log_start_offset"],
                log_end_offset=row["log_end_offset"],
                event_time_ms=row["event_time"],
            )
            for row in by_kind["partition"]
        ],
        groups=[
            PublishedGroup(
                coordinator_partition=row["coordinator_partition"],
                group_id=row["group_id"],
                group_type=row.get("group_type") or CLASSIC,
                protocol_type=row["protocol_type"] or "",
                generation=row["generation"] or 0,
            )
            for row in by_kind["group"]
        ],
        offsets=[
            PublishedOffset(
                coordinator_partition=row["coordinator_partition"],
                group_id=row["group_id"],
                topic=row["topic"],
                topic_id=row["topic_id"] or "",
                partition=row["partition"],
                committed_offset=row["committed_offset"],
                committed_leader_epoch=row["committed_leader_epoch"],
                metadata=row["metadata"] or "",
                commit_time_ms=_time(row["commit_time"]),
                expire_time_ms=_time(row["expire_timestamp"]),
                event_time_ms=row["event_time"],
            )
            for row in by_kind["offset"]
        ],
        share_states=[
            PublishedShareState(
                coordinator_partition=row["coordinator_partition"],
                group_id=row["group_id"],
                topic_id=row["topic_id"],
                partition=row["partition"],
                leader_epoch=row["leader_epoch"],
                start_offset=row["start_offset"],
                state_epoch=row["state_epoch"],
                state_batches=[
                    tuple(batch[name] for name in _BATCH_COLUMNS) for batch in row["state_batches"]
                ],
                event_time_ms=row["event_time"],
            )
            for row in by_kind["share_state"]
        ],
    )


def _time(found: int | None) -> int:
    return -1 if found is None else found


def _row(kind: str, names: tuple[str, ...], values: list[Any], more: Mapping[str, Any]) -> TableRow:
    return {"kind": kind, **more, **dict(zip(names, values, strict=True))}
