"""A run: a cluster, clients that work, things that go wrong, and what must be true at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import CreateTopicsRequest
from kafka_ds.wire.messages.topics import CreatableTopic, CreatableTopicConfig
from tests.sim.chance import drawn_from
from tests.sim.checkers import Watch, check_history, check_logs
from tests.sim.clients import (
    READ_COMMITTED,
    TROUBLE,
    Client,
    Consumer,
    History,
    Partition,
    Producer,
    TransactionalProducer,
)
from tests.sim.faults import Faults, Plan
from tests.sim.loop import Process
from tests.sim.network import SimNetwork
from tests.sim.world import World

TOPIC = "orders"
LOOK_SECONDS = 0.05
QUIET_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a run is made of."""

    brokers: int = 3
    partitions: int = 2
    replication_factor: int = 3
    min_insync_replicas: int = 2
    plain: int = 1
    idempotent: int = 2
    transactional: int = 2
    seconds: float = 60.0


class Scenario:
    """One seed's run."""

    def __init__(
        self, seed: int, shape: Shape, plan: Plan, settings: dict[str, str] | None = None
    ) -> None:
        self.shape = shape
        self.world = World(seed, shape.brokers, settings)
        self.history = History()
        self.watch = Watch(self.world)
        self.faults = Faults(self.world, plan)
        self.partitions: list[Partition] = [(TOPIC, i) for i in range(shape.partitions)]
        self._is_over = False
        self._clients = 0
        self._work: list[tuple[str, asyncio.Task[None]]] = []

    def run(self) -> None:
        """Raises AssertionError with everything that happened."""
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
            loop.dispose()

    def _situation(self) -> Iterator[str]:
        """Who is where, for whoever has to understand a failure."""
        for host in self.world.hosts:
            node = host.node
            if node is None or not hasattr(node, "metadata"):
                yield f"{host.name}: down" if not host.is_up else f"{host.name}: starting"
                continue
            image = node.metadata
            brokers = {b.broker_id: "fenced" if b.fenced else "up" for b in image.brokers.values()}
            yield (
                f"{host.name}: version {image.version}, controller {image.controller_id} "
                f"epoch {image.controller_epoch}, {brokers}"
            )
            for partition in self.partitions:
                log = node.log_manager.get(*partition) if hasattr(node, "log_manager") else None
                end = "no log" if log is None else f"log end {log.log_end_offset}"
                yield f"    {partition}: {image.partition(*partition)}, {end}"
        for name, task in self._work:
            if not task.done():
                yield f"{name} waits: {task.get_stack(limit=1)}"

    async def _run(self) -> None:
        world = self.world
        for host in world.hosts:
            host.start()
        await self._create_topic()
        loop = world.loop
        looking = loop.create_task(self._look())
        working = [*self._producers(), *self._readers()]
        faults = loop.create_task(self.faults.run(self.shape.seconds))
        while not faults.done():
            await asyncio.sleep(0.5)
            for task in (looking, *working):
                if task.done():
                    task.result()
        faults.result()
        await self.faults.heal()
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*working), QUIET_SECONDS_MAX)
        await self._check()
        looking.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None], process: Process) -> asyncio.Task[None]:
        task = self.world.loop.create_task(work, context=process.context())
        self._work.append((f"{process.name} {work.__name__}", task))
        return task

    def _client(self) -> tuple[Process, SimNetwork]:
        self._clients += 1
        return self.world.client_process(f"client-{self._clients}")

    async def _create_topic(self) -> None:
        shape = self.shape
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=shape.partitions,
            replication_factor=shape.replication_factor,
            assignments=[],
            configs=[
                CreatableTopicConfig(
                    name="min.insync.replicas", value=str(shape.min_insync_replicas)
                )
            ],
        )
        process, network = self._client()
        client = Client(network, self.world.bootstrap, self.world.random)

        async def create() -> None:
            while True:
                try:
                    answer = await client.ask_any(CreateTopicsRequest(topics=[topic]), 7)
                    code = ErrorCode(answer.topics[0].error_code)
                    if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                        return
                except TROUBLE:
                    pass
                await client.pause()

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
            await asyncio.sleep(producer.random.random() * 0.2)

    async def _transact(self, producer: TransactionalProducer) -> None:
        await producer.begin()
        while not self._is_over:
            count = producer.random.randint(1, len(self.partitions))
            chosen = producer.random.sample(self.partitions, count)
            await producer.run_transaction(chosen, commit=producer.random.random() < 0.7)
            await asyncio.sleep(producer.random.random() * 0.3)

    def _readers(self) -> list[asyncio.Task[None]]:
        tasks = []
        for partition in self.partitions:
            process, network = self._client()
            consumer = Consumer(
                network,
                self.world.bootstrap,
                self.world.random,
                partition=partition,
                isolation_level=0,
            )
            tasks.append(self._spawn(self._follow(consumer), process))
        return tasks

    async def _follow(self, consumer: Consumer) -> None:
        while not self._is_over:
            since = len(consumer.read)
            await consumer.poll()
            self.watch.read(consumer, since)
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.watch.look()

    # -- the end -----------------------------------------------------------------------------------

    async def _check(self) -> None:
        await self._in_sync()
        uncommitted = {p: await self._read_all(p, 0) for p in self.partitions}
        committed = {p: await self._read_all(p, READ_COMMITTED) for p in self.partitions}
        check_history(self.history, uncommitted, committed)
        check_logs(self.world, self.partitions)
        assert any(committed.values()), "nothing was written: the run shows nothing"

    async def _in_sync(self) -> None:
        """Every replica is in its ISR, with nothing left to fetch."""

        def is_in_sync() -> bool:
            nodes = [host.node for host in self.world.hosts]
            if any(node is None or not hasattr(node, "replica_manager") for node in nodes):
                return False
            images = [node.metadata for node in nodes if node is not None]
            if len({image.version for image in images}) > 1:
                return False
            found = [images[0].partition(*partition) for partition in self.partitions]
            if any(p is None or set(p.isr) != set(p.replicas) or p.leader < 0 for p in found):
                return False
            for partition in self.partitions:
                ends = {
                    log.log_end_offset
                    for node in nodes
                    if node is not None and (log := node.log_manager.get(*partition)) is not None
                }
                if len(ends) != 1:
                    return False
            return True

        await self.world.until(is_in_sync, "all replicas in sync", QUIET_SECONDS_MAX)

    async def _read_all(self, partition: Partition, isolation: int) -> list[tuple[int, bytes]]:
        process, network = self._client()
        consumer = Consumer(
            network,
            self.world.bootstrap,
            self.world.random,
            partition=partition,
            isolation_level=isolation,
        )

        async def read() -> None:
            # A transaction that its producer left open is aborted by its time-out, and holds readers until then.
            while True:
                end = await consumer.end_offset()
                whole = self.world.hosts[0].node
                log = whole.log_manager.get(*partition) if whole is not None else None
                if end is not None and (log is None or end >= log.log_end_offset):
                    break
                await asyncio.sleep(1)
            while consumer.position < end:
                since = len(consumer.read)
                await consumer.poll()
                self.watch.read(consumer, since)

        await asyncio.wait_for(self._spawn(read(), process), QUIET_SECONDS_MAX)
        return consumer.read
