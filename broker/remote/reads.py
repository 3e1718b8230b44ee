"""Shell: clients' requests to the worker: bounded both in progress and waiting, and each wait ends.

As Kafka's RemoteStorageThreadPool (KIP-405):
- `remote.log.reader.threads` requests are in progress at once, and `remote.log.reader.max.pending.tasks` wait for their
  turn. A further one is refused with a retriable error.
- A caller may give up. A request that still waits for its turn is dropped then. One in progress keeps its turn until
  the worker, which is busy with it, has answered; the result is kept for the client's next try.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from broker.remote.metrics import TierMetrics
from broker.worker.rpc import OUT_OF_RANGE
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.ipc.request import A, Request
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError


class RemoteReads:
    """The requests of one broker."""

    def __init__(
        self,
        worker: ChildWorker,
        *,
        threads: int,
        pending_max: int,
        clock: Clock,
        metrics: TierMetrics,
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._turns = asyncio.Semaphore(threads)
        self._threads = threads
        # Turns that end without another request's: there are to be fewer.
        self._surplus = 0
        self._pending_max = pending_max
        self._metrics = metrics
        self._asked: set[asyncio.Task[object]] = set()

    def configure(self, threads: int) -> None:
        """Let so many requests be in progress; if that is fewer than before, as soon as others have ended."""
        self._surplus += self._threads - threads
        self._threads = threads
        self._metrics.readers.resize(threads)
        while self._surplus < 0:
            self._surplus += 1
            self._turns.release()

    def _end_turn(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._turns.release()

    async def send(self, request: Request[A], topic: str | None = None) -> A:
        """Wait for a turn, ask the worker, and return its answer; a failure is counted for the topic.

        Raises KafkaError: KAFKA_STORAGE_ERROR if too many wait already, and as `kafka_errors`.
        """
        try:
            await self._acquire()
            task = asyncio.ensure_future(self._in_turn(request))
            # Kept while it runs, even if nothing waits for it any more.
            self._asked.add(task)
            task.add_done_callback(self._end)
            return await asyncio.shield(task)
        except KafkaError:
            self._metrics.fetch_failed(topic)
            raise

    async def _acquire(self) -> None:
        metrics = self._metrics
        if self._turns.locked() and metrics.reads_waiting >= self._pending_max:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many cold reads are waiting")
        metrics.reads_waiting += 1
        try:
            await self._turns.acquire()
        finally:
            metrics.reads_waiting -= 1

    async def _in_turn(self, request: Request[A]) -> A:
        readers, began_s = self._metrics.readers, self._now_s()
        readers.begin(began_s)
        try:
            with kafka_errors():
                return await self._worker.send(request)
        finally:
            ended_s = self._now_s()
            readers.end(ended_s)
            self._metrics.reader_times.add(ended_s - began_s, ended_s)
            self._end_turn()

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _end(self, task: asyncio.Task[object]) -> None:
        self._asked.discard(task)
        if not task.cancelled():
            task.exception()  # Its error is retrieved, even if nothing waits for it any more.


@contextlib.contextmanager
def kafka_errors() -> Iterator[None]:
    """A worker that fails is an error that clients know: OFFSET_OUT_OF_RANGE or KAFKA_STORAGE_ERROR."""
    try:
        yield
    except WorkerLost as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    except WorkerFailed as error:
        out = error.kind == OUT_OF_RANGE
        code = ErrorCode.OFFSET_OUT_OF_RANGE if out else ErrorCode.KAFKA_STORAGE_ERROR
        raise KafkaError(code, str(error)) from error
