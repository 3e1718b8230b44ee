"""Shell: batches that are looked into or packed anew before they are appended, beside the event loop.

Rules of this file:
- A partition's batches are appended in the order in which they came, whatever each of them takes: the sequences of a
  producer must not overtake each other, nor the records of one without.
- A small batch that is not compressed is prepared at once if nothing is before it; all others in threads, several of
  one partition at the same time.
- What waits here is bounded by what connections may leave unanswered. A client that goes away takes back nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from broker.log.validation import must_be_prepared, prepare_if_due
from broker.replica.leader.hosted import HostedPartition
from kafka_ds.wire.batch import ATTRIBUTES_POSITION, CODEC_MASK, Codec
from kafka_ds.wire.errors import ErrorCode, KafkaError

PREPARING_THREADS_MAX = 2
# What costs the event loop less than half a millisecond.
PREPARED_AT_ONCE_BYTES_MAX = 8 << 10

_LOGGER = logging.getLogger(__name__)

Append = Callable[[memoryview], None]
Refuse = Callable[[KafkaError], None]


class _Waiting(NamedTuple):
    """A batch in its partition's queue."""

    prepared: asyncio.Future[memoryview]
    append: Append
    refuse: Refuse


class BatchPreparer:
    """The batches of all partitions that are being prepared."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._queues: dict[HostedPartition, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def takes(self, partition: HostedPartition, records: memoryview) -> bool:
        """Whether a batch has to wait for its turn; if not, the log itself prepares what needs it."""
        if self._queues and partition in self._queues:
            return True
        if not must_be_prepared(records, partition.log.config):
            return False
        is_packed = records[ATTRIBUTES_POSITION + 1] & CODEC_MASK != Codec.NONE
        return is_packed or len(records) > PREPARED_AT_ONCE_BYTES_MAX

    def submit(
        self,
        partition: HostedPartition,
        records: memoryview,
        now_ms: int,
        *,
        append: Append,
        refuse: Refuse,
    ) -> None:
        """Prepare a batch; `append` gets it when all before it are through, or `refuse` the reason why not."""
        config = partition.log.config
        loop = asyncio.get_running_loop()
        prepared = loop.run_in_executor(self._threads, prepare_if_due, records, config, now_ms)
        queue = self._queues.get(partition)
        if queue is not None:
            queue.append(_Waiting(prepared, append, refuse))
            return
        self._queues[partition] = deque((_Waiting(prepared, append, refuse),))
        task = loop.create_task(self._work_through(partition), name="prepare")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_through(self, partition: HostedPartition) -> None:
        queue = self._queues[partition]
        try:
            while queue:
                first = queue[0]
                try:
                    records = await first.prepared
                except KafkaError as error:
                    first.refuse(error)
                except Exception as error:
                    _LOGGER.exception("a batch for %s cannot be prepared", partition.log.name)
                    first.refuse(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
                else:
                    first.append(records)
                queue.popleft()
        finally:
            del self._queues[partition]
            for left in queue:
                left.refuse(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def close(self) -> None:
        """For the broker's end: nothing is led any more, so what is left is not appended."""
        for task in tuple(self._tasks):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
