"""A machine with a read replica over a copy of the lake: the real one; clocks, threads, network and store are not."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from broker.config.loader import from_given
from broker.metadata.log import VersionsMissing
from broker.read_replica import follower
from broker.read_replica import server as read_server
from broker.read_replica.server import ReadReplica, ReadReplicaServer
from kafka_ds.delta import arrived_store
from kafka_ds.delta.store.read_only import ReadOnlyStore
from kafka_ds.process.settings import ConfigError
from tests.sim.clients import EPOCH_MS
from tests.sim.fibers import pause
from tests.sim.loop import SimExecutor, SimLoop
from tests.sim.network import SimNetwork
from tests.sim.world import Host, SimLake, World

FIRST_NODE_ID = 101
# How many times faster time passes for those who look for later checkpoints, which takes up to ten minutes.
HASTE = 20
OFFSETS_MS = 500
SETTINGS = {
    "lake.read.only": "true",
    "lake.read.only.replicated": "true",
    "lake.read.only.interval.ms": "200",
}


class ReplicaHost(Host):
    """A host that is none of the cluster's."""

    def __init__(self, world: World, node_id: int, copy: Any) -> None:
        super().__init__(world, node_id)
        self.name = f"replica-{node_id}"
        self.lake = SimLake(copy, world.random, world.loop)
        self.trouble: list[BaseException] = []
        """Why its broker ended, where it should not have."""
        self.replica: ReadReplica | None = None
        """The broker here, once it has started."""

    @property
    def node(self) -> None:
        """No member of the cluster."""

    async def _run(self) -> None:
        server = ReadReplicaServer(
            from_given(self._settings()),
            self.clock,
            self.disk,
            SimNetwork(self._world.fabric, self.name),
            open_store=lambda _: ReadOnlyStore(self.lake),
        )
        server.failed.add_done_callback(lambda failed: self._ends(failed.result()))
        try:
            self.replica = await server.start()
        except Exception as error:
            if not self._world.loop.is_closed():
                self._ends(error)

    def _ends(self, error: BaseException) -> None:
        """As the process does: it says why, and a supervisor starts it again."""
        self._world.log(f"{self.name} ends: {error!r}")
        if not isinstance(error, OSError | ConfigError | VersionsMissing):
            self.trouble.append(error)
        self._world.loop.call_soon(self._halt, context=Context())

    def _settings(self) -> dict[str, tuple[str, str]]:
        return super()._settings() | {name: (value, "sim") for name, value in SETTINGS.items()}

    def kill(self) -> None:
        super().kill()
        self.replica = None


class HastyClock:
    """The clock by which a replica loses its patience."""

    def __init__(self, now_seconds: Callable[[], float]) -> None:
        self._now_seconds = now_seconds

    def wall_ms(self) -> int:
        return EPOCH_MS + self.boot_ms()

    def boot_ms(self) -> int:
        return int(self._now_seconds() * 1_000 * HASTE)

    def sleep(self, seconds: float) -> None:
        pause(seconds)


def put_in_place(patch: pytest.MonkeyPatch, loop: SimLoop) -> None:
    """Patch what replicas use of the machine."""

    def threads(count: int, _: str) -> SimExecutor:
        return SimExecutor(loop, count)

    patch.setattr(read_server, "ThreadPoolExecutor", threads)
    patch.setattr(arrived_store, "SystemLogClock", lambda: HastyClock(loop.time))
    patch.setattr(follower, "OFFSETS_MS", OFFSETS_MS)
