"""Pure: groups from the lake (`__offsets`) as records of `__consumer_offsets` again, after all disks were lost.

- A group comes back empty, in its last generation; its members rejoin.
- An offset above the end of the restored partition is reset to that end: new records will get those offsets.
- Offsets of topics that no longer exist are not restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.coordinator.group.offsets import NO_TIMESTAMP
from broker.coordinator.group.values import CoordinatorRecord
from kafka_ds.protocol.messages.persisted import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafka_ds.protocol.types import NO_UUID, uuid_from_text

Row = Mapping[str, Any]
NO_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedOffset:
    """A committed offset beyond the restored end."""

    group_id: str
    topic: str
    partition: int
    committed_offset: int
    end_offset: int


@dataclass(slots=True)
class RestoredGroups:
    """The records to append to one partition of `__consumer_offsets`, and a summary."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    offsets: int = 0
    set_back: list[TruncatedOffset] = field(default_factory=list)
    published_ms: int = -1


def restored_groups(
    rows: Iterable[Row],
    coordinator_partition: int,
    *,
    end_of: Callable[[str, int], int | None],
    now_ms: int,
) -> RestoredGroups:
    """The groups of one coordinator, out of the present rows of `__offsets`.

    `end_of` gives the end of a topic's partition as far as that bounds what groups may have committed; None: it does
    not exist. A partition of a live leader has no such bound: its end is the largest offset that there can be.
    """
    found = RestoredGroups()
    mine = [row for row in rows if row.get("coordinator_partition") == coordinator_partition]
    for row in mine:
        if row["kind"] == "group":
            found.groups.add(row["group_id"])
            found.records.append(_group_record(row, now_ms))
    for row in mine:
        end = end_of(row["topic"], row["partition"]) if row["kind"] == "offset" else None
        if end is None:
            continue
        found.groups.add(row["group_id"])
        found.offsets += 1
        found.published_ms = max(found.published_ms, row["event_time"])
        if row["committed_offset"] > end:
            found.set_back.append(
                TruncatedOffset(
                    group_id=row["group_id"],
                    topic=row["topic"],
                    partition=row["partition"],
                    committed_offset=row["committed_offset"],
                    end_offset=end,
                )
            )
        found.records.append(_offset_record(row, end))
    return found


def _group_record(row: Row, now_ms: int) -> CoordinatorRecord:
    value = GroupMetadataValue(
        protocol_type=row["protocol_type"] or "",
        generation=row["generation"] or 0,
        protocol=None,
        leader=None,
        # Its offsets expire so long after it became empty.
        current_state_timestamp=now_ms,
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=row["group_id"]), value)


def _offset_record(row: Row, end: int) -> CoordinatorRecord:
    is_set_back = row["committed_offset"] > end
    commit_time, expires = row["commit_time"], row["expire_timestamp"]
    value = OffsetCommitValue(
        offset=min(row["committed_offset"], end),
        # The epoch of a lost record need not be that of the next one there.
        leader_epoch=NO_EPOCH if is_set_back else row["committed_leader_epoch"],
        metadata=row["metadata"] or "",
        commit_timestamp=NO_TIMESTAMP if commit_time is None else commit_time,
        expire_timestamp=NO_TIMESTAMP if expires is None else expires,
        topic_id=uuid_from_text(row["topic_id"]) if row["topic_id"] else NO_UUID,
    )
    key = OffsetCommitKey(group=row["group_id"], topic=row["topic"], partition=row["partition"])
    return CoordinatorRecord(key, value)
