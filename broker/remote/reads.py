"""Shell: clients' requests on their way to the worker: bounded both in progress and waiting, and none waits for ever.

Rules of this file (KIP-405, Kafka's RemoteStorageThreadPool):
- `remote.log.reader.threads` requests are in progress at once, and `remote.log.reader.max.pending.tasks` wait for their
  turn. One more is refused with an error that makes its client ask again.
- A caller may give up. A request that still waits for its turn is dropped then. One in progress keeps its turn until it
  is answered, because the worker is busy with it (and keeps the result for the next try).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.remote.metrics import TierMetrics
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


class RemoteReads:
    """The requests of one broker."""

    def __init__(self, threads: int, pending_max: int, clock: Clock, metrics: TierMetrics) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(threads)
        self._pending_max = pending_max
        self._metrics = metrics
        metrics.readers.threads = threads
        self._asked: set[asyncio.Task[object]] = set()

    async def submit(self, question: Callable[[], Awaitable[T]]) -> T:
        """Wait for a turn, ask, and return the answer.

        Raises KafkaError(KAFKA_STORAGE_ERROR) if too many wait already, and what the request raises.
        """
        metrics = self._metrics
        if self._turns.locked() and metrics.reads_waiting >= self._pending_max:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many cold reads are waiting")
        metrics.reads_waiting += 1
        try:
            await self._turns.acquire()
        finally:
            metrics.reads_waiting -= 1
        task = asyncio.ensure_future(self._in_turn(question))
        # Kept while it runs, even if nothing waits for it any more.
        self._asked.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def _in_turn(self, question: Callable[[], Awaitable[T]]) -> T:
        readers, began_s = self._metrics.readers, self._now_s()
        readers.begin(began_s)
        try:
            return await question()
        finally:
            ended_s = self._now_s()
            readers.end(ended_s)
            self._metrics.reader_times.add(ended_s - began_s, ended_s)
            self._turns.release()

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _end(self, task: asyncio.Task[object]) -> None:
        self._asked.discard(task)
        if not task.cancelled():
            task.exception()  # Heard, also where nobody waits for it any more.
