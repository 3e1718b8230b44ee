"""Shell: the leader's side of OPTIMIZE: asks for it now and then, and logs what was done.

Nothing waits for it, so partitions are optimised one after the other, and only where this broker has copied or removed
something since: an idle worker may end. Consumers no longer see rows below the log start, so a partition whose log
start has moved comes within seconds, before others (`boundary.py`). Files of other engines are examined seldom, while a
worker runs anyway. Work for a partition that has another leader by now stops before its commit; the table, fenced by
the leader's epoch, would refuse it anyway.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.remote.boundary import Boundary
from broker.remote.copies import stop_work
from broker.remote.metrics import TierMetrics
from broker.remote.partitions import TieredPartition
from broker.worker.rpc import Optimize, Optimized, TierSettings
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.process.amounts import counted, size_text
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

log = logging.getLogger(__name__)

# After so many rounds a partition is examined in which this broker has changed nothing.
SELDOM_ROUNDS = 12
UNEXPECTED_PAUSE_SECONDS = 5.0
# The longest wait between two looks for log starts that have moved.
LOG_STARTS_MS = 5_000


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A led partition, and when its files were last found optimised while this broker leads it."""

    tiered: TieredPartition
    backoff: Backoff
    seen: tuple[int, int | None] | None = None
    rounds: int = 0
    boundary: Boundary = field(default_factory=Boundary)

    def is_boundary_due(self, now_ms: int) -> bool:
        """Whether rows below the log start may be in the table, and may be removed."""
        tiered = self.tiered
        return self.boundary.is_due(tiered.lake_log_start or 0, tiered.state.copied_offset, now_ms)


class OptimizeLoop:
    """Optimises the files of all partitions that this broker leads."""

    def __init__(
        self,
        settings: TierSettings,
        clock: Clock,
        worker: ChildWorker,
        metrics: TierMetrics,
        tiered: Mapping[PartitionId, TieredPartition],
    ) -> None:
        """`led` is read and never changed."""
        self._interval_ms = settings.lake_maintenance_interval_ms
        self._log_starts_ms = min(self._interval_ms, LOG_STARTS_MS)
        self._file_bytes = settings.lake_maintenance_file_bytes
        self._clock = clock
        self._worker = worker
        self._metrics = metrics
        self._led = tiered
        self._watched: dict[PartitionId, _Watched] = {}
        # Whoever asks for a second OPTIMIZE beside the first would wait in vain.
        self._demanded: set[PartitionId] = set()
        self._at_work: TieredPartition | None = None
        self._next_round_ms = clock.monotonic_ms() + self._interval_ms
        self._next_log_starts_ms = 0
        self._stopping = asyncio.Event()
        self._giving_up: set[asyncio.Task[None]] = set()
        # One partition at a time, whoever asks.
        self._turn = asyncio.Lock()

    def stop(self) -> None:
        """Start no further work."""
        self._stopping.set()

    def forget(self, key: PartitionId) -> None:
        """This broker no longer leads the partition: work on it stops."""
        tiered = self._at_work
        if tiered is not None and tiered.key == key:
            task = asyncio.get_running_loop().create_task(stop_work(self._worker, tiered))
            self._giving_up.add(task)
            task.add_done_callback(self._giving_up.discard)

    async def run(self) -> None:
        """Work until stopped."""
        while self._interval_ms >= 0 and not await self._stopped_within(self._log_starts_ms / 1000):
            try:
                await self.follow_log_starts()
                if self._clock.monotonic_ms() >= self._next_round_ms:
                    self._next_round_ms = self._clock.monotonic_ms() + self._interval_ms
                    await self.round()
            except Exception:
                log.exception("unexpected error in OPTIMIZE")
                await asyncio.sleep(UNEXPECTED_PAUSE_SECONDS)

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), max(seconds, 0.05))
        return self._stopping.is_set()

    async def round(self) -> None:
        for key, watched in list(self._watched.items()):
            if self._led.get(key) is not watched.tiered:
                del self._watched[key]
                self._metrics.missing.pop(watched.tiered.topic_partition, None)
        for watched in self._watch_all():
            watched.rounds += 1
            is_done = False
            while not is_done and self._is_due(watched):
                is_done = await self._look_at(watched)
                if self._clock.monotonic_ms() >= self._next_log_starts_ms:
                    await self.follow_log_starts()

    async def follow_log_starts(self) -> None:
        """Have rows below moved log starts removed."""
        self._next_log_starts_ms = self._clock.monotonic_ms() + self._log_starts_ms
        for watched in self._watch_all():
            if watched.is_boundary_due(self._clock.monotonic_ms()) and self._may_look(watched):
                await self._look_at(watched)

    def _watch_all(self) -> list[_Watched]:
        found = []
        for key, tiered in self._led.items():
            watched = self._watched.get(key)
            if watched is None or watched.tiered is not tiered:
                backoff = Backoff(first_ms=1_000, longest_ms=600_000)
                watched = self._watched[key] = _Watched(tiered=tiered, backoff=backoff)
            found.append(watched)
        return found

    def _may_look(self, watched: _Watched) -> bool:
        tiered = watched.tiered
        if self._stopping.is_set() or self._led.get(tiered.key) is not tiered:
            return False
        if not tiered.state.allows_upkeep or tiered.state.copied_offset < 0:
            return False
        return watched.backoff.ready(self._clock.monotonic_ms())

    def _is_due(self, watched: _Watched) -> bool:
        tiered = watched.tiered
        if not self._may_look(watched):
            return False
        if watched.seen != (tiered.state.copied_offset, tiered.lake_log_start):
            return True
        return watched.rounds >= SELDOM_ROUNDS and self._worker.pid is not None

    async def optimize(self, key: PartitionId) -> Optimized:
        """Do all work on a partition now. Raises KafkaError, WorkerLost, WorkerFailed."""
        watched = next((each for each in self._watch_all() if each.tiered.key == key), None)
        if watched is None or not watched.tiered.state.allows_upkeep:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if key in self._demanded:
            message = f"{watched.tiered.name} is being optimized already"
            raise KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
        self._demanded.add(key)
        try:
            total, is_done = Optimized(), False
            while not is_done:
                if self._led.get(key) is not watched.tiered:
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                done = await self._optimized(watched, rewrites_any=True, merges_any=True)
                total, is_done = total.plus(done), done.is_done
            return total
        finally:
            self._demanded.discard(key)

    async def _look_at(self, watched: _Watched) -> bool:
        """Do the due work; False if there is more."""
        tiered, now_ms = watched.tiered, self._clock.monotonic_ms()
        try:
            rewrites_any = watched.boundary.rewrites_any(tiered.deleted_below, now_ms)
            return (await self._optimized(watched, rewrites_any=rewrites_any)).is_done
        except (WorkerLost, WorkerFailed) as error:
            wait_ms = watched.backoff.failed(self._clock.monotonic_ms())
            self._metrics.optimize_failed(tiered.log.topic)
            log.warning("OPTIMIZE of %s failed, retrying in %d ms: %s", tiered.name, wait_ms, error)
            return True

    async def _optimized(
        self, watched: _Watched, *, rewrites_any: bool, merges_any: bool = False
    ) -> Optimized:
        tiered = watched.tiered
        async with self._turn:
            seen = (tiered.state.copied_offset, tiered.lake_log_start)
            self._at_work = tiered
            try:
                request = Optimize(
                    partition=tiered.topic_id_partition,
                    leader_epoch=tiered.leader_epoch,
                    retention_ms=tiered.retention_ms,
                    rewrites_any_expired=rewrites_any,
                    merges_any=merges_any,
                )
                done = await self._worker.send(request)
            finally:
                self._at_work = None
        watched.backoff.succeeded()
        watched.seen, watched.rounds = seen, 0
        watched.boundary.looked(
            log_start=seen[1] or 0,
            copied_offset=seen[0],
            is_left=done.has_expired,
            rewritten_bytes=done.boundary_bytes,
            file_bytes=self._file_bytes,
            now_ms=self._clock.monotonic_ms(),
        )
        self._count_and_log(tiered, done)
        if not done.is_done:
            watched.seen = None
        return done

    def _count_and_log(self, tiered: TieredPartition, done: Optimized) -> None:
        self._metrics.missing[tiered.topic_partition] = done.missing_offsets
        tiered.state.update_lost_ranges(done.lost_ranges)
        count = sum(done.reasons.values())
        if not count:
            return
        self._metrics.optimized(tiered.log.topic, count, done.files_before, done.bytes_before)
        log.info(
            "optimized %s (%s): %s (%s) -> %s (%s), rows=%d expired=%d took=%d ms",
            tiered.name,
            ", ".join(sorted(done.reasons)),
            counted(done.files_before, "file"),
            size_text(done.bytes_before),
            counted(done.files_after, "file"),
            size_text(done.bytes_after),
            done.rows,
            done.expired_rows,
            done.milliseconds,
            extra={"topic": tiered.log.topic, "partition": tiered.log.partition},
        )
