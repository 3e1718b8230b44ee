"""Faults that do harm only in a certain order, which chance produces once in thousands of seeds.

Each is a script of a few steps about one partition: its leader, one follower that falls behind, and the others. The
steps and what they wait for are fixed; the seed chooses the moments. If what a script waits for does not happen, the
script ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from broker.metadata.events import PartitionRegistration
from tests.sim.clients import Partition
from tests.sim.faults import REPORTED_SECONDS, Faults
from tests.sim.world import Host

STEP_SECONDS_MAX = 12.0
# Long enough to leave the ISR, short enough for heartbeats.
SLOW_SECONDS = (0.3, 2.0)
# At most this long between two steps that should fall close together.
SOON_SECONDS = 0.6


class NotSo(Exception):
    """What a script waited for has not happened."""


class Sequences(Faults):
    """Single faults and scripts; one script at a time."""

    _script: asyncio.Task[None] | None = None

    async def heal(self) -> None:
        if self._script is not None and not self._script.done():
            self._script.cancel()
        elif self._script is not None:
            self._script.result()
        self._script = None
        await super().heal()

    def _begin(self, what: str, script: Coroutine[Any, Any, None]) -> str | None:
        if self._script is not None and not self._script.done():
            script.close()
            return None
        if self._script is not None and self._script.exception() is not None:
            script.close()
            self._script.result()

        async def play() -> None:
            try:
                await script
            except NotSo as error:
                self._world.log(f"{what}: {error}")
            finally:
                self._world.fabric.heal()

        # Not a broker's task, which would die with the broker that the script kills.
        self._script = self._world.loop.create_task(play(), context=Context())
        return what

    def _laggard(self, _: Host) -> str | None:
        return self._begin("a follower comes back far behind", self._let_one_lag())

    def _stale_proposal(self, _: Host) -> str | None:
        return self._begin("a proposal comes late once more", self._repeat_a_proposal())

    def _controller_without_lake(self, _: Host) -> str | None:
        return self._begin("the controller loses the lake", self._take_lake_from_controller())

    def _outage(self, _: Host) -> str | None:
        return self._begin("the lake is away until disks are full", self._fill_disks())

    def _leftover(self, _: Host) -> str | None:
        return self._begin("a leader leaves records behind", self._leave_records_behind())

    # -- steps -------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = self._world.loop.time() + STEP_SECONDS_MAX
        while not condition():
            if self._world.loop.time() > deadline:
                raise NotSo(what)
            await asyncio.sleep(0.01)

    async def _soon(self) -> None:
        await asyncio.sleep(self._random.random() * SOON_SECONDS)

    def _host(self, node_id: int) -> Host:
        return self._world.hosts[node_id - 1]

    def _place(self) -> Partition:
        topics = self.truth.image().topics
        names = [name for name in topics if not name.startswith("__")]
        return self._random.choice([(name, i) for name in names for i in topics[name].partitions])

    async def _one(
        self, place: Partition | None = None
    ) -> tuple[Callable[[], PartitionRegistration], Host, Host, list[Host]]:
        """A partition with all replicas in sync: a function that looks it up, its leader, the next one, the others."""
        place = place or self._place()

        def now() -> PartitionRegistration:
            found = self.truth.image().partition(*place)
            if found is None:
                raise NotSo("the topic is gone")
            return found

        await self._until(lambda: self._is_well(now()), "not all are in sync")
        others = [self._host(each) for each in now().replicas if each != now().leader]
        # An election takes the first replica of the assignment that may lead.
        return now, self._host(now().leader), others[0], others[1:]

    def _is_well(self, partition: PartitionRegistration) -> bool:
        return (
            partition.leader >= 0
            and len(partition.isr) == len(partition.replicas) > 2
            and all(self._host(each).is_up for each in partition.replicas)
        )

    def _slow_down(self, sources: list[Host], target: Host, seconds: float) -> None:
        for source in sources:
            self._world.fabric.slow_seconds[source.name, target.name] = seconds

    def _hand_over(self, host: Host) -> None:
        """Stop the leader cleanly, so that another replica leads at once."""
        line = self._stop(host)
        if line is None:
            raise NotSo(f"{host.name} cannot be stopped")
        self._world.log(f"fault: {line}")

    # -- scripts -----------------------------------------------------------------------------------

    async def _let_one_lag(self) -> None:
        """A follower comes back and catches up slowly; meanwhile one or two leaders stop.

        It must not join the ISR before it has every record that was acknowledged without it.
        """
        now, leader, lagging, others = await self._one()
        if not self._may_go_down(lagging, forgets=False):
            raise NotSo("no other may be away")
        lagging.kill()
        self.crashed.add(lagging.node_id)
        slow = self._random.uniform(*SLOW_SECONDS)
        if self._random.random() < 0.5:
            # The others learn the high watermark late.
            for each in others:
                self._slow_down([leader], each, slow)
        try:
            await self._until(lambda: lagging.node_id not in now().isr, "it stays in the ISR")
            await self._soon()
        finally:
            self._start_at_once(lagging)
        self._slow_down([leader, *others], lagging, slow)
        await self._until(lambda: lagging.broker_epoch >= 0, "it is not taken in again")
        for _ in range(self._random.randint(1, 2)):
            # The leader stops when the follower has joined the ISR (it should then have everything), or a bit earlier.
            moment = self._world.loop.time() + self._random.random()
            while lagging.node_id not in now().isr and self._world.loop.time() < moment:
                await asyncio.sleep(0.01)
            if now().leader in (lagging.node_id, -1):
                return
            epoch = now().leader_epoch
            self._hand_over(self._host(now().leader))
            await self._until(lambda: now().leader_epoch > epoch, "nobody else leads")  # noqa: B023

    async def _repeat_a_proposal(self) -> None:
        """A follower lags, catches up and lags again; then the proposal to take it into the ISR arrives once more.

        This happens if a leader sent the proposal twice because the first answer was slow, and one copy is late.
        """
        now, leader, lagging, others = await self._one()
        for is_to_join in (False, True, False):
            if is_to_join:
                self._world.fabric.heal()
            else:
                self._slow_down([leader], lagging, 3.0)
            await self._until(
                lambda: (lagging.node_id in now().isr) is is_to_join,  # noqa: B023
                "the ISR stays as it is",
            )
        epoch = now().leader_epoch
        await self._soon()
        self._world.repeat_proposal(leader.name, lagging.node_id)
        await asyncio.sleep(self._random.random() * 0.1)
        if now().leader_epoch == epoch:
            self._hand_over(leader)
        await self._until(lambda: now().leader_epoch > epoch, "nobody else leads")

    async def _leave_records_behind(self) -> None:
        """A leader appends what no follower gets, and dies; when it comes back, others have written at those offsets.

        Nobody was promised these records: they have to go from its log.
        """
        place = self._place()
        now, leader, follower, others = await self._one(place)
        followers = [follower, *others]
        if not self._may_go_down(leader, forgets=False):
            raise NotSo("the leader may not be away")

        def end(host: Host) -> int:
            log = host.node.log_manager.get(place) if host.node is not None else None
            return log.log_end_offset if log is not None else -1

        for each in followers:
            self._slow_down([leader], each, 3.0)
        epoch = now().leader_epoch
        await self._until(
            lambda: end(leader) > max(map(end, followers)) or now().leader_epoch > epoch,
            "nobody writes to it",
        )
        if now().leader_epoch > epoch or not leader.is_up or len(now().isr) < 2:
            raise NotSo("it is not alone with its records, or does not lead")
        left = end(leader)
        leader.kill()
        self.crashed.add(leader.node_id)
        self._world.fabric.heal()
        try:
            await self._until(
                lambda: (
                    now().leader > 0
                    and now().leader_epoch > epoch
                    and end(self._host(now().leader)) >= left
                ),
                "nobody else writes there",
            )
        finally:
            self._start_at_once(leader)

    async def _take_lake_from_controller(self) -> None:
        """The controller alone does not reach the lake, or one other broker does not either: a third one decides soon.

        All of them follow it, and none is fenced, though two may hear of it by wire alone.
        """
        truth, hosts = self.truth, self._world.hosts
        await self._until(lambda: self._are_all_unfenced(), "not all brokers are there")
        before = truth.image()
        epoch, controller = before.controller_epoch, self._host(before.controller_id)
        others = [each for each in hosts if each is not controller]
        without = [controller, *self._random.sample(others, self._random.randint(0, 1))]
        for each in without:
            each.lake.is_away = True
        self._world.log(f"without the lake: {', '.join(each.name for each in without)}")
        try:
            await self._world.until(
                lambda: truth.image().controller_epoch > epoch, "nobody takes its place", 20
            )
            assert self._host(truth.image().controller_id) not in without
            await self._world.until(
                lambda: all(each.node.metadata.controller_epoch > epoch for each in without),
                "who does not reach the lake hears nothing of it",
                6,
            )
            await asyncio.sleep(self._random.random() * 8)
            assert self._are_all_unfenced(), "a broker is fenced that lives"
        finally:
            for each in without:
                each.lake.is_away = False

    async def _fill_disks(self) -> None:
        """Disks fill up while nobody reaches the lake. When it is back, what was led is led, although nothing has room.

        Brokers that were heard all the time are not fenced for what they had to wait for.
        """
        hosts, lines = self._world.hosts, self._world.lines
        await self._one()
        await self._until(self._are_all_unfenced, "not all brokers are there")
        full = self._random.sample(hosts, self._random.randint(2, len(hosts)))
        try:
            for each in hosts:
                each.lake.is_away = True
            began = len(lines)
            for each in full:
                self._doomed.add(each.node_id)
                each.disk.capacity_bytes = 0
                self._world.log(f"no room on {each.name}")
                await self._soon()
            await asyncio.sleep(self._random.random() * 10)
            for each in hosts:
                each.lake.is_away = False
            await asyncio.sleep(1)
            assert self._are_all_led(), "full disks have taken all replicas offline"
            assert not any("FenceBroker" in each for each in lines[began:]), (
                "one is fenced that lives"
            )
            await asyncio.sleep(self._random.random() * 10)
            assert self._are_all_led(), "full disks have taken all replicas offline"
        finally:
            for each in hosts:
                each.disk.capacity_bytes = None
                each.lake.is_away = False
                self._doomed.discard(each.node_id)
        await asyncio.sleep(REPORTED_SECONDS)
        for each in full:
            await self._renew(each)

    def _are_all_led(self) -> bool:
        return all(each.leader > 0 for each in self._partitions())

    def _are_all_unfenced(self) -> bool:
        brokers = self.truth.image().brokers.values()
        return len(brokers) == len(self._world.hosts) and not any(b.fenced for b in brokers)
