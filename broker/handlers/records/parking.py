"""Shell: Fetch requests that wait for more data: woken by events, without polling.

Rules of this file: a parked request is answered when its time is over, or earlier when one of these is true (Kafka's
cases of DelayedFetch by their letters):
- A, B, C: the partition is no longer led here (for consumers: nor followed), or is gone with its topic (`lost`);
- D: its log directory has failed (`lost`);
- E: the leader epoch is newer than the one in the request: such a change ends this broker's lead, or is noticed with
  the next advance;
- F: there is more after the reader's offset than the rest of its segment, so there is nothing to wait for;
- G: the bytes of all its partitions reach min_bytes;
- H: the reader's log diverges: found before parking, because a leader's log is never truncated;
- for a follower also: it can move its high watermark, or anything was appended: it reads up to the log's end, and
  appends wake it;
- for a follower also: it has sent another request after the fetch (`hurry`): it wants to ask for more partitions;
- and ours: a partition that has rested is watched as soon as it is roused (`broker.replica.serving.resting`);
- and ours: the broker stops (`lost`).
The answer is made in the loop's next turn: the producer whose append woke the reader gets its answer first,
and appends of one turn become one answer. Only partitions that have advanced are looked at again, or all of them if one
was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.handlers.records.found import Replica
from broker.handlers.records.reading import Reading
from broker.replica.leader.hosted import HostedPartition
from broker.replica.serving.resting import CachedPartition
from kafka_ds.wire.messages import FetchResponse


class Parked(asyncio.Future[FetchResponse]):
    """An answer that may be had sooner than it would come."""

    def __init__(self, hurry: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.hurry = hurry


class ParkedFetch:
    """One request that waits; a watcher of all its partitions."""

    __slots__ = (
        "_advanced",
        "_available",
        "_has_lost",
        "_is_waking",
        "_loop",
        "_reading",
        "_resting",
        "_timer",
        "_watched",
        "future",
    )

    def __init__(self, reading: Reading, max_wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._reading = reading
        self._is_waking = False
        self._has_lost = False
        self._advanced: set[Replica] = set()
        self._watched: dict[Replica, None] = {}
        self._available = reading.bytes_found()
        self.future: asyncio.Future[FetchResponse] = (
            Parked(self.hurry, loop) if reading.is_follower else loop.create_future()
        )
        # Also when the connection is lost: whoever awaits the future cancels it.
        self.future.add_done_callback(self._forget)
        for partition in dict.fromkeys(reading.partitions()):
            self._watch(partition)
        self._resting = reading.resting
        if self._resting is not None:
            self._resting.park(self)
        self._timer = loop.call_later(max_wait_ms / 1000, self._complete)

    def _watch(self, partition: Replica) -> None:
        self._watched[partition] = None
        if self._reading.is_follower and isinstance(partition, HostedPartition):
            partition.watch(self, to_log_end=True)
        else:
            partition.watch(self)

    def joined(self, cached: CachedPartition, partition: HostedPartition) -> None:
        """Something is about to happen to one that has rested until now."""
        if partition not in self._watched:
            self._reading.join(cached, partition)
            self._watch(partition)

    def advanced(self, partition: Replica) -> None:
        """More may be read of this partition (cases E to G)."""
        self._advanced.add(partition)
        if self._is_waking:
            return
        beyond = self._reading.bytes_beyond(partition)
        if beyond is not None:
            self._available[partition] = beyond
            if sum(self._available.values()) < self._reading.min_bytes:
                return
        self._wake()

    def lost(self, partition: Replica) -> None:
        """Nothing more will come of this partition (cases A to D)."""
        self._has_lost = True
        if not self._is_waking:
            self._wake()

    def hurry(self) -> None:
        """Answer with what there is."""
        if not self._is_waking and not self.future.done():
            self._wake()

    def _wake(self) -> None:
        self._is_waking = True
        self._loop.call_soon(self._complete)

    def _complete(self) -> None:
        if self.future.done():
            return
        if self._has_lost and self._resting is not None:
            self._resting.rouse_all()
        self._unpark()
        try:
            if self._has_lost:
                self._reading.find()
            else:
                self._reading.find_again(self._advanced)
            answer = self._reading.answer()
        except Exception as error:  # noqa: BLE001 - it is the request's, and answered as such
            self.future.set_exception(error)
            return
        if isinstance(answer, FetchResponse):
            self.future.set_result(answer)
        else:
            self._wait_for(answer)

    def _wait_for(self, answer: Awaitable[FetchResponse]) -> None:
        task = asyncio.ensure_future(answer)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Future[FetchResponse]) -> None:
        if self.future.done() or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def _forget(self, future: asyncio.Future[FetchResponse]) -> None:
        self._unpark()

    def _unpark(self) -> None:
        self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()
        if self._resting is not None:
            self._resting.unpark(self)
