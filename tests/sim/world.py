"""A whole cluster in one thread on virtual time: disks that forget, a lake that fails, a network that is cut.

The brokers are real (`BrokerServer`); only the seams are replaced: clock, disk, network, threads, lake. A run is a
function of its seed.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

from broker.broker_server import BrokerServer
from broker.config.loader import from_given
from broker.kafka_broker import KafkaBroker
from broker.metadata.events import (
    BrokerUnregistered,
    ControllerChange,
    Event,
    FenceBroker,
    PartitionChanged,
    RegisterBroker,
    UnfenceBroker,
)
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog, replay_commit
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import NotWritten
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.frame import decode_request_header
from kafka_ds.protocol.messages import AlterPartitionRequest
from kafka_ds.protocol.types import message_info
from kafka_ds.topic.names import CLUSTER_METADATA
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.store import CALLS, MemoryStore
from tests.sim.clients import EPOCH_MS
from tests.sim.loop import Process, SimExecutor, SimLoop
from tests.sim.network import Fabric, SimNetwork
from tests.sim.wire import WireConnection


class Truth:
    """Reads the cluster's metadata out of the store, each commit once."""

    def __init__(self, store: Any, log: Callable[[str], None]) -> None:
        """`log` is called with every decision when it is first seen here."""
        self._tell = log
        self._log = MetadataLog(store, log=DeltaLog(store, CLUSTER_METADATA, clock=ManualClock()))
        self._image = MetadataImage()

    def image(self) -> MetadataImage:
        """The cluster's metadata at this moment."""
        for version, events in self._log.read_after(self._image.version):
            replay_commit(self._image, version, events)
            for line in _lines(events):
                self._tell(f"version {version}: {line}")
        return self._image


def _lines(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        match event:
            case PartitionChanged(registration=state):
                yield (
                    f"{event.topic}-{event.partition} led by {state.leader} in epoch "
                    f"{state.leader_epoch} (partition epoch {state.partition_epoch}), isr {state.isr}, "
                    f"elr {state.elr}, last known {state.last_known_elr}, "
                    f"recovering {state.leader_recovery_state}"
                )
            case RegisterBroker():
                yield f"registered {event.broker_id}, epoch before {event.previous_broker_epoch}"
            case FenceBroker() | UnfenceBroker() | BrokerUnregistered():
                yield f"{type(event).__name__} {event.broker_id}"
            case ControllerChange():
                yield f"controller {event.controller_id} epoch {event.controller_epoch}"
            case _:
                yield type(event).__name__


PORT = 9092
# The folder of write-ahead logs, and how late a put into one may be done whose broker has long given it up, or died.
WAL = "wal/"
LATE_SECONDS_MAX = 20.0
HOST = "host-"
# Fewer than Kafka's 50 partitions of each internal topic: 50 would cost most of a run's time and show nothing.
CHEAP = {
    "remote.log.storage.system.enable": "false",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}

_info = message_info(AlterPartitionRequest)
assert _info.key is not None
_ALTER_PARTITION = _info.key.to_bytes(2, "big")


def _isrs(frame: bytes) -> set[int]:
    """All members of the ISRs that an AlterPartition request proposes."""
    head, position = decode_request_header(memoryview(frame)[4:])
    request = decode(AlterPartitionRequest, memoryview(frame)[4:], head.api_version, position)
    return {
        member.broker_id
        for topic in request.topics
        for partition in topic.partitions
        for member in partition.new_isr_with_epochs
    }


class SimClock:
    """The clocks of one host: the time of day may jump, the monotonic clock never goes back."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.jump_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # As a Delta log's writer has them.
    wall_ms, boot_ms = now_ms, monotonic_ms

    def sleep(self, seconds: float) -> None:
        """Does not wait: there is no thread that could."""


class SimLake:
    """The shared store as one host reaches it: it may be away, fail, or lose the answer to a call that it did."""

    def __init__(self, store: Any, random: Random, loop: SimLoop) -> None:
        self._loop = loop
        self._store = store
        self._random = random
        self.is_away = False
        self.failing = 0.0  # the share of calls that fail before anything happens
        self.losing = 0.0  # the share of writes whose answer is lost
        # The share of puts into write-ahead logs that are given up, and done all the same later.
        self.late = 0.0
        self.losing_next = ""  # the answer to the next commit in a folder below this one is lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._called, name, found) if name in CALLS else found

    def _called(
        self, name: str, do: Callable[..., Any], path: str, *rest: Any, **named: Any
    ) -> Any:
        if name == "create":
            if self.is_away:
                raise NotWritten(errno.ETIMEDOUT, "the lake does not answer")
            return do(path)
        if self.is_away or self._random.random() < self.failing:
            raise TimeoutError(errno.ETIMEDOUT, "the lake does not answer")
        if name == "put_if_absent" and path.startswith(WAL) and self._random.random() < self.late:
            seconds = self._random.random() * LATE_SECONDS_MAX
            self._loop.call_later(seconds, do, path, *rest, context=Context())
            raise TimeoutError(errno.ETIMEDOUT, "the lake takes too long")
        answer = do(path, *rest, **named)
        if name in ("put_if_absent", "put_durable"):
            is_next = name == "put_if_absent" and answer and self.losing_next
            is_lost = is_next and path.startswith(self.losing_next)
            if is_lost:
                self.losing_next = ""
            if is_lost or self._random.random() < self.losing:
                raise TimeoutError(errno.ETIMEDOUT, "the lake's answer was lost")
        return answer

    def local_path(self, path: str) -> str | None:
        return None


class Host:
    """One machine with one broker on it."""

    def __init__(self, world: World, node_id: int) -> None:
        self.node_id = node_id
        self.name = f"{HOST}{node_id}"
        self.disk = MemoryDisk()
        self.clock = SimClock(world.loop)
        self.disk.clock = self.clock.now_ms
        self.lake = SimLake(world.store, world.random, world.loop)
        self.process: Process | None = None
        self._owner: BrokerServer | None = None
        self.log_dirs = [f"/data{number}" for number in range(1, world.log_dirs + 1)]
        # Called when the process halts itself.
        self.on_halt: Callable[[Host], None] = lambda _: None
        self.on_power_loss: list[Callable[[], None]] = []
        self._world = world
        self._starting: asyncio.Task[None] | None = None

    @property
    def has_started(self) -> bool:
        """Whether the process here has finished its start. It can be stopped before that, too."""
        return self._starting is not None and self._starting.done()

    @property
    def is_up(self) -> bool:
        """Whether a process runs here, paused or not."""
        return self.process is not None and self.process.is_alive

    @property
    def broker_epoch(self) -> int:
        """The epoch of the process's registration, as far as the process knows; -1 before."""
        return -1 if self.node is None else self.node.member.lifecycle.broker_epoch

    @property
    def node(self) -> KafkaBroker | None:
        """The broker here, once it has read its metadata and logs."""
        dispatcher = None if self._owner is None else self._owner.dispatcher
        return None if dispatcher is None else dispatcher.broker

    def start(self) -> None:
        """Begin to start a process; whether the start succeeds is seen later."""
        assert not self.is_up
        loop = self._world.loop
        self.process = Process(loop, self.name)
        self._owner = None
        self._starting = loop.create_task(self._run(), context=self.process.context())

    async def _run(self) -> None:
        loop = self._world.loop
        node = BrokerServer(
            from_given(self._settings()),
            self.clock,
            self.disk,
            SimNetwork(self._world.fabric, self.name),
            open_lake=lambda _: self.lake,
            lake_clock=self.clock,
            threads=lambda count, _: SimExecutor(loop, count),
            halt=self._halt,
        )
        self._owner = node
        try:
            await node.start()
        except Exception as error:
            # As `python -m broker` does: it says why and ends, and a supervisor starts it again.
            if not loop.is_closed():
                self._world.log(f"{self.name} cannot start: {error!r}")
                loop.call_soon(self._halt, context=Context())

    def _settings(self) -> dict[str, tuple[str, str]]:
        given = {
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "log.dirs": ",".join(self.log_dirs),
            "lake.uri": "/lake",
            "broker.rack": f"rack-{self.node_id % 2}",
            "log.cleaner.enable": "false",  # The cleaner is another process.
            "num.recovery.threads.per.data.dir": "1",  # No real threads: no seed decides their order.
            **self._world.settings,
        }
        return {name: (value, "sim") for name, value in given.items()}

    async def stop(self) -> None:
        """End the process as SIGTERM does."""
        node, process, starting = self._owner, self.process, self._starting
        assert node is not None and process is not None and starting is not None
        if starting.done():
            await self._world.loop.create_task(node.stop(), context=process.context())
        else:
            # As `python -m broker` does: an unfinished start is cancelled.
            starting.cancel()
            await asyncio.wait((starting,))
        self.kill()

    def kill(self) -> None:
        """SIGKILL: what the process wrote stays, synced or not."""
        if self.process is not None and self.process.is_alive:
            self.process.kill()
            self._world.fabric.reset(self.process)
        self.disk.kill()
        self._owner = None

    def _halt(self) -> None:
        if self.is_up:
            self._world.log(f"{self.name} ends itself")
            self.kill()
            self.on_halt(self)

    def lose_power(self) -> None:
        """Part of what was not synced is lost. No process of the machine lives to see it."""
        if self.process is not None and self.process.is_alive:
            self.process.kill()
            self._world.fabric.reset(self.process, silently=True)
        for action in self.on_power_loss:
            action()
        self.on_power_loss.clear()
        self.disk.lose_power(self._world.random)
        self._owner = None


class World:
    """The hosts, network, lake and clients of one seed."""

    def __init__(
        self,
        seed: int,
        brokers: int,
        settings: dict[str, str] | None = None,
        *,
        log_dirs: int = 1,
        store: Any = None,
    ) -> None:
        """`store` is the lake; without it one in memory."""
        self.seed = seed
        self.random = Random(seed)
        self.loop = SimLoop(Random(self.random.random()))
        self.fabric = Fabric(self.loop, Random(self.random.random()))
        self.store: Any = MemoryStore() if store is None else store
        self.settings = {**CHEAP, **(settings or {})}
        self.log_dirs = log_dirs
        self.hosts = [Host(self, node_id) for node_id in range(1, brokers + 1)]
        self.lines: list[str] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self.fabric.tap = self._packet
        # The AlterPartition requests that were sent, by sender.
        self._proposals: dict[str, list[bytes]] = {}
        self.truth = Truth(self.store, self.log)

    def log(self, line: str) -> None:
        """Note what happens, for the message of a failure."""
        self.lines.append(f"{self.loop.time():10.3f} {line}")

    def repeat_proposal(self, source: str, member: int) -> None:
        """Send this host's last request for an ISR with this member once more; the present controller takes it."""
        asked = reversed(self._proposals.get(source, []))
        frame = next((each for each in asked if member in _isrs(each)), None)
        if frame is None:
            return
        self.log(f"fault: a proposal of {source} arrives once more")
        # From a host of its own, so that no slow link delays it: the packet was on its way all the time.
        process, network = self.client_process("late")

        async def send() -> None:
            for host in tuple(self.up()):
                try:
                    connection = await WireConnection.connect(network, host.name, PORT)
                except OSError:
                    continue
                connection.send_again(frame)

        self.loop.create_task(send(), context=process.context())

    def _packet(self, source: str, target: str, data: bytes) -> None:
        if data[4:6] == _ALTER_PARTITION and target.startswith(HOST):
            # Requests between brokers are written whole; what follows in the packet is another request.
            size = 4 + int.from_bytes(data[:4], "big")
            self._proposals.setdefault(source, []).append(data[:size])
        self._digest.update(f"{self.loop.time():.9f} {source} {target} ".encode())
        self._digest.update(data)

    @property
    def digest(self) -> str:
        """A digest of every packet and its time: two runs with the same digest were the same run."""
        return self._digest.hexdigest()

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """The addresses that clients begin with."""
        return [(host.name, PORT) for host in self.hosts]

    def up(self) -> Iterator[Host]:
        """The hosts with a running process."""
        return (host for host in self.hosts if host.is_up)

    def client_process(self, name: str) -> tuple[Process, SimNetwork]:
        """A new process for a client, and its network."""
        return Process(self.loop, name), SimNetwork(self.fabric, name)

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
        """Wait in virtual time until the condition holds; AssertionError after `seconds`."""
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, f"seed {self.seed}: not within {seconds} s: {what}"
            await asyncio.sleep(0.05)
