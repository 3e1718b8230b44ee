"""What goes wrong, drawn from the seed: faults begin one after the other and overlap; all are healed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from broker.controller.metadata_driver import MetadataDriver
from broker.metadata.events import Event, PartitionRegistration
from tests.sim.world import Host, World

# How long after there is room again a directory may go offline, because its broker had reported that it is full.
REPORTED_SECONDS = 10
# How often another disk is full at the same time.
SEVERAL_FULL = 0.3
RESTART_SECONDS_MAX = 15.0
PAUSE_SECONDS = (2.0, 20.0)
CUT_SECONDS_MAX = 15.0
CLOCK_JUMP_MS_MAX = 3_600_000
# How long a broker hears nothing of the metadata, how often it asks meanwhile, and how long it then rests after each
# commit of those that it has missed; 0: all come at once.
LATE_SECONDS = (0.5, 12.0)
LATE_POLL_SECONDS = 0.1
LATE_REST_SECONDS = (0.0, 0.0, 0.1, 0.4)
MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which faults a run may have, and how often."""

    kinds: tuple[str, ...]
    every_seconds: float = 3.0
    # How long faults last, as a part of what they may.
    scale: float = 1.0


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
    "crash_and_back",
    "blackout",
    "slow_for_clients",
    "log_dir_fails",
    "late_metadata",
)
# After a blackout, until all its hosts are registered again, only these faults happen.
HARMLESS = ("lake_away", "lake_fails", "lake_loses_answers", "clock_jump", "slow_for_clients")


class Faults:
    """Makes faults in a world, and heals them."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self.plan = plan
        self._random = world.random
        self._healing: list[Callable[[], Any]] = []
        self._stops: set[asyncio.Task[None]] = set()
        # Hosts whose disk has lost something, and hosts that stopped uncleanly, until the cluster knows.
        self.forgetful: set[int] = set()
        self.crashed: set[int] = set()
        # Hosts whose process will end by itself.
        self._doomed: set[int] = set()
        self._is_dark = False
        # Hosts whose disk has lost something that they have not fetched again yet.
        self._incomplete: set[int] = set()
        for host in world.hosts:
            host.on_halt = self._crashed
        self.truth = world.truth

    async def run(self, seconds: float) -> None:
        """Make faults for this long."""
        deadline = self._world.loop.time() + seconds
        while self._world.loop.time() < deadline:
            await asyncio.sleep(self._random.random() * 2 * self.plan.every_seconds)
            self._remember()
            kind = self._random.choice(self.plan.kinds)
            if self._is_dark and kind not in HARMLESS:
                continue
            host = self._random.choice(self._world.hosts)
            line = getattr(self, f"_{kind}")(host)
            if line:
                self._world.log(f"fault: {line}")

    async def heal(self) -> None:
        """Heal everything, and start every broker that is down."""
        for undo in self._healing:
            undo()
        self._healing.clear()
        self._world.fabric.heal()
        for host in self._world.hosts:
            if host.process is not None and host.process.is_paused:
                host.process.resume()
        # Whoever is asked to stop goes down first: later it would be missed.
        if self._stops:
            await asyncio.wait(self._stops, timeout=60)
        for host in self._world.hosts:
            if not host.is_up:
                host.start()
        if {"disk_full", "outage"} & set(self.plan.kinds):
            await asyncio.sleep(REPORTED_SECONDS)
        for host in self._world.hosts:
            await self._renew(host)
        self._world.log("healed")

    async def _renew(self, host: Host) -> None:
        """Restart a broker with a failed log directory: it looks at such a directory only at its start."""
        if not _has_failed_log_dirs(host):
            return
        node = host.node
        while host.node is node:
            self._remember()
            if (line := self._stop(host)) is not None:
                self._world.log(line)
                return
            await asyncio.sleep(1)

    def _later(self, seconds: float, undo: Callable[[], Any]) -> None:
        """Undo a fault after a while, or at the end."""

        def once() -> None:
            if undo in self._healing:
                self._healing.remove(undo)
                undo()

        self._healing.append(undo)
        # A process that ends itself calls this, too; a timer of its own would end with it.
        self._world.loop.call_later(seconds * self.plan.scale, once, context=Context())

    def _restart_later(self, host: Host) -> None:
        def start() -> None:
            if not host.is_up:
                self._world.log(f"{host.name} starts")
                host.start()

        self._later(self._random.random() * RESTART_SECONDS_MAX, start)

    def _start_at_once(self, host: Host) -> None:
        self._later(0.0, lambda: None if host.is_up else host.start())

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
        self._forgets(host)
        return f"{host.name} loses power"

    # -- what the cluster must bear ----------------------------------------------------------------

    def _may_go_down(self, host: Host, *, forgets: bool) -> bool:
        """Whether every acknowledged record survives if this host stops uncleanly now (promise 1).

        The cluster cannot tell a crash from a loss of power: a broker that comes back from either is taken out of ISR
        and ELR. While no disk has lost anything, any number of brokers may crash, because every replica is complete.
        Once a member of a partition's ISR or ELR has lost something, at most min.insync.replicas - 1 members of that
        partition may be about to be taken out (KIP-966). Then a complete replica remains even if others leave the ISR
        for other reasons.
        """
        forgetful = self.forgetful | ({host.node_id} if forgets else set())
        unclean = self.forgetful | self.crashed | self._doomed | {host.node_id}
        for topic in self.truth.image().topics.values():
            least = int(topic.configs.get(MIN_ISR, self._world.settings.get(MIN_ISR, "1")))
            for each in topic.partitions.values():
                if each.is_diskless:
                    continue  # Its records are in the lake.
                counting = {*each.isr, *each.elr}
                # The last leader would lead again, whatever it has (KIP-966), so it must be complete. Who is alone in
                # sync is: nobody else can lead until it is back.
                is_last_leader = counting == {host.node_id} - self._incomplete and not forgets
                is_last_leader &= not self._incomplete.intersection(each.last_known_elr)
                if not (counting - unclean or is_last_leader) and (forgets or self._incomplete):
                    return False
                going = counting & unclean
                if counting & forgetful and (
                    len(going) >= min(least, len(each.replicas)) or going == counting
                ):
                    return False
        return True

    def _remember(self) -> None:
        """Forget the hosts that are registered again: each is out of every ISR and ELR until it is complete."""
        brokers = self.truth.image().brokers
        for node_id in self.forgetful | self.crashed:
            host, registered = self._world.hosts[node_id - 1], brokers.get(node_id)
            if registered is not None and host.broker_epoch == registered.broker_epoch:
                self.forgetful.discard(node_id)
                self.crashed.discard(node_id)
        for node_id in self._incomplete - self.forgetful:
            mine = [p for p in self._partitions() if node_id in p.replicas]
            if all(node_id in each.isr for each in mine):
                self._incomplete.discard(node_id)
        if not self.forgetful:
            self._is_dark = False

    def _partitions(self) -> list[PartitionRegistration]:
        topics = self.truth.image().topics.values()
        return [each for topic in topics for each in topic.partitions.values()]

    def _forgets(self, host: Host) -> None:
        self.forgetful.add(host.node_id)
        self._incomplete.add(host.node_id)
        host.lose_power()
        self._restart_later(host)

    def _crashed(self, host: Host) -> None:
        self.crashed.add(host.node_id)
        self._restart_later(host)

    def _crash_and_back(self, host: Host) -> str | None:
        """A kill with a start at once: the cluster may not have noticed that the broker was away."""
        if not host.is_up or not self._may_go_down(host, forgets=False):
            return None
        host.kill()
        self.crashed.add(host.node_id)
        self._start_at_once(host)
        return f"kill -9 {host.name}, which starts again at once"

    def _blackout(self, host: Host) -> str | None:
        """As many hosts as possible lose power at once, while each partition keeps one complete replica."""
        image = self.truth.image()
        partitions = self._partitions()
        is_well = (
            not (self._healing or self.forgetful or self.crashed or self._doomed)
            and not self._world.fabric.slow_seconds
            and all(not broker.fenced for broker in image.brokers.values())
            and all(each.is_up for each in self._world.hosts)
            and all(set(each.isr) == set(each.replicas) for each in partitions)
        )
        if not is_well:
            return None
        victims = [host]
        for other in self._random.sample(self._world.hosts, len(self._world.hosts)):
            gone = {each.node_id for each in (*victims, other)}
            if other is not host and all(set(each.isr) - gone for each in partitions):
                victims.append(other)
        if not all(set(each.isr) - {host.node_id} for each in partitions):
            return None
        self._is_dark = True
        for each in victims:
            self._forgets(each)
        return f"{', '.join(each.name for each in victims)} lose power at once"

    def _log_dir_fails(self, host: Host) -> str | None:
        """A disk fails every call; later it works again, and the broker is restarted."""
        if not host.is_up or host.disk.broken or not self._may_go_down(host, forgets=False):
            return None
        folder = self._random.choice(host.log_dirs)
        self._doomed.add(host.node_id)
        host.disk.broken.add(folder)

        def undo() -> None:
            host.disk.broken.clear()
            self._doomed.discard(host.node_id)
            if host.process is not None and host.process.is_paused:
                host.process.resume()
            self._world.loop.create_task(self._renew(host))

        self._later(self._random.random() * 10, undo)
        return f"{folder} of {host.name} fails"

    def _stop(self, host: Host) -> str | None:
        node = host.node
        if not host.is_up or node is None or host.process is None or host.process.is_paused:
            return None
        is_full = host.disk.capacity_bytes is not None
        is_clean = host.has_started and not is_full and not _has_failed_log_dirs(host)
        if not is_clean:
            # It may be registered and not serve yet, or be unable to say that everything is on its disks. In both
            # cases the cluster takes its end for a crash.
            if not self._may_go_down(host, forgets=False):
                return None
            self._doomed.add(host.node_id)
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
            if not is_clean:
                self._doomed.discard(host.node_id)
                self.crashed.add(host.node_id)
            self._restart_later(host)

        stopping = self._world.loop.create_task(stop())
        self._stops.add(stopping)
        stopping.add_done_callback(self._stops.discard)
        return f"{host.name} is asked to stop"

    def _pause(self, host: Host) -> str | None:
        process = host.process
        if not host.is_up or process is None or process.is_paused:
            return None
        process.pause()
        seconds = self._random.uniform(*PAUSE_SECONDS)
        self._later(seconds, process.resume)
        seconds *= self.plan.scale
        return f"{host.name} is paused for {seconds:.1f} s"

    def _late_metadata(self, host: Host) -> str | None:
        """A broker works on and hears of no commit for a while, or applies each one late that it knows of."""
        node = host.node
        if not host.is_up or node is None or LateMetadata.is_late(node.metadata_driver):
            return None
        rest = self._random.choice(LATE_REST_SECONDS)
        is_known = self._random.random() < 0.3
        late = LateMetadata(node.metadata_driver, rest)
        late.apply_slowly() if is_known else late.hold()
        seconds = self._random.uniform(*LATE_SECONDS)
        # Those that were missed come one by one after that.
        self._later(seconds, late.release)
        self._later(2 * seconds, late.end)
        how = "applies commits late" if is_known else "hears of no commits"
        return f"{host.name} {how} for {seconds * self.plan.scale:.1f} s, then every {rest} s"

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

    def _slow_for_clients(self, host: Host) -> str | None:
        """Requests of clients arrive late, even after the client has given up and asked another broker."""
        slow = self._world.fabric.slow_for_clients
        slow[host.name] = self._random.random() * 3
        self._later(self._random.random() * 10, lambda: slow.pop(host.name, None))
        return f"what clients send to {host.name} comes late"

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
        """One disk is full, or several at once."""
        others = [each for each in self._world.hosts if each is not host]
        chosen = [host, *(each for each in others if self._random.random() < SEVERAL_FULL)]
        full = [each.name for each in chosen if self._fill(each)]
        return f"no room on {', '.join(full)}" if full else None

    def _fill(self, host: Host) -> bool:
        if not self._may_go_down(host, forgets=False):
            return False  # A full disk ends the process, if others are in sync.
        self._doomed.add(host.node_id)
        host.disk.capacity_bytes = 0

        def undo() -> None:
            self._doomed.discard(host.node_id)
            host.disk.capacity_bytes = None
            self._world.loop.create_task(self._renew(host))

        self._later(self._random.random() * 10, undo)
        return True

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


class LateMetadata:
    """Between a broker's driver and whoever tells it of commits. What the broker decides itself it knows at once."""

    def __init__(self, driver: MetadataDriver, rest_seconds: float) -> None:
        self._driver = driver
        self._rest_seconds = rest_seconds
        self._is_held = False

    @staticmethod
    def is_late(driver: MetadataDriver) -> bool:
        """Whether something stands before it already."""
        return not {"follow", "_publish_late"}.isdisjoint(vars(driver))

    def hold(self) -> None:
        """Let it hear nothing, neither of controllers nor from the table, until it is released."""
        self._is_held = True
        follow, follow_instead = self._driver.follow, self._driver.follow_instead
        catch_up = self._driver.catch_up

        async def late(
            entries: Sequence[tuple[int, Sequence[Event]]], tell: Callable[..., Any] = follow
        ) -> None:
            if self._is_held:
                await asyncio.sleep(LATE_POLL_SECONDS)
            elif self._rest_seconds:
                unknown = [each for each in entries if each[0] > self._driver.image.version]
                await tell(unknown[:1])
                await asyncio.sleep(self._rest_seconds)
            else:
                await tell(entries)

        async def late_from_table() -> None:
            if not self._is_held:
                await catch_up()

        vars(self._driver).update(
            follow=late,
            follow_instead=lambda entries: late(entries, follow_instead),
            catch_up=late_from_table,
        )

    def apply_slowly(self) -> None:
        """Let its parts hear of each commit a moment after it is in the image."""
        publish = vars(self._driver)["_publish"]
        seconds = self._rest_seconds or LATE_POLL_SECONDS
        if publish is None:
            return

        async def late(events: Sequence[Event]) -> None:
            await asyncio.sleep(seconds)
            await publish(events)

        vars(self._driver).update(_publish=late, _publish_late=publish)

    def release(self) -> None:
        """Let it hear of what it has missed."""
        self._is_held = False

    def end(self) -> None:
        """Let it hear of everything at once, as ever."""
        self._is_held = False
        held = vars(self._driver)
        for name in ("follow", "follow_instead", "catch_up"):
            held.pop(name, None)
        if "_publish_late" in held:
            held["_publish"] = held.pop("_publish_late")


def _has_failed_log_dirs(host: Host) -> bool:
    return host.node is not None and any(host.node.log_manager.failures.values())
