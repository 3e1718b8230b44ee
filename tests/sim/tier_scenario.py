"""A run with the tier at work: what is committed comes into the tables once, whatever happens on its way there."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

# What workers import when they first need it draws from the run's chance: it is here before.
from broker.tier import delta_writer  # noqa: F401
from broker.tier.crash_points import BROKER_POINTS, COPY_POINTS, LAYOUT_POINTS, UPKEEP_POINTS
from kafka_ds.lake import convert, event_files, maintenance, relaying  # noqa: F401
from kafka_ds.lake.events import RemoteLogEvents
from kafka_ds.lake.states import RemoteLogSegmentState
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import DeleteTopicsRequest
from kafka_ds.wire.messages.topics import DeleteTopicState
from kafka_ds.wire.types import NO_UUID
from tests.fakes.memory_disk import MemoryDisk
from tests.sim.checkers import Watch
from tests.sim.clients import TROUBLE, History, Partition, Producer
from tests.sim.operator import Operator
from tests.sim.readers import READ_COMMITTED
from tests.sim.scenario import QUIET_SECONDS_MAX, Scenario, Shape
from tests.sim.sequences import Sequences
from tests.sim.tier_lake import FolderStore, TableWatch
from tests.sim.tier_worker import Tier
from tests.sim.world import Host

# A topic that is deleted and made again, under whoever copies it.
FLEETING = "fleeting"
LIFE_SECONDS_MAX = 3.0
REST_SECONDS = 0.15
SLEEP_SECONDS_MAX = 30.0
POINTS = COPY_POINTS + UPKEEP_POINTS + LAYOUT_POINTS + BROKER_POINTS
# The folder is in memory where the machine has one there: what is synced is nobody's question here.
SHARED_MEMORY = Path("/dev/shm")
TIERED = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "400",
    "remote.log.manager.task.retry.backoff.ms": "200",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "log.local.retention.bytes": "1",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "400",
    "log.roll.ms": "700",
    "lake.local.grace.ms": "100",
    "lake.start.delay.ms": "50",
    "lake.checkpoint.interval": "6",
    # Whoever runs is one of the simulation's fibers; other threads would be nobody's.
    "lake.copy.threads": "1",
    "lake.maintenance.interval.ms": "1500",
    "lake.maintenance.min.files": "4",
    "lake.offsets.interval.ms": "-1",
}


class TierFaults(Sequences):
    """Faults of workers, beside those of brokers."""

    tier: Tier

    async def heal(self) -> None:
        self.tier.disarm()
        await super().heal()

    def _worker_dies(self, host: Host) -> str | None:
        worker = self.tier.living(host)
        if worker is None:
            return None
        worker.die()
        return f"the worker of {host.name} dies"

    def _worker_sleeps(self, host: Host) -> str | None:
        """Perhaps for longer than a table's history is kept."""
        worker = self.tier.living(host)
        if worker is None or worker.process.is_paused:
            return None
        worker.process.pause()
        self._later(self._random.random() * SLEEP_SECONDS_MAX, worker.process.resume)
        return f"the worker of {host.name} sleeps"

    def _crash_point(self, host: Host) -> str | None:
        """Whoever comes there next dies: the worker, or its broker."""
        point = self._random.choice(POINTS)
        takes_broker = point in BROKER_POINTS or self._random.random() < 0.3

        def dies() -> bool:
            worker = self.tier.living(host)
            if takes_broker:
                if not host.is_up or not self._may_go_down(host, forgets=False):
                    return False
                host.kill()
                self._crashed(host)
            elif worker is not None:
                worker.die()
            self._world.log(f"{host.name} or its worker dies at {point}")
            return True

        return f"{host.name} is armed at {point}" if self.tier.arm(host, point, dies) else None

    def _lost_disk(self, host: Host) -> str | None:
        if not host.is_up or not self._may_go_down(host, forgets=True):
            return None
        self._forgets(host)
        host.disk = MemoryDisk()
        host.disk.clock = host.clock.now_ms
        return f"{host.name} loses its disk"


class TierScenario(Scenario):
    """A cluster with a lake in a folder."""

    FAULTS: type[TierFaults] = TierFaults

    def __init__(self, seed: int, shape: Shape, *args: Any, **named: Any) -> None:
        shared = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
        self._folder = tempfile.mkdtemp(prefix="kafka-ds-sim-", dir=shared)
        self._lake = FolderStore(self._folder)
        super().__init__(seed, shape, *args, **named, store=self._lake)
        self.tier = Tier(self._lake)
        self.tier.begin(self.world)
        self.tables = TableWatch(self._lake)
        self.faults = faults = self.FAULTS(self.world, self.faults.plan)
        faults.tier = self.tier
        # What was read of the lake, for those who want to know what a run has shown.
        self.local_starts: dict[Partition, int] = {}

    def run(self) -> None:
        try:
            with pytest.MonkeyPatch.context() as patch:
                self.tier.put_in_place(patch)
                super().run()
        finally:
            shutil.rmtree(self._folder)

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            self.tier.fibers.end()

    # -- who works -----------------------------------------------------------------------------------

    def _producers(self) -> list[asyncio.Task[None]]:
        operator, process = self._operator()
        return [*super()._producers(), self._spawn(self._come_and_go(operator), process)]

    async def _come_and_go(self, operator: Operator) -> None:
        """Make a topic, write to it, delete it, and the same again."""
        incarnation = 0
        while not self._is_over:
            incarnation += 1
            while await operator.create(FLEETING, 1) is not ErrorCode.NONE and not self._is_over:
                await operator.pause()
            producer = Producer(
                operator.network,
                self.world.bootstrap,
                self.world.random,
                name=f"life{incarnation}",
                history=History(),
            )
            loop = self.world.loop
            end = loop.time() + self.world.random.random() * LIFE_SECONDS_MAX
            while loop.time() < end and not self._is_over:
                try:
                    async with asyncio.timeout(1):
                        await producer.send((FLEETING, 0), self.world.random.randint(1, 5))
                except TimeoutError:
                    continue
                await asyncio.sleep(self.world.random.random() * REST_SECONDS)
            while not await self._delete(operator):
                await operator.pause()

    @staticmethod
    async def _delete(operator: Operator) -> bool:
        topics = [DeleteTopicState(name=FLEETING, topic_id=NO_UUID)]
        try:
            answer = await operator.ask_any(DeleteTopicsRequest(topics=topics, timeout_ms=5_000), 6)
        except TROUBLE:
            return False
        code = ErrorCode(answer.responses[0].error_code)
        return code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # -- what must be true ---------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.watch.look()
            self._check_local_logs()
            failures = self.tier.fibers.failures
            assert not failures, failures
            assert not self.tier.trouble, self.tier.trouble

    def _check_local_logs(self) -> None:
        """No log has let go of what the table does not hold."""
        for host in self.world.up():
            manager = getattr(host.node, "log_manager", None)
            for partition in self.partitions if manager is not None else ():
                log = manager.get(*partition)
                if log is None:
                    continue
                start = log.local_log_start_offset
                end = self.tables.end(*partition)
                assert start <= end + 1, f"{host.name}: {partition} begins at {start}, lake {end}"
                self.local_starts[partition] = max(self.local_starts.get(partition, 0), start)

    async def _check_storage(self, committed: dict[Partition, list[tuple[int, bytes]]]) -> None:
        for partition in self.partitions:
            await self.world.until(
                lambda partition=partition: self._is_copied(partition),
                f"{partition} is copied",
                QUIET_SECONDS_MAX,
            )
            read = dict(committed[partition])
            rows = self.tables.rows(*partition)
            end = self.tables.end(*partition)
            expected = sorted(each for each in read.items() if each[0] <= end)
            missing = [each for each in expected if each not in rows][:5]
            surplus = [each for each in rows if read.get(each[0]) != each[1]][:5]
            assert not missing, f"{partition}: committed, and not in the table: {missing}"
            assert not surplus, f"{partition}: in the table, and not committed: {surplus}"
        self._check_lives()
        self._check_with_the_library()
        self._check_events()

    def _is_copied(self, partition: Partition) -> bool:
        """All closed segments are in the lake."""
        found = self.world.truth.image().partition(*partition)
        node = self.world.hosts[found.leader - 1].node if found and found.leader > 0 else None
        log = node.log_manager.get(*partition) if node is not None else None
        if log is None:
            return False
        return not log.closed_segments(self.tables.end(*partition) + 1)

    def _check_lives(self) -> None:
        """What was written once is in one topic of a name; a late request may have met the next one."""
        table = self.tables.tables.get(FLEETING)
        owners: dict[bytes, set[str]] = {}
        for (topic_id, _, _), value in table.ever.items() if table is not None else ():
            owners.setdefault(value, set()).add(topic_id)
        twice = {value: ids for value, ids in owners.items() if len(ids) > 1}
        assert not twice, f"rows in several topics: {twice}"

    def _check_with_the_library(self) -> None:
        """`deltalake` reads the same, at every version that is kept."""
        for partition in self.partitions:
            uri = self._lake.uri(f"topics/{partition[0]}")
            newest = DeltaTable(uri).version()
            ours = self.tables.tables[partition[0]]
            assert newest == ours.version
            rows = _rows_of(DeltaTable(uri), partition[1])
            assert rows == self.tables.rows(*partition)
            for version in range(max(newest - 3, self._oldest(partition[0])), newest):
                earlier = _rows_of(DeltaTable(uri, version=version), partition[1])
                assert earlier == rows[: len(earlier)], f"{partition} at version {version}"
        for ghost in self.tables.ghosts:
            assert self._lake.size(ghost) is None, f"{ghost} was won long after it was cleaned up"

    def _oldest(self, topic: str) -> int:
        folder = Path(self._folder) / "topics" / topic / "_delta_log"
        return (
            min(int(each.name[:20]) for each in folder.glob("*.checkpoint.parquet"))
            if any(folder.glob("*.checkpoint.parquet"))
            else 0
        )

    def _check_events(self) -> None:
        """The finished segments of a partition do not overlap, and the table holds them."""
        events = RemoteLogEvents(self._lake)
        events.open()
        finished: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for each in events.follow():
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                place = finished.setdefault((each.topic, each.partition), set())
                span = (each.start_offset, each.end_offset)
                assert span not in place, f"{each.topic}-{each.partition}: {span} ended twice"
                place.add(span)
        for partition in self.partitions:
            following = 0
            for start, end in sorted(finished.get(partition, ())):
                assert start >= following, f"{partition}: {start} where {following} is next"
                following = end + 1
            assert following <= self.tables.end(*partition) + 1


class RecklessFaults(TierFaults):
    """Any number of machines may forget what was acknowledged."""

    def _may_go_down(self, host: Host, *, forgets: bool) -> bool:
        return True


class RecklessScenario(TierScenario):
    """Leaders are elected without regard: what is acknowledged may be lost, but nothing that is in a table.

    Who was a leader when it fell asleep must not bring anything more that its successor does not have.
    """

    FAULTS = RecklessFaults

    def _readers(self) -> list[asyncio.Task[None]]:
        # What they have read may not be there any more.
        return []

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await self._in_sync()
        for isolation in (0, READ_COMMITTED):
            self.watch = Watch(self.world)
            read = {p: await self._read_all(p, isolation) for p in self.partitions}
        await self._check_storage(read)


def _rows_of(table: DeltaTable, partition: int) -> list[tuple[int, bytes]]:
    found: pa.Table = table.to_pyarrow_table(
        columns=["offset", "value"], filters=[("partition", "=", partition)]
    )
    return sorted(zip(*(each.to_pylist() for each in found.columns), strict=True))
