"""The tier's worker processes in a simulated cluster: the real service, whose threads wait in virtual time.

A worker dies at any moment, sleeps, or gets a request twice. The worker of a killed broker lives on for a moment. These
are simulated: the store (`tier_lake.py`), the segments' files (the simulated disk), the clocks, and locks
(`fibers.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from broker.remote import remote_log_manager as manager
from broker.worker import copier, orphans, segment_source, service, sweeper
from broker.worker.delta import optimizer
from broker.worker.delta import reader as delta_reader
from broker.worker.delta import residue as delta_residue
from broker.worker.delta import storage as delta_storage
from broker.worker.delta import tables as delta_tables
from broker.worker.main import KINDS, Worker
from broker.worker.metadata import materialise
from broker.worker.metadata import remote_log as delta_metadata
from broker.worker.rpc import TierSettings
from kafka_ds.delta import arrived_store
from kafka_ds.delta import log as lake_log
from kafka_ds.delta.store.read_only import ReadOnlyStore
from kafka_ds.ipc.channel import split
from kafka_ds.ipc.child import WorkerDied, WorkerFailed, WorkerLost
from kafka_ds.ipc.codec import decode, encode
from kafka_ds.ipc.request import ErrorAnswer
from kafka_ds.ipc.worker import INTERNAL, Operations
from kafka_ds.process.crash_points import WORKER_POINTS, CrashPoints
from kafka_ds.topic.files import parquet
from tests.fakes.store import FolderStore
from tests.sim.clients import EPOCH_MS
from tests.sim.fibers import Event, Fibers, Lock, pause
from tests.sim.loop import PROCESS, Process
from tests.sim.tier_lake import WorkerStore
from tests.sim.world import Host, World

# A table's history is kept for a week, which is some seconds of a run. Nothing else in the lake takes that long.
LAKE_MS_A_SECOND = 12 * 3_600_000
# The cluster's own table ages this many times more slowly: no run takes a quarter of a week then, so none of its
# history is cleaned up.
YOUNGER = 20
START_SECONDS = 0.2
AGAIN_MS = 200
ORPHAN_SECONDS_MAX = 0.3
ANSWER_SECONDS = 0.002
TWICE = 0.05
READERS = 2


class LakeClock:
    """The clock by which tables grow old."""

    def __init__(self, now_seconds: Callable[[], float]) -> None:
        self._now_seconds = now_seconds

    def wall_ms(self) -> int:
        return EPOCH_MS + self.boot_ms()

    def boot_ms(self) -> int:
        return int(self._now_seconds() * LAKE_MS_A_SECOND)

    def sleep(self, seconds: float) -> None:
        pause(seconds)


class Points(CrashPoints):
    """The crash points of one process; at an armed one `victim` is called to kill a worker or a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: dict[str, Callable[[], bool]] = {}

    def at(self, point: str) -> None:
        pause(0.0)
        victim = self.armed.pop(point, None)
        if victim is not None:
            _kill(victim)
            pause(0.0)


def _kill(victim: Callable[[], bool]) -> bool:
    """Whether a process died. It runs outside of that process, so that the rest of the kill is carried out."""
    return Context().run(victim)


class BrokerEnds(BaseException):
    """Raised in a broker's own task at a crash point."""


class BrokerPoints(Points):
    """The crash points of a broker itself: it has no threads to stop, so its task ends there."""

    def at(self, point: str) -> None:
        victim = self.armed.pop(point, None)
        if victim is not None and _kill(victim):
            raise BrokerEnds


class Lane:
    """One thread of a worker, which does its work in order."""

    def __init__(self, fibers: Fibers, process: Process) -> None:
        self._fibers = fibers
        self._process = process
        self._queue: deque[Callable[[], None]] = deque()
        self.is_busy = False

    def put(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self.is_busy:
            self.is_busy = True
            self._fibers.begin(self._process, self._run)

    def _run(self) -> None:
        while self._queue:
            self._queue.popleft()()
        self.is_busy = False


class WorkerProcess:
    """One life of a worker."""

    def __init__(self, tier: SimTier, host: Host, arguments: Sequence[str]) -> None:
        self._tier = tier
        self._host = host
        fibers = tier.fibers
        self.process = Process(fibers.loop, f"worker of {host.name}")
        self.points = Points()
        tier.opening = WorkerStore(tier.world, host.lake)
        self._service = service.Service(
            TierSettings.from_worker_argument(arguments[0]), self.points
        )
        self._operations = (
            self._service.writing(),
            self._service.maintaining(),
            self._service.reading(),
            self._service.publishing(),
        )
        self._worker = Worker(
            self,  # type: ignore[arg-type]
            Operations(
                writing=(self._operations[0], self._operations[3]),
                maintaining=self._operations[1],
                reading=self._operations[2],
                afterwards=self._service.afterwards,
                kinds=KINDS,
            ),
            reader_threads=READERS,
        )
        self._writes, self._publishing, self._maintenance = (
            Lane(fibers, self.process) for _ in range(3)
        )
        self._reads = [Lane(fibers, self.process) for _ in range(READERS)]
        self._waiting: dict[int, tuple[asyncio.Future[Any], Context]] = {}
        self._last_id = 0

    def ask(self, request: object, context: Context) -> asyncio.Future[Any]:
        """Take a request; returns a future of the asking process."""
        self._last_id += 1
        future = self._tier.fibers.loop.create_future()
        self._waiting[self._last_id] = (future, context)
        body, _ = encode(request)
        writing, maintaining, _, publishing = self._operations
        times = 1
        if type(request) in writing:
            lane = self._writes
            times += self._tier.world.random.random() < TWICE
        elif type(request) in maintaining:
            lane = self._maintenance
        elif type(request) in publishing:
            lane = self._publishing
        else:
            lane = self._reads[self._last_id % READERS]
        for _ in range(times):
            lane.put(partial(self._serve, lane, self._last_id, body))
        return future

    def _serve(self, lane: Lane, number: int, body: bytes) -> None:
        self._worker.answer(number, decode(body))
        if lane in (self._writes, self._publishing) and not self._maintenance.is_busy:
            self._maintenance.put(self._worker.look_after)

    def send(self, head: tuple[int, bytes, list[int], None], payload: Sequence[Any] = ()) -> None:
        """Send an answer, as the real worker does over its channel."""
        number, body, sizes, _ = head
        answer = decode(body, split(memoryview(b"".join(map(bytes, payload))), sizes))
        if isinstance(answer, ErrorAnswer) and answer.kind == INTERNAL:
            self._tier.trouble.append(answer.message)
        found = self._waiting.pop(number, None)
        if found is not None:
            future, context = found
            self._tier.fibers.loop.call_later(
                ANSWER_SECONDS, _answer, future, answer, context=context
            )

    def die(self) -> None:
        """SIGKILL."""
        self.process.kill()
        for future, context in self._waiting.values():
            self._tier.fibers.loop.call_soon(_fail, future, context=context)
        self._waiting.clear()


def _answer(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(WorkerDied("the worker died", AGAIN_MS))


class SimWorker:
    """A worker as its broker sees it; replaces `kafka_ds.ipc.child.Worker`."""

    def __init__(self, tier: SimTier, arguments: Sequence[str]) -> None:
        self._tier = tier
        self._arguments = arguments
        self._host = tier.host()
        self._body: WorkerProcess | None = None
        self._is_stopped = False
        self._starting = asyncio.Lock()
        self.starts = 0
        process = self._host.process
        assert process is not None
        process.on_kill.append(self._broker_killed)
        self._host.on_power_loss.append(self._machine_off)

    @property
    def pid(self) -> int | None:
        return 1 if self._body is not None and self._body.process.is_alive else None

    async def send(self, request: object) -> Any:
        """As the real one's."""
        self._tier.on_request(request)
        body = await self._living()
        process = self._host.process
        assert process is not None
        answer = await body.ask(request, process.context())
        if isinstance(answer, ErrorAnswer):
            raise WorkerFailed(answer.kind, answer.message)
        return answer

    async def stop(self) -> None:
        self._is_stopped = True
        if self._body is not None:
            self._body.die()

    async def _living(self) -> WorkerProcess:
        async with self._starting:
            if self._body is None or not self._body.process.is_alive:
                if self._is_stopped:
                    raise WorkerLost("the worker is stopped")
                await asyncio.sleep(self._tier.world.random.random() * START_SECONDS)
                if self._is_stopped:
                    raise WorkerLost("the worker is stopped")
                self._body = WorkerProcess(self._tier, self._host, self._arguments)
                self._tier.workers[self._host.node_id] = self._body
                self.starts += 1
            return self._body

    def _broker_killed(self) -> None:
        """A worker notices the death when it next looks at its channel, which may take a while during a write."""
        if self._body is not None:
            seconds = self._tier.world.random.random() * ORPHAN_SECONDS_MAX
            self._tier.fibers.loop.call_later(seconds, self._body.die, context=Context())

    def _machine_off(self) -> None:
        if self._body is not None:
            Context().run(self._body.die)


class SimTier:
    """The workers of a run, and the simulated parts around them."""

    def __init__(self, store: FolderStore) -> None:
        self.workers: dict[int, WorkerProcess] = {}
        self.broker_points: dict[int, BrokerPoints] = {}
        self.trouble: list[str] = []
        """Answers of workers that are our own mistakes."""
        self.opening: Any = None
        self.others: list[Host] = []
        """Hosts whose brokers are no members of the cluster."""
        self.on_request: Callable[[object], None] = lambda _: None
        """Called with what brokers ask of their workers."""
        self._store = store

    def begin(self, world: World) -> None:
        self.world = world
        self.fibers = Fibers(world.loop)
        self.clock = LakeClock(world.loop.time)
        self._store.clock = self.clock

    def host(self) -> Host:
        """The host whose process is running now."""
        process = PROCESS.get()
        hosts = (*self.world.hosts, *self.others)
        (found,) = [each for each in hosts if each.process is process]
        return found

    def _open_lake(self, uri: str, *, is_there: bool, is_read_only: bool) -> Any:
        return ReadOnlyStore(self.opening) if is_read_only else self.opening

    def _points_of_broker(self, _: Sequence[str]) -> BrokerPoints:
        points = self.broker_points[self.host().node_id] = BrokerPoints()
        return points

    def put_in_place(self, patch: pytest.MonkeyPatch) -> None:
        """Patch the product so that it uses this simulation in place of the machine."""
        patch.setattr(
            manager, "new_worker", lambda arguments, clock, **_: SimWorker(self, arguments)
        )
        patch.setattr(manager, "armed_from_environment", self._points_of_broker)
        patch.setattr(service, "open_lake", self._open_lake)
        patch.setattr(service, "STORE_THREADS", 1)
        patch.setattr(service, "probe", lambda store: None)
        patch.setattr(service, "open_cache", lambda settings: None)
        for module in (service, delta_storage, delta_metadata, lake_log):
            patch.setattr(module, "SystemLogClock", lambda: self.clock)
        # The history of the cluster's own table is not cleaned up; its files are merged from time to time.
        young = SimpleNamespace(
            wall_ms=lambda: EPOCH_MS,
            boot_ms=lambda: self.clock.boot_ms() // YOUNGER,
            sleep=self.clock.sleep,
        )
        patch.setattr(materialise, "SystemLogClock", lambda: young)
        threads = SimpleNamespace(Lock=Lock, RLock=Lock, Event=Event, Thread=None)
        for module in (
            arrived_store,
            delta_tables,
            delta_residue,
            orphans,
            delta_reader,
            delta_metadata,
            parquet,
        ):
            patch.setattr(module, "threading", threads)
        times = SimpleNamespace(monotonic=self.world.loop.time, time_ns=lambda: 0)
        for module in (delta_tables, optimizer, copier, sweeper, materialise):
            patch.setattr(module, "time", times)
        patch.setattr(segment_source, "os", _Files(self))
        patch.setattr(delta_reader, "PREFETCHERS", 0)

    # -- faults --------------------------------------------------------------------------------------

    def living(self, host: Host) -> WorkerProcess | None:
        """The running worker of a host, if it has one."""
        found = self.workers.get(host.node_id)
        return found if found is not None and found.process.is_alive and host.is_up else None

    def disarm(self) -> None:
        """Disarm all crash points."""
        for points in (*self.broker_points.values(), *(w.points for w in self.workers.values())):
            points.armed.clear()

    def arm(self, host: Host, point: str, victim: Callable[[], bool]) -> bool:
        """Call `victim` when this host's broker or worker reaches the crash point."""
        worker = self.living(host)
        points: Points | None = worker.points if worker is not None else None
        if point not in WORKER_POINTS:
            points = self.broker_points.get(host.node_id) if host.is_up else None
        if points is not None:
            points.armed[point] = victim
        return points is not None


class _Files:
    """The segments' files on the host whose worker reads; replaces the module `os`."""

    O_RDONLY = O_CLOEXEC = 0
    path = os.path

    def __init__(self, tier: SimTier) -> None:
        self._tier = tier
        self._open: dict[int, bytes] = {}
        self._last = 0

    def open(self, path: str, flags: int) -> int:
        process = PROCESS.get()
        (host,) = [
            self._tier.world.hosts[node_id - 1]
            for node_id, each in self._tier.workers.items()
            if each.process is process
        ]
        if path not in host.disk.paths():
            raise FileNotFoundError(path)
        self._last += 1
        self._open[self._last] = bytes(host.disk.contents(path))
        return self._last

    def fstat(self, descriptor: int) -> os.stat_result:
        return os.stat_result((0, 0, 0, 0, 0, 0, len(self._open[descriptor]), 0, 0, 0))

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        return self._open[descriptor][position : position + size]

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]
