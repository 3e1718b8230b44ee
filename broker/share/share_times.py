"""Pure: the histograms of share partitions and of fetches of groups; a count is added as if it were milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.metrics.times import RecentTimes
from kafka_ds.protocol.messages.share_fetch import AcquiredRecords


class SharePartitionTimes:
    """The histograms of one share partition."""

    def __init__(self) -> None:
        self.batch_records = RecentTimes()
        self.lock_times = RecentTimes()
        self.lock_ratio = RecentTimes()
        self._locked_ms = 0
        self._unlocked_ms: int | None = None

    def acquired(self, batches: Iterable[AcquiredRecords], now_ms: int) -> None:
        """A member has acquired these batches."""
        for each in batches:
            if each.delivery_count == 1:
                records = each.last_offset - each.first_offset + 1
                self.batch_records.add(records / 1000, now_ms / 1000)

    def lock(self, now_ms: int) -> None:
        """A fetch begins to read."""
        self._locked_ms = now_ms

    def unlock(self, now_ms: int) -> None:
        """It has read."""
        held_ms = now_ms - self._locked_ms
        self.lock_times.add(held_ms / 1000, now_ms / 1000)
        if self._unlocked_ms is not None:
            percent = 100 * held_ms / max(now_ms - self._unlocked_ms, 1)
            self.lock_ratio.add(percent / 1000, now_ms / 1000)
        self._unlocked_ms = now_ms


@dataclass(slots=True)
class ShareFetchTimes:
    """The histograms of one group's fetches."""

    acquire_times: RecentTimes = field(default_factory=RecentTimes)
    fetch_ratio: RecentTimes = field(default_factory=RecentTimes)

    def add(self, waited_ms: int, percent: float, now_ms: int) -> None:
        """A fetch has waited so long, and could then read this part of what it asked for."""
        self.acquire_times.add(waited_ms / 1000, now_ms / 1000)
        self.fetch_ratio.add(percent / 1000, now_ms / 1000)
