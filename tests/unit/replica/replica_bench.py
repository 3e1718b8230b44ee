"""What several tests use: Recorder, Tier, Bench, registered and others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from broker.config.broker import BrokerConfig
from broker.diskless.write_ahead_log import WriteAheadLog
from broker.metadata.events import (
    Event,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
)
from broker.metadata.image import MetadataImage
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetchers import Fetchers
from broker.replica.follower.partition import FollowerPartition
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from broker.replica.state_applier import LeadingContext
from broker.replica.topic_metrics import topic_metrics
from kafka_ds.protocol.messages.data import FetchPartitionData
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.clock import ManualClock
from tests.fakes.logs import log_manager
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch
from tests.unit.replica.followed_logs import NOW_MS, append, content, open_log

ME, OTHER, THIRD = 1, 2, 3


ALL = (ME, OTHER, THIRD)


ID, NEW_ID = b"t" * 16, b"u" * 16


class FetcherRecorder:
    """In the place of the fetchers: what they were told, call by call."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[FollowerPartition], list[FollowerPartition]]] = []
        self.woken: list[int] = []
        self.set_anew: list[FollowerPartition] = []
        self.is_stopped = False

    def update(
        self, *, remove: Iterable[FollowerPartition] = (), add: Iterable[FollowerPartition] = ()
    ) -> None:
        call = list(remove), list(add)
        if call != ([], []):
            self.calls.append(call)

    def wake(self, broker_id: int) -> None:
        self.woken.append(broker_id)

    def configure(self) -> None: ...

    def configured(self, partition: FollowerPartition) -> None:
        self.set_anew.append(partition)

    def stop(self) -> None:
        self.is_stopped = True


class Tier:
    """In the place of the tier: what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def partition_opened(
        self, log: Any, *, leader_epoch: int, last_stable_offset: Any, **heard: Any
    ) -> None:
        self.told.append(f"opened {log.name} in {leader_epoch}")

    def partition_closed(self, topic_id: bytes, partition: int) -> None:
        self.told.append(f"closed {partition}")

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        self.told.append(f"deleted {topic}")

    def segment_rolled(self, log: Any) -> None:
        self.told.append(f"rolled {log.name}")


class ReplicaBench:
    """One broker's replicas on a disk that outlives it."""

    def __init__(
        self, tier: object = None, *, wal: WriteAheadLog | None = None, controller: object = None
    ) -> None:
        self.tier = cast(Any, tier)
        self.wal = wal
        self.controller = cast(Any, controller or SimpleNamespace(recovered=_nothing))
        self.disk = MemoryDisk()
        self.clock = ManualClock(NOW_MS)
        self.image = MetadataImage()
        self.config = log_settings()
        self._version = 0
        self.start()

    def start(self) -> None:
        self.background = ManualBackground()
        self.logs = log_manager(
            ("/d",),
            disk=self.disk,
            clock=self.clock,
            background=self.background,
            node_id=ME,
            config_for=lambda _: self.config,
        )
        self.logs.load()
        self.fetchers = FetcherRecorder()
        self.manager = ReplicaManager(
            FetcherContext(
                network=cast(Any, None),
                clock=self.clock,
                image=self.image,
                node_id=ME,
                listener="PLAINTEXT",
                config=cast(Any, None),
                logs=self.logs,
                remote_log_manager=self.tier,
                topic_metrics=topic_metrics(),
            ),
            LeadingContext(
                log_config=lambda _: self.config,
                alter_partition=cast(Any, None),
                controller=self.controller,
                lag_ms_max=BrokerConfig().replica_lag_time_max_ms,
                wal=self.wal,
            ),
            new_fetchers=lambda _: cast(Fetchers, self.fetchers),
        )

    async def restart(self) -> None:
        """Stop cleanly and start again, as far as replicas go."""
        self.manager.stop()
        self.background.run()
        self.logs.close(7)
        self.disk.kill()
        self.start()
        await self.manager.start()

    async def commit(self, *events: Event) -> None:
        """Make events durable, then let them take effect."""
        self._version += 1
        for number, event in enumerate(events):
            self.image.replay(event, MetadataPosition(self._version, number))
        await self.manager.apply(events)

    async def create(self, *registrations: PartitionRegistration) -> None:
        partitions = [changed(r, index) for index, r in enumerate(registrations)]
        await self.commit(TopicCreated(topic="t", topic_id=ID), *partitions)

    def led(self, index: int = 0) -> LeaderPartition:
        partition = self.manager.find("t", index)
        assert partition is not None
        return partition

    def followed(self, index: int = 0) -> FollowerPartition:
        partition = self.manager.replica("t", index)
        assert isinstance(partition, FollowerPartition)
        return partition

    def folders(self) -> list[str]:
        found = {path.split("/")[2] for path in self.disk.paths() if path.count("/") > 2}
        return sorted(found)


def registered(
    leader: int, epoch: int = 0, *, replicas: tuple[int, ...] = ALL, partition_epoch: int = -1
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=replicas,
        isr=replicas,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch < 0 else partition_epoch,
    )


def changed(
    registration: PartitionRegistration, index: int = 0, topic_id: bytes = ID
) -> PartitionChanged:
    return PartitionChanged(
        topic="t", topic_id=topic_id, partition=index, registration=registration
    )


def give(partition: FollowerPartition, count: int, *, watermark: int) -> None:
    """Let a followed log have records of its leader."""
    leader = open_log(MemoryDisk())
    for _ in range(partition.log.log_end_offset + count):
        append(leader, "x", partition.follower.leader_epoch)
    data = FetchPartitionData(
        partition_index=0,
        high_watermark=watermark,
        log_start_offset=0,
        records=bytearray(content(leader)[len(content(partition.log)) :]),
    )
    partition.append(data, partition.follower.leader_epoch, NOW_MS)


def produce(partition: LeaderPartition, acks: int = -1) -> None:
    batch = client_batch(1, timestamp_ms=NOW_MS)
    partition.append(memoryview(batch), acks=acks, now_ms=NOW_MS)


async def _nothing(_: Any) -> None:
    await asyncio.sleep(0)
