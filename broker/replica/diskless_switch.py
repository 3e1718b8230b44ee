"""Shell: makes partitions diskless whose topic has become so, and replicated again (docs/concepts/diskless.md).

The leader takes no more appends, puts all that the table lacks into its write-ahead log, and only then asks the
controller, which makes the partition diskless in a new leader epoch: it is taken over from the write-ahead log. On the
way back all of it is copied into the table. The commit counts what this epoch has, so a leader that has asked never
appends in this epoch again: its request may arrive late. Until it asks it may go on as before. What was put stays while
a commit may still name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from broker.log.values import LogRead
from broker.metadata.events import TO_DISKLESS, TO_REPLICATED
from broker.metadata.topic_names import LAKE_DISKLESS
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

if TYPE_CHECKING:
    from broker.diskless.write_ahead_log import WriteAheadLog
    from broker.membership.requests import ControllerRequests
    from broker.metadata.image import MetadataImage
    from broker.remote.remote_log_manager import RemoteLogManager
    from broker.replica.replicas import Replicas
    from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Producers wait for partitions that are being put, so few are at a time, none of them with much to put, or for long.
PARTITIONS_AT_ONCE = 100
BYTES_MAX = 32 << 20
PUT_SECONDS = COPY_SECONDS = 10.0
ASK_SECONDS = 0.5
COPY_LOOK_SECONDS = 0.1
# How long a partition that could not be put takes appends before the next attempt; twice as long after each failure.
RETRY_MS, RETRY_MS_MAX = 2_000, 60_000
UNANSWERED_SECONDS = 10.0


class PartitionSwitch:
    """One partition, in the leader epoch in which it takes no appends."""

    def __init__(self, partition: LeaderPartition) -> None:
        self.partition = partition
        self.key = partition.key
        self.leader_epoch = partition.leader_epoch

    @property
    def is_current(self) -> bool:
        """Whether this broker leads it in this epoch."""
        return not self.partition.is_lost and self.partition.leader_epoch == self.leader_epoch

    def resume(self) -> None:
        """Take appends again: nothing was asked for."""
        if self.is_current:
            self.partition.give_up_switch()


class SwitchingPartition(PartitionSwitch):
    """One partition, in the leader epoch in which it takes no appends: what of it is in the write-ahead log."""

    state = TO_DISKLESS

    def __init__(self, partition: LeaderPartition) -> None:
        super().__init__(partition)
        self.first_offset = partition.log.highest_offset_in_remote_storage + 1
        self._put_to = self.first_offset
        self._error: str | None = None
        """Why it cannot be put; empty for want of time."""
        self.ended = asyncio.Event()
        """All was put, or cannot be."""
        partition.begin_switch()

    def begin(self, wal: WriteAheadLog, size: int) -> None:
        """Put all that the table lacks, of so many bytes."""
        end = self.partition.log.log_end_offset
        if self.first_offset < end:
            wal.appended(self, self.first_offset, end, size, is_again=True)
        else:
            self.ended.set()

    @property
    def is_put(self) -> bool:
        """Whether the write-ahead log has all that the table lacks."""
        return self._error is None and self._put_to == self.partition.log.log_end_offset

    @property
    def why_not(self) -> str:
        """Why not all of it was put."""
        return self._error or f"the store has not taken its records within {PUT_SECONDS:g} s"

    # -- for the write-ahead log ----------------------------------------------------------------

    def read_appended(self, offset: int, max_bytes: int) -> LogRead:
        """Whole batches up to the log's end. Raises OSError, KafkaError."""
        return self.partition.read_appended(offset, max_bytes)

    def wal_has(self, first_offset: int, end_offset: int) -> None:
        """The write-ahead log has these records; those of an earlier attempt may come before."""
        if first_offset <= self._put_to < end_offset:
            self._put_to = end_offset
        if self.is_put:
            self.ended.set()

    def failed_to_put(self, error: Exception) -> None:
        """What was appended is never put."""
        self._error = self._error or str(error)
        self.ended.set()

    def deposed(self, leader_epoch: int) -> None:
        """A leader of this later epoch has fenced the write-ahead log."""
        self.failed_to_put(RuntimeError(f"a leader of epoch {leader_epoch} has fenced its log"))


class ReturningPartition(PartitionSwitch):
    """One diskless partition, in the leader epoch in which it takes no appends: whether its table has all of it."""

    state = TO_REPLICATED
    why_not = f"its table did not get all of it within {COPY_SECONDS:g} s"

    def __init__(self, partition: LeaderPartition, remote_log_manager: RemoteLogManager) -> None:
        super().__init__(partition)
        self._remote_log_manager = remote_log_manager
        partition.begin_switch(ends_transactions=True)

    @property
    def is_copied(self) -> bool:
        """Whether everything was acknowledged, and the table has it, with the log start."""
        log, tier = self.partition.log, self._remote_log_manager
        end, start = log.log_end_offset, tier.lake_log_start(*self.key)
        if end == 0:
            return True
        return (
            self.partition.high_watermark == end
            and tier.highest_offset_in_remote_storage(*self.key) == end - 1
            and start is not None
            and start >= log.log_start_offset
        )


class DisklessSwitch:
    """The partitions of one broker that become diskless, or replicated again."""

    def __init__(
        self,
        replicas: Replicas,
        wal: WriteAheadLog,
        *,
        image: MetadataImage,
        clock: Clock,
        remote_log_manager: RemoteLogManager,
        controller: ControllerRequests,
    ) -> None:
        self._replicas = replicas
        self._wal = wal
        self._image = image
        self._clock = clock
        self._remote_log_manager = remote_log_manager
        self._controller = controller
        # The leader epochs in which something was put.
        self._put_in: dict[PartitionId, int] = {}
        self._said: dict[PartitionId, str] = {}
        self._backoffs: dict[PartitionId, Backoff] = {}
        # Those that take no appends until the controller has decided.
        self._asked: Sequence[SwitchingPartition | ReturningPartition] = ()
        self._warning: asyncio.TimerHandle | None = None

    def may_be_named(self, key: PartitionId, leader_epoch: int) -> bool:
        """Whether a registration of a later epoch than this one may name this write-ahead log for what is there now."""
        return self._put_in.get(key, -1) >= leader_epoch

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        try:
            while True:
                await asyncio.sleep(ASK_SECONDS if self._asked else LOOK_SECONDS)
                try:
                    await self.switch()
                except Exception:  # The root of a task: an error would go unnoticed.
                    _LOGGER.exception("Unable to switch partitions, will try again")
        finally:
            self._set_asked(())

    async def switch(self) -> None:
        """Ask for those partitions that are ready, until they have switched or another one leads them; then for others.

        None of the others waits for a controller that has not answered, or for a store that is away.
        """
        self._forget_others()
        if (wal_id := self._wal.wal_id) is None:
            return
        self._set_asked([each for each in self._asked if each.is_current])
        if not self._asked and not self._wal.away_ms:
            if chosen := self._chosen():
                self._set_asked(await self._put(chosen))
            elif returning := self._returning():
                self._set_asked(await self._copy(returning))
        if self._asked:
            epochs, state = (
                {each.key: each.leader_epoch for each in self._asked},
                self._asked[0].state,
            )
            try:
                await self._controller.switch_partitions(epochs, state, wal_id.broker_epoch)
            except (KafkaError, OSError) as error:
                for each in self._asked:
                    self._say(each.partition, f"the controller has not agreed: {error}")

    def _set_asked(self, asked: Sequence[SwitchingPartition | ReturningPartition]) -> None:
        """The controller is asked for these, and for no others until it has decided."""
        self._asked = asked
        if self._warning is not None and not asked:
            self._warning.cancel()
            self._warning = None
        elif self._warning is None and asked:
            self._warning = asyncio.get_running_loop().call_later(UNANSWERED_SECONDS, self._warn)

    def _warn(self) -> None:
        names = ", ".join(each.partition.log.name for each in self._asked if each.is_current)
        if names:
            _LOGGER.warning(
                "%s take no records: the controller has not made the switch within %g s, asking it again",
                names, UNANSWERED_SECONDS,
            )  # fmt: skip

    async def _put(self, chosen: Mapping[LeaderPartition, int]) -> list[SwitchingPartition]:
        """Put what the table lacks of these partitions, so many bytes each; those of which the store has all."""
        _LOGGER.info("Making %s diskless", counted(len(chosen), "partition"))
        switching: list[SwitchingPartition] = []
        done: list[SwitchingPartition] = []
        left = switching
        try:
            for partition, size in chosen.items():
                switching.append(each := SwitchingPartition(partition))
                self._put_in[each.key] = each.leader_epoch
                self._wal.table_has(each.key, each.first_offset - 1)
                each.begin(self._wal, size)
            waiting = asyncio.gather(*(each.ended.wait() for each in switching))
            with suppress(TimeoutError):
                await asyncio.wait_for(waiting, PUT_SECONDS)
            left = [each for each in switching if each.is_put]
            self._resume([each for each in switching if each not in left])
            if left:
                # It says what the table must have where the write-ahead log has nothing.
                await asyncio.wait_for(self._wal.checkpoint(), PUT_SECONDS)
            done = [each for each in left if each.is_put and each.is_current]
        except Exception as error:
            for each in left:
                each.failed_to_put(error)
            if not isinstance(error, OSError):
                raise
        finally:
            for each in done:
                self._wal.forget(each)
                self._backoffs.pop(each.key, None)
            self._resume([each for each in left if each not in done])
        return done

    async def _copy(self, chosen: Iterable[LeaderPartition]) -> list[ReturningPartition]:
        """Let the tables have all of these partitions; those of which they do."""
        returning: list[ReturningPartition] = []
        done: list[ReturningPartition] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COPY_SECONDS
        try:
            for partition in chosen:
                returning.append(ReturningPartition(partition, self._remote_log_manager))
            _LOGGER.info("Making %s replicated", counted(len(returning), "diskless partition"))
            while left := [each for each in returning if each.is_current and not each.is_copied]:
                if loop.time() >= deadline:
                    break
                for each in left:
                    self._remote_log_manager.copies.copy_active(each.key)
                await asyncio.sleep(COPY_LOOK_SECONDS)
            for each in returning:
                if each.is_current and each.is_copied:
                    # From now on it has asked.
                    each.partition.begin_switch()
                    done.append(each)
        finally:
            for each in done:
                self._backoffs.pop(each.key, None)
            self._resume([each for each in returning if each not in done])
        return done

    def _resume(self, failed: Iterable[SwitchingPartition | ReturningPartition]) -> None:
        """Let them take appends again, for a while: the controller was not asked."""
        now_ms = self._clock.monotonic_ms()
        for each in failed:
            if isinstance(each, SwitchingPartition):
                self._wal.forget(each)
                self._put_in.pop(each.key, None)
            self._backoffs.setdefault(each.key, Backoff(RETRY_MS, RETRY_MS_MAX)).failed(now_ms)
            self._say(each.partition, each.why_not)
            try:
                each.resume()
            except Exception:
                _LOGGER.exception("%s: unable to take up appends", each.partition.log.name)

    def _forget_others(self) -> None:
        """Forget what no commit can name any more."""
        topics = self._image.topics_by_id
        if self._said or self._backoffs:
            led = {partition.key for partition in self._replicas if self._may_switch(partition)}
            self._said = {key: said for key, said in self._said.items() if key in led}
            self._backoffs = {key: each for key, each in self._backoffs.items() if key in led}
        self._put_in = {
            key: epoch
            for key, epoch in self._put_in.items()
            if (topic := topics.get(key[0])) is not None
            and (holds := topic.partitions.get(key[1])) is not None
            and holds.leader_epoch <= epoch
        }

    def _chosen(self) -> dict[LeaderPartition, int]:
        """Partitions that may switch now, together not too much, and the bytes that their table lacks."""
        chosen: dict[LeaderPartition, int] = {}
        left, now_ms = BYTES_MAX, self._clock.monotonic_ms()
        diskless = (topic.name for topic in self._image.topics.values() if topic.is_diskless)
        for partition in chain.from_iterable(map(self._replicas.led_of, diskless)):
            if len(chosen) == PARTITIONS_AT_ONCE:
                break
            if partition.is_diskless or partition.is_switching:
                continue
            if not self._is_ready(partition, now_ms):
                continue
            size = self._size(partition, partition.log.highest_offset_in_remote_storage + 1)
            if isinstance(size, str):
                self._say(partition, size)
            elif size <= left:
                chosen[partition] = size
                left -= size
        return chosen

    def _is_ready(self, partition: LeaderPartition, now_ms: int) -> bool:
        backoff = self._backoffs.get(partition.key)
        return backoff is None or backoff.ready(now_ms)

    def _may_switch(self, partition: LeaderPartition) -> bool:
        topic = self._image.topics_by_id.get(partition.topic_id)
        return topic is not None and topic.is_diskless != partition.is_diskless

    def _returning(self) -> list[LeaderPartition]:
        """Diskless partitions that may be replicated now, together with not too much that their tables lack."""
        found: list[LeaderPartition] = []
        left, now_ms = BYTES_MAX, self._clock.monotonic_ms()
        topics = self._image.topics.values()
        returning = (e.name for e in topics if LAKE_DISKLESS in e.configs and not e.is_diskless)
        for partition in chain.from_iterable(map(self._replicas.led_of, returning)):
            if len(found) == PARTITIONS_AT_ONCE:
                break
            if not partition.is_diskless or not self._is_ready(partition, now_ms):
                continue
            copied = self._remote_log_manager.highest_offset_in_remote_storage(*partition.key)
            size = self._size(partition, 0 if copied is None else copied + 1)
            if isinstance(size, str):
                self._say(partition, size)
            elif size <= left:
                found.append(partition)
                left -= size
        return found

    def _say(self, partition: LeaderPartition, why: str) -> None:
        """Log what a partition waits for, once, however often it is looked at."""
        if self._said.get(partition.key) != why and not partition.is_lost:
            self._said[partition.key] = why
            kind = "replicated" if partition.is_diskless else "diskless"
            _LOGGER.info("%s is not %s yet: %s", partition.log.name, kind, why)

    def _size(self, partition: LeaderPartition, first: int) -> int | str:
        """How many bytes there are from this offset on, up to which the table counts; or why it cannot switch yet.

        What was deleted must not be there again, so the table has to have the log start. What the store lacks of the
        table may be in followers' logs alone.
        """
        log, leader = partition.log, partition.leader
        holds = self._image.partition(partition.topic, partition.partition)
        if holds is None or holds.leader_epoch != leader.leader_epoch or leader.is_recovering:
            return "its leader does not lead yet"
        end = log.log_end_offset
        start = self._remote_log_manager.lake_log_start(*partition.key)
        if end and (start is None or start < log.log_start_offset):
            return "it is not known that its table has its log start"
        if gaps := self._remote_log_manager.missing_of(*partition.key):
            return (
                f"the store lacks data files of its table, of offsets {gaps[0][0]} to {gaps[-1][1]}"
            )
        size = 0
        with suppress(KafkaError, OSError):
            # A read ends with its segment.
            while first < end and (found := partition.read_appended(first, BYTES_MAX)).slices:
                first, size = found.upper_bound_offset, size + found.size_bytes
                if size > BYTES_MAX:
                    why = (
                        "are not in its table yet"
                        if partition.is_diskless
                        else "may not leave its local log yet (lake.local.grace.ms)"
                    )
                    return f"more than {BYTES_MAX} bytes {why}"
        return size if first == end else f"its log does not have all behind the table, from {first}"
