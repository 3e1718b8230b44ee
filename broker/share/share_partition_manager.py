"""Shell: the share partitions whose partitions this broker leads, with their state kept by share coordinators.

- A share partition is loaded from its coordinator by the first fetch, which fences the leader before. It is forgotten
  when the partition is not led here any more, when the coordinator fences it, and when no member of the group has a
  share session here: what others have changed meanwhile is read by the next load.
- Writes of one share partition go one after the other, each with all that has come meanwhile: a late one cannot
  overtake a later one. An acknowledgement is answered when its state is written.
- What is archiving by then, or was when it was loaded, is written to the group's dead-letter topic and then archived.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from broker.config.dynamic import DynamicBrokerConfig
from broker.config.group import group_value
from broker.coordinator.persister import SharePersister
from broker.metadata.image import MetadataImage
from broker.metrics.times import RecentTimes
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from broker.share.dead_letter_queue import DeadLetterQueue, retried
from broker.share.dead_letters import SourcePartition, each_letter
from broker.share.share_partition import SharePartition, SharePartitionConfig, StateWrite
from broker.share.share_sessions import ShareSession, ShareSessionCache, ShareSessionKey
from broker.share.share_times import ShareFetchTimes, SharePartitionTimes
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.share_fetch import AcknowledgementBatch
from kafka_ds.protocol.messages.share_state import (
    ReadStatePartition,
    ReadStatePartitionResult,
    WriteStatePartition,
)
from kafka_ds.protocol.topic_partition import PartitionId

_LOGGER = logging.getLogger(__name__)

NO_OFFSET = -1

# Kafka's errors for members, for those of share coordinators.
_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

# The state was deleted or replaced: the next leader will not find what this one has.
_STATE_IS_GONE = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.FENCED_STATE_EPOCH,
)

# Where a group begins in a partition that it has no offset for.
FindStart: TypeAlias = Callable[[LeaderPartition, str], Awaitable[int]]
_GroupPartition: TypeAlias = tuple[str, PartitionId]


def _member_error(code: int, message: str | None) -> KafkaError:
    return KafkaError(_ERRORS.get(ErrorCode(code), ErrorCode.UNKNOWN_SERVER_ERROR), message or "")


class LedSharePartition:
    """A share partition at work: its lock timer, its writes, and the fetches that wait for it."""

    def __init__(
        self, manager: SharePartitionManager, group_id: str, leader: LeaderPartition
    ) -> None:
        self._manager = manager
        self.group_id = group_id
        self.leader = leader
        self.key: _GroupPartition = (group_id, (leader.topic_id, leader.partition))
        self.machine = SharePartition(0)
        self.is_closed = False
        self.is_fetching = False
        self.times = SharePartitionTimes()
        self.waiting: set[asyncio.Event] = set()
        self._queued: list[tuple[StateWrite, asyncio.Future[None] | None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.writing_dead_letters: asyncio.Task[None] | None = None
        leader.watch(self)

    @property
    def config(self) -> SharePartitionConfig:
        """The group's settings now."""
        return self._manager.config_of(self.group_id)

    def begin_fetch(self) -> None:
        """A fetch reads for it: a second one would read the same."""
        self.is_fetching = True
        self.times.lock(self._manager.now_ms())

    def end_fetch(self) -> None:
        """The fetch has ended: others may read for the share partition."""
        self.is_fetching = False
        self.times.unlock(self._manager.now_ms())

    # -- what happens to the partition --------------------------------------------------------------

    def advanced(self, partition: LeaderPartition) -> None:
        """There are more records."""
        self.wake()

    def lost(self, partition: LeaderPartition) -> None:
        """Another broker leads the partition, or none does."""
        if not self._manager.has_topic(self.leader.topic_id):
            self._lose_dead_letters(KafkaError(ErrorCode.UNKNOWN_TOPIC_ID))
        self._manager.forget(self)

    def wake(self, *, but: asyncio.Event | None = None) -> None:
        """Have waiting fetches look again."""
        for event in self.waiting:
            if event is not but:
                event.set()

    def close(self) -> None:
        """Nothing more is delivered from here; acknowledgements that are not written yet fail."""
        self.is_closed = True
        if not self.leader.is_lost:
            self.leader.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.writing_dead_letters is not None:
            self.writing_dead_letters.cancel()
        self._end_all(self._queued, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._queued = []
        self.wake()

    def stop_writing(self) -> None:
        """Write nothing more; acknowledgements whose outcome is not known fail."""
        if self._writing is not None:
            self._writing.cancel()

    # -- state --------------------------------------------------------------------------------------

    async def load(self, find_start: FindStart) -> None:
        """Read the state; raises KafkaError."""
        partition_id = self.key[1]
        asked = ReadStatePartition(
            partition=partition_id[1], leader_epoch=self.leader.leader.leader_epoch
        )
        results = await self._manager.persister.read_state(self.group_id, {partition_id: asked})
        state: ReadStatePartitionResult = results[partition_id]
        if state.error_code:
            raise _member_error(state.error_code, state.error_message)
        start_offset = state.start_offset
        if start_offset == NO_OFFSET:
            strategy = self._manager.value_of(self.group_id, "share.auto.offset.reset")
            start_offset = await find_start(self.leader, str(strategy))
        self.machine = SharePartition(
            start_offset, state.state_batches, state_epoch=state.state_epoch
        )
        if state.start_offset == NO_OFFSET:
            # At once: the next leader must not begin elsewhere.
            await self._write([])
        self.machine.log_start_incremented(self.leader.log.log_start_offset)

    async def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch]) -> None:
        """Take acknowledgements; raises KafkaError."""
        write = self.machine.acknowledge(
            member_id, batches, config=self.config, now_ms=self._manager.now_ms()
        )
        self.arm()
        if write is not None:
            await self._written(write)

    async def release(self, member_id: str) -> None:
        """Make what a member has available again; raises KafkaError."""
        write = self.machine.release(member_id, config=self.config)
        if write is not None:
            await self._written(write)

    def arm(self) -> None:
        """Wake up when the next lock expires; a timer that is too early does no harm."""
        due_ms = self.machine.next_lock_end_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None and not self.is_closed:
            delay_s = max(due_ms - self._manager.now_ms(), 0) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        write = self.machine.expire(self._manager.now_ms(), config=self.config)
        if write is not None:
            self._manager.expired_locks += sum(
                each.last_offset - each.first_offset + 1 for each in write.batches
            )
            self._queue(write, None)
            self.wake()
        self.arm()

    async def _written(self, write: StateWrite) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(write, future)
        await future

    def _queue(self, write: StateWrite, future: asyncio.Future[None] | None) -> None:
        if self.is_closed:
            self._end_all([(write, future)], KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._queued.append((write, future))
        if self._writing is None:
            name = f"write {self.group_id} {self.leader.log.name}"
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name=name)

    async def _write_all(self) -> None:
        try:
            while self._queued:
                batch, self._queued = self._queued, []
                error: KafkaError | None = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                try:
                    await self._write([write for write, _ in batch])
                    error = None
                except KafkaError as failed:
                    error = failed
                finally:
                    self._end_all(batch, error)
                self.wake()
                self.arm()
                self.begin_dead_letters()
        finally:
            self._writing = None

    def begin_dead_letters(self) -> None:
        """Write what is archiving to the dead-letter topic, if there is any."""
        is_idle = self.writing_dead_letters is None and not self.is_closed
        if is_idle and self.machine.dead_letters(self.config):
            name = f"dead letters {self.group_id} {self.leader.log.name}"
            self.writing_dead_letters = asyncio.get_running_loop().create_task(
                self._write_dead_letters(), name=name
            )

    async def _write_dead_letters(self) -> None:
        try:
            while letters := self.machine.dead_letters(self.config):
                await self._manager.dead_letters.write(self.group_id, self.leader, letters)
                write = self.machine.archive_dead_letters(letters)
                # An error is logged, and the next load writes them again.
                with contextlib.suppress(KafkaError):
                    await retried(partial(self._written, write))
        finally:
            self.writing_dead_letters = None

    async def _write(self, writes: Sequence[StateWrite]) -> None:
        machine, partition_id = self.machine, self.key[1]
        wanted = WriteStatePartition(
            partition=partition_id[1],
            state_epoch=machine.state_epoch,
            leader_epoch=self.leader.leader.leader_epoch,
            start_offset=machine.start_offset,
            delivery_complete_count=machine.delivery_complete_count,
            state_batches=[each for write in writes for each in write.batches],
        )
        results = await self._manager.persister.write_state(self.group_id, {partition_id: wanted})
        result = results[partition_id]
        if result.error_code:
            error = _member_error(result.error_code, result.error_message)
            _LOGGER.warning(
                "Failed to write the share group state for share partition %s-%s: %s",
                self.group_id,
                self.leader.log.name,
                ErrorCode(result.error_code).name,
            )
            if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                if result.error_code in _STATE_IS_GONE:
                    self._lose_dead_letters(KafkaError(ErrorCode(result.error_code)))
                self._manager.forget(self)
            raise error

    def _lose_dead_letters(self, error: KafkaError) -> None:
        """The topic or the state is gone: no later leader writes what is archiving."""
        letters = list(each_letter(self.machine.dead_letters(self.config)))
        if letters:
            source = SourcePartition(self.group_id, self.leader.topic, self.leader.partition)
            self._manager.dead_letters.give_up(source, letters, error)

    def _end_all(
        self,
        writes: Sequence[tuple[StateWrite, asyncio.Future[None] | None]],
        error: KafkaError | None,
    ) -> None:
        for write, future in writes:
            self.machine.written(write.number, is_done=error is None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class SharePartitionManager:
    """The share partitions and share sessions of this broker."""

    def __init__(
        self,
        config: DynamicBrokerConfig,
        *,
        partitions: ReplicaManager,
        image: MetadataImage,
        clock: Clock,
        persister: SharePersister,
        dead_letters: DeadLetterQueue,
    ) -> None:
        """`image` is the published one."""
        self._config = config
        self._partitions = partitions
        self._image = image
        self._clock = clock
        self.persister = persister
        self.dead_letters = dead_letters
        self.sessions = ShareSessionCache()
        # Of each acknowledge type.
        self.acknowledged: Counter[int] = Counter()
        self.expired_locks = 0
        self.load_times = RecentTimes()
        # Of each group with members here.
        self.fetch_times: dict[str, ShareFetchTimes] = {}
        self._led: dict[_GroupPartition, LedSharePartition] = {}
        self._loading: dict[_GroupPartition, asyncio.Task[LedSharePartition]] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def __iter__(self) -> Iterator[LedSharePartition]:
        return iter(tuple(self._led.values()))

    def now_ms(self) -> int:
        """The monotonic clock."""
        return self._clock.monotonic_ms()

    def has_topic(self, topic_id: bytes) -> bool:
        """Whether there is such a topic."""
        return topic_id in self._image.topics_by_id

    def value_of(self, group_id: str, name: str) -> object:
        """A group's value of a setting."""
        return group_value(self._config.current, self._image.group_configs.get(group_id, {}), name)

    def config_of(self, group_id: str) -> SharePartitionConfig:
        """What a group sets of its share partitions."""

        def number(name: str) -> int:
            value = self.value_of(group_id, name)
            assert isinstance(value, int)
            return value

        return SharePartitionConfig(
            lock_ms=number("share.record.lock.duration.ms"),
            delivery_count_limit=number("share.delivery.count.limit"),
            record_locks_max=number("share.partition.max.record.locks"),
            may_renew=bool(self.value_of(group_id, "share.renew.acknowledge.enable")),
            has_dead_letter_topic=bool(self.dead_letters.topic_of(group_id)),
        )

    # -- share partitions ---------------------------------------------------------------------------

    def get(self, group_id: str, partition_id: PartitionId) -> LedSharePartition | None:
        """A share partition, if it is loaded; raises KafkaError if its partition is not led here."""
        self._leader(partition_id)
        return self._led.get((group_id, partition_id))

    async def loaded(
        self, group_id: str, partition_id: PartitionId, find_start: FindStart
    ) -> LedSharePartition:
        """The share partition, once it is loaded; raises KafkaError. All who wait for a load share it."""
        key = group_id, partition_id
        leader = self._leader(partition_id)
        led = self._led.get(key)
        if led is not None:
            return led
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.get_running_loop().create_task(
                self._load(group_id, leader, find_start), name=f"load {group_id} {leader.topic}"
            )
            loading.add_done_callback(lambda task: self._load_ended(key, task))
        return await asyncio.shield(loading)

    async def _load(
        self, group_id: str, leader: LeaderPartition, find_start: FindStart
    ) -> LedSharePartition:
        led = LedSharePartition(self, group_id, leader)
        began_ms = self.now_ms()
        try:
            await led.load(find_start)
            now_ms = self.now_ms()
            self.load_times.add((now_ms - began_ms) / 1000, now_ms / 1000)
        except BaseException:
            led.close()
            raise
        if led.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._led[led.key] = led
        led.begin_dead_letters()
        return led

    def _load_ended(self, key: _GroupPartition, task: asyncio.Task[LedSharePartition]) -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()  # Those who wait have it; without one it is of no use.

    def _leader(self, partition_id: PartitionId) -> LeaderPartition:
        topic = self._image.topics_by_id.get(partition_id[0])
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        led = self._partitions.find(topic.name, partition_id[1])
        if led is None:
            raise KafkaError(self._partitions.why_absent(topic.name, partition_id[1]))
        return led

    def forget(self, led: LedSharePartition) -> None:
        """The next fetch loads it, wherever its leader is."""
        if self._led.get(led.key) is led:
            del self._led[led.key]
        led.close()

    def count_fetch(self, group_id: str, *, waited_ms: int, percent: float) -> None:
        """A fetch of this group has waited so long until it could read so much of what it asked for."""
        times = self.fetch_times.get(group_id)
        if times is None:
            if not self.sessions.has_members(group_id):
                return
            times = self.fetch_times[group_id] = ShareFetchTimes()
        times.add(waited_ms, percent, self.now_ms())

    # -- sessions -----------------------------------------------------------------------------------

    def leave(self, key: ShareSessionKey) -> list[tuple[PartitionId, Awaitable[None]]]:
        """End a session; what the member has is released. The outcomes are of the partitions that are loaded."""
        session = self.sessions.close(key)
        return [] if session is None else self.release(session)

    def disconnected(self, connection: object) -> None:
        """A connection is lost, and with it the sessions that began on it."""
        for key in self.sessions.begun_on(connection):
            self.leave(key)

    def release(self, session: ShareSession) -> list[tuple[PartitionId, Awaitable[None]]]:
        """What a member has, whose session has ended, is available again."""
        key = session.key
        released: list[tuple[PartitionId, Awaitable[None]]] = []
        for partition_id in session.partitions:
            led = self._led.get((key.group_id, partition_id))
            if led is not None:
                task = asyncio.ensure_future(led.release(key.member_id))
                # Nobody may wait for it; its locks expire all the same.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                released.append((partition_id, task))
        if not self.sessions.has_members(key.group_id):
            ending = asyncio.ensure_future(self._forget_group(key.group_id, released))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        return released

    async def _forget_group(
        self, group_id: str, released: Sequence[tuple[PartitionId, Awaitable[None]]]
    ) -> None:
        await asyncio.gather(*(task for _, task in released), return_exceptions=True)
        writing = [led.writing_dead_letters for led in self if led.group_id == group_id]
        await asyncio.gather(*filter(None, writing), return_exceptions=True)
        if not self.sessions.has_members(group_id):
            self.fetch_times.pop(group_id, None)
            for led in self:
                if led.group_id == group_id:
                    self.forget(led)

    def stop(self) -> None:
        """Deliver nothing more."""
        for loading in tuple(self._loading.values()):
            loading.cancel()
        for led in self:
            self.forget(led)
            led.stop_writing()
        self.dead_letters.stop()
