"""Shell: the broker's RemoteLogManager: decides what is copied and deleted, and answers reads of the lake.

It leaves each decision that it can to `copy_policy` and holds no lake data; the worker process does what needs Arrow.
All methods are called in the event loop; those that are not `async` never wait.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from broker.log.log import Log
from broker.log.values import RemoteLogAuxState
from broker.metrics.names import MetricSample
from broker.remote.copies import CopyLoop
from broker.remote.copy_policy import CopyPhase, CopyState, Gap
from broker.remote.expiry import ExpirationLoop
from broker.remote.local_deletion import LocalDeletion
from broker.remote.metrics import ThreadIdleRatio, TierMetrics, tier_samples
from broker.remote.optimize import OptimizeLoop
from broker.remote.partitions import TieredPartition
from broker.remote.process import new_worker
from broker.remote.quota import COPY_TIMES, FETCH_TIMES, RemoteQuota
from broker.remote.reads import RemoteReads, kafka_errors
from broker.worker.rpc import (
    UNAVAILABLE,
    Configure,
    DeleteTopic,
    FenceTopic,
    Materialise,
    MaxTimestamp,
    OffsetForTimestamp,
    OffsetsCheckpoint,
    Optimized,
    PublishedOffsets,
    Read,
    ReadAuxState,
    ReadTieredState,
    SetLogStart,
    Swept,
    TieredState,
    TierSettings,
    Unavailable,
)
from kafka_ds.ipc.child import WorkerFailed, WorkerLost
from kafka_ds.ipc.request import A, Request
from kafka_ds.process.buffers import Buffer
from kafka_ds.process.crash_points import ALL_BROKER_POINTS, armed_from_environment
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId, TopicIdPartition
from kafka_ds.records.timestamps import TimestampAndOffset

log = logging.getLogger(__name__)

# Metadata events come in bursts (a start, a topic with many partitions): one commit takes all.
MATERIALISE_SECONDS = 1.0
# When the broker stops it waits so long for a copy in flight; an unfinished copy is repeated after the start.
STOP_SECONDS = 5.0


class RemoteLogManager:
    """One broker's tiered storage: copies, cold reads, local deletion, rows of cluster events."""

    def __init__(
        self,
        settings: TierSettings,
        clock: Clock,
        in_force: Callable[[], TierSettings] | None = None,
    ) -> None:
        """`in_force` gives the current settings, some of which may change while the broker runs."""
        self._settings = settings
        self._in_force = in_force or (lambda: settings)
        self._clock = clock
        self._configured = Configure.of(settings)
        self._metrics = TierMetrics(readers=ThreadIdleRatio(settings.remote_log_reader_threads))
        self._fetch_quota = RemoteQuota(
            lambda: self._in_force().remote_log_manager_fetch_max_bytes_per_second,
            FETCH_TIMES,
            windows=settings.remote_log_manager_fetch_quota_window_num,
            window_seconds=settings.remote_log_manager_fetch_quota_window_size_seconds,
        )
        self._copy_quota = RemoteQuota(
            lambda: self._in_force().remote_log_manager_copy_max_bytes_per_second,
            COPY_TIMES,
            windows=settings.remote_log_manager_copy_quota_window_num,
            window_seconds=settings.remote_log_manager_copy_quota_window_size_seconds,
        )
        self.worker = new_worker(
            settings.worker_arguments(),
            clock,
            idle_ms=settings.lake_worker_idle_ms,
            shared_bytes=settings.lake_reader_cache_bytes,
        )
        crash_points = armed_from_environment(ALL_BROKER_POINTS)
        self.copies = CopyLoop(
            settings,
            clock,
            self.worker,
            self._metrics,
            crash_points,
            self._advanced,
            self._copy_quota,
        )
        self._expiration = ExpirationLoop(
            settings,
            clock,
            self.worker,
            self._metrics,
            crash_points,
            self.copies.led,
            self._agree_on_start,
        )
        self._optimizer = OptimizeLoop(settings, clock, self.worker, self._metrics, self.copies.led)
        self._reads = RemoteReads(
            self.worker,
            threads=settings.remote_log_reader_threads,
            pending_max=settings.remote_log_reader_max_pending_tasks,
            clock=clock,
            metrics=self._metrics,
        )
        self.tasks: set[asyncio.Task[object]] = set()
        self._copying: asyncio.Task[None] | None = None
        self._local = LocalDeletion(
            settings,
            clock,
            self.worker,
            crash_points,
            self.copies,
        )
        self._materialising = False
        self._log_start_moves: set[TieredPartition] = set()  # in the lake
        self._metadata_version = -1
        self._stopped = False

    def configure(self, settings: TierSettings) -> None:
        """Apply dynamic settings."""
        wanted = Configure.of(settings)
        if wanted == self._configured:
            return
        self._configured = wanted
        self._reads.configure(wanted.reader_threads)
        self.spawn(self._configure_worker(settings.worker_arguments(), wanted))

    async def _configure_worker(self, arguments: Sequence[str], wanted: Configure) -> None:
        # A worker that dies meanwhile is started with the new settings.
        with contextlib.suppress(WorkerLost):
            await self.worker.configure(arguments, wanted)

    async def start(self) -> None:
        """Start; the worker process starts only when it is first needed."""
        self._copying = asyncio.get_running_loop().create_task(
            self.copies.run(), name="tier copies"
        )
        self.spawn(self._expiration.run())
        self.spawn(self._optimizer.run())
        self.spawn(self._local.run())

    async def stop(self) -> None:
        """Let the copy in flight end if it ends soon, stop the worker, fail waiting requests."""
        self._stopped = True
        self.copies.stop()
        self._expiration.stop()
        self._optimizer.stop()
        if self._copying is not None:
            await asyncio.wait([self._copying], timeout=STOP_SECONDS)
            self._copying.cancel()
        self._local.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.worker.stop()

    @property
    def metrics(self) -> TierMetrics:
        """The totals so far."""
        self._metrics.worker_starts = self.worker.starts
        self._metrics.worker_deaths = self.worker.deaths
        return self._metrics

    def samples(self) -> Iterator[MetricSample]:
        """All metrics of tiered storage."""
        now_ms = self._clock.monotonic_ms()
        yield from tier_samples(self.metrics, self.lags(), self.missing(), now_ms / 1000)
        yield from self._copy_quota.samples(now_ms)
        yield from self._fetch_quota.samples(now_ms)

    def missing(self) -> dict[str, tuple[int, int]]:
        """By topic: partitions whose tables name data that the store lacks, and how many offsets."""
        found: dict[str, tuple[int, int]] = {}
        for tiered in tuple(self.copies.led.values()):
            if gaps := tiered.state.unavailable():
                partitions, offsets = found.get(tiered.log.topic, (0, 0))
                offsets += sum(end - start + 1 for start, end in gaps)
                found[tiered.log.topic] = (partitions + 1, offsets)
        return found

    def missing_of(self, topic_id: bytes, partition: int) -> list[Gap]:
        """First and last offsets that the store lacks of a partition that this broker leads."""
        tiered = self.copies.led.get((topic_id, partition))
        return tiered.state.unavailable() if tiered is not None else []

    def lags(self) -> dict[str, tuple[int, int, int]]:
        """By tiered topic: bytes and number of rolled segments that are not in the lake yet, paused partitions."""
        lags: dict[str, tuple[int, int, int]] = {}
        for tiered in tuple(self.copies.led.values()):
            if not tiered.log.config.copies_to_lake:
                continue
            rolled = tiered.log.rolled_segments(tiered.state.copied_offset + 1)
            size_bytes, count, paused = lags.get(tiered.log.topic, (0, 0, 0))
            size_bytes += sum(each.size_bytes for each in rolled)
            paused += tiered.state.is_paused
            lags[tiered.log.topic] = (size_bytes, count + len(rolled), paused)
        return lags

    # -- what the broker reports -------------------------------------------------------------

    def partition_opened(
        self,
        log: Log,
        *,
        leader_epoch: int,
        last_stable_offset: Callable[[], int],
        lake_reaches: Callable[[int], None] = lambda next_offset: None,
        lake_begins: Callable[[int], None] = lambda log_start_offset: None,
        has_wal: bool = False,
    ) -> None:
        """This broker leads the partition of `log` (with remote.storage.enable) from now on.

        `last_stable_offset` is asked before each copy: nothing at or above it is copied. `lake_reaches` is called with
        the offset after the lake's last one, as soon as that is known, and `lake_begins` with the log start that the
        lake has, whenever that is asked. `has_wal`: it is diskless. Called again with a higher epoch after a
        re-election.
        """
        tiered = TieredPartition(
            log=log,
            leader_epoch=leader_epoch,
            last_stable_offset=last_stable_offset,
            lake_reaches=lake_reaches,
            lake_begins=lake_begins,
            state=CopyState(self._settings.backoff()),
            has_wal=has_wal,
        )
        # What was deleted locally as a follower, or by an earlier leader, was not looked for in the store.
        log.update_highest_offset_in_remote_storage(-1)
        delay_ms = self._settings.lake_start_delay_ms if log.log_end_offset > 0 else None
        self.copies.open(tiered, delay_ms)

    def partition_closed(self, topic_id: bytes, partition: int) -> None:
        """This broker no longer leads the partition: its copies stop."""
        self.copies.forget((topic_id, partition))
        self._optimizer.forget((topic_id, partition))
        # A stopping broker closes thousands of them, mostly of topics that have others left.
        if not any(each == topic_id for each, _ in self.copies.led):
            self._metrics.topics.keep({tiered.log.topic for tiered in self.copies.led.values()})

    def lake_log_start(self, topic_id: bytes, partition: int) -> int | None:
        """Where the lake says that a partition led here begins; None while it is not known, or copies do not go on."""
        tiered = self.copies.led.get((topic_id, partition))
        return tiered.lake_log_start if tiered is not None and tiered.state.allows_upkeep else None

    def segment_rolled(self, log: Log) -> None:
        """A segment of this log was rolled: there may be a range to copy."""
        key = (log.topic_id, log.partition)
        if key in self.copies.led:
            self.copies.look_at(key)

    def log_start_incremented(self, log: Log) -> None:
        """DeleteRecords has moved the log's start up: the lake follows in the background.

        The log's own directory has it already; the lake needs it in case that is lost. Of a diskless log the lake alone
        has it, so that the deletion waits for it.
        """
        tiered = self.copies.led.get((log.topic_id, log.partition))
        if tiered is None:
            return
        tiered.records_deleted(log.log_start_offset)
        if tiered.lake_log_start is not None:
            self._agree_on_start(tiered)
        elif tiered.is_diskless:
            self.copies.look_at(tiered.key)

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """The topic is deleted: all its rows leave the table, durably, in the background.

        The deletion is in the cluster's metadata, so that a crash does not lose it: the worker deletes the rows before
        it makes a row of the event, or records in the table that the deletion is still due.
        """
        for key in [key for key in self.copies.led if key[0] == topic_id]:
            self.copies.forget(key)
        if self._stopped:
            return
        request = DeleteTopic(topic=topic, topic_id=topic_id)
        self.spawn(self._until_done(lambda: request, f"deletion of the rows of {topic}"))

    def cluster_events(self, version: int) -> None:
        """`__cluster_metadata` is at `version`: its events become rows within about a second."""
        self._metadata_version = max(self._metadata_version, version)
        if not self._materialising and not self._stopped:
            self._materialising = True
            self.spawn(self._materialise())

    # -- what the broker asks ---------------------------------------------------------------

    async def published_offsets(self) -> OffsetsCheckpoint:
        """What `__offsets` says of all brokers' partitions and groups. Raises KafkaError."""
        with kafka_errors():
            return await self.worker.send(PublishedOffsets())

    def sheds_reads(self) -> bool:
        """Whether remote.log.manager.fetch.max.bytes.per.second is used up: nothing is read now (KIP-956)."""
        return self._fetch_quota.throttle_time_ms(self._clock.monotonic_ms()) > 0

    async def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        isolation_level: int = 0,
    ) -> Sequence[Buffer] | None:
        """Read batches from `offset` on, at least one and then at most `max_bytes`, never beyond the tiered end.
        isolation_level as in Fetch: 0 read_uncommitted, 1 read_committed.

        None if that takes longer than remote.fetch.max.wait.ms: the read goes on, and the client's next fetch gets its
        result. Raises KafkaError: OFFSET_OUT_OF_RANGE (the lake does not hold the offset), KAFKA_STORAGE_ERROR
        (retriable: store or worker unavailable, queue full).
        """
        request = Read(
            partition=partition,
            offset=offset,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
        )
        wait_ms = self._in_force().remote_fetch_max_wait_ms
        try:
            answer = await asyncio.wait_for(
                self._reads.send(request, partition.topic), wait_ms / 1000
            )
        except TimeoutError:
            self._metrics.fetches_expired += 1
            return None
        size_bytes = sum(map(len, answer.chunks))
        self._fetch_quota.record(size_bytes, self._clock.monotonic_ms())
        self._metrics.fetched(partition.topic, size_bytes)
        if answer.cache is not None:
            self._metrics.cached(answer.cache)
        return answer.chunks

    def list_offsets_timeout_ms(self) -> int:
        """How long ListOffsets waits for the lake if its client does not say (KIP-1075)."""
        return self._in_force().remote_list_offsets_request_timeout_ms

    def listing_expired(self) -> None:
        """Count a ListOffsets that timed out."""
        self._metrics.listings_expired += 1

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, *, start_offset: int
    ) -> TimestampAndOffset | None:
        """First tiered record at or after a time and offset, if there is one."""
        request = OffsetForTimestamp(
            partition=partition, timestamp_ms=timestamp_ms, start_offset=start_offset
        )
        return (await self._reads.send(request, partition.topic)).found

    async def max_timestamp(
        self, partition: TopicIdPartition, *, start_offset: int
    ) -> TimestampAndOffset | None:
        """First record with the greatest timestamp from an offset on, if there is one."""
        request = MaxTimestamp(partition=partition, start_offset=start_offset)
        return (await self._reads.send(request, partition.topic)).found

    def highest_offset_in_remote_storage(self, topic_id: bytes, partition: int) -> int | None:
        """Last offset that is FINISHED in the lake (-1: nothing yet), or None while unknown."""
        tiered = self.copies.led.get((topic_id, partition))
        if tiered is None or tiered.state.phase in (CopyPhase.UNKNOWN, CopyPhase.DIVERGED):
            return None
        return tiered.state.copied_offset

    def checked_end(self, topic_id: bytes, partition: int) -> int:
        """Last offset whose local copy this leader, and so its followers, may delete: the store was checked."""
        tiered = self.copies.led.get((topic_id, partition))
        return -1 if tiered is None else tiered.state.deletable_offset

    async def known_highest_offset_in_remote_storage(self, partition: TopicIdPartition) -> int:
        """As `highest_offset_in_remote_storage`, but asks the lake if it is not known (ListOffsets -5, -6)."""
        topic_id, topic, number = partition
        known = self.highest_offset_in_remote_storage(topic_id, number)
        if known is not None:
            return known
        (end,) = await self.highest_offsets_in_remote_storage([partition])
        if isinstance(end, KafkaError):
            self._metrics.fetch_failed(topic)
            raise end
        return end

    async def highest_offsets_in_remote_storage(
        self, partitions: Sequence[TopicIdPartition]
    ) -> list[int | KafkaError]:
        """The lake's last offset of each partition now, -1 for none; or why it is unknown."""
        states = await self._reads.send(ReadTieredState(partitions=partitions))
        return [_end_of(_known(state)) for state in states]

    async def fence(
        self, leader_epochs: Mapping[TopicIdPartition, int], loads: Mapping[bytes, str]
    ) -> list[TieredState | KafkaError]:
        """The state of each partition, or why it is unknown; then no leader of an epoch below the given one can commit.

        And the bulk loads, by topic id, are committed.

        For a leader whose log may hold less than others have copied or are about to copy.
        """
        # It may wait for a copy; reads must not wait with it.
        try:
            with kafka_errors():
                states = await self.worker.send(
                    FenceTopic(leader_epochs=leader_epochs, loads=loads)
                )
        except KafkaError:
            self._metrics.fetch_failed(None)
            raise
        return [_known(state) for state in states]

    async def aux_state(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[int, RemoteLogAuxState]:
        """The first offset after the range that holds this one, and the state that the lake has of the partition there.

        Raises KafkaError: OFFSET_OUT_OF_RANGE (the lake does not hold it), KAFKA_STORAGE_ERROR.
        """
        request = ReadAuxState(partition=partition, offset=offset)
        counters = self._metrics.topics.of(partition.topic)
        counters.build_requests += 1
        try:
            found = await self._reads.send(request, partition.topic)
        except KafkaError:
            counters.build_errors += 1
            raise
        aux_state = RemoteLogAuxState(
            producer_snapshot=found.producer_snapshot,
            leader_epochs=found.leader_epochs,
            epochs_known_to=found.epochs_known_to,
        )
        return found.end_offset + 1, aux_state

    async def optimize(self, topic_id: bytes, partition: int) -> Optimized:
        """Have a partition's files optimised now. Raises KafkaError."""
        key = (topic_id, partition)
        if not await self._has_rows(key):
            return Optimized()
        with kafka_errors():
            return await self._optimizer.optimize(key)

    async def expire(self, topic_id: bytes, partition: int) -> Swept:
        """Apply a partition's retention now. Raises KafkaError."""
        key = (topic_id, partition)
        if not await self._has_rows(key):
            return Swept()
        with kafka_errors():
            return await self._expiration.expire(key)

    async def _has_rows(self, key: PartitionId) -> bool:
        """Whether anything of a led partition is in the lake; if that is unknown the lake is asked soon."""
        tiered = self.copies.led.get(key)
        if tiered is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if tiered.state.is_paused:
            message = f"tiering of {tiered.name} is paused: {tiered.state.pause_reason}"
            raise KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
        if self.highest_offset_in_remote_storage(*key) is None:
            self.copies.look_at(key)
        return await self.known_highest_offset_in_remote_storage(tiered.topic_id_partition) >= 0

    # -- inside -----------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run this until it ends or the tier stops."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _until_done(self, made: Callable[[], Request[A]], what: str) -> A:
        """Repeat a request, built by `made` each time, until it is answered."""
        backoff = self._settings.backoff()
        while True:
            try:
                return await self.worker.send(made())
            except (WorkerLost, WorkerFailed) as error:
                wait_ms = backoff.failed(self._clock.monotonic_ms())
                log.warning("%s failed, retrying in %d ms: %s", what, wait_ms, error)
                await asyncio.sleep(wait_ms / 1000)

    async def _materialise(self) -> None:
        done = -1
        while done < self._metadata_version:
            await asyncio.sleep(MATERIALISE_SECONDS)
            # A retry goes on to what was decided meanwhile: a deletion may fail for long.
            reached = await self._until_done(
                lambda: Materialise(version=self._metadata_version), "rows of the cluster's events"
            )
            done = reached.version
        self._materialising = False

    def _agree_on_start(self, tiered: TieredPartition) -> None:
        """Move the log's start to the larger of lake's and log's, and set it in the lake."""
        log_, known = tiered.log, tiered.lake_log_start
        if known is None or known == log_.log_start_offset:
            return
        if known > log_.log_start_offset:
            with contextlib.suppress(
                KafkaError
            ):  # An offset beyond the log's end is left to recovery.
                log_.advance_log_start_offset(known)
        elif tiered not in self._log_start_moves:
            self._log_start_moves.add(tiered)
            self.spawn(self._set_log_start(tiered))

    async def _set_log_start(self, tiered: TieredPartition) -> None:
        backoff = self._settings.backoff()
        while self.copies.led.get(tiered.key) is tiered:
            offset = tiered.log.log_start_offset
            if offset <= (tiered.lake_log_start or 0):
                break
            try:
                answer = await self.worker.send(
                    SetLogStart(
                        partition=tiered.topic_id_partition,
                        leader_epoch=tiered.leader_epoch,
                        offset=offset,
                    )
                )
                if isinstance(answer, Unavailable):
                    raise WorkerFailed(UNAVAILABLE, answer.message)
                tiered.update_lake_log_start(answer.log_start_offset)
                self._expiration.look_soon()
                if answer.log_start_offset < offset:
                    break  # Another one leads by now.
            except (WorkerLost, WorkerFailed) as error:
                wait_ms = backoff.failed(self._clock.monotonic_ms())
                log.warning(
                    "log start offset of %s not written, retrying in %d ms: %s",
                    tiered.name,
                    wait_ms,
                    error,
                )
                await asyncio.sleep(wait_ms / 1000)
        self._log_start_moves.discard(tiered)

    def _advanced(self, tiered: TieredPartition) -> None:
        """More of a partition is FINISHED."""
        self._agree_on_start(tiered)
        self._local.advanced()


def _known(state: TieredState | Unavailable) -> TieredState | KafkaError:
    """A partition's state, from the worker's answer."""
    if isinstance(state, Unavailable):
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, state.message)
    return state


def _end_of(state: TieredState | KafkaError) -> int | KafkaError:
    """A partition's last offset in the lake, -1 for none; or why it is unknown."""
    return state if isinstance(state, KafkaError) else state.highest_offset_in_remote_storage
