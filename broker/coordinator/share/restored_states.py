"""Pure: states of share partitions from the lake (`__offsets`) as records of `__share_group_state` again.

- What was published is the last state: records that were delivered since are available again, with the delivery counts
  of then. Locks are in no state.
- A start offset beyond the end of the restored partition is that end, and no state is kept of records that are gone:
  new records will get their offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.coordinator.share.share_group_offset import NO_COUNT, NO_OFFSET
from broker.worker.rpc import OffsetsCheckpoint, PublishedShareState
from kafka_ds.protocol.messages.persisted_share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.messages.share_state import StateBatch
from kafka_ds.protocol.types import uuid_from_text

# Acknowledged and archived.
_COMPLETE = (2, 4)


@dataclass(slots=True)
class RestoredStates:
    """Keys and values to append to one partition of `__share_group_state`, and a summary."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    # Those whose start offset is beyond the end.
    truncated: list[PublishedShareState] = field(default_factory=list)
    published_ms: int = -1


def restored_states(
    published: OffsetsCheckpoint,
    coordinator_partition: int,
    *,
    end_of: Callable[[bytes, int], int | None],
    now_ms: int,
) -> RestoredStates:
    """The states of one share coordinator; `end_of` as of `restored_groups`, by the topic's id."""
    found = RestoredStates()
    for state in published.share_states:
        if state.coordinator_partition != coordinator_partition:
            continue
        end = end_of(uuid_from_text(state.topic_id), state.partition)
        if end is None:
            continue
        found.published_ms = max(found.published_ms, state.event_time_ms)
        if state.start_offset > end:
            found.truncated.append(state)
        key, value = _snapshot(state, end, now_ms)
        found.records.append((encode_key(key), encode_value(value)))
    return found


def _snapshot(
    state: PublishedShareState, end: int, now_ms: int
) -> tuple[ShareSnapshotKey, ShareSnapshotValue]:
    batches = [
        StateBatch(
            first_offset=first,
            last_offset=min(last, end - 1),
            delivery_state=delivery_state,
            delivery_count=delivery_count,
        )
        for first, last, delivery_state, delivery_count in state.state_batches
        if first < end
    ]
    complete = sum(
        each.last_offset - each.first_offset + 1
        for each in batches
        if each.delivery_state in _COMPLETE
    )
    has_begun = state.start_offset != NO_OFFSET
    key = ShareSnapshotKey(
        group_id=state.group_id,
        topic_id=uuid_from_text(state.topic_id),
        partition=state.partition,
    )
    value = ShareSnapshotValue(
        snapshot_epoch=0,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=min(state.start_offset, end),
        delivery_complete_count=complete if has_begun else NO_COUNT,
        create_timestamp=now_ms,
        write_timestamp=now_ms,
        state_batches=batches,
    )
    return key, value
