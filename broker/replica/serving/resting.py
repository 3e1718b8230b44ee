"""Pure: the partitions of a fetch session that rest: their reader has everything, and nothing happens to them.

Rules of this file:
- A session may have thousands of partitions, of which a few have news. A look at one that rests would find what the
  last look has found, and change nothing but times and counters. So it is not looked at, and times and counters are
  kept for all of them together.
- A partition comes to rest with an answer, if the look for it found nothing to read, nothing to tell and nothing wrong,
  and nothing has happened to the partition since that look.
- A follower must be in the ISR and have the whole log: outside of the ISR each fetch may bring it back, and without the
  whole log each fetch says how far it lags.
- It is roused before anything happens to it (`HostedPartition` says so), when a request names or forgets it, when its
  answer was not delivered, and when the session is closed.
- All are roused when a look may find something else for any of them, because of who asks, and how, and of the metadata:
  the `basis` of the looks. Metadata change seldom, compared with fetches.
- A fetch that waits does not watch those that rest. If one is roused meanwhile, it joins the fetch, which watches it
  from then on, as if it had been looked at when the fetch came.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

from broker.replica.leader.replica_state import UNKNOWN_OFFSET, LastFetch
from broker.replica.topic_metrics import TopicCounters
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages.data import CONSUMER, FetchPartition, FetchPartitionData

if TYPE_CHECKING:
    from broker.replica.leader.hosted import HostedPartition

# What the looks of a fetch depend on besides the partition and what is asked of it.
Basis = Hashable


class CachedPartition:
    """A partition of a session: what the reader asks for, and what it was told last."""

    __slots__ = ("high_watermark", "key", "log_start_offset", "place", "rests", "wanted")

    def __init__(
        self,
        key: tuple[str | bytes, int],
        wanted: FetchPartition,
        place: int,
        told: FetchPartitionData | None = None,
    ) -> None:
        """`place` is its place in the line: the smaller, the earlier."""
        self.key = key
        self.wanted = wanted
        self.place = place
        # Led here, while it rests.
        self.rests: HostedPartition | None = None
        self.high_watermark = UNKNOWN_OFFSET if told is None else told.high_watermark
        self.log_start_offset = UNKNOWN_OFFSET if told is None else told.log_start_offset

    def forget_told(self) -> None:
        """The reader was told nothing."""
        self.high_watermark = self.log_start_offset = UNKNOWN_OFFSET

    def is_news(self, data: FetchPartitionData) -> bool:
        """Whether this is news for the reader; remembers it as told."""
        is_news = (
            bool(data.records)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.error_code != ErrorCode.NONE
            or data.diverging_epoch is not None
            or data.preferred_read_replica >= 0
        )
        self.log_start_offset = data.log_start_offset
        failed = data.error_code != ErrorCode.NONE
        self.high_watermark = UNKNOWN_OFFSET if failed else data.high_watermark
        return is_news


class WaitingFetch(Protocol):
    """A fetch of the session that waits; it is joined by what is roused."""

    def joined(self, cached: CachedPartition, partition: HostedPartition) -> None:
        """This one has rested when the fetch came, and does no more."""


class Resting:
    """Those of one session."""

    __slots__ = (
        "_basis",
        "_counts",
        "_parked",
        "_partitions",
        "_roused",
        "last_fetch",
        "replica_id",
    )

    def __init__(self, roused: Callable[[CachedPartition], None]) -> None:
        """`roused` is told of each that rests no more."""
        self.replica_id = CONSUMER
        self.last_fetch = LastFetch()
        self._basis: Basis = None
        self._roused = roused
        self._partitions: dict[HostedPartition, CachedPartition] = {}
        self._counts: dict[TopicCounters, int] = {}
        self._parked: dict[WaitingFetch, None] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def asked(self, replica_id: int, basis: Basis) -> None:
        """A fetch of this follower (or consumer) begins, whose looks depend on this."""
        if basis != self._basis or replica_id != self.replica_id:
            self.rouse_all()
            self.replica_id, self._basis = replica_id, basis

    def heard(self, now_ms: int) -> None:
        """The fetch came at this time, and says of all that rest what the last one said."""
        self.last_fetch.ms = now_ms

    def count(self) -> None:
        """The fetch counts for each that rests, though it is not looked at."""
        for counters, partitions in self._counts.items():
            counters.fetch_requests += partitions

    # -- coming to rest and being roused --------------------------------------------------------

    def add(self, cached: CachedPartition, partition: HostedPartition) -> None:
        """This one rests from now on."""
        assert cached.rests is None, "it was looked at"
        assert partition not in self._partitions, "a partition is once in a session"
        cached.rests = partition
        self._partitions[partition] = cached
        self._counts[partition.counters] = self._counts.get(partition.counters, 0) + 1
        partition.rest(self)

    def rouse(self, cached: CachedPartition) -> None:
        """Look at this one with the next fetch."""
        if cached.rests is not None:
            cached.rests.rouse(self)

    def rouse_all(self) -> None:
        """Look at all of them with the next fetch."""
        for partition in tuple(self._partitions):
            partition.rouse(self)

    def stirred(self, partition: HostedPartition) -> None:
        """Something is about to happen to the partition, which rests no more."""
        cached = self._partitions.pop(partition)
        cached.rests = None
        left = self._counts[partition.counters] - 1
        if left:
            self._counts[partition.counters] = left
        else:
            del self._counts[partition.counters]
        self._roused(cached)
        for parked in tuple(self._parked):
            parked.joined(cached, partition)

    # -- who waits ------------------------------------------------------------------------------

    @property
    def parked(self) -> Iterable[WaitingFetch]:
        """The fetches of the session that wait."""
        return self._parked

    def park(self, fetch: WaitingFetch) -> None:
        """Tell this fetch of those that are roused."""
        self._parked[fetch] = None

    def unpark(self, fetch: WaitingFetch) -> None:
        """It waits no more."""
        self._parked.pop(fetch, None)
