"""Pure: the state of a share partition as its coordinator keeps it (KIP-932), and how a change is merged into it.

Where batches overlap the higher delivery count is right, then the later delivery state: a write that arrives twice, or
late, takes nothing back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from kafka_ds.protocol.messages.persisted_share_state import ShareSnapshotValue, ShareUpdateValue
from kafka_ds.protocol.messages.share_state import StateBatch

# The start offset is not known, or does not change.
NO_OFFSET = -1
NO_EPOCH = -1
NO_COUNT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOffset:
    """The state of a share partition; `batches` are in order and do not overlap."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    written_ms: int
    batches: tuple[StateBatch, ...]

    @staticmethod
    def of_snapshot(value: ShareSnapshotValue) -> ShareGroupOffset:
        """The state that a snapshot record has."""
        return ShareGroupOffset(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            created_ms=value.create_timestamp,
            written_ms=value.write_timestamp,
            batches=tuple(value.state_batches),
        )

    def snapshot(self) -> ShareSnapshotValue:
        """The record that has this state."""
        return ShareSnapshotValue(
            snapshot_epoch=self.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.delivery_complete_count,
            create_timestamp=self.created_ms,
            write_timestamp=self.written_ms,
            state_batches=list(self.batches),
        )

    def merge(self, update: ShareUpdateValue) -> ShareGroupOffset:
        """The state after an update record."""
        # Below it nothing is kept: an older write that comes late must not move it back.
        start = max(self.start_offset, update.start_offset)
        return replace(
            self,
            leader_epoch=self.leader_epoch
            if update.leader_epoch == NO_EPOCH
            else update.leader_epoch,
            start_offset=start,
            delivery_complete_count=update.delivery_complete_count,
            batches=combine((*self.batches, *update.state_batches), start),
        )


def combine(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """The batches from the start offset on, in order, each offset in one; neighbours of one state are joined."""
    waiting = deque(
        sorted(
            (max(each.first_offset, start_offset), each.last_offset, _rank(each))
            for each in batches
            if each.last_offset >= start_offset
        )
    )
    combined: list[StateBatch] = []
    # Those that begin at or before `offset`, the strongest first.
    open_batches: list[tuple[_Rank, int]] = []
    offset = start_offset
    while waiting or open_batches:
        if not open_batches:
            offset = max(offset, waiting[0][0])
        while waiting and waiting[0][0] <= offset:
            _, last, rank = waiting.popleft()
            heapq.heappush(open_batches, (rank, last))
        rank, last = open_batches[0]
        if last < offset:
            heapq.heappop(open_batches)
            continue
        if waiting:
            last = min(last, waiting[0][0] - 1)
        _append(combined, offset, last, rank)
        offset = last + 1
    return tuple(combined)


# Minus the delivery count, minus the delivery state: the smallest one counts.
_Rank: TypeAlias = tuple[int, int]


def _rank(batch: StateBatch) -> _Rank:
    return -batch.delivery_count, -batch.delivery_state


def _append(combined: list[StateBatch], first: int, last: int, rank: _Rank) -> None:
    if combined and combined[-1].last_offset == first - 1 and _rank(combined[-1]) == rank:
        first = combined.pop().first_offset
    combined.append(
        StateBatch(
            first_offset=first, last_offset=last, delivery_count=-rank[0], delivery_state=-rank[1]
        )
    )
