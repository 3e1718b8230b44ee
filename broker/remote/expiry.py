"""Shell: the leader's side of retention in the lake: it moves the log start, then has rows removed.

The new log start is durable in the table before the log's own moves, so that no later leader shows deleted records
again. Rows are removed after that. Between any two requests this broker may lose the leadership: the next leader
continues, and the largest log start wins. Partitions are looked at every `remote.log.manager.task.interval.ms`; the
worker is asked only where `LastRetentionCheck` sees a reason, so that an idle worker may end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.remote.metrics import RemoteSize, TierMetrics
from broker.remote.partitions import TieredPartition
from broker.worker.rpc import (
    UNAVAILABLE,
    CheckRetention,
    RetentionCheck,
    RetentionResult,
    SetLogStart,
    Sweep,
    Swept,
    TierSettings,
    Unavailable,
)
from kafka_ds.ipc.backoff import Backoff
from kafka_ds.ipc.child import ChildWorker, WorkerFailed, WorkerLost
from kafka_ds.process.amounts import counted, size_text
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.topic.expiration import NO_LIMIT, ExpirationDecision, LastRetentionCheck, Retention

log = logging.getLogger(__name__)

QUESTION_PARTITIONS_MAX = 100
UNEXPECTED_PAUSE_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class _WatchedRetention:
    """A led partition, and what is remembered of it while this broker leads it."""

    tiered: TieredPartition
    backoff: Backoff
    last_check: LastRetentionCheck | None = None


class ExpirationLoop:
    """Applies retention to all partitions that this broker leads."""

    def __init__(
        self,
        settings: TierSettings,
        clock: Clock,
        worker: ChildWorker,
        metrics: TierMetrics,
        crash_points: CrashPoints,
        tiered: Mapping[PartitionId, TieredPartition],
        agree: Callable[[TieredPartition], None],
    ) -> None:
        """`led` is read and never changed; `agree` moves a log's start to the lake's log start."""
        self._settings = settings
        self._clock = clock
        self._worker = worker
        self._metrics = metrics
        self._crash_points = crash_points
        self._led = tiered
        self._agree = agree
        self._watched: dict[PartitionId, _WatchedRetention] = {}
        self._wake = asyncio.Event()
        # One request at a time, whoever asks.
        self._turn = asyncio.Lock()
        self._stopped = False

    def look_soon(self) -> None:
        """A log start was moved in the table: rows below it may be removed."""
        self._wake.set()

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopped:
            interval_ms = self._settings.remote_log_manager_task_interval_ms
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval_ms / 1000)
            self._wake.clear()
            try:
                await self.round()
            except Exception:
                log.exception("unexpected error in the retention of tiered partitions")
                await asyncio.sleep(UNEXPECTED_PAUSE_SECONDS)

    async def round(self) -> None:
        self._forget()
        for tiered in list(self._led.values()):
            # Without copies the log's own retention moves its start (KIP-950); the lake learns of it here.
            known = tiered.lake_log_start
            if known is not None and known < tiered.log.log_start_offset:
                self._agree(tiered)
        due: list[tuple[_WatchedRetention, Retention]] = []
        for watched in map(self._watch, list(self._led.values())):
            try:
                retention = self._reason_to_look(watched)
            except Exception as error:
                # An error in one log does not stop the retention of the others.
                log.exception(
                    "cannot read %s; its retention in the lake waits", watched.tiered.name
                )
                self._failed(watched, error)
                continue
            if retention is not None:
                due.append((watched, retention))
        for start in range(0, len(due), QUESTION_PARTITIONS_MAX):
            if self._stopped:
                return
            async with self._turn:
                await self._look_at(due[start : start + QUESTION_PARTITIONS_MAX])

    def _forget(self) -> None:
        """Forget partitions that are no longer led here, or led in a new epoch."""
        for key, watched in list(self._watched.items()):
            if self._led.get(key) is not watched.tiered:
                del self._watched[key]
                self._metrics.remote_sizes.pop(watched.tiered.topic_partition, None)

    def _watch(self, tiered: TieredPartition) -> _WatchedRetention:
        return self._watched.setdefault(
            tiered.key, _WatchedRetention(tiered=tiered, backoff=self._settings.backoff())
        )

    def _reason_to_look(self, watched: _WatchedRetention) -> Retention | None:
        """The retention to ask the worker about, if there is a reason to."""
        tiered, now_ms = watched.tiered, self._clock.monotonic_ms()
        asked = tiered.lake_log_start is not None and tiered.state.allows_upkeep
        if not asked or tiered.state.copied_offset < 0 or not watched.backoff.ready(now_ms):
            return None
        retention = self._retention(tiered)
        last_check = watched.last_check
        is_due = last_check is None or last_check.is_due(retention, tiered.state.copied_offset)
        return retention if is_due or not self._is_counted(tiered) else None

    def _question(self, tiered: TieredPartition, retention: Retention) -> RetentionCheck:
        return RetentionCheck(
            partition=tiered.topic_id_partition,
            retention=retention,
            lineage=tiered.lineage(),
            copied_offset=tiered.state.copied_offset,
            is_to_count=not self._is_counted(tiered),
        )

    def _is_counted(self, tiered: TieredPartition) -> bool:
        return tiered.topic_partition in self._metrics.remote_sizes

    def _retention(self, tiered: TieredPartition) -> Retention:
        config = tiered.log.config
        # In a compacted log the limit applies to what compaction has left: the log's own retention knows that.
        by_size = config.deletes_old and not config.is_compacted
        retention_bytes = config.retention_bytes if by_size else NO_LIMIT
        return Retention(
            now_ms=self._clock.now_ms(),
            retention_ms=tiered.retention_ms,
            retention_bytes=retention_bytes,
            log_start_offset=tiered.log.log_start_offset,
            limit_offset=min(tiered.log.committed_offset, tiered.last_stable_offset()),
            local_bytes=tiered.only_local_bytes() if retention_bytes >= 0 else 0,
        )

    async def _look_at(self, due: Sequence[tuple[_WatchedRetention, Retention]]) -> None:
        questions = [self._question(watched.tiered, retention) for watched, retention in due]
        asked = [
            (tiered.state.copied_offset, tiered.lake_log_start or 0)
            for tiered in (w.tiered for w, _ in due)
        ]
        try:
            results = await self._worker.send(CheckRetention(partitions=questions))
        except (WorkerLost, WorkerFailed) as error:
            for watched, _ in due:
                self._failed(watched, error)
            return
        for (watched, retention), (offset, known), result in zip(due, asked, results, strict=True):
            if self._stopped or not self._is_led(watched):
                continue
            if isinstance(result, Unavailable):
                self._failed(watched, result.message)
                continue
            await self._act(watched, retention, offset, result)
            if known < retention.log_start_offset:
                # Rows below it may be removed once it is in the table: nothing else would be a reason to look.
                watched.last_check = None

    async def expire(self, key: PartitionId) -> Swept:
        """Apply retention to one partition now. Raises KafkaError, WorkerLost, WorkerFailed."""
        tiered = self._led.get(key)
        if tiered is None or tiered.lake_log_start is None or not tiered.state.allows_upkeep:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with self._turn:
            question = self._question(tiered, self._retention(tiered))
            (result,) = await self._worker.send(CheckRetention(partitions=[question]))
            if isinstance(result, Unavailable):
                raise WorkerFailed(UNAVAILABLE, result.message)
            swept = await self._carry_out(tiered, result, question.copied_offset)
        if swept is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return swept

    async def _act(
        self,
        watched: _WatchedRetention,
        retention: Retention,
        copied_offset: int,
        result: RetentionResult,
    ) -> None:
        """Do what was found to be due."""
        decision = result.decision
        try:
            if await self._carry_out(watched.tiered, result, copied_offset) is None:
                return
        except (WorkerLost, WorkerFailed) as error:
            self._failed(watched, error)
            return
        watched.backoff.succeeded()
        # What prevents a deletion ends some day, and nothing else would be a reason to look.
        watched.last_check = (
            None
            if result.held_up
            else LastRetentionCheck(
                decision=decision, retention=retention, copied_offset=copied_offset
            )
        )

    async def _carry_out(
        self, tiered: TieredPartition, result: RetentionResult, copied_offset: int
    ) -> Swept | None:
        """Step by step; None if this broker no longer leads."""
        decision, swept = result.decision, Swept()
        if result.is_counted and copied_offset == tiered.state.copied_offset:
            # Otherwise the count may or may not include what was copied meanwhile.
            self._count(tiered, result)
        if decision.expired and not await self._move(tiered, decision):
            return None
        if not decision.expired and decision.log_start_offset > tiered.log.log_start_offset:
            # The table has moved without an answer: the worker died, or its caller has gone.
            tiered.raise_lake_log_start(decision.log_start_offset)
            self._agree(tiered)
        if decision.expired or result.below or result.has_files_below:
            self._crash_points.at("broker_before_sweep")
            swept = await self._worker.send(
                Sweep(partition=tiered.topic_id_partition, leader_epoch=tiered.leader_epoch)
            )
            self._swept(tiered, swept)
        return swept

    async def _move(self, tiered: TieredPartition, decision: ExpirationDecision) -> bool:
        """Move the table's log start, then the log's own; False if this broker no longer leads."""
        offset = decision.log_start_offset
        self._crash_points.at("broker_before_log_start")
        answer = await self._worker.send(
            SetLogStart(
                partition=tiered.topic_id_partition, leader_epoch=tiered.leader_epoch, offset=offset
            )
        )
        self._crash_points.at("broker_after_log_start")
        if isinstance(answer, Unavailable):
            raise WorkerFailed(UNAVAILABLE, answer.message)
        if self._led.get(tiered.key) is not tiered or answer.log_start_offset < offset:
            return False
        tiered.raise_lake_log_start(answer.log_start_offset)
        self._agree(tiered)
        log.info(
            "Incremented log start offset of %s to %d due to %s: %s, %s of log expired",
            tiered.name,
            tiered.log.log_start_offset,
            " and ".join(sorted(each.value for each in decision.reasons)),
            counted(decision.expired, "segment"),
            size_text(decision.expired_bytes),
            extra={"topic": tiered.log.topic, "partition": tiered.log.partition},
        )
        return True

    def _count(self, tiered: TieredPartition, result: RetentionResult) -> None:
        self._metrics.remote_sizes[tiered.topic_partition] = RemoteSize(
            segments=result.segments,
            size_bytes=result.size_bytes,
            computation_ms=result.milliseconds,
            delete_lag_bytes=result.below_bytes + result.decision.expired_bytes,
            delete_lag_segments=result.below + result.decision.expired,
        )

    def _swept(self, tiered: TieredPartition, swept: Swept) -> None:
        self._metrics.deleted(tiered.log.topic, swept.segments)
        key = tiered.topic_partition
        before = self._metrics.remote_sizes.get(key)
        if before is None:
            return
        self._metrics.remote_sizes[key] = RemoteSize(
            segments=max(0, before.segments - swept.segments),
            size_bytes=max(0, before.size_bytes - swept.size_bytes),
            computation_ms=before.computation_ms,
            delete_lag_bytes=max(0, before.delete_lag_bytes - swept.size_bytes),
            delete_lag_segments=max(0, before.delete_lag_segments - swept.segments),
        )

    def _failed(self, watched: _WatchedRetention, error: object) -> None:
        wait_ms = watched.backoff.failed(self._clock.monotonic_ms())
        self._metrics.delete_failed(watched.tiered.log.topic)
        name = watched.tiered.name
        log.warning("retention of %s failed, retrying in %d ms: %s", name, wait_ms, error)

    def _is_led(self, watched: _WatchedRetention) -> bool:
        return self._led.get(watched.tiered.key) is watched.tiered
