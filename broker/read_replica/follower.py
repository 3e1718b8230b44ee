"""Shell: keeps a read-only broker current: follows the cluster's metadata, the tables' ends and the groups' offsets.

It only reads, in this order: metadata from the log's table, then where each table ends, then the checkpoint of offsets;
so a topic is known before its records, and these before the positions of their readers. A store that does not answer
leaves all as it is, and is asked again. Metadata that cannot be followed end the broker (`failed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor

from broker.metadata.events import Event
from broker.metadata.log import MetadataLog
from broker.read_replica.groups import LakeGroups
from broker.read_replica.image import ServedImage
from broker.read_replica.metrics import FollowerMetrics
from broker.read_replica.partitions import LakePartition, LakePartitions
from broker.worker.rpc import (
    PublishedOffsets,
    ReadArrivals,
    ReadAuxState,
    ReadTieredState,
    Unavailable,
)
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_from_text

_LOGGER = logging.getLogger(__name__)

PARTITIONS_ASKED_AT_ONCE = 1_000
# Between reads of the groups' offsets, which are read whole and published every minute.
OFFSETS_MS = 5_000
# How old a commit is that is said to wait for the rest of it.
LATE_MS = 30_000


class LakeFollower:
    """Looks at the lake again and again."""

    def __init__(
        self,
        metadata_log: MetadataLog,
        served: ServedImage,
        partitions: LakePartitions,
        groups: LakeGroups,
        worker: ChildWorker,
        *,
        clock: Clock,
        executor: Executor,
        publish: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """`publish` lets events of the metadata take effect in other parts of the broker."""
        self._metadata_log = metadata_log
        self._served = served
        self._partitions = partitions
        self._groups = groups
        self._worker = worker
        self._clock = clock
        self._executor = executor
        self._publish = publish
        self._offsets_due_ms = 0
        # Of a copy of a lake: the metadata's, as the worker has one of its own for the other tables.
        store = metadata_log.delta_log.store
        self._arrived = store if isinstance(store, ArrivedStore) else None
        # The tables that were said to wait.
        self._waiting: set[str] = set()
        self._said: str | None = None
        # Why each partition could not be read, as logged last.
        self._unreadable: dict[TopicPartition, str] = {}
        self.metrics = FollowerMetrics(looked_ms=clock.monotonic_ms())

    def begin(self) -> None:
        """Serve the topics of the image as it was loaded."""
        for topic_id in tuple(self._served.image.topics_by_id):
            self._partitions.topic_changed(topic_id)

    async def run(self, interval_ms: int) -> None:
        """Follow until cancelled. Raises ForeignMetadata, VersionsMissing, ValueError."""
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            await self.look()

    async def look(self) -> None:
        """Look at everything once; a store that does not answer is logged."""
        try:
            await self._follow_metadata()
            await self._follow_tables()
            await self._follow_groups()
            await self._measure_lag()
        except (OSError, WorkerLost, WorkerFailed) as error:
            self.metrics.failed_looks += 1
            if self._said != str(error):
                self._said = str(error)
                _LOGGER.warning("The lake cannot be followed, will try again: %s", error)
            return
        if self._said is not None:
            self._said = None
            _LOGGER.info("The lake is followed again")
        self.metrics.looked_ms = self._clock.monotonic_ms()

    # -- the metadata -----------------------------------------------------------------------------

    async def _follow_metadata(self) -> None:
        served, loop = self._served, asyncio.get_running_loop()
        entries = await loop.run_in_executor(
            self._executor, self._metadata_log.read_after, served.image.version
        )
        for version, events in entries:
            concerned = served.apply(version, events)
            for topic_id in served.touched(concerned):
                self._partitions.topic_changed(topic_id)
            self._groups.topology.apply(concerned)
            await self._publish(concerned)
        self.metrics.version = served.image.version

    # -- the tables -------------------------------------------------------------------------------

    async def _follow_tables(self) -> None:
        asked = list(self._partitions)
        unreadable: dict[TopicPartition, str] = {}
        for start in range(0, len(asked), PARTITIONS_ASKED_AT_ONCE):
            part = asked[start : start + PARTITIONS_ASKED_AT_ONCE]
            states = await self._worker.send(
                ReadTieredState(partitions=[each.log.topic_id_partition for each in part])
            )
            for partition, state in zip(part, states, strict=True):
                if isinstance(state, Unavailable):
                    unreadable[TopicPartition(partition.topic, partition.partition)] = state.message
                else:
                    end = state.highest_offset_in_remote_storage + 1
                    partition.reaches(end, state.log_start_offset)
        for key, message in unreadable.items():
            if self._unreadable.get(key) != message:
                _LOGGER.warning("%s: the table cannot be read: %s", key, message)
        self._unreadable = unreadable
        self.metrics.unreadable = len(unreadable)

    async def know_epochs(self, named: Iterable[TopicPartition]) -> None:
        """Read the leader epochs of partitions up to where they end now, unless they are known.

        If the lake does not answer, those that were known before stay.
        """
        found = dict.fromkeys(self._partitions.find(*each) for each in named)
        await asyncio.gather(*(self._know_epochs(each) for each in found if each is not None))

    async def _know_epochs(self, partition: LakePartition) -> None:
        end = partition.high_watermark
        if end <= partition.log.epochs_end:
            return
        request = ReadAuxState(
            partition=partition.log.topic_id_partition, offset=end - 1, has_producers=False
        )
        try:
            state = await self._worker.send(request)
        except (WorkerLost, WorkerFailed) as error:
            _LOGGER.warning(
                "%s-%d: leader epochs up to offset %d cannot be read: %s",
                partition.topic, partition.partition, end, error,
            )  # fmt: skip
        else:
            partition.epochs_found(state.leader_epochs, end)

    # -- groups -----------------------------------------------------------------------------------

    async def _follow_groups(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._offsets_due_ms:
            return
        self._offsets_due_ms = now_ms + OFFSETS_MS
        published = await self._worker.send(PublishedOffsets())
        if published == self._groups.published:
            return
        self._groups.load(published)
        for each in published.partitions:
            partition = self._partitions.of_id(uuid_from_text(each.topic_id), each.partition)
            if partition is not None:
                partition.ended_at(each.log_end_offset)

    # -- lag --------------------------------------------------------------------------------------

    async def _measure_lag(self) -> None:
        behind: Counter[str] = Counter()
        for each in self._partitions:
            behind[each.topic] += max(0, each.log.published_end - each.high_watermark)
        self.metrics.offsets_behind = behind
        if self._arrived is None:
            return
        arrivals = [*self._arrived.arrivals(), *await self._worker.send(ReadArrivals())]
        now_ms = self._clock.now_ms()
        late = {}
        for arrival in arrivals:
            if arrival.since_ms and now_ms - arrival.since_ms >= LATE_MS:
                late[arrival.table] = arrival
        for table in sorted(late.keys() - self._waiting):
            _LOGGER.warning(
                "%s is shown as of version %d of %d: it has waited %d ms for %s",
                table, late[table].version, late[table].newest, now_ms - late[table].since_ms,
                late[table].waits_for,
            )  # fmt: skip
        for table in sorted(self._waiting - late.keys()):
            _LOGGER.info("%s has arrived", table)
        self._waiting = set(late)
        self.metrics.arrivals = arrivals
