"""A partition on disk under a coordinator, with other replicas that hold the high watermark back where it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from broker.coordinator.loads import Loads
from broker.coordinator.runtime import CoordinatorContext, CoordinatorShard
from broker.log.log import Log
from broker.metadata.events import PartitionRegistration
from broker.replica.leader.partition import LeaderPartition
from broker.replica.leader.state import LeaderState
from kafka_ds.process.system import SystemDisk
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.settings import log_settings

NOW_MS = 1_700_000_000_000
S = TypeVar("S", bound=CoordinatorShard)


class PartitionBench:
    """One partition of a coordinator's topic."""

    def __init__(self, folder: Path, topic: str, *, followers: int = 0, **config: Any) -> None:
        self.clock = ManualClock(NOW_MS)
        self.log = Log.open(
            str(folder / f"{topic}-0"),
            log_settings(**config),
            SystemDisk(),
            self.clock,
            topic=topic,
            partition=0,
        )
        replicas = tuple(range(1, 2 + followers))
        registration = PartitionRegistration(replicas=replicas, isr=replicas, leader=1)
        leader = LeaderState(
            registration,
            node_id=1,
            log_end_offset=self.log.log_end_offset,
            high_watermark=0,
            min_insync_replicas=1,
            lag_ms_max=30_000,
        )
        self.partition = LeaderPartition(self.log, leader, clock=self.clock)
        self.partition.elected()
        self.loads = Loads()

    def context(
        self,
        shard: S,
        *,
        perform: Callable[[CoordinatorContext[S], Any], None] | None = None,
        load_bytes: int = 1 << 20,
        commit_timeout_ms: int = 5_000,
    ) -> CoordinatorContext[S]:
        """The coordinator of the partition, which begins to read its log."""
        context = CoordinatorContext(
            self.partition,
            shard,
            clock=self.clock,
            loads=self.loads,
            load_bytes=load_bytes,
            commit_timeout_ms=commit_timeout_ms,
            perform=perform,
        )
        context.start()
        return context

    def replicate(self) -> None:
        """The follower has everything now."""
        end_offset = self.log.log_end_offset
        self.partition.update_follower_fetch_state(
            2, fetch_offset=end_offset, log_start_offset=0, broker_epoch=-1
        )

    def append(self, batch: bytes) -> None:
        self.partition.append(
            memoryview(bytearray(batch)), acks=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
