"""Shell: the worker's operations: requests become calls of the storage, the metadata or the copier.

Nothing is decided here. `writing` operations run in one thread, `publishing` in another, `maintaining` ones in a third;
several threads read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from broker.worker.cache.disk_cache import DiskCache
from broker.worker.copier import Copier
from broker.worker.delta.check import StoreCheckResult
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import STORE_ERRORS, CommitLost, apart
from broker.worker.loader import Loader
from broker.worker.maintenance import TableMaintenance
from broker.worker.metadata.materialise import Materialiser
from broker.worker.metadata.offset_rows import checkpoint_of, rows_of
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.orphans import Orphans
from broker.worker.rpc import (
    Check,
    CheckQuestion,
    CheckRetention,
    Configure,
    CopyAnswer,
    CopyRequest,
    DeleteTopic,
    FenceTopic,
    FoundOffset,
    Materialise,
    Materialised,
    MaxTimestamp,
    OffsetForTimestamp,
    OffsetsCheckpoint,
    Optimize,
    Optimized,
    PublishedOffsets,
    PublishOffsets,
    Read,
    ReadAnswer,
    ReadArrivals,
    ReadAuxState,
    ReadTieredState,
    Repair,
    RetentionCheck,
    RetentionResult,
    SegmentAuxState,
    SetLogStart,
    StopPartition,
    StoreState,
    Sweep,
    Swept,
    TieredState,
    TierSettings,
    Unavailable,
)
from broker.worker.side_by_side import side_by_side
from broker.worker.sweeper import Sweeper
from kafka_ds.delta.arrivals import Arrival
from kafka_ds.delta.arrived_store import ArrivedStore
from kafka_ds.delta.log import SystemLogClock
from kafka_ds.delta.store.uri import probe
from kafka_ds.ipc.request import LeasedAnswer, Operation
from kafka_ds.ipc.shared_memory import WorkerMemory
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import SystemClock, SystemDisk, new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.segments.names import REMOTE_CACHE
from kafka_ds.topic.lake import open_lake
from kafka_ds.topic.names import CLUSTER_METADATA, OFFSETS, REMOTE_LOG_METADATA, topic_table
from kafka_ds.topic.offsets import OffsetsTable, present

log = logging.getLogger(__name__)

# So many partitions of a copy wait for the store at a time: for fsyncs, which a disk merges, or for
# answers. `lake.copy.threads` is how many are encoded meanwhile.
STORE_THREADS = 16
_NameAndTopicId: TypeAlias = tuple[str, bytes]


class Service:
    """The worker's operations over the lake."""

    def __init__(
        self,
        settings: TierSettings,
        crash_points: CrashPoints,
        memory: WorkerMemory | None = None,
        *,
        read_with: Callable[[int], None] = lambda threads: None,
    ) -> None:
        """`memory` is shared with the broker; `read_with` starts reading threads up to a number."""
        self._read_with = read_with
        self._memory = memory
        self._store = open_lake(
            settings.lake_uri, is_there=True, is_read_only=settings.lake_read_only
        )
        self._arrived: ArrivedStore | None = None
        if settings.lake_read_only_replicated:
            self._store = self._arrived = ArrivedStore(self._store)
        self._checked = False
        self._touched: dict[str, None] = {}
        self._complaints_reported = 0
        self._cache = open_cache(settings)
        self._clock = SystemLogClock()
        self._orphans = Orphans(self._store, self._clock)
        self._maintenance = TableMaintenance(
            self._store,
            crash_points,
            self._clock,
            interval=settings.lake_checkpoint_interval,
            checkpointed=self._orphans.are_due_in,
        )
        self._storage = RemoteStorageManager(
            self._store,
            settings,
            crash_points,
            cache=self._cache,
            memory=memory,
            was_deleted=lambda topic_id: self._materialiser.was_deleted(topic_id),
            threads=STORE_THREADS,
        )
        self._metadata = RemoteLogMetadataManager(self._store, settings, crash_points)
        self._materialiser = Materialiser(self._store, settings, crash_points, self._delete_rows)
        self._copier = Copier(
            self._storage,
            self._metadata,
            node_id=settings.node_id,
            crash_points=crash_points,
            new_id=new_uuid,
            threads=STORE_THREADS,
        )
        self._loader = Loader(self._store, self._storage, self._copier)
        self._sweeper = Sweeper(self._storage, self._metadata, self._copier, crash_points)
        self._node_id = settings.node_id
        self._offsets = OffsetsTable(self._store, clock=self._clock)
        self._offsets_version: int | None = None
        """Version of the last checkpoint of offsets, if the table was not maintained since."""

    def writing(self) -> Mapping[type, Operation]:
        """Operations that change the lake: one at a time."""
        return {
            CopyRequest: self._copy,
            Check: self._check,
            Repair: self._repair,
            DeleteTopic: self._delete_topic,
            Materialise: self._materialise,
            FenceTopic: self._fence,
            SetLogStart: self._set_log_start,
            CheckRetention: self._check_retention,
            Sweep: self._sweep,
        }

    def publishing(self) -> Mapping[type, Operation]:
        """Operations on a table of their own: a stopping broker does not wait for a copy."""
        return {PublishOffsets: self._publish_offsets}

    def reading(self) -> Mapping[type, Operation]:
        """Operations that only read it."""
        return {
            Read: self._read,
            OffsetForTimestamp: self._offset_for_timestamp,
            MaxTimestamp: self._max_timestamp,
            ReadTieredState: self._state,
            ReadAuxState: self._end_of_range,
            StopPartition: self._stop_partition,
            Configure: self._configure,
            PublishedOffsets: self._published_offsets,
            ReadArrivals: self._arrivals,
        }

    def _configure(self, request: Configure) -> None:
        self._read_with(request.reader_threads)
        if self._cache is not None:
            self._cache.resize(request.cache_bytes)

    def maintaining(self) -> Mapping[type, Operation]:
        """Slow operations on the tables, in the background."""
        return {Optimize: self._optimize}

    def _optimize(self, request: Optimize) -> Optimized:
        partition, leader_epoch = request.partition, request.leader_epoch
        key = partition.topic_id, partition.partition
        given_up = self._copier.is_given_up
        done = self._storage.optimizer.optimize(
            partition,
            leader_epoch=leader_epoch,
            retention_ms=request.retention_ms,
            rewrites_any_expired=request.rewrites_any_expired,
            merges_any=request.merges_any,
            goes_on=lambda: not given_up(*key, leader_epoch),
        )
        # Other writers' commits are recorded there also if nothing is copied.
        self._maintain_topic(partition.topic)
        return done

    def _copy(self, request: CopyRequest) -> CopyAnswer:
        self._check_store()
        with self._writing(*(each.segment.topic for each in request.sources)):
            return replace(self._copier.copy(request), complaints=self._fresh_complaints())

    @contextmanager
    def _writing(self, *topics: str) -> Iterator[None]:
        """Have the tables maintained after a write; meanwhile the publishing thread maintains other ones."""
        try:
            yield
        finally:
            self._touched |= dict.fromkeys(topics)

    def _check(self, request: Check) -> list[StoreState | Unavailable]:
        """What the store lacks of each partition, and whether its commits are unchanged."""
        whole = [each for each in request.partitions if each.is_whole]
        if whole:
            self._copier.recover()
        for topic in {each.partition.topic for each in whole}:
            self._storage.check.forget(topic)
        return [self._check_of(each)[0] for each in request.partitions]

    def _check_of(
        self, question: CheckQuestion
    ) -> tuple[StoreState | Unavailable, StoreCheckResult | None]:
        partition = question.partition
        answers: list[StoreState | Unavailable] = []
        found: StoreCheckResult | None = None
        with apart(_as_unavailable(answers)):
            is_lost = False
            for version, commit_id in question.commits:
                try:
                    self._storage.confirm(partition.topic, (version, commit_id))
                except CommitLost as error:
                    log.error("A commit of partition %s is lost: %s", partition, error)
                    is_lost = True
            if question.is_whole:
                segments = self._metadata.list_segments(partition.topic_id, partition.partition)
                found = self._storage.check.look(partition, question.start_offset, segments)
                end = found.highest_offset_in_remote_storage
            else:
                end = self._storage.state(partition).highest_offset_in_remote_storage
            missing = tuple(found.missing) if found else ()
            answers.append(
                StoreState(is_lost=is_lost, highest_offset_in_remote_storage=end, missing=missing)
            )
        return answers[0], found

    def _repair(self, request: Repair) -> list[StoreState | Unavailable]:
        """Rewrite what the store lacks, and check once more."""
        self._check_store()
        return [self._repair_of(each) for each in request.partitions]

    def _repair_of(self, question: CheckQuestion) -> StoreState | Unavailable:
        failures: list[Unavailable] = []
        question = replace(question, is_whole=True)
        answer, found = self._check_of(question)
        if found is None:
            return answer
        with self._writing(question.partition.topic), apart(_as_unavailable(failures)):
            self._storage.check.repair(
                question.partition,
                leader_epoch=question.leader_epoch,
                look=found,
                sources={(gap.read_from, gap.read_to): ranges for gap, ranges in question.sources},
            )
            # An attempt that was committed and not FINISHED, because its file was missing.
            self._copier.recover()
        return failures[0] if failures else self._check_of(question)[0]

    def _stop_partition(self, request: StopPartition) -> None:
        # Read by another thread, while this one copies.
        topic_id, _, number = request.partition
        self._copier.give_up(topic_id, number, request.leader_epoch)

    def _fresh_complaints(self) -> int:
        """Other writers' commits with rows that were not reported to the broker yet."""
        before, self._complaints_reported = self._complaints_reported, self._storage.complaints()
        return self._complaints_reported - before

    def afterwards(self) -> None:
        """Maintain the tables after a write, in the maintenance thread: no request waits for it."""
        while self._touched:
            topic, _ = self._touched.popitem()
            self._maintain_topic(topic)
        maintenance = self._maintenance
        _look_after(REMOTE_LOG_METADATA, partial(self._metadata.maintain, maintenance))
        _look_after(CLUSTER_METADATA, partial(self._materialiser.maintain, maintenance))
        if self._offsets_version is not None:
            version, self._offsets_version = self._offsets_version, None
            _look_after(OFFSETS, partial(maintenance.look_after, OFFSETS, version))
        _look_after("orphans, for a day", self._orphans.vacuum_due)

    def _maintain_topic(self, topic: str) -> None:
        work = partial(self._storage.maintain, topic, self._maintenance)
        _look_after(f"the table of {topic}", work)

    def _check_store(self) -> None:
        """Refuse a store on which two writers can both win a commit, before the first write to it."""
        if not self._checked:
            probe(self._store)
            self._checked = True

    def _delete_topic(self, request: DeleteTopic) -> None:
        self._delete_rows(request.topic, request.topic_id)

    def _delete_rows(self, topic: str, topic_id: bytes) -> None:
        self._sweeper.delete_topic(topic, topic_id)
        self._maintenance.forget(topic_table(topic))

    def _set_log_start(self, request: SetLogStart) -> TieredState | Unavailable:
        self._check_store()
        with self._writing(request.partition.topic):
            self._storage.set_log_start(
                request.partition, leader_epoch=request.leader_epoch, offset=request.offset
            )
        # Another leader moved it, or this one may not any more: the answer shows that.
        return self._states([request.partition], {})[0]

    def _check_retention(self, request: CheckRetention) -> list[RetentionResult | Unavailable]:
        """Where each partition is to begin, or why that is unknown."""
        return [self._check_retention_of(each) for each in request.partitions]

    def _check_retention_of(self, question: RetentionCheck) -> RetentionResult | Unavailable:
        answers: list[RetentionResult | Unavailable] = []
        with apart(_as_unavailable(answers)):
            result = self._sweeper.check_retention(
                question.partition,
                question.retention,
                lineage=question.lineage,
                copied_offset=question.copied_offset,
                is_to_count=question.is_to_count,
            )
            answers.append(result)
        return answers[0]

    def _sweep(self, request: Sweep) -> Swept:
        self._check_store()
        with self._writing(request.partition.topic):
            return self._sweeper.sweep(request.partition, request.leader_epoch)

    def _fence(self, request: FenceTopic) -> list[TieredState | Unavailable]:
        """Fence each partition at its given leader epoch; returns their states after that, or errors."""
        self._check_store()
        wanted: dict[_NameAndTopicId, dict[int, int]] = {}
        for (topic_id, topic, number), epoch in request.leader_epochs.items():
            wanted.setdefault((topic, topic_id), {})[number] = epoch
        failed: dict[_NameAndTopicId, Unavailable] = {}
        with self._writing(*(topic for topic, _ in wanted)):
            loaded = {key: self._loaded(key, wanted[key], request.loads, failed) for key in wanted}

            def fence(key: _NameAndTopicId) -> None:
                with _apart_in(failed, key):
                    self._storage.fence(*key, wanted[key], loaded_count=loaded[key])

            able = [key for key in wanted if key not in failed]
            with side_by_side(min(STORE_THREADS, len(able)), "fence") as each_of:
                for _ in each_of(fence, able):
                    pass
        return self._states(list(request.leader_epochs), failed)

    def _loaded(
        self,
        key: _NameAndTopicId,
        epochs: Mapping[int, int],
        loads: Mapping[bytes, str],
        failed: dict[_NameAndTopicId, Unavailable],
    ) -> int:
        """Have what a topic begins with committed, one topic after the other, as copies are; see `Loader.load`."""
        (topic, topic_id), loaded_count = key, 0
        if topic_id in loads:
            with _apart_in(failed, key):
                loaded_count = self._loader.load(topic, topic_id, epochs, loads[topic_id])
        return loaded_count

    def _publish_offsets(self, request: PublishOffsets) -> None:
        """Replace the checkpoint that this broker has published of its partitions and groups."""
        self._check_store()
        rows = list(rows_of(request.partitions, request.shards, self._clock.wall_ms()))
        self._offsets_version = self._offsets.replace(self._node_id, rows)

    def _published_offsets(self, request: PublishedOffsets) -> OffsetsCheckpoint:
        """What all brokers have published."""
        # Not the publishing thread's object, which may be in use.
        return checkpoint_of(present(OffsetsTable(self._store).read()))

    def _arrivals(self, request: ReadArrivals) -> list[Arrival]:
        return [] if self._arrived is None else self._arrived.arrivals()

    def _materialise(self, request: Materialise) -> Materialised:
        return Materialised(version=self._materialiser.materialise(request.version))

    def _read(self, request: Read) -> ReadAnswer | LeasedAnswer:
        found = self._storage.reader.read(
            request.partition,
            request.offset,
            max_bytes=request.max_bytes,
            committed_only=request.isolation_level == 1,
        )
        answer = ReadAnswer(
            chunks=[memoryview(each) for each in found.chunks],
            cache=None if self._cache is None else self._cache.counts,
        )
        runs = [(at, size) for at, size in found.shared if at is not None]
        if self._memory is None or len(runs) < len(found.shared):
            return answer
        # One run may be several batches, which lie one after the other.
        shared = [memoryview(b"") for _ in runs]
        return LeasedAnswer(
            answer=replace(answer, chunks=shared), lease=self._memory.lease(found.chunks), runs=runs
        )

    def _offset_for_timestamp(self, request: OffsetForTimestamp) -> FoundOffset:
        found = self._storage.reader.times.offset_for_timestamp(
            request.partition, request.timestamp_ms, start_offset=request.start_offset
        )
        return FoundOffset(found=found)

    def _max_timestamp(self, request: MaxTimestamp) -> FoundOffset:
        found = self._storage.reader.times.max_timestamp(
            request.partition, start_offset=request.start_offset
        )
        return FoundOffset(found=found)

    def _end_of_range(self, request: ReadAuxState) -> SegmentAuxState:
        return self._storage.aux_state.at(
            request.partition, request.offset, has_producers=request.has_producers
        )

    def _state(self, request: ReadTieredState) -> list[TieredState | Unavailable]:
        return self._states(request.partitions, {})

    def _states(
        self,
        asked: Sequence[TopicIdPartition],
        failed: Mapping[_NameAndTopicId, Unavailable],
    ) -> list[TieredState | Unavailable]:
        """The state of each partition, or its error; each table is asked once."""
        by_topic: dict[_NameAndTopicId, list[int]] = {}
        for topic_id, topic, partition in asked:
            by_topic.setdefault((topic, topic_id), []).append(partition)
        known = dict(failed)

        def states_of(key: _NameAndTopicId) -> Sequence[TieredState]:
            states: Sequence[TieredState] = ()
            with _apart_in(known, key):
                states = self._storage.states(*key, by_topic[key])
            return states

        able = [key for key in by_topic if key not in failed]
        with side_by_side(min(STORE_THREADS, len(able)), "states") as each_of:
            found = {
                (*key, partition): state
                for key, states in zip(able, each_of(states_of, able), strict=True)
                for partition, state in zip(by_topic[key], states, strict=False)
            }
        return [
            known.get((topic, topic_id)) or found[topic, topic_id, partition]
            for topic_id, topic, partition in asked
        ]


def _apart_in(
    failed: dict[_NameAndTopicId, Unavailable], key: _NameAndTopicId
) -> AbstractContextManager[None]:
    """Confine an error to one topic."""

    def fail(message: str, outcome: str) -> None:
        failed[key] = Unavailable(message=message, outcome=outcome)

    return apart(fail)


def _as_unavailable(answers: list[Any]) -> Callable[[str, str], None]:
    """Errors become answers."""
    return lambda message, outcome: answers.append(Unavailable(message=message, outcome=outcome))


def _look_after(what: str, work: Callable[[], object]) -> None:
    """One part of the maintenance: an error in one table does not stop that of the others."""
    try:
        work()
    except STORE_ERRORS as error:
        log.warning("Failed to maintain %s: %s", what, error)
    except Exception:
        log.exception("Unexpected error while maintaining %s", what)


def open_cache(settings: TierSettings) -> DiskCache | None:
    """The cache of cold reads, in the first log directory as Kafka's is."""
    bytes_max = settings.remote_log_index_file_cache_total_size_bytes
    if not settings.log_dirs or not bytes_max:
        return None
    cache = DiskCache(
        SystemDisk(),
        SystemClock(),
        f"{settings.log_dirs[0]}/{REMOTE_CACHE}",
        bytes_max=bytes_max,
        ttl_ms=settings.remote_log_index_file_cache_ttl_ms,
    )
    cache.start()
    return cache
