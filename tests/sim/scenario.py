"""A run: a cluster, clients that work, faults, and what must be true at the end."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from tests.sim.checkers import (
    Watch,
    check_committed,
    check_history,
    check_homes,
    check_logs,
    homes,
)
from tests.sim.clients import History, Partition, Producer, TransactionalProducer
from tests.sim.faults import MIN_ISR, Plan
from tests.sim.ledger import Ledger, check_transformed
from tests.sim.loop import Process
from tests.sim.members import SimMember, Transformer, reader_of
from tests.sim.network import CLIENT, SimNetwork
from tests.sim.operator import Mover, Operator
from tests.sim.readers import READ_COMMITTED, Consumer
from tests.sim.sequences import Sequences
from tests.sim.world import World


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Inside this context, ids (`uuid`, `secrets`) and the functions of `random` follow from the seed."""
    source = random.Random(seed)
    modules: Any = random
    urandom, sources_urandom, state = os.urandom, modules._urandom, random.getstate()
    os.urandom = modules._urandom = source.randbytes
    random.seed(seed)
    try:
        yield
    finally:
        os.urandom, modules._urandom = urandom, sources_urandom
        random.setstate(state)


TOPIC = "orders"
RESULTS = "results"
# The ending of a replica's folder in another log directory while it is being moved there.
FUTURE = "-future/"
LOOK_SECONDS = 0.05
# The longest rest of a client between two pieces of work. A transaction costs ten times as many messages between
# brokers as a batch does, so fewer transactions leave time for more seeds.
PRODUCERS_REST_SECONDS = 0.2
TRANSACTIONS_REST_SECONDS = 1.2
READERS_REST_SECONDS = 0.05
QUIET_SECONDS_MAX = 300.0
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of a run."""

    brokers: int = 3
    partitions: int = 2
    replication_factor: int = 3
    min_insync_replicas: int = 2
    plain: int = 1
    idempotent: int = 2
    transactional: int = 2
    seconds: float = 60.0
    log_dirs: int = 1
    # An operator moves replicas between log directories.
    has_mover: bool = False
    # An operator creates and deletes topics and moves replicas.
    has_operator: bool = False
    # Additional readers that read from the nearest replica, with fetch sessions.
    near_readers: int = 0
    # Members of one group that reads, and of another that transforms each record that it reads once.
    members: int = 0
    transformers: int = 0


class Scenario:
    """The run of one seed."""

    # Of every topic that clients create.
    TOPIC_SETTINGS: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        seed: int,
        shape: Shape,
        plan: Plan,
        settings: dict[str, str] | None = None,
        *,
        store: Any = None,
    ) -> None:
        self.shape = shape
        given = {
            MIN_ISR: str(shape.min_insync_replicas),
            "replica.selector.class": RACK_AWARE,
            **(settings or {}),
        }
        self.world = World(seed, shape.brokers, given, log_dirs=shape.log_dirs, store=store)
        self.history = History()
        self.watch = Watch(self.world)
        self.faults = Sequences(self.world, plan)
        self.partitions: list[Partition] = [(TOPIC, i) for i in range(shape.partitions)]
        self._results: list[Partition] = []
        self._committed_readers: list[Consumer] = []
        self.ledger = Ledger()
        self._is_over = False
        # Members go on until they have read everything.
        self._have_members_ended = False
        self._clients = 0
        self._work: list[tuple[str, asyncio.Task[None]]] = []

    def run(self) -> None:
        """Run; an AssertionError has everything that happened."""
        loop = self.world.loop
        try:
            with drawn_from(self.world.seed):
                loop.run_until_complete(self._run())
        except BaseException as error:
            happened = "\n".join(self.world.lines[-60:])
            failures = "\n".join(repr(each) for each in loop.failures[-5:])
            situation = "\n".join(self._situation())
            raise AssertionError(
                f"seed {self.world.seed} at {loop.time():.3f} s: {error!r}\n"
                f"{happened}\n{failures}\n{situation}"
            ) from error
        finally:
            loop.end()

    def _situation(self) -> Iterator[str]:
        """The state of brokers and partitions, for the message of a failure."""
        for host in self.world.hosts:
            node = host.node
            if node is None:
                yield f"{host.name}: down" if not host.is_up else f"{host.name}: starting"
                continue
            image = node.metadata
            brokers = {b.broker_id: "fenced" if b.fenced else "up" for b in image.brokers.values()}
            yield (
                f"{host.name}: version {image.version}, controller {image.controller_id} "
                f"epoch {image.controller_epoch}, {brokers}"
            )
            for partition in self.partitions:
                log = node.log_manager.get(partition)
                end = "no log" if log is None else f"log end {log.log_end_offset}"
                yield f"    {partition}: {image.partition(*partition)}, {end}"
        for name, task in self._work:
            if not task.done():
                yield f"{name} waits: {task.get_stack(limit=1)}"

    async def _run(self) -> None:
        world = self.world
        for host in world.hosts:
            host.start()
        await self._create_topic(TOPIC)
        if self.shape.transformers:
            await self._create_topic(RESULTS)
            self._results = [(RESULTS, index) for _, index in self.partitions]
        loop = world.loop
        looking = loop.create_task(self._look())
        working = [*self._producers(), *self._readers()]
        if self.shape.has_operator:
            operator, process = self._operator()
            working.append(self._spawn(operator.work(lambda: self._is_over), process))
        if self.shape.has_mover:
            working.append(self._mover())
        members = self._members()
        faults = loop.create_task(self.faults.run(self.shape.seconds))
        while not faults.done():
            await asyncio.sleep(0.5)
            for task in (looking, *working, *members):
                if task.done():
                    task.result()
        faults.result()
        await self.faults.heal()
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*working), QUIET_SECONDS_MAX)
        await self._check(members)
        if looking.done():
            looking.result()
        looking.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None], process: Process) -> asyncio.Task[None]:
        task = self.world.loop.create_task(work, context=process.context())
        self._work.append((f"{process.name} {work.__name__}", task))
        return task

    def _client(self) -> tuple[Process, SimNetwork]:
        self._clients += 1
        return self.world.client_process(f"{CLIENT}{self._clients}")

    def _operator(self) -> tuple[Operator, Process]:
        shape = self.shape
        process, network = self._client()
        operator = Operator(
            network,
            self.world.bootstrap,
            self.world.random,
            partitions=self.partitions,
            brokers=[host.node_id for host in self.world.hosts],
            replication_factor=shape.replication_factor,
            min_insync_replicas=shape.min_insync_replicas,
            log=self.world.log,
            configs=self.TOPIC_SETTINGS,
        )
        return operator, process

    def _mover(self) -> asyncio.Task[None]:
        process, network = self._client()
        world = self.world
        mover = Mover(
            network,
            world.bootstrap,
            world.random,
            partitions=self.partitions,
            directories=world.hosts[0].log_dirs,
            log=world.log,
        )
        return self._spawn(mover.work(lambda: self._is_over), process)

    async def _create_topic(self, name: str) -> None:
        operator, process = self._operator()

        async def create() -> None:
            made = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            while await operator.create(name, self.shape.partitions) not in made:
                await operator.pause()

        await asyncio.wait_for(self._spawn(create(), process), 60)

    # -- who works ---------------------------------------------------------------------------------

    def _producers(self) -> list[asyncio.Task[None]]:
        world, shape, tasks = self.world, self.shape, []
        for number in range(shape.plain + shape.idempotent):
            process, network = self._client()
            producer = Producer(
                network, world.bootstrap, world.random, name=f"p{number}", history=self.history
            )
            tasks.append(self._spawn(self._produce(producer, number >= shape.plain), process))
        for number in range(shape.transactional):
            process, network = self._client()
            producer = TransactionalProducer(
                network, world.bootstrap, world.random, name=f"t{number}", history=self.history
            )
            tasks.append(self._spawn(self._transact(producer), process))
        return tasks

    async def _produce(self, producer: Producer, is_idempotent: bool) -> None:
        if is_idempotent:
            await producer.become_idempotent()
        while not self._is_over:
            partition = producer.random.choice(self.partitions)
            sent = await producer.send(partition, producer.random.randint(1, 8))
            if is_idempotent and not sent:
                await producer.become_idempotent()
            await asyncio.sleep(producer.random.random() * PRODUCERS_REST_SECONDS)

    async def _transact(self, producer: TransactionalProducer) -> None:
        await producer.begin()
        while not self._is_over:
            count = producer.random.randint(1, len(self.partitions))
            chosen = producer.random.sample(self.partitions, count)
            await producer.run_transaction(chosen, commit=producer.random.random() < 0.7)
            await asyncio.sleep(producer.random.random() * TRANSACTIONS_REST_SECONDS)

    def _members(self) -> list[asyncio.Task[None]]:
        shape, tasks = self.shape, []
        for number in range(shape.members + shape.transformers):
            process, network = self._client()
            client = (network, self.world.bootstrap, self.world.random)
            named: dict[str, Any] = {
                "topic": TOPIC,
                "partitions": shape.partitions,
                "ledger": self.ledger,
                "reader": reader_of(client),
            }
            if number < shape.members:
                member = SimMember(*client, group="readers", **named)
            else:
                producer = TransactionalProducer(*client, name=f"m{number}", history=self.history)
                member = Transformer(
                    *client, producer=producer, target=RESULTS, group="transformers", **named
                )
            tasks.append(self._spawn(member.work(lambda: self._have_members_ended), process))
        return tasks

    def _readers(self) -> list[asyncio.Task[None]]:
        tasks = []
        for partition in self.partitions:
            for number in range(1 + self.shape.near_readers):
                consumer, process = self._reader(partition, isolation=0, is_near=number > 0)
                tasks.append(self._spawn(self._follow(consumer), process))
            if self.shape.transactional:
                consumer, process = self._reader(partition, isolation=READ_COMMITTED)
                self._committed_readers.append(consumer)
                tasks.append(self._spawn(self._follow(consumer), process))
        return tasks

    def _reader(
        self, partition: Partition, *, isolation: int, is_near: bool = False
    ) -> tuple[Consumer, Process]:
        process, network = self._client()
        consumer = self._consumer(
            network,
            self.world.bootstrap,
            self.world.random,
            partition=partition,
            isolation_level=isolation,
            rack=f"rack-{self._clients % 2}" if is_near else "",
            has_sessions=is_near,
        )
        return consumer, process

    def _consumer(self, *client: Any, **named: Any) -> Consumer:
        return Consumer(*client, **named)

    async def _follow(self, consumer: Consumer) -> None:
        while not self._is_over:
            since = len(consumer.read)
            await consumer.poll()
            self.watch.read(consumer, since)
            await asyncio.sleep(READERS_REST_SECONDS)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.watch.look()

    # -- the end -----------------------------------------------------------------------------------

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await self._in_sync()
        uncommitted = {p: await self._read_all(p, 0) for p in self.partitions}
        committed = {p: await self._read_all(p, READ_COMMITTED) for p in self.partitions}
        check_history(self._kept_history(), uncommitted, committed)
        for consumer in self._committed_readers:
            check_committed(self.history, consumer.read)
        assert self.history.promises, "nothing was written: the run shows nothing"
        assert any(committed.values()) or self._may_be_empty(), "nothing is there"
        if members:
            await self._check_members(members, committed)
        if self.shape.has_mover:
            await self.world.until(self._have_moves_ended, "moves end", QUIET_SECONDS_MAX)
            check_homes(self.world, self.partitions)
        await self._check_storage(committed)

    def _kept_history(self) -> History:
        """The promises for records that were not deleted since."""
        return self.history

    def _may_be_empty(self) -> bool:
        return False

    async def _check_storage(self, committed: dict[Partition, list[tuple[int, bytes]]]) -> None:
        """Check what is on the disks after everything was read."""
        check_logs(self.world, [*self.partitions, *self._results])

    def _have_moves_ended(self) -> bool:
        # A moved replica's old folder stays until everything is durable in the new one.
        if any(len(homes(host, p)) > 1 for host in self.world.hosts for p in self.partitions):
            return False
        return not any(FUTURE in path for host in self.world.hosts for path in host.disk.paths())

    async def _check_members(
        self, members: list[asyncio.Task[None]], committed: dict[Partition, list[tuple[int, bytes]]]
    ) -> None:
        """All groups reach the end of their topics, and the transformed records are there."""
        ends = {index: read[-1][0] + 1 for (_, index), read in committed.items() if read}
        for group, count in (
            ("readers", self.shape.members),
            ("transformers", self.shape.transformers),
        ):
            if count:
                await self._until_read(group, ends, members)
        self._have_members_ended = True
        await asyncio.wait_for(asyncio.gather(*members), QUIET_SECONDS_MAX)
        if self._results:
            await self._in_sync()
            results = {
                index: await self._read_all((RESULTS, index), 1) for _, index in self._results
            }
            source = {index: read for (_, index), read in committed.items()}
            check_transformed(source, results)

    async def _until_read(
        self, group: str, ends: dict[int, int], members: list[asyncio.Task[None]]
    ) -> None:
        def has_read() -> bool:
            for task in members:
                if task.done():
                    task.result()
            return self.ledger.has_reached(group, ends)

        await self.world.until(has_read, f"{group} have read everything", QUIET_SECONDS_MAX)

    async def _in_sync(self) -> None:
        """Wait until every replica is in its ISR with nothing left to fetch, and no replica moves."""
        await self.world.until(self._is_in_sync, "all replicas in sync", QUIET_SECONDS_MAX)

    def _is_in_sync(self) -> bool:
        image = self.world.truth.image()
        for host in self.world.hosts:
            registered = image.brokers.get(host.node_id)
            if registered is None or registered.fenced or host.broker_epoch < 0:
                return False
            if host.node is None or host.node.metadata.version < image.version:
                return False
        for partition in (*self.partitions, *self._results):
            found = image.partition(*partition)
            if found is None or found.leader < 0 or set(found.isr) != set(found.replicas):
                return False
            if found.adding_replicas or found.removing_replicas:
                return False
            if len({self._log_end(replica, partition) for replica in found.replicas}) != 1:
                return False
        return True

    def _log_end(self, node_id: int, partition: Partition) -> int | None:
        node = self.world.hosts[node_id - 1].node
        assert node is not None
        log = node.log_manager.get(partition)
        return log.log_end_offset if log is not None else None

    async def _read_all(self, partition: Partition, isolation: int) -> list[tuple[int, bytes]]:
        consumer, process = self._reader(partition, isolation=isolation)

        async def read() -> None:
            # A transaction that its producer left open holds up readers until its timeout aborts it.
            while True:
                end = await consumer.end_offset()
                found = self.world.truth.image().partition(*partition)
                assert found is not None
                log_end = self._log_end(found.leader, partition) if found.leader > 0 else None
                if end is not None and log_end is not None and end >= log_end:
                    break
                await asyncio.sleep(1)
            while consumer.position < end:
                since = len(consumer.read)
                await consumer.poll()
                self.watch.read(consumer, since)

        await asyncio.wait_for(self._spawn(read(), process), QUIET_SECONDS_MAX)
        return consumer.read
