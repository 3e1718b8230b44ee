"""What several tests use: TierOfChunks, tiered."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from tests.in_process import (
    InProcess,
    batch_of,
)


@dataclass
class TierOfChunks:
    """A lake that holds what the test puts there."""

    chunks: list[bytes] = field(default_factory=list)
    error: ErrorCode | None = None
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    sheds: bool = False

    def sheds_reads(self) -> bool:
        return self.sheds

    async def read(
        self, partition: TopicIdPartition, offset: int, *, max_bytes: int, isolation_level: int
    ) -> list[bytes]:
        self.asked.append((partition.partition, offset, max_bytes))
        await asyncio.sleep(0)
        if self.error is not None:
            raise KafkaError(self.error)
        return list(self.chunks)


async def tiered(broker: InProcess, **options: Any) -> TierOfChunks:
    """Partition 0 has its offsets 0 and 1 in the lake alone, partition 1 all on disk."""
    await broker.create("t", 2)
    await broker.produce("t", batch_of([b"cold", b"colder"]))
    partition = broker.node.replica_manager.get("t", 0)
    log = partition.log
    cold = log.read(0, max_bytes=999, upper_bound_offset=2, min_one_batch=True)
    chunks = [bytes(part.read()) for part in cold.slices]
    log.roll()
    await broker.produce("t", batch_of([b"hot"]))
    await broker.produce("t", batch_of([b"other"]), partition=1)
    log.segments.discard_oldest(1, broker.node.clock.now_ms())
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 2)
    tier = TierOfChunks(chunks=chunks, **options)
    broker.exchange(remote_log_manager=tier)
    return tier
