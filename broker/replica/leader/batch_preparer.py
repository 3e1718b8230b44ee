"""Shell: validates or recompresses batches beside the event loop before they are appended.

A partition's batches are appended in the order in which they came, whatever each of them takes. A batch that takes the
event loop half a millisecond at most is prepared at once if none is before it; all others in threads, several of one
partition at the same time. While the leader compares its log with the lake its batches wait here, too. A disconnected
client takes back nothing, so the waiting bytes have a limit of their own, beyond which a batch is refused; clients send
it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from broker.log.config import UNLIMITED
from broker.log.validation import (
    VALIDATED_AT_ONCE_BYTES_MAX,
    at_once_bytes_max,
    prepare_in_thread,
)
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records import machine_code
from kafka_ds.records.batch import ATTRIBUTES_POSITION, CODEC_MASK, Codec

PREPARING_THREADS_MAX = 2
WAITING_BYTES_MAX = 512 << 20
# The size up to which a batch is prepared at once: it is likely to decompress to no more than is allowed at once. If it
# turns out to hold more, a thread starts over. The number of blocks in gzip is not known in advance: each may be ten
# bits long, and takes half a microsecond.
PREPARED_AT_ONCE_BYTES_MAX: dict[int, int] = {
    Codec.NONE: UNLIMITED,
    Codec.GZIP: 16 << 10,
    Codec.SNAPPY: 320 << 10,
    Codec.LZ4: 640 << 10,
    Codec.ZSTD: 96 << 10,
}

_LOGGER = logging.getLogger(__name__)

Append = Callable[[memoryview], None]
Refuse = Callable[[KafkaError], None]


class _QueuedBatch(NamedTuple):
    """A batch in its partition's queue."""

    prepared: asyncio.Future[memoryview]
    size: int
    append: Append
    refuse: Refuse


class BatchPreparer:
    """The batches of all partitions that are being prepared."""

    def __init__(self, threads: Executor) -> None:
        machine_code.load()
        self.threads = threads
        self.queues: dict[LeaderPartition, deque[_QueuedBatch]] = {}
        self.waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def must_wait(self, partition: LeaderPartition, records: memoryview) -> bool:
        """Whether a batch has to wait for its turn; if not, the log itself prepares it."""
        if (self.queues and partition in self.queues) or partition.recovery is not None:
            return True
        if len(records) <= VALIDATED_AT_ONCE_BYTES_MAX:
            return False
        codec = records[ATTRIBUTES_POSITION + 1] & CODEC_MASK
        sent_max = PREPARED_AT_ONCE_BYTES_MAX.get(codec, 0)
        return len(records) > min(sent_max, at_once_bytes_max(partition.log.config, codec))

    def submit(
        self,
        partition: LeaderPartition,
        records: memoryview,
        now_ms: int,
        *,
        append: Append,
        refuse: Refuse,
    ) -> None:
        """Prepare a batch; `append` gets it when all before it are through, or `refuse` the reason."""
        if self.waiting_bytes >= WAITING_BYTES_MAX:
            message = "too many batches wait for being looked into"
            refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message))
            return
        config = partition.log.config
        loop = asyncio.get_running_loop()
        prepared = loop.run_in_executor(self.threads, prepare_in_thread, records, config, now_ms)
        waiting = _QueuedBatch(prepared, len(records), append, refuse)
        self.waiting_bytes += waiting.size
        queue = self.queues.get(partition)
        if queue is not None:
            queue.append(waiting)
            return
        self.queues[partition] = deque((waiting,))
        task = loop.create_task(self._work_through(partition), name="prepare")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_through(self, partition: LeaderPartition) -> None:
        queue = self.queues[partition]
        try:
            while queue:
                first = queue[0]
                try:
                    records = await first.prepared
                    if (recovery := partition.recovery) is not None:
                        await asyncio.wait((recovery,))
                except KafkaError as error:
                    first.refuse(error)
                except Exception as error:
                    _LOGGER.exception("a batch for %s cannot be prepared", partition.log.name)
                    first.refuse(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
                else:
                    first.append(records)
                queue.popleft()
                self.waiting_bytes -= first.size
                await asyncio.sleep(
                    0
                )  # What has waited for a recovery is ready at once, and may be much.
        finally:
            del self.queues[partition]
            for left in queue:
                self.waiting_bytes -= left.size
                left.refuse(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def close(self) -> None:
        """At the broker's end: it leads no partition, so the rest is not appended."""
        for task in tuple(self._tasks):
            task.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)
