"""Shell: questions of clients on their way to the worker: so many at once, so many that wait, none for ever.

Rules of this file (KIP-405, Kafka's RemoteStorageThreadPool):
- `remote.log.reader.threads` questions are asked at once and `remote.log.reader.max.pending.tasks` wait for their turn;
  one more is refused, which its client takes for a reason to ask again.
- Whoever asked may give up. A question that waits for its turn is dropped then; one that was asked keeps its turn until
  it is answered, as the worker is at work on it (and keeps what it finds for who asks again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.seams import Clock
from broker.tier.metrics import TierMetrics
from kafka_ds.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class RemoteReads:
    """The questions of one broker."""

    def __init__(self, threads: int, pending_max: int, clock: Clock, metrics: TierMetrics) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(threads)
        self._pending_max = pending_max
        self._metrics = metrics
        metrics.readers.threads = threads
        self._asked: set[asyncio.Task[object]] = set()

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """The answer, when it is its turn.

        Raises KafkaError(KAFKA_STORAGE_ERROR) where too many wait already, and what the question raises.
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
        # Known as long as it runs, whoever still waits for it.
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
