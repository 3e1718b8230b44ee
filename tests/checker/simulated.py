"""Histories of simulated clusters under faults: the clients of `tests.sim`, each operation recorded.

A worker has a producer, a transactional producer and consumers, and does what Jepsen's clients do: it sends, polls,
mixes both in transactions, and reads on elsewhere at times. Sometimes it crashes, or its successor begins while it
still works; then the cluster must fence it. Others only read, with each isolation level, from leaders and from the
nearest replica.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.checker.analysis import judge
from tests.checker.history import Fate, Operation, write
from tests.checker.recorder import Entry, Recorder
from tests.sim.clients import History, Partition, Producer, Promise, TransactionalProducer
from tests.sim.faults import ALL, Plan
from tests.sim.loop import GC_THRESHOLDS, Process
from tests.sim.network import SimNetwork
from tests.sim.readers import READ_COMMITTED, Consumer
from tests.sim.scenario import QUIET_SECONDS_MAX, Scenario, Shape
from tests.sim.shapes import BRISK, BRISK_SCALE, MACHINES, REPLICATED

# What is printed of each history and in total, and how many lines about what is wrong.
TOTALS = ("seconds", "operations", "txn ok", "records certain", "records read")
SHOWN = 5
# A run in which clients seldom get anything done shows nothing.
CERTAIN_A_SECOND_MIN = 0.1
WORKERS = 3
# The longest rest of a worker between two operations, and that of a reader as a part of it.
REST_SECONDS = 8.0
READERS_REST = 1.5
# Of all operations, so many crash the worker, and so many leave it to a successor while it still works.
CRASHES = 0.02
SUCCESSORS = 0.02
CRASH_SECONDS_MAX = 0.1
ASSIGNMENTS = 0.05
# By how many offsets a worker goes back at most.
REREAD_MAX = 100
ABORTED = 0.2
# Timeouts between those of short simulated runs and Kafka's own. Fetches wait long: a quiet cluster costs little.
CALM = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1500",
    "controller.lease.interval.ms": "1500",
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.wait.max.ms": "2000",
    "request.timeout.ms": "10000",
}
AS_KAFKA = {"replica.fetch.wait.max.ms": "5000"}
KINDS = ("send", "poll", "poll", "txn", "txn")


class RecordedConsumer(Consumer):
    """A consumer that records what it reads, and goes to the log's start if its offset is out of range."""

    async def out_of_range(self) -> None:
        self.position = 0

    async def take(self) -> list[tuple[int, str]]:
        """Poll once."""
        await self.poll()
        found = [(offset, value.decode()) for offset, value in self.read]
        self.read.clear()
        return found


def key_of(partition: Partition) -> str:
    """The key that names a partition in a history."""
    return f"{partition[0]}-{partition[1]}"


class _Told(History):
    """Records what a worker's producers send, in the operation that it is at."""

    entry: Entry

    def sending(self, promise: Promise) -> None:
        super().sending(promise)
        self.entry.sending(key_of(promise.partition), [value.decode() for value in promise.values])


class SimulatedClient:
    """One process of a history; whoever has its name and transactional id next is its successor."""

    def __init__(self, scenario: RecordedScenario, name: str, life: int) -> None:
        process, network = scenario.client()
        world = scenario.world
        self.name = f"{name}.{life}"
        self.process: Process = process
        self.random: Random = world.random
        self._scenario, self._recorder = scenario, scenario.recorder
        self._client: tuple[SimNetwork, list[tuple[str, int]], Random]
        self._client = network, world.bootstrap, world.random
        self._told = _Told()
        self._plain = Producer(*self._client, name=f"{self.name}p", history=self._told)
        named = {"name": f"{self.name}t", "history": self._told}
        self._transactions = TransactionalProducer(*self._client, **named)
        self._transactions.transactional_id = f"tx-{name}"
        self._consumers: dict[Partition, RecordedConsumer] = {}
        self.is_alive = True
        # A worker with a successor ends as soon as it is refused.
        self.has_successor = False

    async def work(self) -> None:
        """Work until the run is over, or this worker crashes or is fenced."""
        await self._transactions.begin()
        await self._plain.become_idempotent()
        self._assign()
        while self.is_alive and not self._scenario.is_over:
            chance = self.random.random()
            if chance < CRASHES:
                # The crash happens at any moment of the next operation.
                asyncio.get_running_loop().call_later(
                    self.random.random() * CRASH_SECONDS_MAX, self._crash
                )
            elif chance < CRASHES + SUCCESSORS:
                self.has_successor = True
                self._scenario.succeed(self)
            elif chance < CRASHES + SUCCESSORS + ASSIGNMENTS:
                self._assign()
            await getattr(self, f"_{self.random.choice(KINDS)}")()
            await asyncio.sleep(self.random.random() * self._scenario.rest_seconds)

    def _crash(self) -> None:
        if self.is_alive and not self._scenario.is_over:
            self.is_alive = False
            self.process.kill()
            self._scenario.world.fabric.reset(self.process)
            if not self.has_successor:
                self._scenario.succeed(self)

    def _partitions(self) -> list[Partition]:
        partitions = self._scenario.partitions
        return self.random.sample(partitions, self.random.randint(1, len(partitions)))

    def _assign(self) -> None:
        """Read on in some partitions, each at an offset that this worker has reached before."""
        self._recorder.assign(self.name)
        reached = {partition: each.position for partition, each in self._consumers.items()}
        self._consumers = {}
        for partition in self._partitions():
            consumer = RecordedConsumer(
                *self._client, partition=partition, isolation_level=READ_COMMITTED
            )
            end = reached.get(partition, 0)
            consumer.position = self.random.choice(
                (end, self.random.randint(max(end - REREAD_MAX, 0), end))
            )
            self._consumers[partition] = consumer

    async def _take(self, entry: Entry) -> None:
        for partition, consumer in self._consumers.items():
            if self.random.random() < 0.5:
                entry.polled(key_of(partition), await consumer.take())

    async def _put(
        self,
        entry: Entry,
        producer: Producer,
        partition: Partition,
        transaction: tuple[str, int] | None = None,
    ) -> bool:
        """Send one batch, and record it as it is sent and as it is acknowledged."""
        self._told.entry = entry
        is_sent = await producer.send(partition, self.random.randint(1, 3), transaction=transaction)
        promise = self._told.promises.pop()
        for place, value in enumerate(promise.values if is_sent else ()):
            known = promise.offset is not None and promise.offset >= 0
            entry.acknowledged(value.decode(), (promise.offset or 0) + place if known else None)
        return is_sent

    async def _send(self) -> None:
        entry = self._recorder.begin(self.name, "send")
        are_sent = [
            await self._put(entry, self._plain, partition) for partition in self._partitions()
        ]
        entry.end(Fate.OK if all(are_sent) else Fate.UNKNOWN)
        if not all(are_sent):
            await self._plain.become_idempotent()

    async def _poll(self) -> None:
        entry = self._recorder.begin(self.name, "poll")
        await self._take(entry)
        entry.end(Fate.OK)

    async def _txn(self) -> None:
        entry = self._recorder.begin(self.name, "txn")
        # Nothing of it counts before the commit is asked for; whoever comes next aborts it.
        entry.outcome = Fate.FAILED
        entry.end(await self._transaction(entry))

    async def _transaction(self, entry: Entry) -> Fate:
        producer, partitions = self._transactions, self._partitions()
        is_refused = not await producer.take_part(partitions)
        for partition in partitions:
            place = (producer.transactional_id, 0)
            if not is_refused and self.random.random() < 0.4:
                await self._take(entry)
            is_refused = is_refused or not await self._put(entry, producer, partition, place)
        if is_refused:
            await self._again()
            return Fate.FAILED
        await self._take(entry)
        is_commit = self.random.random() >= ABORTED
        if is_commit:
            entry.deciding()
            entry.outcome = Fate.UNKNOWN
        if await producer.end(commit=is_commit):
            return Fate.OK if is_commit else Fate.FAILED
        await self._again()
        return Fate.UNKNOWN if is_commit else Fate.FAILED

    async def _again(self) -> None:
        """After a refusal: go on with a new epoch, or end if there is a successor."""
        if self.has_successor:
            self.is_alive = False
        else:
            await self._transactions.begin()


class RecordedScenario(Scenario):
    """A run whose clients' operations make a history; nothing else of it is checked."""

    def __init__(self, *args: Any, rest_seconds: float = REST_SECONDS) -> None:
        super().__init__(*args)
        self.rest_seconds = rest_seconds
        self.recorder = Recorder(self.world.loop.time)
        self._lives: dict[str, int] = {}
        self._workers: list[tuple[SimulatedClient, asyncio.Task[None]]] = []

    @property
    def is_over(self) -> bool:
        """Whether the faults are healed and clients should end."""
        return self._is_over

    def client(self) -> tuple[Process, SimNetwork]:
        """A process for a client, and its network."""
        return self._client()

    def succeed(self, worker: SimulatedClient) -> None:
        """Begin the next life of this worker's name."""
        self._begin(worker.name.partition(".")[0])

    def _begin(self, name: str) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1
        worker = SimulatedClient(self, name, self._lives[name])
        self._workers.append((worker, self._spawn(worker.work(), worker.process)))

    def _producers(self) -> list[asyncio.Task[None]]:
        """None whose end the run waits for: workers crash."""
        for number in range(WORKERS):
            self._begin(f"w{number}")
        return []

    def _consumer(self, *client: Any, **named: Any) -> RecordedConsumer:
        return RecordedConsumer(*client, **named)

    def _readers(self) -> list[asyncio.Task[None]]:
        tasks = []
        for partition in self.partitions:
            for number, (isolation, is_near) in enumerate(((0, False), (READ_COMMITTED, True))):
                reader, process = self._reader(partition, isolation=isolation, is_near=is_near)
                name = f"r{number}-{key_of(partition)}"
                tasks.append(self._spawn(self._record(reader, name), process))
        return tasks

    async def _record(self, reader: Any, name: str) -> None:
        while not self._is_over:
            await self._record_poll(reader, name)
            await asyncio.sleep(self.world.random.random() * READERS_REST * self.rest_seconds)

    async def _record_poll(self, reader: RecordedConsumer, name: str) -> None:
        is_committed = reader.isolation_level == READ_COMMITTED
        entry = self.recorder.begin(name, "poll", is_committed=is_committed)
        entry.polled(key_of(reader.partition), await reader.take())
        entry.end(Fate.OK)

    async def _look(self) -> None:
        """Look at nothing: clients alone say what happens."""
        await asyncio.Event().wait()

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        """Read everything with both isolation levels."""
        await self.world.until(self._have_ended, "workers have ended", QUIET_SECONDS_MAX)
        await self._in_sync()
        for partition in self.partitions:
            for isolation in (0, READ_COMMITTED):
                reader, process = self._reader(partition, isolation=isolation)
                name = f"last{isolation}-{key_of(partition)}"
                work = self._read_to_end(reader, name)
                await asyncio.wait_for(self._spawn(work, process), QUIET_SECONDS_MAX)

    def _have_ended(self) -> bool:
        for _, task in self._workers:
            if task.done():
                task.result()
        return all(task.done() or not worker.process.is_alive for worker, task in self._workers)

    async def _read_to_end(self, reader: Any, name: str) -> None:
        while True:
            end, has_all = await reader.end_offset(), self._log_end_of(reader.partition)
            if end is not None and has_all is not None and end >= has_all:
                break
            await asyncio.sleep(1)
        while reader.position < end:
            await self._record_poll(reader, name)

    def _log_end_of(self, partition: Partition) -> int | None:
        found = self.world.truth.image().partition(*partition)
        return (
            None if found is None or found.leader <= 0 else self._log_end(found.leader, partition)
        )


def scenario(seed: int, seconds: float) -> RecordedScenario:
    """The cluster, its faults and its clients, as the seed draws them."""
    chance = Random(f"history {seed}")
    kinds = tuple(kind for kind in ALL if chance.random() < 0.6) or ALL
    shape = Shape(
        partitions=chance.choice((2, 3)),
        seconds=seconds,
        log_dirs=chance.choice((1, 1, 2)),
    )
    every = chance.uniform(2.0, 10.0)
    plan = Plan(kinds=kinds, every_seconds=every, scale=chance.choice((0.35, 1.0)))
    settings = {**REPLICATED, **chance.choice((CALM, AS_KAFKA))}
    return RecordedScenario(seed, shape, plan, settings)


def busy(seed: int, seconds: float, kinds: tuple[str, ...] = MACHINES) -> RecordedScenario:
    """As `scenario`, with more work and more faults in less time."""
    plan = Plan(kinds=kinds, every_seconds=0.7, scale=BRISK_SCALE)
    settings = {**REPLICATED, **BRISK}
    return RecordedScenario(seed, Shape(seconds=seconds), plan, settings, rest_seconds=0.3)


def record(made: RecordedScenario) -> tuple[list[Operation], str]:
    """The history of a run, and why it ended early, if it did."""
    logging.disable(logging.CRITICAL)
    problem = ""
    try:
        made.run()
    except AssertionError as error:
        problem = str(error)
    finally:
        logging.disable(logging.NOTSET)
    return made.recorder.history(), problem


def main() -> int:
    """The exit status: whether no history has a finding, and no run has ended early or shows little."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker.simulated", description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=600.0, help="of cluster time, each")
    parser.add_argument(
        "--keep", type=Path, help="a folder for histories in which something is wrong"
    )
    given = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    # Killed processes leave coroutines that nothing awaits.
    warnings.simplefilter("ignore", RuntimeWarning)
    totals: Counter[str] = Counter()
    wrong = 0
    for seed in range(given.first, given.first + given.count):
        operations, problem = record(scenario(seed, given.seconds))
        judgement = judge(operations)
        figures = judgement.figures
        totals.update({name: int(figures.get(name, 0)) for name in TOTALS})
        said = [*map(str, judgement.findings[:SHOWN]), *problem.splitlines()[:SHOWN]]
        if not said and figures["records certain"] < given.seconds * CERTAIN_A_SECOND_MIN:
            said.append("it shows too little")
        told = ", ".join(f"{int(figures.get(name, 0))} {name}" for name in TOTALS)
        print(f"seed {seed}: {told}: {dict(judgement.kinds) or 'no finding'}", *said, sep="\n    ")
        sys.stdout.flush()
        wrong += bool(said)
        if said and given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            write(given.keep / f"{seed}.jsonl", operations)
    told = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{given.count} histories, {told}: {wrong} with something wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
