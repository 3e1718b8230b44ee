"""One broker with diskless partitions, whose write-ahead log is in memory, and a controller that believes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from broker.diskless.wal_object import (
    WalPart,
    decode_header,
    encode,
    object_path,
    place_of,
)
from broker.diskless.write_ahead_log import WalSettings, WriteAheadLog
from broker.log.values import RemoteLogAuxState
from broker.metadata.events import RECOVERED, PartitionRegistration, WalId
from broker.worker.rpc import TieredState
from kafka_ds.process.system import SystemClock, new_uuid
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.batch import stamp
from tests.fakes.settings import log_settings
from tests.fakes.store import MemoryStore
from tests.unit.log.log_model import client_batch
from tests.unit.replica.followed_logs import NOW_MS
from tests.unit.replica.replica_bench import ID, ME, OTHER, ReplicaBench, Tier, changed

OWN, BEFORE = WalId(ME, 11), WalId(OTHER, 7)
ANY = "*.wal"


def led(epoch: int, *wals: WalId, state: int = RECOVERED, since: int = 0) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=(ME,),
        isr=(ME,),
        leader=ME,
        leader_epoch=epoch,
        partition_epoch=2 * epoch + (state == RECOVERED),
        leader_recovery_state=state,
        wals=wals,
        wals_since=since,
    )


class FencedTier(Tier):
    """A tier whose lake ends somewhere."""

    def __init__(self, end: int = -1, *, log_start: int = 0) -> None:
        super().__init__()
        self.end, self.log_start = end, log_start
        self.failing: Exception | None = None

    async def fence(self, leader_epochs: Any, loads: object) -> Sequence[TieredState]:
        if self.failing is not None:
            raise self.failing
        self.told.append(f"fenced {sorted(leader_epochs.values())}")
        state = TieredState(
            highest_offset_in_remote_storage=self.end, log_start_offset=self.log_start
        )
        return [state] * len(leader_epochs)

    async def aux_state(self, *where: object) -> tuple[int, RemoteLogAuxState]:
        return self.end + 1, RemoteLogAuxState(leader_epochs=((0, 0),))


class DisklessBench(ReplicaBench):
    """One broker whose write-ahead log is in memory, and a controller that believes it."""

    is_controller_here = False

    def __init__(self, store: MemoryStore, wal: WriteAheadLog, tier: FencedTier) -> None:
        super().__init__(tier, wal=wal, controller=self)
        self.store = store
        self.recovered_epochs: list[int] = []
        self.failures: list[BaseException] = []
        self.config = log_settings(remote_storage_enable=True, lake_diskless=True)

    async def use_disk(self) -> None:
        """Do what waits for the disk."""
        while True:
            self.background.run()
            await asyncio.sleep(0.001)

    async def recovered(self, partitions: Sequence[PartitionId]) -> None:
        for _, number in partitions:
            epoch = self.image.topics["t"].partitions[number].leader_epoch
            self.recovered_epochs.append(epoch)
            await self.commit(changed(led(epoch, OWN, since=epoch), number))


@asynccontextmanager
async def bench(
    tier: FencedTier | None = None, kind: type[DisklessBench] | None = None
) -> AsyncIterator[DisklessBench]:
    store, failures = MemoryStore(), list[BaseException]()
    settings = WalSettings(linger_ms=1, batch_bytes=1 << 20, buffer_bytes=1_000)
    with ThreadPoolExecutor(8) as threads:
        wal = WriteAheadLog(
            store,
            lambda: OWN,
            lambda: settings,
            clock=SystemClock(),
            executor=threads,
            new_id=new_uuid,
            failed=failures.append,
        )
        made = (kind or DisklessBench)(store, wal, tier or FencedTier())
        made.failures = failures
        await made.manager.start()
        disk = asyncio.get_running_loop().create_task(made.use_disk())
        try:
            yield made
        finally:
            disk.cancel()
            store.mend()
            made.manager.stop()
            made.background.run()
            made.logs.close()


def part(first: int, *, epoch: int = 2, count: int = 1) -> WalPart:
    """One batch of an earlier leader."""
    batch = memoryview(client_batch(count, timestamp_ms=NOW_MS))
    stamp(batch, 0, base_offset=first, leader_epoch=epoch)
    return WalPart(ID, 0, epoch, first, first + count - 1, bytes(batch))


def put(store: MemoryStore, place: int, *parts: WalPart, acked_to: int = 0) -> None:
    store.put_durable(object_path(BEFORE, place), encode(new_uuid(), acked_to, parts))


def own_entries(store: MemoryStore) -> list[tuple[int, int, int]]:
    """Epoch and offsets of all that is in this broker's own log, joined where they meet.

    How many objects they are in depends on how often the linger ended meanwhile.
    """
    listed = sorted(store.objects.items())
    own = (
        data for path, data in listed if path.startswith("wal/1/11/") and place_of(path) is not None
    )
    joined = list[tuple[int, int, int]]()
    for data in own:
        for epoch, first, last in (each[2:5] for each in decode_header(data).entries):
            if joined and joined[-1][0] == epoch and joined[-1][2] + 1 == first:
                joined[-1] = (epoch, joined[-1][1], last)
            else:
                joined.append((epoch, first, last))
    return joined
