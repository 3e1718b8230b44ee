"""Shell: takes over diskless partitions that this broker is to lead, and says what their write-ahead log needs no more.

A take-over fences the table and reads its end, fences the write-ahead logs that the registration names, begins the
local log at the table's end, appends what counts as a follower would, and puts it again into this broker's own
log. Only when all of that is in the store it tells the controller, whose answer, as metadata, lets the partition lead.
What fails is tried again; nothing of a failed attempt is trusted. A table that has lost what logs no longer have is
not gone on from: offsets would be used twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.diskless.ended_wals import EndedWals
from broker.diskless.take_over import (
    FoundEntry,
    FoundRecords,
    TakenPartition,
    contiguous,
    lost_offsets,
)
from broker.diskless.wal_object import CorruptWalObject
from broker.log.log import NOTHING_REMOTE
from broker.log.values import RemoteLogAuxState
from broker.metadata.events import PartitionRegistration, WalId
from broker.replica.diskless_switch import DisklessSwitch
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.batch import HEADER, HEADER_BYTES, BatchHeader

if TYPE_CHECKING:
    from broker.diskless.write_ahead_log import WriteAheadLog
    from broker.log.directories.log_manager import LogManager
    from broker.membership.requests import ControllerRequests
    from broker.metadata.image import MetadataImage
    from broker.remote.remote_log_manager import RemoteLogManager
    from broker.replica.replicas import Replicas
    from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)

# What comes within so long is taken over together: a dead broker's partitions come in one commit, applied in parts.
GATHERING_SECONDS = 0.02
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 8.0
PARTITIONS_AT_ONCE = 1_000
# So much is appended before other tasks get their turn.
APPENDED_AT_ONCE_BYTES = 1 << 20
# Objects that are read at the same time.
READS_AT_ONCE = 12
# Partitions of which the lake is asked at the same time what precedes their records.
AUX_STATES_AT_ONCE = 16


@dataclass(slots=True)
class _TakeOver:
    """One partition, in the leader epoch in which it is taken over."""

    partition: LeaderPartition
    registration: PartitionRegistration
    leader_epoch: int
    is_of_copy: bool
    """Whether the lake was a copy (`kafka-ds promote`), in which objects may be missing for good."""
    table_end: int | None = None
    """The last offset in the table, since its earlier leaders are fenced; -1 for none."""
    incomplete_end: int | None = None
    """The same, when an attempt has found that records behind it are missing."""
    has_failed: bool = False
    """Whether this attempt has failed."""
    is_appended: bool = False
    """Whether the local log has all that counts, and the rest is a matter of the write-ahead log."""
    appended_epoch: int | None = None
    """The leader epoch of the last batch that this attempt has appended."""
    is_cut: bool = False
    """Whether what follows in the logs of a copy continues other records than those that were appended."""

    @property
    def is_current(self) -> bool:
        leader = self.partition.leader
        is_same = leader.leader_epoch == self.leader_epoch and leader.is_recovering
        return is_same and not self.partition.is_lost

    @property
    def name(self) -> str:
        return self.partition.log.name

    def continues(self, batch: BatchHeader) -> bool:
        """Whether this batch may follow the last one: leader epochs never go back, and each leader takes whole batches.

        Not so what a leader has left out, and a copy's older metadata still count.
        """
        if not self.is_of_copy or self.appended_epoch is None:
            return True
        return (
            batch.leader_epoch >= self.appended_epoch
            and batch.base_offset >= self.partition.log.log_end_offset
        )


class DisklessPartitions:
    """The diskless partitions of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        wal: WriteAheadLog,
        *,
        logs: LogManager,
        image: MetadataImage,
        clock: Clock,
        remote_log_manager: RemoteLogManager,
        controller: ControllerRequests,
    ) -> None:
        self._replicas = replicas
        self.wal = wal
        self._reader = wal.reader
        self._logs = logs
        self._image = image
        self._clock = clock
        self._remote_log_manager = remote_log_manager
        self._controller = controller
        self.ended = EndedWals(
            wal.store, wal.executor, image, is_active=lambda: controller.is_controller_here
        )
        self._begun: dict[PartitionId, int] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Whether a group of partitions is tried for the first time: those that come meanwhile are the next group.
        self._is_trying = False
        self._said: dict[PartitionId, str] = {}
        # Those whose records are missing.
        self._incomplete: dict[PartitionId, _TakeOver] = {}
        self._stopped = False
        self.switching = DisklessSwitch(
            replicas,
            wal,
            image=image,
            clock=clock,
            remote_log_manager=remote_log_manager,
            controller=controller,
        )

    def start(self) -> None:
        """Begin to put records, and to erase what is needed no more."""
        self.wal.start(self.is_safe, self._image.topics_by_id.__contains__)
        self.wal.spawn(self.ended.run())
        self.wal.spawn(self.switching.run())

    # -- taking over ----------------------------------------------------------------------------

    def soon(self) -> None:
        """There is a partition to be taken over."""
        if self._gathering is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(GATHERING_SECONDS, self._begin)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        if self._gathering is not None:
            self._gathering.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        self.wal.stop()

    def _forget_others(self) -> None:
        """Forget partitions that are not led here any more; a broker without diskless ones looks at none."""
        if self._begun or self._said:
            led = {partition.key for partition in self._replicas}
            self._begun = {key: epoch for key, epoch in self._begun.items() if key in led}
            self._said = {key: said for key, said in self._said.items() if key in led}

    def _begin(self) -> None:
        self._gathering = None
        if self._is_trying:
            return
        self._forget_others()
        waiting: list[_TakeOver] = []
        for partition in self._replicas:
            if not partition.is_diskless or not partition.leader.is_recovering:
                continue
            found = self._image.partition(partition.topic, partition.partition)
            epoch = partition.leader.leader_epoch
            if found is None or found.leader_epoch != epoch or not self.wal.is_leaders(found.wals):
                continue  # Of an earlier process, or of a later commit: other metadata are coming.
            if self._begun.get(partition.key) != epoch and len(waiting) < PARTITIONS_AT_ONCE:
                self._begun[partition.key] = epoch
                is_of_copy = self._image.promoted_in is not None
                waiting.append(_TakeOver(partition, found, epoch, is_of_copy))
        if waiting:
            self._is_trying = True
            task = asyncio.get_running_loop().create_task(
                self._take_over(waiting), name="take over"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take_over(self, waiting: list[_TakeOver]) -> None:
        began_ms, pause_s = self._clock.monotonic_ms(), RETRY_SECONDS
        await self._try(waiting, began_ms)
        self._is_trying = False
        self.soon()
        while waiting := [each for each in waiting if each.is_current]:
            await asyncio.sleep(pause_s)
            is_failing = not all(each.is_appended for each in waiting)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX) if is_failing else RETRY_SECONDS
            await self._try([each for each in waiting if each.is_current], began_ms)
        self._count_incomplete()

    async def _try(self, waiting: Sequence[_TakeOver], began_ms: int) -> None:
        """One attempt. What fails for one partition does not keep the others."""
        for each in waiting:
            each.has_failed = False
        if waiting:
            try:
                await self._append([each for each in waiting if not each.is_appended])
                done = await self._report([each for each in waiting if each.is_appended])
                if done:
                    _LOGGER.info(
                        "Took over %d diskless partitions in %d ms",
                        done, self._clock.monotonic_ms() - began_ms,
                    )  # fmt: skip
            except (KafkaError, OSError, CorruptWalObject) as error:
                for each in waiting:
                    self._say(each, str(error) or type(error).__name__)
            except Exception:  # The root of a task: an error would go unnoticed.
                _LOGGER.exception("Unable to take over %d partitions, will try again", len(waiting))
        self._count_incomplete()

    def _count_incomplete(self) -> None:
        left = self._incomplete.items()
        self._incomplete = {k: each for k, each in left if each.is_current and not each.is_appended}
        self.wal.metrics.found_incomplete(len(self._incomplete))

    def _fail(self, taken: _TakeOver, error: BaseException) -> None:
        """This attempt has failed for this partition."""
        taken.has_failed = True
        self._say(taken, str(error) or type(error).__name__)

    def _say(self, taken: _TakeOver, what: str, *, level: int = logging.WARNING) -> None:
        """Log what a partition waits for, once, however often it is tried."""
        key = taken.partition.key
        if self._said.get(key) != what:
            self._said[key] = what
            _LOGGER.log(level, "Unable to take over %s yet: %s", taken.name, what)

    async def _append(self, waiting: Sequence[_TakeOver]) -> None:
        """Give the logs all that counts, of those partitions for which the lake answers."""
        if not waiting:
            return
        restarted = await self._restart_at_lake(waiting)
        counting = await self._counting(restarted)
        plans: dict[PartitionId, list[FoundEntry]] = {}
        for each in restarted:
            key, log = each.partition.key, each.partition.log
            if each.has_failed:
                continue
            plan = contiguous(counting.entries[key], log.log_end_offset)
            lost = lost_offsets(plan, log.log_end_offset, counting.table_ends[key])
            if lost is not None and not self._may_lose(each, *lost):
                continue
            plans[key] = plan
            self.wal.table_has(key, log.log_end_offset - 1)
            if lost is None:
                _say_what_is_left(each, counting.entries[key], plan)
        await self._append_entries({each.partition.key: each for each in restarted}, plans)
        for each in restarted:
            if each.is_current and not each.has_failed:
                each.is_appended = True
                self.wal.metrics.take_overs += 1

    async def _restart_at_lake(self, waiting: Sequence[_TakeOver]) -> list[_TakeOver]:
        """Fence the tables, and empty the logs, which go on at their ends; returns those for which the lake answers."""
        unfenced = [each for each in waiting if each.table_end is None]
        if unfenced:
            epochs = {each.partition.log.topic_id_partition: each.leader_epoch for each in unfenced}
            states = await self._remote_log_manager.fence(epochs, {})
            for each, state in zip(unfenced, states, strict=True):
                if isinstance(state, KafkaError):
                    self._say(each, f"the lake does not answer what it holds: {state}")
                    continue
                end = state.highest_offset_in_remote_storage
                if end != each.incomplete_end or _may_be_unclean(each):
                    each.table_end = end
                    each.partition.lake_begins(state.log_start_offset)
        fenced = [(each, at) for each in waiting if (at := each.table_end) is not None]
        at_once = asyncio.Semaphore(AUX_STATES_AT_ONCE)
        aux_states = await asyncio.gather(
            *(self._aux_state(each, at, at_once) for each, at in fenced)
        )
        restarted, folders = [], {}
        for (each, at), aux_state in zip(fenced, aux_states, strict=True):
            log = each.partition.log
            if aux_state is None or not each.is_current:
                continue
            try:
                self.wal.forget(each.partition)
                each.partition.restart_at(at + 1, aux_state)
            except OSError as error:
                self._say(each, f"its log cannot begin at the end of the lake: {error}")
                continue
            each.appended_epoch, each.is_cut = None, False
            folders[log.directory.rpartition("/")[0]] = log.directory
            restarted.append(each)
        for folder in folders.values():
            await self._logs.checkpoint_recovery_points(folder)
        return restarted

    async def _aux_state(
        self, taken: _TakeOver, end: int, at_once: asyncio.Semaphore
    ) -> RemoteLogAuxState | None:
        """What precedes the records behind the table's end; None if the lake does not answer."""
        aux_state = NOTHING_REMOTE
        if end >= 0:
            try:
                async with at_once:
                    _, aux_state = await self._remote_log_manager.aux_state(
                        taken.partition.log.topic_id_partition, end
                    )
            except (KafkaError, OSError) as error:
                self._say(taken, f"the lake does not answer what it holds: {error}")
                return None
        # Markers that end what is in the table may be in the write-ahead logs.
        return replace(aux_state, has_markers_to_come=True)

    def _may_lose(self, taken: _TakeOver, first: int, last: int) -> bool:
        """Acknowledged records are gone: whether their offsets may be used again, as the topic is set."""
        if _may_be_unclean(taken):
            _LOGGER.error(
                "%s: offsets %d to %d were acknowledged, and are neither in the topic's table nor in write-ahead logs: "
                "leading without them, as unclean.leader.election.enable is true",
                taken.name, first, last,
            )  # fmt: skip
            return True
        taken.has_failed = True
        taken.table_end, taken.incomplete_end = None, taken.table_end
        self._incomplete[taken.partition.key] = taken
        self._say(
            taken,
            f"offsets {first} to {last} were acknowledged, and are neither in the topic's table, which has lost them, "
            "nor in write-ahead logs (docs/how-to/repair-the-lake.md); bring them back into the table, or set "
            "unclean.leader.election.enable=true for the topic to use their offsets again",
            level=logging.ERROR,
        )
        return False

    async def _counting(self, waiting: Sequence[_TakeOver]) -> FoundRecords:
        """Fence the write-ahead logs of earlier leaders; what counts in them."""
        of_wal: defaultdict[WalId, dict[PartitionId, TakenPartition]] = defaultdict(dict)
        found = FoundRecords({}, {})
        for each in waiting:
            key, registration = each.partition.key, each.registration
            found.entries[key] = []
            found.table_ends[key] = self.wal.table_end(key)
            for wal in registration.wals:
                if wal != self.wal.wal_id or self.wal.knows(key):
                    of_wal[wal][key] = TakenPartition(each.leader_epoch, registration.wals_since)
        read = await asyncio.gather(
            *(self._reader.take_over(wal, partitions) for wal, partitions in of_wal.items()),
            return_exceptions=True,
        )
        by_key = {each.partition.key: each for each in waiting}
        for partitions, some in zip(of_wal.values(), read, strict=True):
            if isinstance(some, BaseException):
                for key in partitions:
                    self._fail(by_key[key], _expected(some))
                continue
            for key, entries in some.entries.items():
                found.entries[key] += entries
            for key, end in some.table_ends.items():
                found.table_ends[key] = max(end, found.table_ends[key])
        return found

    async def _append_entries(
        self, waiting: dict[PartitionId, _TakeOver], plans: dict[PartitionId, list[FoundEntry]]
    ) -> None:
        """Read objects, and append what is in them, each partition's in the order of offsets."""
        objects: defaultdict[tuple[WalId, int], list[FoundEntry]] = defaultdict(list)
        # In the order of places, and logs with earlier offsets first: what comes too early waits in memory.
        rank: dict[WalId, int] = {}
        for plan in plans.values():
            for entry in plan:
                rank.setdefault(entry.wal, len(rank))
                objects[entry.wal, entry.place].append(entry)
        next_of = {key: iter(plan) for key, plan in plans.items()}
        expected = {key: next(rest, None) for key, rest in next_of.items()}
        ahead: dict[FoundEntry, bytes] = {}
        order = sorted(objects, key=lambda where: (rank[where[0]], where[1]))
        for start in range(0, len(order), READS_AT_ONCE):
            some = order[start : start + READS_AT_ONCE]
            read = await asyncio.gather(
                *(self._reader.bodies(*where, objects[where]) for where in some),
                return_exceptions=True,
            )
            for where, bodies in zip(some, read, strict=True):
                keys = {each.entry.key for each in objects[where]}
                if isinstance(bodies, BaseException):
                    for key in keys:
                        self._fail(waiting[key], _expected(bodies))
                    continue
                ahead |= zip(objects[where], bodies, strict=True)
                for key in keys:
                    while (due := expected[key]) is not None and due in ahead:
                        data = ahead.pop(due)
                        if not (waiting[key].has_failed or waiting[key].is_cut):
                            await self._append_batches(waiting[key], data)
                        expected[key] = next(next_of[key], None)

    async def _append_batches(self, taken: _TakeOver, data: bytes) -> None:
        """Append what of an entry the log lacks."""
        log = taken.partition.log
        for first, last, batches in _pieces(data, log.log_end_offset):
            if not taken.is_current:
                return
            end = log.log_end_offset
            if not taken.continues(first):
                taken.is_cut = True
                _LOGGER.warning(
                    "%s: what the write-ahead logs have from offset %d on was put by an earlier leader than what "
                    "precedes it, which has left it out: leaving it out",
                    taken.name, end,
                )  # fmt: skip
                return
            try:
                taken.partition.take_over(batches, self._clock.now_ms())
                if log.log_end_offset == end:
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE, f"no batch follows offset {end} of {log.name}"
                    )
            except (KafkaError, OSError) as error:
                self._fail(taken, error)
                return
            taken.appended_epoch = last.leader_epoch
            await asyncio.sleep(0)

    async def _report(self, waiting: Sequence[_TakeOver]) -> int:
        """Tell the controller which partitions' records are all in this broker's own write-ahead log; how many."""
        wait = [
            each.partition.acknowledgement(each.partition.log.log_end_offset - 1, acks=1)
            for each in waiting
            if each.partition.leader.effective_end_offset < each.partition.log.log_end_offset
        ]
        if wait:
            _, left = await asyncio.wait(wait, timeout=RETRY_SECONDS)
            for future in left:
                future.cancel()
        done = [
            each.partition.key
            for each in waiting
            if each.is_current
            and self._is_latest(each)
            and each.partition.leader.effective_end_offset == each.partition.log.log_end_offset
        ]
        if done:
            await self.wal.checkpoint()
            await self._controller.recovered(done)
            for key in done:
                self._said.pop(key, None)
        return len(done)

    def _is_latest(self, taken: _TakeOver) -> bool:
        """Whether the metadata know of no later leader epoch, for which the partition must be taken over again."""
        found = self._image.partition(taken.partition.topic, taken.partition.partition)
        return found is not None and found.leader_epoch == taken.leader_epoch

    # -- cleaning up ----------------------------------------------------------------------------

    def is_safe(self, key: PartitionId, last_offset: int) -> bool:
        """Whether records up to this offset are needed in this broker's write-ahead log no more."""
        topic = self._image.topics_by_id.get(key[0])
        registration = topic.partitions.get(key[1]) if topic is not None else None
        if topic is None or registration is None:
            return True
        if self.wal.wal_id not in registration.wals:
            return not self.switching.may_be_named(key, registration.leader_epoch)
        partition = self._replicas.find(topic.name, key[1])
        if partition is None or partition.topic_id != key[0] or partition.leader.is_recovering:
            return False
        return last_offset <= partition.log.highest_offset_in_remote_storage


def _may_be_unclean(taken: _TakeOver) -> bool:
    return taken.partition.log.config.unclean_leader_election_enable


def _expected(error: BaseException) -> BaseException:
    """An error of the store or of what is in it; any other is raised."""
    if not isinstance(error, KafkaError | OSError | CorruptWalObject):
        raise error
    return error


def _pieces(data: bytes, next_offset: int) -> Iterable[tuple[BatchHeader, BatchHeader, memoryview]]:
    """The batches from the one that holds this offset, in pieces of whole ones, with the first and last header."""
    view = memoryview(data)
    begin = position = 0
    first: BatchHeader | None = None
    while len(data) - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        position += header.size_in_bytes
        if header.last_offset < next_offset:
            begin = position
            continue
        first = first or header
        if position - begin >= APPENDED_AT_ONCE_BYTES:
            yield first, header, view[begin:position]
            begin, first = position, None
    if first is not None:
        yield first, header, view[begin:position]


def _say_what_is_left(
    taken: _TakeOver, found: Sequence[FoundEntry], plan: Sequence[FoundEntry]
) -> None:
    """Log what lies behind a gap: acknowledgements are given in order, so it was never acknowledged.

    But where the gap is an object that never arrived in a copy of the lake.
    """
    end = plan[-1].entry.last_offset + 1 if plan else taken.partition.log.log_end_offset
    left = [each.entry for each in found if each.entry.last_offset >= end]
    if left:
        _LOGGER.log(
            logging.WARNING if taken.is_of_copy else logging.INFO,
            "%s: offsets %d to %d were put behind a gap at %d, %s: leaving them out",
            taken.name, min(each.first_offset for each in left),
            max(each.last_offset for each in left), end,
            "and are lost if the gap is what this copy of the lake never got"
            if taken.is_of_copy else "so never acknowledged",
        )  # fmt: skip
