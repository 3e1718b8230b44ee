"""Runs with diskless topics: an acknowledged record is in the lake, whatever becomes of the brokers and their disks.

Leaders lose their disks as often as not, puts into write-ahead logs are done long after their broker has given them up,
and at the end every broker is killed and finds nothing of diskless topics on its disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextvars import Context
from types import MappingProxyType
from typing import Any

from broker.diskless import ended_wals, write_ahead_log
from broker.diskless.wal_object import (
    FOLDER,
    WalEntry,
    WalHeader,
    checkpoint_number,
    decode_header,
    object_path,
    place_of,
)
from broker.membership.requests import ControllerRequests
from broker.metadata.events import RECOVERED, TO_REPLICATED, WalId
from broker.metadata.image import MetadataImage
from broker.replica import diskless_switch
from broker.replica.diskless_switch import ReturningPartition, SwitchingPartition
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.topic_partition import PartitionId
from tests.sim.clients import History, Partition, Producer
from tests.sim.keeping import alter_topic
from tests.sim.loop import PROCESS
from tests.sim.model import HistoryModel, kept
from tests.sim.operator import Operator
from tests.sim.scenario import QUIET_SECONDS_MAX, RESULTS, TOPIC
from tests.sim.sequences import NotSo
from tests.sim.tier_scenario import EVENTS_SECONDS, FLEETING, TierFaults, TierScenario
from tests.sim.world import Host

DISKLESS_TOPICS = (TOPIC, RESULTS, FLEETING)
# What happens to a leader whose partitions become diskless, at the moment that matters.
STRIKES = (
    "lost_logs",
    "lost_logs",
    "lost_logs_and_back",
    "power",
    "pause",
    "isolate",
    "late_metadata",
)
# How often a run cleans up write-ahead logs.
CLEAN_UP_SECONDS = 0.7


class DisklessFaults(TierFaults):
    """Faults of the lake and of disks, in addition to those of workers and brokers."""

    async def heal(self) -> None:
        for host in self._world.hosts:
            host.lake.late = 0.0
        await super().heal()

    def strike(self, host: Host, kind: str) -> None:
        """Make this fault now."""
        if host.is_up:
            self._remember()
            self._world.log(f"strike: {kind} of {host.name}: {getattr(self, f'_{kind}')(host)}")

    def _lost_logs(self, host: Host) -> str | None:
        """A broker is killed, and nothing of diskless topics is on its disk when it comes back."""
        if not host.is_up or not self._may_go_down(host, forgets=False):
            return None
        host.kill()
        lose_logs(host, self.truth.image())
        self._crashed(host)
        return f"{host.name} is killed and loses its logs of diskless topics"

    def _lost_logs_and_back(self, host: Host) -> str | None:
        """The same with a start at once: no other broker may have led meanwhile."""
        if not host.is_up or not self._may_go_down(host, forgets=False):
            return None
        host.kill()
        lose_logs(host, self.truth.image())
        self.crashed.add(host.node_id)
        self._start_at_once(host)
        return f"{host.name} is killed, loses its logs of diskless topics, and starts again at once"

    def _zombie(self, _: Host) -> str | None:
        return self._begin(
            "a leader sleeps until another one leads", self._sleep_through_an_election()
        )

    async def _sleep_through_an_election(self) -> None:
        """A leader is paused while it puts, some puts done and some not, and wakes when its successor leads.

        What producers have sent to it meanwhile it appends, puts, and would acknowledge. Mostly it hears nothing of its
        successor for a moment: not from other brokers, that is, though clients and the lake are there.
        """
        topic, index = self._place()
        before = self.truth.image().partition(topic, index)
        if before is None or before.leader < 0 or len(self._world.hosts) < 2:
            raise NotSo("nobody leads it, or nobody else can")
        host = self._host(before.leader)
        process = host.process
        if process is None or not host.is_up or process.is_paused:
            raise NotSo("its leader is away")
        host.lake.late = self._random.choice((0.0, 0.5, 0.5, 1.0))
        await self._soon()
        if self._random.random() < 0.8:
            for other in self._world.hosts:
                if other is not host:
                    self._world.fabric.cut(host.name, other.name)
                    self._world.fabric.cut(other.name, host.name)
        process.pause()
        try:
            await self._until(
                lambda: self._has_taken_over((topic, index), before.leader_epoch),
                "nobody else leads",
            )
        finally:
            host.lake.late = 0.0
            process.resume()
        await self._soon()

    def _has_taken_over(self, place: Partition, epoch: int) -> bool:
        now = self.truth.image().partition(*place)
        if now is None:
            raise NotSo("the topic is gone")
        return now.leader_epoch > epoch and now.leader_recovery_state == RECOVERED

    def forsake(self, place: Partition) -> None:
        """Kill the leader of a partition that has just got replicas, and lose its log, while it alone is in sync."""
        holds = self.truth.image().partition(*place)
        if holds is None or holds.is_diskless or holds.isr != (holds.leader,) or holds.leader < 0:
            return
        host = self._host(holds.leader)
        self._remember()
        if len(holds.replicas) < 2 or not host.is_up or not self._may_go_down(host, forgets=False):
            return
        host.kill()
        lose_log(host, place)
        self.forgetful.add(host.node_id)
        self._incomplete.add(host.node_id)
        self._restart_later(host)
        self._world.log(f"strike: {host.name} is killed and loses its log of {place}")

    def _late_puts(self, host: Host) -> str | None:
        host.lake.late = self._random.choice((0.2, 0.5, 1.0))

        def undo() -> None:
            host.lake.late = 0.0

        self._later(self._random.random() * 8, undo)
        return f"puts of {host.name} into write-ahead logs come late"


def lose_logs(host: Host, image: MetadataImage) -> None:
    """Remove all logs of diskless partitions from the disk of a broker that does not run."""
    for path in host.disk.paths():
        topic, _, number = path.rpartition("/")[0].rpartition("/")[2].rpartition("-")
        if topic not in DISKLESS_TOPICS:
            continue
        holds = image.partition(topic, int(number))
        if holds is None or holds.is_diskless:
            host.disk.unlink(path)
    host.disk.sync_everything()


def lose_log(host: Host, place: Partition) -> None:
    """Remove the log of one partition from the disk of a broker that does not run."""
    for path in host.disk.paths():
        if path.rpartition("/")[0].rpartition("/")[2] == f"{place[0]}-{place[1]}":
            host.disk.unlink(path)
    host.disk.sync_everything()


class DisklessScenario(TierScenario):
    """A cluster whose topics are diskless; internal topics have replicas, and nothing else has."""

    FAULTS = DisklessFaults
    TOPIC_SETTINGS = MappingProxyType({"lake.diskless": "true"})

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.model = HistoryModel(DISKLESS_TOPICS)
        self.history = self.model.history
        self.tables._model = self.bounds._model = self.model

    def _listen(self, patch: Any) -> None:
        super()._listen(patch)
        # A leader that sleeps through an election would acknowledge late what it should not.
        patch.setattr(Producer, "timeout_ms", 30_000)
        patch.setattr(write_ahead_log, "CLEAN_UP_SECONDS", CLEAN_UP_SECONDS)
        patch.setattr(ended_wals, "INTERVAL_SECONDS", CLEAN_UP_SECONDS)
        elected = LeaderPartition.elected

        def begins(partition: LeaderPartition) -> None:
            elected(partition)
            self._check_beginning(partition)

        patch.setattr(LeaderPartition, "elected", begins)

    def _check_beginning(self, partition: LeaderPartition) -> None:
        """A new leader serves nothing that was deleted, unless it is deposed and does not know yet."""
        name, start = partition.log.topic_partition, partition.log.log_start_offset
        now = self.world.truth.image().partition(*name)
        is_now = now is not None and now.leader_epoch == partition.leader_epoch
        if is_now and partition.is_diskless:
            promised = self.bounds.low_watermarks.get(tuple(name), 0)
            assert start >= promised, f"{name} begins at {start}, and was said to at {promised}"

    def _kept_history(self) -> History:
        """What a deletion has asked for that was not answered may be in the table, and may not."""
        starts = {each: self.bounds.declared(each) for each in self.partitions}
        return kept(self.history, self.model, {TOPIC: self.bounds.topic_id(TOPIC)}, starts)

    def _may_be_gone(self, partition: Partition, offset: int) -> bool:
        return offset < self.bounds.asked.get(partition, 0)

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        await self._in_sync()
        self.world.log("all brokers are killed, and lose their logs of diskless topics")
        for host in self.world.hosts:
            host.kill()
            lose_logs(host, self.world.truth.image())
        for host in self.world.hosts:
            host.start()
        await super()._check(members)

    async def _check_storage(self, committed: dict[Partition, list[tuple[int, bytes]]]) -> None:
        await super()._check_storage(committed)
        async with asyncio.timeout(QUIET_SECONDS_MAX):
            while left := list(self._left_over()):
                self.world.log(f"nobody needs {', '.join(left)}")
                await asyncio.sleep(EVENTS_SECONDS)

    def _left_over(self) -> Iterator[str]:
        """The objects that nobody needs any more, without fences."""
        image = self.world.truth.image()
        live = {WalId(each.node_id, each.broker_epoch) for each in self.world.up()}
        named = {
            wal
            for topic in image.topics.values()
            for each in topic.partitions.values()
            for wal in each.wals
        }
        for wal, headers in self._write_ahead_logs().items():
            for place, header in headers.items():
                data = [entry for entry in header.entries if not entry.is_fence]
                is_looked_after = wal in live or wal not in named
                if data and is_looked_after and all(map(self._is_copied_entry, data)):
                    yield object_path(wal, place)

    def _write_ahead_logs(self) -> dict[WalId, dict[int, WalHeader]]:
        found: dict[WalId, dict[int, WalHeader]] = {}
        for each in self._lake.list(FOLDER):
            _, node_id, broker_epoch, _ = each.path.split("/")
            place = place_of(each.path)
            if place is None:
                assert checkpoint_number(each.path) is not None, each.path
                continue
            header = decode_header(self._lake.read(each.path))
            found.setdefault(WalId(int(node_id), int(broker_epoch)), {})[place] = header
        return found

    def _is_copied_entry(self, entry: WalEntry) -> bool:
        topic = self.world.truth.image().topics_by_id.get(entry.topic_id)
        return topic is None or entry.last_offset <= self.tables.end(topic.name, entry.partition)


class ToDisklessScenario(DisklessScenario):
    """Topics that are created with replicas, and become diskless while everything goes on."""

    TOPIC_SETTINGS = MappingProxyType({})
    # How often something happens to a leader whose partition switches.
    STRUCK = 0.6

    def _listen(self, patch: Any) -> None:
        super()._listen(patch)
        patch.setattr(diskless_switch, "LOOK_SECONDS", 0.2)
        patch.setattr(diskless_switch, "PUT_SECONDS", 1.0)
        patch.setattr(diskless_switch, "RETRY_MS", 200)
        patch.setattr(diskless_switch, "RETRY_MS_MAX", 2_000)
        begin = SwitchingPartition.begin

        def begun(switching: SwitchingPartition, wal: Any, size: int) -> None:
            process = PROCESS.get()
            self._strike_soon(next(h for h in self.world.hosts if h.process is process))
            begin(switching, wal, size)

        patch.setattr(SwitchingPartition, "begin", begun)

    def _strike_soon(self, host: Host) -> None:
        """Let something happen to a leader while it puts, asks, or takes over."""
        chance, faults = self.world.random, self.faults
        assert isinstance(faults, DisklessFaults)
        kind, seconds = chance.choice(STRIKES), chance.random() * 0.5

        def strike() -> None:
            if not self._is_over:
                faults.strike(host, kind)

        if chance.random() < self.STRUCK:
            self.world.loop.call_later(seconds, strike, context=Context())

    def _setting(self) -> dict[str, str | None]:
        return {"lake.diskless": "true"}

    def _producers(self) -> list[asyncio.Task[None]]:
        operator, process = self._operator()
        return [*super()._producers(), self._spawn(self._switch_all(operator), process)]

    async def _switch_all(self, operator: Operator) -> None:
        """Topics become diskless some time; those that come and go at once, or never."""
        left = [TOPIC, RESULTS] if self._results else [TOPIC]
        while not self._is_over:
            await asyncio.sleep(operator.random.random() * self.shape.seconds / 10)
            topic = operator.random.choice((FLEETING, *left))
            said = await alter_topic(operator, topic, self._setting())
            if said is ErrorCode.NONE and topic in left:
                left.remove(topic)

    async def _check(self, members: list[asyncio.Task[None]]) -> None:
        operator, process = self._operator()
        await asyncio.wait_for(self._spawn(self._end(operator), process), QUIET_SECONDS_MAX)
        await super()._check(members)

    async def _end(self, operator: Operator) -> None:
        """Let all of them switch: a partition of which everything was deleted needs a record for that."""
        for topic in sorted({topic for topic, _ in (*self.partitions, *self._results)}):
            setting = self._setting()
            while await alter_topic(operator, topic, setting) is not ErrorCode.NONE:
                await operator.pause()
        client = (operator.network, self.world.bootstrap, self.world.random)
        producer = Producer(*client, name="last", history=self.history)
        while left := [each for each in (*self.partitions, *self._results) if self._waits(each)]:
            await asyncio.sleep(2.0)
            for partition in left:
                if partition in self.partitions and self._waits(partition):
                    await producer.send(partition, 1)

    def _waits(self, partition: Partition) -> bool:
        image = self.world.truth.image()
        topic, holds = image.topics.get(partition[0]), image.partition(*partition)
        if topic is None or holds is None or holds.leader_recovery_state != RECOVERED:
            return True
        return holds.is_diskless != topic.is_diskless


class BothWaysScenario(ToDisklessScenario):
    """Topics that become diskless and replicated again, time after time."""

    STRUCK = 0.3

    def _listen(self, patch: Any) -> None:
        super()._listen(patch)
        patch.setattr(diskless_switch, "COPY_SECONDS", 2.0)
        begin, ask = ReturningPartition.__init__, ControllerRequests.switch_partitions

        def begun(returning: ReturningPartition, partition: LeaderPartition, tier: Any) -> None:
            process = PROCESS.get()
            self._strike_soon(next(h for h in self.world.hosts if h.process is process))
            begin(returning, partition, tier)

        async def asks(
            requests: ControllerRequests,
            epochs: Mapping[PartitionId, int],
            state: int,
            broker_epoch: int,
        ) -> None:
            # A request may be long on its way.
            await asyncio.sleep(self.world.random.random() * 0.5)
            if state == TO_REPLICATED:
                for key, epoch in epochs.items():
                    self._forsake_soon(key, epoch)
            await ask(requests, epochs, state, broker_epoch)

        patch.setattr(ReturningPartition, "__init__", begun)
        patch.setattr(ControllerRequests, "switch_partitions", asks)

    def _forsake_soon(self, key: PartitionId, epoch: int) -> None:
        """Perhaps kill a leader as soon as its partition is replicated, and lose its log."""
        faults, chance = self.faults, self.world.random
        assert isinstance(faults, DisklessFaults)
        seconds = chance.random() * 0.3

        async def forsake() -> None:
            for _ in range(100):
                await asyncio.sleep(0.01)
                topic = self.world.truth.image().topics_by_id.get(key[0])
                holds = topic.partitions.get(key[1]) if topic is not None else None
                if topic is None or holds is None or self._is_over:
                    return
                if not holds.is_diskless and holds.leader_epoch > epoch:
                    await asyncio.sleep(seconds)
                    faults.forsake((topic.name, key[1]))
                    return

        if chance.random() < 0.5:
            self.world.loop.create_task(forsake(), context=Context())

    def _setting(self) -> dict[str, str | None]:
        return {"lake.diskless": self.world.random.choice(("true", "false"))}

    async def _end(self, operator: Operator) -> None:
        """Change the topics' minds once more, while leaders ask; then each partition has to take records."""
        topics = sorted({topic for topic, _ in (*self.partitions, *self._results)})
        for value in ("true", "false", "true"):
            for topic in topics:
                await alter_topic(operator, topic, {"lake.diskless": value})
            await asyncio.sleep(operator.random.random() * 2)
        await super()._end(operator)
        client = (operator.network, self.world.bootstrap, self.world.random)
        producer = Producer(*client, name="very last", history=self.history)
        for partition in self.partitions:
            while not await producer.send(partition, 1):
                await operator.pause()

    async def _switch_all(self, operator: Operator) -> None:
        """Mostly a topic has become what it was said to be when it changes again."""
        topics = (FLEETING, TOPIC, TOPIC, TOPIC, *((RESULTS,) if self._results else ()))
        is_to_be = dict.fromkeys(topics, "false")
        while not self._is_over:
            topic = operator.random.choice(topics)
            is_to_be[topic] = "false" if is_to_be[topic] == "true" else "true"
            await alter_topic(operator, topic, {"lake.diskless": is_to_be[topic]})
            for _ in range(operator.random.randrange(40)):
                if self._is_over or not any(map(self._waits, self.partitions)):
                    break
                await asyncio.sleep(0.1)
            await asyncio.sleep(operator.random.random() * 0.5)
