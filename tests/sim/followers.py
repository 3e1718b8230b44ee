"""Runs with read replicas over a copy of the lake, whose objects come in any order.

Replicas are killed, paused and cut off from the copy all along. What they serve is a prefix of what the cluster has,
and in the end all of the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.read_replica.partitions import LakePartition
from broker.worker.metadata.offset_rows import checkpoint_of
from kafka_ds.topic.offsets import OffsetsTable, present
from tests.fakes.store import MemoryStore
from tests.sim.clients import Partition
from tests.sim.follower_checks import ArrivalModel, ReplicaConsumer, ReplicaWatch
from tests.sim.readers import READ_COMMITTED
from tests.sim.replica_host import FIRST_NODE_ID, ReplicaHost, put_in_place
from tests.sim.replicator import Replicator
from tests.sim.scenario import QUIET_SECONDS_MAX
from tests.sim.tier_scenario import TierFaults, TierScenario
from tests.sim.world import PORT, Host

PAUSE_SECONDS_MAX = 8.0
RESTART_SECONDS_MAX = 3.0


class FollowerFaults(TierFaults):
    """Faults of replicas, in addition to those of the cluster."""

    replicas: list[ReplicaHost]

    async def heal(self) -> None:
        await super().heal()
        for each in self.replicas:
            self._start(each)

    def _one(self) -> ReplicaHost:
        return self._random.choice(self.replicas)

    def start_later(self, replica: Host) -> None:
        """Start a replica that has ended."""
        seconds = self._random.random() * RESTART_SECONDS_MAX
        self._later(seconds, lambda: self._start(replica))

    def _start(self, replica: Host) -> None:
        if not replica.is_up:
            self._world.log(f"{replica.name} starts")
            replica.start()

    def _replica_killed(self, _: Host) -> str | None:
        replica = self._one()
        if not replica.is_up:
            return None
        replica.kill()
        self.start_later(replica)
        return f"kill -9 {replica.name}"

    def _replica_worker_dies(self, _: Host) -> str | None:
        return self._worker_dies(self._one())

    def _replica_paused(self, _: Host) -> str | None:
        process = (replica := self._one()).process
        if not replica.is_up or process is None or process.is_paused:
            return None
        process.pause()
        self._later(self._random.random() * PAUSE_SECONDS_MAX, process.resume)
        return f"{replica.name} is paused"

    def _copy_away(self, _: Host) -> str | None:
        return self._lake_away(self._one())

    def _copy_fails(self, _: Host) -> str | None:
        return self._lake_fails(self._one())


class FollowerScenario(TierScenario):
    """A cluster with a lake, a copy of it, and read replicas over the copy."""

    FAULTS = FollowerFaults
    faults: FollowerFaults

    def __init__(self, *args: Any, replicas: int, **named: Any) -> None:
        super().__init__(*args, **named)
        copy = MemoryStore(self.tier.clock)  # type: ignore[arg-type]
        self.replicator = Replicator(self.world, self._folder, copy)
        self.arrivals = ArrivalModel(self.tables, self.replicator)
        self.replica_watch = ReplicaWatch(self.world.truth, self.arrivals)
        self.tier.on_request = self.replica_watch.asked
        self.replicas = [
            ReplicaHost(self.world, FIRST_NODE_ID + number, copy) for number in range(replicas)
        ]
        self.tier.others.extend(self.replicas)
        self.faults.replicas = self.replicas
        for each in self.replicas:
            each.on_halt = self.faults.start_later

    def _listen(self, patch: pytest.MonkeyPatch) -> None:
        super()._listen(patch)
        put_in_place(patch, self.world.loop)

    async def _run(self) -> None:
        copying = self.world.loop.create_task(self.replicator.run())
        try:
            await super()._run()
            if copying.done():
                copying.result()
        finally:
            copying.cancel()

    def _readers(self) -> list[asyncio.Task[None]]:
        tasks = super()._readers()
        for number, replica in enumerate(self.replicas):
            replica.start()
            for partition in self.partitions:
                consumer, work = self._replica_reader(
                    replica, partition, READ_COMMITTED * ((number + partition[1]) % 2)
                )
                tasks.append(work(self._follow(consumer)))
        return tasks

    def _replica_reader(
        self, replica: ReplicaHost, partition: Partition, isolation: int
    ) -> tuple[ReplicaConsumer, Callable[[Any], asyncio.Task[None]]]:
        process, network = self._client()
        consumer = ReplicaConsumer(
            network,
            [(replica.name, PORT)],
            self.world.random,
            partition=partition,
            isolation_level=isolation,
            bounds=self.bounds,
            model=self.model,
            tables=self.tables,
        )
        return consumer, lambda work: self._spawn(work, process)

    # -- what must be true ---------------------------------------------------------------------------

    def _check_local_logs(self) -> None:
        super()._check_local_logs()
        for replica in self.replicas:
            self.replica_watch.look(replica)

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await super()._check(members)
        for replica in self.replicas:
            for partition in self.partitions:
                await self.world.until(
                    lambda replica=replica, partition=partition: self._has_all(replica, partition),
                    f"{replica.name} has all of {partition}",
                    QUIET_SECONDS_MAX,
                )
                for isolation in (0, READ_COMMITTED):
                    await self._check_reads(replica, partition, isolation)
            await self.world.until(
                lambda replica=replica: self._has_offsets(replica),
                f"{replica.name} has the offsets that were published last",
                QUIET_SECONDS_MAX,
            )
        assert self.replica_watch.moves, "no replica had anything: the run shows nothing"

    def _partition_of(self, replica: ReplicaHost, partition: Partition) -> LakePartition | None:
        running = replica.replica
        return None if running is None else running.replica_manager.find(*partition)

    def _has_all(self, replica: ReplicaHost, partition: Partition) -> bool:
        found = self._partition_of(replica, partition)
        start, end = self.tables.start(*partition), self.tables.end(*partition) + 1
        return found is not None and (found.log.log_start_offset, found.high_watermark) == (
            start,
            max(start, end),
        )

    async def _check_reads(
        self, replica: ReplicaHost, partition: Partition, isolation: int
    ) -> None:
        """Readers get the table's rows; of uncommitted ones also what a table does not take."""
        consumer, work = self._replica_reader(replica, partition, isolation)

        async def read() -> None:
            while (end := await consumer.end_offset()) is None:
                await consumer.pause()
            while consumer.position < end:
                since = len(consumer.read)
                await consumer.poll()
                self.watch.read(consumer, since)

        await asyncio.wait_for(work(read()), QUIET_SECONDS_MAX)
        start, where = self.tables.start(*partition), f"{replica.name}: {partition}"
        # The table may have gone on since the replica had all of it.
        rows = {
            at: row for at, row in self.tables.rows(*partition) if start <= at < consumer.position
        }
        got = {offset: value for offset, value in consumer.read if offset >= start}
        missing = [at for at, row in rows.items() if got.get(at) != row.content.value][:5]
        assert not missing, f"{where}: in the table, and not served: {missing}"
        surplus = [at for at in got if at not in rows][:5]
        assert not isolation or not surplus, f"{where}: served, and not in the table: {surplus}"
        found = self._partition_of(replica, partition)
        if found is not None and found.log.epochs_end == found.high_watermark:
            # What a leader knew of epochs may begin later than its log.
            wrong = [at for at, row in rows.items() if found.epoch_of(at) not in (-1, row.epoch)]
            assert not wrong, (
                f"{where}: {wrong[:5]} are not of these epochs: {found.log.leader_epochs.entries}"
            )

    def _has_offsets(self, replica: ReplicaHost) -> bool:
        running = replica.replica
        if running is None:
            return False
        found = checkpoint_of(present(OffsetsTable(self._lake, clock=self.tier.clock).read()))
        shown = running.groups.published
        return [*shown.groups, *shown.offsets] == [*found.groups, *found.offsets]
