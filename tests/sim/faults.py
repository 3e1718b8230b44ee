"""What goes wrong, drawn from the seed: one thing after the other, several at a time, all of it healed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.world import Host, World

RESTART_SECONDS_MAX = 15.0
PAUSE_SECONDS = (2.0, 20.0)
CUT_SECONDS_MAX = 15.0
CLOCK_JUMP_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which faults a run may have, and how often."""

    kinds: tuple[str, ...]
    every_seconds: float = 3.0


ALL = (
    "kill",
    "power",
    "stop",
    "pause",
    "cut",
    "cut_one_way",
    "isolate",
    "slow_way",
    "slow_disk",
    "lake_away",
    "lake_fails",
    "lake_loses_answers",
    "clock_jump",
    "disk_full",
)


class Faults:
    """Does harm to a world, and takes it back."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._random = world.random
        self._healing: list[Callable[[], Any]] = []
        # Hosts whose disk has forgotten something, and hosts that stopped uncleanly, until the cluster knows.
        self.forgetful: set[int] = set()
        self.crashed: set[int] = set()
        # Those that will end by themselves.
        self._doomed: set[int] = set()
        for host in world.hosts:
            host.on_halt = self._crashed
        self.truth = world.truth

    async def run(self, seconds: float) -> None:
        """Harm for so long."""
        deadline = self._world.loop.time() + seconds
        while self._world.loop.time() < deadline:
            await asyncio.sleep(self._random.random() * 2 * self._plan.every_seconds)
            self._remember()
            kind = self._random.choice(self._plan.kinds)
            host = self._random.choice(self._world.hosts)
            line = getattr(self, f"_{kind}")(host)
            if line:
                self._world.log(f"fault: {line}")

    async def heal(self) -> None:
        """Everything works again, and everybody is there."""
        for undo in self._healing:
            undo()
        self._healing.clear()
        self._world.fabric.heal()
        for host in self._world.hosts:
            if host.process is not None and host.process.is_paused:
                host.process.resume()
            if not host.is_up:
                host.start()
        self._world.log("healed")

    def _later(self, seconds: float, undo: Callable[[], Any]) -> None:
        """Undo a fault after a while, or at the end."""

        def once() -> None:
            if undo in self._healing:
                self._healing.remove(undo)
                undo()

        self._healing.append(undo)
        self._world.loop.call_later(seconds, once)

    def _restart_later(self, host: Host) -> None:
        def start() -> None:
            if not host.is_up:
                self._world.log(f"{host.name} starts")
                host.start()

        self._later(self._random.random() * RESTART_SECONDS_MAX, start)

    # -- processes and machines --------------------------------------------------------------------

    def _kill(self, host: Host) -> str | None:
        if not host.is_up or not self._may_go_down(host, forgets=False):
            return None
        host.kill()
        self._crashed(host)
        return f"kill -9 {host.name}"

    def _power(self, host: Host) -> str | None:
        if not host.is_up or not self._may_go_down(host, forgets=True):
            return None
        self.forgetful.add(host.node_id)
        host.lose_power()
        self._restart_later(host)
        return f"{host.name} loses power"

    # -- what the cluster must bear ----------------------------------------------------------------

    def _may_go_down(self, host: Host, *, forgets: bool) -> bool:
        """Whether all that was acknowledged survives if this host stops uncleanly now (promise 1).

        The cluster cannot tell a crash from a loss of power: who comes back from either is taken out of ISR and ELR. So
        crashes alone may be as many as they like, as everybody still has everything. Once somebody has forgotten
        something, and still counts, no partition may have more than min.insync.replicas - 1 members who will be
        taken out (KIP-966): then whoever leaves the ISR for a better reason leaves somebody there who has everything.
        """
        forgetful = self.forgetful | ({host.node_id} if forgets else set())
        unclean = self.forgetful | self.crashed | self._doomed | {host.node_id}
        for topic in self.truth.image().topics.values():
            least = int(topic.configs.get("min.insync.replicas", 1))
            for each in topic.partitions.values():
                counting = {*each.isr, *each.elr}
                if forgets and not counting - unclean:
                    return False
                going = counting & unclean
                if counting & forgetful and (
                    len(going) >= min(least, len(each.replicas)) or going == counting
                ):
                    return False
        return True

    def _remember(self) -> None:
        """Who is registered anew is out of every ISR and ELR, and comes back when it has everything."""
        brokers = self.truth.image().brokers
        for node_id in self.forgetful | self.crashed:
            host, registered = self._world.hosts[node_id - 1], brokers.get(node_id)
            if registered is not None and host.broker_epoch == registered.broker_epoch:
                self.forgetful.discard(node_id)
                self.crashed.discard(node_id)

    def _crashed(self, host: Host) -> None:
        self.crashed.add(host.node_id)
        self._restart_later(host)

    def _stop(self, host: Host) -> str | None:
        node = host.node
        if not host.is_up or node is None or host.process is None or host.process.is_paused:
            return None
        if not hasattr(node, "controller"):
            return None
        process = host.process

        async def stop() -> None:
            try:
                await asyncio.wait_for(host.stop(), 40)
            except Exception as error:
                self._world.log(f"{host.name} did not stop: {error!r}")
                while host.process is process and host.is_up:
                    if self._may_go_down(host, forgets=False):
                        host.kill()
                        self._crashed(host)
                    await asyncio.sleep(1)
            self._restart_later(host)

        self._world.loop.create_task(stop())
        return f"{host.name} is asked to stop"

    def _pause(self, host: Host) -> str | None:
        process = host.process
        if not host.is_up or process is None or process.is_paused:
            return None
        process.pause()
        seconds = self._random.uniform(*PAUSE_SECONDS)
        self._later(seconds, process.resume)
        return f"{host.name} is paused for {seconds:.1f} s"

    # -- ways --------------------------------------------------------------------------------------

    def _other(self, host: Host) -> Host | None:
        others = [each for each in self._world.hosts if each is not host]
        return self._random.choice(others) if others else None

    def _cut(self, host: Host) -> str | None:
        other = self._other(host)
        if other is None:
            return None
        self._world.fabric.cut(host.name, other.name)
        self._world.fabric.cut(other.name, host.name)
        self._later(self._random.random() * CUT_SECONDS_MAX, self._world.fabric.heal)
        return f"{host.name} and {other.name} are cut from one another"

    def _cut_one_way(self, host: Host) -> str | None:
        other = self._other(host)
        if other is None:
            return None
        self._world.fabric.cut(host.name, other.name)
        self._later(self._random.random() * CUT_SECONDS_MAX, self._world.fabric.heal)
        return f"{host.name} does not reach {other.name}"

    def _isolate(self, host: Host) -> str | None:
        for other in self._world.hosts:
            if other is not host:
                self._world.fabric.cut(host.name, other.name)
                self._world.fabric.cut(other.name, host.name)
        self._later(self._random.random() * CUT_SECONDS_MAX, self._world.fabric.heal)
        return f"{host.name} is cut from all brokers, not from clients and the lake"

    def _slow_way(self, host: Host) -> str | None:
        other = self._other(host)
        if other is None:
            return None
        self._world.fabric.slow_seconds[host.name, other.name] = self._random.random() * 2
        return f"the way from {host.name} to {other.name} is slow"

    # -- disks, clocks, the lake -------------------------------------------------------------------

    def _slow_disk(self, host: Host) -> str | None:
        process = host.process
        if process is None:
            return None
        process.slow_seconds = self._random.random() * 2

        def undo() -> None:
            process.slow_seconds = 0.0

        self._later(self._random.random() * 10, undo)
        return f"the disk of {host.name} is slow"

    def _disk_full(self, host: Host) -> str | None:
        if not self._may_go_down(host, forgets=False):
            return None  # It ends its process at the first write.
        self._doomed.add(host.node_id)
        host.disk.capacity_bytes = 0

        def undo() -> None:
            self._doomed.discard(host.node_id)
            host.disk.capacity_bytes = None

        self._later(self._random.random() * 10, undo)
        return f"the disk of {host.name} is full"

    def _clock_jump(self, host: Host) -> str | None:
        host.clock.jump_ms = self._random.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
        return f"the clock of {host.name} is off by {host.clock.jump_ms} ms"

    def _lake_away(self, host: Host) -> str | None:
        host.lake.is_away = True

        def undo() -> None:
            host.lake.is_away = False

        self._later(self._random.random() * 10, undo)
        return f"{host.name} does not reach the lake"

    def _lake_fails(self, host: Host) -> str | None:
        host.lake.failing = 0.3

        def undo() -> None:
            host.lake.failing = 0.0

        self._later(self._random.random() * 10, undo)
        return f"{host.name} gets errors from the lake"

    def _lake_loses_answers(self, host: Host) -> str | None:
        host.lake.losing = 0.3

        def undo() -> None:
            host.lake.losing = 0.0

        self._later(self._random.random() * 10, undo)
        return f"{host.name} loses answers of the lake"
