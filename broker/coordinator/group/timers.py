"""Pure: deadlines that are moved often and reached rarely.

Moving a deadline to later costs a dictionary entry (every heartbeat moves one); the heap is updated when the old
deadline comes up. One heap entry counts for each key, the earliest.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """The kind of a deadline."""

    SESSION = 0
    """A member's session has ended, or it did not come back with the id that it was given."""
    JOIN = 1
    """The members of a rebalance have had their time to join."""
    SYNC = 2
    """The members of a generation have had their time to ask for their assignment."""
    EXPIRE = 3
    """Old offsets are looked for."""
    REBALANCE = 4
    """A member of the consumer or streams protocol has had its time to give partitions or tasks back."""
    DELETE = 5
    """More offsets of deleted topics are to be deleted."""
    ASSIGN = 6
    """The first members of a streams group have had their time to join."""


class TimerKey(NamedTuple):
    """What a deadline belongs to: in a classic group members only have sessions, in a consumer group all that is not
    about offsets, in a streams group also but ASSIGN.
    """

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class CoordinatorTimer:
    """Deadlines by key."""

    def __init__(self) -> None:
        self.deadlines: dict[TimerKey, int] = {}
        self.heap: list[tuple[int, TimerKey]] = []
        self._queued: dict[TimerKey, int] = {}

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        """Give the key this deadline, in place of any other."""
        self.deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queue(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        """Remove the key's deadline, if it has one."""
        self.deadlines.pop(key, None)

    def get(self, key: TimerKey) -> int | None:
        """The key's deadline."""
        return self.deadlines.get(key)

    def next_due_ms(self) -> int | None:
        """The earliest deadline."""
        while self.heap:
            due_ms, key = self.heap[0]
            if self._queued.get(key) != due_ms:
                heapq.heappop(self.heap)  # an earlier entry has taken its place
                continue
            deadline_ms = self.deadlines.get(key)
            if deadline_ms == due_ms:
                return due_ms
            heapq.heappop(self.heap)
            del self._queued[key]
            if deadline_ms is not None:
                self._queue(key, deadline_ms)
        return None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Remove and return the key whose deadline was reached first."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, key = heapq.heappop(self.heap)
        del self._queued[key], self.deadlines[key]
        return key

    def __len__(self) -> int:
        return len(self.deadlines)

    def _queue(self, key: TimerKey, due_ms: int) -> None:
        self._queued[key] = due_ms
        heapq.heappush(self.heap, (due_ms, key))
