"""A run with the tier: each committed record enters its table once, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from broker.log.log import Log
from broker.worker.delta import writer  # noqa: F401

# Imported here, because an import within a run (by workers) would draw from the run's random numbers.
from broker.worker.orphans import ORPHAN_AGE_MS
from kafka_ds.delta import maintenance  # noqa: F401
from kafka_ds.process.crash_points import (
    BROKER_POINTS,
    CHECK_POINTS,
    COPY_POINTS,
    EVENTS_POINTS,
    EXPIRY_POINTS,
    OPTIMIZE_POINTS,
    REPAIR_POINTS,
    SWEEP_POINTS,
    TOPIC_POINTS,
    UPKEEP_POINTS,
)
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteTopicsRequest
from kafka_ds.protocol.messages.topics import DeleteTopicState
from kafka_ds.protocol.types import NO_UUID, uuid_from_text, uuid_text
from kafka_ds.topic import event_files  # noqa: F401
from kafka_ds.topic.batches import convert  # noqa: F401
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.files import rewrite  # noqa: F401
from kafka_ds.topic.remote_log_segment import RemoteLogSegmentState
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.store import FolderStore
from tests.sim.checkers import Watch
from tests.sim.clients import TROUBLE, History, Partition, Producer
from tests.sim.keeping import NO_LIMIT, Bounds, Deleter, TierConsumer, alter_topic
from tests.sim.model import COLUMNS, HistoryModel, ModelRow, SentHistory, kept, rows_of, segments_of
from tests.sim.operator import Operator
from tests.sim.readers import READ_COMMITTED, Consumer
from tests.sim.scenario import QUIET_SECONDS_MAX, TOPIC, Scenario, Shape
from tests.sim.sequences import Sequences
from tests.sim.tier_lake import TOPICS, TableWatch
from tests.sim.tier_worker import SimTier
from tests.sim.world import Host

# A topic that is deleted and created again while it is being copied.
FLEETING = "fleeting"
LIFE_SECONDS_MAX = 3.0
REST_SECONDS = 0.15
SLEEP_SECONDS_MAX = 30.0
# How often all events are read, since this takes CPU time.
EVENTS_SECONDS = 10.0
OF_BROKERS = BROKER_POINTS + EXPIRY_POINTS + CHECK_POINTS
POINTS = (
    COPY_POINTS
    + UPKEEP_POINTS
    + OPTIMIZE_POINTS
    + REPAIR_POINTS
    + EVENTS_POINTS
    + SWEEP_POINTS
    + TOPIC_POINTS
    + OF_BROKERS
)
# The lake's folder is in memory if there is room for a run (containers usually have 64 MiB), because no test here asks
# what was synced.
SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 512 * 1024 * 1024
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
    # No threads besides the simulation's fibers.
    "lake.copy.threads": "1",
    "lake.maintenance.interval.ms": "1500",
    "lake.maintenance.min.files": "4",
    "lake.offsets.interval.ms": "-1",
}


class TierFaults(Sequences):
    """Faults of workers, in addition to those of brokers."""

    tier: SimTier

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
        """A worker sleeps, perhaps for longer than a table's history is kept."""
        worker = self.tier.living(host)
        if worker is None or worker.process.is_paused:
            return None
        worker.process.pause()
        self._later(self._random.random() * SLEEP_SECONDS_MAX, worker.process.resume)
        return f"the worker of {host.name} sleeps"

    def _crash_point(self, host: Host) -> str | None:
        """The worker, or its broker, dies when one of them next reaches this point."""
        point = self._random.choice(POINTS)
        takes_broker = point in OF_BROKERS or self._random.random() < 0.3

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

    def _commit_answer_lost(self, host: Host) -> str | None:
        """Of this host's next commit on a topic's table: it is there, and the worker has to find that out."""
        host.lake.losing_next = TOPICS
        return f"{host.name} is to lose the answer to a commit"

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

    def __init__(
        self, seed: int, shape: Shape, *args: Any, deletes_records: bool = False, **named: Any
    ) -> None:
        """`deletes_records`: an operator deletes the beginnings of partitions all along."""
        self._folder = f"{_folder_of_folders()}/kafka-ds-sim-{uuid.uuid4().hex}"
        self._lake = FolderStore(self._folder, ManualClock(0))
        super().__init__(seed, shape, *args, **named, store=self._lake)
        self._deletes_records = deletes_records
        self.tier = SimTier(self._lake)
        self.tier.begin(self.world)
        self.model = HistoryModel([TOPIC, FLEETING])
        self.history = self.model.history
        self.tables = TableWatch(self._lake, self.model)
        self.bounds = Bounds(self.world, self.tables, self.model)
        self.faults = faults = self.FAULTS(self.world, self.faults.plan)
        faults.tier = self.tier
        # What the run has read from the lake, for its report.
        self.local_starts: dict[Partition, int] = {}

    def run(self) -> None:
        Path(self._folder).mkdir()
        try:
            with pytest.MonkeyPatch.context() as patch:
                self.tier.put_in_place(patch)
                self._listen(patch)
                super().run()
        finally:
            shutil.rmtree(self._folder)

    def _listen(self, patch: pytest.MonkeyPatch) -> None:
        """Report to the model what logs append."""
        write, model = Log.write, self.model

        def written(log: Log, records: memoryview, headers: Any, now_ms: int) -> None:
            write(log, records, headers, now_ms)
            model.took(log, bytes(records), headers)

        patch.setattr(Log, "write", written)

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            self.tier.fibers.end()

    # -- who works -----------------------------------------------------------------------------------

    def _producers(self) -> list[asyncio.Task[None]]:
        operator, process = self._operator()
        tasks = [*super()._producers(), self._spawn(self._come_and_go(operator), process)]
        for partition in self.partitions if self._deletes_records else ():
            process, network = self._client()
            client = (network, self.world.bootstrap, self.world.random)
            deleter = Deleter(*client, bounds=self.bounds, log=self.world.log, partition=partition)
            tasks.append(self._spawn(deleter.work(lambda: self._is_over), process))
        return tasks

    def _consumer(self, *client: Any, **named: Any) -> Consumer:
        return TierConsumer(*client, bounds=self.bounds, model=self.model, **named)

    async def _come_and_go(self, operator: Operator) -> None:
        """Create a topic, write to it, delete it, again and again."""
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
                history=SentHistory(sent=self.model.history.sent),
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
        """No log has dropped records that the table does not hold, or begins above the announced log start."""
        for host in self.world.up():
            node = host.node
            for partition in self.partitions if node is not None else ():
                log = node.log_manager.get(partition)
                if log is None:
                    continue
                start, where = log.local_log_start_offset, f"{host.name}: {partition} begins at"
                end, declared = self.tables.end(*partition), self.bounds.declared(partition)
                assert start <= max(end + 1, declared), f"{where} {start}, lake {end}, {declared}"
                limit = self.bounds.limit(partition)
                assert log.log_start_offset <= limit, f"{where} {log.log_start_offset}, not {limit}"
                self.local_starts[partition] = max(self.local_starts.get(partition, 0), start)

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await self._keep_what_is_left()
        await super()._check(members)

    async def _keep_what_is_left(self) -> None:
        """Let retention finish, so that records that are read now are still there when the tables are checked."""
        operator, process = self._operator()

        async def alter() -> None:
            for_ever: dict[str, str | None] = {"retention.ms": "-1", "retention.bytes": "-1"}
            while await alter_topic(operator, TOPIC, for_ever) is not ErrorCode.NONE:
                await operator.pause()

        await asyncio.wait_for(self._spawn(alter(), process), QUIET_SECONDS_MAX)
        await self._in_sync()
        for partition in self.partitions:
            await self.world.until(
                lambda partition=partition: self._is_settled(partition),
                f"what {partition} gave up is gone",
                QUIET_SECONDS_MAX,
            )

    def _is_settled(self, partition: Partition) -> bool:
        """Retention has nothing left to do here."""
        log = self._leaders_log(partition)
        return (
            log is not None
            and log.config.retention_ms == log.config.retention_bytes == NO_LIMIT
            and log.log_start_offset == self.tables.start(*partition)
            and not self.tables.spent(*partition)
        )

    def _leaders_log(self, partition: Partition) -> Log | None:
        found = self.world.truth.image().partition(*partition)
        node = self.world.hosts[found.leader - 1].node if found and found.leader > 0 else None
        return node.log_manager.get(partition) if node is not None else None

    def _kept_history(self) -> History:
        starts = {each: self.tables.start(*each) for each in self.partitions}
        return kept(self.history, self.model, {TOPIC: self.bounds.topic_id(TOPIC)}, starts)

    def _may_be_empty(self) -> bool:
        return any(self.tables.start(*each) for each in self.partitions)

    async def _check_storage(self, committed: dict[Partition, list[tuple[int, bytes]]]) -> None:
        for partition in self.partitions:
            await self.world.until(
                lambda partition=partition: self._is_copied(partition),
                f"{partition} is copied",
                QUIET_SECONDS_MAX,
            )
            self._check_rows(partition, dict(committed[partition]))
            self._check_disks(partition)
        await self._check_lives()
        self._check_with_the_library()
        async with asyncio.timeout(QUIET_SECONDS_MAX):
            while half := self._half_deleted():
                self.world.log(f"deletion has begun, and not come to its end: {half}")
                await asyncio.sleep(EVENTS_SECONDS)
        self._check_events()

    def _check_rows(self, partition: Partition, read: dict[int, bytes]) -> None:
        """Rows are what readers got and logs had; only markers and records of transactions may be missing."""
        start, end = self.tables.start(*partition), self.tables.end(*partition)
        rows = dict(self.tables.rows(*partition))
        # What was read before retention took it is below the start by now.
        missing = [each for each in read if start <= each <= end and each not in rows][:5]
        assert not missing, f"{partition}: committed, and not in the table: {missing}"
        surplus = [
            offset
            for offset, row in rows.items()
            if offset >= start and read.get(offset) != row.content.value
        ][:5]
        assert not surplus, f"{partition}: in the table, and not committed: {surplus}"
        topic_id = self.bounds.topic_id(partition[0])
        for offset in range(start, end + 1):
            place = (topic_id, partition[1], offset)
            may_be_missing = self.model.may_be_missing(place) or self._may_be_gone(
                partition, offset
            )
            assert offset in rows or may_be_missing, f"{place} is in no table"
        epochs = [row.epoch for _, row in sorted(rows.items())]
        assert epochs == sorted(epochs), f"{partition}: leader epochs {epochs}"

    def _may_be_gone(self, partition: Partition, offset: int) -> bool:
        """Whether a record that the log start of the table does not exclude may have been deleted."""
        return False

    def _check_disks(self, partition: Partition) -> None:
        """Replicas have the batches that logs appended; where the table has them, too, the leader epoch is the same."""
        where = (self.bounds.topic_id(partition[0]), partition[1])
        found = self.world.truth.image().partition(*partition)
        assert found is not None
        rows = dict(self.tables.rows(*partition))
        for node_id in found.replicas:
            for segment in segments_of(self.world, node_id, partition):
                for first, last, epoch in self.model.check_log(where, segment):
                    others = {rows[each].epoch for each in range(first, last + 1) if each in rows}
                    assert others <= {epoch}, f"{partition} of {node_id} at {first}: {others}"

    def _is_copied(self, partition: Partition) -> bool:
        """All closed segments are in the lake."""
        log = self._leaders_log(partition)
        return log is not None and not log.rolled_segments(self.tables.end(*partition) + 1)

    async def _check_lives(self) -> None:
        """A record is in one topic of a name only; if its request was late this may be the next topic of that name."""
        table = self.tables.tables.get(FLEETING)
        if table is None:
            return
        owners: dict[bytes | None, set[str]] = {}
        for (topic_id, _, _), row in table.ever.items():
            owners.setdefault(row.content.value, set()).add(topic_id)
        twice = {value: ids for value, ids in owners.items() if len(ids) > 1}
        assert not twice, f"rows in several topics: {twice}"
        await self.world.until(
            lambda: not table.topic_id and not table.live,
            "deleted rows are gone",
            QUIET_SECONDS_MAX,
        )

    def _check_with_the_library(self) -> None:
        """`deltalake` reads the same rows, at every version that is kept."""
        for partition in self.partitions:
            uri = self._lake.uri(f"topics/{partition[0]}")
            if partition[0] not in self.tables.tables and not DeltaTable.is_deltatable(uri):
                continue  # Copying was disabled all the time.
            newest = DeltaTable(uri).version()
            assert newest == self.tables.tables[partition[0]].version
            rows = rows_in(DeltaTable(uri), partition[1])
            assert rows == self.tables.rows(*partition)
            oldest = max(newest - 3, self._oldest(partition[0]), self._whole(uri, newest))
            for version in range(oldest, newest):
                earlier = rows_in(DeltaTable(uri, version=version), partition[1])
                # Rows of then are unchanged now, except that rows below the log start may be gone.
                start, known = self.tables.start(*partition), dict(rows)
                lost = [(at, row) for at, row in earlier if at >= start and known.get(at) != row]
                assert not lost, f"{partition} at version {version}: {lost[:5]}"
        for ghost in self.tables.ghosts:
            assert self._lake.size(ghost) is None, f"{ghost} was won long after it was cleaned up"

    def _whole(self, uri: str, newest: int) -> int:
        """The first version of which no file may have been removed: the next one is younger than a week."""
        horizon_ms = self.tier.clock.wall_ms() - ORPHAN_AGE_MS
        young = [
            each["version"] - 1
            for each in DeltaTable(uri).history(4)
            if each["timestamp"] > horizon_ms
        ]
        return min(young, default=newest)

    def _oldest(self, topic: str) -> int:
        folder = Path(self._folder) / "topics" / topic / "_delta_log"
        return (
            min(int(each.name[:20]) for each in folder.glob("*.checkpoint.parquet"))
            if any(folder.glob("*.checkpoint.parquet"))
            else 0
        )

    def _half_deleted(self) -> list[str]:
        """The segments whose deletion was begun and not completed; it must be completed even if its broker is gone."""
        events = RemoteLogEvents(self._lake)
        events.open()
        latest: dict[bytes, Any] = {}
        for each in events.follow():
            # A slow writer may repeat an old event; a segment does not return to an earlier state.
            latest[each.segment_id] = max(latest.get(each.segment_id, each), each, key=_state)
        return [
            f"{each.topic}-{each.partition} {each.start_offset}-{each.end_offset} of {each.broker_id}"
            for each in latest.values()
            if each.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        ]

    def _check_events(self) -> None:
        """Finished segments do not overlap, the table holds them, and no committed attempt is marked as deleted."""
        events = RemoteLogEvents(self._lake)
        events.open()
        finished: dict[tuple[bytes, int], set[tuple[int, int]]] = {}
        there = {uuid_from_text(self.bounds.topic_id(topic)) for topic, _ in self.partitions}
        ended: dict[bytes, bool] = {}
        for each in events.follow():
            if each.topic_id in there and int(each.state) and each.segment_id not in ended:
                is_winner = each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                ended[each.segment_id] = is_winner
                name = uuid_text(each.segment_id)
                assert is_winner or name not in self.tables.won, f"{name} is given up"
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                spans = finished.setdefault((each.topic_id, each.partition), set())
                span = (each.start_offset, each.end_offset)
                assert span not in spans, f"{each.topic}-{each.partition}: {span} ended twice"
                spans.add(span)
        for partition in self.partitions:
            following = 0
            place = (uuid_from_text(self.bounds.topic_id(partition[0])), partition[1])
            for start, end in sorted(finished.get(place, ())):
                assert start >= following, f"{partition}: {start} where {following} is next"
                following = end + 1
            assert following <= self.tables.end(*partition) + 1


class RecklessFaults(TierFaults):
    """Any number of machines may lose acknowledged records."""

    def _may_go_down(self, host: Host, *, forgets: bool) -> bool:
        return True


class RecklessScenario(TierScenario):
    """Unclean elections: acknowledged records may be lost, but none that are in a table.

    A leader that was asleep during an election must not add records that its successor does not have.
    """

    FAULTS = RecklessFaults

    def _readers(self) -> list[asyncio.Task[None]]:
        # What readers got may be lost since.
        return []

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await self._keep_what_is_left()
        for isolation in (0, READ_COMMITTED):
            self.watch = Watch(self.world)
            read = {p: await self._read_all(p, isolation) for p in self.partitions}
        await self._check_storage(read)


def _folder_of_folders() -> str:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(SHARED_MEMORY).free >= ROOM_BYTES:
            return str(SHARED_MEMORY)
    return tempfile.gettempdir()


def _state(segment: Any) -> int:
    return int(segment.state)


def rows_in(table: DeltaTable, partition: int) -> list[tuple[int, ModelRow]]:
    """A partition's rows as `deltalake` reads them."""
    columns = ", ".join(f'"{each}"' for each in COLUMNS)
    query = f'SELECT {columns} FROM topic WHERE "partition" = {partition}'
    found = pa.table(QueryBuilder().register("topic", table).execute(query))
    return rows_of(found.to_pylist())
